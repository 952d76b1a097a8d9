"""The control plane's command lines, and the objects that a cluster has from its first minute.

Facts: the flags' own help texts and the reference pages of kubernetes.io for 1.36; what deviates from a usual cluster
says why.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from helpers.cluster.embedded import pki
from helpers.cluster.embedded.boot import MACHINE, Component
from helpers.cluster.embedded.layout import (
    API_ADDRESS,
    API_PORT,
    COREDNS_ADDRESS,
    DNS_SERVICE,
    DOMAIN,
    NODE_NETWORK,
    POD_NETWORK,
    SERVICE_NETWORK,
    Layout,
)

ETCD, API, CONTROLLERS, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
DNS, PROXY, FORWARDER = "coredns", "kube-proxy", "forwarder"
RBAC = "rbac.authorization.k8s.io"
SERVER = f"https://{API_ADDRESS}:{API_PORT}"

# Go collects garbage when the heap has doubled (GOGC=100). With KubeRay's definitions the API server took 480 MiB this
# way instead of 650 after a first start, and 340 instead of 430 after a later one; without them neither it nor the
# others gain anything. No GOMEMLIMIT: what it holds after a first start exceeds any that would help, and then it does
# nothing but collect (half a core, measured with 350 MiB).
LEAN = {API: {"GOGC": "50"}}

# user of each component that talks to the API server: its kubeconfig is CONFIGS/NAME.kubeconfig
USERS = (ADMIN := "admin", "controller-manager", "scheduler", "proxy", "coredns", "kuberay-operator")


def components(
    layout: Layout, keys: pki.Pki, binary: Callable[[str], Path], python: tuple[str, ...], listener: int
) -> tuple[Component, ...]:
    """All components in the order of their start.

    Args:
        layout: where the cluster's files are.
        keys: its certificates.
        binary: path of a program by its name.
        python: how a module of ours is run, without the module's name.
        listener: file descriptor of the socket on the host's loopback.
    """

    def of_go(name: str, *options: str, after: tuple[str, ...] = (), url: str = "", ca: str = "") -> Component:
        return Component(name, (str(binary(name)), *options), LEAN.get(name, {}), after, url, ca)

    ca = str(keys.certificate(pki.CA))
    return (
        of_go(ETCD, *etcd(layout, keys), url="http://127.0.0.1:2381/health"),
        of_go(API, *api_server(keys), after=(ETCD,), url=f"{SERVER}/readyz", ca=ca),
        of_go(CONTROLLERS, *controllers(layout, keys), after=(API,), url="https://127.0.0.1:10257/healthz"),
        of_go(SCHEDULER, *scheduler(layout), after=(API,), url="https://127.0.0.1:10259/healthz"),
        of_go(DNS, f"-conf={corefile(layout)}", after=(API,), url="http://127.0.0.1:8181/ready"),
        of_go(PROXY, *proxy(layout), after=(API,), url="http://127.0.0.1:10256/livez"),
        Component(
            FORWARDER,
            (*python, "helpers.cluster.embedded.forwarder", str(listener), str(API_ADDRESS), str(API_PORT)),
            inherits=(listener,),
        ),
    )


def etcd(layout: Layout, keys: pki.Pki) -> tuple[str, ...]:
    return (
        f"--data-dir={layout.etcd}",
        "--listen-client-urls=https://127.0.0.1:2379",
        "--advertise-client-urls=https://127.0.0.1:2379",
        "--listen-peer-urls=https://127.0.0.1:2380",
        "--initial-advertise-peer-urls=https://127.0.0.1:2380",
        "--initial-cluster=default=https://127.0.0.1:2380",
        "--listen-metrics-urls=http://127.0.0.1:2381",  # health without a certificate
        # a Pod on the host's network shares this loopback, and must not read every Secret here
        *_etcd_tls(keys, ""),
        *_etcd_tls(keys, "peer-"),
        "--auto-compaction-retention=1",
        "--log-level=warn",
    )


def _etcd_tls(keys: pki.Pki, prefix: str) -> tuple[str, ...]:
    return (
        f"--{prefix}cert-file={keys.certificate('etcd')}",
        f"--{prefix}key-file={keys.key('etcd')}",
        f"--{prefix}trusted-ca-file={keys.certificate(pki.ETCD_CA)}",
        f"--{prefix}client-cert-auth",
    )


def api_server(keys: pki.Pki) -> tuple[str, ...]:
    crt, key = keys.certificate, keys.key
    return (
        "--etcd-servers=https://127.0.0.1:2379",
        f"--etcd-cafile={crt(pki.ETCD_CA)}",
        f"--etcd-certfile={crt('apiserver-etcd-client')}",
        f"--etcd-keyfile={key('apiserver-etcd-client')}",
        "--bind-address=0.0.0.0",  # of the cluster's own network, where nothing is but the cluster
        f"--secure-port={API_PORT}",
        f"--advertise-address={API_ADDRESS}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={crt(pki.CA)}",
        f"--tls-cert-file={crt('apiserver')}",
        f"--tls-private-key-file={key('apiserver')}",
        f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
        f"--service-account-key-file={keys.service_accounts_public}",
        f"--service-account-signing-key-file={key(pki.SERVICE_ACCOUNTS)}",
        f"--kubelet-client-certificate={crt('apiserver-kubelet-client')}",
        f"--kubelet-client-key={key('apiserver-kubelet-client')}",
        f"--kubelet-certificate-authority={crt(pki.CA)}",
        "--kubelet-preferred-address-types=InternalIP",
        # for API services beside the API server, such as a metrics server
        f"--requestheader-client-ca-file={crt(pki.FRONT_PROXY_CA)}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={crt('front-proxy-client')}",
        f"--proxy-client-key-file={key('front-proxy-client')}",
        # 300 s by default: Pods of a lost machine are given up within a lesson's patience
        "--default-not-ready-toleration-seconds=20",
        "--default-unreachable-toleration-seconds=20",
        "--profiling=false",
    )


def controllers(layout: Layout, keys: pki.Pki) -> tuple[str, ...]:
    return (
        *_as_user(layout, "controller-manager"),
        "--bind-address=127.0.0.1",
        "--leader-elect=false",  # there is one of it: nobody to agree with, and no lease to wait for after a restart
        "--use-service-account-credentials",
        f"--root-ca-file={keys.certificate(pki.CA)}",
        f"--service-account-private-key-file={keys.key(pki.SERVICE_ACCOUNTS)}",
        f"--cluster-signing-cert-file={keys.certificate(pki.CA)}",
        f"--cluster-signing-key-file={keys.key(pki.CA)}",
        f"--cluster-cidr={POD_NETWORK}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--allocate-node-cidrs=true",
        # 20 and 30 by default: a new cluster's controllers queue for their ServiceAccounts, and the first Pod for them
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        # 5 s and 50 s by default: a lost machine shows within a lesson's patience
        "--node-monitor-period=2s",
        "--node-monitor-grace-period=16s",
        "--terminated-pod-gc-threshold=100",
        "--profiling=false",
    )


def scheduler(layout: Layout) -> tuple[str, ...]:
    return (
        *_as_user(layout, "scheduler"),
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    )


def _as_user(layout: Layout, user: str) -> tuple[str, ...]:
    file = kubeconfig(layout, user)
    return tuple(f"--{use}kubeconfig={file}" for use in ("", "authentication-", "authorization-"))


def proxy(layout: Layout) -> tuple[str, ...]:
    return (
        f"--kubeconfig={kubeconfig(layout, 'proxy')}",
        "--proxy-mode=nftables",
        f"--nodeport-addresses={NODE_NETWORK}",  # there is no other card than loopback, which it leaves out by itself
        f"--cluster-cidr={POD_NETWORK}",
        # One for all machines, see network.py. It waits 30 s for the Kubernetes node that it is named after, and ends
        # when that is deleted: then it starts again, named after another.
        f"--hostname-override={MACHINE}",
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
        # zero: leave the kernel's settings alone, which a user namespace may not change
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    )


# ---- files that components read --------------------------------------------------------------------------------------


def kubeconfig(layout: Layout, user: str) -> Path:
    """The kubeconfig of a component, for use inside the cluster's namespaces."""
    return layout.configs / f"{user}.kubeconfig"


def corefile(layout: Layout) -> Path:
    return layout.configs / "Corefile"


def corefile_text(layout: Layout) -> str:
    """CoreDNS' configuration: the cluster's names, and "no such name" for all others.

    The last matters: Ray's gRPC asks the name server whatever /etc/hosts says, and takes no answer for a broken
    network.
    """
    return f"""\
{DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {COREDNS_ADDRESS}
    errors
    ready 127.0.0.1:8181
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig "{kubeconfig(layout, "coredns")}"
        pods insecure
        ttl 5
    }}
}}
.:53 {{
    bind {COREDNS_ADDRESS}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


# ---- objects ---------------------------------------------------------------------------------------------------------


def objects() -> list[tuple[str, dict]]:
    """What the cluster needs beside what its components make themselves: (path of the API, object), in order.

    kubeadm makes the same: the right of the API server to talk to kubelets, and CoreDNS with its Service. CoreDNS is a
    process here, so its Service has no selector, and its EndpointSlice is ours.
    """
    rbac = f"/apis/{RBAC}/v1"
    watched = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    labels = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
    return [
        (f"{rbac}/clusterroles", _object(f"{RBAC}/v1", "ClusterRole", "system:coredns", rules=watched)),
        (f"{rbac}/clusterrolebindings", binding("system:coredns", "system:coredns", "system:coredns")),
        (
            f"{rbac}/clusterrolebindings",
            binding("course:kube-apiserver-to-kubelet", "system:kubelet-api-admin", "kube-apiserver-kubelet-client"),
        ),
        (
            "/api/v1/namespaces/kube-system/services",
            _object(
                "v1", "Service", "kube-dns", namespace="kube-system", labels=labels,
                spec={"clusterIP": str(DNS_SERVICE), "ports": [port | {"targetPort": 53} for port in ports]},
            ),
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
            _object(
                "discovery.k8s.io/v1", "EndpointSlice", "kube-dns-course", namespace="kube-system",
                labels={"kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": "course"},
                addressType="IPv4", ports=ports,
                endpoints=[{"addresses": [str(COREDNS_ADDRESS)], "conditions": {"ready": True}}],
            ),
        ),
    ]  # fmt: skip


def _object(
    version: str, kind: str, name: str, *, namespace: str = "", labels: dict[str, str] | None = None, **rest: object
) -> dict:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {}) | ({"labels": labels} if labels else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def binding(name: str, role: str, user: str) -> dict:
    """A ClusterRoleBinding that gives a role to a user."""
    return _object(
        f"{RBAC}/v1", "ClusterRoleBinding", name,
        roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        subjects=[{"apiGroup": RBAC, "kind": "User", "name": user}],
    )  # fmt: skip


def command(component: Component) -> str:
    """A component's command line as a person would type it."""
    return shlex.join(component.argv)

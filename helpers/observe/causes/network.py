"""Causes by which a worker does not reach the others: names, ports, interfaces, a check that is too slow."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from helpers.observe.causes.base import LIKELY, POSSIBLE, Evidence, Found, of_logs
from helpers.observe.scene import Scene
from helpers.observe.snapshot import time_of
from helpers.observe.things import SUBMITTER, WAIT, Pod, later

Object = Mapping[str, Any]
GCS_PORT, DNS_PORT = 6379, 53
QUIET_S = 120  # for which the init container shows nothing of its checks (pod.go)
NO_NAME = (
    "could not resolve", "Name or service not known", "Temporary failure in name resolution", "NXDOMAIN",
    "DNS resolution failed", "no servers could be reached", "server can't find", "Domain name not found",
    "nodename nor servname", "bad address",
)  # fmt: skip
NO_WAY = ("timed out", "No route to host", "Network is unreachable", "Operation timed out")
UNANSWERED = ("Failed to connect to GCS", "waiting for GCS to become available")
AT_LIMIT = 0.8
LOOKUPS = re.compile(r"\b(getent (ahosts|hosts)|nslookup|dig|host|gethostbyname|getaddrinfo)\b")
NAME_SERVERS = ("kube-dns", "coredns")  # values of the label k8s-app, and beginnings of names, of the name service
KNOCKS = re.compile(r"/dev/tcp/|\bnc\b|\bncat\b|\btelnet\b|\bcurl\b|\bwget\b|socket\.create_connection|health-check")
EXIT = re.compile(r"exit code (\d+)|exit status (\d+)")
BRIDGES = re.compile(r"docker|virbr|br-|cni|lo$|lo:|flannel|veth|cali|tun|kube-bridge")
NCCL = re.compile(
    r"(?:NET/Socket|NET/IB|Bootstrap)\s*:\s*Using\s+(?:\[\d+\])?([\w.-]+):(\d+\.\d+\.\d+\.\d+)", re.IGNORECASE
)
NCCL_FAILED = re.compile(r"[Cc]onnect to (\d+\.\d+\.\d+\.\d+)<\d+> failed")
GLOO = re.compile(
    r"Gloo connectFullMesh failed|connectFullMesh.*remote=\[?(127\.|172\.17\.)|gloo.*\[127\.0\.[01]\.1\]", re.IGNORECASE
)


def waiting_workers(scene: Scene) -> list[Pod]:
    """Workers whose init container has waited for the head longer than a start takes, though the head is ready."""
    found = []
    for pod in scene.workers:
        head, one = scene.head_of(pod.cluster), pod.waits_for_head
        if not (head and head.is_ready) or pod.is_ready:
            continue
        waits = one is not None and scene.since(one.started or pod.created) > QUIET_S
        # without that init container, `ray start` itself gives up
        gives_up = pod.ray.restarts > 0 and any(
            log.lines(UNANSWERED[0]) for log in scene.logs_of(pod.ray.name, pod.name)
        )
        if waits or gives_up:
            found.append(pod)
    return found


def dns_blocked(scene: Scene) -> Found | str:
    evidence = [*_failed_lookups(scene), *_unresolved(scene)]
    if evidence:
        return Found(
            "The name of the head's Service is not resolved.", (*evidence[:2], *_policies(scene, DNS_PORT)[:1])
        )
    if _good_lookups(scene):
        return "the name of the head's Service is resolved"
    pods = waiting_workers(scene)
    policies = _policies(scene, DNS_PORT) if pods else []
    if policies:
        return Found("A NetworkPolicy lets no worker ask for a name.", (*policies[:2], *_unanswered(scene)), LIKELY)
    down = _name_service_down(scene) if pods else []
    if down:
        return Found("The cluster's name service does not run.", (*down[:2], *_unanswered(scene)), LIKELY)
    return "no worker waits for a head that is ready" if not pods else "no policy and no log speaks of names"


def network_blocked(scene: Scene) -> Found | str:
    pods = waiting_workers(scene)
    knocked = _failed_knocks(scene)
    policies = _policies(scene, GCS_PORT) if pods else []
    if knocked or (policies and not _failed_lookups(scene)):
        said = f"The name of the head is resolved, and its port {GCS_PORT} is not reached."
        return Found(said, (*knocked[:1], *policies[:1], *_good_lookups(scene)[:1], *_unanswered(scene)[:1]))
    if not pods:
        return "no worker waits for a head that is ready"
    told = _unanswered(scene) or _still_waiting(scene)
    names = (_failed_lookups(scene), _unresolved(scene), _policies(scene, DNS_PORT), _name_service_down(scene))
    if not told or any(names):
        return "no log says that the head's port is not reached" if scene.logs else ""
    said = (
        f"{pods[0].name} waits for a head that is ready: the way to its port {GCS_PORT} seems cut, or its name unknown."
    )
    fix = (
        f"Ask in the Pod itself: `kubectl exec {pods[0].name} -c {WAIT} -- getent hosts"
        f" {pods[0].cluster}-head-svc`, then"
        f" `… -- timeout 3 bash -c '</dev/tcp/{pods[0].cluster}-head-svc/{GCS_PORT}'`; look for a"
        " NetworkPolicy or a mesh."
    )
    return Found(said, told, POSSIBLE, fix)


def init_throttled(scene: Scene) -> Found | str:
    """The check of the init container takes longer than it may, at its fixed limit of 200m CPU (pod.go)."""
    pods = waiting_workers(scene)
    if not pods:
        return "no init container waits for a head that is ready" if scene.pods else ""
    if _unanswered(scene):
        return "the checks of the init container come back, without an answer"
    pod = next((one for one in pods if one.waits_for_head), None)
    if pod is None:
        return "no init container waits"
    share, logs = scene.cpu_share(pod, pod.waits_for_head), scene.logs_of(WAIT, pod.name)
    is_silent = bool(logs) and not any(log.text.strip() for log in logs)
    killed = [line for log in logs for line in log.lines("Killed", "Terminated", "timed out after")]
    if not ((share is not None and share > AT_LIMIT) or (share is None and (is_silent or killed))):
        return "the init container is not at its CPU limit" if share is not None else ""
    evidence = []
    if share is not None:
        told = f"{pod.name}, {WAIT}: {share:.0%} of its CPU limit in use"
        evidence.append(Evidence(told, "kubectl top pod --containers"))
    if is_silent:
        waited = scene.since(pod.waits_for_head.started)
        evidence.append(Evidence(f"after {waited:.0f} s its log is empty: no check has come back", logs[0].command))
    evidence += [Evidence(line[:300], logs[0].command) for line in killed[:1]]
    said = (
        f"The head is ready, and the check of {pod.name} is too slow to see it, at the CPU limit of its init container."
    )
    return Found(said, tuple(evidence), "certain" if share else LIKELY)


# ---- what was tried ------------------------------------------------------------------------------------------------


def _tried(scene: Scene, kind: re.Pattern) -> Iterator[tuple[str, str]]:
    for command, printed in scene.snapshot.exec.items():
        if kind.search(command):
            yield command, printed


def _failed_lookups(scene: Scene) -> list[Evidence]:
    found = _tried(scene, LOOKUPS)  # `getent` says nothing of a name that it does not find
    failed = [_shown(command, said) for command, said in found if not said.strip() or _is_bad(said, NO_NAME)]
    # whatever was run (ping, curl, …), it may say that it does not find the head's name
    others = [(command, said) for command, said in scene.snapshot.exec.items() if not LOOKUPS.search(command)]
    named = [(command, said) for command, said in others if "head-svc" in command + said and _has(said, NO_NAME)]
    return failed + [_shown(command, said) for command, said in named]


def _good_lookups(scene: Scene) -> list[Evidence]:
    found = [(command, printed) for command, printed in _tried(scene, LOOKUPS) if not _is_bad(printed, NO_NAME)]
    return [
        _shown(command, printed) for command, printed in found if re.search(r"\d+\.\d+\.\d+\.\d+|[0-9a-f]+::", printed)
    ]


def _failed_knocks(scene: Scene) -> list[Evidence]:
    """Ports that were tried and not reached; not those whose name was not found."""
    found = [(command, printed) for command, printed in _tried(scene, KNOCKS) if _is_bad(printed, NO_WAY)]
    return [_shown(command, printed) for command, printed in found if not _has(printed, NO_NAME)]


def _is_bad(printed: str, needles: tuple[str, ...]) -> bool:
    code = EXIT.search(printed)
    return _has(printed, needles) or bool(code and int(code[1] or code[2]))


def _name_service_down(scene: Scene) -> list[Evidence]:
    """Pods of the cluster's name service, if some are there and none of them is ready."""
    every = [Pod(one) for one in scene.snapshot.of_kind("Pod")]
    servers = [pod for pod in every if pod.labels.get("k8s-app") in NAME_SERVERS or pod.name.startswith(NAME_SERVERS)]
    if any(pod.is_ready for pod in servers):
        return []
    return [Evidence(f"Pod {pod.name} is not ready", scene.describe("pod", pod.name)) for pod in servers]


def _has(text: str, needles: tuple[str, ...]) -> bool:
    return any(one.lower() in text.lower() for one in needles)


def _shown(command: str, printed: str) -> Evidence:
    return Evidence(" ".join(printed.split())[:200] or "nothing was printed", command)


def _unresolved(scene: Scene) -> tuple[Evidence, ...]:
    if told := of_logs(scene, *NO_NAME, containers=(WAIT,)):
        return told
    logs = [log for log in scene.logs if log.container != SUBMITTER or _came_after_head(scene, log.pod)]
    lines = [(log, line) for log in logs for line in log.lines(*NO_NAME) if "head-svc" in line]
    return tuple(Evidence(line[:300], log.command) for log, line in lines[:3])


def _came_after_head(scene: Scene, submitter: str) -> bool:
    """Whether the head was ready before a submitter's Pod was made: before that its Service has no address to give."""
    made = next((pod.created for pod in scene.submitters if pod.name == submitter), None)
    ready = [time_of(head.condition("Ready").get("lastTransitionTime")) for head in scene.heads if head.is_ready]
    return any(later(made, at) for at in ready)


def _unanswered(scene: Scene) -> tuple[Evidence, ...]:
    """Checks that came back without an answer of the head: lines of rpc_client.h and gcs_client.cc of Ray."""
    return of_logs(scene, *UNANSWERED, most=1)


def _still_waiting(scene: Scene) -> tuple[Evidence, ...]:
    """Checks that failed and say no more; not those that say that versions differ, nor those that are too slow."""
    logs = [log for log in scene.logs_of(WAIT) if "version mismatch" not in log.text.lower()]
    slow = any(
        (scene.cpu_share(pod, pod.waits_for_head) or 0) > AT_LIMIT
        for pod in waiting_workers(scene)
        if pod.waits_for_head
    )
    lines = [(log, line) for log in logs for line in log.lines("seconds elapsed: Still waiting for GCS")]
    return () if slow else tuple(Evidence(line[:300], log.command) for log, line in lines[-1:])


# ---- network policies ----------------------------------------------------------------------------------------------


def _policies(scene: Scene, port: int) -> list[Evidence]:
    """NetworkPolicies by which a worker does not reach that port: of the head, or of the cluster's name service.

    As documented: the policies that select a Pod are joined, and what none of them allows is denied.
    """
    for worker in waiting_workers(scene) or scene.workers:
        head = scene.head_of(worker.cluster)
        denied = _denies(scene, worker, "Egress", port, None if port == DNS_PORT else head)
        if port != DNS_PORT and head and not denied:
            denied = _denies(scene, head, "Ingress", port, worker)
        if denied:
            return [
                Evidence(
                    f"NetworkPolicy {name} allows no {way.lower()} for port {port}",
                    f"kubectl describe networkpolicy {name}",
                )
                for name, way in denied
            ]
    return []


def _denies(scene: Scene, pod: Pod, way: str, port: int, other: Pod | None) -> list[tuple[str, str]]:
    mine = [one for one in scene.snapshot.of_kind("NetworkPolicy") if _selects(one, pod, way)]
    if any(_allows(rule, way, port, other) for one in mine for rule in (one["spec"].get(way.lower()) or ())):
        return []
    return [(one["metadata"]["name"], way) for one in mine]


def _selects(policy: Object, pod: Pod, way: str) -> bool:
    spec = policy.get("spec") or {}
    types = spec.get("policyTypes") or (["Ingress"] + (["Egress"] if spec.get("egress") else []))
    same = policy["metadata"].get("namespace") == pod.thing["metadata"].get("namespace")
    return same and way in types and _matches(spec.get("podSelector") or {}, pod.labels)


def _allows(rule: Object, way: str, port: int, other: Pod | None) -> bool:
    peers = rule.get("to" if way == "Egress" else "from") or ()
    return _has_port(rule.get("ports") or (), port) and (not peers or any(_is_peer(one, other) for one in peers))


def _has_port(ports: Any, port: int) -> bool:
    for one in ports:
        first, last = one.get("port"), one.get("endPort")
        if first is None or str(first) == str(port) or (isinstance(first, str) and not first.isdigit()):
            return True  # a port by name may be this one
        if last and int(first) <= port <= int(last):
            return True
    return not ports


def _is_peer(peer: Object, other: Pod | None) -> bool:
    """Whether a peer may be the other Pod; without one, the name service, which is in another namespace."""
    if block := peer.get("ipBlock"):
        return other is None or not other.ip or _is_in(other.ip, block)
    if "namespaceSelector" in peer:
        return True  # labels of namespaces are not looked at
    return other is not None and _matches(peer.get("podSelector") or {}, other.labels)


def _is_in(ip: str, block: Object) -> bool:
    try:
        address = ipaddress.ip_address(ip)
        inside = address in ipaddress.ip_network(block.get("cidr", ""), strict=False)
        return inside and not any(
            address in ipaddress.ip_network(one, strict=False) for one in block.get("except") or ()
        )
    except ValueError:
        return True


def _matches(selector: Object, labels: Mapping[str, str]) -> bool:
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_expressed(one, labels) for one in selector.get("matchExpressions") or ())


def _expressed(one: Object, labels: Mapping[str, str]) -> bool:
    there, values = labels.get(one.get("key", "")), one.get("values") or ()
    told = {
        "In": there in values,
        "NotIn": there not in values,
        "Exists": there is not None,
        "DoesNotExist": there is None,
    }
    return told.get(one.get("operator", ""), True)


# ---- collectives ---------------------------------------------------------------------------------------------------


def nccl_wrong_interface(scene: Scene) -> Found | str:
    """NCCL, or Gloo, has chosen an interface whose address is not the Pod's own."""
    ips = {pod.ip for pod in scene.pods if pod.ip}
    seen = [
        (log, line.strip(), *found.groups())
        for log in scene.logs
        for line in log.text.splitlines()
        if (found := NCCL.search(line))
    ]
    used = {(log.pod, address) for log, _, _, address in seen}
    failed = [
        (log, line.strip(), "an interface", found[1])
        for log in scene.logs
        for line in log.text.splitlines()
        if (found := NCCL_FAILED.search(line)) and "NCCL" in line and ips and found[1] not in ips
    ]
    wrong = failed + [
        (log, line, interface, address)
        for log, line, interface, address in seen
        if address not in ips
        and (ips or BRIDGES.match(interface))
        and (
            BRIDGES.match(interface)
            or _is_local(address)
            or sum(other == address for _, other in used) > 1
            or len(used) > 1
        )
    ]
    if wrong:
        _, _, interface, address = wrong[0]
        said = (
            f"The process group chose {interface} ({address}), which is no address of a Pod: the others are not"
            " reached."
        )
        return Found(said, tuple(Evidence(line[:300], log.command) for log, line, _, _ in wrong[:3]))
    gloo = [
        Evidence(line.strip()[:300], log.command)
        for log in scene.logs
        for line in log.text.splitlines()
        if GLOO.search(line)
    ]
    if gloo:
        return Found("The process group chose an interface that does not reach the others.", tuple(gloo[:2]), LIKELY)
    return "the process group uses the Pods' own addresses" if seen else ""


def _is_local(address: str) -> bool:
    return address.startswith(("127.", "172.17.", "169.254."))

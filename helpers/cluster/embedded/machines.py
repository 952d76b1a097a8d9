"""Machines: what they are declared to be, and the files by which one boots."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from helpers.cluster.backend import GPU_LABEL
from helpers.cluster.embedded import gpus, kubeconfig, pki
from helpers.cluster.embedded.boot import DeclaredMachine
from helpers.cluster.embedded.controlplane import SERVER
from helpers.cluster.embedded.layout import (
    DNS_SERVICE,
    DOMAIN,
    FIRST_MACHINE,
    NODE_NETWORK,
    POD_GATEWAY,
    Layout,
    Machine,
    MachineLayout,
)
from helpers.cluster.embedded.network import HAIRPIN_TABLE
from helpers.cluster.embedded.runtime import images
from helpers.errors import CourseError
from helpers.state import cache_dir, course_root, state_dir, write_private

GIB = 1024**3
KUBELET_PORT = 10250
LAST_MACHINE = 250

# Shared by all machines; what is special to one is in its kubelet.json. The times are shorter than usual, so that what
# happens to a machine shows within a lesson's patience.
KUBELET_CONFIG = f"""\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
port: {KUBELET_PORT}
readOnlyPort: 0
healthzPort: 0
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}}}
authorization: {{mode: Webhook}}
clusterDNS: [{DNS_SERVICE}]
clusterDomain: {DOMAIN}
resolvConf: ""                      # a Pod with dnsPolicy Default asks nobody: there is no way out of the cluster
failSwapOn: false
failCgroupV1: false                 # there are no cgroups of the kubelet's: the runtime limits memory
cgroupsPerQOS: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
nodeStatusUpdateFrequency: 4s       # 10s
nodeStatusReportFrequency: 30s      # 5m
nodeLeaseDurationSeconds: 12        # 40
syncFrequency: 10s                  # 1m: a changed ConfigMap reaches a running Pod sooner
fileCheckFrequency: 0s              # no static Pods
httpCheckFrequency: 0s
serializeImagePulls: false
registryPullQPS: 0
eventRecordQPS: 0
evictionHard:                       # the machine's disk is the host's, and how full that is says nothing here;
  nodefs.available: "0%"            # an empty list would mean the defaults
  nodefs.inodesFree: "0%"
  imagefs.available: "0%"
  imagefs.inodesFree: "0%"
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 110
"""
ROOTLESS = """\
featureGates: {KubeletInUserNamespace: true}
"""


@dataclass(frozen=True)
class Declaration:
    """A machine that is to be there, and the address that it keeps for life."""

    machine: Machine
    address: IPv4Address


def declared(layout: Layout) -> dict[str, Declaration]:
    """All machines that are declared, by name."""
    found = {}
    for file in sorted(layout.machines.glob("*/declared.json")):
        data = json.loads(file.read_text())
        shape = {key: tuple(value) if isinstance(value, list) else value for key, value in data["machine"].items()}
        machine = Machine(**shape)
        found[machine.name] = Declaration(machine, IPv4Address(data["address"]))
    return found


def declare(layout: Layout, machine: Machine) -> Declaration:
    """Note that a machine is to be there; it keeps its address if it was declared before.

    Raises:
        CourseError: if one of that name is declared with another shape, its GPUs are not there, another machine has
            them or has GPUs of the other kind, or no address is left.
    """
    there = declared(layout)
    if machine.name in there:
        if there[machine.name].machine != machine:
            raise CourseError(
                f"There is a machine {machine.name} of another shape already.",
                f'Remove it first, by `cluster.remove_machine("{machine.name}")`, or choose another name.',
            )
        return there[machine.name]
    _check_gpus(machine, [other.machine for other in there.values()])
    declaration = Declaration(machine, _free_address({other.address for other in there.values()}))
    place = layout.machine(machine.name)
    place.disk.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine.as_json(), "address": str(declaration.address)}, indent=1)
    write_private(place.declared, text.encode())
    return declaration


def _check_gpus(machine: Machine, others: Iterable[Machine]) -> None:
    gpus.files(machine.devices)
    for other in others:
        if {machine.gpu_kind, other.gpu_kind} == {"fake", "real"}:
            raise CourseError(
                f"The machine {other.name} has {other.gpu_kind} GPUs, and {machine.name} is to have {machine.gpu_kind} "
                "ones, which are not mixed.",
                "Declare all machines with GPUs of one kind, or begin anew by `course down --wipe`.",
            )
        if taken := set(machine.devices) & set(other.devices):
            raise CourseError(
                f"The machine {other.name} has the GPU {min(taken)} already, and {machine.name} is to have it too.",
                f'Give it another one, or remove the first, by `cluster.remove_machine("{other.name}")`.',
            )


def gpus_declared(layout: Layout) -> str:
    """The kind of the GPUs that the cluster's machines have: "real" or else "fake"; "" if none was declared yet."""
    if not layout.machines.exists():
        return ""
    kinds = {declaration.machine.gpu_kind for declaration in declared(layout).values()}
    return "real" if "real" in kinds else "fake"


def forget(layout: Layout, name: str) -> None:
    """The machine is not to be there any more; what is on its disk goes with it, see `wipe`."""
    layout.machine(name).declared.unlink(missing_ok=True)
    for suffix in ("crt", "key"):
        (layout.pki / f"kubelet-{name}.{suffix}").unlink(missing_ok=True)


def _free_address(taken: set[IPv4Address]) -> IPv4Address:
    for number in range(FIRST_MACHINE, LAST_MACHINE + 1):
        if (address := NODE_NETWORK[number]) not in taken:
            return address
    raise CourseError(
        f"There are {len(taken)} machines, and no address is left for another.",
        "Remove some machines first.",
    )


@dataclass(frozen=True)
class Writer:
    """Writes the files by which machines boot.

    Attributes:
        layout: where the cluster's files are; what is written names them as they are seen inside.
        binary: path of a program by its name.
        python: how a module of ours is run, without the module's name.
        env: environment of what runs on a machine.
    """

    layout: Layout
    binary: Callable[[str], Path]
    python: tuple[str, ...]
    env: dict[str, str]

    def write_shared(self) -> None:
        """What all machines read."""
        text = KUBELET_CONFIG + ("" if os.geteuid() == 0 else ROOTLESS)
        _kubelet_config(self.layout).write_text(text)

    def write(self, declaration: Declaration) -> DeclaredMachine:
        """All files of one machine. They are made anew at each boot, since paths may have changed since the last."""
        name, place = declaration.machine.name, self.layout.machine(declaration.machine.name)
        for directory in (place.kubelet, place.pod_logs, place.runtime):
            directory.mkdir(parents=True, exist_ok=True)
        certificate = f"kubelet-{name}"
        write_private(place.kubeconfig, kubeconfig.by_paths(self._keys, certificate, SERVER).encode())
        _write(place.spec, self._init_spec(name))
        _write(place.runtime_config, self._runtime_config(name))
        _write(place.kubelet_spec, self._kubelet_spec(declaration, certificate))
        return DeclaredMachine(name, declaration.address, self._inside(name).spec)

    @property
    def _keys(self) -> pki.Pki:
        return pki.Pki(self.layout.inside.pki)

    def _inside(self, name: str) -> MachineLayout:
        return self.layout.inside.machine(name)

    def _cgroup(self, name: str) -> str | None:
        return f"ray-course/{self.layout.id}/{name}" if os.geteuid() == 0 else None

    def _init_spec(self, name: str) -> dict:
        place = self._inside(name)
        runtime = [*self.python, "helpers.cluster.embedded.runtime", str(place.runtime_config)]
        kubelet = [str(self.binary("kubelet")), str(_kubelet_config(self.layout.inside)), str(place.kubelet_spec)]
        services = [
            {"name": "runtime", "argv": runtime, "env": self.env},
            {"name": "kubelet", "argv": kubelet, "env": self.env, "after": str(place.cri_socket)},
        ]
        return {
            "name": name,
            "hostname": name,
            "run": str(place.run),
            "disk": str(place.runtime),
            "socket": str(place.init_socket),
            "cgroup": self._cgroup(name),
            "services": [
                service | {"log": str(self.layout.inside.logs / f"{name}.{service['name']}.log")}
                for service in services
            ],
            "view": {"hidden": hidden(self.layout), "visible": visible()},
        }

    def _runtime_config(self, name: str) -> dict:
        place = self._inside(name)
        return {
            "socket": str(place.cri_socket),
            "init_socket": str(place.init_socket),
            "disk": str(place.runtime),
            "descriptor": str(self.binary("kubelet").parent / "cri.pb"),
            "machine": name,
            "images": images.default_images(sys.prefix),
            "pull_delay_s": 0.0,
            "pod_gateway": str(POD_GATEWAY),
            "hairpin_table": HAIRPIN_TABLE,
        }

    def _kubelet_spec(self, declaration: Declaration, certificate: str) -> dict:
        machine, place = declaration.machine, self._inside(declaration.machine.name)
        return {
            "name": machine.name,
            "address": str(declaration.address),
            "provider_id": f"process://{machine.name}",
            "kubeconfig": str(place.kubeconfig),
            "tls_cert": str(self._keys.certificate(certificate)),
            "tls_key": str(self._keys.key(certificate)),
            "client_ca": str(self._keys.certificate(pki.CA)),
            "disk": str(place.disk),
            "root": str(place.kubelet),
            "pod_logs": str(place.pod_logs),
            "cri_socket": str(place.cri_socket),
            "cpu": machine.cpu,
            "memory_bytes": machine.memory_gib * GIB,
            "disk_bytes": machine.disk_gib * GIB,
            "extended": {"nvidia.com/gpu": machine.gpu_count} if machine.gpu_count else {},
            "gpus": [{"id": uuid, "files": files} for uuid, files in gpus.files(machine.devices).items()],
            "labels": machine.labels | ({GPU_LABEL: machine.gpu_kind} if machine.gpu_kind else {}),
            "taints": list(machine.taints),
            "cgroup": self._cgroup(machine.name),
        }


def _kubelet_config(layout: Layout) -> Path:
    return layout.configs / "kubelet.yaml"


def certificates(declarations: Sequence[Declaration]) -> list[pki.Certificate]:
    """What `pki.Pki.ensure` makes for the machines' kubelets."""
    return [pki.of_kubelet(declaration.machine.name, declaration.address) for declaration in declarations]


def hidden(layout: Layout) -> list[str]:
    """What no container may see: people's homes, the cluster's own files and keys, the checkout with its answers."""
    places = [Path.home(), Path("/home"), Path("/root"), state_dir(), cache_dir(), layout.root, course_root()]
    kept = {place.resolve() for place in places} - {Path("/")}
    return sorted(str(place) for place in kept if place.is_dir())


def visible() -> list[str]:
    """What containers see nevertheless: the Python that they run by."""
    return sorted({str(Path(place).resolve()) for place in (sys.prefix, sys.base_prefix)})


def remove_cgroups(cluster: str) -> None:
    """Remove what a cluster that was killed left of its cgroups. Nothing runs in them any more."""
    for mount in _cgroup_mounts():
        top = mount / "ray-course" / cluster
        for directory, _, _ in os.walk(top, topdown=False):
            os.rmdir(directory)
        with contextlib.suppress(OSError):  # not there, or another cluster's cgroups are in it
            top.parent.rmdir()


def _cgroup_mounts() -> list[Path]:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(where) for _, where, kind, *_ in lines if kind in ("cgroup", "cgroup2")]


def _write(path: Path, data: dict) -> None:
    write_private(path, json.dumps(data, indent=1).encode())

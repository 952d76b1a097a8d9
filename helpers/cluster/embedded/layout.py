"""Where an embedded cluster keeps its files, and the addresses it uses inside its own network namespace."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from helpers.cluster.embedded import gpus
from helpers.errors import CourseError
from helpers.state import state_dir

# All of these exist only inside the cluster's own network namespace, so that they clash with nothing of the host's.
NODE_NETWORK = IPv4Network("10.88.255.0/24")
API_ADDRESS = IPv4Address("10.88.255.1")  # of kube-apiserver, seen from Pods and components
COREDNS_ADDRESS = IPv4Address("10.88.255.2")  # the one endpoint of the Service kube-dns
FIRST_MACHINE = 11  # machines are 10.88.255.11, .12, …
API_PORT = 6443
POD_NETWORK = IPv4Network("10.88.0.0/17")  # kube-controller-manager gives each Kubernetes node a /24 of it
SERVICE_NETWORK = IPv4Network("10.96.0.0/16")
KUBERNETES_SERVICE = IPv4Address("10.96.0.1")
DNS_SERVICE = IPv4Address("10.96.0.10")
POD_GATEWAY = IPv4Address("169.254.1.1")  # the far end of every Pod's veth pair
DOMAIN = "cluster.local"

RUN = Path("/run/course")  # a tmpfs that only the cluster's mount namespace has: short paths for sockets
INSIDE = (
    RUN / "cluster"
)  # where the cluster's mount namespace has its directory: short too, whatever the learner's path
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")


@dataclass(frozen=True)
class Machine:
    """What a cloud would boot: its size is what the course says, not what this computer has.

    Attributes:
        name: name of the machine, and of the Kubernetes node that it becomes.
        cpu: CPUs that the Kubernetes node has.
        memory_gib: memory in GiB.
        gpus: how many fake GPUs it shows as `nvidia.com/gpu`.
        labels: labels of the Kubernetes node, beside those that the kubelet sets itself.
        taints: such as `nvidia.com/gpu=present:NoSchedule`.
        disk_gib: ephemeral storage in GiB.
        devices: UUIDs of the real GPUs that it has instead of fake ones, shown in the same way.
    """

    name: str
    cpu: int = 8
    memory_gib: int = 16
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    disk_gib: int = 100
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise CourseError(
                f'"{self.name}" cannot be the name of a machine.',
                "Use up to 42 lower-case letters, digits and hyphens, beginning and ending with a letter or digit.",
            )
        if self.gpus and self.devices:
            raise CourseError(
                f"The machine {self.name} is to have fake and real GPUs, which are not mixed.",
                "Give it one kind: `gpus` or `devices`.",
            )
        gpus.check_uuids(self.devices)

    @property
    def gpu_count(self) -> int:
        """How many GPUs the Kubernetes node shows."""
        return self.gpus or len(self.devices)

    @property
    def gpu_kind(self) -> str:
        """ "real", "fake", or "" if it has none."""
        return "real" if self.devices else "fake" if self.gpus else ""

    def as_json(self) -> dict:
        """What `Machine(**data)` takes, as JSON can hold it."""
        return asdict(self) | {"taints": list(self.taints), "devices": list(self.devices)}


GPU_TAINT = "nvidia.com/gpu=present:NoSchedule"
DEFAULT_MACHINES = (
    Machine("cpu-a"),
    Machine("cpu-b"),
    Machine("gpu-a", cpu=32, memory_gib=128, gpus=4, taints=(GPU_TAINT,)),
)


def machines_with(devices: tuple[str, ...]) -> tuple[Machine, ...]:
    """The default machines, with these real GPUs in the place of the fake ones."""
    return tuple(replace(one, gpus=0, devices=devices) if one.gpus else one for one in DEFAULT_MACHINES)


@dataclass(frozen=True)
class Layout:
    """The files of one embedded cluster, all below `root`."""

    root: Path

    @classmethod
    def usual(cls) -> Layout:
        """That of the learner's cluster."""
        return cls(state_dir() / "embedded")

    @property
    def inside(self) -> Layout:
        """The same files as the cluster's own processes see them: a Unix address has room for 107 bytes (unix(7))."""
        return Layout(INSIDE)

    @property
    def kubeconfig(self) -> Path:
        """For the learner's kubectl and notebooks: the API server through the forwarder on loopback. Mode 0600."""
        return self.root / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def configs(self) -> Path:
        """kubeconfigs of components, and what else they read; for use inside the cluster's namespaces."""
        return self.root / "configs"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def logs(self) -> Path:
        """COMPONENT.log of each component; a machine's are NAME.init.log, NAME.runtime.log, NAME.kubelet.log."""
        return self.root / "logs"

    @property
    def id(self) -> str:
        """Tells this cluster's cgroups from those of another."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:12]

    @property
    def declared(self) -> Path:
        """What belongs to the cluster beside its machines, which have files of their own: `{"kuberay": true}`."""
        return self.root / "declared.json"

    @property
    def machines(self) -> Path:
        return self.root / "machines"

    def machine(self, name: str) -> MachineLayout:
        return MachineLayout(self.machines / name, RUN / name)


@dataclass(frozen=True)
class MachineLayout:
    """The files of one machine: what is below `disk` outlives it, what is below `run` does not."""

    disk: Path
    run: Path

    @property
    def declared(self) -> Path:
        """The `Machine` and its address: that this file is there says that the machine is to be there."""
        return self.disk / "declared.json"

    @property
    def spec(self) -> Path:
        """machine.json, which the machine's init reads. See runtime/init.py."""
        return self.disk / "machine.json"

    @property
    def runtime_config(self) -> Path:
        """What the runtime reads. See runtime/__main__.py."""
        return self.disk / "runtime.json"

    @property
    def kubelet_spec(self) -> Path:
        """What is special to this machine's kubelet. See tools/kubelet/spec.go."""
        return self.disk / "kubelet.json"

    @property
    def kubeconfig(self) -> Path:
        """The kubelet's."""
        return self.disk / "kubelet.kubeconfig"

    @property
    def kubelet(self) -> Path:
        """Root directory of the kubelet: Pods' volumes."""
        return self.disk / "kubelet"

    @property
    def pod_logs(self) -> Path:
        return self.disk / "pod-logs"

    @property
    def runtime(self) -> Path:
        """What the runtime knows of its sandboxes and containers, and their writable layers."""
        return self.disk / "runtime"

    @property
    def init_socket(self) -> Path:
        return self.run / "init.sock"

    @property
    def cri_socket(self) -> Path:
        return self.run / "cri.sock"

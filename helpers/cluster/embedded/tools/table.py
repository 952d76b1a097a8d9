"""Which programs there are, what each is built from, and the key under which a build is kept."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers import versions
from helpers.errors import CourseError
from helpers.state import course_root

MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}  # as Python says it: as Go says it


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: its file, and what `binary` is asked for.
        package: the Go package that it is built from.
        ask: arguments with which it says its version, and nothing else; none if it cannot say it, or must be ours.
        says: what it says then, up to the end of the line or the next blank.
    """

    name: str
    package: str
    ask: tuple[str, ...] = ()
    says: str = ""


@dataclass(frozen=True)
class Family:
    """Programs that are built from one go.mod, in the folder of tools/ that has the family's name.

    Attributes:
        name: the folder below tools/.
        module: the module that decides the version of all programs.
        version: that of the module, without `v`.
        programs: what is built.
        stamps: variables of the linker that tell the programs their version.
        descriptor: whether the kubelet writes the messages of the CRI beside the programs, as `cri.pb`.
        manifests: files of the module that lie beside the programs too, by their paths in it.
        for_tests: whether only tests need it; it is a suite of Go tests then.
        on_request: whether it is built only when something asks for it by name, see `build.build_one`.
    """

    name: str
    module: str
    version: str
    programs: tuple[Program, ...]
    stamps: tuple[str, ...] = ()
    descriptor: bool = False
    manifests: tuple[str, ...] = ()
    for_tests: bool = False
    on_request: bool = False

    @property
    def is_extra(self) -> bool:
        """Whether a learner may lack it."""
        return self.for_tests or self.on_request

    @property
    def folder(self) -> Path:
        return course_root() / "tools" / self.name

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of a finished build."""
        return tuple(program.name for program in self.programs) + self.others

    @property
    def others(self) -> tuple[str, ...]:
        """Those that are no programs."""
        return ((DESCRIPTOR,) if self.descriptor else ()) + tuple(Path(path).name for path in self.manifests)

    @property
    def flags(self) -> tuple[str, ...]:
        """What `go build` is called with: small and the same wherever it is built, with a true version."""
        linker = " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in self.stamps)])
        return ("-trimpath", "-pgo=off", "-ldflags", linker)

    def key(self) -> str:
        """Changes with everything that decides what is built; the patch level of Go does not (see `golang`)."""
        sources = sorted(path for path in self.folder.glob("*.go") if not path.name.endswith("_test.go"))
        digest = hashlib.sha256(repr((self.flags, this_platform(), versions.GO_MIN, self.programs)).encode())
        for path in [self.folder / "go.mod", self.folder / "go.sum", *sources]:
            text = path.read_bytes()
            digest.update(f"{path.name} {len(text)}\n".encode() + text)
        for path in self.manifests:
            digest.update(f"{path}\n".encode())
        return digest.hexdigest()[:16]


DESCRIPTOR = "cri.pb"
CRDS = tuple(f"ray.io_{kind}.yaml" for kind in ("rayclusters", "rayjobs", "rayservices", "raycronjobs"))
ROLE = "role.yaml"  # the operator's ClusterRole; Helm's chart has the same rules


def _kubernetes_stamps(version: str) -> Iterator[str]:
    """What `kubectl version` and the API server's /version say. Clients have a copy of their own."""
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    values |= {"gitCommit": "unknown", "gitTreeState": "archive"}  # as upstream says it for builds without git
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        yield from (f"{package}.{name}={value}" for name, value in values.items())


def _kubernetes(name: str, ask: str = "--version", says: str = "Kubernetes v") -> Program:
    return Program(name, f"k8s.io/kubernetes/cmd/{name}", tuple(ask.split()), says)


FAMILIES = (
    Family(
        "kubelet",
        "k8s.io/kubernetes",
        versions.KUBERNETES,
        (
            _kubernetes("kube-apiserver"),
            _kubernetes("kube-controller-manager"),
            _kubernetes("kube-scheduler"),
            _kubernetes("kube-proxy"),
            _kubernetes("kubectl", "version --client", "Client Version: v"),
            Program("kubelet", "."),  # ours: one on PATH would measure this computer
        ),
        stamps=tuple(_kubernetes_stamps(versions.KUBERNETES)),
        descriptor=True,
    ),
    Family(
        "etcd",
        "go.etcd.io/etcd/server/v3",
        versions.ETCD,
        (Program("etcd", "go.etcd.io/etcd/server/v3", ("--version",), "etcd Version: "),),
    ),
    Family(
        "coredns",
        "github.com/coredns/coredns",
        versions.COREDNS,
        (Program("coredns", "github.com/coredns/coredns", ("-version",), "CoreDNS-"),),
    ),
    Family(
        "kuberay",
        "github.com/ray-project/kuberay/ray-operator",
        versions.KUBERAY,
        (Program("ray-operator", "github.com/ray-project/kuberay/ray-operator"),),  # it cannot say its version
        manifests=(*(f"config/crd/bases/{crd}" for crd in CRDS), f"config/rbac/{ROLE}"),
    ),
    Family(
        "critest",
        "sigs.k8s.io/cri-tools",
        versions.CRI_TOOLS,
        (Program("critest", "sigs.k8s.io/cri-tools/cmd/critest"),),
        stamps=(f"sigs.k8s.io/cri-tools/pkg/version.Version=v{versions.CRI_TOOLS}",),
        for_tests=True,
    ),
    Family(
        "kind",
        "sigs.k8s.io/kind",
        versions.KIND,
        (Program("kind", "sigs.k8s.io/kind", ("version",), "kind v"),),
        on_request=True,  # by the backend kind
    ),
)


def families(tests: bool = False) -> list[Family]:
    """Those that learners need, or with `tests` those that tests need too."""
    return [family for family in FAMILIES if not family.is_extra or (tests and family.for_tests)]


def find(name: str) -> tuple[Family, Program]:
    """A program by its name; KeyError if there is none."""
    for family in FAMILIES:
        for program in family.programs:
            if program.name == name:
                return family, program
    raise KeyError(name)


def this_platform() -> str:
    """Such as `linux/amd64`.

    Raises:
        CourseError: where the programs cannot run.
    """
    machine = MACHINES.get(platform.machine())
    if sys.platform != "linux" or not machine:
        raise CourseError(
            f"An embedded cluster runs on Linux, x86-64 or ARM64; this is {platform.system()}, {platform.machine()}.",
            "Use a Linux machine or virtual machine, or a cluster by kind.",
        )
    return f"linux/{machine}"

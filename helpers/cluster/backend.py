"""Which cluster a lesson gets: the one that runs, else one that this machine can bring up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from helpers import versions
from helpers.errors import CourseError

PLAIN = "lessons 00, 01 and 11 need no Kubernetes"


class Backend(Protocol):
    """A place that Kubernetes comes from.

    Attributes:
        name: as in COURSE_BACKEND.
        capabilities: what lessons may ask of it: kubernetes, autoscaler, fake_gpu, node_drain, …
        kubeconfig: file by which it is reached while it runs. It is the owner's; a lesson gets a copy.
        versions: of its parts, by the name of the part.
        host_is_image: whether all Ray images stand for the Ray that is installed on this machine.
    """

    name: str
    capabilities: frozenset[str]
    kubeconfig: Path
    versions: dict[str, str]
    host_is_image: bool

    def is_running(self) -> bool:
        """Whether it runs, all of it."""

    def up(self) -> None:
        """Bring it up, or what of it is missing.

        Raises:
            CourseError: that says what this machine lacks for it, and the command that brings it.
        """

    def kubectl(self) -> Path:
        """The kubectl that fits it."""


class Embedded:
    """Kubernetes without a container engine, on Linux. See `helpers.cluster.embedded`."""

    name = "embedded"
    capabilities = frozenset({"kubernetes", "autoscaler", "fake_gpu", "node_drain"})
    versions = {"Kubernetes": versions.KUBERNETES, "KubeRay": versions.KUBERAY}
    host_is_image = True

    @property
    def kubeconfig(self) -> Path:
        return self._cluster().layout.kubeconfig

    def is_running(self) -> bool:
        return sys.platform == "linux" and self._cluster().status().is_ready

    def up(self) -> None:
        cluster = self._cluster()
        self.kubectl()  # what takes longest to bring is said first
        cluster.up()

    def kubectl(self) -> Path:
        from helpers.cluster.embedded import tools

        return tools.binary("kubectl")

    def _cluster(self):
        if sys.platform != "linux":
            raise CourseError(
                f"There is no Kubernetes here: the embedded cluster needs Linux, and {PLAIN}.",
                "Use a Linux machine or virtual machine (on Windows: `wsl --install`).",
            )
        from helpers.cluster.embedded.cluster import EmbeddedCluster

        return EmbeddedCluster()


BACKENDS: tuple[type[Backend], ...] = (Embedded,)  # in the order of choice


def choose(capabilities: Iterable[str]) -> Backend:
    """A backend that has the capabilities: the one that COURSE_BACKEND names, one that runs, or the first of all.

    Raises:
        CourseError: if COURSE_BACKEND names none, or none has them.
    """
    wanted = os.environ.get("COURSE_BACKEND", "")
    names = [backend.name for backend in BACKENDS]
    if wanted and wanted not in names:
        raise CourseError(
            f"COURSE_BACKEND is {wanted}, and this edition has no such backend.",
            f"Unset it, or set it to: {', '.join(names)}.",
        )
    possible = [backend() for backend in BACKENDS if wanted in ("", backend.name)]
    fitting = [backend for backend in possible if backend.capabilities >= set(capabilities)]
    if not fitting:
        missing = sorted(set(capabilities) - set.union(set(), *(backend.capabilities for backend in possible)))
        raise CourseError(
            f"No backend of this edition has what this lesson needs: {', '.join(missing)}.",
            "Take another lesson: the first cell of each says what it needs.",
        )
    return next((backend for backend in fitting if backend.is_running()), fitting[0])


def running(capabilities: Iterable[str]) -> Backend:
    """The backend of `choose`, running: found so, or brought up now, with its progress shown.

    Raises:
        CourseError: that says what is missing, and the command that brings it.
    """
    backend = choose(capabilities)
    if not backend.is_running():
        print(f"No cluster runs yet: the {backend.name} one is started now; it stays until `course down`.", flush=True)
        backend.up()
    return backend

"""The embedded cluster behind the door that all clusters have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from helpers import versions
from helpers.cluster.backend import Facts
from helpers.cluster.embedded import gpus, machines, tools
from helpers.cluster.embedded.cluster import EmbeddedCluster
from helpers.cluster.embedded.layout import Machine, machines_with
from helpers.cluster.embedded.status import Status
from helpers.errors import CourseError


class Embedded:
    """Kubernetes without a container engine, on Linux. See `helpers.cluster.embedded.cluster`."""

    name = "embedded"

    def __init__(self) -> None:
        self._cluster = EmbeddedCluster()

    @property
    def kubeconfig(self) -> Path:
        return self._cluster.layout.kubeconfig

    def is_running(self) -> bool:
        return self._cluster.status().is_ready

    def capabilities(self) -> frozenset[str]:
        kind = machines.gpus_declared(self._cluster.layout) or gpus.asked() or "fake"
        return frozenset({"kubernetes", "autoscaler", f"{kind}_gpu", "node_drain"})

    def facts(self) -> Facts:
        parts = {"Kubernetes": versions.KUBERNETES, "KubeRay": versions.KUBERAY}
        return Facts(parts, host_is_image=True, settle_s=300)

    def kubectl(self) -> Path:
        return tools.binary("kubectl")

    def prepare(self) -> str:
        from helpers.cluster.embedded.tools import build

        if not (build.running() or build.start_in_background(apart=True)):
            return ""
        return (
            "The cluster's programs are being built in the background; lessons 00 and 01 need none.\n"
            f"  `course tools list` shows how far they are; log: {build.log_file()}"
        )

    def up(self) -> Status:
        wanted = self._machines()
        self.kubectl()  # of what may have to be brought, what takes longest is said first
        return self._cluster.up(wanted)

    def _machines(self) -> tuple[Machine, ...] | None:
        """What a new cluster is to have otherwise than usual. One that has its machines keeps those."""
        if other := self._other_gpus():
            raise other
        if gpus.asked() != "real" or machines.gpus_declared(self._cluster.layout):
            return None
        devices = tuple(gpu.uuid for gpu in gpus.query())
        gpus.files(devices)  # before any machine is declared
        return machines_with(devices)

    def _other_gpus(self) -> CourseError | None:
        """That the cluster's GPUs are not of the kind that COURSE_GPUS asks for, if that is so."""
        asked, there = gpus.asked(), machines.gpus_declared(self._cluster.layout)
        if not asked or not there or asked == there:
            return None
        return CourseError(
            f"The embedded cluster was made with {there} GPUs, and {gpus.VARIABLE}={asked} asks for {asked} ones.",
            "Run `course down --wipe`, which removes it with all that it keeps, and then `course up`; or unset "
            f"{gpus.VARIABLE}.",
        )

    def begin_lesson(self) -> list[str]:
        other = self._other_gpus()
        return [str(other)] if other else []

    def status(self) -> Status:
        return self._cluster.status()

    def logs(self, component: str, follow: bool) -> Iterator[str]:
        return self._cluster.logs(component, follow)

    def down(self, wipe: bool) -> str:
        ran = self._cluster.down(wipe)
        told = "✔ The embedded cluster is down." if ran else "The embedded cluster was down already."
        return f"{told}\n✔ All that it kept is removed." if wipe else told

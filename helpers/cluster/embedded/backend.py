"""The embedded cluster behind the door that all clusters have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from helpers import versions
from helpers.cluster.backend import Facts
from helpers.cluster.embedded import tools
from helpers.cluster.embedded.cluster import EmbeddedCluster
from helpers.cluster.embedded.status import Status


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
        return frozenset({"kubernetes", "autoscaler", "fake_gpu", "node_drain"})

    def facts(self) -> Facts:
        parts = {"Kubernetes": versions.KUBERNETES, "KubeRay": versions.KUBERAY}
        return Facts(parts, host_is_image=True, settle_s=180)

    def kubectl(self) -> Path:
        return tools.binary("kubectl")

    def up(self) -> Status:
        self.kubectl()  # what takes longest to bring is said first
        return self._cluster.up()

    def begin_lesson(self) -> list[str]:
        return []

    def status(self) -> Status:
        return self._cluster.status()

    def logs(self, component: str, follow: bool) -> Iterator[str]:
        return self._cluster.logs(component, follow)

    def down(self, wipe: bool) -> str:
        ran = self._cluster.down(wipe)
        told = "✔ The embedded cluster is down." if ran else "The embedded cluster was down already."
        return f"{told}\n✔ All that it kept is removed." if wipe else told

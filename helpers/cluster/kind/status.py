"""What `course status` shows of a kind cluster."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from helpers.cluster.backend import GPU_LABEL
from helpers.cluster.session import capacity
from helpers.cluster.session.tables import condition
from helpers.cluster.session.templates import amount
from helpers.text import columns, html_table

HEADS = ("Kubernetes node", "role", "state", "version", "CPUs", "memory", "GPUs")
GIB = 1024**3
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
SHARED = (
    "Each Kubernetes node shows all CPUs and all memory of the one machine that they share; together they promise more "
    "than there is."
)


@dataclass(frozen=True)
class Row:
    """One Kubernetes node.

    Attributes:
        name: of it and of its container.
        role: "control plane" or "worker"; "" if the cluster does not say.
        state: "ready"; else what is so instead, such as "stopped" or "not ready".
        version: of its kubelet.
        cpus: that Pods may have.
        memory_bytes: that Pods may have.
        gpus: such as "4 fake".
    """

    name: str
    state: str
    role: str = ""
    version: str = ""
    cpus: str = ""
    memory_bytes: float = 0.0
    gpus: str = ""

    def cells(self) -> tuple[str, ...]:
        """What the table shows, in the order of `HEADS`."""
        memory = f"{self.memory_bytes / GIB:.1f} GiB" if self.memory_bytes else ""
        state = f"{'✔' if self.state.startswith('ready') else '✘'} {self.state}"
        return tuple(cell or "–" for cell in (self.name, self.role, state, self.version, self.cpus, memory, self.gpus))


@dataclass(frozen=True)
class Status:
    """The cluster at one moment; a table in a terminal, in a notebook, and as plain text.

    Attributes:
        rows: its Kubernetes nodes; empty when the cluster is down.
        kubeconfig: file by which it is reached.
        engine: the container engine that runs it.
        remarks: what `course up` had to do otherwise than usual.
    """

    rows: tuple[Row, ...]
    kubeconfig: Path
    engine: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        return bool(self.rows) and all(row.state.startswith("ready") for row in self.rows)

    def _first(self) -> str:
        if not self.rows:
            return "The kind cluster is down. `course up` starts it."
        return f"The kind cluster is up: {len(self.rows)} Kubernetes nodes, containers of {self.engine}."

    def _last(self) -> list[str]:
        return [*self.remarks, *([f"KUBECONFIG={self.kubeconfig}", SHARED] if self.rows else [])]

    def _cells(self) -> list[tuple[str, ...]]:
        return [row.cells() for row in self.rows]

    def __str__(self) -> str:
        table = [columns([HEADS, *self._cells()])] if self.rows else []
        return "\n".join([self._first(), *table, *self._last()])

    def __rich__(self) -> str:
        from rich.markup import escape

        return escape(str(self))

    def _repr_html_(self) -> str:
        last = "".join(f"<p>{html.escape(line)}</p>" for line in self._last())
        if not self.rows:
            return f"<p>{html.escape(self._first())}</p>{last}"
        return html_table(self._first(), HEADS, self._cells()) + last


def row(name: str, container: str, node: dict | None) -> Row:
    """The row of one Kubernetes node.

    Args:
        name: of it and of its container.
        container: the state of the container.
        node: what the API server has of it; None if it has nothing, or does not answer.
    """
    if container != "running":
        return Row(name, "stopped" if container == "exited" else container)
    if node is None:
        return Row(name, "no answer")
    labels, allocatable = node["metadata"].get("labels", {}), node["status"].get("allocatable", {})
    gpus = capacity.gpus(node)
    return Row(
        name,
        state(node),
        "control plane" if CONTROL_PLANE in labels else "worker",
        node["status"]["nodeInfo"]["kubeletVersion"].removeprefix("v"),
        allocatable.get("cpu", ""),
        float(amount(allocatable.get("memory", "0")) or 0),
        f"{gpus} fake" if gpus and labels.get(GPU_LABEL) == "fake" else str(gpus or ""),
    )


def state(node: dict) -> str:
    """Whether a Kubernetes node is ready, and whether it takes Pods."""
    told = "ready" if condition(node, "Ready").get("status") == "True" else "not ready"
    return f"{told}, takes no new Pods" if node.get("spec", {}).get("unschedulable") else told

"""What `course status` shows."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.text import columns

if TYPE_CHECKING:
    from rich.table import Table

MIB = 1024**2
HEADS = ("component", "state", "version", "pid", "memory", "restarts", "age")
NOT_HERE = (
    "Not here, by design: PVC and CSI, CPU limits, hostPort, seccomp, GPU sharing, swap, IPv6, "
    "image contents, a way out of the cluster's network."
)
FAKE_GPUS = "CPU, memory and GPUs of the Kubernetes nodes are declared."
REAL_GPUS = "CPU and memory of the Kubernetes nodes are declared; their GPUs are this computer's."


@dataclass(frozen=True)
class Component:
    """One process of the cluster.

    Attributes:
        name: of the component; of a machine, and of what runs on it: `cpu-a`, `cpu-a.runtime`, `cpu-a.kubelet`.
        state: waiting, starting, ready, backing off, stopped, lost.
        version: of the program; empty for what is the course's own.
        pid: as the host sees it; 0 if it does not run.
        memory_bytes: its own memory and its share of what it shares with others (PSS).
        restarts: how often it was started again since the cluster came up.
        age_s: seconds since it was started; 0 if it does not run.
    """

    name: str
    state: str
    version: str = ""
    pid: int = 0
    memory_bytes: int = 0
    restarts: int = 0
    age_s: float = 0.0

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"

    def cells(self) -> tuple[str, ...]:
        """What the table shows, in the order of `HEADS`."""
        runs = self.pid != 0
        return (
            self.name,
            f"{'✔' if self.is_ready else '✘' if self.state in ('lost', 'backing off') else '…'} {self.state}",
            self.version or "–",
            str(self.pid) if runs else "–",
            f"{self.memory_bytes / MIB:.0f} MiB" if runs else "–",
            str(self.restarts),
            age(self.age_s) if runs else "–",
        )


@dataclass(frozen=True)
class Status:
    """The cluster at one moment; a table in a terminal, in a notebook, and as plain text.

    Attributes:
        components: what runs or should; empty when the cluster is down.
        kubeconfig: file by which the cluster is reached.
        server: URL of the API server on the host; empty when the cluster is down.
        remarks: what `course up` had to do otherwise than last time.
        has_real_gpus: whether its GPUs are this computer's; otherwise they are numbers.
    """

    components: tuple[Component, ...]
    kubeconfig: Path
    server: str = ""
    remarks: tuple[str, ...] = ()
    has_real_gpus: bool = False

    @property
    def is_up(self) -> bool:
        return bool(self.components)

    @property
    def is_ready(self) -> bool:
        return self.is_up and all(component.is_ready for component in self.components)

    def __getitem__(self, name: str) -> Component:
        return next(component for component in self.components if component.name == name)

    def _first(self) -> str:
        if not self.is_up:
            return "The embedded cluster is down. `course up` starts it."
        total = sum(component.memory_bytes for component in self.components) / MIB
        return f"The embedded cluster is up at {self.server}: {len(self.components)} processes, {total:.0f} MiB."

    def _last(self) -> list[str]:
        about = f"{NOT_HERE} {REAL_GPUS if self.has_real_gpus else FAKE_GPUS}"
        return [*self.remarks, *([f"KUBECONFIG={self.kubeconfig}", about] if self.is_up else [])]

    def __str__(self) -> str:
        if not self.is_up:
            return "\n".join([self._first(), *self._last()])
        rows = [HEADS, *(component.cells() for component in self.components)]
        return "\n".join([self._first(), columns(rows), *self._last()])

    def __rich__(self) -> Table | str:
        from rich.markup import escape
        from rich.table import Table

        if not self.is_up:
            return escape(str(self))
        table = Table(
            title=escape(self._first()), title_justify="left", caption=escape("\n".join(self._last())),
            caption_justify="left",
        )  # fmt: skip
        for head in HEADS:
            table.add_column(head, justify="right" if head in HEADS[3:] else "left", overflow="fold")
        for component in self.components:
            table.add_row(*map(escape, component.cells()), style=None if component.is_ready else "bold")
        return table

    def _repr_html_(self) -> str:
        if not self.is_up:
            return f"<p>{html.escape(str(self))}</p>"
        heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
        body = "".join(_html_row(component.cells()) for component in self.components)
        last = "".join(f"<p>{html.escape(line)}</p>" for line in self._last())
        return f"<table><caption>{html.escape(self._first())}</caption><tr>{heads}</tr>{body}</table>{last}"


def _html_row(cells: tuple[str, ...]) -> str:
    name, *rest = map(html.escape, cells)
    return f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"


def age(seconds: float) -> str:
    """An age as kubectl writes it: 7s, 3m20s, 2h5m, 3d4h.

    Example:
        >>> age(200)
        '3m20s'
    """
    left, parts = int(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
        elif parts:
            parts.append("")
    return "".join(parts[:2])

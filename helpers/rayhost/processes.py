"""What part each process of a host plays in Ray 2.60, told from its command line."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

# (part, a text in its command line, what it does). The first match counts. Seen with `ray start` of Ray 2.60.
PARTS = (
    ("gcs_server", "/gcs_server", "Global Control Store: Ray nodes, actors, placement groups, jobs, key-value store"),
    ("monitor", "autoscaler/_private/monitor.py", "the autoscaler"),
    ("client server", "ray.util.client.server", "entry for Ray Client (ray://)"),
    ("dashboard", "dashboard/dashboard.py", "web pages and the Jobs API"),
    ("dashboard", "ray-dashboard-", "web pages and the Jobs API"),
    ("dashboard", "ray.dashboard.subprocesses", "web pages and the Jobs API"),
    ("raylet", "/raylet/raylet", "scheduler and object store of this Ray node"),
    ("log_monitor", "_private/log_monitor.py", "sends worker output to drivers"),
    ("dashboard agent", "ray::DashboardAgent", "metrics and job supervision of this Ray node"),
    ("dashboard agent", "dashboard/agent.py", "metrics and job supervision of this Ray node"),
    ("runtime_env agent", "ray::RuntimeEnvAgent", "prepares runtime environments on this Ray node"),
    ("runtime_env agent", "runtime_env/agent/main.py", "prepares runtime environments on this Ray node"),
    ("worker", "ray::", "runs tasks and actors"),
    ("worker", "workers/default_worker.py", "runs tasks and actors"),
    ("driver", "helpers.rayhost.driver", "this lesson's own program"),
)


@dataclass(frozen=True)
class ProcessRow:
    """One process: its pid on this machine, the part it plays, what that part does, its memory in MiB.

    A page that several processes share counts in parts, so that rows can be added up (on Linux: the proportional set
    size; elsewhere only the resident size is to be had, which counts it in each).
    """

    pid: int
    part: str
    does: str
    mib: float


@dataclass(frozen=True)
class ProcessTable:
    """The Ray processes of one host."""

    host: str
    rows: tuple[ProcessRow, ...]

    @property
    def parts(self) -> set[str]:
        """The parts that are played here, each once: `{"raylet", "log_monitor", …}`."""
        return {row.part for row in self.rows}

    def pids(self, part: str) -> list[int]:
        return [row.pid for row in self.rows if row.part == part]

    def _summary(self) -> list[tuple[str, int, int, str]]:
        """(part, processes, MiB together, what it does), in the order of PARTS."""
        order = {part: (number, does) for number, (part, _, does) in reversed(list(enumerate(PARTS)))}
        lines = []
        for part in sorted(self.parts, key=lambda p: order[p][0]):
            mine = [row for row in self.rows if row.part == part]
            lines.append((part, len(mine), round(sum(row.mib for row in mine)), order[part][1]))
        return lines

    def __str__(self) -> str:
        lines = [f"{part:18} {count:2} process(es) {mib:5} MiB  {does}" for part, count, mib, does in self._summary()]
        return "\n".join([f"Ray processes on {self.host}:", *lines])

    def _repr_html_(self) -> str:
        def cells(tag: str, values: Iterable[object]) -> str:
            return "".join(f"<{tag}>{html.escape(str(value))}</{tag.split()[0]}>" for value in values)

        head = cells("th scope='col'", ("part", "processes", "MiB", "what it does"))
        rows = [
            cells("th scope='row'", line[:1])
            + cells("td", line[1:-1])
            + cells("td style='text-align: left'", line[-1:])
            for line in self._summary()
        ]
        body = "".join(f"<tr>{row}</tr>" for row in [head, *rows])
        return f"<table><caption>Ray processes on {html.escape(self.host)}</caption>{body}</table>"


def table_of(host: str, processes: Iterable[psutil.Process]) -> ProcessTable:
    rows = []
    for process in processes:
        try:
            line = " ".join(process.cmdline())
            mib = _memory_bytes(process) / 2**20
        except psutil.Error:  # ended between the listing and now
            continue
        part = next((entry for entry in PARTS if entry[1] in line), None)
        if part and process.status() != psutil.STATUS_ZOMBIE:
            rows.append(ProcessRow(process.pid, part[0], part[2], mib))
    return ProcessTable(host, tuple(sorted(rows, key=lambda row: row.pid)))


def _memory_bytes(process: psutil.Process) -> int:
    return process.memory_full_info().pss if sys.platform == "linux" else process.memory_info().rss


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed since it was listed
        return ""


def listening_ports(pid: int) -> set[int]:
    """The TCP ports that a process listens on, in its own network; none if it has ended or is another user's."""
    try:
        if sys.platform != "linux":
            return {c.laddr.port for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        sockets = {_target(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except (OSError, psutil.Error):
        return set()
    # psutil would read the table of this process's own network; columns: man 5 proc, state 0A is LISTEN
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {int(x[1].rpartition(":")[2], 16) for x in lines if x[3] == "0A" and f"socket:[{x[9]}]" in sockets}

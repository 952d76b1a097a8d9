"""A cluster from what each of its hosts declares, and where tasks run on it: for learners and for graders.

The commands are put together here from numbers and names. What somebody has typed is never given to a shell.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from helpers import versions
from helpers.errors import CourseError
from helpers.rayhost import probe
from helpers.rayhost.driver import Driver
from helpers.rayhost.hosts import Host, Hosts
from helpers.state import state_dir
from helpers.text import columns, html_table

# a head, two more Ray nodes and a driver: 1.45 GiB (proportional set size); the rest is an estimate for task processes
MEMORY_GIB = 2.5
WITHIN_S = 300.0  # for all of it; on two cores, with other work beside, it took 59 s
STARTS_S = 90.0  # for the worker processes of one kind of task
# no worker processes before a task needs them: a host may declare more CPUs than there are
START = "RAY_prestart_worker_first_driver=0 ray start"
SMALL = "--object-store-memory=100000000"  # bytes, about the least that Ray takes


@dataclass(frozen=True)
class Seen:
    """What `try_out` saw, to be shown: for each task how many ran at once, and where."""

    plan: Mapping[str, Any]
    seen: Mapping[str, Any]

    HEADINGS = ("task", "submitted", "ran at once", "where")

    def rows(self) -> list[tuple[str, ...]]:
        rows = []
        for name, places in self.seen["ran"].items():
            counts = Counter(place["host"] for place in places)
            where = ", ".join(f"{counts[host]} on {host}" for host in self.plan["hosts"] if counts[host])
            rows.append((name, str(self.plan["tasks"][name]["submitted"]), str(len(places)), where or "nowhere"))
        return rows

    def __str__(self) -> str:
        return columns([self.HEADINGS, *self.rows()])

    def _repr_html_(self) -> str:
        return html_table("Where tasks ran", self.HEADINGS, self.rows())


def require_memory() -> None:
    """See that there is room for a cluster of three Ray nodes.

    Raises:
        CourseError: there is less free memory than it needs.
    """
    free = psutil.virtual_memory().available / 2**30
    if free < MEMORY_GIB:
        raise CourseError(
            f"A cluster of three Ray nodes needs {MEMORY_GIB:g} GiB of free memory, and there are {free:.1f}.",
            "Close other programs, then run this again.",
        )


def try_out(hosts: Hosts, plan: Mapping[str, Any], within_s: float = WITHIN_S) -> dict[str, Any]:
    """Start Ray on hosts that have not run it yet, run the tasks of a plan, and note what is seen.

    Args:
        plan: `hosts`, by name what each declares (`resources`, `labels`), the head first; and `tasks`, by name what
            `helpers.rayhost.probe.at_once` takes.
        within_s: seconds for all of it.

    Returns:
        `ray` (its version), `ray_nodes` (by host: its `id`, and the `resources` and `labels` that Ray knows of),
        `ran` (by task, for each that ran at the same time: `host` and `ray_node`), `seconds`.

    Raises:
        CourseError: a host or Ray on it does not come up, or it takes too long.
    """
    start = time.monotonic()

    def left() -> float:
        return max(1.0, start + within_s - time.monotonic())

    up = [hosts.add(name) for name in plan["hosts"]]
    for host in up:
        command = start_command(host.name, plan["hosts"][host.name], None if host is up[0] else up[0])
        host.run(command, timeout_s=left(), quiet=True)
    driver = Driver(up[0])
    try:
        ran = {
            name: driver.run(probe.at_once, up[0].address, dict(task), min(STARTS_S, left()), timeout_s=left())
            for name, task in plan["tasks"].items()
        }
        known = driver.run(probe.ray_nodes, timeout_s=left())
    finally:
        driver.close()
    return {
        "ray": versions.RAY,
        "ray_nodes": {one["labels"].pop(probe.HOST): {"id": id, **one} for id, one in known.items()},
        "ran": ran,
        "seconds": round(time.monotonic() - start, 1),
    }


def start_command(name: str, offer: Mapping[str, Any], head: Host | None) -> str:
    """The `ray start` of a host that declares this.

    Args:
        head: the host of the head that it joins; None if it is the head.
    """
    resources, labels = dict(offer["resources"]), {**offer["labels"], probe.HOST: name}
    words = [f"--address={head.name}:{head.ports['gcs']}"] if head else ["--head", "--include-dashboard=false"]
    words += [f"--num-{kind.lower()}s={resources.pop(kind, 0):g}" for kind in ("CPU", "GPU")]
    words += [f"--resources={json.dumps(resources)}"] if resources else []
    words.append("--labels=" + ",".join(f"{key}={value}" for key, value in labels.items()))
    return f"{START} {' '.join(map(shlex.quote, words))} {SMALL}"


def run_apart(plan: Mapping[str, Any]) -> dict[str, Any]:
    """`try_out` on new hosts, which end with it; nothing is printed. It is for graders.

    On a busy machine Ray gives up by itself (it waits 30 s for its own processes), so a shape gets a second try: what
    is wrong with an answer is wrong twice.

    Raises:
        AssertionError: the shape does not come up, with one sentence that says why.
        CourseError: this machine cannot have the hosts.
    """
    try:
        return _run_apart(plan)
    except AssertionError:
        return _run_apart(plan)


def _run_apart(plan: Mapping[str, Any]) -> dict[str, Any]:
    require_memory()
    log = state_dir() / "logs" / "live-grading.log"
    with contextlib.redirect_stdout(io.StringIO()):
        hosts = Hosts(f"live-{os.getpid()}-{time.time_ns() % 10**9}", log=log)
        try:
            for name in plan["hosts"]:
                hosts.add(name)
            return try_out(hosts, plan)
        except CourseError as error:
            if len(hosts.by_name) < len(plan["hosts"]):
                raise
            raise AssertionError(f"this shape was started, and did not come up: {error.what}") from None
        finally:
            hosts.close()

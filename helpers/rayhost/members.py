"""Which processes belong to a host. Everything that is stopped is found here, and stopped by its pid."""

from __future__ import annotations

import os
from collections.abc import Iterable

import psutil

from helpers.wait import wait_until

MARK = "COURSE_RAY_HOST"  # in the environment of all that a host on shifted ports starts: SESSION/HOST


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def of_namespace(init_pid: int) -> list[psutil.Process]:
    """The processes of the separate host whose first process is `init_pid`, that one left out."""
    home = _pid_namespace(init_pid)
    if home is None:
        return []
    return [p for p in psutil.process_iter() if p.pid != init_pid and _pid_namespace(p.pid) == home]


def of_mark(mark: str) -> list[psutil.Process]:
    """The processes started with `mark` (or a mark below it) in their environment, and all their descendants.

    Descendants are needed: a Ray worker renames itself, which overwrites the memory that its environment is read from.
    """
    found = {}
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _mark(process).startswith(mark):
            for member in [process, *_descendants(process)]:
                found[member.pid] = member
    return sorted(found.values(), key=lambda p: p.pid)


def kill_session(session: str) -> int:
    """SIGKILL every process on shifted ports of `session`; returns how many there were.

    Raises:
        WaitTimeout: when some are still there after 20 seconds.
    """
    killed: set[int] = set()

    def all_gone() -> bool:
        alive = of_mark(f"{session}/")
        killed.update(kill(alive))
        assert not alive, f"{len(alive)} processes are still there"
        return True

    wait_until(all_gone, 20, what="the Ray processes of this lab to end")
    return len(killed)


def kill(processes: Iterable[psutil.Process]) -> list[int]:
    pids = []
    for process in processes:
        try:
            process.kill()
            pids.append(process.pid)
        except psutil.NoSuchProcess:
            pass
    return pids


def _pid_namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:  # gone, or another user's
        return None


def _mark(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARK, "")
    except (psutil.Error, OSError):
        return ""


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []

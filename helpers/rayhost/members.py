"""Which processes belong to a host. Everything that is stopped is found here, and stopped by its pid."""

from __future__ import annotations

import os
from collections.abc import Iterable

import psutil

from helpers.proc import namespace_pids
from helpers.wait import wait_until

MARK = "COURSE_RAY_HOST"  # in the environment of all that a host on shifted ports starts: SESSION/HOST


def children(pid: int) -> list[int]:
    """The pids of a process's children; none if it is gone."""
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def namespace(pid: int) -> int | None:
    """The number of the process table (pid namespace) that a process is in; None if it is gone or another user's."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


def pid_inside(pid: int) -> int:
    """The pid that a process has in the process table of its own host; the same if that is this machine's."""
    try:
        return namespace_pids(pid)[-1]
    except OSError:  # gone, or no Linux
        return pid


def of_namespace(number: int, init_pid: int) -> list[psutil.Process]:
    """The processes in the process table with this number, without its first process."""
    return [p for p in psutil.process_iter() if p.pid != init_pid and namespace(p.pid) == number]


def of_session(pid: int) -> list[psutil.Process]:
    """The processes of the session that the process `pid` leads, and its descendants in other sessions."""
    try:
        found = {p.pid: p for p in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        found = {}
    found.update({p.pid: p for p in psutil.process_iter() if _session(p.pid) == pid})
    return list(found.values())


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # gone
        return None


def of_mark(session: str, host: str = "") -> list[psutil.Process]:
    """The processes of one host, or of all hosts of a lab, that share this machine: by the mark in their environment.

    Their descendants count too: a Ray worker renames itself, which overwrites the memory that holds its environment.
    """
    found = {}
    for process in psutil.process_iter():
        of_session, _, of_host = _mark(process).partition("/")
        if of_session == session and host in ("", of_host):
            for member in [process, *_descendants(process)]:
                found[member.pid] = member
    return sorted(found.values(), key=lambda p: p.pid)


def kill_session(session: str) -> int:
    """SIGKILL every process of the hosts of `session` that share this machine; returns how many there were.

    Raises:
        WaitTimeout: when some are still there after 20 seconds.
    """
    killed: set[int] = set()

    def all_gone() -> bool:
        alive = of_mark(session)
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

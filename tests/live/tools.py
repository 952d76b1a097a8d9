"""What the live tests are made with: programs that may be killed, another user, looks at the machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from helpers.rayhost import members
from helpers.state import course_root

# a notebook's side of a lab, in a few lines: what a test adds to it finds `hosts` there
PROGRAM = """
import json, os, sys, time
from pathlib import Path
from helpers.rayhost.driver import Driver
from helpers.rayhost.hosts import Hosts
from helpers.rayhost.records import end_leftovers

def new_hosts(separate=True, number=0):
    log = Path(os.environ["XDG_STATE_HOME"]) / "test.log"
    return Hosts(f"01-{os.getpid()}-{number}", log=log, separate=separate)

def tell(**facts):
    print("FACTS " + json.dumps(facts), flush=True)
"""


class Program:
    """`PROGRAM` and `code`, running. It goes on until it is killed or its code ends."""

    def __init__(self, code: str, prefix: Sequence[str] = (), course: Path | None = None, python: str = sys.executable):
        self.process = subprocess.Popen(
            [*prefix, python, "-c", PROGRAM + code], cwd=course or course_root(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.said: list[str] = []

    def facts(self, timeout_s: float = 120) -> dict:
        """What it passes to `tell` next."""
        killer = threading.Timer(timeout_s, self.process.kill)
        killer.start()
        try:
            for line in self.process.stdout:
                self.said.append(line)
                if line.startswith("FACTS "):
                    return json.loads(line[6:])
        finally:
            killer.cancel()
        pytest.fail("the program ended early:\n" + "".join(self.said) + self.process.stderr.read())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def go_on(self) -> None:
        """Let it go on after `input()`."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Let it go on after each `input()`, and wait for its end; returns what it said on stderr."""
        _, complaints = self.process.communicate("\n\n", timeout=60)
        return complaints


def way_opener(shown: Mapping[Path, Path]) -> str:
    """Shell lines that make the course and its Python reachable for everybody, in their own mount namespace.

    A directory on the way that only its owner may enter, such as /root, is covered with an empty one, and what is
    needed of it is mounted into that.

    Args:
        shown: further directories, and the empty ones as which they are to be seen.
    """
    needed = [Path(p) for p in (course_root(), sys.prefix, sys.base_prefix)]
    needed = sorted({p.absolute() for p in needed} | {p.resolve() for p in needed})
    closed: dict[Path, list[Path]] = {}
    for path in needed:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                closed.setdefault(parent, []).append(path)
                break
    lines = ["set -e", *(f"mount --bind '{source}' '{target}'" for source, target in shown.items())]
    lines += ["mount -t tmpfs none /mnt"]
    for number, (parent, paths) in enumerate(closed.items()):
        kept = [f"/mnt/{number}-{i}" for i in range(len(paths))]
        lines += [f"mkdir {keep}; mount --bind '{path}' {keep}" for keep, path in zip(kept, paths, strict=True)]
        lines += [f"mount -t tmpfs -o mode=755 none '{parent}'"]
        lines += [f"mkdir -p '{path}'; mount --bind {keep} '{path}'" for keep, path in zip(kept, paths, strict=True)]
    return "; ".join([*lines, 'exec "$@"'])


def processes_of(text: str) -> list[str]:
    """The command lines of all processes with `text` in their command line or environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            told = [*process.cmdline(), *process.environ().values()]
            if process.status() != psutil.STATUS_ZOMBIE and any(text in word for word in told):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return found


def sleeping(seconds: int) -> list[int]:
    """The pids of the processes that are `sleep SECONDS`; tests tell theirs by that number."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline() == ["sleep", str(seconds)]:
                found.append(process.pid)
    return found


def namespaces() -> set[str]:
    """The process tables (pid namespaces) that there are on this machine."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(str(members.namespace(process.pid)))
    return found - {"None"}


def machine() -> dict[str, object]:
    """What labs must leave as it is: network cards, named network namespaces, mounts, host name, names."""

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    return {
        "network cards": sorted(psutil.net_if_addrs()),
        "named namespaces": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
        "mounts": Path("/proc/self/mountinfo").read_text().splitlines(),
        "host name": lines("hostname"),
        "names": Path("/etc/hosts").read_text(),
    }


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """What Ctrl-C, or the stop button of a notebook, does to this process."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def fake_command(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a shell script before the command `name` on PATH."""
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")

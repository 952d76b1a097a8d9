"""A home directory of the tests' own, and all that runs because of them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from helpers.state import cache_dir, course_root

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@contextmanager
def new_home(name: str) -> Iterator[Path]:
    """The home directory of a new user, who has the cluster's programs if they are built, and nothing else.

    It is below the checkout, so that /tmp is used as by a real one.
    """
    home = course_root() / "build" / "tests" / name
    shutil.rmtree(home, ignore_errors=True)
    temporary, programs = home / "tmp", home / ".cache" / "ray-course" / "tools"
    temporary.mkdir(parents=True)
    programs.parent.mkdir(parents=True)
    if (built := cache_dir() / "tools").is_dir():
        programs.symlink_to(built)
    with pytest.MonkeyPatch.context() as patch:
        for variable in os.environ:
            if variable.startswith(("XDG_", "JUPYTER", "IPYTHON", "MPL", "RAY_")):
                patch.delenv(variable)
        patch.setenv("HOME", str(home))
        patch.setenv("TMPDIR", str(temporary))
        yield home


@contextmanager
def no_build_begun(cache: Path) -> Iterator[None]:
    """Meanwhile `course lab` finds that a build is at work in this XDG_CACHE_HOME, and begins no other."""
    store = cache / "ray-course" / "tools"
    store.mkdir(parents=True, exist_ok=True)
    with open(store / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def orphans_adopted() -> Iterator[None]:
    """Meanwhile a process whose parent ends becomes a child of the tests, so that `processes` finds it."""
    _adopt_orphans(True)
    yield
    _adopt_orphans(False)


def _adopt_orphans(wanted: bool) -> None:
    if sys.platform == "linux":
        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted)) == 0


def processes() -> list[str]:
    """All that the tests have started, directly or not, and that still runs: pid, name and command line."""
    lines = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                lines.append(f"{process.pid} {process.name()} {' '.join(process.cmdline())[:150]}")
        except psutil.NoSuchProcess:
            pass
    return lines


def nothing_runs() -> bool:
    """For `wait_until`.

    Raises:
        AssertionError: if something runs.
    """
    left = processes()
    assert not left, "; ".join(left)
    return True

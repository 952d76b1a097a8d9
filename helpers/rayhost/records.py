"""What a lab leaves word of, so that the next `Lab.start` can end what a notebook left that ended without `close`.

Each lab has a directory below `labs` in the state directory. Its owner's lock says that the notebook is still there; a
directory whose lock can be had is a leftover.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
from pathlib import Path
from typing import TextIO

import psutil

from helpers.rayhost import members
from helpers.state import read_json, state_dir, try_lock

SCRATCH_PREFIX = "ray-course-"
LOCK, RECORD = "owner.lock", "record.json"  # in a lab's directory


def end_leftovers() -> list[str]:
    """End what notebooks that are gone have left running, and remove its records; returns a sentence on each."""
    said = []
    for lock in sorted((state_dir() / "labs").glob(f"*/{LOCK}")):
        with contextlib.suppress(FileNotFoundError), lock.open("a") as file:
            if try_lock(file):
                said.append(_end_leftover(lock.parent))
    return said


def _end_leftover(directory: Path) -> str:
    record = read_json(directory / RECORD)
    # separate hosts end with their keeper; both have mostly ended by now, as their notebook did
    ended = len(members.kill(_keeper_of(directory, record.get("keeper_pid"))))
    ended += members.kill_session(directory.name)
    scratch = record.get("scratch", "")
    if os.path.basename(scratch).startswith(SCRATCH_PREFIX):
        shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
    lesson = directory.name.partition("-")[0]
    left = f"processes of it that were ended now: {ended}" if ended else "nothing of it was running any more"
    return f"An earlier run of lesson {lesson} ended without clean_up, with its notebook: {left}."


def _keeper_of(directory: Path, pid: int | None) -> list[psutil.Process]:
    """The keeper of this lab, if it runs; a later process with the same pid has another command line."""
    try:
        keeper = psutil.Process(pid or 0)
        return [keeper] if {"helpers.rayhost.keeper", str(directory)} <= set(keeper.cmdline()) else []
    except psutil.Error:
        return []


def owners_lock(directory: Path) -> TextIO:
    new = directory / "new.lock"
    file = new.open("a")
    fcntl.flock(file, fcntl.LOCK_EX)
    new.rename(directory / LOCK)  # nobody sees it unlocked
    return file


def first_free_lock(directory: Path) -> tuple[int, TextIO]:
    """The first number that no other lab on this machine holds, and the file that holds it until it is closed."""
    for number in itertools.count():
        file = (directory / f"slot-{number}.lock").open("a")
        if try_lock(file):
            return number, file
        file.close()
    raise AssertionError("numbers do not end")

"""Where a finished program is: on PATH if it is of exactly the pinned version, else in the user's cache.

A build lies in `tools/FAMILY-KEY/` of the cache with a `manifest.json`, which is written last:

    platform  such as "linux/amd64"        go     the Go that built it, such as "1.26.8"
    files     {"etcd": {"bytes": 27218082, "sha256": "…"}}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from helpers.cluster.embedded.tools import table
from helpers.cluster.embedded.tools.table import Family, Program
from helpers.errors import CourseError
from helpers.state import cache_dir, try_lock

BUILD = "`course tools build`"
ANSWER_TIMEOUT_S = 5.0  # for a program on PATH to say its version


@dataclass(frozen=True)
class Found:
    """A program that can be used; `source` says where it comes from."""

    path: Path
    source: str


def binary(name: str) -> Path:
    """Where a program is, such as `binary("kubectl")`.

    Raises:
        CourseError: if it is not built, or its file is not as it was when it was built.
        KeyError: if there is no such program.
    """
    found = look(*table.find(name))
    if found:
        return found.path
    damaged = (home(table.find(name)[0]) / name).exists()
    raise CourseError(
        f"The program {name} is {'damaged' if damaged else 'not built yet'}.",
        f"Run {BUILD}; the first time it takes 10 to 20 minutes, and you can go on with other lessons meanwhile.",
    )


def kuberay_manifests() -> dict[str, Path]:
    """KubeRay's CRDs and its operator's ClusterRole, as its module has them, by the names in `table`.

    Raises:
        CourseError: if they are not there, or not as they were when the operator was built.
    """
    family, program = table.find("ray-operator")
    binary(program.name)
    if lacking(family):
        raise CourseError("The manifests of KubeRay are not beside its operator.", f"Run {BUILD}.")
    return {name: home(family) / name for name in family.others}


def look(family: Family, program: Program) -> Found | None:
    """Where a program is; None if it has to be built. Sizes are compared, checksums are not: that takes seconds."""
    there = on_path(program, family.version)
    if there:
        return Found(there, "PATH")
    path = home(family) / program.name
    made = manifest(home(family))
    sound = program.name in made.get("files", {}) and _has_size(path, made)
    return Found(path, f"built with Go {made['go']}") if sound else None


def lacking(family: Family) -> list[Program]:
    """The programs of a family that have to be built."""
    lacking = [program for program in family.programs if not look(family, program)]
    made = manifest(home(family))
    if not lacking and not all(_has_size(home(family) / name, made) for name in family.others):
        return list(family.programs)
    return lacking


def not_on_path(family: Family) -> list[Program]:
    """The programs that a build of a family makes."""
    return [program for program in family.programs if not on_path(program, family.version)]


@dataclass(frozen=True)
class Listed:
    """A line of `course tools list`."""

    name: str
    version: str
    found: Found | None
    remark: str  # why a learner may lack it; empty if none may

    def __str__(self) -> str:
        where = f"{self.found.source}  {self.found.path}" if self.found else "not built"
        return f"{'✔' if self.found else '–'} {self.name:24} {self.version:8} {where}" + (
            f"  ({self.remark})" if self.remark else ""
        )


def overview() -> list[Listed]:
    """Every program, and where it is."""
    return [
        Listed(program.name, family.version, look(family, program), _remark(family))
        for family in table.FAMILIES
        for program in family.programs
    ]


def _remark(family: Family) -> str:
    if family.for_tests:
        return "for tests only"
    return "built when it is asked for" if family.on_request else ""


def home(family: Family) -> Path:
    """The folder of a family's finished build; it may not exist."""
    return root() / f"{family.name}-{family.key()}"


def root() -> Path:
    return cache_dir() / "tools"


def manifest(folder: Path) -> dict:
    """What a build says of itself; empty if it is not finished."""
    try:
        return json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return {}


def _has_size(path: Path, made: dict) -> bool:
    try:
        return path.stat().st_size == made["files"][path.name]["bytes"]
    except (OSError, KeyError):
        return False


def wrong_checksums(family: Family) -> list[Path]:
    """The files of a finished build that have changed since. Reads all of them: about a second for a GiB."""
    folder = home(family)
    files = manifest(folder).get("files", {})
    return [folder / name for name, facts in files.items() if digest(folder / name) != facts["sha256"]]


def digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def put_in_place(part: Path, family: Family, go: str) -> None:
    """Make a folder of finished programs the family's build, at once; who runs the old ones keeps them.

    Args:
        part: the folder, beside where the build will be. What else lies in it becomes part of the build too.
        family: whose build it is.
        go: the version of Go that built it.
    """
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": digest(path)}
        for path in sorted(part.iterdir())
        if path.name in family.files
    }
    made = {"platform": table.this_platform(), "go": go, "files": files}
    with open(part / "manifest.json", "w") as file:
        json.dump(made, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    place, old = home(family), part.with_name(part.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    part.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def remove_unfinished() -> None:
    """Remove what builds of other editions have left unfinished. Finished ones stay: a cluster may run on them."""
    ours = {f"{home(family).name}.part" for family in table.FAMILIES}
    for folder in root().glob("*.part*"):
        if folder.name not in ours:
            shutil.rmtree(folder, ignore_errors=True)


# ---- on PATH ---------------------------------------------------------------------------------------------------------


def on_path(program: Program, version: str) -> Path | None:
    """The program on PATH, if it is of exactly this version."""
    path = shutil.which(program.name) if program.ask else None
    return Path(path) if path and _version_said(path, program) == version else None


@cache
def _version_said(path: str, program: Program) -> str:
    try:
        done = subprocess.run(
            [path, *program.ask], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    _, _, rest = done.stdout.partition(program.says)
    return rest.split()[0] if rest.split() else ""


# ---- one at a time ---------------------------------------------------------------------------------------------------


@contextmanager
def lock() -> Iterator[IO | None]:
    """The lock of the store if nobody has it, else None. Whoever writes into the store holds it."""
    root().mkdir(parents=True, exist_ok=True)
    with open(root() / "lock", "a") as file:
        yield file if try_lock(file) else None


def is_locked() -> bool:
    """Whether somebody writes into the store at this moment."""
    try:
        with open(root() / "lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False

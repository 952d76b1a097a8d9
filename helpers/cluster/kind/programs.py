"""Where kind and kubectl are."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from helpers import versions
from helpers.cluster.embedded.tools import binary, build, store, table
from helpers.cluster.kind.engine import ASK_S, run
from helpers.errors import CourseError


@dataclass(frozen=True)
class Found:
    """A program, and what it is, as it reads in a sentence: "kind 0.33.0 of PATH"."""

    path: Path
    told: str


def kind() -> Found:
    """kind: the one on PATH if it is new enough for the image of the Kubernetes nodes, else the course's, built once.

    Raises:
        CourseError: if it is not on PATH, and cannot be built here.
    """
    path = shutil.which("kind")
    version = _version(path) if path else ""
    if path and _numbers(version) >= _numbers(versions.KIND_OLDEST):
        return Found(Path(path), f"kind {version} of PATH")
    family, program = table.find("kind")
    if sys.platform != "linux":
        there = f"kind {version or 'of unknown version'} is on PATH" if path else "kind is not on PATH"
        raise CourseError(
            f"{there[0].upper()}{there[1:]}, and the course needs {versions.KIND_OLDEST} or newer.",
            "Install it (macOS: `brew install kind`), and run the same command again.",
        )
    if not store.look(family, program):
        print(f"… building kind {versions.KIND} from its Go module, once", flush=True)
        build.build_one(family.name)
    return Found(binary(program.name), f"kind {versions.KIND}, which the course has built")


def kubectl() -> Path:
    """The course's kubectl if it is built, else the one on PATH.

    Raises:
        CourseError: if there is none.
    """
    try:
        return binary("kubectl")
    except CourseError:
        path = shutil.which("kubectl")
    if not path:
        raise CourseError(
            "There is no kubectl on PATH, and the course's own is not built.",
            "Install kubectl, or run `course tools build` on Linux.",
        )
    return Path(path)


def _version(path: str) -> str:
    """What a kind says of itself, such as "0.33.0"; "" if it does not."""
    found = re.search(r"kind v(\d+\.\d+\.\d+)", run([path, "version"], ASK_S).out)
    return found[1] if found else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)

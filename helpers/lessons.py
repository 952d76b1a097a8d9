"""What each lesson says of itself, read from its notebook."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import CourseError
from helpers.state import course_root


@dataclass(frozen=True)
class Lesson:
    """The header of a lesson: `authoring/README.md` says what each field means."""

    id: str
    title: str
    minutes: float
    run_minutes: float
    capabilities: list[str]
    rows: list[str]
    memory_gib: float
    creates: str


def lesson(id: str) -> Lesson:
    """The lesson with this id, such as "01".

    Raises:
        CourseError: if there is none, or its notebook cannot be read.
    """
    for path in paths():
        if path.name.startswith(f"{id}_"):
            return _read(path)
    known = ", ".join(path.name[:2] for path in paths())
    raise CourseError(f"There is no lesson {id!r}.", f"Use one of: {known}.")


def exercise(id: str) -> Lesson:
    """What the exercise with this id, such as "ex01", says of itself in the learner's own notebook.

    Raises:
        CourseError: if there is none, or its notebook cannot be read.
    """
    known = sorted((course_root() / "exercises").glob("ex[0-9][0-9]/ex[0-9][0-9].ipynb"))
    for path in known:
        if path.stem == id:
            return _read(path, f"Run `course reset {id}`; what you have written is kept beside it.")
    names = ", ".join(path.stem for path in known) or "none"
    raise CourseError(f"There is no exercise {id!r}.", f"The exercises are: {names}.")


def lessons() -> list[Lesson]:
    """All lessons, in their order."""
    return [_read(path) for path in paths()]


def paths() -> list[Path]:
    return sorted((course_root() / "lessons").glob("[0-9][0-9]_*.ipynb"))


def _read(path: Path, fix: str = "") -> Lesson:
    try:
        return Lesson(**json.loads(path.read_text(encoding="utf-8"))["metadata"]["course"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CourseError(
            f"{path.name} cannot be read as a lesson: {type(error).__name__}: {error}.",
            fix or f"Put the original back with `git checkout -- lessons/{path.name}`.",
        ) from None

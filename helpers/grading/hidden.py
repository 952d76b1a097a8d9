"""Variations of the visible cases, which only a grader runs: they tell an answer from one written for the example.

They stand in `solutions/exNN/hidden.py`, as `VARIATIONS`: by question and by the name of one of its cases, a function
that gets the answer and a random number generator, and asserts as a case does. They add no points.
"""

from __future__ import annotations

import os
import random
import runpy
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.grading.check import Variations, find_suite
from helpers.state import course_root, state_dir

ROUNDS = 5  # how often each variation runs, with other inputs each time

Hidden = dict[str, dict[str, Callable[[Any, random.Random], None]]]


def load(exercise: str) -> Hidden:
    """The variations of an exercise; none if it has no such file.

    Raises:
        CourseError: one is for a question or a case that does not exist, so it would never run.
    """
    path = course_root() / "solutions" / exercise / "hidden.py"
    if not path.is_file():
        return {}
    hidden = runpy.run_path(str(path)).get("VARIATIONS", {})
    for question, tests in hidden.items():
        known = {case.name for case in find_suite(f"{exercise}.{question}").cases}
        unknown = sorted(set(tests) - known)
        if unknown:
            raise CourseError(
                f"solutions/{exercise}/hidden.py varies the case {unknown[0]!r}, which {exercise}.{question} has not.",
                f"Name one of its cases: {', '.join(sorted(known))}.",
            )
    return hidden


def variations(hidden: Hidden, exercise: str, question: str, student: str) -> Variations:
    """The tests of one question for one student, with inputs that nobody can foresee and a rerun repeats."""
    return {
        name: _repeated(test, f"{secret()}/{exercise}.{question}/{name}/{student}")
        for name, test in hidden.get(question, {}).items()
    }


def _repeated(test: Callable[[Any, random.Random], None], seed: str) -> Callable[[Any], None]:
    def run(answer: Any) -> None:
        rng = random.Random(seed)  # a fresh one each time, so that a second look at the same answer sees the same
        for _ in range(ROUNDS):
            test(answer, rng)

    return run


def secret() -> str:
    """The instructor's secret, made once: what random inputs depend on."""
    path = state_dir() / "grading-secret"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_once(path)
        return path.read_text()
    except OSError as error:
        raise CourseError(
            f"The secret of the hidden variations, {path}, cannot be read or made: {error.strerror}.",
            "Make its directory writable, or set XDG_STATE_HOME to one that is.",
        ) from None


def _make_once(path: Path) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    if path.exists():
        return
    part.touch(mode=0o600)
    part.write_text(secrets.token_hex(32))
    try:
        os.link(part, path)  # unlike a rename, this does not replace what another grader has made meanwhile
    except FileExistsError:
        pass
    finally:
        part.unlink()

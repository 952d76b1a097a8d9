"""The exercises in `exercises/`, which a learner edits in place: they are graded, released and reset there."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from helpers.errors import CourseError
from helpers.grading import batch, sandbox
from helpers.state import course_root


@dataclass(frozen=True)
class Released:
    """What `release` did.

    Attributes:
        written: the files of the exercise that were written; the others were as they should be.
        kept: copies of those that were there and said something else.
    """

    written: list[Path]
    kept: list[Path]


@dataclass(frozen=True)
class Checked:
    """A learner's own notebook, graded.

    Attributes:
        notebook: the file.
        saved: when it was saved last; what came after is not graded.
        row: its score, as in the table of a class.
        feedback: what each check said.
        no_sandbox: why it ran without a sandbox, as a clause; empty if it ran in one.
    """

    notebook: Path
    saved: datetime
    row: batch.Row
    feedback: str
    no_sandbox: str

    def __str__(self) -> str:
        if self.row.score is None:
            standing = f"✘ {self.notebook.stem} could not be graded. {self.row.remark}"
        else:
            by_hand = "; the open answer is marked by hand" if self.row.needs_manual else ""
            standing = f"{self.notebook.stem}: {self.row.score:g} of {self.row.max_score:g} points{by_hand}"
            standing += f"\n{self.row.remark}" if self.row.remark else ""
        lines = [f"Graded as saved {self.saved:%Y-%m-%d %H:%M:%S}; what is not saved does not count."]
        if self.no_sandbox:
            lines.append(f"– It ran without the sandbox that an instructor uses: {self.no_sandbox}.")
        return "\n\n".join(filter(None, ["\n".join(lines), self.feedback, standing]))


def exercises() -> list[str]:
    """The exercises of this course, such as ["ex01"]."""
    return sorted(path.stem for path in (course_root() / "solutions").glob("ex[0-9][0-9]/ex[0-9][0-9].ipynb"))


def release(exercise: str) -> Released:
    """Put an exercise into `exercises/` as learners get it. What was worked on there is kept beside it, under a date.

    Raises:
        CourseError: there is no such exercise, it cannot be released as it is, or the files cannot be written.
    """
    place = course_root() / "exercises" / exercise
    with tempfile.TemporaryDirectory(prefix="ray-course-release-") as folder:
        made = batch.make_release(exercise, Path(folder))
        changed = [place / name for name in made if _differ(Path(folder, name), place / name)]
    try:
        kept = [_keep(path) for path in changed]
        return Released(batch.release(exercise), kept)
    except OSError as error:
        raise CourseError(
            f"The files in {place} cannot be written: {error.strerror or error}.",
            "Make that folder writable and free some space, then run this again; nothing is lost.",
        ) from None


def check(exercise: str, live: batch.Live | None = None) -> Checked:
    """Grade the learner's own notebook as an instructor would. Nothing is sent or kept.

    Args:
        live: as in `batch.grade`.

    Without a sandbox on this machine it runs all the same: it is the learner's own code, which has run here before.

    Raises:
        CourseError: there is no such exercise, or its notebook is not there.
    """
    notebook = course_root() / "exercises" / exercise / f"{exercise}.ipynb"
    if exercise in exercises() and not notebook.is_file():
        raise CourseError(
            f"There is no exercises/{exercise}/{exercise}.ipynb.",
            f"Save your notebook under that name, or run `course reset {exercise}` to begin with a new one.",
        )
    saved = datetime.fromtimestamp(notebook.stat().st_mtime) if notebook.is_file() else datetime.now()
    why = sandbox.missing()
    row, feedback = batch.grade_notebook(notebook, exercise, trust=bool(why), live=live)
    return Checked(notebook, saved, row, feedback, why)


def _differ(new: Path, old: Path) -> bool:
    return old.is_file() and old.read_bytes() != new.read_bytes()


def _keep(path: Path) -> Path:
    """Copy a file beside itself, under a name that is not taken: `ex01.kept-20261129-184405.ipynb`."""
    stamp = f"{path.stem}.kept-{datetime.now():%Y%m%d-%H%M%S}"
    names = (path.with_name(f"{stamp}{f'-{n}' if n > 1 else ''}{path.suffix}") for n in range(1, 10_000))
    kept = next(name for name in names if not name.exists())
    shutil.copy2(path, kept)
    with open(kept, "rb") as copy:
        os.fsync(copy.fileno())  # the original is replaced next
    return kept

"""A batch that is killed and run again comes to what an undisturbed one does.

Two random moments are tried each time, since ten take minutes: `COURSE_SOAK=1` before the command tries ten.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import nbformat
import pytest

from helpers.grading import batch, sandbox
from helpers.state import course_root
from helpers.wait import wait_until
from tests import grading_submissions as trial
from tests.isolation import new_home, orphans_adopted, processes

STUDENTS = 20
KILLS = 10 if os.environ.get("COURSE_SOAK") else 2
GONE_WITHIN_S = 20
BATCH_WITHIN_S = 240
WRONG_TOO = (trial.RIGHT, trial.WRONG, "def pods(t, s, m):\n    return -(-t // s)")
# grades the class at argv[1]; with argv[2] it kills itself just before it puts that many files in their places
GRADE = """
import os, signal, sys
from pathlib import Path
from tests import grading_submissions as trial
from helpers.grading import batch
root, moves = Path(sys.argv[1]), int(sys.argv[2])
def place(source, target, place=os.replace):
    global moves
    if Path(target).parent == root / "grading" or root / "grading" / "autograded" in Path(target).parents:
        moves -= 1
        if moves == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    place(source, target)
os.replace = place
with trial.made_up_course(root):
    print("start", flush=True)
    batch.grade(trial.EXERCISE, root / "grading" / "submitted")
"""

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sandbox.missing() != "", reason=f"no sandbox here: {sandbox.missing()}"),
]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home("batch-killed") as home, orphans_adopted():
        yield home


def a_class(root: Path, size: int) -> Path:
    """A course whose students have handed in answers that are small, and not all right."""
    trial.write_course(root)
    with trial.made_up_course(root):
        released = trial.released(root)
        for number in range(size):
            folder = root / "grading" / "submitted" / f"s{number:02}" / trial.EXERCISE
            folder.mkdir(parents=True)
            trial.answers(function=WRONG_TOO[number % len(WRONG_TOO)])(released, folder)
    return root


def start(root: Path, moves: int = 0) -> subprocess.Popen:
    """A batch that has begun."""
    command = [sys.executable, "-c", GRADE, str(root), str(moves)]
    run = subprocess.Popen(command, cwd=course_root(), stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "start\n"
    return run


def end(run: subprocess.Popen) -> int:
    code = run.wait(BATCH_WITHIN_S)
    run.stdout.close()
    wait_until(lambda: not processes(), GONE_WITHIN_S, what="all processes of a batch to end")
    return code


def book(root: Path) -> list[tuple]:
    """What a gradebook says, without times and without the random keys of its rows."""
    parts = """
        SELECT submitted_assignment.student_id, base_cell.name, {} FROM {table}
        JOIN base_cell ON {table}.cell_id = base_cell.id
        JOIN submitted_notebook ON {table}.notebook_id = submitted_notebook.id
        JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
        ORDER BY 1, 2
    """
    grades = parts.format("auto_score, manual_score, extra_credit, needs_manual_grade", table="grade")
    comments = parts.format("auto_comment, manual_comment", table="comment")
    with closing(sqlite3.connect(root / "grading" / "gradebook.db")) as database:
        return [*database.execute(grades), *database.execute(comments)]


def files(root: Path) -> set[str]:
    """What there is of graded notebooks and feedback, by its path; no run may leave anything else."""
    return {str(path.relative_to(root)) for path in (root / "grading").rglob("*") if path.name != ".lock"}


def forget(root: Path) -> None:
    for path in (root / "grading").iterdir():
        if path.name != "submitted":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_killed_at_random_moments(home: Path) -> None:
    root = a_class(home / "random", STUDENTS)
    run, began = start(root), time.monotonic()
    assert end(run) == 0
    took, undisturbed, there = time.monotonic() - began, book(root), files(root)
    assert len({student for student, *_ in undisturbed}) == STUDENTS
    forget(root)

    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    moments = [took * rng.uniform(part, part + 1) / KILLS for part in range(KILLS)]  # early ones and late ones
    print(f"seed {seed}: {STUDENTS} submissions take {took:.1f} s; killed after", *(f"{m:.1f}" for m in moments), "s")
    killed = 0
    for moment in moments:
        run = start(root)
        try:
            run.wait(moment)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
        killed += end(run) == -signal.SIGKILL
    assert killed, "every batch had ended before it was killed"
    assert end(start(root)) == 0
    assert book(root) == undisturbed
    assert files(root) - {f"grading/{batch.PREVIOUS}"} == there - {f"grading/{batch.PREVIOUS}"}


@pytest.fixture(scope="module")
def marked(home: Path) -> Path:
    """A class of one, graded, whose open answer was marked by hand."""
    from nbgrader.api import Gradebook

    root = a_class(home / "marked", 1)
    assert end(start(root)) == 0
    with Gradebook(f"sqlite:///{root / 'grading' / 'gradebook.db'}") as gradebook:
        grade = gradebook.find_grade("q3", trial.EXERCISE, trial.EXERCISE, "s00")
        grade.manual_score, grade.needs_manual_grade = 1.5, False
        gradebook.find_comment("q3", trial.EXERCISE, trial.EXERCISE, "s00").manual_comment = "Say more."
        gradebook.db.commit()
    return root


# The first to move is the previous gradebook; then the gradebook, the graded notebook, the table. All that takes
# milliseconds, in which no random moment would fall.
@pytest.mark.parametrize("moves", [2, 3])
def test_killed_while_results_take_their_places(marked: Path, moves: int) -> None:
    before = book(marked)
    assert end(start(marked, moves)) == -signal.SIGKILL
    assert book(marked) == before, "it is the old gradebook or the new one, which says the same"
    assert end(start(marked)) == 0
    assert book(marked) == before


def test_a_mark_that_waits_to_be_looked_at_still_waits(marked: Path) -> None:
    path = marked / "grading" / "submitted" / "s00" / trial.EXERCISE / f"{trial.EXERCISE}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    trial.find(notebook, "q3").source = "Another answer."
    nbformat.write(notebook, path)
    assert end(start(marked, moves=4)) == -signal.SIGKILL  # all but the table is in its place
    waits = book(marked)
    assert ("s00", "q3", None, 1.5, None, 1) in waits
    assert end(start(marked)) == 0
    assert book(marked) == waits

"""A class of 20, each in a sandbox: no slower than nbgrader's own serial autograde, and with the same scores.

Both grade the same honest submissions of exercise 01, each by a command of its own that starts from nothing. It is
done once: the 20 are the repetition. Ours makes feedback too, which nbgrader's command does not.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from _figure import finish, report, seconds

from helpers.grading import sandbox
from helpers.state import course_root

BOUND = 1.0
STUDENTS = 20
EXERCISE = "ex01"
NOTEBOOK = f"{EXERCISE}.ipynb"
STOCK = """
c = get_config()
c.CourseDirectory.source_directory = "solutions"
"""
OURS = """
import sys
from pathlib import Path
from helpers.grading import batch, hidden
root = Path(sys.argv[1])
batch.course_root = hidden.course_root = lambda: root
batch.grade(sys.argv[2], root / "submitted")
"""
# two questions that are not all right: 3 // 0.1 is 29; an actor is not there again without max_restarts
ALMOST = """def max_parallel(hosts, demand):
    asked = {name: amount for name, amount in demand.items() if amount}
    return sum(min(offers.get(name, 0) // amount for name, amount in asked.items()) for offers in hosts.values())"""
FATES = """fates = dict.fromkeys(
    ["resize", "charge", "counter", "registry", "table", "sample", "config", "audit"], "lost")"""


def answers() -> list[dict[str, str]]:
    """What different students write, by the name of the cell."""
    source = nbformat.read(course_root() / "solutions" / EXERCISE / NOTEBOOK, as_version=4)
    right = {
        cell.metadata.nbgrader.grade_id: "\n".join(li for li in cell.source.splitlines() if " SOLUTION" not in li)
        for cell in source.cells
        if cell.cell_type == "code" and cell.metadata.nbgrader.solution
    }
    return [right, {**right, "q4": ALMOST}, {**right, "q3": FATES}, {}]


def hand_in(root: Path) -> None:
    """A course with exercise 01, and a submission of each student."""
    shutil.copytree(course_root() / "solutions" / EXERCISE, root / "solutions" / EXERCISE)
    different = answers()
    for number in range(STUDENTS):
        notebook = nbformat.read(course_root() / "exercises" / EXERCISE / NOTEBOOK, as_version=4)
        for cell in notebook.cells:
            cell.source = different[number % len(different)].get(cell.metadata.nbgrader.grade_id, cell.source)
        folder = root / "submitted" / f"s{number:02}" / EXERCISE
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / NOTEBOOK)


def run(root: Path, *command: str) -> None:
    done = subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def ours(root: Path) -> float:
    shutil.rmtree(root / "grading", ignore_errors=True)
    return seconds(lambda: run(root, "-c", OURS, str(root), EXERCISE))


def our_scores(root: Path) -> dict[str, float]:
    with open(root / "grading" / f"{EXERCISE}.csv", newline="") as file:
        return {row["student"]: float(row["score"]) for row in csv.DictReader(file)}


def stock(root: Path) -> float:
    """Seconds of the second command; the first is not needed again for another class."""
    for left in ("autograded", "release"):
        shutil.rmtree(root / left, ignore_errors=True)
    (root / "gradebook.db").unlink(missing_ok=True)
    (root / "nbgrader_config.py").write_text(STOCK)
    run(root, "-m", "nbgrader", "generate_assignment", EXERCISE)
    return seconds(lambda: run(root, "-m", "nbgrader", "autograde", EXERCISE))


def stock_scores(root: Path) -> dict[str, float]:
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as book:
        return {submission.student.id: submission.score for submission in book.assignment_submissions(EXERCISE)}


if sandbox.missing():
    print(f"– grading: {sandbox.missing()}; nothing was measured")
    sys.exit(0)
with tempfile.TemporaryDirectory() as home:
    os.environ["XDG_STATE_HOME"] = f"{home}/state"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader calls `alembic`
    root = Path(home, "course")
    hand_in(root)
    mine_s, theirs_s = ours(root), stock(root)
    mine, theirs = our_scores(root), stock_scores(root)
assert mine == theirs and len(mine) == STUDENTS, f"other scores: {mine}, and {theirs} by nbgrader"
assert len(set(mine.values())) == len(answers()), "answers of different worth have the same score"
beside = f"{mine_s:.1f} s, and {theirs_s:.1f} s for `nbgrader autograde`; the same scores"
finish(report(f"grading {STUDENTS} submissions, sandboxed", mine_s / theirs_s, BOUND, beside, "times"))

"""A class is graded: each submission of `tests/grading_submissions.py` gets its right column, and none does harm.

Kernels and sandboxes are real. The time limits are short, so that the endless ones end soon.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import nbformat
import psutil
import pytest

from helpers.grading import batch, sandbox
from helpers.state import course_root
from helpers.wait import wait_until
from tests import grading_submissions as trial
from tests.isolation import new_home, orphans_adopted, processes

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sandbox.missing() != "", reason=f"no sandbox here: {sandbox.missing()}"),
]

CELL_S, NOTEBOOK_S = 6, 30
NOT_OURS = {".git", ".venv", "__pycache__", ".pytest_cache", ".hypothesis", ".ruff_cache", "build"}
GONE_WITHIN_S = 20


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home("grading"), orphans_adopted():
        yield Path.home()


@pytest.fixture(scope="module")
def root(home: Path) -> Iterator[Path]:
    root = home / "course"
    trial.write_course(root)
    with trial.made_up_course(root, CELL_S, NOTEBOOK_S):
        yield root


def traces() -> set[str]:
    """What a submission could leave: mounts, network cards, files in the checkout and in places that all share."""
    found = {f"mount on {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    found |= {f"network card {card.name}" for card in Path("/sys/class/net").iterdir()}
    for folder, names, files in os.walk(course_root()):
        names[:] = [name for name in names if name not in NOT_OURS]
        found |= {f"file {Path(folder, name)}" for name in files}
    for place in ("/", "/etc", "/tmp", "/var/tmp", "/dev/shm", "/run", str(Path.home()), os.environ["TMPDIR"]):
        names = os.listdir(place) if os.path.isdir(place) else []
        found |= {
            f"file {Path(place, name)}" for name in names if "ray-course" in name or place == os.environ["TMPDIR"]
        }
    return found


@pytest.fixture(scope="module")
def graded(root: Path) -> dict[str, batch.Row]:
    """The table of one batch with all submissions."""
    trial.hand_in(trial.released(root), root / "grading" / "submitted")
    before, most, start = traces(), Crowd(), time.monotonic()
    with most:
        result = batch.grade(trial.EXERCISE, root / "grading" / "submitted")
    print(f"{len(result.rows)} submissions in {time.monotonic() - start:.0f} s\n{result}")
    wait_until(lambda: not processes(), GONE_WITHIN_S, what="all processes of the batch to end")
    assert traces() <= before, traces() - before
    # without a limit the bomb would make many thousands; one sandbox may still be dying while the next one works, and
    # a count that is taken while processes come and go is a little too high
    assert most.count < 2 * sandbox.Limits().processes
    return {row.student: row for row in result.rows}


class Crowd:
    """Counts, while it is entered, how many processes the tests have started at most at once."""

    count = 0

    def __enter__(self) -> None:
        import threading

        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self.count = max(self.count, len(psutil.Process().children(recursive=True)))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("name", trial.SUBMISSIONS)
def test_each_gets_its_right_column(graded: dict[str, batch.Row], name: str) -> None:
    row, wanted = graded[name], trial.SUBMISSIONS[name]
    assert row.score == wanted.score, row
    if wanted.remark is not None:
        assert wanted.remark in row.remark and bool(wanted.remark) == bool(row.remark), row
    assert row.needs_manual == wanted.by_hand, row
    assert row.max_score == trial.FULL + trial.OPEN


@pytest.fixture(scope="module")
def shown(graded: dict[str, batch.Row], root: Path) -> dict[str, str]:
    """All that each graded notebook shows."""
    texts = {}
    for path in (root / "grading" / "autograded").glob("*/*/*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        texts[path.parents[1].name] = "\n".join(str(output) for cell in cells for output in cell.get("outputs", []))
    return texts


@pytest.mark.parametrize(
    ("name", "sign", "ran"),
    [
        ("reads-files", "SEEN", "looked around"),
        ("suite-imported", "SECRET", "STOLEN [] []"),
        ("writes-outside", "WROTE", "done"),
        ("tries-network", "REACHED", "unreachable"),
    ],
)
def test_nothing_is_reached(shown: dict[str, str], name: str, sign: str, ran: str) -> None:
    assert ran in shown[name], "the attempt did not run to its end, so that this test would mean nothing"
    assert sign not in shown[name]


def test_feedback_tells_nothing_that_is_hidden(graded: dict[str, batch.Row], root: Path) -> None:
    pages = {path.parents[1].name: path.read_text() for path in (root / "grading" / "feedback").glob("*/*/*.html")}
    assert set(pages) == {name for name, row in graded.items() if row.score is not None}
    for page in pages.values():
        # the markers of a solution, a suite's answers, a variation
        assert "BEGIN SOLUTION" not in page and "randint" not in page and "math.ceil(tasks / slots) ==" not in page
        assert "<script>1</script>" not in page and "<b>99/99</b>" not in page
    assert not re.search(r"<script>steal|<[^>]*onerror=|<a [^>]*javascript:|<iframe", pages["script-in-answer"])
    assert "is anything written for the example only" in pages["written-for-example"]
    assert "pods(9, 4, 10) returned 0" in pages["tests-edited"], "a wrong answer gets its reason"


def test_the_original_answer_counts_and_not_its_copy(graded: dict[str, batch.Row], root: Path) -> None:
    path = root / "grading" / "autograded" / "cells-copied" / trial.EXERCISE / f"{trial.EXERCISE}.ipynb"
    assert trial.find(nbformat.read(path, as_version=4), "q3").source == trial.WHY


# ---- the gradebook ---------------------------------------------------------------------------------------------------

FEW = ["correct", "half-right", "kernel-killed", "written-for-example", "untouched"]
GRADE = """
import sys
from pathlib import Path
from tests import grading_submissions as trial
from helpers.grading import batch
root = Path(sys.argv[1])
with trial.made_up_course(root):
    print("start", flush=True)
    print(batch.grade(trial.EXERCISE, root / "grading" / "submitted"))
"""


def book(root: Path) -> list[tuple]:
    """What a gradebook says: scores, marks and comments, without the random keys of its rows."""
    query = """
        SELECT submitted_assignment.student_id, base_cell.name, auto_score, manual_score, needs_manual_grade
        FROM grade JOIN base_cell ON grade.cell_id = base_cell.id
        JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id
        JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
        ORDER BY 1, 2
    """
    with closing(sqlite3.connect(root / "grading" / "gradebook.db")) as database:
        return database.execute(query).fetchall()


@pytest.fixture
def other(home: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A course with few submissions, for one test."""
    root = home / request.node.name.partition("[")[0]
    trial.write_course(root)
    with trial.made_up_course(root, CELL_S, NOTEBOOK_S):
        trial.hand_in(trial.released(root), root / "grading" / "submitted", FEW)
        yield root


def test_killed_at_any_moment_and_run_again(other: Path) -> None:
    """Whenever a batch is killed: nothing of it runs on, and the next one comes to what an undisturbed one does."""
    command = [sys.executable, "-c", GRADE, str(other)]
    start = time.monotonic()
    subprocess.run(command, cwd=course_root(), check=True, stdout=subprocess.DEVNULL, timeout=120)
    undisturbed, took = book(other), time.monotonic() - start
    assert len({student for student, *_ in undisturbed}) == len(FEW)
    (other / "grading" / "gradebook.db").unlink()
    for part in (0.4, 0.6, 0.8, 0.95):
        run = subprocess.Popen(command, cwd=course_root(), stdout=subprocess.PIPE, text=True)
        assert run.stdout.readline() == "start\n"
        try:
            run.wait(took * part)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
        wait_until(lambda: not processes(), GONE_WITHIN_S, what="all processes of a killed batch to end")
    batch.grade(trial.EXERCISE, other / "grading" / "submitted")
    assert book(other) == undisturbed
    assert not list((other / "grading").glob(".run-*")), "what the killed ones left is gone"


def test_marks_made_by_hand_stay(other: Path) -> None:
    from nbgrader.api import Gradebook

    submitted, database = other / "grading" / "submitted", f"sqlite:///{other / 'grading' / 'gradebook.db'}"
    batch.grade(trial.EXERCISE, submitted)
    with Gradebook(database) as gradebook:
        for student in ("correct", "half-right"):
            grade = gradebook.find_grade("q3", trial.EXERCISE, trial.EXERCISE, student)
            grade.manual_score, grade.needs_manual_grade = 1.5, False
            gradebook.find_comment("q3", trial.EXERCISE, trial.EXERCISE, student).manual_comment = "Say more."
        gradebook.db.commit()
    path = submitted / "half-right" / trial.EXERCISE / f"{trial.EXERCISE}.ipynb"
    changed = nbformat.read(path, as_version=4)
    trial.find(changed, "q3").source = "Another answer."
    nbformat.write(changed, path)
    rows = {row.student: row for row in batch.grade(trial.EXERCISE, submitted).rows}
    assert (rows["correct"].score, rows["correct"].needs_manual) == (6.5, False)
    assert rows["half-right"].needs_manual, "an answer that has changed is to be marked again"
    with Gradebook(database) as gradebook:
        assert gradebook.find_comment("q3", trial.EXERCISE, trial.EXERCISE, "correct").comment == "Say more."
    assert "Say more." in (other / f"grading/feedback/correct/{trial.EXERCISE}/{trial.EXERCISE}.html").read_text()


def test_trusted_work_runs_without_a_sandbox_and_scores_the_same(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: "bwrap is not installed")
    result = batch.grade(trial.EXERCISE, other / "grading" / "submitted", trust=True)
    assert {row.student: row.score for row in result.rows} == {name: trial.SUBMISSIONS[name].score for name in FEW}


# ---- Ray in a graded notebook ----------------------------------------------------------------------------------------

WITH_RAY = """
import ray
ray.init()
mark = ray.remote(dict).options(name="mark", lifetime="detached", num_cpus=0).remote()
print("RAY NODES", len(ray.nodes()), "ACTORS", len(ray.util.list_named_actors(all_namespaces=True)))
"""
GRADE_ONE = """
import sys
from pathlib import Path
from tests import grading_submissions as trial
from helpers.grading import batch
root = Path(sys.argv[1])
with trial.made_up_course(root, 90, 120):
    print(batch.grade_notebook(Path(sys.argv[2]), trial.EXERCISE)[0].score)
"""


def test_ray_costs_no_points_and_two_graders_do_not_meet(other: Path) -> None:
    """Two graders at once, each with a submission that starts Ray: each sees one Ray node and one actor, its own."""
    seen = 'assert len(ray.nodes()) == 1 and len(ray.util.list_named_actors(all_namespaces=True)) == 1, "they met"\n'
    name = f"{trial.EXERCISE}.ipynb"
    folder = other / "with-ray"
    folder.mkdir()
    # the answer comes into being only if all of that holds
    make = trial.answers(
        trial.WRONG_DATA, change=trial.last(WITH_RAY + "import time\ntime.sleep(5)\n" + seen + trial.RIGHT_DATA)
    )
    make(nbformat.read(other / "exercises" / trial.EXERCISE / name, as_version=4), folder)
    command = [sys.executable, "-c", GRADE_ONE, str(other), str(folder / name)]
    runs = [subprocess.Popen(command, cwd=course_root(), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    scores = [run.communicate(timeout=240)[0].strip() for run in runs]
    assert scores == ["5.0", "5.0"]
    wait_until(lambda: not processes(), GONE_WITHIN_S, what="Ray's processes to end")

"""The live question of exercise 01: a learner's own run, what it is worth to a grader, and a grader who runs it too.

Hosts, Ray, kernels and sandboxes are real. A run of a shape takes a minute or two on two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest

from helpers.grading import batch, evidence, hidden, sandbox
from helpers.grading.suites import ex01
from helpers.rayhost import shape
from helpers.rayhost.hosts import Hosts
from helpers.state import course_root
from helpers.wait import wait_until
from tests.isolation import nothing_runs, orphans_adopted
from tests.unit.test_ex01 import run_of

EX, ID = "ex01", "ex01.q1_run"
RUN_WITHIN_S = 400
GONE_WITHIN_S = 30
JOIN = "ray start --address=head:6379"
RIGHT = {
    "head": "ray start --head --num-cpus=0 --labels=tier=control",
    "gpu-1": f"{JOIN} --num-cpus=2 --num-gpus=2",
    "disk-1": f"{JOIN} --num-cpus=4 --resources='{{\"fast_disk\": 1}}'",
}
ONE_GPU = RIGHT | {"gpu-1": f"{JOIN} --num-cpus=2 --num-gpus=1"}
REFUSED = RIGHT | {"head": {"num_cpus": 0, "labels": {"tier": "control", "-tier": "control"}}}

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sandbox.missing() != "", reason=f"no sandbox here: {sandbox.missing()}"),
]
RUN = """
import sys, nbformat
from nbclient import NotebookClient
path, folder = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
NotebookClient(notebook, timeout=400, resources={"metadata": {"path": folder}}).execute()
nbformat.write(notebook, f"{folder}/ex01.ipynb")
"""


def solution() -> nbformat.NotebookNode:
    return nbformat.read(course_root() / "solutions" / EX / f"{EX}.ipynb", as_version=4)


def cell(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    return next(one for one in notebook.cells if one.metadata.get("nbgrader", {}).get("grade_id") == name)


@pytest.fixture(scope="module")
def root(home: Path) -> Iterator[Path]:
    """A course with a place of its own for grading, and the real exercise 01."""
    shutil.copytree(course_root() / "solutions", home / "course" / "solutions")
    with pytest.MonkeyPatch.context() as patch, orphans_adopted():
        patch.delenv("NBGRADER_EXECUTION", raising=False)
        for module in (batch, hidden):
            patch.setattr(module, "course_root", lambda: home / "course")
        yield home / "course"


@pytest.fixture(scope="module")
def own_run(home: Path, root: Path) -> Path:
    """The folder of a learner who has written what the solution says, and run all of it."""
    folder = home / "exercise"
    folder.mkdir()
    path = course_root() / "solutions" / EX / f"{EX}.ipynb"
    command = [sys.executable, "-c", RUN, str(path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_WITHIN_S)
    assert done.returncode == 0, done.stderr
    print(cell(nbformat.read(folder / f"{EX}.ipynb", as_version=4), "run-q1").outputs)
    wait_until(nothing_runs, GONE_WITHIN_S, what="all that the notebook has started to end")
    return folder


def test_a_learners_run_writes_down_what_it_saw(own_run: Path) -> None:
    assert sorted(os.listdir(own_run)) == ["evidence.jsonl", "ex01.ipynb"]
    [record] = evidence.read(own_run / evidence.NAME).records
    assert (record.exercise, record.question, record.fault) == (EX, "q1_run", "")
    assert record.plan == ex01.q1_run.read(RIGHT) and set(record.seen["ray_nodes"]) == set(RIGHT)
    shown = cell(nbformat.read(own_run / f"{EX}.ipynb", as_version=4), "test-q1_run").outputs[0].data["text/plain"]
    assert shown.startswith("ex01.q1_run: 4/4 points\n✔ pass (self-reported) · `serve`")


# ---- a class -----------------------------------------------------------------------------------------------------


def forged(answer: dict, change: Callable[[dict], None] = lambda seen: None) -> str:
    """Evidence that holds together, of a run that never was: each task where it shall run, as often as it shall."""
    plan = ex01.q1_run.read(answer)
    seen = run_of(plan) | {"ran": run_of(ex01.q1_run.read(RIGHT))["ran"]}
    change(seen)
    body = {"version": 1, "exercise": EX, "question": "q1_run", "at": "2026-01-02T03:04:05+00:00", "before": ""}
    body |= {"plan": plan, "seen": seen}
    return json.dumps(body | {"digest": evidence._digest(body)}) + "\n"


def hand_in(root: Path, student: str, answer: dict, text: str = "") -> Path:
    folder = root / "grading" / "submitted" / student / EX
    folder.mkdir(parents=True, exist_ok=True)
    notebook = solution()
    cell(notebook, "q1").source = f"shape = {answer!r}"
    nbformat.write(notebook, folder / f"{EX}.ipynb")
    if text:
        (folder / evidence.NAME).write_text(text)
    return folder


FULL = 29  # points of all other questions, without the open one
SELF_REPORTED = "Self-reported: {} points."


@pytest.fixture(scope="module")
def believed(own_run: Path, root: Path) -> dict[str, batch.Row]:
    """A class graded by what learners report."""
    real = (own_run / evidence.NAME).read_text()
    hand_in(root, "ran", RIGHT, real)
    hand_in(root, "same-in-other-words", RIGHT | {"head": {"num_cpus": 0, "labels": {"tier": "control"}}}, real)
    hand_in(root, "cut-off", RIGHT, real + real[:500])
    hand_in(root, "not-run", RIGHT)
    hand_in(root, "of-another-answer", ONE_GPU, real)
    hand_in(root, "edited", RIGHT, real.replace('"host": "gpu-1"', '"host": "disk-1"'))
    hand_in(root, "forged", ONE_GPU, forged(ONE_GPU))
    hand_in(root, "forged-badly", RIGHT, forged(RIGHT, lambda seen: seen["ray_nodes"].pop("head")))
    hand_in(root, "no-run-at-all", RIGHT, '{"id": "ex01.q1_run", "score": 99, "points": 4}\n')
    hand_in(root, "huge", RIGHT, "x" * 3_000_000)
    (hand_in(root, "folder", RIGHT) / evidence.NAME).mkdir()
    (hand_in(root, "link", RIGHT) / evidence.NAME).symlink_to(own_run / evidence.NAME)
    result = batch.grade(EX, root / "grading" / "submitted")
    print(result)
    return {row.student: row for row in result.rows}


@pytest.mark.parametrize(
    ("student", "score", "self_reported"),
    [
        ("ran", FULL + 4, 4),
        ("same-in-other-words", FULL + 4, 4),
        ("cut-off", FULL + 4, 4),
        ("not-run", FULL, 0),
        ("of-another-answer", FULL - 1, 0),
        ("edited", FULL, 0),
        ("forged", FULL - 1 + 4, 4),  # what this gains is marked, and `--live` takes it back: see below
        ("forged-badly", FULL, 0),
        ("no-run-at-all", FULL, 0),
        ("huge", FULL, 0),
        ("folder", FULL, 0),
        ("link", FULL, 0),
    ],
)
def test_what_a_report_is_worth(believed: dict[str, batch.Row], student: str, score: float, self_reported: int) -> None:
    row = believed[student]
    assert row.score == score, row
    assert row.remark == (SELF_REPORTED.format(self_reported) if self_reported else "")


@pytest.mark.parametrize(
    ("student", "said"),
    [
        ("ran", "✔ pass (self-reported) · <code>train</code>"),
        ("not-run", "ex01.q1_run: not run yet (0/4 points)"),
        ("of-another-answer", "and of another answer than this: run the cell above again"),
        ("edited", "it was changed after it was written; run the cell above again"),
        ("forged-badly", "Ray did not come up on head"),
        ("no-run-at-all", "The last line of evidence.jsonl is not whole"),
        ("huge", "evidence.jsonl is larger than any that a run writes"),
    ],
)
def test_what_the_feedback_says(believed: dict[str, batch.Row], root: Path, student: str, said: str) -> None:
    assert said in (root / "grading" / "feedback" / student / EX / f"{EX}.html").read_text()


# ---- a grader who runs it --------------------------------------------------------------------------------------------


def test_a_grader_who_runs_it_believes_nobody(believed: dict[str, batch.Row], root: Path) -> None:
    """The right shape is verified; a forged report of a wrong one gains nothing; one that is refused stops nobody."""
    (folder := root / "live").mkdir()
    for student in ("forged", "not-run"):
        shutil.copytree(root / "grading" / "submitted" / student, folder / student)
    shutil.move(hand_in(root, "refused", REFUSED, forged(REFUSED)).parent, folder / "refused")
    told = []
    result = batch.grade(EX, folder, live=shape.run_apart, on_row=lambda *said: told.append(said))
    rows = {row.student: row for row in result.rows}
    print(result)
    assert told == [(row, number, 3) for number, row in enumerate(result.rows, 1)]
    assert {student: row.score for student, row in rows.items()} == {
        "forged": FULL - 1 + 3,
        "not-run": FULL + 4,
        "refused": FULL,
    }
    assert rows["forged"].remark == rows["not-run"].remark == ""
    assert rows["refused"].remark.startswith("Live: this shape was started, and did not come up: ")
    pages = {name: (root / f"grading/feedback/{name}/{EX}/{EX}.html").read_text() for name in rows}
    assert "ran at once: 1 on gpu-1; 2 were wanted" in pages["forged"]
    assert "✔ pass (verified) · <code>train</code>" in pages["not-run"]
    assert "this shape was started, and did not come up: " in pages["refused"] and "-tier" in pages["refused"]
    wait_until(nothing_runs, GONE_WITHIN_S, what="all that the grader has started to end")


def test_a_shape_that_takes_too_long_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape.try_out, "__defaults__", (0.5,))
    with orphans_adopted():
        with pytest.raises(AssertionError, match=r"did not come up: .*took longer than"):
            shape.run_apart(ex01.q1_run.read(RIGHT))
        wait_until(nothing_runs, GONE_WITHIN_S, what="all of it to end")


def test_hosts_that_cannot_be_had_are_no_fault_of_the_shape(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.errors import CourseError

    def broken(*args: object) -> None:
        raise CourseError("Host head did not come up: no.", "Run it again.")

    monkeypatch.setattr(Hosts, "add", broken)
    with pytest.raises(CourseError, match="Host head"):
        shape.run_apart(ex01.q1_run.read(RIGHT))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**30})())
    with pytest.raises(CourseError, match="needs 2.5 GiB of free memory, and there are 1.0"):
        shape.run_apart(ex01.q1_run.read(RIGHT))

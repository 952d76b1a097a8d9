"""A learner's own notebook, graded on this machine by real kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from helpers.grading import own, sandbox
from tests import grading_submissions as trial
from tests.isolation import new_home

EX = trial.EXERCISE
STARTS_A_CLUSTER = """from helpers import Lab
lab = Lab.start("01")
head, worker = lab.hosts("head", "worker-1")
head.run("ray start --head")
shape = {"cpu": 4, "hosts": ["a", "b"], "seen": len(head.processes())}"""

pytestmark = pytest.mark.live


@pytest.fixture
def notebook() -> Iterator[Path]:
    """The released exercise of a course with a place of its own."""
    with new_home("own") as home, pytest.MonkeyPatch.context() as patch:
        trial.write_course(home)
        patch.setattr(own, "course_root", lambda: home)
        with trial.made_up_course(home):
            [written] = own.release(EX).written
            yield written


def answer(notebook: Path, **answers: str) -> None:
    work = nbformat.read(notebook, as_version=4)
    for name, source in answers.items():
        trial.find(work, name).source = source
    nbformat.write(work, notebook)


@pytest.mark.parametrize("why", ["", "as if there were none here"])
def test_own_work_gets_what_an_instructor_would_give(notebook, monkeypatch, why):
    if not why and sandbox.missing():
        pytest.skip(f"capability: no sandbox here: {sandbox.missing()}")
    monkeypatch.setattr(sandbox, "missing", lambda: why)
    assert "ex99: 0 of 7 points" in str(own.check(EX)), "an untouched one"

    answer(notebook, q1=STARTS_A_CLUSTER, q2="def pods(tasks, slots, limit):\n    return 3")
    before = notebook.read_bytes()
    said = str(own.check(EX))
    assert "ex99.q1: 2/2 points" in said and "✘ not yet · never above the limit: pods(100, 4, 10) returned 3" in said
    assert "✔ pass · rounds up" not in said, "an answer that is written for the example"
    assert "ex99: 2 of 7 points" in said
    assert notebook.read_bytes() == before and list(notebook.parent.iterdir()) == [notebook]


def test_a_file_that_is_no_notebook(notebook):
    notebook.write_text("my work")
    assert "✘ ex99 could not be graded. The notebook cannot be read" in str(own.check(EX))
    assert notebook.read_text() == "my work"

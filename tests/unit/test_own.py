"""Exercises that a learner works on in place: nothing of that work is ever lost. No kernel is started."""

from __future__ import annotations

import errno
import os
from datetime import datetime
from pathlib import Path

import nbformat
import pytest

from helpers.errors import CourseError
from helpers.grading import batch, own, sandbox
from tests import grading_submissions as trial

EX = trial.EXERCISE


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Where the notebook of the exercise belongs; it is not there yet."""
    trial.write_course(tmp_path)
    monkeypatch.setattr(own, "course_root", lambda: tmp_path)
    with trial.made_up_course(tmp_path):
        yield tmp_path / "exercises" / EX / f"{EX}.ipynb"


def test_the_exercises_are_those_with_a_solution(notebook, tmp_path):
    (tmp_path / "solutions" / "ex98").mkdir()
    (tmp_path / "solutions" / "notes").mkdir()
    assert own.exercises() == [EX]


def test_a_first_release_keeps_nothing_and_a_second_writes_nothing(notebook):
    assert own.release(EX) == own.Released([notebook], [])
    assert own.release(EX) == own.Released([], [])
    assert list(notebook.parent.iterdir()) == [notebook]


def test_what_was_worked_on_is_kept_beside_it(notebook):
    own.release(EX)
    as_released = notebook.read_bytes()
    notebook.write_text("my work")
    [kept] = own.release(EX).kept
    assert kept.parent == notebook.parent and kept.read_text() == "my work"
    assert abs(datetime.strptime(kept.name, f"{EX}.kept-%Y%m%d-%H%M%S.ipynb") - datetime.now()).total_seconds() < 60
    assert notebook.read_bytes() == as_released


def test_copies_of_one_second_do_not_replace_each_other(notebook):
    copies = []
    for work in ("first", "second", "third"):
        own.release(EX)
        notebook.write_text(work)
        copies += own.release(EX).kept
    assert [path.read_text() for path in copies] == ["first", "second", "third"]


def test_a_kept_copy_is_a_notebook_that_opens(notebook):
    own.release(EX)
    work = nbformat.read(notebook, as_version=4)
    trial.find(work, "q1").source = "shape = 1"
    nbformat.write(work, notebook)
    [kept] = own.release(EX).kept
    assert kept.suffix == ".ipynb" and trial.find(nbformat.read(kept, as_version=4), "q1").source == "shape = 1"


def test_an_exercise_that_cannot_be_released_leaves_the_work_where_it_is(notebook, tmp_path):
    own.release(EX)
    notebook.write_text("my work")
    (tmp_path / "solutions" / EX / f"{EX}.ipynb").write_text("no notebook")
    with pytest.raises(CourseError):
        own.release(EX)
    assert notebook.read_text() == "my work" and list(notebook.parent.iterdir()) == [notebook]


@pytest.mark.parametrize("step", ["shutil.copy2", "os.replace"])
def test_a_full_disk_is_one_sentence_and_loses_nothing(notebook, monkeypatch, step):
    own.release(EX)
    notebook.write_text("my work")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(step, full)
    with pytest.raises(CourseError, match="cannot be written: No space left"):
        own.release(EX)
    assert notebook.read_text() == "my work"


@pytest.mark.parametrize("verb", [own.release, own.check])
@pytest.mark.parametrize("exercise", ["ex98", "../ex99", ""])
def test_an_exercise_that_does_not_exist(notebook, verb, exercise):
    with pytest.raises(CourseError, match="The exercises are: ex99"):
        verb(exercise)


def test_a_notebook_that_is_not_there(notebook):
    with pytest.raises(CourseError, match=f"no exercises/{EX}/{EX}.ipynb. Save your notebook .* `course reset {EX}`"):
        own.check(EX)


@pytest.mark.parametrize("why", ["", "bwrap is not installed"])
def test_own_work_is_graded_with_a_sandbox_or_without(notebook, monkeypatch, why):
    own.release(EX)
    os.utime(notebook, (1e9, 1e9))
    asked = {}

    def grade_notebook(path: Path, exercise: str, *, trust: bool, live: object):
        asked.update(path=path, exercise=exercise, trust=trust, live=live)
        return batch.Row("you", 4.0, 7.0), "q1: 2/2 points"

    monkeypatch.setattr(batch, "grade_notebook", grade_notebook)
    monkeypatch.setattr(sandbox, "missing", lambda: why)
    checked = own.check(EX, len)
    assert asked == {"path": notebook, "exercise": EX, "trust": bool(why), "live": len}
    assert checked.saved == datetime.fromtimestamp(1e9) and checked.no_sandbox == why


@pytest.mark.parametrize(
    ("row", "no_sandbox", "says"),
    [
        (batch.Row("you", 4.0, 7.0), "", ["q1: 2/2 points", "ex99: 4 of 7 points"]),
        (batch.Row("you", 4.5, 7.0, True), "", ["ex99: 4.5 of 7 points; the open answer is marked by hand"]),
        (batch.Row("you", 0.0, 7.0, remark="It did not run to its end: too slow."), "", ["to its end: too slow."]),
        (batch.Row("you", 4.0, 7.0), "no bwrap", ["– It ran without the sandbox that an instructor uses: no bwrap."]),
        (batch.Row("you", None, 7.0, remark="It is not JSON."), "", ["✘ ex99 could not be graded. It is not JSON."]),
    ],
)
def test_what_is_said_of_own_work(row, no_sandbox, says):
    checked = own.Checked(Path("ex99.ipynb"), datetime(2026, 1, 2, 3, 4, 5), row, "q1: 2/2 points", no_sandbox)
    text = str(checked)
    assert text.startswith("Graded as saved 2026-01-02 03:04:05;") and "\n\n\n" not in text
    for line in says:
        assert line in text
    assert ("sandbox" in text) == bool(no_sandbox)

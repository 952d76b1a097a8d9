"""What of `Lab` needs no hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import lab, state
from helpers.errors import CourseError
from helpers.grading import evidence
from helpers.rayhost import shape
from helpers.text import count


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(lab, "_started_in", [])
    return tmp_path


def test_the_directory_of_the_notebook(home, monkeypatch):
    monkeypatch.chdir(home)
    assert lab._notebook_directory() == home
    lab._started_in[:] = [home]
    monkeypatch.chdir(state.course_root())
    assert lab._notebook_directory() == home  # an earlier lab went to the root
    (home / "elsewhere").mkdir()
    monkeypatch.chdir(home / "elsewhere")
    assert lab._notebook_directory() == home / "elsewhere"  # the learner has moved since


def test_a_notebook_in_the_root(monkeypatch):
    monkeypatch.chdir(state.course_root())
    assert lab._notebook_directory() == state.course_root()


@pytest.mark.parametrize(
    ("score", "line"),
    [
        (None, '  · 01.c1 not answered yet: check("01.c1", answer=…) works in any cell'),
        ({"score": 2, "points": 2}, "  ✔ 01.c1 2 of 2 points"),
        ({"score": 0.5, "points": 2}, "  ✘ 01.c1 0.5 of 2 points"),
    ],
)
def test_where_a_check_stands(score, line):
    assert lab._standing("01.c1", score) == line


def test_checks_of_one_lesson_only():
    lines = lab._checks_of("01").splitlines()
    assert lines[0] == "Your checks in this lesson:" and len(lines) > 1 and all(" 01." in line for line in lines[1:])
    assert lab._checks_of("77") == ""


@pytest.mark.parametrize(("number", "text"), [(0, "0 hosts"), (1, "1 host"), (2, "2 hosts")])
def test_many(number, text):
    assert count(number, "host") == count(number, "host", "hosts") == text


# ---- what an exercise starts

SHAPE = {
    "head": {"num_cpus": 0, "labels": {"tier": "control"}},
    "gpu-1": {"num_cpus": 2, "num_gpus": 2},
    "disk-1": {"num_cpus": 4, "resources": {"fast_disk": 1}},
}


@pytest.fixture
def exercise(home, monkeypatch):
    """A lab of exercise 01 without hosts; what it would start is in `started`, what it sees is `seen`."""
    made = lab.Lab.__new__(lab.Lab)
    made.started, made.seen, made._hosts = [], {"ran": {"serve": [{"host": "gpu-1"}, {"host": "gpu-1"}]}}, None
    monkeypatch.setattr(lab, "try_out", lambda hosts, plan: made.started.append(plan) or made.seen)
    monkeypatch.setattr(evidence, "_folder", [])
    evidence.keep_in(home)
    return made


def test_what_was_seen_is_shown_and_kept(exercise, home):
    shown = exercise.try_out("ex01.q1_run", SHAPE)
    assert str(shown).splitlines() == [
        "task   submitted  ran at once  where",
        "serve  8          2            2 on gpu-1",
    ]
    assert "<td>2 on gpu-1</td>" in shown._repr_html_()
    [record] = evidence.read(home / "evidence.jsonl").records
    assert [record.plan] == exercise.started and record.seen == exercise.seen


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "· not answered yet: nothing is started"),
        (dict.fromkeys(SHAPE), "· not answered yet: nothing is started"),
        (SHAPE | {"head": "ray stop"}, "✘ nothing is started: head: a command begins with `ray start`"),
    ],
)
def test_nothing_to_start(exercise, home, capsys, answer, said):
    assert exercise.try_out("ex01.q1_run", answer) is None
    assert capsys.readouterr().out == f"{said}\n"
    assert exercise.started == [] and not list(home.glob("evidence*"))


def test_a_shape_that_does_not_come_up_is_said_and_not_kept(exercise, home, monkeypatch, capsys):
    def refused(hosts, plan):
        raise CourseError("`ray start` ended with status 1.", "Mend it.")

    monkeypatch.setattr(lab, "try_out", refused)
    assert exercise.try_out("ex01.q1_run", SHAPE) is None
    assert capsys.readouterr().out == "✘ `ray start` ended with status 1. Mend it.\n"
    assert not list(home.glob("evidence*"))


def test_commands_are_put_together_from_what_was_read():
    offer = {"resources": {"CPU": 4, "GPU": 0, "fast_disk": 1}, "labels": {"zone": "a"}}
    command = shape.start_command("disk-1", offer, None)
    assert "ray start --head --include-dashboard=false --num-cpus=4 --num-gpus=0" in command
    assert """'--resources={"fast_disk": 1}' --labels=zone=a,course-host=disk-1 --object-store""" in command

"""What of `Lab` needs no hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import lab, state


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


@pytest.mark.parametrize(("count", "text"), [(0, "0 hosts"), (1, "1 host"), (2, "2 hosts")])
def test_many(count, text):
    assert lab._many(count, "host", "hosts") == text

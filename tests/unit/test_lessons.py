"""What each lesson says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import lessons
from helpers.errors import CourseError

HEADER = {
    "id": "01",
    "title": "Anatomy",
    "minutes": 30,
    "run_minutes": 3,
    "capabilities": [],
    "rows": ["0.4"],
    "memory_gib": 2,
    "creates": "three hosts",
}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lessons of a made-up course: 00 and 01."""
    monkeypatch.setattr(lessons, "course_root", lambda: tmp_path)
    (tmp_path / "lessons").mkdir()
    for id in ("01", "00"):
        write(tmp_path, f"{id}_lesson", json.dumps({"metadata": {"course": {**HEADER, "id": id}}}))
    write(tmp_path, "notes", "not a lesson")
    return tmp_path


def write(course: Path, stem: str, text: str) -> None:
    (course / "lessons" / f"{stem}.ipynb").write_text(text)


def test_a_lesson(course):
    assert lessons.lesson("01") == lessons.Lesson(**HEADER)


def test_all_in_their_order(course):
    assert [lesson.id for lesson in lessons.lessons()] == ["00", "01"]


@pytest.mark.parametrize("id", ["02", "1", "", "../01"])
def test_no_such_lesson(course, id):
    with pytest.raises(CourseError, match=r"There is no lesson '.*'\. Use one of: 00, 01\.$"):
        lessons.lesson(id)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"metadata": {}}',
        json.dumps({"metadata": {"course": {"id": "01"}}}),
        json.dumps({"metadata": {"course": {**HEADER, "colour": "red"}}}),
    ],
)
def test_a_lesson_that_was_spoilt(course, text):
    write(course, "01_lesson", text)
    with pytest.raises(CourseError, match=r"01_lesson\.ipynb cannot be read as a lesson: .*git checkout -- lessons/01"):
        lessons.lesson("01")


def test_the_lessons_of_this_course():
    assert all(lesson.memory_gib > 0 and lesson.creates for lesson in lessons.lessons())


def test_what_an_exercise_says_of_itself(course):
    folder = course / "exercises" / "ex01"
    folder.mkdir(parents=True)
    (folder / "ex01.ipynb").write_text(json.dumps({"metadata": {"course": {**HEADER, "id": "ex01"}}}))
    assert (lessons.exercise("ex01").id, lessons.exercise("ex01").memory_gib) == ("ex01", 2)
    with pytest.raises(CourseError, match="no exercise 'ex02'. The exercises are: ex01"):
        lessons.exercise("ex02")
    (folder / "ex01.ipynb").write_text("{}")
    with pytest.raises(CourseError, match="course reset ex01"):
        lessons.exercise("ex01")

"""`evidence.jsonl`: what a run adds stays, accidents to the file are noticed, and nothing in it raises."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import state
from helpers.errors import CourseError
from helpers.grading import evidence
from helpers.grading.evidence import NotRunYet

ID = "ex01.q1_run"
SEEN = {"ray": "2.60.0", "seconds": 3.5, "ran": {"serve": [{"host": "gpu-1", "ray_node": "ab"}]}}


def plan(number: int) -> dict:
    return {"hosts": {"head": {"resources": {"CPU": number}, "labels": {}}}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / evidence.NAME


def of(path: Path, number: int) -> evidence.Sighting:
    return evidence.in_file(path)(ID, plan(number))


def test_what_was_added_is_read(path):
    for number in (1, 2, 1):
        evidence.add(path, ID, plan(number), SEEN | {"seconds": number})
    records = evidence.read(path).records
    assert [record.plan for record in records] == [plan(1), plan(2), plan(1)]
    assert {(one.exercise, one.question, one.fault) for one in records} == {("ex01", "q1_run", "")}
    found = of(path, 2)
    assert (found.plan, found.seen, found.by) == (plan(2), SEEN | {"seconds": 2}, "self-reported")
    assert list(path.parent.iterdir()) == [path], "no lock and no part is left"


def test_the_newest_run_of_an_answer_counts(path):
    for seconds in (1, 9):
        evidence.add(path, ID, plan(1), SEEN | {"seconds": seconds})
    assert of(path, 1).seen["seconds"] == 9


def test_each_line_knows_the_one_before(path):
    for number in (1, 2):
        evidence.add(path, ID, plan(number), SEEN)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["before"] == "" and len(second["before"]) == 64 and first["version"] == evidence.VERSION
    assert datetime.fromisoformat(first["at"]).tzinfo


@pytest.mark.parametrize("there", ["", "other question", "other answer"])
def test_not_run_yet(path, there):
    if there == "other question":
        evidence.add(path, "ex01.q9", plan(1), SEEN)
    elif there == "other answer":
        evidence.add(path, ID, plan(2), SEEN)
    with pytest.raises(NotRunYet) as nothing:
        of(path, 1)
    assert ("of another answer than this: run the cell above again" in str(nothing.value)) == (there == "other answer")
    assert bool(str(nothing.value)) == (there == "other answer")


def edit(path: Path, number: int, **fields: object) -> None:
    """Change a line by hand, with care for neither digest."""
    lines = path.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | fields)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (lambda path: edit(path, 1, seen={}), ["", "after it was written", "beside"]),
        (lambda path: edit(path, 2, at="2026-01-01T00:00:00+00:00"), ["", "", "after it was written"]),
        (lambda path: path.write_text("".join(path.read_text().splitlines(True)[::2])), ["beside", "beside"]),
        (lambda path: path.write_text("".join(path.read_text().splitlines(True)[::-1])), ["beside"] * 3),
        (lambda path: path.write_text("".join(path.read_text().splitlines(True)[1:])), ["", ""]),
    ],
    ids=["edited", "last edited", "cut out", "turned around", "oldest gone"],
)
def test_a_file_that_was_changed(path, change, faults):
    for number in (1, 2, 3):
        evidence.add(path, ID, plan(number), SEEN)
    change(path)
    found = [record.fault for record in evidence.read(path).records]
    assert len(found) == len(faults)
    for fault, wanted in zip(found, faults, strict=True):
        assert wanted in fault and bool(wanted) == bool(fault), found


def test_a_changed_run_is_no_run_and_a_new_one_mends_it(path):
    evidence.add(path, ID, plan(1), SEEN)
    edit(path, 0, seen={"ran": {}})
    with pytest.raises(AssertionError, match="does not hold together: .*changed after it was written; run the cell"):
        of(path, 1)
    evidence.add(path, ID, plan(1), SEEN)
    assert of(path, 1).seen == SEEN


def rewritten(path: Path, **fields: object) -> None:
    """The last line with other fields, and a digest that is right: what somebody does who has read the source."""
    one = json.loads(path.read_text().splitlines()[-1]) | fields
    one.pop("digest")
    path.write_text(json.dumps(one | {"digest": evidence._digest(one)}) + "\n")


@pytest.mark.parametrize(
    ("at", "fault"),
    [
        ((datetime.now().astimezone() + timedelta(days=1)).isoformat(), "its date is still to come"),
        ("2026-01-01T00:00:00", "its date has no offset"),
        ("yesterday", "its date cannot be read"),
    ],
)
def test_dates(path, at, fault):
    evidence.add(path, ID, plan(1), SEEN)
    rewritten(path, at=at)
    assert fault in evidence.read(path).records[0].fault


def test_a_last_line_that_is_not_whole(path):
    for number in (1, 2):
        evidence.add(path, ID, plan(number), SEEN)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    found = evidence.read(path)
    assert [record.fault for record in found.records] == [""]
    assert found.remarks == (
        "The last line of evidence.jsonl is not whole, as after a run that was cut off; it does not count.",
    )
    with pytest.raises(NotRunYet, match="The last line .* is not whole"):
        of(path, 2)
    evidence.add(path, ID, plan(3), SEEN)
    found = evidence.read(path)
    assert [(record.plan, record.fault) for record in found.records] == [(plan(1), ""), (plan(3), "")]
    assert found.remarks == ("Line 2 of evidence.jsonl cannot be read, and does not count.",)
    assert path.read_bytes().startswith(whole[:-40] + b"\n"), "what was there stays as it was"


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_to_the_file_reading_it_raises_nothing_and_a_run_after_it_counts(path, data):
    path.unlink(missing_ok=True)
    for number in range(data.draw(st.integers(0, 3))):
        evidence.add(path, ID, plan(number), SEEN)
    content = bytearray(path.read_bytes() if path.exists() else b"")
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 200)))
        content[start:end] = data.draw(st.binary(max_size=60) | st.sampled_from([b"\n", b"}", b"1e999", b'"\\ud800"']))
    path.write_bytes(content)
    before = evidence.read(path)
    evidence.add(path, ID, plan(99), SEEN)
    after = evidence.read(path)
    assert (after.records[-1].plan, after.records[-1].fault) == (plan(99), "")
    assert of(path, 99).seen == SEEN
    assert len(before.records) <= len(after.records)


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_line_of_other_types(path, value):
    evidence.add(path, ID, plan(1), SEEN)
    for field in ("version", "exercise", "question", "at", "plan", "seen", "before", "digest"):
        line = json.loads(path.read_text().splitlines()[0]) | {field: value}
        other = path.with_name("other.jsonl")
        other.write_text(json.dumps(line) + "\n")
        assert all(
            record.fault or field in ("exercise", "question", "before") for record in evidence.read(other).records
        )
    path.unlink()


@pytest.mark.parametrize(
    "content", [b"[" * 100_000 + b"\n", b"\xff\xfe\n", b'{"version": 1}\n', b"NaN\n", b"\0" * 1000]
)
def test_hostile_content(path, content):
    path.write_bytes(content)
    assert evidence.read(path).records == () and len(evidence.read(path).remarks) == 1


def test_a_huge_file_is_not_read(path):
    with open(path, "wb") as file:
        file.truncate(10**9)
    assert evidence.read(path).records == () and "larger than any" in evidence.read(path).remarks[0]


def test_a_folder_of_that_name(path):
    path.mkdir()
    assert "is a folder" in evidence.read(path).remarks[0]
    with pytest.raises(CourseError, match="cannot be kept in .*Is a directory"):
        evidence.add(path, ID, plan(1), SEEN)


def test_the_size_is_bounded_and_the_newest_stay(path, monkeypatch):
    monkeypatch.setattr(evidence, "MAX_BYTES", 20_000)
    for number in range(100):
        evidence.add(path, ID, plan(number), SEEN)
        assert path.stat().st_size <= 20_000
    records = evidence.read(path).records
    assert [record.plan for record in records] == [plan(number) for number in range(100 - len(records), 100)]
    assert len(records) > 5 and {record.fault for record in records} == {""}
    assert list(path.parent.iterdir()) == [path]


def test_a_run_that_is_too_long_to_keep(path):
    with pytest.raises(CourseError, match="too long to be kept"):
        evidence.add(path, ID, plan(1), {"x": "y" * evidence.MAX_RECORD})
    assert path.read_bytes() == b""


WRITER = """
import sys
from pathlib import Path
from helpers.grading import evidence
evidence.MAX_BYTES = int(sys.argv[3])
for number in range(20):
    evidence.add(Path(sys.argv[1]), "ex01.q1_run", {"hosts": {}, "by": sys.argv[2], "n": number}, {})
"""


@pytest.mark.parametrize("limit", [1_000_000, 8_000])
def test_several_write_at_once(path, limit):
    commands = [[sys.executable, "-c", WRITER, str(path), name, str(limit)] for name in "abcd"]
    writers = [subprocess.Popen(command, cwd=state.course_root()) for command in commands]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = evidence.read(path)
    assert not found.remarks and {record.fault for record in found.records} == {""}
    if limit > 100_000:
        assert {(one.plan["by"], one.plan["n"]) for one in found.records} == {(b, n) for b in "abcd" for n in range(20)}


def test_a_folder_that_is_gone(tmp_path):
    path = tmp_path / "gone" / evidence.NAME
    with pytest.raises(CourseError, match="cannot be kept in .*gone.*No such file.* Make that folder writable"):
        evidence.add(path, ID, plan(1), SEEN)
    assert evidence.read(path) == evidence.Evidence()


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_disk_that_cannot_be_written(path, monkeypatch, code):
    evidence.add(path, ID, plan(1), SEEN)
    before = path.read_bytes()

    def refused(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        place = (os, "fsync") if code == errno.ENOSPC else (evidence, "open")
        patch.setattr(*place, refused, raising=False)
        with pytest.raises(CourseError, match=os.strerror(code)):
            evidence.add(path, ID, plan(2), SEEN)
    assert path.read_bytes().startswith(before)


def test_a_lock_that_another_program_keeps(path, monkeypatch):
    evidence.add(path, ID, plan(1), SEEN)
    monkeypatch.setattr(state, "LOCK_TIMEOUT_S", 0.05)
    with open(path, "a") as other:
        assert state.try_lock(other)
        with pytest.raises(CourseError, match="has kept evidence.jsonl locked"):
            evidence.add(path, ID, plan(2), SEEN)


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "_folder", [])
    monkeypatch.chdir(tmp_path)
    assert evidence.place() == tmp_path / "evidence.jsonl"
    evidence.keep_in(tmp_path / "a")
    evidence.keep_in(tmp_path / "b")
    assert evidence.place() == tmp_path / "b" / "evidence.jsonl"


def test_a_grader_who_runs_it_does_not_look_at_the_file(path, monkeypatch):
    evidence.add(path, ID, plan(1), SEEN)
    monkeypatch.setattr(evidence, "read", None)
    asked = []
    found = evidence.by_running(lambda plan: asked.append(plan) or {"ran": {}})(ID, plan(1))
    assert (found.by, found.seen, asked) == ("verified", {"ran": {}}, [plan(1)])

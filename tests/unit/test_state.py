import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import state
from helpers.errors import CourseError

HAMMER = """
import sys
from helpers import state
def add(progress):
    progress["hints"]["all"] = progress["hints"].get("all", 0) + 1
    progress["hints"][sys.argv[1]] = progress["hints"].get(sys.argv[1], 0) + 1
print("started", flush=True)
for _ in range(int(sys.argv[2])):
    state.update_progress(add)
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ray-course"


def count_hint(id):
    return lambda progress: progress["hints"].update({id: progress["hints"].get(id, 0) + 1})


def hammer(name, times):
    command = [sys.executable, "-c", HAMMER, name, str(times)]
    env = {**os.environ, "PYTHONPATH": str(state.course_root())}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def test_directories_follow_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with space"))
    assert state.state_dir() == tmp_path / "ray-course"
    assert state.cache_dir() == tmp_path / "with space" / "ray-course"


@pytest.mark.parametrize("value", [None, "", "relative/path"])
def test_without_xdg_they_are_in_the_home_directory(monkeypatch, tmp_path, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable) if value is None and variable in os.environ else monkeypatch.setenv(
            variable, value or ""
        )
    assert state.state_dir() == tmp_path / ".local/state/ray-course"
    assert state.cache_dir() == tmp_path / ".cache/ray-course"


def test_course_root_is_the_checkout():
    assert (state.course_root() / "helpers" / "state.py").is_file()


def test_reading_makes_nothing(home):
    progress = state.read_progress()
    assert progress == {"version": 1, "predictions": {}, "checks": {}, "hints": {}, "quizzes": {}}
    assert not home.exists()


def test_a_change_is_read_back_and_leaves_no_temporary_file(home):
    state.update_progress(count_hint("01.c1"))
    assert state.read_progress()["hints"] == {"01.c1": 1}
    assert sorted(file.name for file in home.iterdir()) == ["progress.json", "progress.json.lock"]


def test_a_change_of_nothing_writes_nothing(home):
    state.update_progress(count_hint("01.c1"))
    before = state.progress_path().stat()
    state.update_progress(lambda progress: None)
    assert state.progress_path().stat().st_ino == before.st_ino


def test_several_processes_lose_nothing():
    processes = [hammer(name, 60) for name in "abcd"]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert state.read_progress()["hints"] == {"all": 240, "a": 60, "b": 60, "c": 60, "d": 60}


def test_a_killed_process_leaves_a_sound_file_and_no_lock():
    for _ in range(3):
        process = hammer("a", 1_000_000)
        process.stdout.readline()
        while not state.read_progress()["hints"].get("a"):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        hints = state.update_progress(count_hint("mine"))["hints"]
        assert hints["a"] == hints["all"]
    assert hints["mine"] == 3


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b"[" * 100_000,
        b'{"checks": []}',
        b'{"checks": {"01.c1": {"score": "high"}}}',
        b'{"hints": {"01.c1": "two"}}',
        b'{"predictions": {"01.p1": 2}}',
    ],
)
def test_a_corrupt_file_is_kept_aside_and_said_once(home, capfd, text):
    home.mkdir()
    state.progress_path().write_bytes(text)
    assert state.read_progress()["hints"] == {}
    state.update_progress(count_hint("01.c1"))
    assert state.read_progress()["hints"] == {"01.c1": 1}
    [kept] = home.glob("progress.json.corrupt-*")
    assert kept.read_bytes() == text
    said = capfd.readouterr()
    assert said.out.count("\n") == 1 and str(kept) in said.out
    assert said.err == ""


def test_two_corrupt_files_in_one_second_are_both_kept(home, capfd):
    home.mkdir()
    for text in ("first{", "second{", "third{"):
        state.progress_path().write_text(text)
        state.update_progress(count_hint("01.c1"))
    assert {file.read_text() for file in home.glob("progress.json.corrupt-*")} == {"first{", "second{", "third{"}


def test_a_file_of_a_newer_course_is_left_alone(home):
    home.mkdir()
    state.progress_path().write_text('{"version": 2, "checks": "another form"}')
    with pytest.raises(CourseError, match="format 2"):
        state.read_progress()
    with pytest.raises(CourseError, match="format 2"):
        state.update_progress(count_hint("01.c1"))
    assert json.loads(state.progress_path().read_text())["checks"] == "another form"


def test_a_state_directory_that_is_none(monkeypatch, tmp_path):
    blocker = tmp_path / "file"
    blocker.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocker))
    for attempt in (state.read_progress, lambda: state.update_progress(count_hint("01.c1"))):
        with pytest.raises(CourseError, match="cannot be read or written: Not a directory"):
            attempt()


def test_a_full_disk_keeps_the_old_file(home, monkeypatch):
    state.update_progress(count_hint("01.c1"))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CourseError, match="No space left"):
        state.update_progress(count_hint("01.c1"))
    assert state.read_progress()["hints"] == {"01.c1": 1}
    assert not list(home.glob("*.tmp"))


def test_a_change_that_raises_changes_nothing():
    state.update_progress(count_hint("01.c1"))

    def change(progress):
        progress["hints"].clear()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        state.update_progress(change)
    assert state.read_progress()["hints"] == {"01.c1": 1}


def test_a_lock_that_is_never_given_back_is_said(home, monkeypatch):
    monkeypatch.setattr(state, "LOCK_TIMEOUT_S", 0.05)
    home.mkdir()
    with state._locked(state.progress_path()), pytest.raises(CourseError, match="kept progress.json locked"):
        state.update_progress(count_hint("01.c1"))


def test_reset_keeps_a_dated_copy(home):
    assert state.reset_progress() is None
    state.update_progress(count_hint("01.c1"))
    kept = state.reset_progress()
    assert isinstance(kept, Path) and kept.name.startswith("progress.json.kept-")
    assert json.loads(kept.read_text())["hints"] == {"01.c1": 1}
    assert state.read_progress()["hints"] == {}

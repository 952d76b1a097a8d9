"""Where the course keeps things, and JSON files that two notebooks may change at once without loss.

The progress file, `progress.json` in the state directory:

    version      1
    predictions  {"01.p1": {"answer": 2, "at": when}}                          the first answer stays
    checks       {"01.c1": {"score": best, "latest": …, "points": …, "at": when, "tries": 3}}
    hints        {"01.c1": how many were shown}
    quizzes      {"01.q1": {"answer": the first, "right": ever right, "at": when, "tries": 2}}

Times are local, ISO 8601 with the offset from UTC, to the second.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from helpers.errors import CourseError

PROGRESS_VERSION = 1
LOCK_TIMEOUT_S = 10.0  # a change takes milliseconds, so a lock held this long belongs to a program that hangs

# what each entry of a section of progress.json holds; readers rely on it, so anything else counts as corrupt
_NUMBER = (int, float)
_FIELDS = {
    "predictions": {"answer": (int, float, str), "at": str},
    "checks": {"score": _NUMBER, "latest": _NUMBER, "points": _NUMBER, "at": str, "tries": int},
    "quizzes": {"answer": str, "right": bool, "at": str, "tries": int},
}


def state_dir() -> Path:
    """The directory of what must not be lost, such as the learner's progress. It may not exist yet."""
    return _xdg("XDG_STATE_HOME", "~/.local/state") / "ray-course"


def make_state_dir(*parts: str) -> Path:
    """The state directory, or a directory in it, made if it is not there.

    Raises:
        CourseError: if it cannot be made.
    """
    directory = state_dir().joinpath(*parts)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CourseError(
            f"{directory} cannot be made: {error.strerror}.",
            "Set XDG_STATE_HOME to a directory that can be written.",
        ) from None
    return directory


def cache_dir() -> Path:
    """The directory of what can be made again. It may not exist yet."""
    return _xdg("XDG_CACHE_HOME", "~/.cache") / "ray-course"


def course_root() -> Path:
    """The checkout of the course: the directory that holds `helpers/` and `lessons/`."""
    return Path(__file__).resolve().parent.parent


def now() -> str:
    """The time in the form that the progress file uses, such as `2026-11-29T18:44:05+01:00`."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def is_grading() -> bool:
    """Whether nbgrader runs this notebook (Validate or autograde). Nobody's progress is read or written then."""
    return bool(os.environ.get("NBGRADER_EXECUTION"))


def read_json(path: Path, is_sound: Callable[[dict], bool] = lambda data: True) -> dict:
    """The object in a JSON file; an empty one if there is no file.

    Args:
        path: the file.
        is_sound: whether an object has the shape that its readers rely on. A file that fails this, or that is no JSON
            object at all, is moved aside (one sentence says so) and reads as empty.

    Raises:
        CourseError: if the file cannot be read or moved.
    """
    data = _load(path, is_sound)
    return update_json(path, lambda data: None, is_sound) if data is None else data


def update_json(
    path: Path, change: Callable[[dict], None], is_sound: Callable[[dict], bool] = lambda data: True
) -> dict:
    """Change a JSON file so that no other process's change is lost, and a crash leaves the old file or the new one.

    Args:
        path: the file; made, with its directories, if it is not there.
        change: gets the object that the file holds now, and changes it in place. If it changes nothing, nothing is
            written.
        is_sound: as in `read_json`.

    Returns:
        The object after the change.

    Raises:
        CourseError: if the directory cannot be written, or another program holds the lock for `LOCK_TIMEOUT_S`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            data = _load(path, is_sound)
            if data is None:
                _move_aside(path)
                data = {}
            before = json.dumps(data)
            change(data)
            after = json.dumps(data, indent=1, ensure_ascii=False)
            if json.dumps(data) != before:
                _replace(path, after)
            return data
    except OSError as error:
        raise _unusable(path, error) from None


def progress_path() -> Path:
    """The file of the learner's predictions, scores, hints and quiz answers. It may not exist yet."""
    return state_dir() / "progress.json"


def read_progress() -> dict:
    """What the learner has done, with every section present (see the top of this module)."""
    return _with_sections(read_json(progress_path(), _is_progress))


def update_progress(change: Callable[[dict], None]) -> dict:
    """`update_json` for the progress file; `change` gets it with every section present."""
    return update_json(progress_path(), lambda data: change(_with_sections(data)), _is_progress)


def reset_progress() -> Path | None:
    """Begin again with no progress. The old file is kept under a dated name.

    Returns:
        Where the old file is kept, or None if there was none.

    Raises:
        CourseError: if the state directory cannot be written.
    """
    path = progress_path()
    if not path.exists():
        return None
    try:
        with _locked(path):
            kept = _dated(path, "kept")
            os.replace(path, kept)
            return kept
    except OSError as error:
        raise _unusable(path, error) from None


def _xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # the XDG specification: a relative path is invalid and is to be ignored
    return Path(value) if os.path.isabs(value) else Path(default).expanduser()


def _load(path: Path, is_sound: Callable[[dict], bool]) -> dict | None:
    """The object in the file, {} without a file, None if it is corrupt."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unusable(path, error) from None
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and is_sound(data) else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # a file of its own: the data file is replaced, and a lock on a replaced file guards nothing
    with open(path.with_name(path.name + ".lock"), "a") as lock:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not try_lock(lock):
            if time.monotonic() > deadline:
                raise CourseError(
                    f"Another program has kept {path.name} locked for {LOCK_TIMEOUT_S:g} s.",
                    "Interrupt or restart the kernel of the other notebook, then run this cell again.",
                )
            time.sleep(0.005)
        yield  # closing the file gives the lock back, and so does the death of this process


def try_lock(file: IO) -> bool:
    """Take the lock of an open file if nobody has it, until the file is closed; returns whether it was had."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, at no moment anybody else; a crash leaves the old file or the new."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")  # one name will do: only who holds the lock comes here
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())  # without this a power cut can leave the new name on an empty file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _move_aside(path: Path) -> None:
    kept = _dated(path, "corrupt")
    os.replace(path, kept)
    print(f"{path.name} could not be understood; it is kept as {kept}, and the course goes on with an empty one.")


def _dated(path: Path, why: str) -> Path:
    """A name beside `path` that is not taken: `progress.json.corrupt-20261129-184405`."""
    stamp = f"{path.name}.{why}-{datetime.now():%Y%m%d-%H%M%S}"
    names = (path.with_name(stamp + (f"-{n}" if n > 1 else "")) for n in range(1, 10_000))
    return next(name for name in names if not name.exists())


def _is_progress(data: dict) -> bool:
    _refuse_newer(data)
    hints = data.get("hints", {})
    return (
        isinstance(hints, dict)
        and all(isinstance(count, int) for count in hints.values())
        and all(_holds(data.get(section, {}), fields) for section, fields in _FIELDS.items())
    )


def _holds(section: object, fields: dict) -> bool:
    return isinstance(section, dict) and all(
        isinstance(entry, dict) and all(isinstance(entry.get(field), kind) for field, kind in fields.items())
        for entry in section.values()
    )


def _refuse_newer(data: dict) -> None:
    version = data.get("version", PROGRESS_VERSION)
    if isinstance(version, int) and version > PROGRESS_VERSION:
        raise CourseError(
            f"The progress file has format {version}; this copy of the course knows formats up to {PROGRESS_VERSION}.",
            "Update this copy of the course, or keep the two apart by setting XDG_STATE_HOME.",
        )


def _with_sections(data: dict) -> dict:
    data.setdefault("version", PROGRESS_VERSION)
    for section in ("predictions", "checks", "hints", "quizzes"):
        data.setdefault(section, {})
    return data


def _unusable(path: Path, error: OSError) -> CourseError:
    return CourseError(
        f"{path} cannot be read or written: {error.strerror or error}.",
        "Make its directory writable and free some space, or set XDG_STATE_HOME to a directory that is.",
    )

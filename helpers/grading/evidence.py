"""`evidence.jsonl` in an exercise's folder: what the learner's own run of a live question has seen.

One JSON object a line, added at the end, never changed:

    version    1
    exercise   "ex01"
    question   "q1_run"
    at         when, local, ISO 8601 with the offset from UTC
    plan       what was started and run: the answer, as the question reads it
    seen       what was seen: the version of Ray, what each Ray node declared, which of them ran which task, seconds
    before     SHA-256 of the line before, as it stands in the file; empty for the first
    digest     SHA-256 of all the above

The digests tell a file that was cut or edited by accident, or without care. They are no protection: whoever reads this
can write a file that is consistent. So what evidence gives is marked "self-reported", and a grader who wants to know
uses `--live`, which does not look at it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from helpers import state
from helpers.errors import CourseError

NAME = "evidence.jsonl"
VERSION = 1
MAX_BYTES = 1_000_000  # of the file; a run takes about 3 kB, and the oldest make room for new ones
MAX_RECORD = 50_000  # bytes of one line
SELF_REPORTED, VERIFIED = "self-reported", "verified"
AGAIN = "run the cell above again"

Plan = Mapping[str, Any]
_folder: list[Path] = []  # where the notebook is, once a lab has changed the working directory


class NotRunYet(Exception):
    """Nothing was seen of this answer so far; the text says what there is instead, and may be empty."""


@dataclass(frozen=True)
class Record:
    """One line that can be read.

    Attributes:
        fault: why it does not count, as a clause; empty if it does.
    """

    exercise: str
    question: str
    at: str
    plan: Plan
    seen: Mapping[str, Any]
    fault: str = ""


@dataclass(frozen=True)
class Evidence:
    """What a file holds.

    Attributes:
        records: in the order in which they were written.
        remarks: a sentence on each thing in the file that could not be read.
    """

    records: tuple[Record, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sighting:
    """What the cases of a live question judge.

    Attributes:
        plan: what was started and run.
        seen: what was seen then.
        by: `SELF_REPORTED` or `VERIFIED`.
    """

    plan: Plan
    seen: Mapping[str, Any]
    by: str


# from "ex01.q1_run" and the plan of an answer to what was seen of it.
# It raises NotRunYet, or AssertionError with one sentence if what there is does not count
Witness = Callable[[str, Plan], Sighting]


def keep_in(folder: Path) -> None:
    """Say where the notebook is; without it that is the working directory."""
    _folder[:] = [folder]


def place() -> Path:
    """The learner's own file. It may not exist yet."""
    return (_folder[0] if _folder else Path.cwd()) / NAME


# ---- writing


def add(path: Path, id: str, plan: Plan, seen: Mapping[str, Any]) -> None:
    """Add what a run has seen, as the last line of the file. Several notebooks may do so at once.

    Args:
        id: of the question, such as "ex01.q1_run".

    Raises:
        CourseError: the file cannot be written, or another program holds it.
    """
    exercise, _, question = id.partition(".")
    body = {"version": VERSION, "exercise": exercise, "question": question, "at": state.now()}
    body |= {"plan": plan, "seen": seen}
    try:
        with _locked(path) as file:
            _append(path, file, body)
    except OSError as error:
        raise CourseError(
            f"What was seen cannot be kept in {path}: {error.strerror or error}.",
            "Make that folder writable and free some space, then run the cell again.",
        ) from None


def _append(path: Path, file: Any, body: dict[str, Any]) -> None:
    file.seek(0)
    data = file.read()
    lines = data.split(b"\n")
    last = next((line for line in reversed(lines) if line), b"")
    body["before"] = _sha(last) if last else ""
    line = _line({**body, "digest": _digest(body)})
    if len(line) > MAX_RECORD:
        raise CourseError(f"A run of {len(line)} bytes is too long to be kept.", "Use shorter names in your answer.")
    if len(data) + len(line) > MAX_BYTES:
        _make_room(path, lines, line)
        return
    # a write that was cut off leaves half a line: that stays as it is, and this one begins anew
    file.write((b"\n" if data and not data.endswith(b"\n") else b"") + line + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _make_room(path: Path, lines: list[bytes], line: bytes) -> None:
    """Replace the file in one step by its newest lines, a quarter of what may be there, and the new one."""
    kept, size = [line], len(line)
    for old in reversed([one for one in lines if one]):
        size += len(old)
        if size > MAX_BYTES // 4:
            break
        kept.insert(0, old)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(b"\n".join(kept) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _locked(path: Path) -> Any:
    """The file, open, with its lock, which closing it gives back."""
    deadline = time.monotonic() + state.LOCK_TIMEOUT_S
    while True:
        file = open(path, "a+b")  # noqa: SIM115 (it is handed out)
        try:
            if _taken(file, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()
        if time.monotonic() > deadline:
            raise CourseError(
                f"Another program has kept {path.name} locked for {state.LOCK_TIMEOUT_S:g} s.",
                "Interrupt or restart the kernel of the other notebook, then run this cell again.",
            )
        time.sleep(0.01)


def _taken(file: Any, path: Path) -> bool:
    """Whether the lock is ours, and the file still the one of that name: making room replaces it."""
    return state.try_lock(file) and path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino


# ---- reading


def read(path: Path) -> Evidence:
    """What a file holds; nothing is raised for what is in it, whoever wrote it. A file that is not there is empty.

    Raises:
        CourseError: it is there and cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Evidence()
    except IsADirectoryError:
        return Evidence(remarks=(f"{path.name} is a folder, and no file.",))
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror}.", "Make it readable, then try again.") from None
    if len(data) > MAX_BYTES:
        return Evidence(remarks=(f"{path.name} is larger than any that a run writes, and was not read.",))
    lines = [line for line in data.split(b"\n") if line]
    parsed = [_parsed(line) for line in lines]
    remarks = [_unreadable(number, len(lines)) for number, one in enumerate(parsed, 1) if one is None]
    linked = [_is_linked(lines[number - 1 : number], one) for number, one in enumerate(parsed)]
    records = []
    for number, one in enumerate(parsed):
        if one is not None:
            # where a link is broken, the line before it was changed, or this one: neither can be told from the other
            broken = not linked[number] or not all(linked[number + 1 : number + 2])
            records.append(_record(one, broken))
    return Evidence(tuple(records), tuple(remarks))


def _unreadable(number: int, count: int) -> str:
    if number == count:
        return f"The last line of {NAME} is not whole, as after a run that was cut off; it does not count."
    return f"Line {number} of {NAME} cannot be read, and does not count."


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The object of a line, if it has the fields of a record; None otherwise."""
    if len(line) > MAX_RECORD:
        return None
    try:
        one = json.loads(line, parse_constant=_refused)
        _line(one)  # 1e999 is read as a number that cannot be written
    except (ValueError, RecursionError):
        return None
    fields = {"exercise": str, "question": str, "at": str, "before": str, "digest": str, "plan": dict, "seen": dict}
    is_record = isinstance(one, dict) and all(isinstance(one.get(name), kind) for name, kind in fields.items())
    return one if is_record and one.get("version") == VERSION else None


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _is_linked(before: list[bytes], one: dict[str, Any] | None) -> bool:
    """Whether a line says of the one before it what that is. Of the first nobody knows: older ones made room."""
    return one is None or not before or one["before"] == _sha(before[0])


def _record(one: dict[str, Any], broken: bool) -> Record:
    fault = "it does not belong to the lines beside it" if broken else ""
    if one["digest"] != _digest({name: value for name, value in one.items() if name != "digest"}):
        fault = "it was changed after it was written"
    return Record(one["exercise"], one["question"], one["at"], one["plan"], one["seen"], fault or _odd_time(one["at"]))


def _odd_time(at: str) -> str:
    try:
        when = datetime.fromisoformat(at)
    except ValueError:
        return "its date cannot be read"
    if when.tzinfo is None:
        return "its date has no offset from UTC"
    return "its date is still to come" if when > datetime.now(UTC) + timedelta(minutes=5) else ""


# ---- the two witnesses


def in_file(path: Path) -> Witness:
    """A witness that looks into a learner's file: for the newest run of just this answer."""

    def look(id: str, plan: Plan) -> Sighting:
        evidence = read(path)
        about = [one for one in evidence.records if f"{one.exercise}.{one.question}" == id]
        mine = [one for one in about if one.plan == plan]
        good = [one for one in mine if not one.fault]
        if good:
            return Sighting(plan, good[-1].seen, SELF_REPORTED)
        if mine:
            raise AssertionError(
                f"{NAME} does not hold together: of its run at {mine[-1].at}, {mine[-1].fault}; {AGAIN}"
            )
        said = [f"{NAME} knows of a run at {about[-1].at}, and of another answer than this: {AGAIN}"] if about else []
        raise NotRunYet(" ".join([*said, *evidence.remarks]))

    return look


def by_running(run: Callable[[Plan], Mapping[str, Any]]) -> Witness:
    """A witness that starts an answer on hosts of the grader's own; the learner's file is not looked at."""

    def look(id: str, plan: Plan) -> Sighting:
        return Sighting(plan, run(plan), VERIFIED)

    return look


# ---- digests


def _line(one: Mapping[str, Any]) -> bytes:
    return json.dumps(one, sort_keys=True, allow_nan=False).encode()


def _digest(body: Mapping[str, Any]) -> str:
    return _sha(_line(body))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

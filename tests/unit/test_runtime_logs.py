"""A container's log on disk, and the copies for those who are attached."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from helpers.cluster.embedded.runtime.logs import BEHIND, PART, LogFile, Tap, split, stamp


def no_complaint(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("data", "lines", "rest"),
    [
        (b"", [], b""),
        (b"a", [], b"a"),
        (b"a\n", [(b"F", b"a")], b""),
        (b"\n\nb", [(b"F", b""), (b"F", b"")], b"b"),
        (b"x" * PART, [], b"x" * PART),
        (b"x" * PART + b"\n", [(b"F", b"x" * PART)], b""),
        (b"x" * (PART + 1), [(b"P", b"x" * PART)], b"x"),
        (b"x" * (2 * PART + 1) + b"\n", [(b"P", b"x" * PART), (b"P", b"x" * PART), (b"F", b"x")], b""),
        (b"a\r\n", [(b"F", b"a\r")], b""),
    ],
)
def test_lines_and_parts(data: bytes, lines: list[tuple[bytes, bytes]], rest: bytes) -> None:
    assert split(data) == (lines, rest)


def test_times_are_rfc_3339_with_nanoseconds() -> None:
    assert stamp(1_795_991_474_000_159_849) == "2026-11-29T22:31:14.000159849Z"


def test_what_is_written(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "pod" / "0.log"), no_complaint)
    log.write("stdout", b"one\ntw")
    log.write("stderr", b"between\n")
    log.write("stdout", b"o\nunfinished")
    log.end("stdout")
    log.end("stderr")
    log.close()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z"
    lines = (tmp_path / "pod" / "0.log").read_text()
    expected = ["stdout F one", "stderr F between", "stdout F two", "stdout F unfinished"]
    assert re.sub(rf"^{time} ", "", lines, flags=re.MULTILINE).splitlines() == expected


def test_reopened_after_rotation(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "0.log"), no_complaint)
    log.write("stdout", b"old\nhal")
    (tmp_path / "0.log").rename(tmp_path / "0.log.1")
    log.reopen()
    log.write("stdout", b"f\n")
    log.close()
    assert (tmp_path / "0.log.1").read_text().endswith("F old\n")
    assert (tmp_path / "0.log").read_text().endswith("F half\n")


def test_a_log_that_cannot_be_opened_anew_stays_in_use(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "pod" / "0.log"), no_complaint)
    (tmp_path / "pod").rename(tmp_path / "moved")
    (tmp_path / "pod").write_text("in the way")
    with pytest.raises(OSError):
        log.reopen()
    log.write("stdout", b"still\n")
    log.close()
    assert (tmp_path / "moved" / "0.log").read_text().endswith("F still\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")
def test_a_full_disk_is_told_once() -> None:
    told: list[str] = []
    log = LogFile("/dev/full", told.append)
    for _ in range(3):
        log.write("stdout", b"lost\n")
    log.close()
    assert told == ["lines of /dev/full are lost: No space left on device"]


def test_without_a_log_nothing_is_kept() -> None:
    log = LogFile(None, no_complaint)
    log.write("stdout", b"x\n" * 10)
    log.end("stdout")
    log.reopen()
    log.close()


def test_a_reader_gets_everything() -> None:
    reader, writer = os.pipe()
    tap = Tap(writer)
    assert tap.write(b"one ") and tap.write(b"two")
    assert os.read(reader, 100) == b"one two"
    assert not tap.behind
    tap.close()
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_a_reader_that_is_gone_is_noticed() -> None:
    reader, writer = os.pipe()
    tap = Tap(writer)
    os.close(reader)
    assert not tap.write(b"x")
    tap.close()


def test_a_slow_reader_loses_what_is_too_much_and_is_told() -> None:
    reader, writer = os.pipe()
    tap = Tap(writer)
    block = b"x" * (BEHIND // 4)
    written = 0
    while written < 8 * BEHIND:
        assert tap.write(block)
        written += len(block)
    assert tap.behind
    os.set_blocking(reader, False)
    got = drain(reader, tap)
    assert tap.write(b"at last")
    got += drain(reader, tap)
    lost = int(
        re.search(rb"\n\[(\d+) bytes are left out here: they came faster than they were read\]\nat last$", got)[1]
    )
    assert got.count(b"x") + lost == written and lost > 0
    tap.close()
    os.close(reader)


def drain(reader: int, tap: Tap) -> bytes:
    got = b""
    while True:
        try:
            got += os.read(reader, 1 << 20)
        except BlockingIOError:
            assert tap.flush()
            if not tap.behind:
                try:
                    return got + os.read(reader, 1 << 20)
                except BlockingIOError:
                    return got

"""What a container writes: into its log file, in the form that the kubelet reads, and to those who are attached.

The form is that of the CRI (kubernetes/design-proposals-archive, node/kubelet-cri-logging.md): on each line a time, the
stream, F for a full line or P for a part of one, and the text.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress

PART = 16 * 1024  # bytes of a line's text; containerd's max_container_log_line_size
READ = 64 * 1024
PIPE = 1024 * 1024  # what a pipe to somebody attached is asked to hold
BEHIND = 1024 * 1024  # bytes that wait for somebody attached, beside what is in the pipe; more are lost


class LogFile:
    """A container's log on disk.

    A disk that is full loses lines, and says so once: a container must not stand still for its log.
    """

    def __init__(self, path: str | None, complain: Callable[[str], None]):
        self.path, self._complain, self._complained, self._fd = path, complain, False, -1
        self._part: dict[str, bytes] = {}
        self.reopen()

    def reopen(self) -> None:
        """Opens the file anew, because the old one was moved away.

        Raises:
            OSError: it cannot be opened; the old one stays in use.
        """
        if self.path is None:
            return
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        new = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self.close()
        self._fd = new

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, stream: str, data: bytes) -> None:
        """Takes what was read from a stream ("stdout", "stderr"): whole lines go to the file, the rest waits."""
        if self._fd < 0:
            return
        lines, rest = split(self._part.get(stream, b"") + data)
        self._part[stream] = rest
        self._append(stream, lines)

    def end(self, stream: str) -> None:
        """Nothing more comes from the stream: what waits is its last line."""
        if rest := self._part.pop(stream, b""):
            self._append(stream, [(b"F", rest)])

    def _append(self, stream: str, lines: list[tuple[bytes, bytes]]) -> None:
        if not lines or self._fd < 0:
            return
        start = f"{stamp(time.time_ns())} {stream} ".encode()
        data = b"".join([b"%s%s %s\n" % (start, tag, text) for tag, text in lines])
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                os.write(self._fd, data[written:])  # says why
            self._complained = False
        except OSError as error:
            if not self._complained:
                self._complain(f"lines of {self.path} are lost: {error.strerror}")
                self._complained = True


def split(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """(tag, text) of each line and of each full part of one, and what is left without an end."""
    *whole, rest = data.split(b"\n")
    lines = []
    for line in whole:
        while len(line) > PART:
            lines.append((b"P", line[:PART]))
            line = line[PART:]
        lines.append((b"F", line))
    while len(rest) > PART:
        lines.append((b"P", rest[:PART]))
        rest = rest[PART:]
    return lines, rest


def stamp(now_ns: int) -> str:
    """A time as RFC 3339 with nanoseconds, in UTC."""
    seconds, fraction = divmod(now_ns, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09d}Z"


class Tap:
    """A copy of one stream for somebody attached, through a pipe that never holds the container up.

    Attributes:
        fd: the pipe's end to write to; -1 when closed.
    """

    def __init__(self, fd: int):
        self.fd, self._waiting, self._lost = fd, bytearray(), 0
        os.set_blocking(fd, False)
        with suppress(OSError):  # more than an ordinary user may have
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE)

    def write(self, data: bytes) -> bool:
        """Passes data on, keeps it for later, or counts it as lost. Returns False when nobody reads any more."""
        if self._lost and len(self._waiting) < BEHIND // 2:
            self._waiting += b"\n[%d bytes are left out here: they came faster than they were read]\n" % self._lost
            self._lost = 0
        if self._lost or len(self._waiting) + len(data) > BEHIND:
            self._lost += len(data)
        else:
            self._waiting += data
        return self.flush()

    def flush(self) -> bool:
        """Writes what waits, as far as the pipe takes it. Returns False when nobody reads any more."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self.fd, self._waiting)]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    @property
    def behind(self) -> bool:
        """Whether something waits for the pipe."""
        return bool(self._waiting)

    def close(self) -> None:
        """Ends the copy."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

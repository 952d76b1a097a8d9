"""The services of a machine, its runtime and its kubelet: started, and started again when they end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from helpers.cluster.embedded.runtime import child, linux
from helpers.cluster.embedded.runtime.backoff import Backoff
from helpers.cluster.embedded.runtime.loop import Loop

FIRST_PAUSE_S = 0.1
STEADY_S = 30.0  # who has lived this long starts with a short pause again
LOOK_S = 0.05


class Service:
    """One service: {"name", "argv", "env", "log", "after"}; `after` is a socket that must listen before it starts.

    Attributes:
        pid: as the machine counts; 0 while it does not run.
        started_ns: when it started last, since the epoch; 0 before the first time.
        restarts: how often it was started again; -1 before the first time.
    """

    def __init__(self, spec: dict, loop: Loop, log: Callable[[str], None]):
        self.name, self.argv, self.env = spec["name"], spec["argv"], spec.get("env") or {}
        self._log_path, self._after = spec["log"], spec.get("after")
        self._loop, self._log = loop, log
        self._started, self._wanted = 0.0, True
        self._backoff = Backoff(first_s=FIRST_PAUSE_S, reset_s=STEADY_S)
        self.pid, self.started_ns, self.restarts = 0, 0, -1

    def start(self) -> None:
        """Starts it as soon as it may."""
        if not self._wanted:
            return
        if self._after and not _listens(self._after):
            self._loop.later(LOOK_S, self.start)
            return
        try:
            self._started = time.monotonic()
            pid = os.fork()
        except OSError as error:
            self._again(f"cannot be started: {error.strerror}")
            return
        if pid == 0:
            self._become()
        self.pid, self.started_ns, self.restarts = pid, time.time_ns(), self.restarts + 1
        self._loop.on_child(pid, self._ended)

    def end(self) -> None:
        """Asks it to end, and does not start it again."""
        self._wanted = False
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Sends it a signal, if it runs."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _ended(self, code: int) -> None:
        self.pid = 0
        self._again(f"ended with code {code}")

    def _again(self, why: str) -> None:
        if not self._wanted:
            return
        pause_s = self._backoff.after(time.monotonic() - self._started)
        self._log(f"service {self.name} {why}; it starts again in {pause_s:g} s")
        self._loop.later(pause_s, self.start)

    def _become(self) -> None:
        try:
            linux.signals_as_new()
            os.setsid()
            linux.come_first()
            os.makedirs(os.path.dirname(self._log_path), exist_ok=True)
            output = os.open(self._log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            child.use_streams(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), output, output)
            program = child.find_program(self.argv[0], self.env.get("PATH", child.PATH))
            os.execve(program, self.argv, self.env)
        except BaseException as error:
            os.write(2, f"service {self.name} cannot be started: {error}\n".encode())
        finally:
            os._exit(127)


def _listens(path: str) -> bool:
    """Whether somebody listens at a Unix socket: one who was killed leaves the file behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except OSError as error:
            return error.errno == errno.EAGAIN  # its queue is full
    return True

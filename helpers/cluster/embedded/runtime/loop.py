"""The one thread of a machine's init: what it waits for, what is due later, and children whose end is heard of."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from helpers.cluster.embedded.runtime import linux

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Timer:
    """Something that is due later."""

    def __init__(self, action: Callable[[], None]):
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """It will not happen. Nothing changes when it has."""
        self.action = None


class Loop:
    """Waits, calls back, and survives whatever a callback raises."""

    def __init__(self, log: Callable[[str], None]):
        self._log, self._selector = log, selectors.EpollSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._children: dict[int, Callable[[int], None]] = {}
        self._signals: dict[int, Callable[[], None]] = {}
        self._running = True
        wake, self._wake = socket.socketpair()
        wake.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._signal_source = wake
        self.watch(wake.fileno(), READ, self._signalled)
        self.on_signal(signal.SIGCHLD, self.reap)

    def watch(self, fd: int, events: int, action: Callable[[int], None]) -> None:
        """Calls `action(events)` whenever the descriptor is ready; a second call for it replaces the first."""
        try:
            self._selector.modify(fd, events, action)
        except KeyError:
            self._selector.register(fd, events, action)

    def ignore(self, fd: int) -> None:
        """Ends `watch`; to be called before the descriptor is closed."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Calls `action()` once, after the delay."""
        timer = Timer(action)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), timer))
        return timer

    def on_signal(self, number: int, action: Callable[[], None]) -> None:
        """Calls `action()` when the signal has come."""
        self._signals[number] = action
        signal.signal(number, lambda *_: None)

    def on_child(self, pid: int, action: Callable[[int], None]) -> None:
        """Calls `action(code)` when the child has ended; code is 128 + n when signal n ended it."""
        self._children[pid] = action

    def reap(self) -> None:
        """Takes note of all children that have ended, adopted ones too."""
        for pid, status in linux.ended_children():
            code = os.waitstatus_to_exitcode(status)
            if action := self._children.pop(pid, None):
                self._guard(action, code if code >= 0 else 128 - code)

    def run(self) -> None:
        """Until `stop`."""
        while self._running:
            for key, events in self._selector.select(self._patience()):
                if self._selector.get_map().get(key.fd) is key:  # no callback of this round has ended it
                    self._guard(key.data, events)
            while self._timers and self._timers[0][0] <= time.monotonic():
                timer = heapq.heappop(self._timers)[2]
                if timer.action:
                    self._guard(timer.action)

    def stop(self) -> None:
        """Ends `run` after what is being called now."""
        self._running = False

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        return max(self._timers[0][0] - time.monotonic(), 0) if self._timers else None

    def _signalled(self, _: int) -> None:
        numbers = set()
        try:
            while data := self._signal_source.recv(4096):
                numbers |= set(data)
        except BlockingIOError:
            pass
        for number in sorted(numbers):
            if action := self._signals.get(number):
                self._guard(action)

    def _guard(self, action: Callable, *arguments: object) -> None:
        # an init that ends takes its machine along: whatever goes wrong is told, and the rest goes on
        try:
            action(*arguments)
        except Exception:
            self._log("went wrong:\n" + traceback.format_exc())

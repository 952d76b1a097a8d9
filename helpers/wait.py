"""Waiting that says what it waits for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from helpers.errors import CourseError

T = TypeVar("T")
QUIET_S = 1.0  # a wait shorter than this shows nothing: a line that flashes by helps nobody
_width = 0  # how many characters of a wait's line stand on the screen


class WaitTimeout(CourseError):
    """A wait that ran out of time; `reason` is the last thing that was missing."""

    def __init__(self, what: str, timeout_s: float, reason: str, fix: str):
        super().__init__(f"Waited {timeout_s:g} s for {what}, and it did not happen: {reason}.", fix)
        self.reason = reason


def wait_until(
    predicate: Callable[[], T],
    timeout_s: float,
    *,
    what: str,
    fix: str = "Run the cell again; if it stays so, `course doctor` shows what this machine lacks.",
    every_s: float = 0.1,
) -> T:
    """Call `predicate` until it returns something truthy, and return that.

    Args:
        predicate: returns a truthy value when done. Until then it returns a falsy value, or raises `AssertionError`
            whose first line is the reason; any other exception passes through at once.
        timeout_s: seconds until this gives up. The predicate is asked at least once, and once more at the end.
        what: what is waited for, as it reads after "waiting for".
        fix: what the user can do when it did not happen.
        every_s: seconds between two questions.

    Raises:
        WaitTimeout: with the seconds waited and the last reason.

    Example:
        >>> wait_until(lambda: 7, 1, what="a number")
        7
    """
    start, shown = time.monotonic(), ""
    while True:
        elapsed = time.monotonic() - start
        value, reason = _ask(predicate)
        if value:
            if shown:
                say(f"✔ {what}: after {elapsed:.0f} s\n")
            return value
        if elapsed >= timeout_s:
            if shown:
                say(f"✘ {what}: gave up after {elapsed:.0f} s\n")
            raise WaitTimeout(what, timeout_s, reason, fix)
        line = f"… {elapsed:.0f} s, waiting for {what}: {reason}"
        if elapsed >= QUIET_S and line != shown:
            shown = line
            say(line)
        time.sleep(every_s)


def say(text: str) -> None:
    """Print `text` where the line of a wait may stand: that line makes room for it."""
    global _width
    first, newline, rest = text.partition("\n")
    # "erase to end of line" is for terminals; JupyterLab does not know it, and needs blanks over what stood there
    sys.stdout.write(f"\r\x1b[K{first.ljust(_width)}{newline}{rest}")
    sys.stdout.flush()
    _width = 0 if newline else len(first)


def _ask(predicate: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return predicate(), "not yet"
    except AssertionError as not_yet:
        return None, str(not_yet).partition("\n")[0] or "not yet"

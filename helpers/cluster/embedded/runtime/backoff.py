"""How long to wait before a program that ended is started again."""

from __future__ import annotations


class Backoff:
    """The first restart comes at once or nearly, each later one after twice the time, up to a limit.

    Attributes:
        first_s: seconds before the first restart.
        longest_s: never more seconds than this.
        reset_s: a program that ran for so many seconds is well again: its next restart counts as the first.
    """

    # no dataclass: a machine's init has one too, and loads no module that it can do without
    def __init__(self, first_s: float = 0.2, longest_s: float = 10.0, reset_s: float = 60.0):
        self.first_s, self.longest_s, self.reset_s = first_s, longest_s, reset_s
        self._next_s = 0.0

    def after(self, ran_s: float) -> float:
        """Seconds to wait now that the program has ended after `ran_s` seconds."""
        if not self._next_s or ran_s >= self.reset_s:
            self._next_s = self.first_s
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self.longest_s)
        return wait_s

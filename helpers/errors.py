"""The one kind of error that a user sees."""

from __future__ import annotations


class CourseError(Exception):
    """Something that the user can mend: what is wrong, and what to do about it.

    Args:
        what: one sentence that says what is wrong.
        fix: one sentence that says what to do; a command stands in it exactly as it is typed.

    In a notebook only these two sentences are shown, without a stack trace: IPython asks the exception itself for
    its rendering.

    Example:
        >>> str(CourseError("Port 8888 is in use.", "Run `make lab PORT=8889`."))
        'Port 8888 is in use. Run `make lab PORT=8889`.'
    """

    def __init__(self, what: str, fix: str):
        super().__init__(what, fix)
        self.what, self.fix = what, fix

    def __str__(self) -> str:
        return f"{self.what} {self.fix}"

    def _render_traceback_(self) -> list[str]:
        return [f"✘ {self.what}", f"  → {self.fix}"]

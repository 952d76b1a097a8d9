"""predict("01.p1", …): say what will happen before it does; the first answer stays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from helpers import state
from helpers.errors import CourseError
from helpers.text import as_html
from helpers.widgets import READABLE, as_bundle, form, live_region

if TYPE_CHECKING:
    from ipywidgets import VBox, Widget

Answer = int | float | str

# predictions whose outcome this kernel has shown; only in memory, since a fresh kernel runs the lesson anew
_revealed: set[str] = set()


def predict(
    id: str, question: str | None = None, choices: Sequence[Answer] | None = None, answer: Answer | None = None
) -> Prediction:
    """Ask for a prediction, or take up one that was asked. An answer that cannot be taken is said, not raised.

    Args:
        id: such as "01.p1".
        question: what will happen? None takes up an earlier question, to reveal what came of it.
        choices: the possible answers, at least two; None asks for a number.
        answer: the prediction, written in the cell instead of chosen in the widget.

    Raises:
        CourseError: if the question itself is not sound: fewer than two choices, or two alike.

    Example:
        predict("01.p1", "How many processes will a worker have?", choices=[1, 2, 5], answer=None)
        predict("01.p1").reveal(5)
    """
    choices = None if choices is None else list(choices)
    if choices is not None and len(set(map(str, choices))) < max(2, len(choices)):
        raise CourseError(f"The choices of {id} are {choices!r}.", "Give at least two, no two alike.")
    prediction = Prediction(id, question, choices)
    if not _is_blank(answer):
        prediction.commit(answer)
    return prediction


@dataclass(frozen=True)
class Reveal:
    """A prediction beside what happened, as one sentence."""

    sentence: str

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return live_region(self.sentence)


@dataclass
class Prediction:
    """A prediction, asked or committed. `predict` makes it; the notebook shows it.

    Attributes:
        id: such as "01.p1".
        question: what is asked; None where only the outcome is wanted.
        choices: the possible answers; None asks for a number.
        note: what came of the last try to commit, where there is something to say.
    """

    id: str
    question: str | None = None
    choices: list[Answer] | None = None
    note: str = ""

    def commit(self, answer: Any) -> None:
        """Make this the prediction, unless there is one or the outcome was shown; `note` says what came of it."""
        try:
            self.note = self._commit(answer)
        except CourseError as error:
            self.note = f"{error} Nothing was stored."

    def reveal(self, actual: Any) -> Reveal:
        """Show the prediction beside what happened. From then on, in this kernel, it cannot be made any more.

        Args:
            actual: what happened, in the form of the choice that was right.
        """
        _revealed.add(self.id)
        try:
            committed = self.committed
        except CourseError as error:
            return Reveal(f"It was {actual}. Your prediction cannot be read: {error}")
        if committed is None:
            return Reveal(f"· not answered yet. It was: {actual}")
        if committed["answer"] == actual:
            return Reveal(f"✔ as you predicted: {actual}")
        return Reveal(f"✘ you predicted: {committed['answer']}. It was: {actual}")

    @property
    def committed(self) -> dict | None:
        """The answer that stands, as in the progress file: `answer` and `at`.

        Raises:
            CourseError: if the progress file cannot be read.
        """
        return None if state.is_grading() else state.read_progress()["predictions"].get(self.id)

    @property
    def is_open(self) -> bool:
        """Whether it still can be made."""
        with suppress(CourseError):
            return self.question is not None and self.id not in _revealed and not self.committed
        return False

    @property
    def status(self) -> str:
        """Where this prediction stands, and what came of the last try, each on its line."""
        return f"{self._standing()}\n{self.note}".strip()

    def __str__(self) -> str:
        lines = [self.question, self._choose() if self.question else "", self.status, self._twin()]
        return "\n".join(line for line in lines if line)

    __repr__ = __str__

    @cached_property
    def widget(self) -> VBox:
        """The question with its controls; they close when the prediction is made."""
        return form(self._asked(), self._control(), "Commit", self.commit, lambda: self.status, self._twin)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        # only a question that is still open needs controls
        if self.is_open:
            return as_bundle(self.widget, str(self))
        return {"text/plain": str(self), "text/html": self._asked() + live_region(self.status)}

    def _commit(self, answer: Any) -> str:
        if _is_blank(answer):
            return "Choose an answer first." if self.choices else "Enter a number first."
        answer = self._accepted(answer)
        if state.is_grading():
            return "Predictions are not kept while nbgrader runs the notebook."
        stands = state.update_progress(lambda progress: self._put(progress, answer))["predictions"].get(self.id)
        if stands is None or stands["answer"] == answer:
            return ""
        return f"A prediction is not changed once it is made, so {answer!r} was not stored."

    def _put(self, progress: dict, answer: Answer) -> None:
        if self.id not in _revealed:
            progress["predictions"].setdefault(self.id, {"answer": answer, "at": state.now()})

    def _accepted(self, answer: Any) -> Answer:
        if self.choices is None:
            return _as_number(answer)
        # of the same type too: "2" is not 2, and True is not 1
        if any(type(choice) is type(answer) and choice == answer for choice in self.choices):
            return answer
        raise CourseError(f"{answer!r} is not one of the choices.", self._choose())

    def _standing(self) -> str:
        try:
            committed = self.committed
        except CourseError as error:
            return f"Your prediction cannot be read: {error}"
        if committed:
            return f"You predicted {committed['answer']} (committed {_clock(committed['at'])})."
        if self.id in _revealed:
            return "The outcome was shown before you predicted. Restart the kernel to predict before the next run."
        return "not answered yet"

    def _asked(self) -> str:
        return f'<div style="{READABLE}"><strong>{as_html(self.question)}</strong></div>' if self.question else ""

    def _control(self) -> Widget:
        import ipywidgets

        if self.choices is None:
            return ipywidgets.Text(description="Your number", placeholder="such as 3 or 2.5")
        options = [(str(choice), choice) for choice in self.choices]
        layout = ipywidgets.Layout(width="auto")
        return ipywidgets.RadioButtons(description="Your choice", options=options, value=None, layout=layout)

    def _choose(self) -> str:
        return "Give a number." if self.choices is None else f"Choose from {', '.join(map(repr, self.choices))}."

    def _twin(self) -> str:
        if not self.is_open:
            return ""
        example = 2.5 if self.choices is None else self.choices[-1]
        return f"Or write your answer in this cell, such as answer={example!r}, and run it again."


def _is_blank(answer: Any) -> bool:
    return answer is None or answer is ... or answer == ""


def _as_number(answer: Any) -> int | float:
    """The number that was given, or that was typed into the text field."""
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(answer) if isinstance(answer, str) else answer
            if type(number) in (int, float) and math.isfinite(number):
                return number
    raise CourseError(f"{answer!r} is not a number.", "Give one such as 3 or 2.5.")


def _clock(at: str) -> str:
    """`18:44` for a moment of today, with its date otherwise."""
    with suppress(ValueError):
        when = datetime.fromisoformat(at)
        return f"{when:%H:%M}" if when.date() == date.today() else f"{when:%Y-%m-%d %H:%M}"
    return at

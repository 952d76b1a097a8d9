"""quiz("01.q1"): a card of the question bank, with feedback on every choice.

The cards of lesson NN are in `interview/NN.yaml`, a list of:

    - id: 01.q1
      kind: choice
      prompt: what is asked
      cites: where the course shows it
      right: b
      explanation: why it is right; shown with the right choice's feedback
      choices:
        a: {text: …, feedback: …, misconception: what somebody believes who chooses this}
        b: {text: …, feedback: …}
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers import state
from helpers.errors import CourseError
from helpers.text import as_html
from helpers.widgets import READABLE, as_bundle, form

if TYPE_CHECKING:
    from ipywidgets import VBox


@dataclass(frozen=True)
class Choice:
    """One answer of a card. `misconception` names what one believes who chooses it; empty for the right one."""

    text: str
    feedback: str
    misconception: str = ""


@dataclass(frozen=True)
class Item:
    """One card of the bank; `choices` are by letter, and `right` is the letter of the right one."""

    id: str
    prompt: str
    cites: str
    right: str
    explanation: str
    choices: Mapping[str, Choice]


def quiz(id: str, answer: str | None = None) -> Quiz | None:
    """Ask a card of the question bank; the notebook shows it. Any number of tries.

    Args:
        id: such as "01.q1".
        answer: a letter, written in the cell instead of chosen in the widget.

    Returns:
        The card; None if there is no such card (a sentence says so).
    """
    try:
        card = Quiz(find_item(id))
    except CourseError as error:
        print(error)
        return None
    if answer is not None and answer is not ... and answer != "":
        card.answer(answer)
    return card


@dataclass
class Quiz:
    """A card being asked; `feedback` is what was said to the last answer."""

    item: Item
    feedback: str = ""

    def answer(self, letter: Any) -> None:
        """Take an answer: `feedback` says what is right or wrong about it, and the progress file keeps it."""
        letter = letter.strip().lower() if isinstance(letter, str) else letter
        choice = self.item.choices.get(letter) if isinstance(letter, str) else None
        if letter is None:
            self.feedback = "Choose an answer first."
        elif choice is None:
            self.feedback = f"{letter!r} is not one of the letters {', '.join(self.item.choices)}. Nothing was stored."
        else:
            self.feedback = self._say(letter, choice) + self._note(letter)

    def __str__(self) -> str:
        choices = [f"  {letter}) {choice.text}" for letter, choice in self.item.choices.items()]
        return "\n".join([self.item.prompt, *choices, self._status(), self._twin()])

    __repr__ = __str__

    @cached_property
    def widget(self) -> VBox:
        """The card with its controls."""
        import ipywidgets

        # letters only: the front end gives a radio button one line, and the texts are longer
        letters = ipywidgets.RadioButtons(description="Your answer", options=list(self.item.choices), value=None)
        return form(self._asked(), letters, "Answer", self.answer, self._status, self._twin)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return as_bundle(self.widget, str(self))

    def _say(self, letter: str, choice: Choice) -> str:
        if letter == self.item.right:
            return f"✔ {letter} is right. {choice.feedback}\n{self.item.explanation}\nSee {self.item.cites}."
        return f"✘ {letter}: not yet. {choice.feedback}\nSee {self.item.cites}, and try again."

    def _note(self, letter: str) -> str:
        if state.is_grading():
            return ""
        try:
            state.update_progress(lambda progress: self._put(progress, letter))
        except CourseError as error:
            return f"\nThis answer was not kept. {error}"
        return ""

    def _put(self, progress: dict, letter: str) -> None:
        old = progress["quizzes"].setdefault(
            self.item.id, {"answer": letter, "right": False, "at": state.now(), "tries": 0}
        )
        if not old["right"]:  # whoever has it right may read the other choices' feedback
            old["tries"] += 1
            old["right"] = letter == self.item.right

    def _status(self) -> str:
        return self.feedback or "not answered yet"

    def _asked(self) -> str:
        choices = "".join(
            f"<div><strong>{letter})</strong> {as_html(choice.text)}</div>"
            for letter, choice in self.item.choices.items()
        )
        return f'<div style="{READABLE}"><strong>{as_html(self.item.prompt)}</strong>{choices}</div>'

    def _twin(self) -> str:
        return f'Or write a letter in this cell, such as quiz("{self.item.id}", answer="a"), and run it again.'


def find_item(id: str) -> Item:
    """The card of an id.

    Raises:
        CourseError: if there is none, or the lesson's file of cards is not sound.
    """
    lesson = str(id).partition(".")[0]
    path = bank_dir() / f"{lesson}.yaml"
    items = load_items(path) if lesson.isalnum() and path.exists() else {}
    if id not in items:
        known = ", ".join(items) or ", ".join(sorted(file.stem for file in bank_dir().glob("*.yaml")))
        raise CourseError(f"There is no card {id!r}.", f"Ask for one of {known}.")
    return items[id]


def bank_dir() -> Path:
    """The directory of the question bank."""
    return state.course_root() / "interview"


def load_items(path: Path) -> dict[str, Item]:
    """The cards of one file, by id.

    Raises:
        CourseError: if the file or a card is not sound; it names the file, the card and what is missing.
    """
    import yaml

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise CourseError(f"{path.name} cannot be read as YAML: {reason}.", "Mend the file.") from None
    if not isinstance(entries, list) or not entries:
        raise CourseError(f"{path.name} does not hold a list of cards.", "Write each card as a list entry: `- id: …`.")
    items: dict[str, Item] = {}
    for position, entry in enumerate(entries, 1):
        item = _item(entry, path, position)
        if item.id in items:
            raise _unsound(path, item.id, "is there twice", "Give each card an id of its own.")
        items[item.id] = item
    return items


def _item(entry: Any, path: Path, position: int) -> Item:
    name = entry.get("id") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name.startswith(f"{path.stem}."):
        raise _unsound(path, f"number {position}", f"has the id {name!r}", f"Give it one such as {path.stem}.q1.")
    if entry.get("kind") != "choice":
        raise _unsound(path, name, f"is of kind {entry.get('kind')!r}", "The only kind so far is `choice`.")
    for key in ("prompt", "cites", "explanation"):
        _require(entry, key, path, name)
    choices = entry.get("choices")
    if (
        not isinstance(choices, dict)
        or len(choices) < 2
        or not string.ascii_lowercase.startswith("".join(map(str, choices)))
    ):
        raise _unsound(path, name, "has no choices a, b, …", "Write at least two, lettered from a without a gap.")
    if entry.get("right") not in choices:
        raise _unsound(path, name, "has no right choice", f"Write `right:` with one of {', '.join(choices)}.")
    read = {letter: _choice(choice, letter, entry["right"], path, name) for letter, choice in choices.items()}
    return Item(name, entry["prompt"], entry["cites"], entry["right"], entry["explanation"], read)


def _choice(choice: Any, letter: str, right: str, path: Path, name: str) -> Choice:
    where = f"{name}, choice {letter},"
    if not isinstance(choice, dict):
        raise _unsound(path, where, "is not a mapping", "Write `text:` and `feedback:` under it.")
    for key in ("text", "feedback") + (() if letter == right else ("misconception",)):
        _require(choice, key, path, where)
    return Choice(choice["text"], choice["feedback"], choice.get("misconception", ""))


def _require(mapping: dict, key: str, path: Path, where: str) -> None:
    value = mapping.get(key)
    if not isinstance(value, str) or not value.strip():
        raise _unsound(path, where, f"has no {key}", f"Write it as text: `{key}: …`.")


def _unsound(path: Path, where: str, what: str, fix: str) -> CourseError:
    return CourseError(f"{path.name}: {where} {what}.", fix)

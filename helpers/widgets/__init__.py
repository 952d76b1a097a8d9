"""What a learner sees and touches: predictions, quiz cards, figures. All of it works without a front end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from helpers.text import as_html

if TYPE_CHECKING:
    from ipywidgets import VBox, Widget


# ipywidgets gives each line of text the height of a button, which is too much for more than one line
READABLE = "line-height: 1.5"


def live_region(sentences: str) -> str:
    """HTML of some text, line breaks kept, that a screen reader speaks when it changes."""
    return f'<div role="status" aria-live="polite" style="white-space: pre-line; {READABLE}">{as_html(sentences)}</div>'


def form(
    asked: str,
    control: Widget,
    button: str,
    press: Callable[[Any], None],
    status: Callable[[], str],
    twin: Callable[[], str],
) -> VBox:
    """A question with a control and a button.

    Args:
        asked: the question, as HTML.
        control: holds the answer in its `value`.
        button: the word on the button.
        press: gets the control's value when the button is pressed.
        status: the text of the live region, asked again after each press.
        twin: the sentence that says how to answer without the widget; empty once no answer is taken any more.
    """
    import ipywidgets

    pressed = ipywidgets.Button(description=button, button_style="primary")
    said, hint = ipywidgets.HTML(), ipywidgets.HTML()

    def show() -> None:
        said.value, hint.value = live_region(status()), as_html(twin())
        control.disabled = pressed.disabled = not twin()

    def on_click(_: Any) -> None:
        press(control.value)
        show()

    pressed.on_click(on_click)
    show()
    # a line down its side shows where one card ends and the next begins
    layout = ipywidgets.Layout(margin="0 0 1em 0", padding="0 0 0 1em", border_left="3px solid #BBBBBB")
    return ipywidgets.VBox([ipywidgets.HTML(asked), control, pressed, said, hint], layout=layout)


def as_bundle(widget: Widget, text: str) -> dict[str, Any]:
    """What a notebook shows of a widget, with `text` for every reader that has no widgets."""
    return {**widget._repr_mimebundle_(), "text/plain": text}

"""The stepper: walk through what happened, one step at a time."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from helpers.observe.steps import Step, Steps, as_table
from helpers.observe.timeline import POD_STATES
from helpers.widgets import as_bundle, live_region

if TYPE_CHECKING:
    from ipywidgets import VBox

MOST_LINES = 5  # of what a step changed
# fields that change beside what a step is about: times, texts for people, ids, copies of the spec
BESIDE = re.compile(
    r"\.(last\w+Time|startedAt|finishedAt|message|observedGeneration|containerID|imageID|image)(:|$)"
    r"|\.(managers|resources|allocatedResources)\b"
)


@dataclass
class Stepper:
    """Steps, and the one that is looked at. The notebook shows it with buttons and a slider.

    Attributes:
        steps: what happened.
        position: which step is looked at, from 0.
    """

    steps: Steps
    position: int = 0

    @property
    def step(self) -> Step:
        return self.steps.steps[self.position]

    def go(self, position: int) -> Stepper:
        """Look at another step; before the first and after the last there is none, so it stays there."""
        self.position = min(max(position, 0), len(self.steps) - 1)
        return self

    @property
    def says(self) -> str:
        """The step that is looked at: where it stands, what was done by whom, what that is for, where it was read."""
        step = self.step
        place = f"Step {self.position + 1} of {len(self.steps)}, {self.steps.seconds(step)} s after the first"
        return f"{place} · {step.who}: {step.what}\n{step.meaning} (Read from: {step.source}.)"

    @property
    def shows(self) -> str:
        """How far each Pod was after this step, and what was different in the object; empty without a record of it."""
        lines = [f"{pod}: {_way(state)}" for pod, state in self.step.states]
        return "\n".join([*lines, *_told(self.step)])

    def __str__(self) -> str:
        """Every step with its meaning: all that the widget shows, at once."""
        lines = []
        for (when, who, what), step in zip(self.steps.rows(), self.steps, strict=True):
            lines += [f"{when:>7}  {who}: {what}", f"{'':>9}{step.meaning}"]
            lines += [f"{'':>9}{line}" for line in _told(step)]
        return "\n".join([f"Steps of {self.steps.target}", *lines])

    __repr__ = __str__

    @cached_property
    def widget(self) -> VBox:
        """Buttons and a slider to walk by, what is to be said of the step, and the table up to it."""
        import ipywidgets

        last = len(self.steps) - 1
        back = ipywidgets.Button(description="Back", icon="step-backward", tooltip="One step back")
        onward = ipywidgets.Button(description="Next", icon="step-forward", button_style="primary", tooltip="Next step")
        # counted from 1, as people do; the arrow keys move it
        layout = ipywidgets.Layout(width="22em")
        slider = ipywidgets.IntSlider(1, min=1, max=last + 1, description="Step", layout=layout)
        said, shown, table = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()

        def show(change: Any = None) -> None:
            self.go(slider.value - 1)
            said.value = live_region(self.says)
            shown.value = f'<pre style="white-space: pre-wrap; line-height: 1.4">{html.escape(self.shows)}</pre>'
            table.value = as_table(self.steps.target, self.steps.rows()[: self.position + 1], self.position)

        def move(by: int) -> None:
            slider.value = min(max(slider.value + by, 1), last + 1)

        # the buttons stay enabled at both ends: disabling the one that has the keyboard's focus would lose it
        back.on_click(lambda _: move(-1))
        onward.on_click(lambda _: move(+1))
        slider.observe(show, "value")
        slider.value = self.position + 1
        show()
        return ipywidgets.VBox([ipywidgets.HBox([back, onward, slider]), said, shown, table])

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        # one step is no walk, and a slider has no range then
        return as_bundle(self.widget, str(self)) if len(self.steps) > 1 else {"text/plain": str(self)}


def _told(step: Step) -> list[str]:
    """What a step changed: the fields that tell most of it, and how many others there are."""
    if not step.change:
        return []
    told = [line for line in step.change if not BESIDE.search(line.partition(": ")[0])][:MOST_LINES]
    left = len(step.change) - len(told)
    more = [f"  and {left} other {'field' if left == 1 else 'fields'}"] if left else []
    return [f"Changed in {step.about}:", *(f"  {line}" for line in told), *more]


def _way(state: str) -> str:
    """All states of a Pod, with the one that it is in marked."""
    way = POD_STATES if state in POD_STATES else (*POD_STATES, state)
    return " → ".join(f"▶ {one} ◀" if one == state else one for one in way)

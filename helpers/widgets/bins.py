"""A plan as boxes in bins: each Ray node is a bin, what it takes are the boxes in it; what gets no place is outside.

The picture is SVG: it is made in a few milliseconds, so that it follows a slider.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from textwrap import wrap

from helpers.model.demand import Demand, Shape, shown
from helpers.model.planner import REASONS, Plan, RayNode
from helpers.text import count
from helpers.widgets import theme

MOST_DRAWN = 16  # kinds of Ray nodes in the picture; all are in the table
HEADERS = ("Ray node", "State", "Takes", "Free")
OUTSIDE = "none: outside"
NO_ACCOUNT = "v1 keeps no account of which Ray node takes what."

# in CSS pixels
_WIDTH, _LANES_AT, _LANES = 780, 118, 520
_LANE, _STEP, _PAD, _LINE = 22, 26, 6, 18
_UNIT = 40  # at most so wide is 1 CPU or GPU: small Ray nodes are drawn small
_LETTER = 8  # at most so wide is a letter
_BEFORE, _ACROSS = 14, 104  # letters have room before a lane, and in a line
_INK, _GREY = "#111111", "#666666"
_HALO = ' stroke="white" stroke-width="3" paint-order="stroke"'  # around words on a hatch
_EDGES = {"running": "", "pending": ' stroke-dasharray="6 3"', "new": ' stroke-width="2.5"'}
# the hatches of helpers.widgets.theme, as lines in a square of 8
_HATCHES = {
    "": "",
    "///": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "...": "M1 2H3M5 6H7",
    "xxx": "M0 8L8 0M0 0L8 8",
    "\\\\\\": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "---": "M0 4H8",
    "+++": "M0 4H8M4 0V8",
}


@dataclass(frozen=True)
class Bin:
    """Ray nodes that are alike: of one group and state, with the same in them.

    Attributes:
        node: the first of them.
        count: how many they are.
    """

    node: RayNode
    count: int

    @property
    def name(self) -> str:
        return self.node.name if self.count == 1 else f"{self.count} × {self.node.group}"

    @property
    def state(self) -> str:
        more = [f"stops: {self.node.stops}"] if self.node.stops else []
        more += ["request_resources counts on it"] if self.node.holds else []
        return ", ".join([self.node.state, *more])

    def free(self, resource: str) -> str:
        """What each has free of a resource when it has taken its boxes, and of how much."""
        free, offers = (shown(resource, amounts.get(resource, 0)) for amounts in (self.node.free, self.node.offers))
        return f"{free} of {offers}"

    def used(self, resource: str) -> float:
        """How much of a resource each has in use, by what is not in the plan."""
        takes = sum(one.count * one.resources.get(resource, 0) for one in self.node.takes)
        return max(0, round(self.node.offers[resource] - self.node.free.get(resource, 0) - takes, 4))


def bins(plan: Plan) -> list[Bin]:
    """The Ray nodes of a plan, in its order, those that are alike together. Of v1 there are none."""
    alike: dict[tuple, list[RayNode]] = {}
    for node in plan.nodes:
        amounts = (tuple(sorted(one.items())) for one in (node.offers, node.free))
        boxes = (tuple((one.shape, one.count) for one in ones) for ones in (node.takes, node.holds))
        alike.setdefault((node.group, node.state, node.stops, *amounts, *boxes), []).append(node)
    return [Bin(same[0], len(same)) for same in alike.values()]


def resources(plan: Plan) -> list[str]:
    """What the bins are drawn by: CPU, GPU, and what else is asked for; as far as any Ray node has it."""
    names = dict.fromkeys(["CPU", "GPU", *(name for one in _boxes(plan) for name in one.resources)])
    return [name for name in names if any(node.offers.get(name) for node in plan.nodes)]


def letters(plan: Plan, shapes: Iterable[Demand] = ()) -> dict[Shape, str]:
    """A letter for each kind of box: first for those of `shapes`, then for what else is in the plan."""
    kinds = dict.fromkeys(one.shape for one in (*shapes, *_boxes(plan)))
    return {kind: f"{ascii_uppercase[number % 26]}{number // 26 or ''}" for number, kind in enumerate(kinds)}


def table(plan: Plan) -> list[tuple[str, ...]]:
    """The same as the picture in rows, under `HEADERS`: the bins, then what is outside and why."""
    names = resources(plan)
    rows = []
    for one in bins(plan):
        free = ", ".join(f"{one.free(name)} {name}" for name in names if one.node.offers.get(name))
        rows.append((one.name, one.state, ", ".join(map(str, one.node.takes)) or "nothing", free or "nothing"))
    if not plan.nodes:
        rows = [(f"{count} × {group}", "new", "not known", "not known") for group, count in plan.launch.items()]
    return rows + [(OUTSIDE, one.reason, str(one.what), "") for one in (*plan.unmet, *plan.unmet_groups)]


def alt(plan: Plan) -> str:
    """What the picture shows, in words."""
    told = ["Ray nodes as bins, and what they take as boxes in them."]
    for name, state, takes, free in table(plan):
        inside = f"{name}, {state}: takes {takes}; free: {free}."
        told.append(f"Outside: {takes}, {state}." if name == OUTSIDE else inside)
    return " ".join(told if plan.nodes else [*told, NO_ACCOUNT])


def summary(plan: Plan) -> str:
    """Where the boxes are, in one sentence."""
    if plan.error:
        return "✘ No plan is made."
    found, launched = bins(plan), sum(plan.launch.values())
    new = sum(one.count * take.count for one in found if one.node.state == "new" for take in one.node.takes)
    there = sum(one.count * take.count for one in found if one.node.state != "new" for take in one.node.takes)
    outside = sum(one.what.count for one in plan.unmet)
    outside += sum(len(one.what.each) * one.what.count for one in plan.unmet_groups)
    ends = f"✘ {count(outside, 'box has', 'boxes have')} no place" if outside else "✔ no box is without a place"
    if not found:
        return f"{ends}; {count(launched, 'new Pod')}. {NO_ACCOUNT}"
    return f"{ends}; {there} in Ray nodes that are there, {new} in new ones ({count(launched, 'Pod')})."


def kind(one: Demand) -> str:
    """What one box asks for, such as `{CPU: 1}`."""
    return str(one.times(1)).removeprefix("1×")


def picture(plan: Plan, shapes: Iterable[Demand] = ()) -> str:
    """HTML of the picture, with its alt text; empty if no plan is made.

    Args:
        shapes: the kinds of boxes that have the first letters, whether they are in the plan or not.
    """
    if plan.error:
        return ""
    svg = _Sheet(plan, letters(plan, shapes)).svg()
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img alt="{html.escape(alt(plan))}" src="data:image/svg+xml;base64,{data}" width="{_WIDTH}"'
        ' style="max-width: 100%; height: auto">'
    )


def _boxes(plan: Plan) -> list[Demand]:
    inside = [one for node in plan.nodes for one in node.takes]
    bundles = [bundle for one in plan.unmet_groups for bundle in one.what.bundles]
    return [*inside, *(one.what for one in plan.unmet), *bundles]


class _Sheet:
    """A picture that grows downwards."""

    def __init__(self, plan: Plan, keys: dict[Shape, str]):
        self.plan, self.keys, self.names = plan, keys, resources(plan)
        self.looks = {kind: theme.series(number % theme.LOOKS) for number, kind in enumerate(keys)}
        self.y, self.parts = _PAD, []
        most = {name: max(node.offers.get(name, 0) for node in plan.nodes) for name in self.names}
        self.scale = {name: min(_UNIT, _LANES / most[name]) for name in self.names}

    def svg(self) -> str:
        self.legend()
        found = bins(self.plan)
        for one in found[:MOST_DRAWN]:
            self.bin(one)
        if len(found) > MOST_DRAWN:
            self.line(f"and {len(found) - MOST_DRAWN} more kinds of Ray nodes: they are in the table")
        if not self.plan.nodes:
            for group, count in self.plan.launch.items():
                self.line(f"{count} × {group}, new")
            self.line(NO_ACCOUNT)
        if self.plan.unmet or self.plan.unmet_groups:
            self.head("Outside, since there is no place:")
        for one in self.plan.unmet:
            self.outside(str(one.what), [one.what], one.reason)
        for one in self.plan.unmet_groups:
            bundles = [bundle.times(bundle.count * one.what.count) for bundle in one.what.bundles]
            self.outside(str(one.what), bundles, one.reason)
        height = self.y + _PAD
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
            f' height="{height}" font-family="sans-serif" font-size="12"><defs>{self.patterns()}</defs>'
            f'<rect width="{_WIDTH}" height="{height}" rx="4" fill="white"/>{"".join(self.parts)}</svg>'
        )

    def patterns(self) -> str:
        """The looks of the boxes: a tint on which ink can be read, and a hatch."""
        return "".join(
            f'<pattern id="look{key}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect width="8" height="8" fill="white"/><rect width="8" height="8" fill="{look["color"]}" opacity=".3"/>'
            f'<path d="{_HATCHES[look["hatch"]]}" stroke="{look["color"]}" opacity=".6"/></pattern>'
            for key, look in ((self.keys[kind], look) for kind, look in self.looks.items())
        )

    def legend(self) -> None:
        x = _PAD
        there = {one.shape: kind(one) for one in _boxes(self.plan)}
        for shape in filter(there.__contains__, self.keys):
            text = there[shape]
            width = 44 + _LETTER * len(text)
            if x > _PAD and x + width > _WIDTH:
                x, self.y = _PAD, self.y + _STEP
            self.box(x, 24, shape, self.keys[shape])
            self.text(x + 30, self.y + 15, text)
            x += width
        self.y += _STEP + _PAD if x > _PAD else 0

    def bin(self, one: Bin) -> None:
        lanes = [name for name in self.names if one.node.offers.get(name)]
        height = _LINE + _STEP * len(lanes) + 2 * _PAD
        self.rect(0, _WIDTH, ' rx="4" fill="#F3F3F3"', height)
        self.y += _PAD
        has_none = "" if lanes else f"; it has no {' and no '.join(self.names or ['CPU'])}"
        self.head(one.name, one.state + has_none)
        for name in lanes:
            self.lane(one, name)
            self.y += _STEP
        self.y += 2 * _PAD

    def lane(self, one: Bin, name: str) -> None:
        scale, width = self.scale[name], one.node.offers[name] * self.scale[name]
        self.text(_LANES_AT - 8, self.y + 15, _short(name), anchor="end")
        self.rect(_LANES_AT, width, ' fill="white"')
        x = _LANES_AT + one.used(name) * scale
        if x > _LANES_AT:
            self.rect(_LANES_AT, x - _LANES_AT, f' fill="#D0D0D0" stroke="{_GREY}"')
            self.label(_LANES_AT, x - _LANES_AT, "in use")
        for take in one.node.takes:
            x = self.boxes(x, take, take.resources.get(name, 0) * scale)
        self.rect(_LANES_AT, width, f' fill="none" stroke="{_INK}"{_EDGES[one.node.state]}')
        self.text(_LANES_AT + width + 8, self.y + 15, f"{one.free(name)} free", look=f' fill="{_GREY}"')

    def boxes(self, x: float, what: Demand, width: float) -> float:
        """Boxes side by side, as one where they are too narrow for a letter each; returns where they end."""
        key = self.keys[what.shape]
        if width and width < _LETTER * (len(key) + 1):
            self.box(x, width * what.count, what.shape, f"{what.count} × {key}")
        elif width:
            for number in range(what.count):
                self.box(x + number * width, width, what.shape, key)
        return x + width * what.count

    def box(self, x: float, width: float, kind: Shape, label: str) -> None:
        self.rect(x, width, f' fill="url(#look{self.keys[kind]})" stroke="{self.looks[kind]["color"]}"')
        self.label(x, width, label)

    def outside(self, name: str, boxes: Sequence[Demand], reason: str) -> None:
        """What gets no place and why; its boxes are in the same scale, if there is room for that."""
        first, *more = wrap(f"{name} {reason}: {REASONS[reason]}", _ACROSS)
        self.head(name, first.removeprefix(name)) if first.startswith(name) else self.line(first)
        for words in more:
            self.line(words)
        widths = [self.width(one) for one in boxes]
        together = sum(one.count * width for one, width in zip(boxes, widths, strict=True))
        x, shrunk = float(_LANES_AT), min(1, (_WIDTH - _PAD - _LANES_AT) / together)
        for one, width in zip(boxes, widths, strict=True):
            x = self.boxes(x, one, width * shrunk)
        self.y += _STEP + _PAD

    def width(self, one: Demand) -> float:
        """Of a box that is in no bin: by the first thing that it asks for and some Ray node has."""
        known = [one.resources[name] * self.scale[name] for name in self.names if one.resources.get(name)]
        return known[0] if known else _UNIT

    def line(self, words: str) -> None:
        self.text(_PAD, self.y + 13, words)
        self.y += _LINE

    def head(self, name: str, more: str = "") -> None:
        self.parts.append(
            f'<text x="{_PAD}" y="{self.y + 13}"><tspan font-weight="bold">{html.escape(name)}</tspan>'
            f'<tspan fill="{_GREY}" dx="10">{html.escape(more.strip())}</tspan></text>'
        )
        self.y += _LINE

    def label(self, x: float, width: float, words: str) -> None:
        """Words in a box, if it has room for them."""
        if len(words) * _LETTER <= width + 2:
            self.text(x + width / 2, self.y + 15, words, anchor="middle", look=_HALO)

    def rect(self, x: float, width: float, look: str, height: float = _LANE) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{self.y}" width="{width:.1f}" height="{height}"{look}/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", look: str = f' fill="{_INK}"') -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}"{look}>{html.escape(words)}</text>')


def _short(words: str) -> str:
    return words if len(words) <= _BEFORE else words[: _BEFORE - 1] + "…"

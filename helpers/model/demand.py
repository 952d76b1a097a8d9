"""What is asked of Ray: tasks and actors, placement groups; and how it is written, such as `8×{GPU:1}`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from helpers.errors import CourseError
from helpers.model import quantity

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")  # PlacementStrategy in Ray's common.proto
MOST = 10_000  # tasks, actors and bundles: the packing of more takes minutes
LIKE = "A demand is written as 8×{GPU:1}, or as {CPU:1, memory:4Gi} for one of it."

_FORM = re.compile(r"\s*(?:(\d{1,18})\s*[×xX*]\s*)?\{([^{}]*)\}\s*")
_NAME = re.compile(r"[^\s{}'\",]+")
_VALUE = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
# validate_label_selector_value in ray/_private/label_utils.py: a, !a, in(a, b), !in(a, b), or nothing
_SELECTOR = re.compile(rf"(?P<no>!?)(?:in\((?P<many>{_VALUE}(?:, ?{_VALUE})*)\)|(?P<one>{_VALUE}))|")

Shape = tuple[tuple[tuple[str, float], ...], tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Demand:
    """Tasks or actors, or bundles of a placement group, that ask for the same.

    Attributes:
        resources: amounts by Ray's names, such as {"CPU": 1, "memory": 2**30}; memory in bytes.
        count: how many there are.
        labels: the label selector, such as {"zone": "west"}; a value is `west`, `!west`, `in(west, east)`,
            `!in(west, east)`, or empty for a label that has no value.

    Raises:
        CourseError: an amount, a count or a selector is none.
    """

    resources: Mapping[str, float]
    count: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.resources, Mapping) or not isinstance(self.labels or {}, Mapping):
            raise CourseError(f"{self.resources!r:.60} is no mapping of amounts.", 'Give one, such as {"GPU": 1}.')
        for name, amount in self.resources.items():
            number = isinstance(amount, int | float) and not isinstance(amount, bool) and math.isfinite(amount)
            if not isinstance(name, str) or not number or amount < 0:
                raise CourseError(
                    f"{amount!r:.60} is no amount of {name!s:.60}.", "Amounts are numbers of 0 or more, such as 0.5."
                )
        if not _is_count(self.count):
            raise CourseError(f"{self.count!r:.60} is no count of a demand.", "Counts are whole numbers of 0 or more.")
        for key, value in (self.labels or {}).items():
            _constraint(key, value)

    @property
    def shape(self) -> Shape:
        """What tells it from other demands, whatever their counts; 0 of a resource is not asked for."""
        asked = ((name, float(amount)) for name, amount in self.resources.items() if amount)
        return tuple(sorted(asked)), tuple(sorted((self.labels or {}).items()))

    @property
    def selector(self) -> list[tuple[str, bool, list[str]]]:
        """Each label: its key, whether it must be (or must not be) one of the values, the values."""
        return [_constraint(key, value) for key, value in (self.labels or {}).items()]

    def allows(self, labels: Mapping[str, str]) -> bool:
        """Whether a Ray node with these labels is one that is asked for; one without the label is not `a`, but `!a`."""
        return all((labels.get(key) in values) is wanted for key, wanted, values in self.selector)

    def times(self, count: int) -> Demand:
        return Demand(self.resources, count, self.labels)

    def __str__(self) -> str:
        asked = ", ".join(f"{name}: {shown(name, amount)}" for name, amount in self.resources.items())
        labels = " with " + ", ".join(f"{key}={value}" for key, value in self.labels.items()) if self.labels else ""
        return f"{self.count}×{{{asked}}}{labels}"


@dataclass(frozen=True)
class Gang:
    """A placement group, or several of the same: all bundles of one are placed, or none.

    Attributes:
        strategy: one of `STRATEGIES`.
        bundles: what it consists of.
        count: how many such groups there are.

    Raises:
        CourseError: there is no such strategy, or no bundle.
    """

    strategy: str
    bundles: tuple[Demand, ...]
    count: int = 1

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise CourseError(
                f"{self.strategy!r:.60} is no strategy of a placement group.", f"Use one of {', '.join(STRATEGIES)}."
            )
        if not sum(bundle.count for bundle in self.bundles) or not _is_count(self.count):
            raise CourseError("A placement group has at least one bundle, and a count.", "Give it bundles.")

    @property
    def each(self) -> list[Demand]:
        """Its bundles, one by one."""
        return [bundle.times(1) for bundle in self.bundles for _ in range(bundle.count)]

    def __str__(self) -> str:
        return f"{self.count}×{self.strategy}({', '.join(map(str, self.bundles))})"


def parse(text: str) -> Demand:
    """A demand from how it is written.

    Args:
        text: such as `8×{GPU:1}`, `8x{GPU:1}`, or `{CPU:1, memory:4Gi}` for one. Amounts are numbers, or quantities as
            Kubernetes writes them; names may stand in quotes, as `ray status` prints them.

    Raises:
        CourseError: it is not written so; the sentence says where.

    Example:
        >>> parse("2×{CPU:1, memory:4Ki}")
        Demand(resources={'CPU': 1, 'memory': 4096}, count=2, labels={})
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise CourseError(f"{text!r:.80} is no demand.", LIKE)
    count = int(match[1] or 1)
    if not 1 <= count <= MOST:
        raise CourseError(f"{text!r:.80} has the count {count}, and it is from 1 to {MOST}.", LIKE)
    resources: dict[str, float] = {}
    for part in match[2].split(","):
        name, amount = _resource(part, text)
        if name in resources:
            raise CourseError(f"{text!r:.80} names {name} twice.", LIKE)
        resources[name] = amount
    return Demand(resources, count)


def demands(given: str | Demand | Iterable[str | Demand]) -> list[Demand]:
    """Demands from what is given: one or several, written or made; those of the same shape come together.

    Raises:
        CourseError: one is not written as `parse` reads it, or there are too many.
    """
    found: dict[Shape, Demand] = {}
    for one in [given] if isinstance(given, str | Demand) else given:
        demand = one if isinstance(one, Demand) else parse(one)
        before = found.get(demand.shape)
        found[demand.shape] = demand.times(demand.count + before.count) if before else demand
    if sum(demand.count for demand in found.values()) > MOST:
        raise CourseError(f"There are more than {MOST} tasks in it, which is too much to be packed here.", "Ask less.")
    return [demand for demand in found.values() if demand.count]


def shown(name: str, amount: float) -> str:
    """An amount as `parse` reads it: memory with a unit where that is exact."""
    if name == "memory" and amount:
        for power, unit in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
            if not amount % 1024**power:
                return f"{int(amount / 1024**power)}{unit}"
    return str(int(amount)) if float(amount).is_integer() else f"{amount:g}"


def _resource(part: str, text: str) -> tuple[str, float]:
    # the last colon: there are names with one, such as node:10.0.0.1
    name, colon, written = part.rpartition(":")
    name, written = name.strip().strip("'\""), written.strip()
    if not colon or not _NAME.fullmatch(name):
        what = f"the part {part.strip()!r:.40}" if part.strip() else "nothing"
        raise CourseError(f"In {text!r:.80} stands {what}, where a resource and its amount should stand.", LIKE)
    try:
        exact = quantity.parse(written)
    except ValueError:
        exact = None
    if exact is None or exact < 0:
        raise CourseError(f"In {text!r:.80}, {written!r:.40} is no amount of {name:.60}.", LIKE)
    return name, int(exact) if exact.denominator == 1 else float(exact)


def _constraint(key: str, value: str) -> tuple[str, bool, list[str]]:
    match = _SELECTOR.fullmatch(value) if isinstance(value, str) else None
    if not isinstance(key, str) or not match:
        raise CourseError(
            f"{key!s:.60}: {value!r:.60} is no label selector.",
            "Values are `a`, `!a`, `in(a, b)`, `!in(a, b)` or empty.",
        )
    values = [one.strip() for one in match["many"].split(",")] if match["many"] else [match["one"] or ""]
    return key, not match["no"], values


def _is_count(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count >= 0

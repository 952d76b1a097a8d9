"""What a cause is, and what looking for one gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from helpers.model import quantity
from helpers.observe.scene import Scene
from helpers.observe.things import Event

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"


@dataclass(frozen=True)
class Evidence:
    """One thing that was seen.

    Attributes:
        text: what was seen.
        command: what shows it.
    """

    text: str
    command: str

    def __str__(self) -> str:
        return f"{self.text}   [{self.command}]"


@dataclass(frozen=True)
class Found:
    """A cause that was found.

    Attributes:
        said: what is so, in one sentence, with the names of this cluster.
        evidence: what shows it, the strongest first.
        certainty: `CERTAIN` (a program says so), `LIKELY` (it follows from what is seen) or `POSSIBLE`.
        fix: what mends it, where that is not what the cause always says.
    """

    said: str
    evidence: tuple[Evidence, ...]
    certainty: str = CERTAIN
    fix: str = ""


@dataclass(frozen=True)
class Cause:
    """One cause for which a cluster does not move, or does not shrink.

    Attributes:
        id: as in `--json`.
        meaning: in a few words.
        fix: what mends it, in one sentence.
        look: looks at a scene. What it returns is the cause found; or what rules it out, in a few words; or an empty
            text, if there is nothing to tell by.
    """

    id: str
    meaning: str
    fix: str
    look: Callable[[Scene], Found | str]


def of_events(events: Iterable[Event], most: int = 3) -> tuple[Evidence, ...]:
    """Events as evidence, the newest first; those that say the same once."""
    told = dict.fromkeys(
        (str(event), f"kubectl describe {event.kind.lower()} {event.name}") for event in reversed(list(events))
    )
    return tuple(Evidence(text, command) for text, command in list(told)[:most])


def of_logs(scene: Scene, *needles: str, containers: Iterable[str] = (), most: int = 3) -> tuple[Evidence, ...]:
    """Lines of logs in which one of these texts stands, as evidence."""
    wanted = set(containers)
    return tuple(
        Evidence(line[:300], log.command)
        for log in scene.logs
        if not wanted or log.container in wanted
        for line in log.lines(*needles)[:most]
    )[:most]


def shape(bundle: Mapping[str, float]) -> str:
    """Resources as people write them.

    Example:
        >>> shape({"CPU": 1.0, "memory": 2**30})
        '{CPU: 1, memory: 1 GiB}'
    """
    return "{" + ", ".join(f"{name}: {_amount(name, amount)}" for name, amount in bundle.items()) + "}"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.4g} GiB" if name.endswith("memory") else f"{amount:g}"


def amount(quantity_: str | int) -> float:
    """A Kubernetes quantity as a number; 0 if it is none."""
    try:
        return float(quantity.parse(quantity_))
    except ValueError:
        return 0.0

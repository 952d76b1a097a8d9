"""What goes into a plan, and what comes out of it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from helpers import versions
from helpers.errors import CourseError
from helpers.model.demand import Demand, Gang
from helpers.model.raycluster import MAX_REPLICAS

V1, V2 = "v1", "v2"
MODES = ("Default", "Aggressive", "Conservative")  # of autoscalerOptions.upscalingMode
IDLE, MAX = "idle", "max-replicas"  # why a Ray node is stopped
REASONS = {
    "resource-not-declared": "no group has any of one of the resources asked for",
    "too-big-for-any-group": "each resource exists, but no Ray node of any group has enough of all",
    "max-replicas": "a group that fits is at its maxReplicas",
    "label-mismatch": "no group that fits has the labels asked for",
    "autoscaler-off": "enableInTreeAutoscaling is not true, so no autoscaler runs",
    "pack-too-big-for-one-node": "STRICT_PACK wants all bundles on one Ray node, and none is big enough for their sum",
    "spread-needs-more-nodes": "STRICT_SPREAD wants a Ray node for each bundle, and the groups may not have as many",
    "all-or-nothing": "it goes beyond the maximum of the groups, and v2 then launches nothing for it",
    "config-rejected": "the autoscaler cannot read the manifest, and launches nothing for any group",
}
AGAIN = "Mend that, then try again."

Amounts = Mapping[str, float]


@dataclass(frozen=True)
class NodeGroup:
    """A group of workers, where there is no manifest.

    Attributes:
        offers: what a Ray node of it has, as whole numbers by Ray's names; memory in bytes.
        least: minReplicas.
        most: maxReplicas.
        hosts: numOfHosts, Pods of one replica.
    """

    name: str
    offers: Mapping[str, int]
    least: int = 0
    most: int = MAX_REPLICAS
    hosts: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.hosts < 1:
            raise CourseError(
                f"The group {self.name} cannot have {self.least} to {self.most} replicas of {self.hosts} Pods.", AGAIN
            )
        for name, amount in self.offers.items():
            if not isinstance(amount, int) or amount < 0:
                raise CourseError(f"The group {self.name} offers {amount!r:.40} of {name}.", "Give a whole number.")


@dataclass(frozen=True)
class Running:
    """Worker Pods that have joined the Ray cluster.

    Attributes:
        free: what each of them has free, by Ray's names; what is not in it is in use. None: all of it.
        idle_s: for how long each has been idle.
    """

    group: str
    count: int = 1
    free: Amounts | None = None
    idle_s: float = 0

    def __post_init__(self) -> None:
        Demand(self.free or {}, self.count)  # amounts and a count of the same kind
        if not isinstance(self.idle_s, int | float) or not self.idle_s >= 0:
            raise CourseError(f"{self.idle_s!r:.40} is no time to be idle.", "Give seconds, 0 or more.")


@dataclass(frozen=True)
class Unmet:
    """What gets no place: how many of it, and a reason id of `REASONS`."""

    what: Demand | Gang
    reason: str


@dataclass(frozen=True)
class RayNode:
    """A Ray node in the plan.

    Attributes:
        state: "running", "pending" or "new".
        offers: what it has.
        free: what it will have free.
        takes: which of the demand go there; STRICT_PACK's bundles as one.
        holds: which of request_resources count on it.
        stops: "idle" or "max-replicas" if it is stopped, else empty.
    """

    name: str
    group: str
    state: str
    offers: Amounts
    free: Amounts
    takes: tuple[Demand, ...] = ()
    holds: tuple[Demand, ...] = ()
    stops: str = ""


@dataclass(frozen=True)
class Plan:
    """What the autoscaler would do at one look, if nothing limited how much it launches at once.

    Attributes:
        launch: Pods by group; a group with none is not in it.
        unmet: tasks and actors that get no place.
        unmet_groups: placement groups that get no place.
        unmet_request: the reason id, if request_resources is not met; else None.
        terminate: Pods stopped because they are idle, by group.
        over_max: Pods stopped because there are more than maxReplicas, by group.
        error: the reason id, if no plan is made at all; else None.
        rounds: what is launched in each round, by group, if what was launched is up before the next.
        nodes: every Ray node with what it takes. Of v1 there is none, which keeps no account of it.
        notes: what else is to be known of this plan, a sentence each.
    """

    version: str
    launch: Mapping[str, int]
    unmet: tuple[Unmet, ...] = ()
    unmet_groups: tuple[Unmet, ...] = ()
    unmet_request: str | None = None
    terminate: Mapping[str, int] = field(default_factory=dict)
    over_max: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    rounds: tuple[Mapping[str, int], ...] = ()
    nodes: tuple[RayNode, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def absorbed(self) -> dict[str, tuple[Demand, ...]]:
        """What Ray nodes take that run or are pending already, by their name; those that take nothing are left out."""
        return {node.name: node.takes for node in self.nodes if node.takes and node.state != "new"}

    def data(self) -> dict[str, Any]:
        """The plan as plain data, as `course plan --json` prints it."""
        return {
            "version": self.version,
            "launch": dict(self.launch),
            "unmet": [_demand_data(one.what) | {"reason": one.reason} for one in self.unmet],
            "unmet_groups": [
                {"strategy": one.what.strategy, "count": one.what.count, "reason": one.reason}
                for one in self.unmet_groups
            ],
            "unmet_request": self.unmet_request,
            "terminate": dict(self.terminate),
            "over_max": dict(self.over_max),
            "error": self.error,
            "rounds": [dict(one) for one in self.rounds],
            "absorbed": {name: [_demand_data(one) for one in takes] for name, takes in self.absorbed.items()},
            "notes": list(self.notes),
        }

    def rows(self) -> list[tuple[str, str]]:
        """What is to be said, each with the word that it begins with."""
        rows = [("stop", f"{_pods(self.terminate)}: idle")] if self.terminate else []
        rows += [("stop", f"{_pods(self.over_max)}: more than maxReplicas")] if self.over_max else []
        rows += [("launch", _pods(self.launch) or "nothing")] if not self.error else []
        if len(self.rounds) > 1:
            counts = [sum(one.values()) for one in self.rounds]
            first = ", ".join(map(str, counts[:8])) + (", …" if len(counts) > 8 else "")
            rows.append(("rounds", f"{len(counts)}, of {first} Pods, if those of one are up before the next"))
        rows += [("takes", f"{name}: {takes}") for name, takes in _taking(self.nodes)]
        rows += [("unmet", f"{one.what}: {_why(one.reason)}") for one in (*self.unmet, *self.unmet_groups)]
        rows += [("unmet", f"request_resources: {_why(self.unmet_request)}")] if self.unmet_request else []
        rows += [("error", _why(self.error))] if self.error else []
        return rows + [("note", one) for one in self.notes]

    def __str__(self) -> str:
        rows = self.rows()
        return "\n".join([f"The autoscaler {self.version} of Ray {versions.RAY}:"] + [f"  {a:<7} {b}" for a, b in rows])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _taking(nodes: Iterable[RayNode]) -> Iterator[tuple[str, str]]:
    """What Ray nodes take that are there; those of a group that stand side by side and take the same have one name."""
    there = (node for node in nodes if node.state != "new")
    for (_, takes), alike in groupby(there, lambda node: (node.group, ", ".join(map(str, node.takes)))):
        first, *others = (node.name for node in alike)
        if takes:
            yield f"{first} to {others[-1]}, each" if others else first, takes


def _pods(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {'Pod' if count == 1 else 'Pods'} of {name}" for name, count in counts.items())


def _why(reason: str) -> str:
    return f"{reason}: {REASONS[reason]}"


def _demand_data(one: Demand) -> dict[str, Any]:
    data = {"resources": dict(one.resources), "count": one.count}
    return data | ({"labels": dict(one.labels)} if one.labels else {})

"""Why something stays unmet: Ray does not say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from helpers.model.demand import Demand, Gang
from helpers.model.planner.decision import Types, packed
from helpers.model.planner.plans import Amounts

_EVERYWHERE = "node:__internal_implicit_resource_"  # each Ray node has 1 of such (IMPLICIT_RESOURCE_PREFIX in _raylet)
# which of several reasons is told: the one that must be mended first
_FIRST = ("autoscaler-off", "resource-not-declared", "too-big-for-any-group", "label-mismatch", "max-replicas")


@dataclass(frozen=True)
class Reasons:
    """Finds the reason of what stays unmet: by what the groups offer, their labels, and how many there may be."""

    types: Types
    is_off: bool
    is_v2: bool

    def of_demand(self, one: Demand) -> str:
        if self.is_off:
            return "autoscaler-off"
        if self._missing(one):
            return "resource-not-declared"
        fitting = [config for config in self.types.configs.values() if _fits(config.resources, one)]
        if not fitting:
            return "too-big-for-any-group"
        return "max-replicas" if any(one.allows(config.labels) for config in fitting) else "label-mismatch"

    def of_gang(self, gang: Gang) -> str:
        first = _first(map(self.of_demand, packed(gang)))
        if gang.strategy == "STRICT_PACK" and first == "too-big-for-any-group":
            return "pack-too-big-for-one-node"
        if gang.strategy == "STRICT_SPREAD" and first == "max-replicas" and not self._can_spread(gang):
            return "spread-needs-more-nodes"
        return first

    def of_request(self, unmet: Sequence[Demand]) -> str | None:
        first = _first(map(self.of_demand, unmet)) if unmet else None
        return "all-or-nothing" if self.is_v2 and first == "max-replicas" else first

    def not_declared(self, unmet: Sequence[Demand]) -> list[str]:
        """Which resources no group has, a sentence each."""
        names = dict.fromkeys(name for one in unmet if not self.is_off for name in self._missing(one))
        known = {there.lower(): there for config in self.types.configs.values() for there in config.resources}
        return [
            f"No group has any {name}." + (f" Ray's name is {known[name.lower()]}." if name.lower() in known else "")
            for name in names
        ]

    def _missing(self, one: Demand) -> list[str]:
        offers = [config.resources for config in self.types.configs.values()]
        return [name for name, _ in one.shape[0] if not any(_amount(there, name) for there in offers)]

    def _can_spread(self, gang: Gang) -> bool:
        """Whether each bundle can have a Ray node of its own, if there are as many as there may be of each group."""
        bundles, rooms = gang.each, {name: one.max_worker_nodes for name, one in self.types.configs.items()}
        on: dict[str, list[int]] = {name: [] for name in rooms}

        def place(number: int, tried: set[str]) -> bool:
            for name, config in self.types.configs.items():
                fits = _fits(config.resources, bundles[number]) and bundles[number].allows(config.labels)
                if name in tried or not fits:
                    continue
                tried.add(name)
                if len(on[name]) < rooms[name]:
                    on[name].append(number)
                    return True
                for place_of, other in enumerate(on[name]):
                    if place(other, tried):  # it moves to another group, and makes room
                        on[name][place_of] = number
                        return True
            return False

        return all(place(number, set()) for number in range(len(bundles)))


def _first(reasons: Iterable[str]) -> str:
    return min(reasons, key=_FIRST.index)


def _amount(offers: Amounts, name: str) -> float:
    return offers.get(name, 1 if name.startswith(_EVERYWHERE) else 0)


def _fits(offers: Amounts, one: Demand) -> bool:
    return all(_amount(offers, name) >= amount for name, amount in one.shape[0])

"""On which machines Kubernetes could place the Pods of a RayCluster: requests, taints, labels.

What the scheduler of Kubernetes looks at (its plug-ins NodeResourcesFit, TaintToleration, NodeAffinity, as documented),
for machines on which nothing else runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from helpers.model import quantity
from helpers.model.raycluster import Cluster, Group

# what KubeRay gives the autoscaler's container, which is in the head's Pod (BuildAutoscalerContainer in pod.go), and
# the init container of a worker (DefaultWorkerPodTemplate)
AUTOSCALER = {"cpu": "500m", "memory": "512Mi"}
WAIT_GCS_READY = {"cpu": "200m", "memory": "256Mi"}

RESTART_POLICIES = ("Always", "OnFailure", "Never")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

Amounts = Mapping[str, Fraction]


@dataclass(frozen=True)
class Taint:
    """What keeps Pods away that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True)
class Machine:
    """A Kubernetes node.

    Attributes:
        offers: what it has for Pods, as quantities by name, such as {"cpu": "8", "memory": "16Gi"}.
    """

    name: str
    offers: Mapping[str, str | int]
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def pod_refusals(group: Group) -> list[str]:
    """What the API server refuses a group's Pods for, once the operator makes them; a sentence each.

    ValidatePodSpec of Kubernetes, as far as resources, tolerations and the restart policy go.
    """
    found = []
    written = group.container.get("resources") or {}
    limits, requests = written.get("limits") or {}, written.get("requests") or {}
    for name, amount in [*limits.items(), *requests.items()]:
        exact = quantity.parse(amount)
        if exact < 0:
            found.append(f"{name} is {amount}, below 0")
        elif "/" in name and exact.denominator != 1:
            found.append(f"{name} is {amount}, and of such a device there are only whole ones")
    for name, amount in requests.items():
        if "/" in name and name not in limits:
            found.append(f"{name} must stand in the limits, and it does only in the requests")
        elif name in limits and quantity.parse(amount) > quantity.parse(limits[name]):
            found.append(f"the request of {name} is above its limit")
        elif "/" in name and quantity.parse(amount) != quantity.parse(limits[name]):
            found.append(f"of {name} request and limit must be the same")
    for toleration in group.pod.get("tolerations") or ():
        found += _toleration_refusals(toleration)
    policy = group.pod.get("restartPolicy") or "Never"
    if policy not in RESTART_POLICIES:
        found.append(f"the restartPolicy {policy!r:.40} is none of {', '.join(RESTART_POLICIES)}")
    return found


def _toleration_refusals(toleration: Mapping[str, Any]) -> Iterator[str]:
    operator, effect = toleration.get("operator") or "Equal", toleration.get("effect") or EFFECTS[0]
    if operator not in ("Exists", "Equal"):
        yield f"a toleration has the operator {operator!r:.40}, and it is Exists or Equal"
    if operator == "Exists" and toleration.get("value"):
        yield "a toleration with the operator Exists has a value, and takes none"
    if operator == "Equal" and not toleration.get("key"):
        yield "a toleration without a key needs the operator Exists"
    if effect not in EFFECTS:
        yield f"a toleration has the effect {effect!r:.40}, and it is one of {', '.join(EFFECTS)}"


def needs(cluster: Cluster, group: Group) -> dict[str, Fraction]:
    """What a Pod of the group asks of a machine: the sum of its containers, or the largest of its init containers."""
    containers = [_requests(one.get("resources") or {}) for one in group.pod["containers"]]
    first = [_requests(one.get("resources") or {}) for one in group.pod.get("initContainers") or ()]
    if group.is_head and cluster.is_autoscaling:
        containers.append(_requests(cluster.options.get("resources") or {"requests": AUTOSCALER}))
    if not group.is_head:
        first.append(_requests({"requests": WAIT_GCS_READY}))
    summed: dict[str, Fraction] = {}
    for one in containers:
        for name, amount in one.items():
            summed[name] = summed.get(name, Fraction(0)) + amount
    for one in first:
        for name, amount in one.items():
            summed[name] = max(summed.get(name, Fraction(0)), amount)
    return summed


def why_not(cluster: Cluster, group: Group, machine: Machine) -> str:
    """Why a Pod of the group cannot be on a machine that is empty; empty if it can."""
    tolerations = group.pod.get("tolerations") or ()
    for taint in machine.taints:
        if taint.effect != "PreferNoSchedule" and not any(_tolerates(one, taint) for one in tolerations):
            return f"{machine.name} has the taint {taint}, which it does not tolerate"
    for name, amount in needs(cluster, group).items():
        there = quantity.parse(machine.offers.get(name, 0))
        if amount > there:
            return f"it asks for {_shown(name, amount)} of {name}, and {machine.name} has {_shown(name, there)}"
    missing = _label_missing(group.pod, machine)
    return f"{machine.name} has not the label {missing} that it asks for" if missing else ""


def places(cluster: Cluster, group: Group, machines: Iterable[Machine]) -> list[str]:
    """The names of the machines that a Pod of the group could be on, if they were empty."""
    return [machine.name for machine in machines if not why_not(cluster, group, machine)]


def left_over(cluster: Cluster, counts: Mapping[str, int], machines: Sequence[Machine]) -> dict[str, int]:
    """How many Pods of each group find no room, if all are placed one after the other.

    Those that fit on the fewest machines come first, then the biggest; each takes the first machine with room.

    Args:
        counts: how many Pods of each group there are, by its name.

    Returns:
        By the group's name; a group of which all Pods have room is not in it.
    """
    free = {machine.name: {k: quantity.parse(v) for k, v in machine.offers.items()} for machine in machines}
    groups = sorted(
        cluster.groups, key=lambda one: (len(places(cluster, one, machines)), -needs(cluster, one).get("cpu", 0))
    )
    unplaced: dict[str, int] = {}
    for group in groups:
        asked, possible = needs(cluster, group), places(cluster, group, machines)
        for number in range(counts.get(group.name, 0)):
            room = next((name for name in possible if _fits(asked, free[name])), None)
            if room is None:
                unplaced[group.name] = counts[group.name] - number
                break
            for name, amount in asked.items():
                free[room][name] = free[room].get(name, Fraction(0)) - amount
    return unplaced


def _fits(asked: Amounts, free: Amounts) -> bool:
    return all(free.get(name, 0) >= amount for name, amount in asked.items() if amount)


def _requests(resources: Mapping[str, Any]) -> dict[str, Fraction]:
    written = dict(resources.get("limits") or {}) | dict(resources.get("requests") or {})
    return {name: quantity.parse(amount) for name, amount in written.items()}


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if operator == "Exists":
        return key in ("", taint.key)
    return operator == "Equal" and key == taint.key and (toleration.get("value") or "") == taint.value


def _label_missing(pod: Mapping[str, Any], machine: Machine) -> str:
    for key, value in (pod.get("nodeSelector") or {}).items():
        if machine.labels.get(key) != value:
            return f"{key}={value}"
    affinity = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (affinity or {}).get("nodeSelectorTerms") or ()
    if terms and not any(all(_matches(one, machine) for one in term.get("matchExpressions") or ()) for term in terms):
        return "of its nodeAffinity"
    return ""


def _matches(expression: Mapping[str, Any], machine: Machine) -> bool:
    there = machine.labels.get(expression["key"])
    values = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return there in values
        case "NotIn":
            return there not in values
        case "Exists":
            return there is not None
        case "DoesNotExist":
            return there is None
    return False


def _shown(name: str, amount: Fraction) -> str:
    return f"{float(amount) / 2**30:g} GiB" if name == "memory" else f"{float(amount):g}"

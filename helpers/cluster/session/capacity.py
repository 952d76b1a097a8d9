"""What the Kubernetes nodes have, and what of it Pods have not asked for yet."""

from __future__ import annotations

from collections import Counter

from helpers.cluster.session.tables import condition
from helpers.cluster.session.templates import amount
from helpers.kube import Kube, if_allowed

GIB = 2**30
GPU = "nvidia.com/gpu"


def capacity(kube: Kube) -> str:
    """In words: how many Kubernetes nodes are ready, and what is free on them."""
    seen = if_allowed(lambda: [kube.list(kube.resource(kind), "") for kind in ("nodes", "pods")])
    if seen is None:
        return "its Kubernetes nodes do not show to you"
    machines, pods = seen
    usable = {thing["metadata"]["name"] for thing in machines if _takes_pods(thing)}
    return describe(
        [thing for thing in machines if thing["metadata"]["name"] in usable], pods, len(machines) - len(usable)
    )


def gpus_of_nodes(kube: Kube) -> dict[str, int]:
    """How many GPUs each Kubernetes node has, by its name; nothing where this user may not see them."""
    machines = if_allowed(lambda: kube.list(kube.resource("nodes"), "")) or []
    return {one["metadata"]["name"]: gpus(one) for one in machines}


def gpus(node: dict) -> int:
    """How many GPUs Pods may have of a Kubernetes node."""
    told = str(node["status"].get("allocatable", {}).get(GPU, "0"))
    return int(told) if told.isdecimal() else 0


def describe(machines: list[dict], pods: list[dict], others: int = 0) -> str:
    """The sentence, from the objects.

    Args:
        machines: Kubernetes nodes that take Pods.
        pods: all Pods.
        others: Kubernetes nodes that take none.
    """
    names = {thing["metadata"]["name"] for thing in machines}
    total = _sum(thing["status"]["allocatable"] for thing in machines)
    used = _sum(
        container.get("resources", {}).get("requests", {})
        for pod in pods
        if pod["spec"].get("nodeName") in names and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        for container in pod["spec"]["containers"]
    )
    free = {name: total[name] - used[name] for name in total}
    parts = [f"{free.get('cpu', 0):g} of {total['cpu']:g} CPUs"]
    parts.append(f"{free.get('memory', 0) / GIB:.0f} of {total['memory'] / GIB:.0f} GiB")
    if total[GPU]:
        parts.append(f"{free[GPU]:g} of {total[GPU]:g} GPUs")
    count = f"{len(machines)} Kubernetes node{'' if len(machines) == 1 else 's'}"
    unready = f"; ✘ {others} more not ready" if others else ""
    return f"{count} with {', '.join(parts)} free{unready}"


def _takes_pods(thing: dict) -> bool:
    return condition(thing, "Ready").get("status") == "True" and not thing["spec"].get("unschedulable")


def _sum(amounts) -> Counter:
    found: Counter = Counter()
    for one in amounts:
        for name, value in one.items():
            found[name] += float(amount(value) or 0)
    return found

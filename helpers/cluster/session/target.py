"""What a notebook names, as `raycluster/demo`, and all that belongs to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.errors import CourseError
from helpers.kube import Kube, Resource

# kinds that own others, or are owned, where KubeRay and Kubernetes' own controllers work
FAMILY = ("rayjobs", "rayservices", "rayclusters", "deployments", "replicasets", "jobs", "services", "pods")
CLUSTER_LABEL, GROUP_LABEL, TYPE_LABEL = "ray.io/cluster", "ray.io/group", "ray.io/node-type"  # KubeRay, constant.go
HEAD_GROUP = "headgroup"


@dataclass(frozen=True)
class Target:
    """One object of a namespace, by name."""

    resource: Resource
    name: str

    def __str__(self) -> str:
        return self.resource.label(self.name)


def read(kube: Kube, text: str) -> Target:
    """The target that `kind/name` names.

    Raises:
        CourseError: if it is not of that form, or there is no such kind.
    """
    kind, slash, name = text.partition("/")
    if not slash or not kind or not name or "/" in name:
        raise CourseError(f'"{text}" names no object.', "Write kind and name, such as `raycluster/demo`.")
    return Target(kube.resource(kind), name)


def family(kube: Kube, namespace: str, top: dict) -> list[dict]:
    """An object and all that it owns, directly or not, that are there now."""
    everything = [thing for kind in FAMILY for thing in listed(kube, kind, namespace)]
    found, uids = [top], {top["metadata"]["uid"]}
    while True:
        more = [thing for thing in everything if owners(thing) & uids and thing["metadata"]["uid"] not in uids]
        if not more:
            return found
        found += more
        uids |= {thing["metadata"]["uid"] for thing in more}


def listed(kube: Kube, kind: str, namespace: str, selector: str = "") -> list[dict]:
    """All objects of a kind; none if the cluster does not know the kind."""
    resource = kube.find(kind)
    return kube.list(resource, namespace, selector) if resource else []


def owners(thing: dict) -> set[str]:
    """The uids of what owns an object."""
    return {owner["uid"] for owner in thing["metadata"].get("ownerReferences", [])}


def events_of(events: Iterable[dict], things: Iterable[dict]) -> list[dict]:
    """Those of all events that are about the objects, or about Pods of theirs that are gone; oldest first.

    A Pod that is gone is known by its name: KubeRay calls Pods `<cluster>-head-<5>` and `<cluster>-<group>-worker-<5>`.
    """
    things = list(things)
    uids = {thing["metadata"]["uid"] for thing in things}
    clusters = [thing for thing in things if thing["kind"] == "RayCluster"]
    found = [
        event
        for event in events
        if event["involvedObject"].get("uid") in uids or any(_is_of_gone_pod(event, cluster) for cluster in clusters)
    ]
    return sorted(found, key=when)


def when(event: dict) -> str:
    """When an event happened last, in UTC as Kubernetes writes it; events are recorded to the second."""
    series = event.get("series") or {}
    told = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return (told or event["metadata"]["creationTimestamp"])[:19] + "Z"


def _is_of_gone_pod(event: dict, cluster: dict) -> bool:
    about, meta = event["involvedObject"], cluster["metadata"]
    groups = "|".join(re.escape(group["groupName"]) for group in cluster["spec"].get("workerGroupSpecs", []))
    name = re.escape(meta["name"]) + rf"-(head|({groups})-worker)-[a-z0-9]{{5}}"
    # one of the same name that was deleted before had Pods of such names too
    is_later = event["metadata"]["creationTimestamp"] >= meta["creationTimestamp"]
    return about["kind"] == "Pod" and is_later and bool(re.fullmatch(name, about["name"]))

"""The manifest that is planned for, or groups in its place: read, and refused where the API server refuses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from helpers import versions
from helpers.errors import CourseError
from helpers.model import crds, manifest, raycluster
from helpers.model.findings import UNREADABLE
from helpers.model.planner.plans import AGAIN, V2, NodeGroup
from helpers.model.raycluster import Cluster, Group

_RESIZE = "ray.io/ippr"  # an annotation (ippr_provider.py)


def cluster_in(source: str | Mapping[str, Any] | Sequence[NodeGroup]) -> Cluster:
    """The one cluster in a manifest, or one with these groups and a head that offers no CPU.

    Raises:
        CourseError: it cannot be read, the API server refuses it, or there is not one cluster in it.
    """
    groups = source if isinstance(source, Sequence) and not isinstance(source, str) else None
    if groups is not None and all(isinstance(one, NodeGroup) for one in groups):
        return raycluster.cluster_of(document_of(groups, {}))
    found, left = crds.known(manifest.read(source))
    if left:
        raise CourseError(f"Not all of it can be planned with: {left[0]}", AGAIN)
    for one in found:
        # what the schema does not know is dropped, if `kubectl apply` does not refuse it
        for fault in crds.faults(one.data):
            if fault.rule != "unknown-field":
                where = f"line {one.line_of(fault.path)}, " if one.lines else ""
                stored = fault.rule == UNREADABLE
                said = "No plan can be made of this manifest" if stored else "The API server refuses this manifest"
                raise CourseError(f"{said}: {where}{fault}.", AGAIN)
    clusters = [one for one in (raycluster.cluster_of(document.data) for document in found) if one]
    if len(clusters) != 1:
        raise CourseError(
            f"There are {len(clusters)} Ray clusters in it, and a plan is made for one.",
            "Give one RayCluster, or a RayJob or RayService that has one in it.",
        )
    for group in clusters[0].groups:
        if not group.pod.get("containers"):
            raise CourseError(f"There is no container in {group.path}.", AGAIN)
    return clusters[0]


def document_of(groups: Sequence[NodeGroup], options: Mapping[str, Any]) -> dict[str, Any]:
    """A RayCluster with these groups, and a head that offers no CPU."""
    template = {"spec": {"containers": [{"name": "ray"}]}}
    workers = [
        {
            "groupName": group.name,
            "minReplicas": group.least,
            "maxReplicas": group.most,
            "numOfHosts": group.hosts,
            "resources": {"CPU": "0"} | {name: str(amount) for name, amount in group.offers.items()},
            "labels": dict(group.labels),
            "template": template,
        }
        for group in groups
    ]
    head = {"resources": {"CPU": "0"}, "template": template}
    spec = {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": V2} | dict(options),
        "headGroupSpec": head,
        "workerGroupSpecs": workers,
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "groups"}, "spec": spec}


def offered(group: Group) -> dict[str, float]:
    """What Ray counts on a Ray node of this group: what the autoscaler reads, and over it what `ray start` is told."""
    found: dict[str, Any] = {}
    for name in ("counted", "offers"):
        with suppress(ValueError):  # it is not read, or not started so; what the other says is left
            found |= getattr(group, name)
    return {name: amount for name, amount in found.items() if isinstance(amount, int | float)}


def remarks(cluster: Cluster) -> list[str]:
    """Where a plan is not what the cluster would do."""
    said = [f"KubeRay's operator refuses this manifest: {one}." for one in raycluster.refusals(cluster)]
    written = raycluster.version_in(cluster.spec.get("rayVersion") or "")
    if written and ".".join(map(str, written)) != versions.RAY:
        said.append(f"The manifest is for Ray {cluster.spec['rayVersion']}, and the plan is Ray {versions.RAY}'s.")
    if _RESIZE in (cluster.document["metadata"].get("annotations") or {}):
        said.append(f"Pods that run may be made bigger first, by {_RESIZE}: that is not in the plan.")
    return said


def whole(group: Group | None, pods: int) -> str:
    """KubeRay makes whole replicas; `_submit_scale_request` in v2's cloud_provider.py rounds down."""
    if group is None or not pods % group.hosts:
        return ""
    return f"Of {pods} Pods of {group.name}, {pods // group.hosts * group.hosts} come: a replica has {group.hosts}."

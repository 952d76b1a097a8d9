"""Which edits of a cluster's spec KubeRay takes for another cluster, and what it does then.

Sources, KubeRay 1.6.2: `GenerateHashWithoutReplicasAndWorkersToDelete` in util.go, `shouldRecreatePodsForUpgrade` in
raycluster_controller.go, `shouldUpdateCluster`, `shouldPrepareNewCluster` and `isZeroDowntimeUpgradeEnabled` in
rayservice_controller.go. The hash is over what Go writes of the spec as JSON, so two texts are alike if Go reads the
same from both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helpers.model import crds, quantity
from helpers.model.lint import refusals
from helpers.model.raycluster import Cluster, cluster_of
from helpers.model.releases import PINNED, Releases

# fields that are pointers to a struct in Go, so that an empty one is not the same as none
_POINTERS = {"autoscalerOptions", "authOptions", "gcsFaultToleranceOptions", "headService", "securityContext"}
_POINTERS |= {"affinity", "nodeAffinity", "podAffinity", "podAntiAffinity", "emptyDir", "dnsConfig", "lifecycle"}
_POINTERS |= {"livenessProbe", "readinessProbe", "startupProbe", "preStop", "postStart", "valueFrom"}
# fields of Go that are written even if they are empty
_ALWAYS = {"rayStartParams"}
# and numbers, texts and truth values that are pointers, so that 0 and false are not the same as none
_POINTER_FIELDS = {"suspend", "enableInTreeAutoscaling", "enableIngress", "idleTimeoutSeconds", "runAsUser"}
_POINTER_FIELDS |= {"runAsGroup", "fsGroup", "runAsNonRoot", "privileged", "allowPrivilegeEscalation", "optional"}
_POINTER_FIELDS |= {"readOnlyRootFilesystem", "terminationGracePeriodSeconds", "activeDeadlineSeconds", "priority"}
_POINTER_FIELDS |= {"automountServiceAccountToken", "shareProcessNamespace", "enableServiceLinks", "hostUsers"}
_POINTER_FIELDS |= {"setHostnameAsFQDN", "tolerationSeconds", "defaultMode", "mode", "expirationSeconds", "image"}
_POINTER_FIELDS |= {"upscalingMode", "version", "secretName", "enableK8sTokenAuth", "runtimeClassName", "managedBy"}


@dataclass(frozen=True)
class ClusterEdit:
    """What an edit of a RayCluster does.

    Attributes:
        running_pods_replaced: whether all Pods are deleted and made again.
        bounds_change: whether the autoscaler gets other bounds.
        new_pods_use_new_template: whether Pods that are made from now on are of the new text.
    """

    running_pods_replaced: bool
    bounds_change: bool
    new_pods_use_new_template: bool


def of_raycluster(before: Mapping[str, Any], after: Mapping[str, Any], releases: Releases = PINNED) -> ClusterEdit:
    """What the operator makes of an edit of a RayCluster that runs; nothing, if it is refused.

    Args:
        before: the document that it was made from.
        after: the document that is applied now.
    """
    if refusals(after, releases):
        return ClusterEdit(False, False, False)
    old, new = cluster_of(before), cluster_of(after)
    strategy = (new.spec.get("upgradeStrategy") or {}).get("type")
    was = {group.name: group.bounds for group in old.workers}
    moved = any(group.name in was and group.bounds != was[group.name] for group in new.workers)
    replaced = strategy == "Recreate" and hashed(old) != hashed(new) and not new.spec.get("suspend")
    return ClusterEdit(replaced, moved, True)


def of_rayservice(before: Mapping[str, Any], after: Mapping[str, Any], releases: Releases = PINNED) -> bool:
    """Whether an edit of a RayService makes a second cluster; what is refused makes none."""
    if refusals(after, releases):
        return False
    old, new = cluster_of(before), cluster_of(after)
    strategy = (after["spec"].get("upgradeStrategy") or {}).get("type")
    incremental = strategy == "NewClusterWithIncrementalUpgrade" and releases.kuberay >= (1, 7, 0)
    if strategy not in (None, "", "NewCluster") and not incremental:
        return False
    if bool(old.spec.get("suspend")) != bool(new.spec.get("suspend")):
        return False  # `shouldUpdateCluster`: the cluster that is there gets all of the new spec
    was, goal = hashed(old), hashed(new)
    if was == goal:
        return False
    # groups that are added at the end are added to the cluster that is there
    count = len(old.workers)
    goal["workerGroupSpecs"] = goal["workerGroupSpecs"][:count]
    return len(new.workers) < count or was != goal


def hashed(cluster: Cluster) -> dict[str, Any]:
    """What of a cluster's spec goes into the hash, as Go reads it: two that are equal have the same hash."""
    # of a RayCluster, `setDefaults` has put empty rayStartParams where there are none
    params = {"rayStartParams": {}} if cluster.document["kind"] == "RayCluster" else {}
    spec = {key: value for key, value in cluster.spec.items() if key != "upgradeStrategy"}
    spec["headGroupSpec"] = params | _muted(spec["headGroupSpec"], ())
    groups = [
        params | _muted(group, ("replicas", "minReplicas", "maxReplicas")) | {"scaleStrategy": _strategy(group)}
        for group in spec.pop("workerGroupSpecs", None) or ()
    ]
    schema = crds.schema("RayCluster", "spec")
    worker = crds.resolved(crds.resolved(schema["properties"]["workerGroupSpecs"])["items"])
    read = [_read(group, worker) for group in groups]
    for group in read:
        for name in ("replicas", "minReplicas", "maxReplicas"):  # muted, so that their defaults are not there either
            group.pop(name, None)
    return _read(spec, schema) | {"workerGroupSpecs": read}


def _muted(group: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    pod = {
        key: value
        for key, value in (group["template"].get("spec") or {}).items()
        if key not in ("tolerations", "schedulingGates")
    }
    return {key: value for key, value in group.items() if key not in names} | {
        "template": {**group["template"], "spec": pod}
    }


def _strategy(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (group.get("scaleStrategy") or {}).items() if key != "workersToDelete"}


def _read(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value as Go holds it: with the CRD's defaults, and without what Go does not write."""
    if schema.get("x-kubernetes-int-or-string"):
        return _quantity(value) if "pattern" in schema else value
    if isinstance(value, list):
        return [_read(one, crds.resolved(schema["items"])) for one in value]
    if not isinstance(value, Mapping):
        return value
    fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
    made = {}
    for key in {*fields, *value}:
        below = crds.resolved(fields.get(key) or rest or {})
        there = value.get(key)
        if there is None:
            there = below.get("default")
        read = _read(there, below)
        if read is None or (key in fields and _is_left_out(read, key, below)):
            continue
        made[key] = read
    return made


def _is_left_out(value: Any, name: str, schema: Mapping[str, Any]) -> bool:
    """Whether Go's `omitempty` drops it."""
    if name in _ALWAYS or (isinstance(value, Mapping) and name in _POINTERS):
        return False
    if isinstance(value, Mapping | list):
        return not value
    return value in ("", 0, False) and name not in _POINTER_FIELDS


def _quantity(value: Any) -> Any:
    try:
        return None if value is None else (quantity.parse(value), str(value)[-1:] == "i")
    except ValueError:
        return value

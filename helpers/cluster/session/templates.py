"""Whether the Pods that run are as a RayCluster's templates say; nothing here asks the cluster.

KubeRay compares the number of Pods, never their templates, so that a changed template reaches new Pods only (field
report S07; KubeRay 1.6.2, raycluster_controller.go:802-948), unless `upgradeStrategy.type` is Recreate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

from helpers.cluster.session.tables import is_ending
from helpers.cluster.session.target import GROUP_LABEL, TYPE_LABEL

COMMAND = "KUBERAY_GEN_RAY_START_CMD"  # KubeRay puts the command that it made in the container's environment
COUNTS = {"replicas", "minReplicas", "maxReplicas", "scaleStrategy", "idleTimeoutSeconds", "suspend", "numOfHosts"}
SUFFIX = {"": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SUFFIX |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(|m|k|M|G|T|Ki|Mi|Gi|Ti)")


def stale(cluster: dict, pods: Iterable[dict], before: dict | None = None) -> list[dict]:
    """The Pods of a RayCluster that are not as its templates say now.

    Args:
        cluster: as it is now.
        pods: its Pods.
        before: the RayCluster before its last change. What was taken out of a template shows only against this.
    """
    return [pod for pod in pods if not is_ending(pod) and _is_stale(pod, cluster, before)]


def _is_stale(pod: dict, cluster: dict, before: dict | None) -> bool:
    group = _group_of(pod, cluster)
    if group is None:
        return False  # of a group that is gone, or no Ray node
    old = _group_of(pod, before) if before else None
    changed = old is not None and not _same(_without_counts(old), _without_counts(group))
    return changed or not _was_made_from(pod, group)


def is_head(pod: dict) -> bool:
    """Whether a Pod is the head of its cluster."""
    return pod["metadata"].get("labels", {}).get(TYPE_LABEL) == "head"


def _group_of(pod: dict, cluster: dict) -> dict | None:
    labels, spec = pod["metadata"].get("labels", {}), cluster["spec"]
    if is_head(pod):
        return spec["headGroupSpec"]
    groups = spec.get("workerGroupSpecs", [])
    return next((group for group in groups if group["groupName"] == labels.get(GROUP_LABEL)), None)


def _without_counts(group: dict) -> dict:
    return {field: value for field, value in group.items() if field not in COUNTS}


def _same(one: object, other: object) -> bool:
    return _holds(one, other) and _holds(other, one)


def _was_made_from(pod: dict, group: dict) -> bool:
    """Whether all that the group says is in the Pod; what else the Pod has, others put there."""
    template = group["template"]
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    labels = metadata.get("labels", {}) | group.get("labels", {})
    asked = {"labels": labels, "annotations": metadata.get("annotations", {})}
    mine = {field: value for field, value in spec.items() if field not in ("containers", "restartPolicy")}
    containers = spec.get("containers", [])
    return (
        _holds(pod["metadata"], asked)
        and _holds(pod["spec"], mine)
        and all(map(_holds_container, _named(pod["spec"]["containers"], containers), containers))
        and _has_parameters(pod, group.get("rayStartParams") or {})
    )


def _named(there: Sequence[dict], wanted: Sequence[dict]) -> list[dict]:
    by_name = {container["name"]: container for container in there}
    return [by_name.get(container.get("name"), {}) for container in wanted]


def _holds_container(there: dict, wanted: dict) -> bool:
    # KubeRay puts `ray start` behind a command of one's own
    told = {field: value for field, value in wanted.items() if field not in ("command", "args")}
    return _holds(there, told)


def _holds(there: object, wanted: object) -> bool:
    """Whether `there` has everything of `wanted`; lists of named things by their names, quantities by what they say."""
    if isinstance(wanted, dict):
        there = there or {}  # the API server leaves out what is empty
        return isinstance(there, dict) and all(_holds(there.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        there = there or []
        if all(isinstance(item, dict) and "name" in item for item in wanted):
            return all(any(_holds(one, item) for one in there if one.get("name") == item["name"]) for item in wanted)
        return all(any(_holds(one, item) for one in there) for item in wanted)
    if there is None:
        return wanted in (None, "", 0, False)
    return there == wanted or (amount(there) is not None and amount(there) == amount(wanted))


def amount(value: object) -> Decimal | None:
    """A quantity of Kubernetes as a number: `500m`, `"1"`, `2Gi`."""
    match = QUANTITY.fullmatch(str(value)) if not isinstance(value, bool) else None
    return Decimal(match[1]) * SUFFIX[match[2]] if match else None


def _has_parameters(pod: dict, parameters: dict) -> bool:
    """Whether the Pod's `ray start` has these flags: `true` is written as a bare flag, `false` mostly not at all."""
    env = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0].get("env", [])}
    if COMMAND not in env:
        return True
    words = env[COMMAND].split()
    return all(
        f"--{name}={value}" in words or (value == "true" and f"--{name}" in words) or value == "false"
        for name, value in parameters.items()
        if " " not in value  # it was split
    )

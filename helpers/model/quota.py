"""Which Pods a ResourceQuota keeps out for what they do not say.

Kubernetes, pkg/quota/v1/evaluator/core/pods.go (`Constraints`): where a quota counts limits or requests of CPU or
memory, each container of a Pod must have them, or the Pod is refused; and what a LimitRange puts in first
(`SetDefaults_LimitRangeItem` in pkg/apis/core/v1/defaults.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from helpers.model.findings import ERROR, Finding
from helpers.model.raycluster import Cluster

# what a quota counts, as (part of a container's resources, resource)
_COUNTED = {"cpu": ("requests", "cpu"), "memory": ("requests", "memory")}
_COUNTED |= {f"{part}.{name}": (part, name) for part in ("limits", "requests") for name in ("cpu", "memory")}

Document = Mapping[str, Any]


def missing(document: Document, cluster: Cluster | None, context: Sequence[Document]) -> Iterator[Finding]:
    """The containers whose Pods the namespace's quota keeps out; errors.

    Args:
        context: the other documents of the namespace, of any kind.
    """
    here = [one for one in context if _is_here(one, document)]
    quotas = [one for one in here if one.get("kind") == "ResourceQuota"]
    defaults = _defaults([one for one in here if one.get("kind") == "LimitRange"])
    for pod, containers in _pods(document, cluster):
        wanted: dict[tuple[str, str], str] = {}
        for quota in quotas:
            spec = _dict(quota.get("spec"))
            if _counts(spec, pod):
                name = _dict(quota.get("metadata")).get("name", "")
                wanted |= {_COUNTED[key]: name for key in _dict(spec.get("hard")) if key in _COUNTED}
        for path, resources in containers:
            lacks = [key for key in wanted if not _has(resources, key, defaults)]
            if lacks:
                what = " and ".join(f"{part}.{name}" for part, name in lacks)
                said = f"the quota {wanted[lacks[0]]!r:.60} counts {what}, which this container does not have"
                yield Finding("quota-needs-limit", path, ERROR, said)


Containers = list[tuple[str, Mapping[str, Any]]]


def _pods(document: Document, cluster: Cluster | None) -> Iterator[tuple[Mapping[str, Any], Containers]]:
    """Each Pod that is made, with where the resources of its containers stand; those that KubeRay sets are enough."""
    for group in cluster.groups if cluster else ():
        containers = _containers(group.pod, f"{group.path}.template.spec")
        own = cluster.options.get("resources")
        if group.is_head and cluster.is_autoscaling and own is not None:
            containers.append((f"{cluster.path}.autoscalerOptions.resources", own))
        yield group.pod, containers
    path = "spec.jobTemplate" if document["kind"] == "RayCronJob" else "spec"
    job = document["spec"].get("jobTemplate") or document["spec"]
    pod = (job.get("submitterPodTemplate") or {}).get("spec")
    if pod:
        yield pod, _containers(pod, f"{path}.submitterPodTemplate.spec")


def _containers(pod: Mapping[str, Any], path: str) -> Containers:
    return [
        (f"{path}.{kind}[{number}].resources", container.get("resources") or {})
        for kind in ("initContainers", "containers")
        for number, container in enumerate(pod.get(kind) or ())
    ]


def _is_here(other: Document, document: Document) -> bool:
    """Whether it is of the same namespace; where one of the two names none, they are applied together."""
    names = [_dict(one.get("metadata")).get("namespace") for one in (other, document)]
    return None in names or names[0] == names[1]


def _counts(spec: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether the quota's scopes take this Pod in."""
    scopes = [(one, "Exists", []) for one in spec.get("scopes") or ()]
    for one in _dict(spec.get("scopeSelector")).get("matchExpressions") or ():
        scopes.append((one.get("scopeName"), one.get("operator"), one.get("values") or []))
    ends, priority = pod.get("activeDeadlineSeconds") is not None, pod.get("priorityClassName")
    for scope, operator, values in scopes:
        holds = {
            "Terminating": ends,
            "NotTerminating": not ends,
            "BestEffort": False,
            "NotBestEffort": True,
            "PriorityClass": {
                "Exists": bool(priority),
                "DoesNotExist": not priority,
                "In": priority in values,
                "NotIn": priority not in values,
            }.get(operator, True),
        }.get(scope, True)
        if not holds:
            return False
    return True


def _defaults(ranges: Sequence[Document]) -> set[tuple[str, str]]:
    """What a LimitRange of the namespace gives to a container that does not say it."""
    found = set()
    for one in ranges:
        for item in _dict(one.get("spec")).get("limits") or ():
            if item.get("type") != "Container":
                continue
            limits = {*_dict(item.get("default")), *_dict(item.get("max"))}
            requests = limits | {*_dict(item.get("defaultRequest")), *_dict(item.get("min"))}
            found |= {("limits", name) for name in limits} | {("requests", name) for name in requests}
    return found


def _has(resources: Mapping[str, Any], key: tuple[str, str], defaults: set[tuple[str, str]]) -> bool:
    part, name = key
    parts = ("limits",) if part == "limits" else ("requests", "limits")  # a request that is not written is as the limit
    return key in defaults or any(name in (resources.get(one) or {}) for one in parts)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

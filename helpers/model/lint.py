"""What is found in a manifest, from the API server's first word to what Ray makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from helpers import versions
from helpers.model import crds, quota, raycluster, rayjob, rayservice
from helpers.model.findings import ERROR, SEVERITIES, UNREADABLE, Finding
from helpers.model.raycluster import Cluster, cluster_of
from helpers.model.rayjob import job_of
from helpers.model.releases import PINNED, Releases, version

Document = Mapping[str, Any]

# what the API server refuses while the rest of the document can be read
_SHALLOW = {"unknown-field", "bad-enum", "negative-bound", "bad-name"}
# what is found because something is not there, which may be what the API server has refused somewhere else
_OF_A_GAP = {"missing-field", "no-cpu", "cpu-only-in-requests", "memory-only-in-requests", "missing-ray-start-params"}
_OF_A_GAP |= {"gpu-key-unknown-to-planner", "gpu-without-limit", "quota-needs-limit", "object-store-exceeds-shm"}
_OF_A_GAP |= {"group-idle-timeout-needs-v2", "redis-env-without-ft", "auth-needs-newer-ray", "k8s-auth-not-possible"}
_OF_A_GAP |= {"ttl-needs-shutdown", "suspend-needs-shutdown", "autoscaler-variable-without-autoscaling"}
_OF_A_GAP |= {"autoscaling-not-enabled", "unbounded-max-replicas", "head-runs-tasks", "version-not-written"}
_OF_A_GAP |= {"bad-deletion-strategy", "bad-upgrade-options", "metadata-needs-ray-version", "dashboard-port-missing"}
_OF_A_GAP |= {"bad-schedule", "limits-differ-from-requests"}
_GROUP = re.compile(r".*(headGroupSpec|workerGroupSpecs\[\d+\])(?=\.|$)")
# fields of KubeRay 1.7 that the pinned schemas do not have, by the end of their path
_SINCE_1_7 = re.compile(
    r"(workerGroupSpecs\[\d+\]\.priority|autoscalerOptions\.(command|args)|gcsFaultToleranceOptions\.(backend|storage)"
    r"|headGroupSpec\.ingressOptions|networkPolicy|tlsOptions|historyServerOptions|spec\.suspend|spec\.timeZone)$"
)
# fields of the pinned schemas that older ones do not have
_SINCE = (
    ((1, 5, 0), re.compile(r"(GroupSpec|GroupSpecs\[\d+\])\.(resources|labels)$")),
    ((1, 4, 0), re.compile(r"autoscalerOptions\.version$")),
    ((1, 3, 0), re.compile(r"gcsFaultToleranceOptions$")),
)


def lint(document: Document, releases: Releases | None = None, context: Sequence[Document] = ()) -> list[Finding]:
    """What the API server, the operator and Ray say to a document of KubeRay, the worst first.

    Args:
        document: plain data, as `helpers.model.manifest.documents` gives it; one of another kind has no findings.
        releases: what the images run, and the operator; by default the Ray that the document names, and the pinned
            KubeRay.
        context: other documents of the namespace, of which quotas and limit ranges are looked at.
    """
    if document.get("kind") not in crds.kinds():
        return []
    releases = releases or releases_of(document)
    found = faults(document, releases)
    is_shallow = {one.rule for one in found} <= _SHALLOW
    odd = {one.path for one in found if one.rule in ("wrong-type", UNREADABLE)}
    rest = document if is_shallow else _without(document, odd)
    if is_shallow or {one.rule for one in faults(rest, releases)} <= _SHALLOW:
        said = [*_operator(rest, releases), *_misreadings(rest, releases, context)]
        found += [one for one in said if not any(_is_of_fault(one, fault, is_shallow) for fault in tuple(found))]
    return sorted(dict.fromkeys(found), key=lambda one: SEVERITIES.index(one.severity))


def _without(value: Any, paths: set[str], path: str = "") -> Any:
    """A document without the fields at some paths; the places of a list's items stay what they are."""
    match value:
        case Mapping():
            below = {key: f"{path}.{key}".lstrip(".") for key in value}
            return {key: _without(value[key], paths, below[key]) for key in value if below[key] not in paths}
        case list():
            return [_without(item, paths, f"{path}[{number}]") for number, item in enumerate(value)]
    return value


def _is_of_fault(one: Finding, fault: Finding, is_shallow: bool) -> bool:
    """Whether a finding only says again what the API server refuses, or is of a gap that may be just that.

    A gap may be of a fault in the same group, or right above it. Where the API server drops a field, or a word is not
    of its list, a warning is right of what is left; not so where a value is of the wrong type.
    """
    if (one.rule, one.path) == (fault.rule, fault.path):
        return True
    if one.rule not in _OF_A_GAP or (is_shallow and one.severity != ERROR):
        return False
    group = _GROUP.match(one.path)
    place = group[0] if group else one.path.rpartition(".")[0]
    above = fault.path.rpartition(".")[0]
    # a group's timeout is about a field of the autoscaler's options
    is_of_options = one.rule == "group-idle-timeout-needs-v2" and ".autoscalerOptions" in fault.path
    is_of_group = group is not None and f"{fault.path}.".startswith(f"{place}.")
    return is_of_group or is_of_options or f"{place}.".startswith(f"{above}.")


def refusals(document: Document, releases: Releases = PINNED) -> list[Finding]:
    """What keeps the document from being made into Pods: the API server's word, or else the operator's."""
    return faults(document, releases) or _operator(document, releases)


def faults(document: Document, releases: Releases = PINNED) -> list[Finding]:
    """What the API server says: `crds.faults`, with what is known of other releases of KubeRay than the pinned one."""
    found = crds.faults(document)
    if releases.kuberay < (1, 4, 0):
        found += _without_params(document)
    if releases.kuberay >= (1, 7, 0):
        found = [one for one in found if one.rule != "unknown-field" or not _SINCE_1_7.search(one.path)]
        found = [one for one in found if not one.path.endswith("gcsFaultToleranceOptions.redisAddress")]
    for since, form in _SINCE:
        if releases.kuberay < since:
            said = f"there is no such field before KubeRay {since[0]}.{since[1]}"
            found += [Finding("unknown-field", path, ERROR, said) for path in _paths(document) if form.search(path)]
    return found


def _without_params(document: Document) -> list[Finding]:
    """The groups without rayStartParams, which the CRDs of KubeRay before 1.4 require."""
    path = raycluster.SPECS[document["kind"]]
    spec = raycluster.part_of(document, path)
    if not isinstance(spec, Mapping):
        return []
    workers = spec.get("workerGroupSpecs")
    groups = {f"{path}.headGroupSpec": spec.get("headGroupSpec")}
    groups |= {
        f"{path}.workerGroupSpecs[{n}]": one for n, one in enumerate(workers if isinstance(workers, list) else ())
    }
    return [
        Finding("missing-field", f"{where}.rayStartParams", ERROR, "before KubeRay 1.4 it is required")
        for where, group in groups.items()
        if isinstance(group, Mapping) and "rayStartParams" not in group
    ]


def releases_of(document: Document) -> Releases:
    """The pinned KubeRay, and the Ray that the document's head image or rayVersion names; the pinned one, if none."""
    spec = raycluster.part_of(document, raycluster.SPECS.get(document.get("kind", ""), "spec"))
    try:
        image = str(spec["headGroupSpec"]["template"]["spec"]["containers"][0]["image"])
    except (KeyError, IndexError, TypeError):
        image = ""
    named = raycluster.ray_in(image)
    written = spec.get("rayVersion") if isinstance(spec, Mapping) else None
    if not named and isinstance(written, str) and re.match(r"\s*v?\d+\.\d+", written):
        named = version(written)
    return Releases(named or version(versions.RAY), PINNED.kuberay)


def _operator(document: Document, releases: Releases) -> list[Finding]:
    if not document.get("spec"):
        return [Finding("missing-field", "spec", ERROR, "it is required, though only the operator says so")]
    cluster, job = cluster_of(document), job_of(document)
    found = rayjob.refusals(job, releases) if job else []
    if cluster:
        found += raycluster.refusals(cluster)
        if cluster.has_containers:
            found += _dashboard(cluster)
            if document["kind"] == "RayService":
                found += rayservice.refusals(document, cluster, releases)
    return found


def _dashboard(cluster: Cluster) -> list[Finding]:
    """The head's Service has the ports that the head declares, or all: `getServicePorts` in service.go.

    A RayJob's submitter, and a RayService's controller, look for the one with the name dashboard
    (`FetchHeadServiceURL` in util.go).
    """
    ports, kind = cluster.head.container.get("ports") or (), cluster.document["kind"]
    named = {one.get("name") for one in ports}
    if kind == "RayCluster" or not named or "dashboard" in named or cluster.head.spec.get("headService"):
        return []
    said = "the head declares ports, and none with the name dashboard, to which the job or the application is sent"
    return [Finding("dashboard-port-missing", f"{cluster.head.container_path}.ports", ERROR, said)]


def _misreadings(document: Document, releases: Releases, context: Sequence[Document]) -> list[Finding]:
    cluster, job = cluster_of(document), job_of(document)
    found = rayjob.misreadings(job, releases) if job else []
    if cluster and cluster.has_containers:
        found += raycluster.misreadings(cluster, releases)
        if document["kind"] == "RayService":
            found += rayservice.misreadings(document, cluster)
        found += quota.missing(document, cluster, context)
    return found


def _paths(value: Any, path: str = "") -> list[str]:
    """The path of each field of a document."""
    found = [path] if path else []
    match value:
        case Mapping():
            for key in value:
                found += _paths(value[key], f"{path}.{key}".lstrip("."))
        case list():
            for number, item in enumerate(value):
                found += _paths(item, f"{path}[{number}]")
    return found

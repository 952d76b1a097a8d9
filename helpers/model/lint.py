"""What is found in a manifest, from the API server's first word to what Ray makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from helpers import versions
from helpers.model import crds, quota, raycluster, rayjob, rayservice
from helpers.model.findings import ERROR, SEVERITIES, Finding
from helpers.model.raycluster import Cluster, cluster_of
from helpers.model.rayjob import job_of
from helpers.model.releases import PINNED, Releases, version

Document = Mapping[str, Any]

# what the API server refuses while the rest of the document can be read
_SHALLOW = {"unknown-field", "bad-enum", "negative-bound", "bad-name"}
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
    if not found:
        found = [*_operator(document, releases), *_misreadings(document, releases, context)]
    elif {one.rule for one in found} <= _SHALLOW:
        # what is dropped may be what is missing, so that only what is no error can be told of the rest
        found += [one for one in _misreadings(document, releases, context) if one.severity != ERROR]
    return sorted(dict.fromkeys(found), key=lambda one: SEVERITIES.index(one.severity))


def refusals(document: Document, releases: Releases = PINNED) -> list[Finding]:
    """What keeps the document from being made into Pods: the API server's word, or else the operator's."""
    return faults(document, releases) or _operator(document, releases)


def faults(document: Document, releases: Releases = PINNED) -> list[Finding]:
    """What the API server says: `crds.faults`, with what is known of other releases of KubeRay than the pinned one."""
    found = crds.faults(document)
    if releases.kuberay >= (1, 7, 0):
        found = [one for one in found if one.rule != "unknown-field" or not _SINCE_1_7.search(one.path)]
        found = [one for one in found if not one.path.endswith("gcsFaultToleranceOptions.redisAddress")]
    for since, form in _SINCE:
        if releases.kuberay < since:
            said = f"there is no such field before KubeRay {since[0]}.{since[1]}"
            found += [Finding("unknown-field", path, ERROR, said) for path in _paths(document) if form.search(path)]
    return found


def releases_of(document: Document) -> Releases:
    """The pinned KubeRay, and the Ray that the document's head image or rayVersion names; the pinned one, if none."""
    spec = raycluster.part_of(document, raycluster.SPECS.get(document.get("kind", ""), "spec"))
    try:
        image = str(spec["headGroupSpec"]["template"]["spec"]["containers"][0]["image"])
    except (KeyError, IndexError, TypeError):
        image = ""
    named = raycluster.version_in(image)
    written = spec.get("rayVersion") if isinstance(spec, Mapping) else None
    if not named and isinstance(written, str) and re.match(r"\s*v?\d+\.\d+", written):
        named = version(written)
    return Releases(named or version(versions.RAY), PINNED.kuberay)


def _operator(document: Document, releases: Releases) -> list[Finding]:
    if not document.get("spec"):
        return [Finding("missing-field", "spec", ERROR, "it is required, though only the operator says so")]
    cluster, job = cluster_of(document), job_of(document)
    found = rayjob.refusals(job) if job else []
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

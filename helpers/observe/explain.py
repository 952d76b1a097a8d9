"""What a manifest means: the Pods of each group, its `ray start`, who counts what, and what is wrong with it.

Pure: a text goes in, and what the API server, the operator, Ray and its autoscaler would make of it comes out. Sources:
`helpers.model.raycluster`, `rayjob` and `rayservice`, which name the functions of KubeRay and Ray that they follow;
`DefaultHeadPodTemplate`, `DefaultWorkerPodTemplate` and `BuildAutoscalerContainer` in pod.go for the Pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from helpers import versions
from helpers.errors import CourseError
from helpers.model import crds, manifest, quantity, raycluster
from helpers.model.findings import ERROR, NOTE, SEVERITIES, UNREADABLE, WARNING
from helpers.model.lint import lint, releases_of
from helpers.model.manifest import Document
from helpers.model.raycluster import Cluster, Flag, Group, NotCounted
from helpers.model.rayjob import SIDECAR, job_of
from helpers.model.releases import Releases, version
from helpers.model.scheduling import AUTOSCALER, WAIT_GCS_READY, pod_refusals
from helpers.reading import is_yaml, read_file
from helpers.text import as_html, columns, html_table

SIGNS = {ERROR: "✘", WARNING: "!", NOTE: "·"}
BY_KUBERAY = "KubeRay"
PARTS = (("CPU", "num-cpus", "cpu"), ("GPU", "num-gpus", ""), ("memory", "memory", "memory"))
SUBMITTER = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "200Mi"}}


@dataclass(frozen=True)
class Container:
    """A container of a Pod.

    Attributes:
        role: "Ray", "init", "sidecar" or "autoscaler".
        origin: where it comes from: a path in the manifest, or `BY_KUBERAY`.
        requests, limits: what Kubernetes keeps for it, and lets it have, as quantities.
    """

    name: str
    image: str
    role: str
    origin: str
    requests: Mapping[str, Any]
    limits: Mapping[str, Any]


@dataclass(frozen=True)
class Counts:
    """How much of one resource each of the three takes a Pod to have; None where nobody says it. Memory in bytes."""

    ray: float | None
    autoscaler: float | None
    kubernetes: float | None


@dataclass(frozen=True)
class GroupView:
    """What becomes of a group.

    Attributes:
        path, line: where it stands.
        pods: how many the operator keeps.
        bounds: the least and the most that the autoscaler may ask for; None without one, and for the head.
        containers: init containers first.
        start: the options of `ray start`, in their order.
        args: what KubeRay gives bash in the Ray container; None if it leaves the manifest's own command as it is.
        counts: by resource: CPU, GPU and memory.
        disagreements: where the three do not count the same, a sentence each.
        refused: why the API server will refuse its Pods, once the operator makes them, a sentence each.
        probes: how the Ray container is asked for its health.
    """

    name: str
    path: str
    line: int
    pods: int
    bounds: tuple[int, int] | None
    containers: tuple[Container, ...]
    start: tuple[Flag, ...]
    args: str | None
    counts: Mapping[str, Counts]
    disagreements: tuple[str, ...]
    refused: tuple[str, ...]
    probes: str
    is_head: bool

    @property
    def command(self) -> str:
        """The generated `ray start` line."""
        return " ".join(["ray start --head" if self.is_head else "ray start", *map(str, self.start)])


@dataclass(frozen=True)
class Found:
    """What a rule found.

    Attributes:
        rule, path, severity, message: as in `helpers.model.findings.Finding`.
        line: of the path, or of what is above it, in the text.
        fix: what to do about it.
        document: such as "RayCluster/demo".
    """

    rule: str
    path: str
    line: int
    severity: str
    message: str
    fix: str
    document: str

    def __str__(self) -> str:
        return f"{SIGNS[self.severity]} line {self.line}, {self.path}: {self.message}. [{self.rule}]\n  → {self.fix}"


@dataclass(frozen=True)
class DocumentView:
    """What becomes of a document.

    Attributes:
        ray, kuberay: the versions for which this is said.
        groups: none, if the API server refuses the document, or it makes no cluster.
        findings: the worst first.
    """

    kind: str
    name: str
    line: int
    ray: str
    kuberay: str
    groups: tuple[GroupView, ...]
    findings: tuple[Found, ...]


@dataclass(frozen=True)
class Explanation:
    """What a manifest means.

    Attributes:
        documents: those that were looked at.
        not_checked: what else is in it and was not, a sentence each.
    """

    documents: tuple[DocumentView, ...]
    not_checked: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Found, ...]:
        """What was found in all of them."""
        return tuple(one for document in self.documents for one in document.findings)

    @property
    def is_right(self) -> bool:
        """Whether nothing is an error, and no Pod is refused."""
        refused = any(group.refused for document in self.documents for group in document.groups)
        return not refused and not any(one.severity == ERROR for one in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        made = asdict(self)
        for document, view in zip(made["documents"], self.documents, strict=True):
            for group, there in zip(document["groups"], view.groups, strict=True):
                group["command"] = there.command
        return made

    def __str__(self) -> str:
        return "\n\n".join(["\n".join(_document_text(one)) for one in self.documents] + list(self.not_checked))

    def _repr_html_(self) -> str:
        return "".join(_html(one) for one in self.documents) + "".join(
            f"<p>{as_html(one)}</p>" for one in self.not_checked
        )


def explain(text: str, ray_version: str = "", kuberay_version: str = "") -> Explanation:
    """What a manifest means, all documents of it.

    Args:
        text: YAML. Other kinds are context: quotas and limit ranges of the namespace are looked at.
        ray_version: what the images run; left away: what they say, or the pinned one.
        kuberay_version: of the operator; left away: the pinned one.

    Raises:
        CourseError: the text cannot be read, or nothing in it is of KubeRay, with the line.

    Example:
        >>> print(explain("kind: Pod"))
        Traceback (most recent call last):
        helpers.errors.CourseError: Nothing here is of KubeRay: line 1 begins a Pod. …
    """
    given = version(ray_version) if ray_version else None
    operator = version(kuberay_version or versions.KUBERAY)
    documents = manifest.read(text)
    checked, left = crds.known(documents)
    context = [one.data for one in documents if not manifest.is_of_ray(one.data)]
    views = []
    for one in checked:
        releases = Releases(given or releases_of(one.data).ray, operator)
        views.append(_view(one, releases, context))
    said = [f"– Not checked: {sentence}" for sentence in left]
    said += [
        f"– If what line {one.line} begins is a patch, build the manifest first, as with `kubectl kustomize`."
        for one, view in zip(checked, views, strict=True)
        if any(found.rule == "missing-field" for found in view.findings) and "containers" not in " ".join(one.lines)
    ]
    if operator[:2] != version(versions.KUBERAY)[:2]:
        said.append(
            f"– Fields and types are checked against KubeRay {versions.KUBERAY}; what is known of"
            f" {_dotted(operator)} beside it is taken into account."
        )
    return Explanation(tuple(views), tuple(said))


def text_of(source: str | Path | Mapping[str, Any]) -> str:
    """The text of a manifest.

    Args:
        source: YAML text, the path of a file, "-" for what comes on standard input, or a document as a dict.

    Raises:
        CourseError: the file cannot be read, or is no text.
    """
    if isinstance(source, Mapping):
        return yaml.safe_dump(dict(source), sort_keys=False)
    if isinstance(source, str) and is_yaml(source):
        return source
    return read_file(source, f"The manifest {source}")


def _view(document: Document, releases: Releases, context: Sequence[Mapping[str, Any]]) -> DocumentView:
    data = document.data
    metadata = data.get("metadata") if isinstance(data.get("metadata"), dict) else {}
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    label = f"{data['kind']}/{name}"
    found = tuple(
        Found(one.rule, one.path, document.line_of(one.path), one.severity, one.message, one.fix, label)
        for one in lint(data, releases, context)
    )
    groups: tuple[GroupView, ...] = ()
    is_broken = any(one.rule in ("missing-field", "wrong-type", UNREADABLE) for one in found)
    cluster = None if is_broken else raycluster.cluster_of(data)
    if cluster and cluster.has_containers:
        namespace = str(metadata.get("namespace") or "default")
        groups = tuple(_group(document, cluster, group, releases, namespace) for group in cluster.groups)
    dotted = (_dotted(releases.ray), _dotted(releases.kuberay))
    return DocumentView(data["kind"], name, document.line, *dotted, groups, found)


# ---- a group --------------------------------------------------------------------------------------------------------


def _group(document: Document, cluster: Cluster, group: Group, releases: Releases, namespace: str) -> GroupView:
    counts = dict(_counts(cluster, group, releases))
    return GroupView(
        name=group.name,
        path=group.path,
        line=document.line_of(group.path),
        pods=0 if cluster.is_suspended else group.desired_pods,
        bounds=group.bounds if cluster.is_autoscaling and not group.is_head else None,
        containers=tuple(_containers(cluster, group)),
        start=tuple(raycluster.start_flags(cluster, group, namespace)),
        args=raycluster.container_args(cluster, group, namespace),
        counts=counts,
        disagreements=tuple(_disagreements(cluster, group, counts, releases)),
        refused=tuple(pod_refusals(group)),
        probes=_probes(cluster, group),
        is_head=group.is_head,
    )


def _containers(cluster: Cluster, group: Group) -> Iterator[Container]:
    pod, path = group.pod, f"{group.path}.template.spec"
    for number, one in enumerate(pod.get("initContainers") or ()):
        yield _container(one, "init", f"{path}.initContainers[{number}]")
    image = group.container.get("image", "")
    if not group.is_head:
        own = {"name": "wait-gcs-ready", "image": image}
        yield _container(own | {"resources": {"limits": WAIT_GCS_READY}}, "init", BY_KUBERAY)
    for number, one in enumerate(pod["containers"]):
        yield _container(one, "sidecar" if number else "Ray", f"{path}.containers[{number}]")
    job = job_of(cluster.document)
    if group.is_head and job and job.mode == SIDECAR:  # the RayJob puts it into the cluster's own spec
        own = {"name": "ray-job-submitter", "image": image, "resources": SUBMITTER}
        yield _container(own, "sidecar", BY_KUBERAY)
    if group.is_head and cluster.is_autoscaling:
        options = cluster.options
        sized = options.get("resources")
        own = {"name": "autoscaler", "image": options.get("image") or image}
        origin = f"{cluster.path}.autoscalerOptions" if sized is not None or options.get("image") else BY_KUBERAY
        yield _container(own | {"resources": {"limits": AUTOSCALER} if sized is None else sized}, "autoscaler", origin)


def _container(one: Mapping[str, Any], role: str, origin: str) -> Container:
    written = one.get("resources") or {}
    limits = dict(written.get("limits") or {})
    return Container(
        one.get("name", ""), one.get("image", ""), role, origin, limits | (written.get("requests") or {}), limits
    )


def _counts(cluster: Cluster, group: Group, releases: Releases) -> Iterator[tuple[str, Counts]]:
    try:
        planned: Mapping[str, float] = group.counted_by(releases)
    except NotCounted:
        planned = {}
    for name, option, key in PARTS:
        told = group.start.get(option)
        ray = int(told) if told is not None and told.isdecimal() else None
        if key:
            kept = group.requests.get(key)
        else:
            kept = next((group.limits[one] for one in sorted(group.limits) if raycluster.DEVICE.search(one)), None)
        autoscaler = planned.get(name) if cluster.is_autoscaling else None
        yield name, Counts(ray, autoscaler, None if kept is None else _plain(quantity.parse(kept)))


def _plain(amount: Any) -> float:
    return int(amount) if amount.denominator == 1 else float(amount)


def _disagreements(cluster: Cluster, group: Group, counts: Mapping[str, Counts], releases: Releases) -> Iterator[str]:
    if cluster.is_autoscaling:
        try:
            _ = group.counted_by(releases)
        except NotCounted as error:
            yield f"{error}."
    for name, there in counts.items():
        if there.ray is None and (there.autoscaler or there.kubernetes):
            who = "the autoscaler counts" if there.autoscaler else "Kubernetes keeps"
            count = there.autoscaler or there.kubernetes
            yield f"`ray start` is not told of {name}, and {who} {shown(name, count)}."
            continue
        if there.autoscaler is not None and there.ray is not None and there.autoscaler != there.ray:
            told = f"Ray counts {shown(name, there.ray)} of {name} on each Ray node"
            yield f"{told}, and the autoscaler plans with {shown(name, there.autoscaler)}."
        elif cluster.is_autoscaling and there.ray and there.autoscaler is None:
            yield f"Ray counts {shown(name, there.ray)} of {name}, and the autoscaler knows of none."
        if there.ray is not None and there.ray > (there.kubernetes or 0):
            told = f"Ray counts {shown(name, there.ray)} of {name}"
            yield f"{told}, and Kubernetes keeps {shown(name, there.kubernetes or 0)}."


def _probes(cluster: Cluster, group: Group) -> str:
    """`initLivenessAndReadinessProbe` in pod.go."""
    own = [name for name in ("livenessProbe", "readinessProbe") if group.container.get(name) is not None]
    if len(own) == 2:
        return "of the manifest"
    try:
        over_http = version(cluster.spec.get("rayVersion") or "") >= (2, 53, 0)
    except CourseError:
        over_http = False
    port = group.params.get("dashboard-agent-listen-port", str(versions.PORT_AGENT))
    if over_http:
        said = f"httpGet /api/healthz on port {port}"
    else:
        said = f"exec wget on port {port}, because rayVersion is not 2.53.0 or newer: the image needs wget"
    if cluster.document["kind"] == "RayService" and not group.is_head:
        said += "; readiness: exec wget, also on Serve's proxy"
    return f"{own[0]} of the manifest, the other {said}" if own else said


# ---- how it is shown ------------------------------------------------------------------------------------------------


def shown(name: str, amount: float | None) -> str:
    """An amount for people: memory in GiB."""
    if amount is None:
        return "–"
    return f"{amount / 2**30:.4g} GiB" if name == "memory" else f"{amount:g}"


def _dotted(parts: Sequence[int]) -> str:
    return ".".join(map(str, parts))


def _rows(group: GroupView) -> list[list[str]]:
    return [
        [name, *(shown(name, amount) for amount in (one.ray, one.autoscaler, one.kubernetes))]
        for name, one in group.counts.items()
    ]


HEADINGS = ["", "ray start", "autoscaler", "Kubernetes keeps"]


def _document_text(view: DocumentView) -> Iterator[str]:
    yield f"{view.kind}/{view.name} (line {view.line}), for Ray {view.ray} and KubeRay {view.kuberay}"
    for group in view.groups:
        bounds = f", {group.bounds[0]} to {group.bounds[1]} by the autoscaler" if group.bounds else ""
        yield f"\n{group.name} (line {group.line}): {group.pods} Pod{'s' * (group.pods != 1)}{bounds}"
        rows = [
            ["", one.role, one.name, one.image, _amounts(one), "" if one.origin != BY_KUBERAY else "added by KubeRay"]
            for one in group.containers
        ]
        yield columns(rows)
        first = "--head" if group.is_head else ""
        yield f"  ray start {first}".rstrip()
        yield columns([["   ", str(flag), f"← {flag.origin.removeprefix(f'{group.path}.')}"] for flag in group.start])
        if group.args is None:
            yield "  The container keeps the command of the manifest; this one stands in KUBERAY_GEN_RAY_START_CMD."
        yield f"  probes: {group.probes}"
        yield columns([["", *row] for row in [HEADINGS, *_rows(group)]])
        yield from (f"  ≠ {one}" for one in group.disagreements)
        yield from (f"  ✘ The API server refuses these Pods: {one}." for one in group.refused)
    counted = {severity: sum(one.severity == severity for one in view.findings) for severity in SEVERITIES}
    words = [f"{count} {severity}{'s' * (count != 1)}" for severity, count in counted.items() if count]
    yield "\n" + (", ".join(words) if words else "✔ nothing found")
    yield from map(str, view.findings)


def _amounts(one: Container) -> str:
    keys = list(dict.fromkeys([*one.requests, *one.limits]))
    parts = []
    for key in keys:
        asked, most = one.requests.get(key), one.limits.get(key)
        same = most is None or (asked is not None and quantity.parse(asked) == quantity.parse(most))
        parts.append(f"{key} {asked}" + ("" if same and most is not None else f" (limit {most or 'none'})"))
    return ", ".join(parts) or "no resources"


def _html(view: DocumentView) -> str:
    title = f"{view.kind}/{view.name}, for Ray {view.ray} and KubeRay {view.kuberay}"
    rows = [[group.name, str(group.pods), *row] for group in view.groups for row in _rows(group)]
    made = html_table(title, ["group", "Pods", "resource", *HEADINGS[1:]], rows) if rows else f"<p>{as_html(title)}</p>"
    lines = [f"<li>{as_html(f'{group.name}: {one}')}</li>" for group in view.groups for one in group.disagreements]
    for group in view.groups:
        lines += [f"<li>✘ {as_html(f'{group.name}: its Pods are refused: {one}')}</li>" for one in group.refused]
    for one in view.findings:
        said = f"{SIGNS[one.severity]} {one.severity}, line {one.line}, {one.path}: {one.message}. {one.fix}"
        lines.append(f"<li>{as_html(said)}</li>")
    commands = "".join(f"<pre>{as_html(f'{one.name}: {one.command}')}</pre>" for one in view.groups)
    return f"{made}<ul>{''.join(lines) or '<li>✔ nothing found</li>'}</ul>{commands}"

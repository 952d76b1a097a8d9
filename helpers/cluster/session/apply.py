"""Server-side apply, with what it says: created, changed or unchanged, and whether that reaches Pods that run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from helpers.cluster.session import manifest, templates
from helpers.cluster.session.target import CLUSTER_LABEL, Target
from helpers.errors import CourseError
from helpers.kube import Kube, KubeError, Resource


@dataclass
class Change:
    """What applying one object would do, and has done."""

    resource: Resource
    thing: dict
    before: dict | None
    remarks: list[str]
    is_forced: bool = False

    @property
    def target(self) -> Target:
        return Target(self.resource, self.thing["metadata"]["name"])


def prepare(kube: Kube, namespace: str, what: str | Path | dict, *, host_is_image: bool) -> list[Change]:
    """Read a manifest and have the API server look at it; nothing is changed yet.

    Raises:
        CourseError: if any of its objects would be refused.
    """
    changes = []
    for thing in manifest.read(what):
        manifest.check(thing, namespace)
        remarks = manifest.check_ray(thing) if host_is_image else manifest.skew(thing)
        resource = kube.resource(thing["kind"], thing["apiVersion"])
        label = resource.label(thing["metadata"]["name"])
        if not resource.namespaced:
            raise CourseError(
                f"{label} lies in no namespace, so that it would stay when the lesson is over.",
                "Use `kubectl apply` if you mean it, and `kubectl delete` in the end.",
            )
        before = kube.get(resource, thing["metadata"]["name"], namespace)
        if before and "deletionTimestamp" in before["metadata"]:
            raise CourseError(
                f"{label} is just being deleted.", f'Run `lab.delete("{label}")`, which waits for its end.'
            )
        remarks += manifest.leave_to_autoscaler(thing, before)
        change = Change(resource, thing, before, remarks)
        _try(kube, namespace, change)
        changes.append(change)
    return changes


def _try(kube: Kube, namespace: str, change: Change) -> None:
    """A dry run: what is refused, and whose fields would be taken over."""
    try:
        kube.apply(change.resource, change.thing, namespace, dry_run=True)
    except KubeError as error:
        if error.status != 409:
            raise _refused(change.target, error) from None
        change.is_forced = True
        change.remarks += _taken(change, error)
        try:
            kube.apply(change.resource, change.thing, namespace, dry_run=True, force=True)
        except KubeError as again:
            raise _refused(change.target, again) from None


def _taken(change: Change, conflict: KubeError) -> list[str]:
    """Whose fields are taken over. Not the autoscaler's: its values have been left as they are."""
    fields = sorted({cause.get("field", "").lstrip(".") for cause in conflict.causes})
    if manifest.is_autoscaled(change.thing) and fields == ["spec.workerGroupSpecs"]:
        return []
    managers = sorted({_quoted(cause.get("message", "")) for cause in conflict.causes})
    return [f"{', '.join(fields)} was last written by {', '.join(managers)}, and is the manifest's now"]


def _quoted(message: str) -> str:
    parts = message.split('"')
    return parts[1] if len(parts) > 1 else message


def _refused(target: Target, error: KubeError) -> CourseError:
    """The API server's refusal, with the field that it is about."""
    message = " ".join(error.message.split())
    for opening in ("failed to create typed patch object", "failed to create manager for existing fields"):
        if message.startswith(opening):
            message = message.partition("): ")[2] or message
    named = [f"{cause['field']}: {cause['message']}" for cause in error.causes if cause.get("field")]
    message = "; ".join(dict.fromkeys(named)) or message
    message = message.replace("field not declared in schema", "there is no such field")
    message = re.sub(r"&value\.value\w+\{Value:(.*?)\}", r"\1", message)  # a Go struct, where a value is meant
    message = re.sub(r" \(e\.g\. .*\)$", "", message)  # examples, with the regular expression they fit
    return CourseError(
        f"The API server refuses {target}: {message.rstrip('.')}.",
        f"`kubectl explain {target.resource.plural} --recursive` lists the fields; nothing was applied.",
    )


def carry_out(kube: Kube, namespace: str, change: Change, *, replace: bool) -> list[str]:
    """Apply one object; lines that say what was done."""
    after = kube.apply(change.resource, change.thing, namespace, force=change.is_forced)
    if change.before is None:
        done = "created"
    else:
        done = "changed" if _content(after) != _content(change.before) else "unchanged"
    lines = [f"✔ {change.target} {done}"]
    lines += [f"  · {remark}" for remark in change.remarks]
    if change.resource.kind == "RayCluster" and change.before:
        lines += _pods_too(kube, namespace, change, after, replace=replace)
    if change.resource.kind == "RayJob" and done == "changed":
        lines.append("  · accepted, but a RayJob that exists does not take it up; apply(…, replace=True) makes it anew")
    return lines


def _content(thing: dict) -> dict:
    metadata = thing["metadata"]
    mine = {field: metadata.get(field) for field in ("labels", "annotations")}
    return {field: value for field, value in thing.items() if field not in ("metadata", "status")} | mine


def _pods_too(kube: Kube, namespace: str, change: Change, after: dict, *, replace: bool) -> list[str]:
    """What of it does not reach the Pods that run; they are deleted, if they are to be replaced."""
    pods = kube.list(kube.resource("pods"), namespace, f"{CLUSTER_LABEL}={change.target.name}")
    stale = templates.stale(after, pods, change.before)
    if (after["spec"].get("upgradeStrategy") or {}).get("type") == "Recreate":
        return ["  · upgradeStrategy is Recreate: KubeRay replaces all Pods now"] if stale else []
    names = ", ".join(pod["metadata"]["name"] for pod in stale)
    if not stale:
        return []
    if not replace:
        return [f"  · accepted, but running Pods stay as they are ({names}); apply(…, replace=True) replaces them"]
    # workers end with their head, so that they are better replaced together
    is_head = any(templates.is_head(pod) for pod in stale)
    gone = [pod["metadata"]["name"] for pod in (pods if is_head else stale)]
    for name in gone:
        kube.delete(kube.resource("pods"), name, namespace)
    with_workers = "; a head takes its workers with it" if len(gone) > len(stale) else ""
    return [f"  · deleted, so that KubeRay makes them anew: {', '.join(gone)}{with_workers}"]

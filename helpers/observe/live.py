"""A snapshot of a running cluster: what `course why` and `lab.why` look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from helpers.errors import CourseError
from helpers.kube import Kube, KubeError, NoAnswer
from helpers.model.raycluster import version_in
from helpers.observe import texts
from helpers.observe.scene import SETTLING_S, Scene
from helpers.observe.snapshot import Object, Snapshot
from helpers.observe.things import AUTOSCALER, SUBMITTER, WAIT, Container, Pod

T = TypeVar("T")
# what causes look at; kinds that a cluster does not know are left out
IN_NAMESPACE = ("RayJob", "RayService", "Pod", "Job", "ResourceQuota", "NetworkPolicy")
OF_CLUSTER = ("Node", "NodeClaim", "NodePool")
EVENTS_OF_CLUSTER = "default"  # where events of Kubernetes nodes and machines lie
TAIL = 400  # lines of a log
MOST_LOGS = 12  # an answer in seconds is worth more than every log
COMMAND_S = 20.0


def snapshot_of(kube: Kube, namespace: str, target: str = "") -> Snapshot:
    """What is known of a namespace now, with the texts that the causes of a target ask for.

    What one may not read, or what does not answer, is left out, and named in `unread`.

    Args:
        kube: the cluster.
        namespace: where the target is.
        target: such as `raycluster/demo`; left away, all that was applied.

    Raises:
        CourseError: the RayClusters of the namespace cannot be read at all.
    """
    unread: list[str] = []
    objects = list(_objects(kube, namespace, unread))
    now = datetime.now(UTC) + timedelta(seconds=kube.ahead_s())
    bare = Snapshot(tuple(objects), now, unread=tuple(unread))
    scenes = [Scene(bare, root) for root in _roots(bare, target)]
    logs = dict(entry for scene in scenes for entry in _logs(kube, namespace, scene, unread))
    printed: dict[str, str] = {}
    for scene in scenes[:1]:  # of several targets, nobody can tell whose `ray status` it is
        printed |= _of_ray(kube, namespace, scene, unread)
    if used := _top(kube, namespace):
        printed["top"] = used
    version = next((found for scene in scenes for pod in scene.heads if (found := version_in(pod.ray.image))), None)
    ray = ".".join(map(str, version)) if version else ""
    return Snapshot(tuple(objects), now, printed, logs, {}, ray_version=ray, unread=tuple(unread))


def namespace_of(kube: Kube, target: str) -> str:
    """The namespace in which there is an object of that name, such as `raycluster/demo`.

    Raises:
        CourseError: there is none, or there are several.
    """
    kind, _, name = target.partition("/")
    resource = kube.resource(kind)
    found = [one for one in kube.list(resource, "") if one["metadata"]["name"] == name]
    if len(found) == 1:
        return found[0]["metadata"]["namespace"]
    places = ", ".join(one["metadata"]["namespace"] for one in found)
    what = f"There is a {target} in {places}." if found else f"There is no {target} in any namespace."
    raise CourseError(what, "Name the namespace: `-n NAMESPACE`.")


def _roots(snapshot: Snapshot, target: str) -> list[Object]:
    from helpers.observe.diagnose import find

    return [find(snapshot, target)] if target else snapshot.roots()


# ---- objects -------------------------------------------------------------------------------------------------------


def _objects(kube: Kube, namespace: str, unread: list[str]) -> Iterator[Object]:
    yield from kube.list(kube.resource("RayCluster"), namespace)
    for kind in IN_NAMESPACE:
        yield from _all(kube, kind, namespace, unread)
    for kind in OF_CLUSTER:
        yield from _all(kube, kind, "", unread)
    events = kube.resource("events", "v1")
    yield from _allowed(lambda: kube.list(events, namespace), "Kubernetes events", unread) or ()
    if namespace != EVENTS_OF_CLUSTER:
        told = _allowed(lambda: kube.list(events, EVENTS_OF_CLUSTER), "Kubernetes events of nodes", unread) or ()
        yield from (one for one in told if (one.get("involvedObject") or {}).get("kind") in OF_CLUSTER)


def _all(kube: Kube, kind: str, namespace: str, unread: list[str]) -> list[Object]:
    resource = kube.find(kind)
    if resource is None:
        return []
    return _allowed(lambda: kube.list(resource, namespace), f"objects of kind {kind}", unread) or []


def _allowed(ask: Callable[[], T], what: str, unread: list[str]) -> T | None:
    """What `ask` returns; None, and a sentence, if that may not be read, or does not come."""
    try:
        return ask()
    except (KubeError, NoAnswer) as error:
        unread.append(f"No {what} could be read: {error.what}")
        return None


# ---- logs ----------------------------------------------------------------------------------------------------------


def _logs(kube: Kube, namespace: str, scene: Scene, unread: list[str]) -> Iterator[tuple[str, str]]:
    for pod, container, previous in list(_worth_reading(scene))[:MOST_LOGS]:
        where = f"{pod.name}/{container.name}" + (" (previous)" if previous else "")
        text = _log(kube, namespace, pod, container, previous, where, unread)
        if text is not None:
            yield where, text


def _log(
    kube: Kube, namespace: str, pod: Pod, container: Container, previous: bool, where: str, unread: list[str]
) -> str | None:
    def ask() -> str:
        return kube.logs(pod.name, namespace, container.name, tail=TAIL, previous=previous)

    return _allowed(ask, f"log of {where}", unread)


def _worth_reading(scene: Scene) -> Iterator[tuple[Pod, Container, bool]]:
    """Containers whose logs may say why: the autoscaler's, and those that wait, have ended, or are not ready."""
    for pod in reversed(scene.heads):
        if (one := pod.container(AUTOSCALER)) and one.status and not one.waiting:
            yield pod, one, False
    for pod in [*reversed(scene.heads), *scene.submitters, *scene.workers]:
        for one in pod.every_container:
            if one.restarts:
                yield pod, one, True
            is_waiting = one.name == WAIT and one.is_running
            is_late = one.is_running and not one.status.get("ready") and scene.since(one.started) > SETTLING_S / 3
            if one.name != AUTOSCALER and (is_waiting or is_late or one.ended.get("exitCode") or one.name == SUBMITTER):
                yield pod, one, False
    for pod in scene.heads[-1:]:
        if pod.ray.is_running:
            yield pod, pod.ray, False


# ---- Ray -----------------------------------------------------------------------------------------------------------


def _of_ray(kube: Kube, namespace: str, scene: Scene, unread: list[str]) -> dict[str, str]:
    """`ray status -v`, and where nothing waits also what keeps Ray nodes: `ray memory` and `ray list actors`."""
    head = next((pod for pod in reversed(scene.heads) if pod.ray.is_running and pod.ray.status.get("ready")), None)
    if head is None:
        return {}
    found = {"ray_status": _run(kube, namespace, head, ["ray", "status", "-v"], unread)}
    status = texts.ray_status(found["ray_status"])
    busy = [node for node in status.nodes if node.activity and not node.idle_ms] if status else []
    if status and not status.has_demand and busy:
        found["ray_list_actors"] = _run(kube, namespace, head, ["ray", "list", "actors", "--limit", "1000"], unread)
        if any(node.used("object_store_memory") for node in busy):
            found["ray_memory"] = _run(kube, namespace, head, ["ray", "memory"], unread)
    return {name: text for name, text in found.items() if text}


def _run(kube: Kube, namespace: str, head: Pod, command: list[str], unread: list[str]) -> str:
    """What a command prints in the head's Ray container; empty, and a sentence, if it does not end well in time."""
    try:
        stream = kube.exec(head.name, namespace, head.ray.name, command)
    except CourseError as error:
        unread.append(f"`{' '.join(command)}` could not be run on {head.name}: {error.what}")
        return ""
    printed, end = b"", time.monotonic() + COMMAND_S
    try:
        while stream.is_open and time.monotonic() < end:
            printed += stream.read(1.0)[0]
        told = "it took too long" if stream.is_open else stream.status()
    except CourseError as error:
        told = error.what
    finally:
        stream.close()
    if told:
        unread.append(f"`{' '.join(command)}` did not end well on {head.name}: {told}")
    return printed.decode(errors="replace")


# ---- use -----------------------------------------------------------------------------------------------------------


def _top(kube: Kube, namespace: str) -> str:
    """What `kubectl top pod --containers` prints; empty where nobody measures that."""
    try:
        answer = kube.request("GET", f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods")
    except CourseError:
        return ""
    rows = [
        f"{pod['metadata']['name']} {one['name']} {one['usage'].get('cpu', '0')} {one['usage'].get('memory', '0')}"
        for pod in answer.get("items") or ()
        for one in pod.get("containers") or ()
    ]
    return "\n".join(["POD NAME CPU(cores) MEMORY(bytes)", *rows]) if rows else ""

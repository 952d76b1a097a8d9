"""Causes by which Ray nodes come and go, or do not go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from helpers.model.raycluster import Group, version_in
from helpers.observe import texts
from helpers.observe.causes.base import LIKELY, POSSIBLE, Evidence, Found, of_events, of_logs, shape
from helpers.observe.causes.capacity import unplaced
from helpers.observe.causes.churn import Churn, churns
from helpers.observe.scene import RayCluster, Scene
from helpers.observe.snapshot import time_of
from helpers.observe.things import AUTOSCALER, Pod, seconds
from helpers.text import count

FLOOR_KEPT = (2, 40, 0)  # the first Ray of which the autoscaler v2 keeps minReplicas when it removes idle nodes
DEFAULT_S = 60.0  # the idle timeout, if none is written
LONG_S = 300.0  # an idle timeout from which on waiting for it is worth a word, if nobody says how long a node is idle
BRIDGE = 3  # a gap of so many timeouts can still be bridged by a longer one
BRIDGE_S = 300.0


# ---- nodes that come and go ------------------------------------------------------------------------------------------


def min_floor_thrash(scene: Scene) -> Found | str:
    for one in churns(scene):
        least = one.group.bounds[0] * one.group.hosts
        if (
            least
            and one.rounds >= 1
            and len(one.gone) >= 2
            and one.most <= least
            and _is_calm(scene)
            and not _too_young(scene, one)
        ):
            period = median(one.lives) + median(one.gaps) if one.lives else median(one.gaps)
            said = (
                f"The autoscaler removes idle Ray nodes of {one.group.name} though minReplicas is"
                f" {one.group.bounds[0]}, and the operator makes new ones, every {period:.0f} s."
            )
            ray = f"Ray {_ray_version(scene)}" if _ray_version(scene) else "the Ray"
            shown = Evidence(
                f"{ray} is before 2.40, whose autoscaler did not keep the minimum", scene.on_head("ray --version")
            )
            is_old = (version_in(_ray_version(scene)) or FLOOR_KEPT) < FLOOR_KEPT
            return Found(
                said,
                (
                    *of_events(scene.events_of("DeletedWorkerPod"), 2),
                    *of_events(scene.events_of("CreatedWorkerPod"), 1),
                    *([shown] if is_old else []),
                ),
                "certain" if is_old else LIKELY,
            )
    return _no_churn(scene, "no group is thrown below its minReplicas")


def _too_young(scene: Scene, one: Churn) -> bool:
    """Whether Pods were removed before they could have been idle for the timeout: then it is not for idleness."""
    timeout = one.cluster.idle_timeout_s(one.group)
    return bool(one.lives) and median(one.lives) < 0.9 * timeout


def idle_timeout_too_short(scene: Scene) -> Found | str:
    for one in _thrashing(scene):
        timeout, gap = one.cluster.idle_timeout_s(one.group), median(one.gaps)
        if gap + timeout <= max(BRIDGE * timeout, BRIDGE_S, 2 * _start_s(scene, one)):
            said = (
                f"Ray nodes of {one.group.name} go after {timeout:.0f} s of idleness, and {gap:.0f} s later new ones"
                " are made:"
                " the gaps in the load are a little longer than the timeout."
            )
            return Found(
                said,
                _comings(scene),
                LIKELY,
                (
                    f"Set idleTimeoutSeconds of {one.group.name} above {gap + timeout:.0f} s, or minReplicas to"
                    " what is always needed."
                ),
            )
    return _no_churn(scene, "no nodes are made again soon after they went")


def demand_bursty(scene: Scene) -> Found | str:
    for one in _thrashing(scene):
        said = (
            f"Ray nodes of {one.group.name} come and go with the load: {median(one.gaps):.0f} s lie between a"
            " removal and the next launch."
        )
        return Found(said, _comings(scene), LIKELY)
    return _no_churn(scene, "nodes do not come and go")


def _thrashing(scene: Scene) -> list[Churn]:
    return [
        one
        for one in churns(scene)
        if one.rounds >= 2 and one.most > one.group.bounds[0] * one.group.hosts and not _too_young(scene, one)
    ]


def _start_s(scene: Scene, one: Churn) -> float:
    """Seconds from a Pod's creation to its being ready, of those that are there."""
    pods = [pod for pod in scene.pods_of(one.cluster, one.group) if pod.is_ready]
    starts = [seconds(pod.created, time_of(pod.condition("Ready").get("lastTransitionTime"))) for pod in pods]
    return median(starts) if starts else 0.0


def _comings(scene: Scene) -> tuple[Evidence, ...]:
    if not scene.events_of("DeletedWorkerPod"):
        return of_logs(scene, "node(s) of type", "nodes of type", containers=(AUTOSCALER,), most=4)
    return (*of_events(scene.events_of("DeletedWorkerPod"), 2), *of_events(scene.events_of("CreatedWorkerPod"), 2))


def _no_churn(scene: Scene, otherwise: str) -> str:
    return (
        otherwise
        if scene.events_of("CreatedWorkerPod", "DeletedWorkerPod")
        else ("no Pod was removed" if scene.events else "")
    )


def _is_calm(scene: Scene) -> bool:
    return not (scene.status and scene.status.has_demand)


def _ray_version(scene: Scene) -> str:
    written = [cluster.spec.get("rayVersion") or "" for cluster in scene.clusters]
    images = [pod.ray.image for pod in scene.heads]
    found = (
        ".".join(map(str, version))
        for one in (*images, *written, scene.snapshot.ray_version)
        if (version := version_in(str(one)))
    )
    return next(found, "")


# ---- nodes that stay -------------------------------------------------------------------------------------------------


def _settled(scene: Scene) -> bool:
    """Whether nothing else is the question: no demand waits, no Pod is on its way."""
    status = scene.status
    return (
        bool(status) and not status.has_demand and not status.launching and not status.pending and not unplaced(scene)
    )


def _kept(scene: Scene) -> Iterator[tuple[Pod | None, texts.RayNode]]:
    """Workers that are not idle though nothing holds a resource of them, with what `ray status -v` says of each."""
    if not _settled(scene):
        return
    for node in scene.status.nodes or _workers_as_one(scene):
        pod = next((one for one in scene.workers if one.name == node.name or (one.ip and one.ip == node.name)), None)
        is_worker = pod is not None or (node.group not in ("", "headgroup") and not scene.is_head_name(node.name))
        if is_worker and not node.idle_ms and (node.activity or node.used("object_store_memory") or not node.id):
            yield pod, node


def _workers_as_one(scene: Scene) -> Iterator[texts.RayNode]:
    """Without -v, what is said of all Ray nodes together, if there are workers that are not idle."""
    groups = [group for group, number in scene.status.active.items() if group != "headgroup" and number]
    if groups and scene.status.has_idle:
        pods = [pod.name for pod in scene.workers if pod.group == groups[0] and pod.is_ready]
        yield texts.RayNode(
            pods[0] if len(pods) == 1 else f"a Ray node of {groups[0]}", groups[0], usage=scene.status.usage
        )


def _uses_store(node: texts.RayNode) -> bool:
    said = any("object_store_memory currently in use" in line for line in node.activity)
    return (said or node.used("object_store_memory") > 0) and node.is_free and not _has_workers(node)


def _has_workers(node: texts.RayNode) -> bool:
    return any("Busy workers on node" in line for line in node.activity)


def pinned_by_object_refs(scene: Scene) -> Found | str:
    for _, node in _kept(scene):
        references = scene.memory.references if scene.memory else []
        if _uses_store(node) and (references or not _is_unexplained(scene)):
            said = f"{node.name} is kept by objects in its store that something still refers to."
            shown = [Evidence(one[:200], scene.on_head("ray memory")) for one in references[:2]]
            return Found(said, (_activity(scene, node), *shown), "certain" if references else LIKELY)
    listed = scene.memory.references if scene.memory else []
    if scene.status is None and listed and scene.workers and scene.kind == "RayCluster":
        said = (
            f"What is listed may keep workers: {count(len(listed), 'reference')}; nothing says where the objects are."
        )
        return Found(said, tuple(Evidence(one[:200], scene.on_head("ray memory")) for one in listed[:2]), POSSIBLE)
    return _not_kept(scene, "no node is kept by its object store alone")


def _is_unexplained(scene: Scene) -> bool:
    """Whether `ray memory` lists no reference; with --stats-only: whether no first copy is needed."""
    memory = scene.memory
    return memory is not None and not memory.references and (memory.has_table or memory.needed == 0)


def object_store_in_use(scene: Scene) -> Found | str:
    for _, node in _kept(scene):
        if _uses_store(node) and _is_unexplained(scene):
            said = (
                f"{node.name} is kept by its object store, though no reference is listed: perhaps copies that were"
                " never dropped; which, is not known."
            )
            shown = Evidence(scene.memory.used or "no reference is listed", scene.on_head("ray memory"))
            return Found(said, (_activity(scene, node), shown), POSSIBLE)
    return _not_kept(scene, "no node is kept by its object store alone")


def pinned_by_actor(scene: Scene) -> Found | str:
    if scene.job is not None and scene.job_status.get("jobStatus") in ("RUNNING", "PENDING"):
        return "a job runs: its actors have work"
    alive = [one for one in scene.actors or () if one.state == "ALIVE"]
    if scene.status is None and alive and scene.workers and scene.kind == "RayCluster":
        told = f"{alive[0].class_name} {alive[0].name} is ALIVE"
        said = f"What is alive may keep workers: {count(len(alive), 'actor')}, of which nothing says where they are."
        return Found(said, (Evidence(told, scene.on_head("ray list actors")),), POSSIBLE)
    kept = [node for _, node in _kept(scene)]
    # where tasks keep other nodes busy, an actor that works is no question
    has_all = all(node.is_free or any(one.is_on(node.id) for one in alive) for node in kept)
    for node in kept:
        here = _actors_on(node, alive)
        is_held = bool(here) and (node.is_free or has_all) and not _serves(scene, here)
        is_likely = scene.actors is None and node.is_free and _has_workers(node)
        if is_held or is_likely:
            who = f"the actor {here[0].name or here[0].class_name}" if here else "a live actor, most likely"
            said = f"{node.name} is kept by {who}: it holds a worker process there, with or without resources."
            shown = [
                Evidence(
                    f"{one.class_name} {one.name} is ALIVE on {one.node_id[:12]}", scene.on_head("ray list actors")
                )
                for one in here[:2]
            ]
            certainty = "certain" if here and node.is_free and node.id else LIKELY
            return Found(said, (_activity(scene, node), *shown), certainty)
    return _not_kept(scene, "no node is kept by an actor alone")


def _actors_on(node: texts.RayNode, alive: list[texts.Actor]) -> list[texts.Actor]:
    """Actors of a Ray node; without -v nothing says where one is: on a worker, if no object keeps those."""
    if not node.id:
        return [] if node.used("object_store_memory") or not node.is_free else alive
    return [one for one in alive if one.is_on(node.id)]


def _serves(scene: Scene, actors: list[texts.Actor]) -> bool:
    return scene.service is not None and any(one.class_name.startswith("ServeReplica") for one in actors)


def pinned_by_request_resources(scene: Scene) -> Found | str:
    status = scene.status
    if not status or not status.requests:
        return "no standing request" if status else ""
    if not _settled(scene) or not _idlers(scene):
        return "what request_resources() asks for is in use, or on its way"
    asked = ", ".join(f"{number} x {shape(bundle)}" for bundle, number in status.requests)
    said = f"Idle Ray nodes are kept by the standing request of request_resources(): {asked}."
    return Found(said, (Evidence(f"From request_resources: {asked}", scene.on_head("ray status")), *_idle_shown(scene)))


def min_replicas_floor(scene: Scene) -> Found | str:
    if not scene.status:
        return ""
    idlers = _idlers(scene) if _settled(scene) else {}
    for cluster, group in scene.autoscaled:
        least = group.bounds[0] * group.hosts
        there = len(scene.pods_of(cluster, group)) or scene.status.joined(group.name)
        if (
            least
            and idlers.get(group.name)
            and there <= least
            and _idle_s(scene, cluster, group) > cluster.idle_timeout_s(group)
        ):
            said = f"Idle Ray nodes of {group.name} are kept by minReplicas, which is {group.bounds[0]}."
            return Found(
                said,
                (
                    *_idle_shown(scene),
                    Evidence(
                        f"minReplicas of {group.name} is {group.bounds[0]}",
                        f"kubectl get raycluster {cluster.name} -o yaml",
                    ),
                ),
            )
    return "no idle node is one of the minimum" if not idlers else "there are more idle nodes than the minimum"


def idle_timeout_too_long(scene: Scene) -> Found | str:
    if not scene.status:
        return ""
    idlers = _idlers(scene) if _settled(scene) else {}
    for cluster, group in scene.autoscaled:
        timeout, idle = cluster.idle_timeout_s(group), _known_idle_s(scene, group)
        least = group.bounds[0] * group.hosts
        there = len(scene.pods_of(cluster, group)) or scene.status.joined(group.name)
        waits = timeout >= LONG_S if idle is None else DEFAULT_S < idle <= timeout or idle <= timeout > LONG_S
        if idlers.get(group.name) and there > least and waits:
            known = f" for {idle:.0f} s" if idle is not None else ""
            said = f"Ray nodes of {group.name} are idle{known}, and go after {timeout:.0f} s only."
            return Found(
                said,
                (
                    *_idle_shown(scene),
                    Evidence(f"idleTimeoutSeconds is {timeout:.0f}", f"kubectl get raycluster {cluster.name} -o yaml"),
                ),
            )
    return "no node is idle for long" if not idlers else "the idle timeout is short"


def _idlers(scene: Scene) -> dict[str, int]:
    """Idle workers by group, as `ray status` counts them; in older texts those with nothing in use."""
    status = scene.status
    found: dict[str, int] = defaultdict(int)
    for group, number in status.idle.items():
        if group != "headgroup":
            found[group] += number
    for node in status.nodes:
        if not status.idle and node.idle_ms and node.group not in ("", "headgroup"):
            found[node.group] += 1
    is_quiet = not any(used for used, _ in status.usage.values()) and not any(node.activity for node in status.nodes)
    if not found and is_quiet:
        found.update({group: number for group, number in status.active.items() if group != "headgroup"})
    return dict(found)


def _known_idle_s(scene: Scene, group: Group) -> float | None:
    told = [node.idle_ms / 1000 for node in scene.status.nodes if node.group == group.name and node.idle_ms]
    return max(told) if told else None


def _idle_s(scene: Scene, cluster: RayCluster, group: Group) -> float:
    """For how long the idle ones of a group are idle; where nobody says it, at most as long as they are there."""
    told = _known_idle_s(scene, group)
    return told if told is not None else max((scene.age(pod) for pod in scene.pods_of(cluster, group)), default=0)


def _idle_shown(scene: Scene) -> tuple[Evidence, ...]:
    told = [
        f"{node.name}: idle for {node.idle_ms / 1000:.0f} s"
        for node in scene.status.nodes
        if node.idle_ms and node.group != "headgroup"
    ]
    told = told or [f"Idle: {count(number, 'Ray node')} of {group}" for group, number in _idlers(scene).items()]
    return tuple(Evidence(one, scene.on_head("ray status -v")) for one in told[:2])


def _activity(scene: Scene, node: texts.RayNode) -> Evidence:
    return Evidence(f"{node.name}: {' '.join(node.activity) or 'object store in use'}", scene.on_head("ray status -v"))


def _not_kept(scene: Scene, otherwise: str) -> str:
    if not scene.status:
        return ""
    if not _settled(scene):
        return "demand is pending, or Ray nodes are on their way"
    return otherwise if scene.status.nodes else ""

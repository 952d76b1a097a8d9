"""Causes by which a Pod finds no Kubernetes node, or waits for one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from helpers.model import quantity
from helpers.observe.causes.base import LIKELY, Evidence, Found, of_events
from helpers.observe.causes.churn import churns
from helpers.observe.scene import RayCluster, Scene
from helpers.observe.snapshot import time_of
from helpers.observe.things import Event, Pod, seconds
from helpers.text import count

# of the Cluster Autoscaler (its events on Pods, in cluster-autoscaler/processors/status and core/scaleup), of GKE's,
# and of Karpenter (Nominated, and FailedScheduling from its own component)
ASKED = ("TriggeredScaleUp", "Nominated")
REFUSED = ("NotTriggerScaleUp", "FailedScaleUp", "FailedToScaleUpGroup", "InsufficientCapacityError")
NODE_AUTOSCALERS = ("cluster-autoscaler", "karpenter", "cluster-autoscaler-status")
NOBODY_S = 300  # a node autoscaler says something to a Pod that does not fit within a minute
ALLOCATE_ENV = "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S"
SLACK_S = 60  # between a timeout and the operator's deletion
LAUNCH_S = 1200  # after which a machine that was asked for is given up: 15 minutes with both


def unplaced(scene: Scene) -> list[Pod]:
    """Pods at which the scheduler has looked, and for which it found no Kubernetes node."""
    told = {event.name for event in scene.events_of("FailedScheduling", kind="Pod")}
    return [
        pod
        for pod in scene.pods
        if pod.finds_no_room
        or (pod.name in told and pod.phase == "Pending" and not pod.machine and not pod.is_gated and not pod.is_leaving)
    ]


def node_autoscaler_blocked(scene: Scene) -> Found | str:
    pods = unplaced(scene)
    if not pods:
        return _nobody_waits(scene)
    no = _newest(scene, pods, refused=True)
    yes = _newest(scene, pods, refused=False)
    if no is None or (yes and str(yes.last) > str(no.last)):
        return "the node autoscaler does not say that no pool fits" if yes or no else ""
    said = (
        f"The node autoscaler has looked at {pods[0].name}, and can make no Kubernetes node for it:"
        f" {no.message[:300].rstrip('.')}."
    )
    return Found(said, (*of_events([no]), *_unfit(scene, pods)))


def waiting_for_node(scene: Scene) -> Found | str:
    pods = unplaced(scene)
    if not pods:
        return _nobody_waits(scene)
    yes, no = _newest(scene, pods, refused=False), _newest(scene, pods, refused=True)
    claims = _coming(scene)
    if (yes is None and not claims) or (yes and no and str(no.last) > str(yes.last)):
        return "nobody has asked for a machine"
    told = yes.message if yes else claims[0].text
    late = f", {scene.since(yes.last):.0f} s ago" if yes and scene.since(yes.last) > LAUNCH_S else ""
    return Found(
        f"A machine for {pods[0].name} has been asked for{late} and is on its way: {told[:200].rstrip('.')}.",
        (*of_events([yes] if yes else []), *claims[:2], *_unfit(scene, pods)),
        LIKELY if late else "certain",
    )


def no_node_autoscaler(scene: Scene) -> Found | str:
    pods = unplaced(scene)
    if not pods:
        return _nobody_waits(scene)
    signs = _signs(scene)
    if signs:
        return f"there is a node autoscaler: {signs[0]}"
    waited = max(scene.age(pod) for pod in pods)
    if waited < NOBODY_S:
        return f"a Pod waits for {waited:.0f} s only, too short to say that nobody reacts"
    said = f"{count(len(pods), 'Pod')} found no Kubernetes node, for {waited:.0f} s now, and nothing makes one."
    return Found(said, _unfit(scene, pods), LIKELY)


def insufficient_node_capacity(scene: Scene) -> Found | str:
    pods = unplaced(scene)
    if not pods:
        return _nobody_waits(scene)
    said = f"{count(len(pods), 'Pod')} found no Kubernetes node with room: {_why_unfit(scene, pods[0])}."
    return Found(said, _unfit(scene, pods))


def upgrade_needs_double_capacity(scene: Scene) -> Found | str:
    """The second cluster of a RayService's upgrade (NewCluster in rayservice_controller.go) finds no room."""
    status = (scene.service or {}).get("status") or {}
    old = (status.get("activeServiceStatus") or {}).get("rayClusterName")
    new = (status.get("pendingServiceStatus") or {}).get("rayClusterName")
    if not old or not new or old == new:
        return "no second cluster is being made beside the first" if scene.service else ""
    pods = [pod for pod in unplaced(scene) if pod.cluster == new]
    if not pods:
        return "the Pods of the second cluster have found room"
    if (asked := waiting_for_node(scene)) and isinstance(asked, Found):
        return "a machine for the second cluster is on its way"
    if not any(_would_fit(scene, pod, old) for pod in pods):
        return "the Pods of the second cluster would not fit without the first either"
    keeps = [pod for pod in scene.workers if pod.cluster == old and pod.machine and not pod.is_over]
    said = (
        f"The upgrade makes {new} beside {old}, which serves on; {count(len(pods), 'Pod')} of it found no room, since"
        f" {old} still has {count(len(keeps), 'worker Pod')}."
    )
    shown = Evidence(
        f"RayService {scene.name}: active {old}, pending {new}", f"kubectl get rayservice {scene.name} -o yaml"
    )
    return Found(said, (shown, *_unfit(scene, pods)))


def allocation_timeout(scene: Scene) -> Found | str:
    """Ray's autoscaler gives up on Pods that do not join in time (`_handle_stuck_instance` in v2's reconciler.py)."""
    lines = [
        (log, line) for log in scene.autoscaler_logs for line in log.lines("ALLOCATION_TIMEOUT", "at status ALLOCATED")
    ]
    if _run(scene):
        return "the Pods run, and were not too slow"
    if not lines:
        return _given_up(scene)
    log, line = lines[-1]
    limit = re.search(r"timeout=(\d+)s", line)
    said = (
        f"Pods are deleted because they have not joined within {limit[1] if limit else 'the allocation timeout of'} s."
    )
    shown = [Evidence(text.strip()[:300], one.command) for one, text in lines[-2:]]
    return Found(said, (*shown, *of_events(scene.events_of("DeletedWorkerPod"), 1)))


def _given_up(scene: Scene) -> Found | str:
    """Without its log: Pods that the autoscaler removed at the age of its timeout, while they were still starting."""
    for one in churns(scene):
        limits = [
            limit
            for limit in _limits_s(one.cluster)
            if one.lives and all(0 <= age - limit < SLACK_S for age in one.lives)
        ]
        if limits and scene.pods_of(one.cluster, one.group):
            said = (
                f"Pods of {one.group.name} are deleted {limits[0]:.0f} s after their creation, while they are"
                " still starting."
            )
            return Found(said, of_events(scene.events_of("DeletedWorkerPod", "CreatedWorkerPod")), LIKELY)
    return "no Pod was removed at the age of the allocation timeout" if scene.events else ""


def _limits_s(cluster: RayCluster) -> list[float]:
    """The allocation timeout: what its variable says, else 3600 s (v2's instance_manager/config.py) or 300 s before."""
    told = [one.get("value") for one in cluster.options.get("env") or () if one.get("name") == ALLOCATE_ENV]
    return [float(one) for one in told if str(one).isdigit()] or [300.0, 3600.0]


def _run(scene: Scene) -> bool:
    """Whether Ray's container of new workers runs, so that it was not their start that took too long."""
    workers = [pod for pod in scene.workers if not pod.is_over]
    return bool(workers) and all(pod.ray.is_running for pod in workers)


# ---- the small parts -----------------------------------------------------------------------------------------------


def _nobody_waits(scene: Scene) -> str:
    return "every Pod has a Kubernetes node, or is not looked at yet" if scene.pods else ""


def _newest(scene: Scene, pods: list[Pod], *, refused: bool) -> Event | None:
    names = {pod.name for pod in pods}
    found = [
        event
        for event in scene.events
        if (_is_no(event) if refused else event.reason in ASKED)
        and (event.name in names or event.kind in ("NodeClaim", "NodePool", "ConfigMap"))
    ]
    return found[-1] if found else None


def _is_no(event: Event) -> bool:
    return event.reason in REFUSED or (event.reason == "FailedScheduling" and "karpenter" in event.component)


def _unfit(scene: Scene, pods: list[Pod]) -> tuple[Evidence, ...]:
    events = [
        event for event in scene.events_of("FailedScheduling", name=pods[0].name) if "karpenter" not in event.component
    ]
    if events:
        return of_events(events, 1)
    return (Evidence(f"Pod {pods[0].name}: {_why_unfit(scene, pods[0])}", scene.describe("pod", pods[0].name)),)


def _why_unfit(scene: Scene, pod: Pod) -> str:
    told = pod.condition("PodScheduled").get("message")
    events = [event.message for event in scene.events_of("FailedScheduling", name=pod.name)]
    return (told or (events[-1] if events else "no Kubernetes node fits")).split(" preemption:")[0].rstrip(". ")


def _coming(scene: Scene) -> list[Evidence]:
    """Machines that Karpenter has asked for, and that are no Kubernetes nodes yet."""
    found = []
    for claim in scene.snapshot.of_kind("NodeClaim"):
        told = {one.get("type"): one.get("status") for one in (claim.get("status") or {}).get("conditions") or ()}
        if told.get("Initialized") != "True" and not claim["metadata"].get("deletionTimestamp"):
            name = claim["metadata"]["name"]
            step = "launched" if told.get("Launched") == "True" else "asked for"
            found.append(
                Evidence(f"NodeClaim {name} is {step}, and no Kubernetes node yet", scene.describe("nodeclaim", name))
            )
    for node in scene.snapshot.of_kind("Node"):
        if _is_booting(scene, node):
            name = node["metadata"]["name"]
            found.append(Evidence(f"Kubernetes node {name} is new, and not ready yet", scene.describe("node", name)))
    return found


def _is_booting(scene: Scene, node: dict) -> bool:
    ready = [one for one in (node.get("status") or {}).get("conditions") or () if one.get("type") == "Ready"]
    is_ready = bool(ready) and ready[0].get("status") == "True"
    return not is_ready and 0 <= seconds(time_of(node["metadata"].get("creationTimestamp")), scene.now) < NOBODY_S


def _signs(scene: Scene) -> list[str]:
    """What shows that a node autoscaler is at work in the cluster."""
    found = [
        f"an event from {event.component}"
        for event in scene.events
        if any(one in event.component for one in NODE_AUTOSCALERS)
    ]
    found += [f"a {kind}" for kind in ("NodePool", "NodeClaim") if scene.snapshot.of_kind(kind)]
    found += ["an event " + event.reason for event in scene.events if event.reason in (*ASKED, *REFUSED)]
    for kind in ("Deployment", "Pod"):
        names = [one["metadata"]["name"] for one in scene.snapshot.of_kind(kind)]
        found += [f"{kind} {name}" for name in names if any(one in name for one in NODE_AUTOSCALERS)]
    return found


def _would_fit(scene: Scene, pod: Pod, old: str) -> bool:
    """Whether a Pod would find room if another cluster were gone; believed, if no Kubernetes node can be looked at."""
    nodes = scene.snapshot.of_kind("Node")
    names = {one["metadata"]["name"] for one in nodes}
    if any(one.machine not in names for one in scene.pods if one.machine):
        return "Insufficient" in _why_unfit(scene, pod)
    return any(_fits(pod, _free(scene, node, old)) for node in nodes)


def _fits(pod: Pod, free: dict[str, float]) -> bool:
    return all(free.get(name, 0) >= pod.request(name) for name in pod.requested)


def _free(scene: Scene, node: dict, without: str) -> dict[str, float]:
    """What a Kubernetes node has for Pods, less what those on it ask for, except a cluster's."""
    free = _amounts((node.get("status") or {}).get("allocatable") or {})
    others = [Pod(one) for one in scene.snapshot.of_kind("Pod")]
    here = [
        one for one in others if one.machine == node["metadata"]["name"] and one.cluster != without and not one.is_over
    ]
    return {name: amount - sum(one.request(name) for one in here) for name, amount in free.items()}


def _amounts(written: Iterable[tuple[str, str]] | dict) -> dict[str, float]:
    found = {}
    for name, amount in dict(written).items():
        try:
            found[name] = float(quantity.parse(amount))
        except ValueError:
            continue
    return found

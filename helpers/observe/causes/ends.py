"""Causes by which a Pod ends, or is taken for dead: memory, disk, machines that go, probes, crashes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from helpers.observe.causes.base import LIKELY, POSSIBLE, Evidence, Found, of_events, of_logs
from helpers.observe.causes.work import runs_apart
from helpers.observe.scene import ON_ITS_WAY, SETTLING_S, RayCluster, Scene
from helpers.observe.snapshot import time_of
from helpers.observe.things import WAIT, Container, Event, Pod, later, seconds, soon_after
from helpers.text import count

RECENT_S = 900
# an eviction by a node autoscaler: the Cluster Autoscaler's (core/scaledown/actuation), Karpenter's (Evicted, and its
# reasons of disruption), and the mark of the eviction API on a Pod
SCALE_DOWN = re.compile(
    r"node scale down|scale-down|ScaleDown|toBeDeleted|^Evicted pod: (?!Interrupted)|Disrupting", re.IGNORECASE
)
GOING = (
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
)
# notices that a cloud takes a machine back: Karpenter's interruption controller, aws-node-termination-handler, GKE, AKS
SPOT_REASONS = ("SpotInterrupted", "SpotInterruption", "PreemptScheduled")
SPOT_TEXT = re.compile(
    r"spot interruption|Spot ITN|instances\.preempted|spot instance.*(interrupt|terminat)"
    r"|instance (is being |was )?preempted|preemption notice|DRAIN_NODE_REASON_PREEMPTION",
    re.IGNORECASE,
)
# marks of aws-node-termination-handler and of GKE on a Kubernetes node that is being taken back
SPOT_TAINTS = ("aws-node-termination-handler/spot-itn", "cloud.google.com/impending-node-termination")
SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot", "eks.amazonaws.com/capacityType": "SPOT", "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true", "kubernetes.azure.com/scalesetpriority": "spot",
}  # fmt: skip
# the raylet's memory monitor and what the worker says of it (worker_killing_policy and node_manager.cc of Ray)
RAY_OOM = re.compile(r"killed due to the node running low on memory|killed due to memory pressure \(OOM\)")
NONE_KILLED = re.compile(r"(?<!\d)0 Workers \(tasks / actors\) killed")
PAST_S = 3600  # after which a Pod that is ready again has recovered
# "Some Ray subprocesses exited unexpectedly" is `ray start --block`'s (ray/scripts/scripts.py)
CRASH = (
    "subprocesses exited unexpectedly",
    "An unexpected system state has occurred",
    "[exit code=-",
    "SIGSEGV received",
    "SIGABRT received",
    "Fatal Python error",
    "The raylet died",
    "GCS may have been killed",
    "Raylet is terminated. Termination is unexpected",  # of process_watcher.py
    "*** StackTrace Information ***",  # of RAY_CHECK and RAY_LOG(FATAL) (ray/util/logging.cc), under the failed check
)
OF_RAY = CRASH[:2]  # of these nobody but Ray says it, whatever program the log is of
NOT_REACHED = ("Failed to connect to GCS", "Version mismatch:", "Ray version mismatch")
SPILLED = re.compile(r"Spilled \d+ MiB")
NO_DISK = (
    "No space left on device",
    "Local disk is full",
    "System running out of disk",
    "Out-of-disk",
    "OutOfDiskError",
    "% full. Object creation will fail if spilling is required",
)
TOO_SLOW = re.compile(r"timed out|deadline exceeded|DeadlineExceeded|Client\.Timeout|i/o timeout", re.IGNORECASE)
SIGNALS = (132, 134, 135, 136, 139)  # 128 and SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV
NEAR_S = 180.0  # between two things of which one brought about the other
STRICT = 5  # failed probes, from which on they are no hiccup


# ---- memory --------------------------------------------------------------------------------------------------------


def head_oom(scene: Scene) -> Found | str:
    evidence = _out_of_memory(scene, scene.heads, is_head=True)
    if not evidence:
        return "the head's container was not killed for memory" if scene.heads else ""
    certainty = "certain" if "OOMKilled" in evidence[0].text else LIKELY
    return Found("The head ran out of memory.", (*evidence[:3], *_driver_on_head(scene)[:1]), certainty)


def worker_oom(scene: Scene) -> Found | str:
    evidence = _out_of_memory(scene, scene.workers, is_head=False)
    if not evidence:
        return "no worker's container was killed for memory" if scene.workers else ""
    return Found("A worker ran out of memory.", tuple(evidence[:3]))


def init_oom(scene: Scene) -> Found | str:
    for pod in scene.pods:
        for one in pod.init_containers:
            if one.was_killed_for_memory and not one.status.get("ready"):
                limit = ((one.spec.get("resources") or {}).get("limits") or {}).get("memory", "its limit")
                said = (
                    f"The init container {one.name} of {pod.name} is killed at {limit} of memory, before Ray's begins."
                )
                return Found(said, tuple(_killed(scene, pod, one)))
    return "no init container was killed for memory" if scene.pods else ""


def _out_of_memory(scene: Scene, pods: list[Pod], *, is_head: bool) -> list[Evidence]:
    evidence = [one for pod in pods for one in _killed(scene, pod, pod.ray)]
    # the operator's event has how the container ended: "…terminated status: &ContainerStateTerminated{ExitCode:137,…"
    gone = scene.events_of("DeletedHeadPod" if is_head else "DeletedWorkerPod")
    evidence += of_events(event for event in gone if "OOMKilled" in event.message)
    evidence += _squeezed_out(scene, pods, is_head=is_head)
    return evidence + [one for one, at_head in _ray_oom(scene) if at_head is is_head]


def _killed(scene: Scene, pod: Pod, container: Container) -> Iterator[Evidence]:
    for end in container.ends:
        is_past = pod.is_ready and scene.since(time_of(end.get("finishedAt"))) > PAST_S
        if not is_past and (end.get("reason") == "OOMKilled" or _kernel_killed(scene, pod, end)):
            told = f"{end.get('reason')}, exit code {end.get('exitCode')}, {count(container.restarts, 'restart')}"
            yield Evidence(f"Pod {pod.name}, {container.name}: {told}", scene.describe("pod", pod.name))


def _kernel_killed(scene: Scene, pod: Pod, end: Mapping[str, Any]) -> bool:
    """Whether a container ended by SIGKILL when its Kubernetes node said that the kernel ran out of memory."""
    at = time_of(end.get("finishedAt"))
    told = scene.events_of("SystemOOM", "OOMKilling", kind="Node", name=pod.machine)
    return end.get("exitCode") == 137 and any(
        abs(seconds(event.last, at)) < NEAR_S for event in told if event.last and at
    )


def _squeezed_out(scene: Scene, pods: list[Pod], *, is_head: bool) -> Iterator[Evidence]:
    """Evicted by the kubelet for the memory of the Kubernetes node (pkg/kubelet/eviction/helpers.go)."""
    for pod in pods:
        message = pod.status.get("message") or ""
        if pod.status.get("reason") == "Evicted" and "resource: memory" in message:
            yield Evidence(f"Pod {pod.name}: {message.strip()}", scene.describe("pod", pod.name))
    yield from of_events(
        event
        for event in scene.events_of("Evicted", kind="Pod")
        if "resource: memory" in event.message and scene.is_head_name(event.name) is is_head
    )


def _ray_oom(scene: Scene) -> Iterator[tuple[Evidence, bool]]:
    """What Ray's memory monitor says of what it killed, and whether that was on the head."""
    ips = [pod.ip for pod in scene.heads if pod.ip]
    told = [(log.text, log.command) for log in scene.logs]
    told += [(scene.job_status.get("message") or "", f"kubectl get rayjob {scene.name} -o yaml")]
    for text, command in told:
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if RAY_OOM.search(line) and not NONE_KILLED.search(line):
                near = " ".join(lines[number : number + 3])
                at_head = any(re.search(rf"IP: {re.escape(ip)}[,)]", near) for ip in ips)
                yield Evidence(line.strip()[:300], command), at_head
                break


def _driver_on_head(scene: Scene) -> list[Evidence]:
    for node in scene.status.nodes if scene.status else ():
        if node.group == "headgroup" and node.used("CPU"):
            return [
                Evidence(
                    f"{node.name} runs work itself: {node.used('CPU'):g} CPU in use", scene.on_head("ray status -v")
                )
            ]
    return []


# ---- disk ----------------------------------------------------------------------------------------------------------


def spill_filled_disk(scene: Scene) -> Found | str:
    spilled = [
        Evidence(line.strip()[:300], log.command)
        for log in scene.logs
        for line in log.text.splitlines()
        if SPILLED.search(line)
    ]
    full = [*_evicted_for_disk(scene), *of_logs(scene, *NO_DISK)]
    if not full:
        return "no Pod was evicted for disk" + (" and no log says that a disk is full" if scene.logs else "")
    said = (
        "Spilled objects filled the disk of a Kubernetes node."
        if spilled
        else "A disk is full: Ray spills objects to /tmp/ray, on the container's own disk."
    )
    return Found(said, (*full[:2], *spilled[-1:]), "certain" if spilled else LIKELY)


def _evicted_for_disk(scene: Scene) -> Iterator[Evidence]:
    needles = ("ephemeral-storage", "ephemeral local storage", "DiskPressure", "EmptyDir volume")
    for pod in scene.pods:
        message = f"{pod.status.get('message') or ''}"
        if pod.phase == "Failed" and any(one in message for one in needles) and not pod.is_submitter:
            yield Evidence(
                f"Pod {pod.name}: {pod.status.get('reason')}: {message.strip()}", scene.describe("pod", pod.name)
            )
    gone = [event for event in scene.events_of("Evicted", kind="Pod") if any(one in event.message for one in needles)]
    yield from of_events(gone, 1)


# ---- machines that go ----------------------------------------------------------------------------------------------


def head_evicted_node_scale_down(scene: Scene) -> Found | str:
    about_head = [event for event in scene.events if event.kind == "Pod" and scene.is_head_name(event.name)]
    machines = [one for one in scene.events if one.kind in ("Node", "NodeClaim") and _removes(one)]
    moved = [event for event in about_head if event.reason in ("ScaleDown", "Evicted") and _removes(event)]
    # where the eviction itself is not told: the head was ended while a machine was being removed, and came anew
    ended = [event for event in about_head if event.reason == "Killing" and _is_replaced(scene, event)]
    near = [event for event in ended if any(abs(seconds(one.last, event.last)) < NEAR_S for one in machines)]
    marked = [pod for pod in scene.heads if _is_evicted(pod) and _on_machine_that_goes(scene, pod)]
    if not (moved or marked or near):
        return "no node autoscaler has moved the head" if scene.events or scene.heads else ""
    if not moved and _spot_notices(scene, {pod.machine for pod in marked}):
        return "the machine was taken back by the cloud"
    if moved and _is_over_it(scene, moved[-1]):
        return "the head was moved, and is ready again long since"
    shown = [
        Evidence(f"Pod {pod.name}: {pod.condition('DisruptionTarget').get('reason')}", scene.describe("pod", pod.name))
        for pod in marked
    ]
    told = (moved or near)[-1:]
    who = f"{told[0].component}: {told[0].message.rstrip('.')}" if told else "by the eviction API"
    said = f"The head was moved off a machine that was being removed ({who})."
    evidence = (*of_events(moved or near, 2), *shown[:1], *of_events(machines, 1))
    return Found(said, evidence, "certain" if moved else LIKELY)


def _removes(event: Event) -> bool:
    return bool(SCALE_DOWN.search(event.message) or SCALE_DOWN.search(event.reason))


def _is_replaced(scene: Scene, event: Event) -> bool:
    """Whether the head that an event is about is gone, or on its way out."""
    return all(pod.name != event.name or pod.is_leaving or pod.is_over for pod in scene.heads)


def _is_over_it(scene: Scene, event: Event) -> bool:
    """Whether a new head has been ready for long after an event."""
    ready = [pod for pod in scene.heads if pod.is_ready and later(pod.created, event.last)]
    return bool(ready) and scene.since(event.last) > 6 * RECENT_S


def _is_evicted(pod: Pod) -> bool:
    target = pod.condition("DisruptionTarget")
    return target.get("status") == "True" and target.get("reason") == "EvictionByEvictionAPI"


def _on_machine_that_goes(scene: Scene, pod: Pod) -> bool:
    node = next((one for one in scene.snapshot.of_kind("Node") if one["metadata"]["name"] == pod.machine), None)
    if node is None:
        return bool(scene.snapshot.of_kind("Node"))
    spec = node.get("spec") or {}
    taints = {one.get("key") for one in spec.get("taints") or ()}
    return (
        bool(taints & set(GOING)) or bool(spec.get("unschedulable")) or bool(node["metadata"].get("deletionTimestamp"))
    )


def spot_interruption(scene: Scene) -> Found | str:
    machines = {pod.machine for pod in scene.pods if pod.machine}
    notices = _spot_notices(scene, machines)
    shut = [pod for pod in scene.pods if _was_shut_down(pod)]
    spot = [one for one in scene.snapshot.of_kind("Node") if _is_spot(one)]
    spot_shut = [pod for pod in shut if _wants_spot(pod) or pod.machine in {one["metadata"]["name"] for one in spot}]
    lines = [
        Evidence(line.strip()[:300], log.command)
        for log in scene.logs
        for line in log.text.splitlines()
        if SPOT_TEXT.search(line)
    ]
    going = [node for node in scene.snapshot.of_kind("Node") if _is_taken_back(node)]
    dead = [node for node in (*spot, *going) if _is_dead(node) or node in going]
    dead = [node for node in dead if node["metadata"]["name"] in machines]
    if not (notices or spot_shut or lines or dead):
        return "nothing says that a cloud took a machine back" if scene.events or scene.pods else ""
    shown = [
        Evidence(
            f"Pod {pod.name}: {pod.status.get('message') or pod.status.get('reason')}", scene.describe("pod", pod.name)
        )
        for pod in shut
    ]
    shown += [
        Evidence(
            f"Kubernetes node {node['metadata']['name']} is a spot machine, and {'going' if node in going else 'gone'}",
            scene.describe("node", node["metadata"]["name"]),
        )
        for node in dead
    ]
    return Found(
        "The cloud took a machine back.",
        (*of_events(notices, 2), *lines[:1], *shown[:2]),
        "certain" if notices or lines else LIKELY,
    )


def _spot_notices(scene: Scene, machines: set[str]) -> list[Event]:
    return [
        event
        for event in scene.events
        if event.reason in SPOT_REASONS or SPOT_TEXT.search(event.message)
        if event.kind != "Node"
        or not machines
        or event.name in machines
        or _is_gone(scene, event.name)
        or _lacks_since(scene, event)
    ]


def _lacks_since(scene: Scene, event: Event) -> bool:
    """Whether a Pod is missing, or was made anew soon after: one of it may have been on the machine of that event."""
    if any(soon_after(pod.created, event.last, RECENT_S) for pod in scene.pods):
        return True
    clusters = [one for one in scene.clusters if not one.is_suspended]
    return any(len(scene.pods_of(one, group)) < group.desired_pods for one in clusters for group in one.groups)


def _is_gone(scene: Scene, node: str) -> bool:
    return node not in {one["metadata"]["name"] for one in scene.snapshot.of_kind("Node")}


def _was_shut_down(pod: Pod) -> bool:
    told = f"{pod.status.get('reason')} {pod.status.get('message')}"
    target = pod.condition("DisruptionTarget").get("reason")
    return pod.phase == "Failed" and (
        "shutdown" in told.lower() or "NodeLost" in told or target in ("TerminationByKubelet", "DeletionByTaintManager")
    )


def _wants_spot(pod: Pod) -> bool:
    selector = pod.spec.get("nodeSelector") or {}
    return any(selector.get(key) == value for key, value in SPOT_LABELS.items())


def _is_spot(node: dict) -> bool:
    labels = node["metadata"].get("labels") or {}
    return any(labels.get(key) == value for key, value in SPOT_LABELS.items())


def _is_taken_back(node: dict) -> bool:
    taints = {one.get("key") for one in (node.get("spec") or {}).get("taints") or ()}
    return bool(taints & set(SPOT_TAINTS))


def _is_dead(node: dict) -> bool:
    ready = [one for one in (node.get("status") or {}).get("conditions") or () if one.get("type") == "Ready"]
    return bool(ready) and ready[0].get("status") != "True"


# ---- probes and crashes ----------------------------------------------------------------------------------------------


def probe_too_strict(scene: Scene) -> Found | str:
    """Ray is alive and the probe does not wait for it: it times out, or ends the container while Ray still starts."""
    failing = [event for event in scene.events_of("Unhealthy", kind="Pod") if scene.since(event.last) < RECENT_S]
    if not failing:
        return "no probe has failed of late" if scene.events else ""
    found: list[Event] = []
    for pod in [*scene.heads, *scene.workers]:
        mine = [event for event in failing if event.name == pod.name]
        if sum(event.count for event in mine) < STRICT or pod.ray.was_killed_for_memory or not _is_alive(scene, pod):
            continue
        if pod.is_worker and scene.status and runs_apart(scene, pod):
            continue  # a Ray node that has not joined is not merely slow
        killed = [
            event for event in scene.events_of("Killing", name=pod.name) if "failed liveness probe" in event.message
        ]
        if any(TOO_SLOW.search(event.message) for event in mine) or (killed and _was_young(pod)):
            found += [*mine, *killed]
    if not found:
        return "the probes that fail do not time out"
    pod = next(pod for pod in scene.pods if pod.name == found[0].name)
    share = scene.cpu_share(pod, pod.ray)
    busy = (
        [Evidence(f"{pod.name}, {pod.ray.name}: {share:.0%} of its CPU limit in use", "kubectl top pod --containers")]
        if share and share > 0.8
        else []
    )
    total = sum(event.count for event in found if event.name == pod.name and event.reason == "Unhealthy")
    said = f"Ray on {pod.name} is alive, and the probe gives it too little time: {total} failed probes."
    return Found(said, (*of_events(found), *busy))


def _is_alive(scene: Scene, pod: Pod) -> bool:
    crashed = any(log.lines(*CRASH) for log in scene.logs_of(pod=pod.name))
    return pod.ray.is_running and not crashed or _probe_ended(scene, pod)


def _probe_ended(scene: Scene, pod: Pod) -> bool:
    return any("failed liveness probe" in event.message for event in scene.events_of("Killing", name=pod.name))


def _was_young(pod: Pod) -> bool:
    """Whether Ray's container was ended again and again soon after its start."""
    ends = pod.ray.ends
    lives = [(time_of(end.get("startedAt")), time_of(end.get("finishedAt"))) for end in ends]
    return any(begun and done and (done - begun).total_seconds() < 300 for begun, done in lives)


def ray_crash(scene: Scene) -> Found | str:
    for pod in [*scene.heads, *scene.workers]:
        bad = [
            end
            for end in pod.ray.ends
            if end.get("exitCode") and end.get("reason") not in ("OOMKilled", "ContainerStatusUnknown", "Completed")
        ]
        if (
            not bad
            or pod.status.get("reason") == "Evicted"
            or _was_shut_down(pod)
            or pod.is_leaving
            or _probe_ended(scene, pod)
        ):
            continue
        if any(log.lines(*NOT_REACHED) for log in scene.logs_of(pod=pod.name)) and pod.is_worker:
            continue  # `ray start` gave up since it did not reach the head
        code = bad[0]["exitCode"]
        lines = [Evidence(line[:300], log.command) for log in scene.logs_of(pod=pod.name) for line in log.lines(*CRASH)]
        if not lines and (code in (137, 143) or (pod.is_over and code not in SIGNALS)):
            continue  # ended from outside, or nobody knows why
        shown = Evidence(
            f"Pod {pod.name}, {pod.ray.name}: exit code {code}, {count(pod.ray.restarts, 'restart')}",
            scene.describe("pod", pod.name),
        )
        return Found(
            f"A Ray process of {pod.name} ended by itself, with exit code {code}.",
            (shown, *lines[:2]),
            "certain" if lines else LIKELY,
        )
    lines = of_logs(scene, *OF_RAY)
    gone = [
        event
        for reason in ("DeletedHeadPod", "DeletedWorkerPod")
        for event in scene.events_of(reason)
        if re.search(r"ExitCode:([1-9]\d*)", event.message) and "OOMKilled" not in event.message
    ]
    if lines:
        return Found("A Ray process ended by itself.", (*lines[:2], *of_events(gone, 1)), LIKELY)
    if gone and scene.since(gone[-1].last) < RECENT_S:
        return Found(
            "Ray's container ended by itself, and the operator replaced its Pod.", of_events(gone, 2), POSSIBLE
        )
    return "no Ray process has ended by itself" if scene.pods else ""


# ---- heads ---------------------------------------------------------------------------------------------------------

REPLACE_S = 60  # after which the operator has replaced a head that ended, by its own source (raycluster_controller.go)


def head_not_restarted(scene: Scene) -> Found | str:
    for cluster in scene.clusters:
        head = scene.head_of(cluster.name)
        ended = _ended_at(head) if head and not head.is_leaving else None
        if ended and scene.since(ended) > REPLACE_S:
            said = (
                f"The head Pod {head.name} ended {scene.since(ended):.0f} s ago, and neither kubelet nor operator"
                " has replaced it."
            )
            shown = f"Pod {head.name}: {head.phase}, restartPolicy {head.spec.get('restartPolicy')}"
            return Found(said, (Evidence(shown, scene.describe("pod", head.name)),))
        if head is None and not cluster.is_suspended and scene.since(_without_head(scene, cluster)) > REPLACE_S:
            said = f"RayCluster {cluster.name} has had a head, and nobody has made a new one."
            return Found(
                said,
                (
                    Evidence(
                        "there is no head Pod",
                        f"kubectl get pods -l ray.io/cluster={cluster.name},ray.io/node-type=head",
                    ),
                ),
                LIKELY,
            )
    return "no head Pod has ended for good" if scene.heads else ""


def _ended_at(head: Pod) -> datetime | None:
    if head.is_over or (head.ray.ended and head.spec.get("restartPolicy") == "Never"):
        return (
            time_of(head.ray.ended.get("finishedAt"))
            or time_of(head.condition("Ready").get("lastTransitionTime"))
            or head.created
        )
    return None


def _without_head(scene: Scene, cluster: RayCluster) -> datetime | None:
    condition = cluster.condition("HeadPodReady")
    had = (
        scene.events_of("CreatedHeadPod", "DeletedHeadPod", name=cluster.name) or cluster.status.get("state") == "ready"
    )
    if had and condition.get("reason") == "HeadPodNotFound":
        return time_of(condition.get("lastTransitionTime"))
    # where the operator does not run, its condition is of before: the Pods are there, and the head's has been ended
    if not any(pod.cluster == cluster.name for pod in scene.workers):
        return None
    ended = [one for one in scene.events_of("Killing", "Evicted", kind="Pod") if scene.is_head_name(one.name)]
    made = [
        one for one in scene.events_of("CreatedHeadPod", name=cluster.name) if ended and later(one.last, ended[-1].last)
    ]
    return ended[-1].last if ended and not made else None


def head_not_ready(scene: Scene) -> Found | str:
    for cluster in scene.clusters:
        head = scene.head_of(cluster.name)
        waits = [pod for pod in scene.workers if pod.cluster == cluster.name and pod.is_initialising and pod.machine]
        if head is None or head.is_ready or _only_submitter_ended(head) or not waits or not _is_stuck(scene, head):
            continue
        state = _state(head)
        said = f"{count(len(waits), 'worker Pod')} wait for the head, and {head.name} is not up ({state})."
        evidence = [Evidence(f"Head Pod {head.name}: {state}", scene.describe("pod", head.name))]
        evidence += [Evidence(f"Pod {waits[0].name} waits in its init container", scene.describe("pod", waits[0].name))]
        return Found(said, (*evidence, *of_logs(scene, "seconds elapsed", containers=(WAIT,), most=1)))
    return "the head is ready, or just starting" if scene.heads else ""


def _is_stuck(scene: Scene, head: Pod) -> bool:
    """Whether a head is not merely starting."""
    waiting = {one.waiting.get("reason") for one in head.every_container} - {None, *ON_ITS_WAY}
    return head.finds_no_room or head.is_over or bool(waiting) or scene.age(head) > SETTLING_S


def _only_submitter_ended(head: Pod) -> bool:
    others = [one for one in head.containers if not one.status.get("ready")]
    return bool(others) and all(one.name == "ray-job-submitter" for one in others) and bool(head.containers)


def _state(head: Pod) -> str:
    waiting = next((one.waiting["reason"] for one in head.every_container if one.waiting.get("reason")), "")
    told = head.condition("PodScheduled")
    if not head.machine and told.get("status") == "False":
        return f"not scheduled: {(told.get('message') or told.get('reason') or '').rstrip('. ')}"
    return waiting or head.status.get("reason") or f"{head.phase}, not ready"

"""Causes by which a Pod is refused, held back, or cannot begin: rights, quota, gates, images, versions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from helpers.model.raycluster import version_in
from helpers.observe.causes.base import LIKELY, Evidence, Found, amount, of_events
from helpers.observe.scene import SETTLING_S, Scene
from helpers.observe.things import PULL_REASONS, Event, Pod
from helpers.text import count

# what the API server says of a right that lacks (RBAC), not of a quota, which is "forbidden" too; and what Ray's
# autoscaler prints of it: requests.HTTPError of KubernetesHttpApiClient in autoscaler/_private/kuberay/node_provider.py
NO_RIGHT = re.compile(
    r"forbidden: User \\?\"[^\"]*\" cannot|User \\?\"system:[^\"]*\" cannot \w+ resource"
    r"|attempting to grant RBAC permissions not currently held"
    r"|40[13] Client Error: (Forbidden|Unauthorized) for url: \S*/apis?/"
)
ASKED_FOR_RIGHT = re.compile(r"auth can-i .*(rayclusters?|pods?)\b")
PYTHON = re.compile(r"-py(\d)(\d+)\b")
RECENT_S = 600


def rbac_denied(scene: Scene) -> Found | str:
    found = [*_denied_in_logs(scene), *_denied_in_events(scene), *_denied_when_asked(scene)]
    if not found:
        looked = "no event" + (" and no log" if scene.logs else "")
        return f"{looked} speaks of a right that lacks"
    return Found("A service account may not do what it has to: the API server refuses it.", tuple(found[:3]))


def _denied_in_logs(scene: Scene) -> Iterator[Evidence]:
    for log in scene.logs:
        lines = [line.strip() for line in log.text.splitlines() if NO_RIGHT.search(line)]
        yield from (Evidence(line[:300], log.command) for line in lines[-1:])


def _denied_in_events(scene: Scene) -> Iterator[Evidence]:
    denied = [
        event
        for event in scene.events
        if NO_RIGHT.search(event.message) or event.reason == "AutoscalerServiceAccountNotFound"
    ]
    # an event of long ago that was overcome says nothing of now
    fresh = [event for event in denied if scene.since(event.last) < RECENT_S or not scene.heads]
    yield from of_events(fresh)


def _denied_when_asked(scene: Scene) -> Iterator[Evidence]:
    """What `kubectl auth can-i` answers: "no", at times with a reason behind it."""
    for command, printed in scene.snapshot.exec.items():
        answers = [line.split()[0] for line in printed.splitlines() if line.strip()]
        if ASKED_FOR_RIGHT.search(command) and "no" in answers:
            yield Evidence(" ".join(printed.split())[:200], command)


# ---- quota ---------------------------------------------------------------------------------------------------------


def quota_exceeded(scene: Scene) -> Found | str:
    return _quota(scene, "exceeded quota", "A quota of the namespace has no room for the Pods that are missing: {}.")


def quota_needs_limits(scene: Scene) -> Found | str:
    # resource_access.go of Kubernetes: "failed quota: team: must specify limits.cpu for: ray-worker"
    return _quota(scene, "must specify", "A quota of the namespace counts what a container does not set: {}.")


def _quota(scene: Scene, needle: str, said: str) -> Found | str:
    events = [event for event in scene.events if needle in event.message and "quota" in event.message]
    evidence = [*of_events(event for event in events if _still_holds(scene, event))]
    for cluster in scene.clusters:
        failure = cluster.condition("ReplicaFailure")
        message = failure.get("message") or ""
        if failure.get("status") == "True" and needle in message and "quota" in message:
            evidence.insert(
                0,
                Evidence(
                    f"ReplicaFailure of {cluster.name}: {message}", f"kubectl get raycluster {cluster.name} -o yaml"
                ),
            )
    for job in scene.submitter_jobs:
        for condition in (job.get("status") or {}).get("conditions") or ():
            if needle in (condition.get("message") or "") and "quota" in condition["message"]:
                evidence.append(
                    Evidence(
                        f"Job {job['metadata']['name']}: {condition['message']}",
                        f"kubectl describe job {job['metadata']['name']}",
                    )
                )
    if not evidence and needle == "exceeded quota":
        evidence = list(_no_room(scene))
        said = "A quota of the namespace seems to have no room for the Pods that are missing: {}."
    if not evidence:
        return f"no event and no condition says “{needle}”"
    detail = re.search(r"(exceeded quota: .*|must specify .*)", evidence[0].text)
    return Found(said.format((detail[1] if detail else evidence[0].text).rstrip(".")), tuple(evidence[:3]))


def _no_room(scene: Scene) -> Iterator[Evidence]:
    """Quotas that have no room for one more Pod of a group that lacks one, where no event tells it any more."""
    for cluster in scene.clusters:
        for group in cluster.groups:
            pods = scene.pods_of(cluster, group)
            if not pods or len(pods) >= group.desired_pods or not scene.head_of(cluster.name):
                continue
            for quota in scene.snapshot.of_kind("ResourceQuota"):
                status = quota.get("status") or {}
                for name, most in (status.get("hard") or {}).items():
                    free = amount(most) - amount((status.get("used") or {}).get(name, "0"))
                    wanted = 1 if name in ("pods", "count/pods") else pods[0].request(name.removeprefix("requests."))
                    if wanted > free and not name.startswith("limits."):
                        own = quota["metadata"]["name"]
                        told = f"{own}: {name}, hard {most}, free {free:g}, a Pod asks for {wanted:g}"
                        yield Evidence(told, f"kubectl describe resourcequota {own}")


def _still_holds(scene: Scene, event: Event) -> bool:
    """Whether a refusal is not of the past: no Pod of that kind was created after it, or one is still missing."""
    made = "CreatedHeadPod" if "Head" in event.reason else "CreatedWorkerPod"
    after = [one for one in scene.events_of(made, name=event.name) if str(one.last) > str(event.last)]
    if not after:
        return scene.since(event.last) < RECENT_S or _is_short(scene, event.name)
    return _is_short(scene, event.name) and scene.since(event.last) < RECENT_S


def _is_short(scene: Scene, name: str) -> bool:
    """Whether a cluster has fewer Pods than it should."""
    for cluster in scene.clusters:
        if cluster.name == name:
            short = any(len(scene.pods_of(cluster, group)) < group.desired_pods for group in cluster.groups)
            return short or not scene.head_of(name)
    return True


def scheduling_gated(scene: Scene) -> Found | str:
    held = [pod for pod in scene.pods if pod.is_gated]
    if not held:
        return "no Pod has a scheduling gate" if scene.pods else ""
    gates = sorted({gate.get("name", "?") for pod in held for gate in pod.spec.get("schedulingGates") or ()})
    said = (
        f"{count(len(held), 'Pod')} held by {', '.join(gates) or 'a scheduling gate'}: no scheduler looks at them yet."
    )
    shown = tuple(
        Evidence(
            f"Pod {pod.name}: SchedulingGated", f"kubectl get pod {pod.name} -o jsonpath={{.spec.schedulingGates}}"
        )
        for pod in held[:3]
    )
    return Found(said, shown)


# ---- images --------------------------------------------------------------------------------------------------------


def image_pull_failed(scene: Scene) -> Found | str:
    evidence, images = [], []
    for pod in scene.pods:
        for one in pod.every_container:
            if one.waiting.get("reason") in PULL_REASONS and not pod.is_leaving:
                images.append(one.image)
                told = one.waiting.get("message") or ""
                evidence.append(
                    Evidence(
                        f"Pod {pod.name}, {one.name}: {one.waiting['reason']} {told}".strip(),
                        scene.describe("pod", pod.name),
                    )
                )
    if not evidence:
        failed = [event for event in scene.events_of("Failed", kind="Pod") if "pull image" in event.message]
        stuck = {pod.name for pod in scene.pods if pod.phase == "Pending"}
        evidence = [*of_events(event for event in failed if event.name in stuck and scene.since(event.last) < RECENT_S)]
        images = re.findall(r"image \"([^\"]+)\"", " ".join(one.text for one in evidence))
    if not evidence:
        return "no container waits for an image" if scene.pods else ""
    told = of_events(event for event in scene.events_of("Failed", kind="Pod") if "pull" in event.message)
    return Found(f"The image {images[0] if images else '?'} cannot be pulled.", (*evidence[:2], *told[:1]))


# ---- versions ------------------------------------------------------------------------------------------------------

# _check_ray_version in ray/scripts/scripts.py; check_version_info in ray/_private/utils.py. "Python patch version
# mismatch" is a warning only
_DIFFER = re.compile(r"\bversion mismatch:|Python minor versions differ", re.IGNORECASE)


def version_mismatch(scene: Scene) -> Found | str:
    lines = [(log, line.strip()) for log in scene.logs for line in log.text.splitlines() if _differs(line)]
    if lines:
        evidence = [Evidence(line[:300], log.command) for log, line in lines[-2:]]
        evidence += [Evidence(line, lines[0][0].command) for line in _versions_below(lines[0][0].text)]
        return Found("Two parts of the cluster are of different Ray or Python, and refuse each other.", tuple(evidence))
    for cluster in scene.clusters:
        head = scene.head_of(cluster.name)
        for pod in scene.workers:
            if head and pod.cluster == cluster.name and _does_not_join(scene, pod) and _images_differ(head, pod):
                evidence = [_image(scene, head), _image(scene, pod)]
                return Found(
                    "Head and worker are of different images, and the worker does not join.", tuple(evidence), LIKELY
                )
    return "all images name one version, and no log speaks of two" if scene.pods else ""


def _differs(line: str) -> bool:
    return bool(_DIFFER.search(line)) and "patch version mismatch" not in line.lower()


def _versions_below(text: str) -> list[str]:
    """What follows "Version mismatch": Ray and Python of the cluster, and of this process."""
    after = text[re.search(_DIFFER, text).start() :].splitlines()[1:8] if _DIFFER.search(text) else []
    return [line.strip() for line in after if re.match(r"\s*(Ray|Python): ", line)]


def _does_not_join(scene: Scene, pod: Pod) -> bool:
    restarts = sum(one.restarts for one in pod.every_container)
    return not pod.is_ready and bool(pod.machine) and (scene.age(pod) > SETTLING_S / 2 or restarts > 0)


def _images_differ(head: Pod, worker: Pod) -> bool:
    ray = version_in(head.ray.image), version_in(worker.ray.image)
    if None not in ray and ray[0] != ray[1]:
        return True
    python = PYTHON.search(head.ray.image), PYTHON.search(worker.ray.image)
    return all(python) and python[0][0] != python[1][0]


def _image(scene: Scene, pod: Pod) -> Evidence:
    return Evidence(
        f"Pod {pod.name} runs {pod.ray.image}", f"kubectl get pod {pod.name} -o jsonpath={{.spec.containers[0].image}}"
    )

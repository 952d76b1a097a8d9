"""Whether an object has settled, from the object itself, its Pods and its events; nothing here asks the cluster.

`status.state: ready` of a RayCluster is set once and stays when Pods die, and `RayClusterProvisioned` knows only the
Pods that there are, so neither says that a cluster is as it should be now (KubeRay 1.6.2,
raycluster_controller.go:1568-1735). So the Pods are counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from helpers.cluster.session.tables import condition, is_ending, is_ready, why_not_ready
from helpers.cluster.session.target import GROUP_LABEL, TYPE_LABEL, when
from helpers.errors import CourseError
from helpers.text import count

UNLIMITED = 2147483647  # the default of maxReplicas in the CRD


def desired(group: dict) -> int:
    """Worker Pods that a group is to have now (KubeRay 1.6.2, util.go:387-405)."""
    if group.get("suspend"):
        return 0
    least, most = group.get("minReplicas", 0), group.get("maxReplicas", UNLIMITED)
    return min(max(group.get("replicas", 0), least), most) * group.get("numOfHosts", 1)


def raycluster(cluster: dict, pods: Sequence[dict]) -> str:
    """What is there, once the head and every desired worker Pod are ready and nothing is in surplus.

    Raises:
        AssertionError: with what is missing.
    """
    ending = [pod for pod in pods if is_ending(pod)]
    if cluster["spec"].get("suspend"):
        assert not pods, f"{count(len(pods), 'Pod')} of the suspended cluster to end"
        return "suspended, without Pods"
    heads = [pod for pod in pods if _type(pod) == "head" and not is_ending(pod)]
    assert heads, "the head Pod, which is not there yet"
    for head in heads:
        assert is_ready(head), _waits_for(head)
    for group in cluster["spec"].get("workerGroupSpecs", []):
        there = [p for p in pods if _type(p) == "worker" and _group(p) == group["groupName"] and not is_ending(p)]
        unready = [pod for pod in there if not is_ready(pod)]
        wanted = desired(group)
        assert len(there) >= wanted, (
            f"{wanted - len(there)} of {count(wanted, 'worker Pod')} of group {group['groupName']}"
        )
        if unready:
            ready = len(there) - len(unready)
            raise AssertionError(f"{_waits_for(unready[0])}; {ready} of {wanted} workers of {group['groupName']} ready")
        assert len(there) == wanted, f"{count(len(there) - wanted, 'worker Pod')} of group {group['groupName']} to go"
    assert not ending, f"{count(len(ending), 'Pod')} to end"
    workers = Counter(_group(pod) for pod in pods if _type(pod) == "worker")
    told = ", ".join(f"{count} of {group}" for group, count in sorted(workers.items()))
    return f"the head and {count(workers.total(), 'worker Pod')}" + (f" ({told})" if told else "") + " are ready"


def rayjob(job: dict, pods: Sequence[dict]) -> str:
    """How a RayJob ended (states: KubeRay 1.6.2, rayjob_types.go:47-58)."""
    status = job.get("status", {})
    state, ray = status.get("jobDeploymentStatus", ""), status.get("jobStatus", "")
    if state in ("Complete", "Failed", "ValidationFailed", "Suspended"):
        why = ", ".join(filter(None, [status.get("reason", ""), status.get("message", "")]))
        return f"{state}" + (f", the Ray job {ray}" if ray else "") + (f": {why}" if why else "")
    unready = [pod for pod in pods if not is_ready(pod) and pod.get("status", {}).get("phase") != "Succeeded"]
    state = f"it is {state or 'new'}" + (f", the Ray job {ray}" if ray else "")
    raise AssertionError(state + (f"; {_waits_for(unready[0])}" if unready else ""))


def rayservice(service: dict, pods: Sequence[dict]) -> str:
    """What a RayService says of itself once it has endpoints and all applications run."""
    ready = condition(service, "Ready")
    if ready.get("status") != "True":
        # the readiness of a worker is whether it has a Serve proxy, so that an unready one is no reason in itself
        head = [pod for pod in pods if _type(pod) == "head" and not is_ready(pod)]
        told = f"{ready.get('reason', 'it is new')}: {ready.get('message', '')}".strip(": ")
        raise AssertionError(_waits_for(head[0]) if head else told)
    active = service.get("status", {}).get("activeServiceStatus", {})
    applications = active.get("applicationStatuses") or {}
    for name, application in applications.items():
        assert application.get("status") == "RUNNING", f"application {name}, which is {application.get('status')}"
    assert condition(service, "UpgradeInProgress").get("status") != "True", "the change to a new RayCluster"
    return f"{count(len(applications), 'application')} of {active.get('rayClusterName', 'it')} run"


def pod(thing: dict, pods: Sequence[dict]) -> str:
    """A Pod that is ready, or has ended with success."""
    if thing.get("status", {}).get("phase") == "Succeeded":
        return "it has ended, with success"
    assert is_ready(thing), why_not_ready(thing)
    return f"it runs on {thing['spec']['nodeName']}"


def deployment(thing: dict, pods: Sequence[dict]) -> str:
    """A Deployment whose Pods are all of its newest template, and available."""
    status, wanted = thing.get("status", {}), thing["spec"].get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= thing["metadata"]["generation"]
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    unready = [pod for pod in pods if not is_ready(pod)]
    if not seen or counts != [wanted] * 3:
        told = f"; {_waits_for(unready[0])}" if unready else ""
        raise AssertionError(f"{counts[2]} of {count(wanted, 'Pod')} are available{told}")
    return f"{count(wanted, 'Pod')} available"


def job(thing: dict, pods: Sequence[dict]) -> str:
    """A Job (batch/v1) that has ended."""
    for type_ in ("Complete", "Failed"):
        found = condition(thing, type_)
        if found.get("status") == "True":
            return f"{type_}: {found.get('message', '')}".rstrip(": ")
    unready = [pod for pod in pods if not is_ready(pod)]
    raise AssertionError(_waits_for(unready[0]) if unready else "its Pod runs")


KINDS = {
    "RayCluster": ("settled", raycluster),
    "RayJob": ("ended", rayjob),
    "RayService": ("answering", rayservice),
    "Pod": ("ready", pod),
    "Deployment": ("available", deployment),
    "Job": ("ended", job),
}


def refusal(thing: dict, events: Sequence[dict], now: str) -> CourseError | None:
    """What KubeRay says of a spec that it will not work on; None if it has not refused this one.

    The controller validates, not the API server: what is invalid is stored, a Warning event says why, and nothing is
    created (KubeRay 1.6.2, raycluster_controller.go:170-189).

    Args:
        thing: a RayCluster, RayJob or RayService.
        events: about it.
        now: the time in UTC, as Kubernetes writes it.
    """
    invalid = [event for event in events if event.get("reason", "").startswith(f"Invalid{thing['kind']}")]
    changed = _spec_changed(thing)
    # to the second both: an event of the second in which the spec was mended may speak of the spec before
    if not invalid or when(invalid[-1]) < changed or now <= changed:
        return None
    return CourseError(
        f"KubeRay refuses {thing['kind'].lower()}/{thing['metadata']['name']}: {invalid[-1]['message'].rstrip('.')}.",
        "The API server has stored it, but nothing is made of it: mend the manifest, and apply it again.",
    )


def _spec_changed(thing: dict) -> str:
    """When somebody last wrote the spec; the latest of all writes if nobody says."""
    fields = thing["metadata"].get("managedFields", [])
    times = [entry["time"] for entry in fields if "f:spec" in entry.get("fieldsV1", {})]
    return max(times, default=thing["metadata"]["creationTimestamp"])


def _type(pod: dict) -> str:
    return pod["metadata"].get("labels", {}).get(TYPE_LABEL, "")


def _group(pod: dict) -> str:
    return pod["metadata"].get("labels", {}).get(GROUP_LABEL, "")


def _waits_for(pod: dict) -> str:
    return f"{pod['metadata']['name']}: {why_not_ready(pod)}"

"""Objects for tests of `helpers.observe`: RayClusters, Pods, events as the API server has them, made in few words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from helpers.observe.snapshot import Snapshot

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
IMAGE = "rayproject/ray:2.60.0-py311"


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def cluster(
    name: str = "sky", *groups: dict, status: dict | None = None, head: dict | None = None, **more: Any
) -> dict:
    meta = {"name": name, "namespace": "ml", "creationTimestamp": ago(7200)} | more.pop("metadata", {})
    spec = {
        "rayVersion": "2.60.0",
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2"},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": {"containers": [head or box("ray-head")]}},
        },
        "workerGroupSpecs": list(groups or (group(),)),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": meta,
        "spec": spec | more,
        "status": status or {"state": "ready"},
    }


def group(name: str = "small", replicas: int = 2, least: int = 0, most: int = 8, **more: Any) -> dict:
    limits = more.pop("limits", {"cpu": "4", "memory": "16Gi"})
    template = {"spec": {"containers": [box("ray-worker", limits)]}}
    return {
        "groupName": name, "replicas": replicas, "minReplicas": least, "maxReplicas": most, "rayStartParams": {},
        "template": template,
    } | more  # fmt: skip


def box(name: str, limits: dict | None = None, image: str = IMAGE) -> dict:
    limits = {"cpu": "2", "memory": "4Gi"} if limits is None else limits
    return {"name": name, "image": image, "resources": {"limits": limits, "requests": limits}}


def running(seconds: float = 3600) -> dict:
    return {"running": {"startedAt": ago(seconds)}}


def waiting(reason: str, message: str = "") -> dict:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", seconds: float = 60, lived: float = 600) -> dict:
    times = {"startedAt": ago(seconds + lived), "finishedAt": ago(seconds)}
    return {"terminated": {"exitCode": code, "reason": reason, **times}}


def pod(
    name: str, group: str = "small", *, of: str = "sky", age: float = 3600, ready: bool = True,
    state: dict | None = None, last: dict | None = None, restarts: int = 0, init: dict | None = None,
    init_last: dict | None = None, phase: str = "", ip: str = "10.1.0.9", node: str = "m-1",
    limits: dict | None = None, image: str = IMAGE, sidecars: dict | None = None, spec: dict | None = None,
    status: dict | None = None, metadata: dict | None = None, policy: str = "Never",
) -> dict:  # fmt: skip
    """A Pod of a RayCluster; ready and running unless it is said otherwise. A sidecar is a name and its state."""
    is_head = group == "headgroup"
    main = "ray-head" if is_head else "ray-worker"
    state = state or running(age - 20)
    statuses = [status_of(main, state, ready, restarts, last)]
    statuses += [status_of(one, told, "running" in told) for one, told in (sidecars or {}).items()]
    labels = {"ray.io/cluster": of, "ray.io/group": group, "ray.io/node-type": "head" if is_head else "worker"}
    inits = (
        []
        if is_head
        else [status_of("wait-gcs-ready", init or ended(0, "Completed", age - 10, 8), not init, 0, init_last)]
    )
    told = {
        "phase": phase or ("Running" if init is None else "Pending"), "podIP": ip,
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(age)},
            {"type": "Ready", "status": str(ready), "lastTransitionTime": ago(age - 30)},
        ],
        "initContainerStatuses": inits, "containerStatuses": statuses,
    }  # fmt: skip
    wanted = [box(main, limits, image), *(box(one, {"cpu": "500m", "memory": "512Mi"}) for one in sidecars or {})]
    made = {
        "containers": wanted, "restartPolicy": policy, "nodeName": node,
        "initContainers": [] if is_head else [box("wait-gcs-ready", {"cpu": "200m", "memory": "256Mi"})],
    }  # fmt: skip
    meta = {"name": name, "namespace": "ml", "creationTimestamp": ago(age), "labels": labels}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": meta | (metadata or {}),
        "spec": made | (spec or {}), "status": told | (status or {}),
    }  # fmt: skip


def status_of(name: str, state: dict, ready: bool, restarts: int = 0, last: dict | None = None) -> dict:
    return {"name": name, "ready": ready, "restartCount": restarts, "state": state, "lastState": last or {}}


def head(name: str = "sky-head-abcde", *, of: str = "sky", **more: Any) -> dict:
    more.setdefault("sidecars", {"autoscaler": running()})
    return pod(name, "headgroup", of=of, **{"ip": "10.1.0.1", **more})


def unplaced(
    name: str,
    group: str = "small",
    *,
    age: float = 600,
    message: str = "0/3 nodes are available: 3 Insufficient cpu.",
    **more: Any,
) -> dict:
    made = pod(name, group, age=age, ready=False, **more)
    made["spec"].pop("nodeName")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": ago(age),
    }
    made["status"] = {"phase": "Pending", "conditions": [condition]}
    return made


def waiting_worker(name: str = "sky-small-worker-aaaaa", *, age: float = 400, **more: Any) -> dict:
    """A worker whose init container waits for the head."""
    return pod(name, age=age, ready=False, init=running(age - 5), state=waiting("PodInitializing"), **more)


def event(
    kind: str,
    name: str,
    reason: str,
    message: str,
    *,
    seconds: float = 30,
    count: int = 1,
    component: str = "",
    first: float = 0,
) -> dict:
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.{seconds}{reason}", "namespace": "ml"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "ml"}, "reason": reason, "message": message,
        "count": count, "firstTimestamp": ago(first or seconds), "lastTimestamp": ago(seconds),
        "source": {"component": component},
    }  # fmt: skip


def node(name: str = "m-1", labels: dict | None = None, *, ready: bool = True, **allocatable: str) -> dict:
    have = {"cpu": "16", "memory": "64Gi", "pods": "110"} | allocatable
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": ago(9000)}]
    meta = {"name": name, "labels": labels or {}, "creationTimestamp": ago(90000)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "status": {"allocatable": have, "conditions": conditions},
    }


def thing(kind: str, name: str, **more: Any) -> dict:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": ago(9000)},
    } | more


def rayjob(name: str = "fit", status: dict | None = None, **spec: Any) -> dict:
    told = {"jobId": f"{name}-x", "rayClusterName": "sky", "startTime": ago(3600)} | (status or {})
    spec = {"entrypoint": "python fit.py", "rayClusterSpec": cluster()["spec"]} | spec
    return thing("RayJob", name, spec=spec, status=told) | {"apiVersion": "ray.io/v1"}


def of_job(made: dict, name: str = "fit", kind: str = "RayJob") -> dict:
    made["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    return made


def status(
    active: str = " 1 headgroup\n 2 small", idle: str = " (no idle nodes)", pending: str = " (no pending nodes)",
    failures: str = " (no failures)", usage: str = " 0.0/8.0 CPU", requests: str = " (none)",
    demands: str = " (no resource demands)", nodes: str = "", times: str = "",
) -> str:  # fmt: skip
    """What `ray status` prints: `ClusterStatusFormatter` of Ray 2.60."""
    line = "-" * 63
    return (
        f"======== Autoscaler status: 2026-05-04 11:59:58.123456 ========\n{times}Node status\n{line}\n"
        f"Active:\n{active}\nIdle:\n{idle}\nPending:\n{pending}\nRecent failures:\n{failures}\n\n"
        f"Resources\n{line}\nTotal Usage:\n{usage}\n\n"
        f"From request_resources:\n{requests}\nPending Demands:\n{demands}\n{nodes}"
    )


def node_text(
    name: str,
    group: str = "small",
    id: str = "ab12" * 14,
    idle_ms: int = 0,
    usage: str = "0.0/4.0 CPU",
    activity: str = "(no activity)",
) -> str:
    idle = f" Idle: {idle_ms} ms\n" if idle_ms else ""
    return f"\nNode: {name} ({group})\n Id: {id}\n{idle} Usage:\n  {usage}\n Activity:\n  {activity}\n"


def snapshot(*objects: dict, logs: dict | None = None, exec: dict | None = None, **texts: str) -> Snapshot:
    return Snapshot(tuple(objects), NOW, texts, logs or {}, exec or {})

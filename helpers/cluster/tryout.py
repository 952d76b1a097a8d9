"""A RayCluster from a plan, on Kubernetes, and what came of it: for learners and for graders.

A plan is a manifest that was made from an answer and holds nothing but numbers and plain words; its suite sees to that.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from helpers import versions
from helpers.cluster.session import Session
from helpers.cluster.session.capacity import gpus_of_nodes
from helpers.cluster.session.tables import is_ready
from helpers.cluster.session.target import GROUP_LABEL
from helpers.errors import CourseError
from helpers.text import columns, html_table

CAPABILITIES = ["kubernetes", "autoscaler", "fake_gpu"]
MEMORY_GIB = 3.0  # the cluster itself, a head with the autoscaler, two workers and a driver
WITHIN_S = 300.0  # until it has settled; see bench/raycluster.py for what it takes
DRIVER_S = 120.0
RAY_NODES = """
import json, ray
ray.init(logging_level="ERROR", log_to_driver=False)
print(json.dumps({one["NodeManagerAddress"]: one["Resources"] for one in ray.nodes() if one["Alive"]}))
"""
HIDDEN = ("node:", "object_store_memory", "accelerator_type:")  # what Ray adds by itself


@dataclass(frozen=True)
class Seen:
    """What `try_out` saw, to be shown: each Pod, where it is, and what Ray counts on it."""

    plan: Mapping[str, Any]
    seen: Mapping[str, Any]

    HEADINGS = ("Pod", "group", "Kubernetes node", "ready", "what Ray counts on it")

    def rows(self) -> list[tuple[str, ...]]:
        return [
            (pod["name"], group, pod["machine"] or "none", "yes" if pod["ready"] else "no", _counted(pod["resources"]))
            for group, pods in self.seen["groups"].items()
            for pod in pods
        ]

    def __str__(self) -> str:
        return columns([self.HEADINGS, *self.rows()])

    def _repr_html_(self) -> str:
        return html_table("What came of it", self.HEADINGS, self.rows())


def _counted(resources: Mapping[str, float]) -> str:
    told = []
    for name, amount in sorted(resources.items()):
        if not name.startswith(HIDDEN):
            told.append(f"{name} {amount / 2**30:.3g} GiB" if name == "memory" else f"{name} {amount:g}")
    return ", ".join(told) or "nothing"


def require_memory() -> None:
    """See that there is room for a small RayCluster.

    Raises:
        CourseError: there is less free memory than it needs.
    """
    free = psutil.virtual_memory().available / 2**30
    if free < MEMORY_GIB:
        raise CourseError(
            f"A RayCluster of three Pods needs {MEMORY_GIB:g} GiB of free memory, and there are {free:.1f}.",
            "Close other programs, then run this again.",
        )


def try_out(session: Session, plan: Mapping[str, Any], within_s: float = WITHIN_S) -> dict[str, Any]:
    """Apply a RayCluster, wait until it has settled, and note what came of it. It stays.

    One of that name that is there already is deleted first: an edit would not reach Pods that run.

    Args:
        plan: the manifest.
        within_s: seconds until it must have settled.

    Returns:
        `ray` (the version), `groups` (by name, the head's is "headgroup": for each Pod its `name`, `machine`, the
        `machine_gpus` (None if they do not show), whether it is `ready`, its `ray_start`, whether an `autoscaler` is in
        it and ready, and the `resources` that Ray counts there), `seconds` until it had settled.

    Raises:
        CourseError: it is refused, or does not settle.
    """
    start, name = time.monotonic(), plan["metadata"]["name"]
    target = f"raycluster/{name}"
    session.delete(target)
    session.apply(dict(plan))
    session.wait(target, within_s)
    seconds = time.monotonic() - start
    pods = [thing for thing in session.family(target) if thing["kind"] == "Pod"]
    counted = json.loads(session.run_on_head(name, RAY_NODES, timeout_s=DRIVER_S))
    gpus = gpus_of_nodes(session.kube)
    groups: dict[str, list[dict[str, Any]]] = {}
    for pod in sorted(pods, key=lambda pod: pod["metadata"]["name"]):
        group = groups.setdefault(pod["metadata"]["labels"][GROUP_LABEL], [])
        group.append(_seen(pod, counted.get(pod["status"].get("podIP", ""), {}), gpus))
    return {"ray": versions.RAY, "groups": groups, "seconds": round(seconds, 1)}


def _seen(pod: Mapping[str, Any], resources: Mapping[str, float], gpus: Mapping[str, int]) -> dict[str, Any]:
    ray = pod["spec"]["containers"][0]
    states = {one["name"]: one.get("ready", False) for one in pod["status"].get("containerStatuses", ())}
    return {
        "name": pod["metadata"]["name"],
        "machine": pod["spec"].get("nodeName", ""),
        "machine_gpus": gpus.get(pod["spec"].get("nodeName", "")),
        "ready": is_ready(pod),
        "ray_start": " ".join(ray.get("args", ())),
        "autoscaler": states.get("autoscaler", False),
        "resources": dict(resources),
    }


def run_apart(plan: Mapping[str, Any]) -> dict[str, Any]:
    """`try_out` in a namespace of its own, which ends with it; nothing is printed. It is for graders.

    Raises:
        AssertionError: the manifest does not come to anything, with one sentence that says why.
        CourseError: this machine cannot have a cluster.
    """
    require_memory()
    with contextlib.redirect_stdout(io.StringIO()):
        session = Session(f"ex-live-{os.getpid()}-{time.time_ns() % 10**9}", CAPABILITIES)
        try:
            return try_out(session, plan)
        except CourseError as error:
            session.kube.version()  # if the cluster itself is gone, that is no fault of the manifest
            raise AssertionError(f"this manifest was applied, and did not settle: {error.what}") from None
        finally:
            session.close()

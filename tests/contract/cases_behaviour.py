"""The cases of the form `behaviour`: one question, one answer. Each question is put to one function of a room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from helpers.model import (
    coldstart,
    edits,
    headloss,
    idle,
    lint,
    manifest,
    planner,
    raycluster,
    rayjob,
    rayservice,
    releases,
    scaling,
    serving,
)
from helpers.model.raycluster import Group

Given = Mapping[str, Any]


def answer(given: Given) -> dict[str, Any]:
    """The answer to the question of a case."""
    return QUESTIONS[given["question"]](given)


def wrong(given: Given, expected: Mapping[str, Any]) -> list[str]:
    """Where the answer is not the expected one, for each key that is expected; numbers to six places."""
    found, wanted = answer(given), expected["answer"]
    return [
        f"{key} is {found.get(key)!r}, and should be {wanted[key]!r}"
        for key in wanted
        if key not in found or not _same(found[key], wanted[key])
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return abs(one - other) < 1e-6 if numbers else type(one) is type(other) and one == other


def _resources_seen(given: Given) -> dict[str, Any]:
    cluster = _cluster(given["manifest"])
    name = given["group"]
    group = cluster.group(name) or cluster.head
    ray = given.get("ray_version")
    counted = cluster.counted_by(releases.releases(ray) if ray else lint.releases_of(cluster.document))
    planner = counted and {name: counted[group.name].get(name, 0) for name in ("CPU", "GPU", "memory")}
    start = {key: _number(group.start.get(key)) for key in ("num-cpus", "num-gpus", "memory")}
    return {"planner": planner, "planner_error": counted is None, "ray_start": start}


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _cluster(text: str) -> raycluster.Cluster:
    return next(filter(None, map(raycluster.cluster_of, manifest.documents(text))))


def _desired_pods(given: Given) -> dict[str, Any]:
    fields = ("replicas", "minReplicas", "maxReplicas", "numOfHosts", "suspend")
    spec = {name: given[name] for name in fields if name in given}
    return {"pods": Group({"groupName": "workers", **spec}, "").desired_pods}


def _manual_scale_down(given: Given) -> dict[str, Any]:
    named, others = scaling.manual_scale_down(
        given["pods"],
        given["replicas"],
        min_replicas=given.get("minReplicas") or 0,
        workers_to_delete=given.get("workersToDelete") or (),
        is_autoscaling=bool(given.get("enableInTreeAutoscaling")),
    )
    return {"deleted": named, "deleted_by_list_order": others}


def _launch_waves(given: Given) -> dict[str, Any]:
    after = planner.launch_waves(given["version"], given.get("upscalingMode"), given["start"], given["target"])
    return {"waves": len(after), "nodes_after_each_wave": after}


def _node_idle(given: Given) -> dict[str, Any]:
    objects = [idle.Stored(one["bytes"], one["reference_held"]) for one in given.get("objects") or ()]
    serve = idle.Serve(**given["serve"]) if given.get("serve") else None
    states = [one["state"] for one in given.get("actors") or ()]
    pin = idle.kept_by(given.get("running_tasks", 0), states, objects, serve)
    return {"idle": pin is None, "pinned_by": pin}


def _idle_timeout(given: Given) -> dict[str, Any]:
    return asdict(idle.bursts(given["cold_start_s"], given["idle_timeout_s"], given["gaps_s"], given.get("nodes", 1)))


def _pending_pods(given: Given) -> dict[str, Any]:
    order = ("pods", "created_s", "demand_gone_s", "running_s", "idle_timeout_s", "usd_per_node_hour")
    return asdict(idle.pods_too_late(*(given[name] for name in order)))


def _allocation_timeout(given: Given) -> dict[str, Any]:
    which = releases.releases(given["ray_version"])
    env = {name: str(value) for name, value in (given.get("env") or {}).items()}
    stages = given["stages_s"] if isinstance(given["stages_s"], dict) else dict(enumerate(given["stages_s"]))
    return {"joins_s": coldstart.joins_s(stages, env, given["version"] == "v2", which)}


def _raycluster_edit(given: Given) -> dict[str, Any]:
    return asdict(edits.of_raycluster(_document(given["before"]), _document(given["after"])))


def _rayservice_edit(given: Given) -> dict[str, Any]:
    return {"new_cluster": edits.of_rayservice(_document(given["before"]), _document(given["after"]))}


def _document(text: str) -> dict[str, Any]:
    [document] = manifest.documents(text)
    return document


def _runtime_env_value(given: Given) -> dict[str, Any]:
    envs = (given.get("submitter_env") or {}, given.get("head_env") or {})
    mode = given.get("submissionMode") or rayjob.K8S_JOB
    return {"value_seen_by_driver": rayjob.runtime_env_value(given["runtimeEnvYAML"], given["variable"], *envs, mode)}


def _entrypoint(given: Given) -> dict[str, Any]:
    mode = given.get("submissionMode") or rayjob.K8S_JOB
    made = rayjob.submitted(given["entrypoint"], mode, releases.releases(given.get("ray_version", "")))
    return {
        "ray_job_entrypoint": made.entrypoint,
        "runs_in_submitter": list(made.runs_in_submitter),
        "warning": made.warning,
    }


def _rayjob_cleanup(given: Given) -> dict[str, Any]:
    order = ("shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "clusterSelector")
    done = asdict(rayjob.cleanup(*(given.get(name) for name in order)))
    return {key: value for key, value in done.items() if value is not None}


def _rayjob_retries(given: Given) -> dict[str, Any]:
    return {"clusters_created": rayjob.clusters_created(given["backoffLimit"], given["script_exit"] == 0)}


def _driver_placement(given: Given) -> dict[str, Any]:
    order = ("entrypointNumCpus", "head_cpus", "worker_cpus", "worker_max")
    return {"driver_on": rayjob.driver_place(*(given[name] for name in order))}


def _version_compat(given: Given) -> dict[str, Any]:
    cluster, other = given["cluster"], given["other"]
    versions = (cluster["ray"], cluster["python"], other["ray"], other["python"])
    return {"ok": releases.fits(*map(str, versions), other["role"] == "client")}


def _head_lost(given: Given) -> dict[str, Any]:
    return asdict(headloss.head_lost(given["gcs_fault_tolerance"], given["new_head_ready_s"]))


def _upgrade_capacity(given: Given) -> dict[str, Any]:
    return asdict(rayservice.upgrade(given["service_gpus"], given["cluster_gpus"], given["strategy"]))


def _serve_from_zero(given: Given) -> dict[str, Any]:
    delays = ("min_replicas", "downscale_to_zero_delay_s", "idle_timeout_s", "cold_start_s", "model_load_s", "gap_s")
    first = serving.first_request(*(given[name] for name in delays))
    return {
        "replica_gone": first.replica_gone,
        "node_gone": first.node_gone,
        "first_request_wait_s": first.wait_s,
    }


QUESTIONS = {
    "resources_seen": _resources_seen,
    "desired_pods": _desired_pods,
    "manual_scale_down": _manual_scale_down,
    "launch_waves": _launch_waves,
    "node_idle": _node_idle,
    "idle_timeout": _idle_timeout,
    "pending_pods": _pending_pods,
    "allocation_timeout": _allocation_timeout,
    "raycluster_edit": _raycluster_edit,
    "rayservice_edit": _rayservice_edit,
    "runtime_env_value": _runtime_env_value,
    "entrypoint": _entrypoint,
    "rayjob_cleanup": _rayjob_cleanup,
    "rayjob_retries": _rayjob_retries,
    "driver_placement": _driver_placement,
    "version_compat": _version_compat,
    "head_lost": _head_lost,
    "upgrade_capacity": _upgrade_capacity,
    "serve_from_zero": _serve_from_zero,
}

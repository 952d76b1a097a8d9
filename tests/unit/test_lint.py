"""Each rule of the linter, where it bites and where it must not."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from helpers.model import findings
from helpers.model.findings import ERROR, NOTE, SEVERITIES, WARNING
from helpers.model.lint import lint
from helpers.model.releases import releases

ABSENT = object()
HEAD, WORKER = "headGroupSpec", "workerGroupSpecs[0]"
BOX = "template.spec.containers[0]"


def pod(cpu: str, memory: str, **limits: Any) -> dict:
    amounts = {"cpu": cpu, "memory": memory, **limits}
    container = {"name": "ray", "image": "rayproject/ray:2.60.0-py311"}
    return {"spec": {"containers": [container | {"resources": {"limits": amounts, "requests": dict(amounts)}}]}}


def cluster_spec() -> dict:
    return {
        "rayVersion": "2.60.0",
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": pod("2", "4Gi")},
        "workerGroupSpecs": [
            {
                "groupName": "w",
                "minReplicas": 0,
                "maxReplicas": 4,
                "rayStartParams": {},
                "template": pod("4", "16Gi"),
            }
        ],
    }


def document(kind: str) -> dict:
    made = {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "demo"}}
    job = {"entrypoint": "python train.py", "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster_spec()}
    return made | {
        "spec": {
            "RayCluster": cluster_spec,
            "RayJob": lambda: job,
            "RayService": lambda: {"serveConfigV2": "applications: []", "rayClusterConfig": cluster_spec()},
            "RayCronJob": lambda: {"schedule": "0 3 * * *", "jobTemplate": job},
        }[kind]()
    }


def changed(made: dict, changes: Mapping[str, Any]) -> dict:
    """A copy with other values at some paths; ABSENT takes one away."""
    made = copy.deepcopy(made)
    for path, value in changes.items():
        above, limits, device = path.partition(".limits.")  # the name of a device has dots of its own
        *way, last = [part for part in above.replace("[", ".[").split(".") if part]
        way, last = ([*way, last, "limits"], device) if limits else (way, last)
        at: Any = made
        for part in way:
            at = at[int(part[1:-1])] if part[0] == "[" else at.setdefault(part, {})
        key = int(last[1:-1]) if last[0] == "[" else last
        if value is ABSENT:
            del at[key]
        elif isinstance(at, list) and key == len(at):
            at.append(value)
        else:
            at[key] = value
    return made


def found(kind: str, changes: Mapping[str, Any], *, ray: str = "2.60.0", kuberay: str = "1.6.2", context=()) -> list:
    root = {"RayCluster": "spec", "RayJob": "spec.rayClusterSpec", "RayService": "spec.rayClusterConfig"}.get(kind, "")
    root = root or "spec.jobTemplate.rayClusterSpec"
    spelled = {path if path.startswith(("spec", "metadata")) else f"{root}.{path}": changes[path] for path in changes}
    said = lint(changed(document(kind), spelled), releases(ray, kuberay), context)
    return [(one.rule, one.path.removeprefix(f"{root}."), one.severity) for one in said]


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "RayService", "RayCronJob"])
def test_nothing_is_found_in_a_good_one(kind):
    assert found(kind, {}) == []


def test_every_rule_says_what_to_do():
    for rule, fix in findings.FIXES.items():
        assert rule == rule.lower() and fix.strip().endswith((".", ":", "`")), rule


REQUESTS = f"{WORKER}.{BOX}.resources.requests"
LIMITS = f"{WORKER}.{BOX}.resources.limits"
RESOURCES = f"{WORKER}.{BOX}.resources"
PARAMS = f"{WORKER}.rayStartParams"
SHM_BIG = {f"{PARAMS}.object-store-memory": str(12 * 2**30), LIMITS: {"cpu": "4", "memory": "8Gi"}, REQUESTS: {}}
ENV = f"{HEAD}.{BOX}.env"

SIDE = {"name": "logs", "image": "fluent/fluent-bit:3", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}

# what is changed in a RayCluster, and what is found then: rule, path in the spec, severity
BITES: list[tuple[dict, tuple[str, str, str]]] = [
    ({"upscaling": "x"}, ("unknown-field", "upscaling", ERROR)),
    ({f"{HEAD}.template": ABSENT}, ("missing-field", f"{HEAD}.template", ERROR)),
    ({f"{PARAMS}.num-cpus": 4}, ("wrong-type", f"{PARAMS}.num-cpus", ERROR)),
    ({"autoscalerOptions.version": "V2"}, ("bad-enum", "autoscalerOptions.version", ERROR)),
    ({"metadata.name": "x" * 54}, ("bad-name", "metadata.name", ERROR)),
    ({"metadata.name": "a.b"}, ("bad-name", "metadata.name", ERROR)),
    ({f"{WORKER}.groupName": "gpu_pool"}, ("bad-name", f"{WORKER}.groupName", ERROR)),
    ({f"{WORKER}.groupName": "g" * 64}, ("bad-name", f"{WORKER}.groupName", ERROR)),
    ({f"{WORKER}.minReplicas": 5}, ("min-above-max", f"{WORKER}.minReplicas", ERROR)),
    ({f"{WORKER}.maxReplicas": -1, f"{WORKER}.minReplicas": -2}, ("negative-bound", f"{WORKER}.maxReplicas", ERROR)),
    ({f"{WORKER}.idleTimeoutSeconds": -5}, ("negative-bound", f"{WORKER}.idleTimeoutSeconds", ERROR)),
    (
        {f"{WORKER}.idleTimeoutSeconds": 5, "autoscalerOptions": {}},
        ("group-idle-timeout-needs-v2", f"{WORKER}.idleTimeoutSeconds", ERROR),
    ),
    (
        {f"{HEAD}.template.spec.restartPolicy": "OnFailure"},
        ("restart-policy-not-never", f"{HEAD}.template.spec.restartPolicy", ERROR),
    ),
    (
        {f"{WORKER}.template.spec.restartPolicy": "Always", "autoscalerOptions": ABSENT},
        ("restart-policy-not-never", f"{WORKER}.template.spec.restartPolicy", WARNING),
    ),
    (
        {ENV: [{"name": "RAY_enable_autoscaler_v2", "value": "0"}]},
        ("version-set-twice", "autoscalerOptions.version", ERROR),
    ),
    (
        {f"{WORKER}.resources": {"CPU": "4"}, f"{PARAMS}.memory": "1"},
        ("resources-set-twice", f"{WORKER}.resources", ERROR),
    ),
    ({f"{HEAD}.rayStartParams.labels": "a=b"}, ("labels-in-ray-start-params", f"{HEAD}.rayStartParams.labels", ERROR)),
    ({f"{WORKER}.suspend": True}, ("suspended-group-with-autoscaler", f"{WORKER}.suspend", ERROR)),
    ({ENV: [{"name": "RAY_REDIS_ADDRESS", "value": "r:6379"}]}, ("redis-env-without-ft", ENV, ERROR)),
    (
        {"gcsFaultToleranceOptions": {"redisAddress": "r"}, f"{HEAD}.rayStartParams.redis-password": "x"},
        ("ft-set-twice", "gcsFaultToleranceOptions", ERROR),
    ),
    (
        {"gcsFaultToleranceOptions": {"redisAddress": "r"}, "metadata.annotations": {"ray.io/ft-enabled": "false"}},
        ("ft-set-twice", "gcsFaultToleranceOptions", ERROR),
    ),
    ({"authOptions": {"mode": "token"}, "rayVersion": "2.51.9"}, ("auth-needs-newer-ray", "authOptions", ERROR)),
    ({"authOptions": {"mode": "token"}, "rayVersion": ABSENT}, ("auth-needs-newer-ray", "authOptions", ERROR)),
    ({LIMITS: {"memory": "16Gi"}, REQUESTS: {"memory": "16Gi"}}, ("no-cpu", RESOURCES, ERROR)),
    (
        {f"{HEAD}.{BOX}.resources": {}, f"{HEAD}.rayStartParams": {}},
        ("no-cpu", f"{HEAD}.{BOX}.resources", ERROR),
    ),
    ({f"{LIMITS}.memory": ABSENT}, ("memory-only-in-requests", RESOURCES, WARNING)),
    ({PARAMS: ABSENT}, ("missing-ray-start-params", WORKER, NOTE)),
    ({f"{PARAMS}.resources": '{"a": 1}'}, ("custom-resource-quoting", f"{PARAMS}.resources", ERROR)),
    ({f"{PARAMS}.resources": "'{\"a\": 1.5}'"}, ("custom-resource-not-integer", f"{PARAMS}.resources", ERROR)),
    ({f"{WORKER}.resources": {"CPU": "4", "a": "two"}}, ("custom-resource-not-integer", f"{WORKER}.resources", ERROR)),
    ({f"{WORKER}.resources": {"CPU": "4", "a": "500m"}}, ("custom-resource-not-integer", f"{WORKER}.resources", ERROR)),
    ({f"{PARAMS}.memory": "8Gi"}, ("quantity-in-ray-start-params", f"{PARAMS}.memory", ERROR)),
    ({f"{PARAMS}.num-cpus": "500m"}, ("quantity-in-ray-start-params", f"{PARAMS}.num-cpus", ERROR)),
    ({f"{LIMITS}.cpu": "2500m"}, ("cpu-rounded-up", f"{LIMITS}.cpu", NOTE)),
    ({f"{HEAD}.{BOX}.resources.limits.cpu": "1.5", f"{HEAD}.rayStartParams": {}}, (
        "cpu-rounded-up", f"{HEAD}.{BOX}.resources.limits.cpu", NOTE)),
    ({f"{LIMITS}.gpu.intel.com/i915": "1"}, ("gpu-key-unknown-to-planner", LIMITS, ERROR)),
    (
        {f"{LIMITS}.nvidia.com/gpu": "0", f"{LIMITS}.nvidia.com/mig-4g.40gb": "1"},
        ("gpu-key-unknown-to-planner", LIMITS, ERROR),
    ),
    ({f"{WORKER}.{BOX}.image": "ghcr.io/lab/ray/train:2.52.0"}, ("images-differ", f"{WORKER}.{BOX}.image", WARNING)),
    ({f"{LIMITS}.nvidia.com/gpu": "1", f"{PARAMS}.num-gpus": "0"}, ("gpu-hidden", f"{PARAMS}.num-gpus", ERROR)),
    ({f"{LIMITS}.amd.com/gpu": 2, f"{PARAMS}.num-gpus": "3"}, ("gpu-count-above-limit", f"{PARAMS}.num-gpus", WARNING)),
    ({f"{PARAMS}.num-gpus": "1"}, ("gpu-without-limit", f"{PARAMS}.num-gpus", WARNING)),
    ({"enableInTreeAutoscaling": False}, ("autoscaling-not-enabled", "enableInTreeAutoscaling", WARNING)),
    ({f"{WORKER}.maxReplicas": ABSENT}, ("unbounded-max-replicas", f"{WORKER}.maxReplicas", WARNING)),
    ({f"{REQUESTS}.cpu": "3"}, ("limits-differ-from-requests", RESOURCES, WARNING)),
    (
        {"autoscalerOptions.resources": {"limits": {"cpu": "8", "memory": "32Gi"}}},
        ("autoscaler-sidecar-oversized", "autoscalerOptions.resources", WARNING),
    ),
    (
        {"autoscalerOptions.resources": {"requests": {"cpu": "4", "memory": "16Gi"}}},
        ("autoscaler-sidecar-oversized", "autoscalerOptions.resources", WARNING),
    ),
    (SHM_BIG, ("object-store-exceeds-shm", f"{PARAMS}.object-store-memory", ERROR)),
    (
        SHM_BIG | {f"{WORKER}.{BOX}.env": [{"name": "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE", "value": "1"}]},
        ("object-store-exceeds-shm", f"{PARAMS}.object-store-memory", WARNING),
    ),
    (
        {f"{HEAD}.rayStartParams.object-store-memory": str(5 * 2**30)},
        ("object-store-exceeds-shm", f"{HEAD}.rayStartParams.object-store-memory", WARNING),
    ),
    ({f"{HEAD}.rayStartParams": {}}, ("head-runs-tasks", f"{HEAD}.rayStartParams", NOTE)),
    ({f"{WORKER}.{BOX}.image": "rayproject/ray:2.52.0"}, ("images-differ", f"{WORKER}.{BOX}.image", WARNING)),
    ({"rayVersion": "2.9.0"}, ("images-differ", "rayVersion", WARNING)),
    ({"autoscalerOptions.image": "rayproject/ray:2.9.0"}, ("images-differ", "autoscalerOptions.image", WARNING)),
    (
        {"rayVersion": ABSENT, f"{HEAD}.{BOX}.image": "r/ray:2.1.0", "workerGroupSpecs[1]":
            cluster_spec()["workerGroupSpecs"][0] | {"groupName": "x"}},
        ("images-differ", f"{HEAD}.{BOX}.image", WARNING),
    ),
    (
        {"workerGroupSpecs[1]": cluster_spec()["workerGroupSpecs"][0]},
        ("duplicate-group-name", "workerGroupSpecs[1]", WARNING),
    ),
    ({"autoscalerOptions": ABSENT}, ("version-not-written", "autoscalerOptions.version", NOTE)),
    (
        {f"{WORKER}.{BOX}.image": "envoy:1", f"{WORKER}.{BOX}.name": "proxy", f"{WORKER}.template.spec.containers[1]":
            {"name": "train", "image": "rayproject/ray:2.60.0"}},
        ("ray-container-not-first", f"{WORKER}.template.spec.containers", ERROR),
    ),
    (
        {f"{HEAD}.{BOX}.image": "envoy:1", f"{HEAD}.{BOX}.name": "proxy", f"{HEAD}.template.spec.containers[1]":
            {"name": "ray-head", "image": "team/train:7"}},
        ("ray-container-not-first", f"{HEAD}.template.spec.containers", ERROR),
    ),
    (
        {f"{HEAD}.{BOX}.image": "team/train:7", f"{WORKER}.{BOX}": SIDE, f"{WORKER}.template.spec.containers[1]":
            {"name": "main", "image": "team/train:7"}},
        ("ray-container-not-first", f"{WORKER}.template.spec.containers", ERROR),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "finding"), BITES)
def test_where_a_rule_bites(changes, finding):
    said = found("RayCluster", changes)
    assert finding in said
    # an error is the only one, but where the autoscaler cannot read what `ray start` cannot either
    assert {one[0] for one in said if one[2] == ERROR} <= {finding[0]}


@pytest.mark.parametrize("kind", ["RayJob", "RayService", "RayCronJob"])
@pytest.mark.parametrize(
    ("changes", "finding"), [one for one in BITES if not any(path.startswith("metadata") for path in one[0])]
)
def test_the_cluster_inside_is_looked_at_as_well(kind, changes, finding):
    assert finding in found(kind, changes)


# what is changed, and which rule must not bite
NEAR = [
    ({"metadata.name": "x" * 53}, "bad-name"),
    ({"metadata": {"generateName": "demo-"}}, "missing-field"),
    ({"metadata": {"generateName": "demo-"}}, "bad-name"),
    ({f"{WORKER}.groupName": "GPU-pool"}, "bad-name"),
    ({f"{WORKER}.minReplicas": 4}, "min-above-max"),
    ({f"{WORKER}.maxReplicas": 0}, "min-above-max"),
    ({f"{WORKER}.minReplicas": ABSENT}, "missing-field"),
    (
        {f"{WORKER}.idleTimeoutSeconds": 5, "autoscalerOptions": {}, ENV: [
            {"name": "RAY_enable_autoscaler_v2", "value": "true"}]},
        "group-idle-timeout-needs-v2",
    ),
    ({f"{WORKER}.template.spec.restartPolicy": "Never"}, "restart-policy-not-never"),
    ({f"{WORKER}.template.spec.restartPolicy": "Always", "enableInTreeAutoscaling": False}, "restart-policy-not-never"),
    ({"autoscalerOptions": {}, ENV: [{"name": "RAY_enable_autoscaler_v2", "value": "0"}]}, "version-set-twice"),
    ({f"{WORKER}.resources": {"CPU": "4"}, f"{PARAMS}.object-store-memory": "1"}, "resources-set-twice"),
    ({f"{WORKER}.suspend": False}, "suspended-group-with-autoscaler"),
    ({f"{WORKER}.suspend": True, "enableInTreeAutoscaling": False}, "suspended-group-with-autoscaler"),
    (
        {ENV: [{"name": "RAY_REDIS_ADDRESS", "value": "r"}], "metadata.annotations": {"ray.io/ft-enabled": "true"}},
        "redis-env-without-ft",
    ),
    ({"gcsFaultToleranceOptions": {"redisAddress": "r:6379"}}, "ft-set-twice"),
    ({"authOptions": {"mode": "token"}}, "auth-needs-newer-ray"),
    ({"authOptions": {"mode": "token"}, "rayVersion": "2.60"}, "auth-needs-newer-ray"),
    ({"authOptions": {"mode": "disabled"}, "rayVersion": ABSENT}, "auth-needs-newer-ray"),
    ({LIMITS: {}, f"{PARAMS}.num-cpus": "4"}, "no-cpu"),
    ({f"{LIMITS}.cpu": ABSENT}, "no-cpu"),
    ({f"{LIMITS}.cpu": ABSENT}, "cpu-only-in-requests"),
    ({f"{WORKER}.resources": {"CPU": "4"}, f"{RESOURCES}": {}}, "no-cpu"),
    ({RESOURCES: {}, "enableInTreeAutoscaling": False}, "no-cpu"),
    ({f"{LIMITS}.memory": ABSENT, f"{PARAMS}.memory": "17179869184"}, "memory-only-in-requests"),
    ({f"{WORKER}.resources": {"CPU": "4", "memory": "16Gi"}, f"{LIMITS}.memory": ABSENT}, "memory-only-in-requests"),
    ({f"{PARAMS}.resources": "'{\"a\": 1}'"}, "custom-resource-quoting"),
    ({f"{PARAMS}.resources": '"{\\"a\\": 2}"'}, "custom-resource-not-integer"),
    ({f"{PARAMS}.memory": "8589934592"}, "quantity-in-ray-start-params"),
    ({f"{LIMITS}.cpu": "2000m"}, "cpu-rounded-up"),
    ({f"{LIMITS}.cpu": "2500m", f"{PARAMS}.num-cpus": "2"}, "cpu-rounded-up"),
    ({f"{LIMITS}.nvidia.com/mig-1g.5gb": "1", f"{PARAMS}.num-gpus": "1"}, "gpu-key-unknown-to-planner"),
    ({f"{LIMITS}.nvidia.com/gpu": "1", f"{LIMITS}.nvidia.com/gpumem": "4"}, "gpu-key-unknown-to-planner"),
    ({f"{LIMITS}.google.com/tpu": "4"}, "gpu-key-unknown-to-planner"),
    ({f"{HEAD}.rayStartParams.num-gpus": "0"}, "gpu-hidden"),
    ({f"{LIMITS}.nvidia.com/gpu": "2", f"{PARAMS}.num-gpus": "1"}, "gpu-count-above-limit"),
    ({f"{LIMITS}.aliyun.com/gpu-mem": "8", f"{PARAMS}.num-gpus": "1"}, "gpu-without-limit"),
    ({"enableInTreeAutoscaling": False, f"{WORKER}.minReplicas": 4}, "autoscaling-not-enabled"),
    (
        {"enableInTreeAutoscaling": False, f"{WORKER}.minReplicas": ABSENT, f"{WORKER}.maxReplicas": ABSENT},
        "autoscaling-not-enabled",
    ),
    ({"enableInTreeAutoscaling": False, f"{WORKER}.maxReplicas": ABSENT}, "unbounded-max-replicas"),
    ({f"{LIMITS}.cpu": "4000m", f"{LIMITS}.memory": "16384Mi"}, "limits-differ-from-requests"),
    ({REQUESTS: ABSENT}, "limits-differ-from-requests"),
    ({"autoscalerOptions.resources": {"limits": {"cpu": "2", "memory": "2Gi"}}}, "autoscaler-sidecar-oversized"),
    (
        {"autoscalerOptions.resources": {"limits": {"cpu": "8", "memory": "32Gi"}}, "enableInTreeAutoscaling": False},
        "autoscaler-sidecar-oversized",
    ),
    ({f"{PARAMS}.object-store-memory": str(16 * 2**30)}, "object-store-exceeds-shm"),
    (SHM_BIG | {f"{PARAMS}.plasma-directory": "/data"}, "object-store-exceeds-shm"),
    (
        SHM_BIG | {f"{WORKER}.{BOX}.volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                   f"{WORKER}.template.spec.volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "20Gi"}}]},
        "object-store-exceeds-shm",
    ),
    ({f"{HEAD}.rayStartParams": {}, "enableInTreeAutoscaling": False}, "head-runs-tasks"),
    ({f"{WORKER}.{BOX}.image": "registry.example/team/ray:prod"}, "images-differ"),
    ({f"{WORKER}.{BOX}.image": "registry.example/team/train:1.4.2"}, "images-differ"),
    ({f"{WORKER}.{BOX}.image": "registry.example/team/array:1.4.2"}, "images-differ"),
    ({f"{WORKER}.{BOX}.image": "rayproject/ray:2.60.0-py311-gpu@sha256:0123"}, "images-differ"),
    ({"workerGroupSpecs[1]": cluster_spec()["workerGroupSpecs"][0] | {"groupName": "x"}}, "duplicate-group-name"),
    ({"autoscalerOptions": ABSENT, "enableInTreeAutoscaling": False}, "version-not-written"),
    (
        {f"{WORKER}.template.spec.containers[1]": {"name": "ray-logs", "image": "fluent/fluent-bit:3"}},
        "ray-container-not-first",
    ),
    (
        {f"{WORKER}.{BOX}.image": "team/train:7", f"{WORKER}.template.spec.containers[1]":
            {"name": "log", "image": "fluent/fluent-bit:3"}},
        "ray-container-not-first",
    ),
    (
        {f"{box}.image": "team/train:7" for box in (f"{HEAD}.{BOX}", f"{WORKER}.{BOX}")} | {
            f"{HEAD}.template.spec.containers[1]": SIDE, "workerGroupSpecs[1]":
            cluster_spec()["workerGroupSpecs"][0] | {"groupName": "x", "template": {"spec": {"containers": [SIDE]}}}},
        "ray-container-not-first",
    ),
    ({f"{LIMITS}.nvidia.com/gpu.shared": "1", "enableInTreeAutoscaling": False}, "gpu-key-unknown-to-planner"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "rule"), NEAR)
def test_where_a_rule_must_not_bite(changes, rule):
    assert rule not in {one[0] for one in found("RayCluster", changes)}


# ---- what depends on the release


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{REQUESTS}.cpu": "2"}, "the limit of cpu is above the request: Ray counts what Kubernetes does not keep"),
        (
            {f"{REQUESTS}.cpu": "2", f"{PARAMS}.num-cpus": "2"},
            "the limit of cpu is above the request: Kubernetes does not keep the difference",
        ),
        (
            {f"{REQUESTS}.cpu": "2", f"{REQUESTS}.memory": "8Gi", f"{PARAMS}.num-cpus": "2"},
            "the limit of cpu and memory is above the request: Kubernetes does not keep the difference, and Ray counts"
            " the memory",
        ),
        (
            {f"{LIMITS}.memory": ABSENT},
            "memory stands only in the requests: the autoscaler counts it, and `ray start` is not told",
        ),
        (
            {f"{LIMITS}.memory": ABSENT, "enableInTreeAutoscaling": ABSENT},
            "memory stands only in the requests: Kubernetes keeps it, and `ray start` is not told",
        ),
    ],
)
def test_who_counts_what_is_said_as_it_is(changes, said):
    made = changed(document("RayCluster"), {f"spec.{path}": value for path, value in changes.items()})
    assert said in [one.message for one in lint(made)]


def test_ray_that_looks_only_at_limits():
    only = {f"{LIMITS}.cpu": ABSENT}
    assert ("cpu-only-in-requests", RESOURCES, ERROR) in found("RayCluster", only, ray="2.40.0")
    assert not found("RayCluster", only, ray="2.41.0")
    off = only | {"enableInTreeAutoscaling": False}
    assert not [one for one in found("RayCluster", off, ray="2.9.3") if one[2] == ERROR]
    memory = {f"{LIMITS}.memory": ABSENT}
    assert "memory-only-in-requests" not in {one[0] for one in found("RayCluster", memory, ray="2.40.0")}


def test_ray_that_needs_params():
    for group in (HEAD, WORKER):
        gone = {f"{group}.rayStartParams": ABSENT}
        assert ("missing-ray-start-params", group, ERROR) in found("RayCluster", gone, ray="2.46.0")
        assert ("missing-ray-start-params", group, NOTE) in found("RayCluster", gone, ray="2.47.1")
    off = gone | {"enableInTreeAutoscaling": False}
    assert ("missing-ray-start-params", WORKER, NOTE) in found("RayCluster", off, ray="2.9.0")


def test_ray_that_does_not_look_at_a_groups_resources():
    own = {f"{WORKER}.resources": {"CPU": "4"}, RESOURCES: {}}
    assert ("no-cpu", RESOURCES, ERROR) in found("RayCluster", own, ray="2.49.2")
    assert not found("RayCluster", own, ray="2.52.1")


def test_fields_of_other_releases_of_kuberay():
    new = {f"{WORKER}.priority": 1}
    assert ("unknown-field", f"{WORKER}.priority", ERROR) in found("RayCluster", new)
    assert not found("RayCluster", new, kuberay="1.7.0")
    assert ("unknown-field", "autoscalerOptions.version", ERROR) in found("RayCluster", {}, kuberay="1.3.2")
    assert ("unknown-field", f"{WORKER}.labels", ERROR) in found(
        "RayCluster", {f"{WORKER}.labels": {"a": "b"}}, kuberay="1.4.2"
    )


def test_the_ray_is_read_from_the_image():
    made = changed(document("RayCluster"), {f"spec.{WORKER}.rayStartParams": ABSENT})
    assert [one.severity for one in lint(made)] == [NOTE]
    old = changed(made, {f"spec.{HEAD}.{BOX}.image": "rayproject/ray:2.9.3"})
    assert lint(old)[0].rule == "missing-ray-start-params" and lint(old)[0].severity == ERROR
    own = changed(made, {f"spec.{HEAD}.{BOX}.image": "team/train:1.4.2"})  # that is no Ray 1.4.2
    assert [one.severity for one in lint(own)] == [NOTE]


def test_metadata_of_a_job_for_a_newer_kuberay():
    told = ("metadata-needs-ray-version", "spec.metadata", ERROR)
    without = {"spec.metadata": {"team": "a"}, "rayVersion": ABSENT}
    assert told in found("RayJob", without) and told not in found("RayJob", without, kuberay="1.7.0")


def test_fields_that_older_kuberays_want():
    gone = {f"{WORKER}.rayStartParams": ABSENT, "autoscalerOptions": ABSENT}
    missing = ("missing-field", f"{PARAMS}", ERROR)
    for kind in ("RayCluster", "RayJob", "RayService", "RayCronJob"):
        assert missing in found(kind, gone, kuberay="1.3.0")
        assert missing not in found(kind, gone, kuberay="1.4.0")


TWO_FAULTS = [
    ({f"{WORKER}.template.spec.toleration": []}, {f"{WORKER}.minReplicas": 9}, "min-above-max"),
    ({"autoscalerOptions.upscalingMode": "fast"}, {f"{PARAMS}.resources": '{"a": 1}'}, "custom-resource-quoting"),
    ({f"{PARAMS}.num-cpus": 4}, {f"{WORKER}.suspend": True},
     "suspended-group-with-autoscaler"),
    ({f"{HEAD}.replicas": 1}, {LIMITS: {}, REQUESTS: {}}, "no-cpu"),
    ({"metadata.name": "d" * 60}, {f"{PARAMS}.labels": "a=b"}, "labels-in-ray-start-params"),
    ({"metadata.name": "d_emo"}, {f"{WORKER}.suspend": True}, "suspended-group-with-autoscaler"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "changes", "rule"), TWO_FAULTS)
def test_two_faults_that_have_nothing_to_do_with_each_other(refused, changes, rule):
    alone = {one for one in found("RayCluster", refused) if one[2] == ERROR}
    [other] = {one for one in found("RayCluster", changes) if one[2] == ERROR}
    assert other[0] == rule and len(alone) == 1
    assert {one for one in found("RayCluster", refused | changes) if one[2] == ERROR} == alone | {other}


# a field that the API server does not know, or whose type is wrong: what is missing then is of the same fault
ONE_FAULT = [
    ({RESOURCES: ABSENT, f"{WORKER}.{BOX}.resource": {"limits": {"cpu": "4"}}}, "unknown-field"),
    ({RESOURCES: {}, f"{WORKER}.resourses": {"CPU": "4"}}, "unknown-field"),
    ({RESOURCES: {}, f"{PARAMS}.num-cpus": 4}, "wrong-type"),
    ({f"{LIMITS}.cpu": 2.5, f"{REQUESTS}.cpu": 2.5}, "wrong-type"),
    ({"autoscalerOptions.version": "V2", f"{WORKER}.idleTimeoutSeconds": 9}, "bad-enum"),
    ({"rayVersion": 2.6, "authOptions": {"mode": "token"}}, "wrong-type"),
    ({"enableInTreeAutoscaling": "yes"}, "wrong-type"),
]


@pytest.mark.parametrize(("changes", "rule"), ONE_FAULT)
def test_one_fault_is_told_once(changes, rule):
    said = found("RayCluster", changes)
    assert {one[0] for one in said if one[2] == ERROR} == {rule}
    assert rule != "wrong-type" or len({one[0] for one in said}) == 1


def test_a_fault_in_a_list_of_its_own():
    """What is left has other places, so nothing is said of it."""
    said = found("RayCluster", {"workerGroupSpecs[1]": "w2", f"{WORKER}.minReplicas": 9})
    assert said == [("wrong-type", "workerGroupSpecs[1]", ERROR)]


def test_a_field_with_a_typing_error_may_be_the_one_that_is_missing():
    job = {"spec.ttlSecondsAfterFinish": 5, "spec.ttlSecondsAfterFinished": 5}
    said = [one[0] for one in found("RayJob", job | {"spec.shutdownAfterJobFinishes": ABSENT}) if one[2] == ERROR]
    assert said == ["unknown-field"]


def test_after_a_fault_only_what_is_no_error_is_said_of_the_rest():
    said = found("RayCluster", {"upscaling": 1, f"{WORKER}.maxReplicas": ABSENT, RESOURCES: {}})
    assert ("unbounded-max-replicas", f"{WORKER}.maxReplicas", WARNING) in said
    assert [one[0] for one in said if one[2] == ERROR] == ["unknown-field"]
    assert [SEVERITIES.index(one[2]) for one in said] == sorted(SEVERITIES.index(one[2]) for one in said)


# ---- jobs

SIDECAR = {"spec.submissionMode": "SidecarMode"}
SELECTED = {"spec.clusterSelector": {"ray.io/cluster": "shared"}, "spec.rayClusterSpec": ABSENT,
            "spec.shutdownAfterJobFinishes": ABSENT}  # fmt: skip
RULES = "spec.deletionStrategy.deletionRules"


def rule(policy: str, seconds: int = 0, **state: str) -> dict:
    return {"policy": policy, "condition": (state or {"jobStatus": "SUCCEEDED"}) | {"ttlSeconds": seconds}}


JOBS = [
    ({"metadata.name": "x" * 48}, ("bad-name", "metadata.name")),
    ({"spec.shutdownAfterJobFinishes": False, "spec.suspend": True}, ("suspend-needs-shutdown", "spec.suspend")),
    (
        {"spec.shutdownAfterJobFinishes": ABSENT, "spec.ttlSecondsAfterFinished": 1},
        ("ttl-needs-shutdown", "spec.ttlSecondsAfterFinished"),
    ),
    ({"spec.ttlSecondsAfterFinished": -1}, ("negative-bound", "spec.ttlSecondsAfterFinished")),
    ({"spec.activeDeadlineSeconds": 0}, ("negative-bound", "spec.activeDeadlineSeconds")),
    ({"spec.backoffLimit": -1}, ("negative-bound", "spec.backoffLimit")),
    (SELECTED | {"spec.backoffLimit": 1}, ("backoff-with-selector", "spec.backoffLimit")),
    ({"spec.clusterSelector": {"ray.io/cluster": "a"}, "spec.backoffLimit": 3}, (
        "backoff-with-selector", "spec.backoffLimit")),
    (SELECTED | {"spec.clusterSelector": {"name": "a"}}, ("missing-field", "spec.clusterSelector.ray.io/cluster")),
    ({"spec.rayClusterSpec": ABSENT}, ("missing-field", "spec.rayClusterSpec")),
    (SELECTED | SIDECAR, ("sidecar-with-selector", "spec.clusterSelector")),
    (SELECTED | {"spec.suspend": True, "spec.shutdownAfterJobFinishes": True}, (
        "suspend-with-selector", "spec.suspend")),
    ({"spec.submissionMode": "InteractiveMode", "spec.backoffLimit": 1}, (
        "backoff-with-interactive", "spec.backoffLimit")),
    (SIDECAR | {"spec.submitterConfig": {"backoffLimit": 1}}, (
        "sidecar-with-submitter-template", "spec.submitterConfig")),
    (SIDECAR | {"spec.submitterPodTemplate": {"spec": {"containers": [{"name": "s"}]}}}, (
        "sidecar-with-submitter-template", "spec.submitterPodTemplate")),
    (SIDECAR | {f"{HEAD}.template.spec.restartPolicy": "Always", "autoscalerOptions": ABSENT,
                "enableInTreeAutoscaling": ABSENT}, (
        "restart-policy-not-never", f"{HEAD}.template.spec.restartPolicy")),
    ({"spec.deletionStrategy": {"onSuccess": {"policy": "DeleteWorkers"}, "onFailure": {"policy": "DeleteCluster"}}}, (
        "delete-workers-with-autoscaler", "spec.deletionStrategy")),
    ({"spec.shutdownAfterJobFinishes": ABSENT, "spec.deletionStrategy": {"deletionRules": [rule("DeleteWorkers")]}}, (
        "delete-workers-with-autoscaler", "spec.deletionStrategy")),
    ({"spec.deletionStrategy": {"deletionRules": [rule("DeleteCluster")]}}, (
        "bad-deletion-strategy", "spec.deletionStrategy")),
    ({"spec.deletionStrategy": {"onSuccess": {"policy": "DeleteNone"}}}, (
        "bad-deletion-strategy", "spec.deletionStrategy")),
    ({"spec.shutdownAfterJobFinishes": ABSENT, "spec.deletionStrategy": {"deletionRules": [
        rule("DeleteCluster", 60), rule("DeleteSelf", 30)]}}, ("bad-deletion-strategy", "spec.deletionStrategy")),
    ({"spec.shutdownAfterJobFinishes": ABSENT, "spec.deletionStrategy": {"deletionRules": [
        rule("DeleteSelf"), rule("DeleteSelf", 5)]}}, ("bad-deletion-strategy", "spec.deletionStrategy")),
    ({"spec.runtimeEnvYAML": "a: [1"}, ("bad-runtime-env", "spec.runtimeEnvYAML")),
    ({"spec.runtimeEnvYAML": "just words"}, ("bad-runtime-env", "spec.runtimeEnvYAML")),
    ({"upgradeStrategy": {"type": "Recreate"}}, ("upgrade-strategy-not-allowed", "upgradeStrategy.type")),
    ({"authOptions": {"mode": "token", "enableK8sTokenAuth": True}}, (
        "k8s-auth-not-possible", "authOptions.enableK8sTokenAuth")),
    ({"spec.metadata": {"a": "b"}, "rayVersion": ABSENT}, ("metadata-needs-ray-version", "spec.metadata")),
    ({f"{HEAD}.{BOX}.ports": [{"name": "client", "containerPort": 10001}]}, (
        "dashboard-port-missing", f"{HEAD}.{BOX}.ports")),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "finding"), JOBS)
def test_what_the_operator_refuses_of_a_job(changes, finding):
    assert {one for one in found("RayJob", changes) if one[2] == ERROR} == {(*finding, ERROR)}


@pytest.mark.parametrize(
    "changes",
    [
        SELECTED,
        SELECTED | {"spec.backoffLimit": 0},
        {"spec.clusterSelector": {"ray.io/cluster": "a"}},
        {"spec.ttlSecondsAfterFinished": 60},
        {"spec.ttlSecondsAfterFinished": 0, "spec.shutdownAfterJobFinishes": False},
        {"spec.suspend": True},
        {"spec.backoffLimit": 3},
        {"spec.submitterConfig": {"backoffLimit": 5}},
        SIDECAR,
        {"spec.deletionStrategy": {"onSuccess": {"policy": "DeleteCluster"}, "onFailure": {"policy": "DeleteSelf"}}},
        {
            "spec.shutdownAfterJobFinishes": ABSENT,
            "enableInTreeAutoscaling": False,
            "spec.deletionStrategy": {"deletionRules": [rule("DeleteWorkers", 1), rule("DeleteCluster", 2)]},
        },
        {"spec.runtimeEnvYAML": "pip: [torch]\n"},
        {"metadata.name": "x" * 47},
        {f"{HEAD}.{BOX}.ports": [{"name": "dashboard", "containerPort": 8265}]},
    ],
)
def test_what_the_operator_takes_of_a_job(changes):
    assert not [one for one in found("RayJob", changes) if one[2] == ERROR]


def test_the_job_of_a_cron_job():
    job = {"spec.jobTemplate.shutdownAfterJobFinishes": ABSENT, "spec.jobTemplate.ttlSecondsAfterFinished": 5}
    assert ("ttl-needs-shutdown", "spec.jobTemplate.ttlSecondsAfterFinished", ERROR) in found("RayCronJob", job)
    assert ("bad-name", "metadata.name", ERROR) in found("RayCronJob", {"metadata.name": "x" * 42})
    assert not found("RayCronJob", {"metadata.name": "x" * 41})


@pytest.mark.parametrize(
    ("schedule", "right"),
    [
        ("*/5 * * * *", True), ("0 3 * * 1-5", True), ("0 3 1,15 jan-mar sun", True), ("@daily", True),
        ("@every 1h30m", True), ("TZ=Europe/Berlin 0 3 * * *", True), ("? * * * ?", True), ("0 0-23/6 * * *", True),
        ("60 * * * *", False), ("* * * *", False), ("0 0 3 * * *", False), ("0 3 * * 7", False), ("@noon", False),
        ("0 5-3 * * *", False), ("*/0 * * * *", False), ("0 3 0 * *", False), ("", False),
    ],
)  # fmt: skip
def test_schedules(schedule, right):
    assert ("bad-schedule" not in {one[0] for one in found("RayCronJob", {"spec.schedule": schedule})}) == right


@pytest.mark.parametrize(
    ("runtime_env", "bites"),
    [
        ('env_vars: {A: "$(A)"}', True), ('env_vars: {A: "$A"}', True), ('env_vars: {A: "${A}"}', True),
        ('env_vars: {A: "`id`"}', True), ("working_dir: s3://b/$USER", True), ('env_vars: {A: "\\\\$A"}', True),
        ("env_vars: {A: b}", False), ("# $HOME stays\nenv_vars: {A: b}", False), ('env_vars: {A: "5 $"}', False),
        ('env_vars: {A: "100$, at most"}', False), ("", False),
    ],
)  # fmt: skip
def test_a_dollar_sign_in_a_runtime_environment(runtime_env, bites):
    finding = ("shell-expansion-in-runtime-env", "spec.runtimeEnvYAML", WARNING)
    assert (finding in found("RayJob", {"spec.runtimeEnvYAML": runtime_env})) == bites
    assert finding in found("RayJob", SIDECAR | {"spec.runtimeEnvYAML": runtime_env}) or not bites
    http = found("RayJob", {"spec.runtimeEnvYAML": runtime_env, "spec.submissionMode": "HTTPMode"})
    assert not http


def test_a_variable_that_kubernetes_puts_in():
    secret = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}}
    submitter = {"spec": {"containers": [{"name": "s", "image": "rayproject/ray:2.60.0", "env": [secret]}]}}
    given = {"spec.runtimeEnvYAML": 'env_vars: {A: "$(A)"}', "spec.submitterPodTemplate": submitter}
    assert not found("RayJob", given)
    assert found("RayJob", given | {"spec.runtimeEnvYAML": 'env_vars: {A: "$(B)"}'})


@pytest.mark.parametrize(
    ("entrypoint", "bites"),
    [
        ("python a.py; python b.py", True), ("cd /app && python a.py", True), ("python a.py | tee log", True),
        ("python a.py\npython b.py", True), ("python a.py --id $(date +%s)", True), ("python a.py --n $N", True),
        ("python a.py `hostname`", True), ("python a.py data/*.csv", True), ("python a.py > out.txt", True),
        ("python a.py &", True), ("python a.py ;", True), ("python a.py # note", True), ("python 'a.py", True),
        ("python train.py --lr 1e-3", False), ("python -c 'import ray; ray.init()'", False),
        ('python -c "print(1); print(2)"', False), ("bash -c 'cd /app && python a.py > $OUT'", False),
        ("python a.py \\\n  --lr 1", False), ("python a.py --cost 5\\$", False), ("", False),
        ("\n  python a.py  \n", False), ("python a.py --glob 'x*'", False),
    ],
)  # fmt: skip
def test_what_the_shell_takes_of_an_entrypoint(entrypoint, bites):
    finding = ("shell-in-entrypoint", "spec.entrypoint", WARNING)
    assert (finding in found("RayJob", {"spec.entrypoint": entrypoint})) == bites
    assert not found("RayJob", {"spec.entrypoint": entrypoint, "spec.submissionMode": "HTTPMode"})


def test_quotes_are_lost_in_older_rays():
    rule = "shell-in-entrypoint"
    for words, lost in (("-c 'print(1)'", True), ("--price '$5'", True), ("-c 'import ray; ray.init()'", False)):
        inner = {"spec.entrypoint": f"python {words}"}
        assert (rule in {one[0] for one in found("RayJob", inner, ray="2.55.1")}) == lost
        assert not found("RayJob", inner, ray="2.60.0")


def test_a_submitter_without_a_shell():
    two = {"spec.entrypoint": "python a.py; python b.py"}
    assert "shell-in-entrypoint" not in {one[0] for one in found("RayJob", two, kuberay="1.2.2")}
    own = {"spec": {"containers": [{"name": "s", "image": "rayproject/ray:2.60.0", "command": ["submit"]}]}}
    assert not found("RayJob", two | {"spec.submitterPodTemplate": own})


# ---- services

FT = {"gcsFaultToleranceOptions": {"redisAddress": "r:6379"}}


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"metadata.name": "x" * 48}, ("bad-name", "metadata.name", ERROR)),
        ({"metadata.annotations": {"ray.io/initializing-timeout": "soon"}}, (
            "bad-annotation", "metadata.annotations.ray.io/initializing-timeout", ERROR)),
        ({"spec.upgradeStrategy": {"type": "Rolling"}}, ("bad-enum", "spec.upgradeStrategy.type", ERROR)),
        ({"spec.rayClusterDeletionDelaySeconds": -1}, ("negative-bound", "spec.rayClusterDeletionDelaySeconds", ERROR)),
        ({f"{HEAD}.headService": {"metadata": {"name": "mine"}}}, (
            "head-service-name", f"{HEAD}.headService.metadata.name", ERROR)),
        ({"gcsFaultToleranceOptions": FT["gcsFaultToleranceOptions"] | {"externalStorageNamespace": "a"}}, (
            "pinned-storage-namespace", "gcsFaultToleranceOptions.externalStorageNamespace", WARNING)),
        ({"metadata.annotations": {"ray.io/ft-enabled": "true", "ray.io/external-storage-namespace": "a"}}, (
            "pinned-storage-namespace", "metadata.annotations.ray.io/external-storage-namespace", WARNING)),
    ],
)  # fmt: skip
def test_services(changes, finding):
    assert [one for one in found("RayService", changes) if one[2] != NOTE] == [finding]


def test_services_that_are_right():
    assert not found("RayService", FT)
    assert not found("RayService", {"metadata.annotations": {"ray.io/initializing-timeout": "1h30m"}})
    assert not found("RayCluster", {"gcsFaultToleranceOptions": FT["gcsFaultToleranceOptions"] | {
        "externalStorageNamespace": "a"}})  # fmt: skip


def test_an_upgrade_in_steps():
    steps = {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": {"gatewayClassName": "g",
             "stepSizePercent": 20, "intervalSeconds": 5, "maxSurgePercent": 40}}  # fmt: skip
    assert not found("RayService", {"spec.upgradeStrategy": steps}, kuberay="1.7.0")
    assert not found("RayService", {"spec.upgradeStrategy": steps, "enableInTreeAutoscaling": False,
                                    f"{WORKER}.minReplicas": 4})  # fmt: skip
    off = found("RayService", {"spec.upgradeStrategy": steps, "enableInTreeAutoscaling": False,
                               f"{WORKER}.minReplicas": 4}, kuberay="1.7.0")  # fmt: skip
    assert off == [("bad-upgrade-options", "spec.upgradeStrategy.clusterUpgradeOptions", ERROR)]


# ---- quotas

QUOTA = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": "9"}}}
RANGE = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"}}
BARE = {f"{LIMITS}.cpu": ABSENT}
WANTS = ("quota-needs-limit", RESOURCES, ERROR)


def limit_range(**item: Any) -> dict:
    return RANGE | {"spec": {"limits": [{"type": "Container"} | item]}}


@pytest.mark.parametrize(
    ("changes", "context", "bites"),
    [
        (BARE, [QUOTA], True),
        ({}, [QUOTA], False),
        (BARE, [], False),
        (BARE, [QUOTA | {"spec": {"hard": {"limits.memory": "1Ti", "pods": "9"}}}], False),
        ({f"{LIMITS}.memory": ABSENT}, [QUOTA | {"spec": {"hard": {"limits.memory": "1Ti"}}}], True),
        (BARE, [QUOTA | {"spec": {"hard": {"requests.cpu": "9"}}}], False),
        ({RESOURCES: {}, f"{PARAMS}.num-cpus": "1"}, [QUOTA | {"spec": {"hard": {"cpu": "9"}}}], True),
        (BARE, [QUOTA, limit_range(default={"cpu": "1"})], False),
        (BARE, [QUOTA, limit_range(max={"cpu": "1"})], False),
        (BARE, [QUOTA, limit_range(default={"memory": "1Gi"})], True),
        (BARE, [QUOTA, limit_range(type="Pod", max={"cpu": "1"})], True),
        (BARE, [QUOTA | {"metadata": {"name": "q", "namespace": "team"}}], True),
        (BARE | {"metadata.namespace": "a"}, [QUOTA | {"metadata": {"name": "q", "namespace": "b"}}], False),
        (BARE, [QUOTA | {"spec": {"hard": {"limits.cpu": "9"}, "scopes": ["Terminating"]}}], False),
        (BARE, [QUOTA | {"spec": {"hard": {"limits.cpu": "9"}, "scopes": ["NotTerminating"]}}], True),
    ],
)
def test_quotas(changes, context, bites):
    assert (WANTS in found("RayCluster", changes, context=context)) == bites


def test_quotas_count_every_container():
    second = {f"{WORKER}.template.spec.containers[1]": {"name": "log", "image": "fluent/fluent-bit:3"}}
    path = f"{WORKER}.template.spec.containers[1].resources"
    assert ("quota-needs-limit", path, ERROR) in found("RayCluster", second, context=[QUOTA])
    sized = {"autoscalerOptions.resources": {"requests": {"cpu": "1"}}}
    assert ("quota-needs-limit", "autoscalerOptions.resources", ERROR) in found("RayCluster", sized, context=[QUOTA])

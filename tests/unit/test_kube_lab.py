"""What of the lab on Kubernetes needs no cluster: manifests, templates, settled or not, tables, the backend."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from helpers.cluster import backend
from helpers.cluster.session import apply, capacity, manifest, settle, tables, target, templates
from helpers.errors import CourseError
from helpers.kube import KubeError, Resource

CLUSTER = yaml.safe_load("""
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: demo, uid: u1, creationTimestamp: "2026-11-30T02:00:00Z"}
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template: {spec: {containers: [{name: ray-head, image: "rayproject/ray:2.60.0-py311", resources: {limits: {cpu: 500m, memory: 1Gi}}}]}}
  workerGroupSpecs:
  - groupName: small
    replicas: 2
    minReplicas: 1
    maxReplicas: 4
    rayStartParams: {}
    template: {spec: {containers: [{name: ray-worker, image: "rayproject/ray:2.60.0-py311", env: [{name: A, value: b}]}]}}
""")  # noqa: E501 - one line of YAML each
LATEST, GONE = "latest", "ray-ml"  # apart: tests/contract/rules.py reads whole names of images
RAYCLUSTER = Resource("/apis/ray.io/v1", "rayclusters", "RayCluster", frozenset({"raycluster"}), True)


def cluster(**spec: object) -> dict:
    made = copy.deepcopy(CLUSTER)
    made["spec"] |= spec
    return made


def pod(name: str = "demo-head-aaaaa", group: str = "headgroup", ready: bool = True, **status: object) -> dict:
    """A Pod as KubeRay makes it from `CLUSTER`."""
    kind = "head" if group == "headgroup" else "worker"
    spec = CLUSTER["spec"]
    template = spec["headGroupSpec"] if kind == "head" else spec["workerGroupSpecs"][0]
    container = copy.deepcopy(template["template"]["spec"]["containers"][0])
    flags = "".join(f" --{name}={value} " for name, value in template["rayStartParams"].items())
    env = [{"name": "RAY_PORT", "value": "6379"}, {"name": templates.COMMAND, "value": f"ray start {flags}"}]
    container["env"] = [*container.get("env", []), *env]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {"ray.io/cluster": "demo", "ray.io/node-type": kind, "ray.io/group": group},
        },
        "spec": {"nodeName": "cpu-a", "containers": [container, {"name": "autoscaler", "image": "x"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}], **status},
    }


def worker(name: str, ready: bool = True) -> dict:
    return pod(f"demo-small-worker-{name}", "small", ready)


def ending(thing: dict) -> dict:
    thing["metadata"]["deletionTimestamp"] = "2026-11-30T02:00:00Z"
    return thing


# ---- settled or not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "count"),
    [
        ({}, 0),
        ({"replicas": 2}, 2),
        ({"replicas": 0, "minReplicas": 1}, 1),
        ({"replicas": 9, "maxReplicas": 3}, 3),
        ({"replicas": 2, "numOfHosts": 4}, 8),
        ({"replicas": 2, "suspend": True}, 0),
    ],
)
def test_desired_workers(group, count):
    assert settle.desired(group) == count


def test_a_settled_cluster():
    assert settle.raycluster(cluster(), [pod(), worker("a"), worker("b")]) == (
        "the head and 2 worker Pods (2 of small) are ready"
    )
    assert settle.raycluster(cluster(workerGroupSpecs=[]), [pod()]) == "the head and 0 worker Pods are ready"
    assert settle.raycluster(cluster(suspend=True), []) == "suspended, without Pods"


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ([], "the head Pod, which is not there yet"),
        ([ending(pod()), worker("a"), worker("b")], "the head Pod, which is not there yet"),
        ([pod(ready=False)], "demo-head-aaaaa: "),
        ([pod(), worker("a")], "1 of 2 worker Pods of group small"),
        ([pod(), worker("a"), ending(worker("b"))], "1 of 2 worker Pods of group small"),
        ([pod(), worker("a"), worker("b", ready=False)], "1 of 2 workers of small ready"),
        ([pod(), worker("a"), worker("b"), worker("c")], "1 worker Pod of group small to go"),
        ([pod(), worker("a"), worker("b"), ending(worker("c"))], "1 Pod to end"),
    ],
)
def test_a_cluster_that_has_not_settled(pods, reason):
    with pytest.raises(AssertionError, match=reason):
        # `ready` in its status is what it said some time ago
        settle.raycluster(cluster() | {"status": {"state": "ready"}}, pods)


def test_a_suspended_cluster_with_pods():
    with pytest.raises(AssertionError, match="1 Pod of the suspended cluster to end"):
        settle.raycluster(cluster(suspend=True), [pod()])


def test_a_rayjob():
    def job(**status: str) -> dict:
        return {"kind": "RayJob", "metadata": {"name": "x"}, "spec": {}, "status": status}

    done = job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED", message="Job finished.")
    assert settle.rayjob(done, []) == "Complete, the Ray job SUCCEEDED: Job finished."
    failed = job(jobDeploymentStatus="Failed", jobStatus="FAILED", reason="AppFailed", message="status 1")
    assert settle.rayjob(failed, []) == "Failed, the Ray job FAILED: AppFailed, status 1"
    for state in ("Initializing", "Running", "Retrying", ""):
        with pytest.raises(AssertionError, match=f"it is {state or 'new'}"):
            settle.rayjob(job(jobDeploymentStatus=state), [])


def test_a_rayservice():
    def service(ready: str, upgrade: str = "False", application: str = "RUNNING") -> dict:
        conditions = [
            {"type": "Ready", "status": ready, "reason": "ZeroServeEndpoints"},
            {"type": "UpgradeInProgress", "status": upgrade},
        ]
        active = {"rayClusterName": "x-1", "applicationStatuses": {"app": {"status": application}}}
        return {"metadata": {"name": "x"}, "status": {"conditions": conditions, "activeServiceStatus": active}}

    assert settle.rayservice(service("True"), []) == "1 application of x-1 run"
    for thing, reason in (
        (service("False"), "ZeroServeEndpoints"),
        (service("True", application="DEPLOYING"), "application app, which is DEPLOYING"),
        (service("True", upgrade="True"), "the change to a new RayCluster"),
    ):
        with pytest.raises(AssertionError, match=reason):
            settle.rayservice(thing, [])


def test_a_deployment_is_settled_by_its_newest_generation():
    thing = {"metadata": {"generation": 2}, "spec": {"replicas": 1}}
    counts = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    assert settle.deployment(thing | {"status": counts | {"observedGeneration": 2}}, []) == "1 Pod available"
    for status in (counts | {"observedGeneration": 1}, counts | {"observedGeneration": 2, "replicas": 2}):
        with pytest.raises(AssertionError, match="of 1 Pod are available"):
            settle.deployment(thing | {"status": status}, [])


def invalid(second: int) -> dict:
    return {
        "reason": "InvalidRayClusterSpec",
        "message": "The RayCluster spec is invalid",
        "lastTimestamp": f"2026-11-30T02:00:{second:02}Z",
        "metadata": {},
    }


def test_what_kuberay_refuses():
    thing = cluster()
    thing["metadata"]["managedFields"] = [
        {"time": "2026-11-30T02:00:05Z", "fieldsV1": {"f:spec": {}}},
        {"time": "2026-11-30T02:00:30Z", "fieldsV1": {"f:status": {}}},
    ]
    now = "2026-11-30T02:00:40Z"
    refused = "KubeRay refuses raycluster/demo: The RayCluster spec is invalid."
    assert refused in str(settle.refusal(thing, [invalid(6)], now))
    assert settle.refusal(thing, [invalid(5)], now)
    assert not settle.refusal(thing, [invalid(4)], now)  # of the spec before
    assert not settle.refusal(thing, [], now)
    assert not settle.refusal(thing, [invalid(5)], "2026-11-30T02:00:05Z")  # mended within this second, perhaps


# ---- why a Pod is not ready ------------------------------------------------------------------------------------------


def waiting(reason: str, message: str = "", **more: object) -> list[dict]:
    return [{"name": "main", "ready": False, "state": {"waiting": {"reason": reason, "message": message}}, **more}]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: no GPU."}
                ]
            },
            "no Kubernetes node takes it: 0/3 nodes are available: no GPU",
        ),
        (
            {"containerStatuses": waiting("ErrImagePull", "no such image")},
            "its container main waits: ErrImagePull (no such image)",
        ),
        (
            {"containerStatuses": waiting("CrashLoopBackOff", "10s", lastState={"terminated": {"exitCode": 3}})},
            "its container main waits: CrashLoopBackOff; the last time it ended with status 3",
        ),
        (
            {"initContainerStatuses": [{"name": "wait-gcs-ready", "ready": False, "state": {"running": {}}}]},
            "its init container wait-gcs-ready waits until the GCS of the head answers",
        ),
        (
            {"initContainerStatuses": [{"name": "i", "ready": False, "state": {"terminated": {"exitCode": 1}}}]},
            "its init container i ended with status 1",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ]
            },
            "its container main ended with status 137 (OOMKilled)",
        ),
        (
            {"containerStatuses": [{"name": "main", "ready": False, "state": {"running": {}}}]},
            "its container main runs, and is not ready yet",
        ),
        ({"phase": "Succeeded"}, "it has ended, with success"),
        (
            {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 2}}}]},
            "it has failed: main ended with status 2",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "it has failed: low on memory"),
        ({"containerStatuses": waiting("ContainerCreating")}, "its container main runs, and is not ready yet"),
        ({}, "it is on its Kubernetes node, and nothing runs yet"),
    ],
)
def test_why_not_ready(status, reason):
    assert tables.why_not_ready(pod(ready=False) | {"status": {"phase": "Pending", **status}}) == reason


def test_the_table_of_pods():
    shown = tables.pods("Pods of <demo>", [worker("b", ready=False), worker("a"), pod()])
    assert [row.name for row in shown] == ["demo-head-aaaaa", "demo-small-worker-a", "demo-small-worker-b"]
    assert [(row.group, row.is_ready, row.machine) for row in shown][1:] == [
        ("small", True, "cpu-a"),
        ("small", False, "cpu-a"),
    ]
    assert len(str(shown).splitlines()) == 5 and "Kubernetes node" in str(shown)
    assert "Pods of &lt;demo&gt;" in shown._repr_html_() and "<demo>" not in shown._repr_html_()
    assert str(tables.pods("Pods", [])) == "Pods: none" and tables.pods("Pods", [])._repr_html_() == "<p>Pods: none</p>"


def test_a_pod_that_is_being_deleted_is_not_ready():
    row = tables.pod_row(ending(pod()))
    assert (row.phase, row.is_ready, row.reason) == ("Terminating", False, "it is being deleted")


def event(reason: str, kind: str, name: str, uid: str, second: int, **more: object) -> dict:
    stamp = f"2026-11-30T02:00:{second:02}Z"
    about = {"kind": kind, "name": name, "uid": uid}
    return {"reason": reason, "involvedObject": about, "message": "a  <b>", "lastTimestamp": stamp,
            "metadata": {"creationTimestamp": stamp}, **more}  # fmt: skip


def test_events_of_a_cluster_and_of_its_pods_that_are_gone():
    mine = [
        event("Killing", "Pod", "demo-small-worker-x7k2p", "gone", 9),
        event("CreatedHeadPod", "RayCluster", "demo", "u1", 3),
    ]
    others = [
        event("CreatedHeadPod", "RayCluster", "demo", "of one before", 1),
        event("Killing", "Pod", "demo-2-head-x7k2p", "other", 9),
        event("Killing", "Pod", "demo-big-worker-x7k2p", "other", 9),
    ]
    early = event("Killing", "Pod", "demo-head-x7k2p", "old", 9)
    early["metadata"]["creationTimestamp"] = "2026-11-30T01:00:00Z"
    found = target.events_of([*mine, *others, early], [cluster()])
    assert [e["reason"] for e in found] == ["CreatedHeadPod", "Killing"]
    shown = tables.events("Events", found)
    assert [row.on for row in shown] == ["raycluster/demo", "pod/demo-small-worker-x7k2p"]
    assert "a &lt;b&gt;" in shown._repr_html_() and "· Normal" in str(shown)


def test_an_event_that_happened_often():
    row = tables.event_row(event("Unhealthy", "Pod", "p", "u", 1, type="Warning", count=7))
    assert (row.count, row.is_warning, str(row)) == (7, True, "Unhealthy on pod/p (7 times): a <b>")


# ---- templates and the Pods that run ---------------------------------------------------------------------------------


def test_pods_that_are_as_the_templates_say():
    assert templates.stale(cluster(), [pod(), worker("a"), worker("b")]) == []


def edited(change: str) -> dict:
    made = cluster()
    exec(change, {"head": made["spec"]["headGroupSpec"], "group": made["spec"]["workerGroupSpecs"][0]})
    return made


CONTAINER = "['template']['spec']['containers'][0]"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (f"head{CONTAINER}['image'] = 'rayproject/ray:2.60.0'", ["demo-head-aaaaa"]),
        (f"head{CONTAINER}['resources']['limits']['cpu'] = '2'", ["demo-head-aaaaa"]),
        (f"head{CONTAINER}['resources']['limits']['cpu'] = '0.5'", []),
        (f"head{CONTAINER}['resources']['limits']['memory'] = '1024Mi'", []),
        ("head['rayStartParams']['num-cpus'] = '1'", ["demo-head-aaaaa"]),
        (f"group{CONTAINER}['env'][0]['value'] = 'c'", ["demo-small-worker-a"]),
        (f"group{CONTAINER}['env'].append(dict(name='N', value='n'))", ["demo-small-worker-a"]),
        ("group['template']['spec']['nodeSelector'] = dict(a='b')", ["demo-small-worker-a"]),
        ("group['template']['spec']['tolerations'] = [dict(key='a', operator='Exists')]", ["demo-small-worker-a"]),
        ("group['template']['metadata'] = dict(labels=dict(a='b'))", ["demo-small-worker-a"]),
        ("group['replicas'], group['maxReplicas'], group['idleTimeoutSeconds'] = 3, 9, 60", []),
    ],
)
def test_pods_that_are_not(change, names):
    changed = edited(change)
    for before in (None, cluster()):
        assert [p["metadata"]["name"] for p in templates.stale(changed, [pod(), worker("a")], before)] == names


def test_what_was_taken_out_shows_against_the_cluster_before():
    changed = edited(f"group{CONTAINER}.pop('env')")
    assert templates.stale(changed, [worker("a")]) == []
    assert templates.stale(changed, [worker("a")], cluster()) != []


def test_pods_that_end_or_are_of_no_group_are_not_stale():
    changed = edited(f"group{CONTAINER}['image'] = 'x'")
    assert templates.stale(changed, [ending(worker("a")), pod("p", "elsewhere")], cluster()) == []


# ---- manifests -------------------------------------------------------------------------------------------------------

MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


def test_a_manifest_is_a_path_a_text_or_a_dict(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text(MAP)
    monkeypatch.chdir(tmp_path)
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    for given in ("a.yaml", Path("a.yaml"), MAP, thing, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"):
        assert manifest.read(given) == [thing]
    assert manifest.read(f"---\n{MAP}---\n# nothing\n---\n{MAP}") == [thing, thing]
    assert manifest.read({"apiVersion": "v1", "kind": "List", "items": [thing]}) == [thing]
    assert manifest.read(thing)[0] is not thing  # the notebook's own stays as it is


def test_dates_and_keys_are_made_text():
    (made,) = manifest.read(MAP + "data: {2026: 2026-11-30}\n")
    assert made["data"] == {"2026": "2026-11-30"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("no.yaml", "The manifest no.yaml cannot be read: No such file"),
        ("a: b: c\n", "The text is no YAML: line 1: mapping values are not allowed here"),
        ("- 1\n", r"The text holds \[1\], which is no object"),
        ("kind: Pod\n", "The text holds Pod without apiVersion and metadata.name"),
        ("apiVersion: v1\nkind: Pod\nmetadata: x\n", "without metadata.name"),
        ("# nothing\n", "The text holds no object"),
        ({}, "The dict holds an object without apiVersion and kind and metadata.name"),
    ],
)
def test_what_is_no_manifest(given, words):
    with pytest.raises(CourseError, match=words):
        manifest.read(given)


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "RayService"])
def test_names_that_are_too_long(kind):
    longest = manifest.LONGEST[kind]
    thing = {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "a" * longest}}
    manifest.check(thing, "lesson-03")
    thing["metadata"]["name"] += "a"
    with pytest.raises(
        CourseError, match=f"has a name of {longest + 1} characters, and KubeRay takes at most {longest}"
    ):
        manifest.check(thing, "lesson-03")
    thing["metadata"]["name"] = "1a"
    with pytest.raises(CourseError, match="has a name that KubeRay refuses"):
        manifest.check(thing, "lesson-03")


def test_the_lessons_own_namespace_may_be_named():
    thing = yaml.safe_load(MAP)
    thing["metadata"]["namespace"] = "lesson-03"
    manifest.check(thing, "lesson-03")
    with pytest.raises(CourseError, match="names the namespace lesson-03, and this notebook works in ex03 only"):
        manifest.check(thing, "ex03")


@pytest.mark.parametrize(
    ("image", "version", "words"),
    [
        ("rayproject/ray:2.60.0-py311", "2.60.0", None),
        ("docker.io/rayproject/ray:2.60.0-py311-gpu", "2.60.0", None),
        ("rayproject/ray:2.60.0", None, None),
        (f"rayproject/{GONE}:2.9.0-gpu", None, None),  # there is no such image here, and its Pods say so
        ("rayproject/ray:2.60.0-py311", "2.9.0", r"wants Ray 2\.9\.0 \(rayVersion\)"),
        ("rayproject/ray:2.52.0-py310", "2.60.0", r"wants Python 3\.10|wants Ray 2\.52\.0"),
        ("rayproject/ray:2.60.0-py310-gpu", "2.60.0", r"wants Python 3\.10"),
    ],
)
def test_another_ray_than_the_hosts(image, version, words):
    thing = cluster(rayVersion=version)
    thing["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["image"] = image
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "j"},
        "spec": {"rayClusterSpec": thing["spec"]},
    }
    for one in (thing, job):
        if words is None:
            assert manifest.check_ray(one) == []
        else:
            with pytest.raises(CourseError, match=words):
                manifest.check_ray(one)


def test_another_ray_than_the_notebooks_where_images_are_what_they_say():
    assert manifest.skew(cluster(rayVersion="2.60.0")) == []
    thing = cluster(rayVersion="2.9.0")
    thing["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] = "rayproject/ray:2.60.0-py310"
    ray, python = manifest.skew(thing)
    assert ray.startswith("rayVersion means Ray 2.9.0, and this notebook has Ray 2.60.0: it runs, but functions of")
    assert python.startswith("the image rayproject/ray:2.60.0-py310 means Python 3.10, and this notebook has Python")


def test_an_image_without_a_version():
    thing = cluster()
    thing["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] = f"rayproject/ray:{LATEST}"
    assert manifest.check_ray(thing) == [
        f"the image rayproject/ray:{LATEST} names no version; here it is Ray 2.60.0, as the host has it"
    ]


def test_replicas_are_left_to_the_autoscaler():
    live = cluster(enableInTreeAutoscaling=True)
    live["spec"]["workerGroupSpecs"][0] |= {"replicas": 4, "scaleStrategy": {"workersToDelete": ["w"]}}
    thing = cluster(enableInTreeAutoscaling=True)
    (said,) = manifest.leave_to_autoscaler(thing, live)
    assert said.startswith("`replicas` of group small stays 4, not 2: the autoscaler is on")
    assert thing["spec"]["workerGroupSpecs"][0]["replicas"] == 4
    assert thing["spec"]["workerGroupSpecs"][0]["scaleStrategy"] == {"workersToDelete": ["w"]}


@pytest.mark.parametrize("autoscaled", [(False, False), (True, False), (False, True)])
def test_replicas_are_the_manifests_without_the_autoscaler(autoscaled):
    thing, live = (cluster(enableInTreeAutoscaling=on) for on in autoscaled)
    live["spec"]["workerGroupSpecs"][0]["replicas"] = 4
    assert manifest.leave_to_autoscaler(thing, live) == [] and manifest.leave_to_autoscaler(thing, None) == []
    assert thing["spec"]["workerGroupSpecs"][0]["replicas"] == 2


@pytest.mark.parametrize(
    ("message", "causes", "words"),
    [
        (
            "failed to create typed patch object (lesson-03/demo; ray.io/v1, Kind=RayCluster): "
            ".spec.x: field not declared in schema",
            [],
            ".spec.x: there is no such field.",
        ),
        ("whole", [{"field": "spec.a", "message": "Required value"}], "spec.a: Required value."),
        (".data.a: expected string, got &value.valueUnstructured{Value:1}", [], ".data.a: expected string, got 1."),
    ],
)
def test_what_the_api_server_refuses(message, causes, words):
    refused = apply._refused(target.Target(RAYCLUSTER, "demo"), KubeError(500, "", message, causes))
    assert refused.what == f"The API server refuses raycluster/demo: {words}"


# ---- what is free, and where a cluster comes from --------------------------------------------------------------------


def test_what_is_free_on_the_kubernetes_nodes():
    def machine(name: str, **more: str) -> dict:
        return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", "memory": "16Gi", **more}}}

    def asks(cpu: str, where: str | None, phase: str = "Running") -> dict:
        container = {"resources": {"requests": {"cpu": cpu, "memory": "1Gi", "nvidia.com/gpu": "1"}}}
        return {"spec": {"nodeName": where, "containers": [container]}, "status": {"phase": phase}}

    pods = [asks("500m", "a"), asks("1", "b"), asks("1", "b", "Succeeded"), asks("1", None), asks("1", "elsewhere")]
    machines = [machine("a"), machine("b", **{"nvidia.com/gpu": "4"})]
    assert capacity.describe(machines, pods, 1) == (
        "2 Kubernetes nodes with 14.5 of 16 CPUs, 30 of 32 GiB, 2 of 4 GPUs free; ✘ 1 more not ready"
    )
    assert capacity.describe(machines[:1], []) == "1 Kubernetes node with 8 of 8 CPUs, 16 of 16 GiB free"


def test_programs_that_are_not_built_are_said_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("COURSE_BACKEND", "embedded")
    with pytest.raises(CourseError, match="The program kubectl is not built yet.*course tools build"):
        backend.running(["kubernetes"])

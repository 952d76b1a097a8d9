"""KubeRay in a cluster: its operator, its three kinds, and the Ray autoscaler, all of them the real ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from helpers.kube import Kube
from helpers.observe.recorder import Recorder
from helpers.observe.snapshot import time_of
from helpers.observe.timeline import Timeline
from helpers.wait import wait_until
from tests.live.contract import Cluster, Place, place

if TYPE_CHECKING:
    from helpers.cluster.embedded.cluster import EmbeddedCluster

pytestmark = [pytest.mark.live, pytest.mark.any_backend]
MANIFESTS = Path(__file__).parent / "kuberay"
# Ray alone takes 10 s to start on two quiet cores, and waits up to 30 s for its own processes
RAY_S = 240.0
SOON_S = 60.0
READY = {"status": {"state": "ready"}}
TWO_GPUS = """
import json, os, time, ray
ray.init()

@ray.remote(num_cpus=0)
class Meeting:
    def __init__(self):
        self.there = set()

    def arrive(self, n):
        self.there.add(n)
        return len(self.there)

@ray.remote(num_gpus=1)
def where(n, meeting):
    while ray.get(meeting.arrive.remote(n)) < 2:  # so that no worker does two of them, one after the other
        time.sleep(0.2)
    return os.environ["HOSTNAME"], os.environ["CUDA_VISIBLE_DEVICES"]

meeting = Meeting.remote()
print("ran on", json.dumps(ray.get([where.remote(n, meeting) for n in range(2)])))
"""
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"


@pytest.fixture
def here(kubernetes: Cluster, request: pytest.FixtureRequest) -> Iterator[Place]:
    with place(kubernetes, request.node.name.removeprefix("test_").replace("_", "-")[:40]) as found:
        yield found


def apply(here: Place, text: str) -> None:
    here.cluster.must("-n", here.namespace, "apply", "--server-side", "-f", "-", stdin=text)


def manifest(name: str) -> str:
    return (MANIFESTS / f"{name}.yaml").read_text()


def small(*, name: str = "small", memory: str = "2Gi", image: str = "") -> str:
    """The small RayCluster, changed."""
    cluster = yaml.safe_load(manifest("small"))
    cluster["metadata"]["name"] = name
    [worker] = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    worker["resources"]["limits"]["memory"] = memory
    [head] = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    head["image"] = image or head["image"]
    return yaml.safe_dump(cluster)


def pods(here: Place, cluster: str, group: str) -> list[dict]:
    """The Pods of a group of a RayCluster that are not about to end; the head's group is `headgroup`."""
    selector = f"ray.io/cluster={cluster},ray.io/group={group}"
    found = here.cluster.get(here.url("pod"), labelSelector=selector)["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def a_pod(here: Place, cluster: str, group: str) -> dict:
    """The one Pod of a group, when there is one."""
    [pod] = here.wait(f"a Pod of {group}", lambda: pods(here, cluster, group), SOON_S)
    return pod


def in_head(here: Place, cluster: str, code: str) -> str:
    """What a Python program says that runs in the head."""
    pod = a_pod(here, cluster, "headgroup")["metadata"]["name"]
    done = here.kubectl("exec", "-i", pod, "-c", "ray-head", "--", "python", "-", stdin=code, timeout_s=RAY_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_gpu_workers_come_with_demand_and_go_without(here):
    """And the timeline has all of it: no gap, what Ray said, and the same moments as the objects have."""
    recorder = Recorder(Kube(here.cluster.kubeconfig), here.namespace)
    apply(here, manifest("autoscaling"))
    here.see("raycluster/elastic", READY, RAY_S)
    assert pods(here, "elastic", "gpu") == []
    seen = recorder.start(Timeline("raycluster/elastic", recorder.now()))
    said = in_head(here, "elastic", TWO_GPUS)
    ran_on = json.loads(said.rpartition("ran on ")[2].splitlines()[0])  # the autoscaler's own lines may follow
    # each task had a Pod of its own, and each Pod has one GPU
    assert len({pod for pod, _ in ran_on}) == 2
    assert all(devices.isdigit() for _, devices in ran_on), ran_on
    come = pods(here, "elastic", "gpu")
    here.see("raycluster/elastic", {"spec": {"workerGroupSpecs": [{"groupName": "gpu", "replicas": 0}]}}, RAY_S)
    here.wait("the GPU workers to go", lambda: not here.cluster.get(
        here.url("pod"), labelSelector="ray.io/group=gpu")["items"], RAY_S)  # fmt: skip
    recorder.stop()
    print(seen, seen.table(), *(seen.stages(name) for name in seen.pods()), sep="\n")
    assert not seen.gaps
    assert seen.peak("pods").value >= 2 and seen.peak("Ray nodes").value >= 2
    assert seen.peak("demand").value > 0 and seen.row("demand")["GPU"][-1][1] == 0
    for pod in come:
        check_stages(seen, pod)


def check_stages(seen: Timeline, pod: dict) -> None:
    """The moments between the stages are those that the Pod itself has, to the second."""
    found = seen.stages(pod["metadata"]["name"])
    names = [part.name for part in found]
    assert [name for name in names if name not in ("provision", "pull")] == [
        "decide", "create", "schedule", "start", "join", "load",
    ], found  # fmt: skip
    at, reached = seen.start, {}
    for part in found:
        at += part.seconds
        reached[part.name] = at
    [ray] = [one for one in pod["status"]["containerStatuses"] if one["name"] == pod["spec"]["containers"][0]["name"]]
    [scheduled] = [one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled"]
    written = {
        "create": pod["metadata"]["creationTimestamp"],
        "schedule": scheduled["lastTransitionTime"],
        "start": ray["state"]["running"]["startedAt"],
    }
    for name, text in written.items():
        # the API server cuts the second off
        assert -0.1 <= reached[name] - time_of(text).timestamp() <= 2.0, (name, text, found)


def test_a_rayjob_runs_to_its_end(here):
    apply(here, manifest("job"))
    ended = here.see("rayjob/squares", {"status": {"jobDeploymentStatus": "~Complete|Failed"}}, RAY_S)
    assert ended["status"]["jobStatus"] == "SUCCEEDED", ended["status"]
    # the submitter's Pod prints what the job printed
    submitter = here.cluster.get(here.url("pod"), labelSelector="job-name=squares")["items"][0]
    assert "the sum is 285" in here.kubectl("logs", submitter["metadata"]["name"]).stdout


def test_a_rayservice_answers(here):
    apply(here, manifest("service"))
    here.see("rayservice/greeter", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, RAY_S)
    cluster = here.get("rayservice/greeter")["status"]["activeServiceStatus"]["rayClusterName"]
    head = a_pod(here, cluster, "headgroup")["metadata"]["name"]
    ask = ("exec", head, "-c", "ray-head", "--", "python", "-c", ASK, "http://greeter-serve-svc:8000/?name=Ada")
    # KubeRay looks at the Service's endpoints, and kube-proxy may be a moment behind them
    here.wait("an answer", lambda: "Hello, Ada" in here.kubectl(*ask).stdout, SOON_S)


def test_a_killed_operator_comes_back_and_goes_on(here, request):
    if os.environ["COURSE_BACKEND"] != "embedded":
        pytest.skip("only the embedded cluster's operator is a process of ours to kill")
    embedded: EmbeddedCluster = request.getfixturevalue("embedded")
    apply(here, small())
    first = a_pod(here, "small", "cpu")
    before = embedded.status()["kuberay-operator"]
    os.kill(before.pid, signal.SIGKILL)
    # what happens while it is away: a Pod goes, and somebody asks for one more
    here.kubectl("delete", "pod", first["metadata"]["name"], "--wait=false")
    more = {"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 2}
    here.kubectl("patch", "raycluster", "small", "--type=json", "-p", json.dumps([more]))

    def as_asked() -> bool:
        names = {pod["metadata"]["name"] for pod in pods(here, "small", "cpu")}
        assert len(names - {first["metadata"]["name"]}) == 2, f"the workers are {names}"
        return True

    here.wait("two new workers", as_asked, SOON_S)

    def is_back() -> bool:
        now = embedded.status()["kuberay-operator"]
        assert now.is_ready and now.restarts == before.restarts + 1, f"{now}"
        return True

    wait_until(is_back, SOON_S, what="the operator to be back")


def test_a_worker_that_fits_nowhere_stays_pending_and_the_scheduler_says_why(here):
    apply(here, small(memory="64Gi"))
    worker = a_pod(here, "small", "cpu")["metadata"]["name"]
    # the third has the memory, and GPUs that the worker does not tolerate
    why = "~0/3 nodes are available: 1 node.s. had untolerated taint.*, 2 Insufficient memory"
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    here.see(f"pod/{worker}", {"status": {"phase": "Pending", "conditions": [unschedulable]}}, SOON_S)


def test_an_image_that_nobody_has_is_said(here):
    apply(here, small(image="example.com/no-such-image:1"))
    head = a_pod(here, "small", "headgroup")["metadata"]["name"]
    waiting = {"name": "ray-head", "state": {"waiting": {"reason": "~ErrImagePull|ImagePullBackOff"}}}
    here.see(f"pod/{head}", {"status": {"containerStatuses": [waiting]}}, SOON_S)


def test_a_name_of_60_letters_is_taken_and_then_refused_by_the_operator(here):
    """53 is the limit. No Pod is made, and only an event says why."""
    name = "n" * 60
    apply(here, small(name=name))

    def refusals() -> list[dict]:
        return [event for event in here.events(f"raycluster/{name}") if event["reason"] == "InvalidRayClusterMetadata"]

    [refusal, *_] = here.wait("the operator's event", refusals, SOON_S)
    assert refusal["type"] == "Warning"
    assert "no more than 53 characters" in refusal["message"]
    assert pods(here, name, "headgroup") == []

"""KubeRay in the embedded cluster for long: its own tests, a hundred kills, clusters that grow and shrink."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from helpers.cluster.embedded.layout import Layout, Machine
from helpers.state import course_root
from helpers.wait import wait_until
from tests.live.embedded import Cluster, cgroups
from tests.live.tools import processes_of
from tests.soak import kuberay_e2e
from tests.soak.kills import (
    POD_PROCESS,
    Acknowledged,
    container_processes,
    dice,
    is_part_of,
    kill,
    nodes_are_ready,
    settle,
    victims,
    without_pods,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux")
MACHINES = [Machine(f"m-{number}", cpu=32, memory_gib=128) for number in (1, 2, 3)]
KILLS = 100
SCALING_S = 600.0
MOST = 4  # workers that a cluster grows to
# How many start at once, over all clusters, on two cores: a raylet whose agent is late ends, and no setting lets it
# wait longer (WaitForDashboardAgentPorts of node_manager.cc); KubeRay makes all of them anew, again at once
AT_ONCE = 2
RAY_S = 400.0  # a head and its workers anew, on two busy cores
PACKAGES = ("e2eautoscaler", "e2erayjob", "e2erayservice", "e2e")
SOON = [  # a lost machine's Pods are made anew soon
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
    for state in ("unreachable", "not-ready")
]
# Says after each round that it is there; a worker that dies costs it time, never a result
DRIVER = """
import time, ray
ray.init()

@ray.remote(max_retries=-1)
def one(n):
    time.sleep(0.2)
    return n

number = 0
while True:
    assert ray.get([one.remote(n) for n in range(4)]) == list(range(4))
    number += 1
    with open("/tmp/said", "a") as said:  # on its standard output the autoscaler has a word too
        print(number, file=said)
"""
DEMAND = """
import ray
from ray.autoscaler.sdk import request_resources
ray.init()
request_resources(bundles=[{"CPU": 1}] * %d)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="course-soak-") as directory:
        Path(directory).chmod(0o755)
        shared = Cluster(Layout(Path(directory) / "embedded"))
        try:
            shared.up(MACHINES)
            yield shared
        finally:
            shared.down(wipe=True)


# ---- KubeRay's own tests ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def build_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kuberay")


@pytest.mark.parametrize("package", PACKAGES)
def test_kuberays_own(cluster, build_directory, package):
    """One test at a time. `COURSE_TESTS` is a pattern of the names of those to run; all are otherwise."""
    suite = kuberay_e2e.build(package, build_directory)
    logs = course_root() / "build" / "tests" / "kuberay-e2e" / package
    outcomes = []
    for test in suite.tests():
        if re.search(os.environ.get("COURSE_TESTS", ""), test):
            outcomes += (found := suite.run(cluster, test, logs))
            print(*found, sep="\n", flush=True)
    assert outcomes
    failed = [str(one) for one in outcomes if one.verdict not in ("PASS", "SKIP")]
    assert not failed, f"{failed}; their logs are in {logs}"


# ---- RayClusters that work -------------------------------------------------------------------------------------------


def ray_cluster(name: str, *, workers: int, elastic: bool = False) -> dict:
    """A RayCluster whose head has no CPUs for tasks; `elastic`: the autoscaler goes between 0 and `MOST` workers."""

    def template(container: str) -> dict:
        size = {"cpu": "1", "memory": "2Gi"}
        image = {"image": "rayproject/ray:2.60.0-py311", "resources": {"limits": size}}
        # a worker that loses its head gives up soon: KubeRay makes another head with another address
        env = [{"name": "RAY_gcs_rpc_server_reconnect_timeout_s", "value": "5"}]
        containers = [{"name": container, "env": env if container == "ray-worker" else [], **image}]
        return {"spec": {"terminationGracePeriodSeconds": 5, "tolerations": SOON, "containers": containers}}

    least, most = (0, MOST) if elastic else (workers, workers)
    group = {"groupName": "cpu", "replicas": workers, "minReplicas": least, "maxReplicas": most}
    spec: dict = {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": template("ray-head")},
        "workerGroupSpecs": [group | {"template": template("ray-worker")}],
    }
    if elastic:
        spec |= {"enableInTreeAutoscaling": True}
        spec |= {"autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": 5}}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}


def apply(cluster: Cluster, *things: dict) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(things))


def pods(cluster: Cluster, name: str) -> list[dict]:
    """The Pods of a RayCluster, also those that are about to end."""
    return json.loads(cluster.kubectl("get", "pods", "-l", f"ray.io/cluster={name}", "-o", "json"))["items"]


def check_ready(cluster: Cluster, name: str, workers: int) -> None:
    """
    Raises:
        AssertionError: if it has not a head and so many workers, all ready, and nothing else.
    """
    found = pods(cluster, name)
    ready = [pod for pod in found for condition in pod["status"].get("conditions", [])
             if (condition["type"], condition["status"]) == ("Ready", "True")]  # fmt: skip
    assert len(found) == len(ready) == workers + 1, f"{len(ready)} of {len(found)} Pods of {name} are ready"
    assert not any("deletionTimestamp" in pod["metadata"] for pod in found), f"a Pod of {name} is about to end"


def containers(cluster: Cluster, name: str) -> dict[str, list[str]]:
    """By Pod of a RayCluster: the ids of its containers."""
    return {
        pod["metadata"]["uid"]: [status.get("containerID", "") for status in pod["status"].get("containerStatuses", [])]
        for pod in pods(cluster, name)
    }


def head(cluster: Cluster, name: str) -> dict:
    """The head Pod that is not about to end."""

    def there() -> dict | None:
        heads = [pod for pod in pods(cluster, name) if pod["metadata"]["labels"]["ray.io/node-type"] == "head"]
        return next((pod for pod in heads if "deletionTimestamp" not in pod["metadata"]), None)

    return wait_until(there, RAY_S, what=f"a head of {name}", every_s=1)


class Driver:
    """A program in the head of a RayCluster, that works as long as that head lives."""

    def __init__(self, cluster: Cluster, name: str):
        self._cluster, self._name = cluster, name
        self._head = self._pod = ""

    def check(self) -> None:
        """It goes on; if its own Pod has gone, another one is begun in the new head."""
        now = head(self._cluster, self._name)
        identity = json.dumps([now["metadata"]["uid"], *sorted(
            status.get("containerID", "") for status in now["status"]["containerStatuses"])])  # fmt: skip
        self._pod = now["metadata"]["name"]
        if identity != self._head:
            self._head = identity
            begin = "cat > /tmp/driver.py; rm -f /tmp/said; nohup python /tmp/driver.py > /tmp/complained 2>&1 &"
            self._exec("sh", "-c", begin, given=DRIVER)
        before = self._rounds()

        def goes_on() -> bool:
            rounds = self._rounds()
            assert rounds > before, f"it has ended: {self._exec('tail', '-n5', '/tmp/complained')}"
            return True

        wait_until(goes_on, RAY_S, what=f"the driver in {self._pod}", every_s=1)

    def _rounds(self) -> int:
        return int(self._exec("sh", "-c", "tail -n1 /tmp/said 2>/dev/null || true") or 0)

    def _exec(self, *words: str, given: str = "") -> str:
        return self._cluster.kubectl("exec", "-i", self._pod, "-c", "ray-head", "--", *words, given=given)


def test_a_hundred_kills(cluster):
    """Any part, and any Pod's process, while two RayClusters work; `COURSE_SEED` repeats a run."""
    chance = dice()
    names = {"busy-a": 1, "busy-b": 2}  # workers
    apply(cluster, *(ray_cluster(name, workers=workers) for name, workers in names.items()))
    converge(cluster, names)
    drivers = [Driver(cluster, name) for name in names]
    for driver in drivers:
        driver.check()
    acknowledged = Acknowledged(cluster)
    for number in range(KILLS):
        acknowledged.one_more()
        victim = chance.choice(victims(cluster))
        begin = time.monotonic()
        before = {name: containers(cluster, name) for name in names}
        if victim == POD_PROCESS:
            kill_a_pods_process(cluster, chance)
        else:
            kill(cluster, victim)
        converge(cluster, names)
        if is_part_of(victim, cluster):
            assert {name: containers(cluster, name) for name in names} == before, f"{victim} took Pods along"
        for driver in drivers:
            driver.check()
        print(f"{number}: {victim}, all is well after {time.monotonic() - begin:.0f} s", flush=True)
    acknowledged.check()
    cluster.kubectl("delete", "raycluster", *names)


def kill_a_pods_process(cluster: Cluster, chance: random.Random) -> None:
    """The first process of a Ray container; what it belongs to is seen to have changed."""
    before = {name: containers(cluster, name) for name in ("busy-a", "busy-b")}
    chance.choice(container_processes(cluster, ["bash", "ray", "python", "python3"])).kill()
    wait_until(
        lambda: {name: containers(cluster, name) for name in before} != before, 120,
        what="the kubelet or KubeRay to start it again", every_s=0.5,
    )  # fmt: skip


def converge(cluster: Cluster, names: dict[str, int]) -> None:
    def is_fine() -> bool:
        cluster.is_ready()
        nodes_are_ready(cluster)
        for name, workers in names.items():
            check_ready(cluster, name, workers)
        return True

    wait_until(is_fine, RAY_S, what="the cluster to be as it was", every_s=1)


# ---- RayClusters that grow and shrink --------------------------------------------------------------------------------


def test_three_rayclusters_grow_and_shrink_for_ten_minutes(cluster):
    before, chance = without_pods(cluster), dice()
    names = ["grow-a", "grow-b", "grow-c"]
    apply(cluster, *(ray_cluster(name, workers=0, elastic=True) for name in names))
    for name in names:
        wait_until(lambda name=name: check_ready(cluster, name, 0) or True, RAY_S, what=f"the head of {name}")
    end, wanted = time.monotonic() + SCALING_S, dict.fromkeys(names, 0)
    while time.monotonic() < end:
        name, workers = chance.choice(names), chance.randint(0, MOST)
        print(f"{name}: {workers} workers", flush=True)
        for step in [*range(wanted[name] + AT_ONCE, workers, AT_ONCE), workers]:
            demand(cluster, name, step)
            # it may shrink while others are asked
            if step > wanted[name] or chance.random() < 0.5:
                is_scaled = lambda name=name, step=step: check_ready(cluster, name, step) or True  # noqa: E731
                wait_until(is_scaled, RAY_S, what=f"{step} workers of {name}", every_s=1)
        wanted[name] = workers
    for name in names:
        demand(cluster, name, 0)
    for name in names:
        wait_until(lambda name=name: check_ready(cluster, name, 0) or True, RAY_S, what=f"{name} to shrink", every_s=1)
    cluster.kubectl("delete", "raycluster", *names)
    settle(cluster, before)


def demand(cluster: Cluster, name: str, workers: int) -> None:
    pod = head(cluster, name)["metadata"]["name"]
    cluster.kubectl("exec", "-i", pod, "-c", "ray-head", "--", "python", "-", given=DEMAND % workers)


def test_nothing_is_left(cluster):
    cluster.down()
    assert processes_of(str(cluster.layout.root)) == []
    assert cgroups(cluster) == []

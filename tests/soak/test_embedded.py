"""The embedded cluster for long: many Pods, many cycles, a hundred kills. Run by `make soak`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.cluster.embedded.layout import Layout, Machine
from helpers.wait import wait_until
from tests.live.embedded import Cluster, cgroups
from tests.live.tools import processes_of
from tests.soak.kills import (
    CONVERGED_S,
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
)  # fmt: skip

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux")
MACHINES = [Machine("m-1", cpu=8), Machine("m-2", cpu=8), Machine("m-3", cpu=8)]
PODS = 60
ROUNDS, A_ROUND = 10, 20  # 200 Pods are made and deleted
KILLS = 100
# what a component may grow by over 200 Pods, as Go's collector and Python's allocator come to their level
MORE_MEMORY = 1.5
MORE_FDS = 8
WORKLOAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: %(name)s}
spec:
  replicas: %(replicas)d
  selector: {matchLabels: {app: %(name)s}}
  template:
    metadata: {labels: {app: %(name)s}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:  # a lost machine's Pods are made anew soon
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
"""
TOKEN = """
apiVersion: v1
kind: Pod
metadata: {name: bearer}
spec:
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    volumeMounts: [{name: token, mountPath: /token}]
  volumes:
  - name: token
    projected: {sources: [{serviceAccountToken: {path: token, audience: soak, expirationSeconds: 600}}]}
"""
# the shortest life of a token is 600 s; the kubelet asks for another after 80 % of it, when it next looks at the Pod
TOKEN_S = 720
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="course-soak-") as directory:
        Path(directory).chmod(0o755)
        shared = Cluster(Layout(Path(directory) / "embedded"))
        try:
            shared.up(MACHINES, kuberay_wanted=False)
            yield shared
        finally:
            shared.down(wipe=True)


def ready_replicas(cluster: Cluster, name: str) -> int:
    return int(cluster.kubectl("get", "deployment", name, "-o", "jsonpath={.status.readyReplicas}") or 0)


def apply(cluster: Cluster, name: str, replicas: int) -> None:
    """Make a Deployment, and wait until all its Pods are ready."""
    cluster.kubectl("apply", "-f", "-", given=WORKLOAD % {"name": name, "replicas": replicas})

    def is_ready() -> bool:
        there = ready_replicas(cluster, name)
        assert there == replicas, f"{there} of {replicas} Pods are ready"
        return True

    wait_until(is_ready, CONVERGED_S, what=f"the Pods of {name}", every_s=0.5)


def delete(cluster: Cluster, name: str) -> None:
    cluster.kubectl("delete", "deployment", name, "--cascade=foreground", "--timeout=120s")

    def is_gone() -> bool:
        left = cluster.kubectl("get", "pods", "-l", f"app={name}", "-o", "name")
        assert not left, f"{len(left.splitlines())} Pods are there"
        return True

    wait_until(is_gone, CONVERGED_S, what=f"the Pods of {name} to go", every_s=0.5)


def level(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Open files and bytes of memory of every component."""
    rows = cluster.status().components
    return {row.name: (len(os.listdir(f"/proc/{row.pid}/fd")), row.memory_bytes) for row in rows}


def test_sixty_pods_and_two_hundred_cycles_leave_nothing(cluster):
    apply(cluster, "warm", A_ROUND)  # the first Pods open what stays open
    delete(cluster, "warm")
    before, level_before = without_pods(cluster), level(cluster)
    apply(cluster, "sixty", PODS)
    delete(cluster, "sixty")
    settle(cluster, before)
    for round_ in range(ROUNDS):
        apply(cluster, f"round-{round_}", A_ROUND)
        delete(cluster, f"round-{round_}")
    settle(cluster, before)
    after = level(cluster)
    print(*(f"{name}: files, bytes {level_before[name]} → {after[name]}" for name in after), sep="\n")
    more_files = {n: (level_before[n][0], after[n][0]) for n in after if after[n][0] > level_before[n][0] + MORE_FDS}
    assert not more_files
    # kube-apiserver's watch cache and etcd hold the events of all these Pods for an hour: theirs may grow
    own = [name for name in after if name not in ("kube-apiserver", "etcd")]
    grown = {n: (level_before[n][1], after[n][1]) for n in own if after[n][1] > level_before[n][1] * MORE_MEMORY}
    assert not grown


def test_a_projected_token_is_refreshed_before_it_expires(cluster):
    cluster.kubectl("apply", "-f", "-", given=TOKEN)
    cluster.kubectl("wait", "pod/bearer", "--for=condition=Ready", "--timeout=60s")
    read = lambda: cluster.kubectl("exec", "bearer", "--", "cat", "/token/token")  # noqa: E731
    first = read()

    def another() -> str | None:
        assert is_valid(cluster, token := read()), "the token in the container is not valid"
        return token if token != first else None

    wait_until(another, TOKEN_S, what="another token in the same container", every_s=5)
    cluster.kubectl("delete", "pod", "bearer", "--grace-period=1")


def is_valid(cluster: Cluster, token: str) -> bool:
    review = REVIEW | {"spec": {"token": token, "audiences": ["soak"]}}
    said = cluster.kubectl("create", "-f", "-", "-o", "jsonpath={.status.authenticated}", given=json.dumps(review))
    return said == "true"


# ---- kills -----------------------------------------------------------------------------------------------------------


def containers(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """By Pod: the id of its container and how often it was started again."""
    pods = json.loads(cluster.kubectl("get", "pods", "-l", "app=work", "-o", "json"))["items"]
    return {
        pod["metadata"]["name"]: (status["containerID"], status["restartCount"])
        for pod in pods
        for status in pod["status"].get("containerStatuses", [])
        if "deletionTimestamp" not in pod["metadata"] and "containerID" in status
    }


def converge(cluster: Cluster, work: int) -> None:
    def is_fine() -> bool:
        cluster.is_ready()
        there = ready_replicas(cluster, "work")
        assert there == work, f"{there} of {work} Pods are ready"
        nodes_are_ready(cluster)
        # all ready is not enough: kube-controller-manager may not have seen yet that something went
        stuck = cluster.kubectl("get", "pods", "-l", "app=work", "--no-headers").splitlines()
        assert len(stuck) == work, f"{len(stuck)} Pods instead of {work}"
        return True

    wait_until(is_fine, CONVERGED_S, what="the cluster to be as it was", every_s=1)


def test_a_hundred_kills(cluster):
    """Components, kubelets, runtimes, machines and Pods' processes, at random; `COURSE_SEED` repeats a run."""
    chance, work = dice(), 9
    apply(cluster, "work", work)
    acknowledged = Acknowledged(cluster)
    for number in range(KILLS):
        acknowledged.one_more()
        victim = chance.choice(victims(cluster))
        print(f"{number}: {victim}", flush=True)
        before = containers(cluster)
        if victim == POD_PROCESS:
            chance.choice(container_processes(cluster, ["sh"])).kill()
            # all are ready until the kubelet has seen it
            wait_until(lambda: containers(cluster) != before, 60, what="the kubelet to start it again", every_s=0.5)  # noqa: B023
        else:
            kill(cluster, victim)
        converge(cluster, work)
        if is_part_of(victim, cluster):
            assert containers(cluster) == before, f"{victim} took Pods along"
    acknowledged.check()
    cluster.power_loss()
    cluster.up()
    acknowledged.check()
    converge(cluster, work)


def test_nothing_is_left(cluster):
    cluster.down()
    assert processes_of(str(cluster.layout.root)) == []
    assert cgroups(cluster) == []

"""The embedded cluster for long: many Pods, many cycles, a hundred kills. Run by `make soak`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from helpers.cluster.embedded import control
from helpers.cluster.embedded.layout import Layout, Machine
from helpers.wait import wait_until
from tests.live.embedded import Cluster, cgroups
from tests.live.test_cluster import CONTROL_PLANE
from tests.live.tools import processes_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux")
MACHINES = [Machine("m-1", cpu=8), Machine("m-2", cpu=8), Machine("m-3", cpu=8)]
PODS = 60
ROUNDS, A_ROUND = 10, 20  # 200 Pods are made and deleted
KILLS = 100
SEED = int(os.environ.get("COURSE_SEED", time.time()))
CONVERGED_S = 180
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


def host_init(cluster: Cluster, machine: str) -> psutil.Process:
    return psutil.Process(cluster.status()[machine].pid)


def held(cluster: Cluster) -> dict[str, object]:
    """What Pods must give back, counted outside of Kubernetes."""
    found: dict[str, object] = {}
    with control.connect(cluster.layout.root, 5) as connection:
        supervisor = control.supervisor_pid(connection)
    inside = ["nsenter", f"--target={supervisor}", "--net", "--user", "--preserve-credentials"]
    inside = inside if os.geteuid() else inside[:3]
    links = subprocess.run([*inside, "ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    routes = subprocess.run([*inside, "ip", "-o", "route"], capture_output=True, text=True, check=True).stdout
    found["links"] = len(links.splitlines())
    found["routes"] = len(routes.splitlines())
    found["processes"] = dict(Counter(p.name() for p in psutil.Process(supervisor).children(recursive=True)))
    found["cgroups"] = sum(1 for top in cgroups(cluster) for _ in top.rglob("*/"))
    for machine in MACHINES:
        init = host_init(cluster, machine.name)
        disk = cluster.layout.machine(machine.name)
        found[f"mounts of {machine.name}"] = len(Path(f"/proc/{init.pid}/mountinfo").read_text().splitlines())
        found[f"Pod directories of {machine.name}"] = len(list((disk.kubelet / "pods").glob("*")))
        found[f"Pod logs of {machine.name}"] = len(list(disk.pod_logs.glob("*")))
        for kind in ("sandboxes", "containers"):
            found[f"{kind} of {machine.name}"] = len(list((disk.runtime / kind).glob("*")))
    leases = cluster.kubectl("get", "leases", "-A", "-o", "name")
    found["leases"] = sorted(leases.splitlines())
    return found


def level(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Open files and bytes of memory of every component."""
    rows = cluster.status().components
    return {row.name: (len(os.listdir(f"/proc/{row.pid}/fd")), row.memory_bytes) for row in rows}


def without_pods(cluster: Cluster) -> dict[str, object]:
    """What is held when there are no Pods. The kubelet removes the logs of ended Pods once a minute."""
    of_pods = ("Pod directories", "Pod logs", "sandboxes", "containers", "cgroups")

    def is_empty() -> dict[str, object]:
        now = held(cluster)
        left = {what: count for what, count in now.items() if what.startswith(of_pods) and count}
        assert not left, f"{json.dumps(left)}"
        return now

    return wait_until(is_empty, 150, what="the first Pods' files to go", every_s=2)


def settle(cluster: Cluster, before: dict[str, object]) -> None:
    """Wait until everything that Pods held is given back."""

    def is_level() -> bool:
        after = held(cluster)
        more = {what: (before[what], after[what]) for what in before if after[what] != before[what]}
        assert not more, f"left over (before, after): {json.dumps(more)}"
        return True

    wait_until(is_level, 150, what="all that Pods held to be given back", every_s=2)


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


def container_processes(cluster: Cluster) -> list[psutil.Process]:
    """First processes of the containers, as children of their machines' first processes."""
    found = []
    status = cluster.status()
    for machine in MACHINES:
        services = {status[f"{machine.name}.{service}"].pid for service in ("runtime", "kubelet")}
        children = host_init(cluster, machine.name).children()
        found += [child for child in children if child.pid not in services and child.name() == "sh"]
    return found


def converge(cluster: Cluster, work: int) -> None:
    def is_fine() -> bool:
        cluster.is_ready()
        there = ready_replicas(cluster, "work")
        assert there == work, f"{there} of {work} Pods are ready"
        nodes = cluster.kubectl("get", "nodes", "--no-headers").splitlines()
        assert all(" Ready " in line for line in nodes), f"Kubernetes nodes: {nodes}"
        # all ready is not enough: kube-controller-manager may not have seen yet that something went
        stuck = cluster.kubectl("get", "pods", "-l", "app=work", "--no-headers").splitlines()
        assert len(stuck) == work, f"{len(stuck)} Pods instead of {work}"
        return True

    wait_until(is_fine, CONVERGED_S, what="the cluster to be as it was", every_s=1)


def test_a_hundred_kills(cluster):
    """Components, kubelets, runtimes, machines and Pods' processes, at random; `COURSE_SEED` repeats a run."""
    print(f"COURSE_SEED={SEED}")
    dice = random.Random(SEED)
    work = 9
    apply(cluster, "work", work)
    victims = [*CONTROL_PLANE]
    for machine in MACHINES:
        victims += [machine.name, f"{machine.name}.kubelet", f"{machine.name}.runtime", "a Pod's process"]
    acknowledged = []
    for number in range(KILLS):
        name = f"kept-{number}"
        cluster.kubectl("create", "configmap", name)
        acknowledged.append(f"configmap/{name}")
        victim = dice.choice(victims)
        print(f"{number}: {victim}", flush=True)
        before = containers(cluster)
        if victim == "a Pod's process":
            dice.choice(container_processes(cluster)).kill()
            # all are ready until the kubelet has seen it
            wait_until(lambda: containers(cluster) != before, 60, what="the kubelet to start it again", every_s=0.5)  # noqa: B023
        else:
            os.kill(cluster.status()[victim].pid, signal.SIGKILL)
        if victim in {machine.name for machine in MACHINES}:
            lost_and_booted_again(cluster, next(m for m in MACHINES if m.name == victim))
        converge(cluster, work)
        if victim.endswith((".kubelet", ".runtime")) or victim in CONTROL_PLANE:
            assert containers(cluster) == before, f"{victim} took Pods along"
    there = set(cluster.kubectl("get", "configmaps", "-o", "name").splitlines())
    assert set(acknowledged) <= there
    cluster.power_loss()
    cluster.up()
    there = set(cluster.kubectl("get", "configmaps", "-o", "name").splitlines())
    assert set(acknowledged) <= there
    converge(cluster, work)


def lost_and_booted_again(cluster: Cluster, machine: Machine) -> None:
    """It looks like a lost machine to Kubernetes, and comes back when it is booted."""

    def is_lost() -> bool:
        row = cluster.status()[machine.name]
        assert row.state == "lost", f"it is {row.state}"
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        seen = cluster.kubectl("get", "node", machine.name, "-o", ready)
        assert seen == "Unknown", f"its condition Ready is {seen}"
        return True

    wait_until(is_lost, 60, what=f"{machine.name} to be seen as lost", every_s=1)
    cluster.add_machine(machine)


def test_nothing_is_left(cluster):
    cluster.down()
    assert processes_of(str(cluster.layout.root)) == []
    assert cgroups(cluster) == []

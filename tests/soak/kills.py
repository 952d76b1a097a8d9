"""What the soaks share: what Pods hold outside of Kubernetes, killing at random, and booting what was lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from helpers.cluster.embedded import control, machines
from helpers.cluster.embedded.layout import Machine
from helpers.wait import wait_until
from tests.live.embedded import Cluster, cgroups

SEED = int(os.environ.get("COURSE_SEED", time.time()))
CONVERGED_S = 180
POD_PROCESS = "a Pod's process"


def dice() -> random.Random:
    """Chance that `COURSE_SEED` repeats."""
    print(f"COURSE_SEED={SEED}")
    return random.Random(SEED)


def machines_of(cluster: Cluster) -> dict[str, Machine]:
    """The cluster's machines by name."""
    return {name: declaration.machine for name, declaration in machines.declared(cluster.layout).items()}


def host_init(cluster: Cluster, machine: str) -> psutil.Process:
    return psutil.Process(cluster.status()[machine].pid)


def inside(cluster: Cluster, *kinds: str) -> list[str]:
    """The beginning of a command that runs in namespaces of the cluster, such as `net` and `mount`."""
    with control.connect(cluster.layout.root, 5) as connection:
        supervisor = control.supervisor_pid(connection)
    own_user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", f"--target={supervisor}", *(f"--{kind}" for kind in kinds), *own_user]


# ---- what must be given back -----------------------------------------------------------------------------------------


def held(cluster: Cluster) -> dict[str, object]:
    """What Pods must give back, counted outside of Kubernetes."""
    found: dict[str, object] = {}
    enter = inside(cluster, "net")
    links = subprocess.run([*enter, "ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    routes = subprocess.run([*enter, "ip", "-o", "route"], capture_output=True, text=True, check=True).stdout
    found["links"] = len(links.splitlines())
    found["routes"] = len(routes.splitlines())
    found["processes"] = dict(Counter(process.name() for process in cluster.processes()[1:]))
    # those of the machines themselves stay as long as these
    found["cgroups"] = sum(1 for top in cgroups(cluster) for path in top.rglob("*/") if path.parent != top)
    for machine in machines_of(cluster):
        init = host_init(cluster, machine)
        disk = cluster.layout.machine(machine)
        found[f"mounts of {machine}"] = len(Path(f"/proc/{init.pid}/mountinfo").read_text().splitlines())
        found[f"Pod directories of {machine}"] = len(list((disk.kubelet / "pods").glob("*")))
        found[f"Pod logs of {machine}"] = len(list(disk.pod_logs.glob("*")))
        for kind in ("sandboxes", "containers"):
            found[f"{kind} of {machine}"] = len(list((disk.runtime / kind).glob("*")))
    leases = cluster.kubectl("get", "leases", "-A", "-o", "name")
    found["leases"] = sorted(leases.splitlines())
    return found


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


# ---- kills -----------------------------------------------------------------------------------------------------------


def victims(cluster: Cluster) -> list[str]:
    """What may be killed: components as in the status, machines, what runs on them, and a Pod's process."""
    rows = [row.name for row in cluster.status().components]
    return rows + [POD_PROCESS] * len(machines_of(cluster))


def is_part_of(victim: str, cluster: Cluster) -> bool:
    """Whether Pods live on without the victim: a component, a kubelet or a runtime."""
    return victim != POD_PROCESS and victim not in machines_of(cluster)


def kill(cluster: Cluster, victim: str) -> None:
    """Kill one of `victims` other than a Pod's process. A machine is seen as lost, and booted again."""
    os.kill(running_pid(cluster, victim), signal.SIGKILL)
    if victim in machines_of(cluster):
        lost_and_booted_again(cluster, machines_of(cluster)[victim])


def running_pid(cluster: Cluster, component: str) -> int:
    """The pid of a component that runs. One that is just starting has 0, which to `os.kill` is our own group."""

    def is_running() -> int:
        row = cluster.status()[component]
        assert row.pid > 0, f"it is {row.state}"
        return row.pid

    return wait_until(is_running, 60, what=f"{component} to run", every_s=0.5)


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


def container_processes(cluster: Cluster, names: Sequence[str]) -> list[psutil.Process]:
    """First processes of containers that have one of these names, as children of their machines' first processes."""
    found = []
    status = cluster.status()
    for machine in machines_of(cluster):
        services = {status[f"{machine}.{service}"].pid for service in ("runtime", "kubelet")}
        children = host_init(cluster, machine).children()
        found += [child for child in children if child.pid not in services and child.name() in names]
    return found


def nodes_are_ready(cluster: Cluster) -> None:
    """
    Raises:
        AssertionError: with the Kubernetes nodes that are not.
    """
    nodes = cluster.kubectl("get", "nodes", "--no-headers").splitlines()
    assert all(" Ready " in line for line in nodes), f"Kubernetes nodes: {nodes}"


class Acknowledged:
    """Objects that the API server has acknowledged, none of which may be lost."""

    def __init__(self, cluster: Cluster):
        self._cluster, self._names = cluster, set()

    def one_more(self) -> None:
        name = f"kept-{len(self._names)}"
        self._cluster.kubectl("create", "configmap", name)
        self._names.add(f"configmap/{name}")

    def check(self) -> None:
        there = set(self._cluster.kubectl("get", "configmaps", "-o", "name").splitlines())
        assert self._names <= there, f"lost: {self._names - there}"

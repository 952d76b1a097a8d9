"""The embedded cluster: how soon it is ready, how soon a machine, a Pod and sixty Pods are, and what it costs idle.

The bounds are 1.5 times what the cluster was measured at when this was planned, on two quiet cores. Each time is
divided by how much slower than on those this computer is now, which a fixed piece of work tells before and after it.
CPU and memory are not: a busy computer does not change them.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
from _figure import finish, report, seconds

from helpers.cluster.embedded import tools
from helpers.cluster.embedded.cluster import EmbeddedCluster
from helpers.cluster.embedded.layout import Layout, Machine

QUIET_S = 0.030  # `calibration` on two quiet cores of the machine on which the bounds were measured
MIB = 1024**2
REST_S = 120.0  # a kubelet removes the logs of ended Pods once a minute; Go collects garbage every two
IDLE_S = 60.0
# % of a core. 5 and 1 were planned. What is there in their stead are upstream's own clocks: in a second,
# kube-apiserver's goroutines wake 300 times, etcd's 190, kube-controller-manager's 190 (126 of them to count what waits
# in its 63 queues) and a kubelet's 70, and a kubelet makes 3.6 calls to its runtime. The same cluster took 6 and 1.1
# on a busy computer, and 11.5 and 2.0 on a quiet one, where each waking is one from the processor's sleep.
MOST_IDLE, MOST_IDLE_OF_ONE = 15.0, 2.5
NODES = (Machine("m-1"), Machine("m-2"))
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "busybox:1.36", command: [sleep, "1000"]}]
"""
SIXTY = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: sixty}
spec:
  replicas: 60
  selector: {matchLabels: {app: sixty}}
  template:
    metadata: {labels: {app: sixty}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: "busybox:1.36", command: [sleep, "1000"]}]
"""


def calibration() -> float:
    """Seconds of a fixed piece of work that starts processes, as all of this does."""
    return median(seconds(lambda: subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)) for _ in range(9))


def paired(work: Callable[[], float]) -> tuple[float, float]:
    """A figure, and how much slower than a quiet machine this one was around it."""
    before = calibration()
    figure = work()
    return figure, max(1.0, (before + calibration()) / 2 / QUIET_S)


def quietly(work: Callable[[], object]) -> float:
    with contextlib.redirect_stdout(io.StringIO()):
        return seconds(work)


def kubectl(cluster: EmbeddedCluster, *words: str, given: str = "") -> str:
    command = [str(tools.binary("kubectl")), f"--kubeconfig={cluster.layout.kubeconfig}", *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


def pod_ready(cluster: EmbeddedCluster, name: str) -> float:
    def work() -> None:
        kubectl(cluster, "apply", "-f", "-", given=POD % name)
        kubectl(cluster, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")

    took = seconds(work)
    kubectl(cluster, "delete", "pod", name)
    return took


def sixty_ready(cluster: EmbeddedCluster) -> None:
    kubectl(cluster, "apply", "-f", "-", given=SIXTY)
    kubectl(cluster, "rollout", "status", "deployment/sixty", "--timeout=120s")


def cpu_seconds(cluster: EmbeddedCluster) -> dict[str, float]:
    return {row.name: sum(psutil.Process(row.pid).cpu_times()[:2]) for row in cluster.status().components}


def idle_percent(cluster: EmbeddedCluster) -> dict[str, float]:
    before = cpu_seconds(cluster)
    time.sleep(IDLE_S)
    after = cpu_seconds(cluster)
    return {name: (after[name] - before[name]) / IDLE_S * 100 for name in after}


def main() -> None:
    kept = []

    def figure(name: str, planned: float, unit: str, work: Callable[[], float]) -> None:
        value, slow = paired(work)
        beside = f"planned {planned:g}; this machine is {slow:.1f} times slower than a quiet one, {value:.2f} as timed"
        kept.append(report(name, value / slow, planned * 1.5, beside, unit))

    with tempfile.TemporaryDirectory(prefix="course-bench-") as directory:
        cluster = EmbeddedCluster(Layout(Path(directory) / "embedded"))
        try:
            start = lambda: quietly(lambda: cluster.up([], kuberay_wanted=False))  # noqa: E731
            figure("first start, default ServiceAccount", 9.0, "s", start)
            cluster.down()
            figure("control plane ready, warm", 4.4, "s", start)
            machines = iter(NODES)
            for number in range(len(NODES)):
                add = lambda: quietly(lambda: cluster.add_machine(next(machines)))  # noqa: E731
                figure(f"machine {number + 1} started → Ready", 1.0, "s", add)
            pod_ready(cluster, "first")  # the image is there from now on
            pods = lambda: median(pod_ready(cluster, f"pod-{number}") for number in range(5))  # noqa: E731
            figure("Pod create → Ready, with kubectl's two starts", 0.6, "s", pods)
            figure("60 Pods ready", 6.8, "s", lambda: seconds(lambda: sixty_ready(cluster)))
            kubectl(cluster, "delete", "deployment", "sixty", "--cascade=foreground")
            time.sleep(REST_S)
            idle = idle_percent(cluster)
            rest = f"{REST_S:g} s after the last Pod, for {IDLE_S:g} s; planned"
            kept.append(report("idle CPU of all", sum(idle.values()), MOST_IDLE, f"{rest} 5", "% of a core"))
            of_one = sum(value for name, value in idle.items() if name.startswith("m-1"))
            kept.append(report("idle CPU of a machine", of_one, MOST_IDLE_OF_ONE, f"{rest} 1", "% of a core"))
            print(json.dumps({name: round(value, 2) for name, value in idle.items()}))
            rows = cluster.status().components
            memory = sum(row.memory_bytes for row in rows if row.name.startswith("m-1")) / MIB
            kept.append(report("memory of a machine (PSS)", memory, 75 * 1.5, "planned 65–75 with two machines", "MiB"))
            print(json.dumps({row.name: round(row.memory_bytes / MIB) for row in rows}))
            # KubeRay's schemas fill the API server: it must not collect garbage without end
            quietly(lambda: (cluster.down(), cluster.up([], kuberay_wanted=True)))
            time.sleep(REST_S)
            idle = sum(idle_percent(cluster).values())
            kept.append(report("idle CPU of all with KubeRay", idle, MOST_IDLE, f"{REST_S:g} s after", "% of a core"))
        finally:
            with contextlib.redirect_stdout(io.StringIO()):
                cluster.down(wipe=True)
    finish(*kept)


if __name__ == "__main__":
    main()

"""A RayCluster, head and one worker: at most 1.5 times what the same two bare `ray start`s take.

Both start in turn, from nothing: applied to a running embedded cluster until KubeRay calls it ready, and typed on two
hosts of the course. KubeRay's own probes look at a container for the first time 10 s after its start, and the worker
waits for the head; that is 20 s of every RayCluster anywhere. So the bound is held with probes that look at once, and
the time with KubeRay's own is printed beside what others took.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import yaml
from _figure import finish, report, seconds

BOUND = 1.5
PAIRS = 3
LIMIT_S = 180
ELSEWHERE = "elsewhere kind took 20–27 s, and the first sketch of this cluster 22 s"
HEAD = "ray start --head --num-cpus=0 --dashboard-host=0.0.0.0 --memory=3221225472"
WORKER = "ray start --address={address} --num-cpus=1 --memory=2147483648"
# KubeRay's (initLivenessAndReadinessProbe of its pod.go), but for the 10 s before the first look and 5 s between two
PROMPT = {"httpGet": {"path": "/api/healthz", "port": 52365}, "periodSeconds": 1, "failureThreshold": 60}
CLUSTER = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: bench}
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template:
      spec:
        terminationGracePeriodSeconds: 1
        containers:
          - name: ray-head
            image: rayproject/ray:2.60.0-py311
            resources: {limits: {cpu: "1", memory: 3Gi}}
  workerGroupSpecs:
    - groupName: cpu
      replicas: 1
      minReplicas: 1
      maxReplicas: 1
      template:
        spec:
          terminationGracePeriodSeconds: 1
          containers:
            - name: ray-worker
              image: rayproject/ray:2.60.0-py311
              resources: {limits: {cpu: "1", memory: 2Gi}}
"""


@contextlib.contextmanager
def embedded(directory: str) -> Iterator[list[str]]:
    """A running cluster; gives the beginning of a kubectl command."""
    from helpers.cluster.embedded import tools
    from helpers.cluster.embedded.cluster import EmbeddedCluster
    from helpers.cluster.embedded.layout import Layout

    cluster = EmbeddedCluster(Layout(Path(directory) / "embedded"))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            cluster.up()
        yield [str(tools.binary("kubectl")), f"--kubeconfig={cluster.layout.kubeconfig}"]
    finally:
        cluster.down(wipe=True)


def manifest(prompt: bool) -> str:
    """The RayCluster; `prompt`: with probes that look at once."""
    cluster = yaml.safe_load(CLUSTER)
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        if prompt:
            group["template"]["spec"]["containers"][0]["readinessProbe"] = PROMPT
    return yaml.safe_dump(cluster)


def run(kubectl: list[str], *words: str, given: str = "") -> None:
    subprocess.run([*kubectl, *words], input=given, text=True, check=True, stdout=subprocess.DEVNULL)


def start(kubectl: list[str], prompt: bool = False) -> None:
    """Apply the RayCluster, and wait until KubeRay calls it ready."""
    run(kubectl, "apply", "-f", "-", given=manifest(prompt))
    run(kubectl, "wait", "raycluster/bench", "--for=jsonpath={.status.state}=ready", f"--timeout={LIMIT_S}s")


def by_kuberay(kubectl: list[str], prompt: bool) -> float:
    """Seconds from `kubectl apply` to the state `ready`."""
    took = seconds(lambda: start(kubectl, prompt))
    run(kubectl, "delete", "raycluster", "bench", "--cascade=foreground")
    return took


def bare(directory: str) -> float:
    """Seconds of the two commands together; the hosts are there before."""
    from helpers.rayhost.hosts import Hosts

    with contextlib.redirect_stdout(io.StringIO()):
        hosts = Hosts(f"bench-{os.getpid()}-{time.monotonic_ns()}", log=Path(directory) / "hosts.log")
        try:
            head, worker = hosts.add("head"), hosts.add("worker")

            def work() -> None:
                head.run(HEAD, quiet=True)
                worker.run(WORKER.format(address=f"head:{head.ports['gcs']}"), quiet=True)

            return seconds(work)
        finally:
            hosts.close()


def main() -> None:
    if sys.platform != "linux":
        print("– RayCluster: the embedded cluster needs Linux; nothing was measured")
        return
    with tempfile.TemporaryDirectory(prefix="course-bench-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        with embedded(directory) as kubectl:
            pairs = [(by_kuberay(kubectl, prompt=True), bare(directory)) for _ in range(PAIRS)]
            usual_s = median(by_kuberay(kubectl, prompt=False) for _ in range(PAIRS))
    kuberay_s, bare_s = (median(column) for column in zip(*pairs, strict=True))
    ratio = median(mine / theirs for mine, theirs in pairs)
    beside = f"medians of {PAIRS}: {kuberay_s:.1f} s, and {bare_s:.1f} s for two bare `ray start`s"
    print(f"– RayCluster, head and worker, with KubeRay's own probes: {usual_s:.1f} s; {ELSEWHERE}")
    finish(report("RayCluster, head and worker ready", ratio, BOUND, beside, "times"))


if __name__ == "__main__":
    main()

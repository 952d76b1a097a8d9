"""A timeline outlives the API server, and loses nothing of what came before and after."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from helpers.kube import Kube, KubeError, Resource
from helpers.observe.recorder import GONE, Recorder
from helpers.observe.timeline import ADDED, DELETED, Timeline
from helpers.wait import wait_until
from tests.live.contract import Cluster, Place, place

if TYPE_CHECKING:
    from helpers.cluster.embedded.cluster import EmbeddedCluster

pytestmark = [pytest.mark.live, pytest.mark.any_backend]
SOON_S = 60.0


class Counting(Kube):
    """Counts how often the API server did not go back as far as it was asked to."""

    gone = 0

    def watch(self, resource: Resource, namespace: str, *rest: Any) -> Iterator[dict]:
        try:
            yield from super().watch(resource, namespace, *rest)
        except KubeError as error:
            self.gone += error.status == GONE
            raise


def sleeper(name: str) -> dict[str, Any]:
    """A Pod of the RayCluster `watched`, as far as its labels say so, that does nothing."""
    labels = {"ray.io/cluster": "watched", "ray.io/group": "cpu", "ray.io/node-type": "worker"}
    container = {"name": "ray-worker", "image": "busybox:1.36", "command": ["sleep", "infinity"]}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def come_and_go(here: Place, name: str) -> None:
    """A Pod that comes to run, and is deleted."""
    here.cluster.must("-n", here.namespace, "apply", "-f", "-", stdin=yaml.safe_dump(sleeper(name)))
    here.see(f"pod/{name}", {"status": {"phase": "Running"}})
    here.kubectl("delete", "pod", name)


def test_the_api_server_restarts_twice(kubernetes: Cluster, request: pytest.FixtureRequest) -> None:
    if os.environ["COURSE_BACKEND"] != "embedded":
        pytest.skip("only the embedded cluster's API server is a process of ours to kill")
    embedded: EmbeddedCluster = request.getfixturevalue("embedded")
    kube = Counting(kubernetes.kubeconfig)
    with place(kubernetes, "restarts") as here:
        recorder = Recorder(kube, here.namespace)
        seen = recorder.start(Timeline("raycluster/watched", recorder.now()))
        come_and_go(here, "before")
        for number in range(2):
            kill_the_api_server(embedded)
            come_and_go(here, f"after-{number}")
        recorder.stop()
    print(f"{len(seen.records)} records, {kube.gone} times the API server did not go back so far", *seen.gaps, sep="\n")
    told = [(record.name, record.change) for record in seen.records if record.kind == "Pod"]
    for name in ("before", "after-0", "after-1"):
        assert told.count((name, ADDED)) == told.count((name, DELETED)) == 1, told
        states = [record.data["status"].get("phase") for record in seen.records if record.name == name]
        assert "Running" in states, states
    assert not [gap for gap in seen.gaps if "could not be watched" not in gap]


def kill_the_api_server(embedded: EmbeddedCluster) -> None:
    before = embedded.status()["kube-apiserver"]
    os.kill(before.pid, signal.SIGKILL)

    def is_back() -> bool:
        now = embedded.status()["kube-apiserver"]
        assert now.is_ready and now.restarts == before.restarts + 1, f"{now}"
        return True

    wait_until(is_back, SOON_S, what="the API server to be back")

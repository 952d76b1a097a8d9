"""`why` names faults that are made on a live cluster; and of a cluster that starts, that it is well."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers import versions
from helpers.kube import Kube
from helpers.observe.diagnose import Diagnosis, why
from helpers.observe.live import snapshot_of
from tests.live.contract import Cluster, Place, place

pytestmark = [pytest.mark.live, pytest.mark.any_backend]
SMALL, ELASTIC = ((Path(__file__).parent / "kuberay" / f"{name}.yaml").read_text() for name in ("small", "autoscaling"))
SAID_S = 120.0
RAY_S = 240.0
SOAK = bool(os.environ.get("COURSE_SOAK"))
patient = pytest.mark.skipif(not SOAK, reason="shows after two or three minutes: `make soak` waits for it")
OTHER_RAY = "2.59.0"
# A task's result that is kept where it was made, while nothing works
HOLDER = """
import time, ray
ray.init()

@ray.remote(num_cpus=0, num_gpus=1)
def large():
    return bytes(20_000_000)

held = large.remote()
ray.wait([held], fetch_local=False)
time.sleep(3600)
"""
QUOTA = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-pods"}, "spec": {"hard": {"pods": "0"}}}


def small(change: Callable[[dict, dict], None]) -> dict[str, Any]:
    """The small RayCluster, with its head's and its worker's Pod changed."""
    cluster = yaml.safe_load(SMALL)
    spec = cluster["spec"]
    change(spec["headGroupSpec"]["template"]["spec"], spec["workerGroupSpecs"][0]["template"]["spec"])
    return cluster


def in_the_way(head: dict, worker: dict) -> None:
    """Only the machine with GPUs, whose taint nobody here tolerates."""
    for pod in (head, worker):
        pod["nodeSelector"] = {"ray-course/gpus": "fake"}


def mistyped(head: dict, worker: dict) -> None:
    # not in the tag: on the embedded cluster every tag of rayproject/ray is the host's Ray
    head["containers"][0]["image"] = "rayproject/rey:2.60.0-py311"


FAULTS = {
    "quota": ([QUOTA, small(lambda head, worker: None)], {"quota-exceeded"}),
    # nothing makes machines here, and after some minutes of silence that is said instead
    "taint": ([small(in_the_way)], {"insufficient-node-capacity", "no-node-autoscaler"}),
    "image": ([small(mistyped)], {"image-pull-failed"}),
}


def apply(here: Place, *things: dict[str, Any]) -> None:
    words = ("-n", here.namespace, "apply", "--server-side", "-f", "-")
    here.cluster.must(*words, stdin=yaml.safe_dump_all(things))


def diagnosis(here: Place, target: str = "raycluster/small") -> Diagnosis:
    return why(snapshot_of(Kube(here.cluster.kubeconfig), here.namespace, target), target)


def see_named(here: Place, causes: set[str], target: str = "raycluster/small", limit_s: float = SAID_S) -> Diagnosis:
    """Wait until one of the causes is told first, with what shows it and what mends it."""

    def is_named() -> Diagnosis:
        found = diagnosis(here, target)
        assert found.cause in causes, found.cause
        return found

    found = here.wait("the cause", is_named, limit_s)
    print(found)
    assert found.first.evidence and found.first.fix
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(kubernetes: Cluster, name: str) -> None:
    things, causes = FAULTS[name]
    with place(kubernetes, f"why-{name}") as here:
        apply(here, *things)
        see_named(here, causes)


def down() -> dict[str, Any]:
    """A cluster whose head's Pod runs, and no Ray in it."""
    cluster = small(lambda head, worker: head["containers"][0].update(command=["sleep"], args=["infinity"]))
    cluster["metadata"]["annotations"] = {"ray.io/overwrite-container-cmd": "true"}
    return cluster


def of_two_rays(folder: Path) -> dict[str, Any]:
    """A cluster whose worker finds another Ray than the head's."""

    def with_other(head: dict, worker: dict) -> None:
        worker["volumes"] = [{"name": "other", "hostPath": {"path": str(folder)}}]
        [ray] = worker["containers"]
        ray["volumeMounts"] = [{"name": "other", "mountPath": "/other"}]
        ray["env"] = [{"name": "PYTHONPATH", "value": "/other"}]

    return small(with_other)


@pytest.fixture(scope="module")
def slow_faults(kubernetes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    """Clusters, each in a namespace of its own, with faults that show after minutes: all of them at once."""
    things = {"held": yaml.safe_load(ELASTIC)}
    if SOAK:
        things["head"] = down()
    if SOAK and os.environ["COURSE_BACKEND"] == "embedded":  # only its machines see folders of this computer
        things["version"] = of_two_rays(another_ray(tmp_path_factory.mktemp("ray")))
    with contextlib.ExitStack() as stack:
        places = {name: stack.enter_context(place(kubernetes, f"why-{name}")) for name in things}
        for name, here in places.items():
            apply(here, things[name])
        yield places


def another_ray(folder: Path) -> Path:
    """A folder with another Ray than the course's, for the same Python."""
    assert OTHER_RAY != versions.RAY
    words = ("install", "--quiet", "--no-deps", "--target", str(folder), f"ray=={OTHER_RAY}")
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=RAY_S)
    return folder


def test_a_worker_that_an_object_keeps(slow_faults: dict[str, Place]) -> None:
    """Its idle timeout is long over, and the driver holds what the worker made."""
    here = slow_faults["held"]
    here.see("raycluster/elastic", {"status": {"state": "ready"}}, RAY_S)
    [head] = here.cluster.get(here.url("pod"), labelSelector="ray.io/node-type=head")["items"]
    begin = "cat > /tmp/holder.py; nohup python /tmp/holder.py > /tmp/complained 2>&1 &"
    words = ("exec", "-i", head["metadata"]["name"], "-c", "ray-head", "--", "sh", "-c", begin)
    assert here.kubectl(*words, stdin=HOLDER).returncode == 0
    see_named(here, {"pinned-by-object-refs"}, "raycluster/elastic", limit_s=RAY_S)


@patient
def test_a_worker_with_another_ray(slow_faults: dict[str, Place]) -> None:
    """It finds the head, and Ray itself refuses it; KubeRay's init container says so after two minutes."""
    if "version" not in slow_faults:
        pytest.skip("only the embedded cluster's machines see folders of this computer")
    found = see_named(slow_faults["version"], {"version-mismatch"}, limit_s=RAY_S)
    assert any(OTHER_RAY in evidence.text for evidence in found.first.evidence)


@patient
def test_workers_that_wait_for_a_head_that_is_down(slow_faults: dict[str, Place]) -> None:
    see_named(slow_faults["head"], {"head-not-ready"}, limit_s=RAY_S)


def test_a_start_is_no_fault(kubernetes: Cluster) -> None:
    with place(kubernetes, "why-start") as here:
        apply(here, yaml.safe_load(SMALL))
        told = set()

        def is_ready() -> bool:
            told.add(diagnosis(here).cause)
            return (here.get("raycluster/small").get("status") or {}).get("state") == "ready"

        here.wait("the RayCluster", is_ready, 240)
        told.add(diagnosis(here).cause)
        assert told == {"no-fault"}

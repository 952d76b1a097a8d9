"""`why` names faults that are made on a live cluster, without Ray; and of a cluster that starts, that it is well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.kube import Kube
from helpers.observe.diagnose import Diagnosis, why
from helpers.observe.live import snapshot_of
from tests.live.contract import Cluster, Place, place

pytestmark = [pytest.mark.live, pytest.mark.any_backend]
SMALL = (Path(__file__).parent / "kuberay" / "small.yaml").read_text()
SAID_S = 120.0
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


def diagnosis(kubernetes: Cluster, here: Place) -> Diagnosis:
    return why(snapshot_of(Kube(kubernetes.kubeconfig), here.namespace, "raycluster/small"), "raycluster/small")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(kubernetes: Cluster, name: str) -> None:
    things, causes = FAULTS[name]
    with place(kubernetes, f"why-{name}") as here:
        words = ("-n", here.namespace, "apply", "--server-side", "-f", "-")
        kubernetes.must(*words, stdin=yaml.safe_dump_all(things))

        def is_named() -> Diagnosis:
            found = diagnosis(kubernetes, here)
            assert found.cause in causes, found.cause
            return found

        found = here.wait("the cause", is_named, SAID_S)
        print(found)
        assert found.first.evidence and found.first.fix


def test_a_start_is_no_fault(kubernetes: Cluster) -> None:
    with place(kubernetes, "why-start") as here:
        words = ("-n", here.namespace, "apply", "--server-side", "-f", "-")
        kubernetes.must(*words, stdin=SMALL)
        told = set()

        def is_ready() -> bool:
            told.add(diagnosis(kubernetes, here).cause)
            return (here.get("raycluster/small").get("status") or {}).get("state") == "ready"

        here.wait("the RayCluster", is_ready, 240)
        told.add(diagnosis(kubernetes, here).cause)
        assert told == {"no-fault"}

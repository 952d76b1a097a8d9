"""The planner says what the live autoscaler does: twelve demands at once, each with resources and groups of its own.

No worker ever runs: its Pod asks for a Kubernetes node that there is not. What counts is how many Pods are asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from helpers.model.demand import Demand, Gang
from helpers.model.planner import plan
from tests.live.contract import Cluster, place

pytestmark = [pytest.mark.live, pytest.mark.any_backend]
RAY_S = 240.0
GIB = 2**30


@dataclass(frozen=True)
class Scene:
    """A demand, and the groups that have its resource, which no other scene asks for.

    Attributes:
        groups: name → (how much of the resource a worker has, what else its group says).
    """

    groups: dict[str, tuple[int, dict[str, Any]]]
    tasks: tuple[Demand, ...] = ()
    gangs: tuple[Gang, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


def most(count: int, **more: Any) -> dict[str, Any]:
    return {"maxReplicas": count, **more}


SCENES = {
    "tasks": Scene({"tasks-a": (2, most(9))}, (Demand({"CPU": 1, "tasks": 1}, 5),)),
    "full": Scene({"full-a": (1, most(3))}, (Demand({"CPU": 1, "full": 1}, 7),)),
    "big": Scene({"big-a": (1, most(9)), "big-b": (4, most(9))}, (Demand({"CPU": 1, "big": 3}, 2),)),
    "spread": Scene({"spread-a": (4, most(9))}, gangs=(Gang("STRICT_SPREAD", (Demand({"spread": 1}, 3),)),)),
    "pack": Scene({"pack-a": (2, most(9))}, gangs=(Gang("STRICT_PACK", (Demand({"pack": 1}, 2),), 2),)),
    "loose": Scene({"loose-a": (2, most(9))}, gangs=(Gang("PACK", (Demand({"loose": 1}, 5),)),)),
    "never": Scene({"never-a": (2, most(9))}, (Demand({"CPU": 1, "never": 5}, 2),)),
    "spared": Scene(
        {"spared-gpu": (1, most(9, gpus=1)), "spared-cpu": (1, most(9))}, (Demand({"CPU": 1, "spared": 1}, 2),)
    ),
    "floor": Scene({"floor-a": (1, most(9, minReplicas=2))}),
    "parts": Scene({"parts-a": (1, most(9))}, (Demand({"parts": 0.5}, 5),)),
    "zone": Scene(
        {"zone-east": (2, most(9, labels={"zone": "east"})), "zone-west": (2, most(9, labels={"zone": "west"}))},
        (Demand({"CPU": 1, "zone": 1}, 3, {"zone": "west"}),),
    ),
    "memory": Scene({"memory-a": (9, most(9))}, (Demand({"memory": 0.75 * GIB, "memory_": 1}, 3),)),
}
# a driver whose tasks and groups wait until it ends
DRIVER = """
import json, sys, time, ray
from ray.util.placement_group import placement_group
ray.init(log_to_driver=False)

@ray.remote(num_cpus=0)
def never():
    pass

tasks, gangs = json.loads(sys.argv[1])
waiting = []
for amounts, count, labels in tasks:
    told = {"num_cpus": amounts.pop("CPU", 0), "memory": amounts.pop("memory", 0) or None, "resources": amounts}
    waiting += [never.options(**told, label_selector=labels or None).remote() for _ in range(count)]
for strategy, bundles, count in gangs:
    waiting += [placement_group(bundles, strategy) for _ in range(count)]
time.sleep(600)
"""


def own(name: str) -> str:
    """The name of a scene's resource: `memory` is one of Ray's own."""
    return "memory_" if name == "memory" else name


def raycluster() -> dict[str, Any]:
    image = "rayproject/ray:2.60.0-py311"
    groups = []
    for scene, one in SCENES.items():
        for name, (amount, more) in one.groups.items():
            said = dict(more)
            limits = {"cpu": 2, "memory": "2Gi"} | ({"nvidia.com/gpu": said.pop("gpus")} if "gpus" in said else {})
            container = {"name": "ray-worker", "image": image, "resources": {"limits": limits}}
            pod = {"nodeSelector": {"ray-course/nowhere": "true"}, "containers": [container]}
            resources = json.dumps(json.dumps({own(scene): amount}))
            groups.append(
                {"groupName": name, "minReplicas": 0, **said, "rayStartParams": {"resources": resources},
                 "template": {"spec": pod}}
            )  # fmt: skip
    head = {"name": "ray-head", "image": image, "resources": {"limits": {"cpu": 1, "memory": "2Gi"}}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "asked"},
        "spec": {
            "rayVersion": "2.60.0",
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {"version": "v2"},
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": {"containers": [head]}}},
            "workerGroupSpecs": groups,
        },
    }


def test_twelve_demands(kubernetes: Cluster) -> None:
    manifest = raycluster()
    tasks = [demand for scene in SCENES.values() for demand in scene.tasks]
    gangs = [gang for scene in SCENES.values() for gang in scene.gangs]
    made = plan(manifest, tasks, placement_groups=gangs)
    wanted = {name: made.launch.get(name, 0) for scene in SCENES.values() for name in scene.groups}
    print(made, wanted, sep="\n")
    assert sum(map(bool, wanted.values())) >= len(SCENES) - 1, "only what nothing can have launches nothing"
    asked = [
        [[dict(one.resources), one.count, dict(one.labels)] for one in tasks],
        [[one.strategy, [dict(bundle.resources) for bundle in one.each], one.count] for one in gangs],
    ]
    with place(kubernetes, "planner") as here:
        kubernetes.must("-n", here.namespace, "apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(manifest))
        head = here.wait("the head", lambda: here.cluster.get(
            here.url("pod"), labelSelector="ray.io/node-type=head")["items"], RAY_S)[0]["metadata"]["name"]  # fmt: skip
        here.see(f"pod/{head}", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, RAY_S)
        begin = 'cat > /tmp/driver.py; nohup python /tmp/driver.py "$0" > /tmp/said 2>&1 &'
        here.kubectl("exec", "-i", head, "-c", "ray-head", "--", "bash", "-c", begin, json.dumps(asked), stdin=DRIVER)

        def pods() -> dict[str, int]:
            found = here.cluster.get(here.url("pod"), labelSelector="ray.io/node-type=worker")["items"]
            groups = Counter(pod["metadata"]["labels"]["ray.io/group"] for pod in found)
            return {name: groups[name] for name in wanted}

        def is_so() -> bool:
            found = pods()
            wrong = {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]}
            assert not wrong, f"Pods, and what was planned: {wrong}"
            return True

        here.wait("what was planned", is_so, RAY_S)
        # and it stays so: two more looks of the autoscaler, at the least
        looks = [pods() for _ in range(2) if here.wait("another look", _after(12), 30)]
        assert looks == [wanted, wanted]


def _after(seconds: float) -> Any:
    from time import monotonic

    end = monotonic() + seconds
    return lambda: monotonic() >= end

"""`course why`: from a saved dump of 50 Pods to the cause in less than 2 s."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from _figure import finish, python_loop, report, side_by_side

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.observe.diagnose import why
from helpers.observe.snapshot import from_text
from tests.unit.dumps import cluster, event, group, head, pod, status

BOUND_S = 2.0
PODS, EVENTS = 50, 500

names = [f"sky-small-worker-{number:05}" for number in range(PODS)]
objects = [cluster("sky", group(replicas=PODS, most=PODS)), head(), *map(pod, names)]
objects += [
    event("RayCluster", "sky", "CreatedWorkerPod", f"Created worker Pod ml/{names[number % PODS]}", seconds=number)
    for number in range(EVENTS)
]
demands = " {'CPU': 1.0}: 400+ pending tasks/actors"
dump = yaml.safe_dump(
    {
        "objects": yaml.safe_dump({"apiVersion": "v1", "items": objects, "kind": "List"}),
        "now": "2026-05-04T12:00:00Z",
        "ray_status": status(active=f" 1 headgroup\n {PODS} small", usage=" 200.0/200.0 CPU", demands=demands),
    }
)


def the_cause() -> None:
    assert why(from_text(dump)).cause == "max-replicas-reached"


took, loop = side_by_side(the_cause, python_loop, times=5)
beside = f"a loop of 100 000 turns: {loop * 1000:.3g} ms"
finish(report(f"why, of {PODS} Pods and {EVENTS} events", took, BOUND_S, beside, "s"))

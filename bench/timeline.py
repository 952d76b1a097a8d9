"""A timeline's plot: at most 0.3 s for 50 worker Pods that come and go."""

from __future__ import annotations

from _figure import finish, python_loop, report, side_by_side

from helpers.observe.timeline import ADDED, CHANGED, DELETED, HERE, STATE, Record
from helpers.widgets.timeline import Drawn

BOUND_S, PODS = 0.3, 50


def story() -> Drawn:
    """A made-up timeline: Pods that come one a second, are scheduled, Ready, and go, with Ray's own account beside."""
    found = Drawn("raycluster/demo", 0.0)

    def note(at: float, kind: str, name: str, change: str, data: dict) -> None:
        found.records.append(Record(at, "watch", change, kind, name, at, HERE, data))

    for number in range(PODS):
        name, begin = f"worker-{number}", float(number)
        labels = {"ray.io/cluster": "demo", "ray.io/group": "cpu", "ray.io/node-type": "worker"}
        pod = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "ray-worker"}]}}
        for step in range(8):
            so_far = ("PodScheduled", "Initialized", "ContainersReady", "Ready")[: step // 2]
            conditions = [{"type": kind, "status": "True"} for kind in so_far]
            note(
                begin + step, "Pod", name, ADDED if step == 0 else CHANGED, pod | {"status": {"conditions": conditions}}
            )
        note(begin + 60, "Pod", name, DELETED, pod)
    for second in range(2 * PODS):
        nodes = [{"pod": f"worker-{number}", "idle": number % 2 == 0, "used": {}} for number in range(second % PODS)]
        wanted = [{"resources": {"CPU": 1.0}, "count": PODS - second % PODS}]
        note(second, "Ray", "demo", STATE, {"nodes": nodes, "demand": wanted})
    found.records.sort(key=lambda record: record.seen)
    found.end = found.until()
    return found


made = story()
made.plot("pods")  # matplotlib is loaded by the first figure, which is not what is measured
figure, beside = side_by_side(made.plot, python_loop, 5)
finish(report(f"the plot of {len(made.records)} records", figure, BOUND_S, f"a loop of 100,000 turns: {beside:.3g} s"))

"""The planner: 1,000 tasks and actors on 100 Ray nodes in less than 1 s, once Ray is imported; a slider in 50 ms."""

from __future__ import annotations

from _figure import finish, python_loop, report, seconds, side_by_side

from helpers.model.demand import Demand
from helpers.model.planner import NodeGroup, Running, plan
from helpers.state import course_root
from helpers.widgets.planner import planner

BOUND_S, SLIDER_S = 1.0, 0.05
DEMO = course_root() / "manifests" / "03-raycluster" / "demo.yaml"
GIB = 2**30
GROUPS = [
    NodeGroup("small", {"CPU": 4, "memory": 16 * GIB}, most=200),
    NodeGroup("large", {"CPU": 16, "memory": 64 * GIB}, most=100),
    NodeGroup("gpu", {"CPU": 12, "GPU": 1, "memory": 80 * GIB}, most=50),
]
MIXED = [
    Demand({"CPU": 1}, 600),
    Demand({"CPU": 4, "memory": 8 * GIB}, 200),
    Demand({"GPU": 0.5}, 100),
    Demand({"CPU": 2}, 100),
]
SHAPES = [Demand({"CPU": 1 + number / 100}, 10) for number in range(100)]
EACH_OTHER = [Demand({"CPU": 1 + number / 1000}) for number in range(1000)]
FREE = [Running("small", 60), Running("large", 20), Running("gpu", 20)]
IN_USE = [Running("small", 12, {"CPU": number / 2, "memory": number * GIB}) for number in range(5)]
IN_USE += [Running("large", 4, {"CPU": 3 * number, "memory": 9 * number * GIB}) for number in range(5)]
IN_USE += [Running("gpu", 4, {"CPU": number, "GPU": number / 4, "memory": 40 * GIB}) for number in range(5)]
PENDING = {"small": 60, "large": 20, "gpu": 20}

first = seconds(lambda: plan(GROUPS, "{CPU:1}"))
scenes = {
    "a mix, on free ones": lambda: plan(GROUPS, MIXED, running=FREE),
    "a mix, on ones in use": lambda: plan(GROUPS, MIXED, running=IN_USE),
    "a mix, on pending ones": lambda: plan(GROUPS, MIXED, pending=PENDING),
    "a mix, by v1": lambda: plan(GROUPS, MIXED, running=FREE, version="v1"),
    "100 shapes": lambda: plan(GROUPS, SHAPES, running=FREE),
}
sliders = planner(DEMO.read_text(), ["4×{CPU:1}", "2×{GPU:1}"]).widget.children


def move() -> None:
    sliders[0].value = 4 if sliders[0].value == 5 else 5


figures = {name: side_by_side(work, python_loop, times=5) for name, work in scenes.items()}
print(f"– the first plan, with the import of Ray: {first:.3g} s")
each_other = seconds(lambda: plan(GROUPS, EACH_OTHER, running=FREE))
print(f"– 1,000 of which no two are alike: {each_other:.3g} s, the time of Ray's own loop")
moved, loop = side_by_side(move, python_loop, times=9)
finish(
    report("planner: a slider is moved", moved, SLIDER_S, f"a loop of 100 000 turns: {loop * 1000:.3g} ms"),
    *(
        report(f"plan: {name}", took, BOUND_S, f"a loop of 100 000 turns: {loop * 1000:.3g} ms")
        for name, (took, loop) in figures.items()
    ),
)

"""The planner: 1,000 tasks and actors on 100 Ray nodes in less than 1 s, and Ray's import once."""

from __future__ import annotations

from _figure import finish, python_loop, report, seconds, side_by_side

from helpers.model.demand import Demand
from helpers.model.planner import NodeGroup, Running, plan

BOUND_S = 1.0
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
ALL_OTHER = [Demand({"CPU": 1 + number / 1000}) for number in range(1000)]
FREE = [Running("small", 60), Running("large", 20), Running("gpu", 20)]
# each has something else free: the scheduler must look at every one of them
IN_USE = [Running("small", 1, {"CPU": 1 + number / 50, "memory": 8 * GIB}) for number in range(100)]
PENDING = {"small": 60, "large": 20, "gpu": 20}

first = seconds(lambda: plan(GROUPS, "{CPU:1}"))
scenes = {
    "a mix, on free ones": lambda: plan(GROUPS, MIXED, running=FREE),
    "a mix, on ones in use": lambda: plan(GROUPS, MIXED, running=IN_USE),
    "a mix, on pending ones": lambda: plan(GROUPS, MIXED, pending=PENDING),
    "a mix, by v1": lambda: plan(GROUPS, MIXED, running=FREE, version="v1"),
    "1,000 different": lambda: plan(GROUPS, ALL_OTHER, running=FREE),
}
figures = {name: side_by_side(work, python_loop, times=5) for name, work in scenes.items()}
print(f"– the first plan, with the import of Ray: {first:.3g} s")
finish(
    *(
        report(f"plan: {name}", took, BOUND_S, f"a loop of 100 000 turns: {loop * 1000:.3g} ms")
        for name, (took, loop) in figures.items()
    )
)

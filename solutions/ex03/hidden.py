"""Other inputs for exercise 03: only the grader's process sees this file, so that an answer for the examples fails.

Each variation is of the kind of its case and of no other: who misses one point of a question must not lose a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from helpers.grading.suites.ex03 import group_of, returns

Function = Callable[[dict], Any]


def _amounts(rng: random.Random) -> dict[str, str]:
    """CPUs and memory that are whole, each in one of the ways to write it."""
    cpus, gib = rng.randint(1, 32), rng.randint(1, 64)
    memory = rng.choice([f"{gib}Gi", f"{gib * 1024}Mi", f"{gib * 1024**2}Ki", str(gib * 1024**3), f"{gib}G"])
    return {"cpu": rng.choice([str(cpus), f"{cpus * 1000}m"]), "memory": memory}


def alike(answer: Function, rng: random.Random) -> None:
    amounts = _amounts(rng)
    returns(answer, group_of(limits=amounts, requests=amounts, replicas=rng.randint(1, 4)))


def limits_above(answer: Function, rng: random.Random) -> None:
    cpus, gib = rng.randint(2, 16), rng.randint(2, 32)
    low = {"cpu": str(rng.randint(1, cpus - 1)), "memory": f"{rng.randint(1, gib - 1)}Gi"}
    returns(answer, group_of(limits={"cpu": str(cpus), "memory": f"{gib}Gi"}, requests=low))


def not_whole(answer: Function, rng: random.Random) -> None:
    cpus = rng.choice([f"{rng.randint(1, 9)}{rng.choice('1379')}00m", f"{rng.randint(1, 9)}.{rng.choice('257')}"])
    returns(answer, group_of(limits={"cpu": cpus, "memory": f"{rng.randint(1, 9)}Gi"}))


def cpus_in_requests(answer: Function, rng: random.Random) -> None:
    amounts = _amounts(rng)
    returns(answer, group_of(limits={"memory": amounts["memory"]}, requests=amounts))


def memory_in_requests(answer: Function, rng: random.Random) -> None:
    amounts = _amounts(rng)
    returns(answer, group_of(limits={"cpu": amounts["cpu"]}, requests=amounts))


def other_makers(answer: Function, rng: random.Random) -> None:
    name = rng.choice(["amd.com/gpu", "example.com/gpu", "habana.example/xgpu"])
    count = rng.randint(1, 8)
    returns(answer, group_of(limits=_amounts(rng) | {name: rng.choice([count, str(count)])}))


def params(answer: Function, rng: random.Random) -> None:
    told = {"num-cpus": str(rng.randint(33, 64)), "num-gpus": str(rng.randint(0, 3)), "memory": str(rng.randint(1, 99))}
    kept = rng.sample(sorted(told), rng.randint(1, 3))
    limits = _amounts(rng) | {"nvidia.com/gpu": rng.randint(4, 8)}
    returns(answer, group_of(limits=limits, params={name: told[name] for name in kept}))


def too_many(answer: Function, rng: random.Random) -> None:
    most = rng.randint(1, 9)
    bounds = (rng.randint(0, most), most)
    returns(answer, group_of(limits=_amounts(rng), replicas=most + rng.randint(1, 9), bounds=bounds))


def not_written(answer: Function, rng: random.Random) -> None:
    least = rng.randint(0, 5)
    returns(answer, group_of(limits=_amounts(rng), replicas=None, bounds=(least, least + rng.randint(1, 5))))


VARIATIONS: dict[str, dict[str, Callable[[Any, random.Random], None]]] = {
    "q5": {
        "limits and requests alike": alike,
        "limits above the requests": limits_above,
        "a CPU limit that is not whole": not_whole,
        "CPUs in the requests only": cpus_in_requests,
        "memory in the requests only": memory_in_requests,
        "a GPU of another maker": other_makers,
        "what rayStartParams say": params,
        "more replicas than the group may have": too_many,
        "no replicas written": not_written,
    }
}

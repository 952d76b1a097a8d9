"""Other inputs for exercise 01: only the grader's process sees this file, so that an answer for the examples fails.

Each variation is of the kind of its case and of no other: who misses one point of a question must not lose a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from helpers.grading.suites.ex01 import returns

Function = Callable[[dict, dict], Any]


def right(hosts: dict[str, dict[str, int]], demand: dict[str, float]) -> int:
    """How many fit, in exact fractions."""
    exact = {name: Fraction(str(amount)) for name, amount in demand.items() if amount}
    return sum(min(offers.get(name, 0) // amount for name, amount in exact.items()) for offers in hosts.values())


def _judge(answer: Function, hosts: dict[str, dict[str, int]], demand: dict[str, float]) -> None:
    returns(answer, hosts, demand, right(hosts, demand))


def _named(rng: random.Random, offers: list[dict[str, int]]) -> dict[str, dict[str, int]]:
    rng.shuffle(offers)
    first = rng.randint(1, 90)
    return {f"worker-{first + place}": offer for place, offer in enumerate(offers)}


def leftovers(answer: Function, rng: random.Random) -> None:
    need = rng.randint(3, 9)
    # more than half a task is left over on each of two Ray nodes, so together they seem to have room for one more
    offers = [need * rng.randint(1, 4) + need // 2 + 1 for _ in range(2)]
    offers += [need * rng.randint(1, 4) for _ in range(rng.randint(0, 3))]
    _judge(answer, _named(rng, [{"CPU": cpus} for cpus in offers]), {"CPU": need})


def two_resources(answer: Function, rng: random.Random) -> None:
    cpus, gpus = rng.randint(2, 5), rng.randint(1, 2)
    count = rng.randint(2, 4)
    spare = rng.randint(3, 6)
    both = {"CPU": cpus * count, "GPU": gpus * (count + spare)}
    offers = [both] + [{"CPU": cpus * rng.randint(3, 6), "GPU": 0} for _ in range(rng.randint(1, 3))]
    _judge(answer, _named(rng, offers), {"CPU": cpus, "GPU": gpus})


def undeclared(answer: Function, rng: random.Random) -> None:
    name = rng.choice(["fast_disk", "licence", "tape", "TPU"])
    need = rng.randint(1, 3)
    offers = [{"CPU": rng.randint(20, 40), name: need * rng.randint(2, 6)}]
    offers += [{"CPU": rng.randint(1, 9)} for _ in range(rng.randint(1, 3))]
    _judge(answer, _named(rng, offers), {"CPU": 1, name: need})


def zero(answer: Function, rng: random.Random) -> None:
    need = rng.randint(2, 4)
    offers = [{"CPU": 0, "GPU": need * rng.randint(2, 6)}]
    offers += [{"CPU": rng.randint(1, 9), "GPU": 1} for _ in range(rng.randint(1, 3))]
    _judge(answer, _named(rng, offers), {"CPU": 0, "GPU": need})


def quarters(answer: Function, rng: random.Random) -> None:
    # exact in binary, so that this is about shares alone
    _judge(answer, _named(rng, [{"GPU": rng.randint(1, 9)}]), {"GPU": rng.choice([0.25, 0.75, 0.125])})


def tenths(answer: Function, rng: random.Random) -> None:
    # those where `//` on floats is one short
    offer, need = rng.choice([(1, 0.1), (2, 0.1), (4, 0.1), (6, 0.1), (1, 0.2), (3, 0.2), (2, 0.4)])
    _judge(answer, _named(rng, [{"GPU": offer}]), {"GPU": need})


def nothing_fits(answer: Function, rng: random.Random) -> None:
    need = rng.randint(3, 9)
    offers = [{"CPU": rng.randint(need // 2 + 1, need - 1)} for _ in range(rng.randint(2, 4))]
    _judge(answer, _named(rng, offers), {"CPU": need})


VARIATIONS: dict[str, dict[str, Callable[[Any, random.Random], None]]] = {
    "q4": {
        "two Ray nodes with something left on each": leftovers,
        "two resources, both on the same Ray node": two_resources,
        "a Ray node that does not declare a resource": undeclared,
        "an amount of 0": zero,
        "a quarter of a GPU each": quarters,
        "a tenth of a GPU each": tenths,
        "more than any Ray node has": nothing_fits,
    }
}

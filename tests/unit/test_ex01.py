"""Exercise 01: what is right passes, each wrong answer that people give is told from it, and nothing is given away."""

from __future__ import annotations

import functools
import json
import math
import random
import re
from fractions import Fraction

import nbformat
import pytest

from helpers.grading import evidence
from helpers.grading.check import find_suite, run
from helpers.grading.suites import ex01
from helpers.state import course_root
from tests.unit import authored

ROOT = course_root()
QUESTIONS = ("q1", "q2", "q3", "q4")
LIVE = "q1_run"
HIDDEN = "q4"  # has hidden variations
cell = functools.partial(authored.cell, "ex01")


# ---- right answers

JOIN = "ray start --address=head:6379"
SHAPE = {
    "head": "ray start --head --num-cpus=0 --labels=tier=control",
    "gpu-1": f"{JOIN} --num-cpus=2 --num-gpus=2",
    "disk-1": f"{JOIN} --num-cpus=4 --resources='{{\"fast_disk\": 1}}'",
}
PLACES = {
    "load": ["cpu-1"],
    "join": "waits",
    "ping": ["head", "cpu-1", "gpu-1"],
    "infer": ["gpu-1"],
    "tune": "fails",
    "scan": "waits",
    "report": ["cpu-1"],
}
FATES = {
    "resize": "runs again",
    "charge": "lost",
    "counter": "starts anew",
    "registry": "lost",
    "table": "rebuilt",
    "sample": "lost",
    "config": "unharmed",
    "audit": "lost",
}


def in_steps(hosts, demand):
    steps = {name: round(amount * 10_000) for name, amount in demand.items() if amount > 0}
    fitting = (
        min(offers.get(name, 0) * 10_000 // amount for name, amount in steps.items()) for offers in hosts.values()
    )
    return sum(fitting)


def one_by_one(hosts, demand):
    """Puts tasks on Ray nodes until none fits any more."""
    count = 0
    asked = {name: Fraction(str(amount)) for name, amount in demand.items() if amount}
    for offers in hosts.values():
        free = {name: Fraction(offers.get(name, 0)) for name in asked}
        while all(free[name] >= amount for name, amount in asked.items()):
            count += 1
            free = {name: free[name] - amount for name, amount in asked.items()}
    return count


def divided(hosts, demand):
    total = 0
    for offers in hosts.values():
        fit = math.inf
        for name, amount in demand.items():
            if amount > 0:
                fit = min(fit, offers.get(name, 0) / amount)
        total += math.floor(fit + 1e-9)
    return float(total)


RIGHT = {
    "q1": [
        SHAPE,
        {  # a dict, another division, and a label and a resource more than needed
            "head": {"num_cpus": 0, "labels": {"tier": "control", "zone": "a"}},
            "gpu-1": {"num_cpus": 5, "num_gpus": 2, "resources": {"licence": 1}},
            "disk-1": {"num-cpus": 1, "--resources": '{"fast_disk": 1}'},
        },
        {  # mixed; options in another order and form
            "head": "RAY_health_check_period_ms=500 ray start --labels 'tier=control' --num-cpus 0 --head --block",
            "gpu-1": {"num_cpus": 3, "num_gpus": 2, "object_store_memory": 100_000_000},
            "disk-1": 'ray start --num-cpus 3 --resources "{\\"fast_disk\\": 1.0}" --address 192.0.2.7:6379',
        },
        SHAPE | {"head": 'ray start --head --num-cpus=0 --labels=\'{"tier": "control"}\''},
    ],
    "q2": [
        PLACES,
        {
            "load": "cpu-1",
            "join": "Pending",
            "ping": {"gpu-1", "head", "cpu-1"},
            "infer": ("GPU_1",),
            "tune": "error",
            "scan": ["waits"],
            "report": {"cpu-1"},
        },
    ],
    "q3": [
        FATES,
        {
            "audit": "dead",
            "config": "survives",
            "sample": "GONE",
            "table": "reconstructed",
            "registry": "dies",
            "counter": "restarted",
            "charge": "lost ",
            "resize": "retried",
        },
    ],
    "q4": [in_steps, one_by_one, divided],
}


# ---- wrong answers, each with the position of the only case that rejects it


def combined_leftovers(hosts, demand):
    """Adds up the Ray nodes where a task fits, and then divides."""
    steps = {name: round(amount * 10_000) for name, amount in demand.items() if amount > 0}
    able = [o for o in hosts.values() if all(o.get(name, 0) * 10_000 >= amount for name, amount in steps.items())]
    return min(sum(o.get(name, 0) for o in able) * 10_000 // amount for name, amount in steps.items())


def each_resource_alone(hosts, demand):
    """Counts for each resource over all Ray nodes."""
    return min(in_steps(hosts, {name: amount}) for name, amount in demand.items() if amount > 0)


def must_be_declared(hosts, demand):
    steps = {name: round(amount * 10_000) for name, amount in demand.items() if amount > 0}
    return sum(min(offers[name] * 10_000 // amount for name, amount in steps.items()) for offers in hosts.values())


def undeclared_is_enough(hosts, demand):
    steps = {name: round(amount * 10_000) for name, amount in demand.items() if amount > 0}
    return sum(
        min(offers[name] * 10_000 // amount for name, amount in steps.items() if name in offers)
        for offers in hosts.values()
    )


def zero_divides(hosts, demand):
    return sum(
        min(offers.get(name, 0) * 10_000 // round(amount * 10_000) for name, amount in demand.items())
        for offers in hosts.values()
    )


def never_without_cpus(hosts, demand):
    return in_steps({name: offers for name, offers in hosts.items() if offers.get("CPU") != 0}, demand)


def counts_in_tenths(hosts, demand):
    asked = {name: round(amount * 10) for name, amount in demand.items() if amount > 0}
    fitting = (min(offers.get(name, 0) * 10 // amount for name, amount in asked.items()) for offers in hosts.values())
    return sum(fitting)


def floor_divided(hosts, demand):
    asked = {name: amount for name, amount in demand.items() if amount > 0}
    return sum(min(offers.get(name, 0) // amount for name, amount in asked.items()) for offers in hosts.values())


def raises_if_none(hosts, demand):
    if not in_steps(hosts, demand):
        raise ValueError("infeasible")
    return in_steps(hosts, demand)


def none_if_none(hosts, demand):
    return in_steps(hosts, demand) or None


def at_least_one(hosts, demand):
    return in_steps(hosts, demand) or 1


MUTANTS = {
    "q1": [
        (0, SHAPE | {"head": "ray start --head --labels=tier=control"}),
        (0, SHAPE | {"head": "ray start --head --num-cpus=1 --labels=tier=control"}),
        (1, SHAPE | {"gpu-1": f"{JOIN} --num-cpus=6 --num-gpus=2"}),
        (1, SHAPE | {"gpu-1": f"{JOIN} --num-gpus=2"}),
        (2, SHAPE | {"disk-1": {"num_cpus": 4, "num_gpus": 2, "resources": {"fast_disk": 1}}}),
        (3, SHAPE | {"gpu-1": f"{JOIN} --num-cpus=2 --num-gpus=1"}),
        (
            3,  # GPUs enough, but not the CPUs that the same tasks ask for
            SHAPE
            | {
                "gpu-1": {"num_cpus": 1, "num_gpus": 2},
                "disk-1": {"num_cpus": 5, "resources": {"fast_disk": 1}},
            },
        ),
        (4, SHAPE | {"gpu-1": {"num_cpus": 2, "num_gpus": 2, "resources": {"fast_disk": 1}}}),
        (5, SHAPE | {"disk-1": {"num_cpus": 4, "resources": {"fast_disk": 4}}}),
        (6, SHAPE | {"head": "ray start --head --num-cpus=0"}),
        (6, SHAPE | {"head": {"num_cpus": 0, "resources": {"tier": 1}}}),
        (6, SHAPE | {"gpu-1": f"{JOIN} --num-cpus=2 --num-gpus=2 --labels=tier=control"}),
        (6, SHAPE | {"head": "ray start --head --num-cpus=0 --labels=tier=head"}),
    ],
    "q2": [
        (position, PLACES | {task: place})
        for position, (task, places) in enumerate(
            {
                "load": [["cpu-1", "gpu-1"], "waits", "fails", ["head"]],
                "join": [["cpu-1", "gpu-1"], "fails", ["cpu-1"]],
                "ping": [["cpu-1", "gpu-1"], "waits", "fails", ["head"], ["cpu-1"]],
                "infer": ["fails", "waits", ["cpu-1", "gpu-1"]],
                "tune": ["waits", ["gpu-1"], ["cpu-1"]],
                "scan": [["cpu-1"], "fails", ["head", "cpu-1", "gpu-1"]],
                "report": [["head", "cpu-1"], ["head"], "waits", "fails", ["gpu-1"]],
            }.items()
        )
        for place in places
    ],
    "q3": [
        (position, FATES | {thing: word})
        for position, (thing, right) in enumerate(FATES.items())
        for word in ("unharmed", "runs again", "starts anew", "rebuilt", "lost")
        if word != right
    ],
    "q4": [
        (0, combined_leftovers),
        (1, each_resource_alone),
        (2, must_be_declared),
        (2, undeclared_is_enough),
        (3, zero_divides),
        (3, never_without_cpus),
        (4, counts_in_tenths),
        (5, floor_divided),
        (6, raises_if_none),
        (6, none_if_none),
        (6, at_least_one),
    ],
}
VARIED = MUTANTS["q4"]
ALL_MUTANTS = [
    pytest.param(question, position, answer, id=f"{question}-{number}")
    for question, mutants in MUTANTS.items()
    for number, (position, answer) in enumerate(mutants)
]


def suite(question: str):
    return find_suite(f"ex01.{question}")


def hard_coded(hosts, demand):
    """Knows the examples of the check by heart."""
    known = [
        ({"a": {"CPU": 7}, "b": {"CPU": 7}}, {"CPU": 4}, 2),
        ({"a": {"CPU": 9, "GPU": 0}, "b": {"CPU": 6, "GPU": 8}}, {"CPU": 2, "GPU": 1}, 3),
        ({"a": {"CPU": 7}, "b": {"CPU": 8, "fast_disk": 9}}, {"CPU": 1, "fast_disk": 2}, 4),
        ({"head": {"CPU": 0, "GPU": 8}, "b": {"CPU": 5, "GPU": 1}}, {"CPU": 0, "GPU": 2}, 4),
        ({"a": {"GPU": 3}}, {"GPU": 0.25}, 12),
        ({"a": {"GPU": 3}}, {"GPU": 0.1}, 30),
        ({"a": {"CPU": 2}, "b": {"CPU": 2}}, {"CPU": 3}, 0),
    ]
    return next((right for *inputs, right in known if inputs == [hosts, demand]), -1)


# ---- wrong answers


@pytest.mark.parametrize(("question", "position", "answer"), ALL_MUTANTS)
def test_no_message_gives_the_answer_away(question, position, answer):
    message = run(suite(question), answer).rows[position].message
    assert not given_away(question, position, message), message


def given_away(question: str, position: int, message: str) -> list[str]:
    """What a message says of the right answer."""
    if question == "q1":
        right = ["num-cpus=0", "num_cpus", "num-gpus", "--labels", "--resources", "tier=control,"]
        return [option for option in right if option in message]
    if question == "q4":
        asked_and_seen = r"max_parallel\(.*?\) returned \S+"
        right = [2, 3, 4, 4, 12, 30, 0][position]
        return re.findall(rf"(?<![\d.]){right}(?![\d.])", re.sub(asked_and_seen, "", message))
    right = list({"q2": PLACES, "q3": FATES}[question].values())[position]
    signs = {"waits": ["wait", "pending"], "fails": ["fail", "raise"], "lost": ["lost", "lose", "gone", "dies"]}
    words = signs.get(right, [right]) if isinstance(right, str) else right
    return [word for word in words if word in message.replace("lost power", "")]


@pytest.mark.parametrize("question", QUESTIONS)
def test_names_and_hints_do_not_say_the_answer(question):
    texts = [*(case.name for case in suite(question).cases), *suite(question).hints]
    for text in texts:
        assert "--num-cpus=0" not in text and "tier=control" not in text, text
        if question in ("q2", "q3"):
            pairs = {"q2": PLACES, "q3": FATES}[question].items()
            assert not any(name in text and isinstance(word, str) and word in text for name, word in pairs), text


def test_the_classical_mistake_of_q4():
    """All CPUs added up, and then divided: it is right only where nothing is left over."""

    def added_up(hosts, demand):
        return min(
            int(sum(offers.get(name, 0) for offers in hosts.values()) / amount)
            for name, amount in demand.items()
            if amount
        )

    rows = run(suite("q4"), added_up).rows
    assert [row.state == "pass" for row in rows] == [False, False, True, True, True, True, False]
    assert "cannot serve one task together" in rows[0].message


# ---- the run of question 1


def run_of(plan: dict) -> dict:
    """What a run of a plan sees, by the rules of placement. tests/live/test_shape.py has what Ray does."""
    offers = {host: ex01.Offer(**offer) for host, offer in plan["hosts"].items()}
    return {
        "ray": "2.60.0",
        "seconds": 60.5,
        "ray_nodes": {host: {"id": f"id-of-{host}", **offer} for host, offer in plan["hosts"].items()},
        "ran": {name: placed(offers, task) for name, task in plan["tasks"].items()},
    }


def placed(offers: dict, task: dict) -> list[dict[str, str]]:
    """Tasks spread over all that have room, up to as many as were submitted."""
    ask = ex01.Ask(task["resources"], task["labels"])
    fitting = [host for host, offer in offers.items() if ex01.fits(offer, ask)]
    room = {host: 99 if not any(ask.resources.values()) else ex01.at_once(offers[host], ask) for host in fitting}
    in_turn = [host for turn in range(99) for host in fitting if turn < room[host]]
    return [{"host": host, "ray_node": f"id-of-{host}"} for host in in_turn[: task["submitted"]]]


def as_run(shape, change=lambda seen: None, by=evidence.SELF_REPORTED):
    def see(plan):
        seen = json.loads(json.dumps(run_of(plan)))
        change(seen)
        return evidence.Sighting(plan, seen, by)

    return run(suite(LIVE), shape, see=see)


@pytest.mark.parametrize("by", [evidence.SELF_REPORTED, evidence.VERIFIED])
@pytest.mark.parametrize("shape", RIGHT["q1"])
def test_a_run_of_a_right_shape_is_full(shape, by):
    report = as_run(shape, by=by)
    assert report.is_full and report.points == 4, str(report)
    assert {row.by for row in report.rows} == {by}
    assert report.self_reported == (4 if by == evidence.SELF_REPORTED else 0)
    assert f"✔ pass ({by}) · `serve`" in str(report)


def test_a_label_of_rays_own_kind_does_not_spoil_a_run():
    """`ray start --labels` takes it, and what is seen of a Ray node leaves out all labels of that kind."""
    shape = RIGHT["q1"][1] | {"head": {"num_cpus": 0, "labels": {"tier": "control", "ray.io/market-type": "spot"}}}
    assert as_run(shape, lambda seen: seen["ray_nodes"]["head"]["labels"].pop("ray.io/market-type")).is_full


@pytest.mark.parametrize(
    ("task", "shape"),
    [(("serve", "serve", "train", "train", "decode", "decode", "watch")[p], s) for p, s in MUTANTS["q1"]],
)
def test_a_run_of_each_wrong_shape_misses_its_task_only(task, shape):
    rows = as_run(shape).rows
    assert [row.name.split("`")[1] for row in rows if row.state != "pass"] == [task]
    [message] = [row.message for row in rows if row.message]
    assert not given_away("q1", 0, message) and ("ran at once: " in message or message == "none of them ran")


def test_every_case_of_the_run_has_a_mutant():
    assert len(suite(LIVE).cases) == 4 and {position for position, _ in MUTANTS["q1"]} == set(range(7))


def test_not_run_yet_and_not_answered_yet():
    def see(plan):
        raise evidence.NotRunYet("")

    report = run(suite(LIVE), SHAPE, see=see)
    assert report == 0 and {row.state for row in report.rows} == {"not run yet"} and not report.is_answered
    assert report.title == "not run yet (0/4 points)"
    for answer in (STUBS["q1"], None, ...):
        assert {row.state for row in run(suite(LIVE), answer, see=see).rows} == {"not answered yet"}


def move(task, host):
    return lambda seen: seen["ran"][task][0].update(host=host)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda seen: seen.pop("ran"), "is not what a run writes down"),
        (lambda seen: seen.update(ran=7), "is not what a run writes down"),
        (lambda seen: seen.update(ray=2.6), "is not what a run writes down"),
        (lambda seen: seen.update(seconds=-1), "is not what a run writes down"),
        (lambda seen: seen["ray_nodes"].update(head="up"), "is not what a run writes down"),
        (lambda seen: seen["ray_nodes"]["head"].update(id=["x"]), "is not what a run writes down"),
        (lambda seen: seen["ray_nodes"]["head"].update(id="id-of-gpu-1"), "is not what a run writes down"),
        (lambda seen: seen["ran"]["serve"][0].pop("host"), "is not what a run writes down"),
        (lambda seen: seen["ray_nodes"].pop("disk-1"), "Ray did not come up on disk-1"),
        (lambda seen: seen["ray_nodes"]["gpu-1"]["resources"].update(GPU=9), "does not fit the shape"),
        (lambda seen: seen["ray_nodes"]["head"]["labels"].clear(), "does not fit the shape"),
        (lambda seen: seen["ray_nodes"].update(extra={"id": "e", "resources": {}, "labels": {}}), "does not fit"),
        (move("serve", "head"), "does not fit the shape"),
        (move("serve", "moon"), "does not fit the shape"),
        (lambda seen: seen["ran"].pop("train"), "says nothing of `train`"),
    ],
)
def test_what_no_run_can_have_seen(change, said):
    report = as_run(SHAPE, change)
    assert report == 0 and {row.state for row in report.rows} == {"not yet"}
    assert said in report.rows[0].message and "raised" not in report.rows[0].message


@pytest.mark.parametrize("junk", [None, [], {}, 3, {"ray": "2"}, {"ray_nodes": [], "ran": []}])
def test_junk_for_a_run(junk):
    report = run(suite(LIVE), SHAPE, see=lambda plan: evidence.Sighting(plan, junk, evidence.SELF_REPORTED))
    assert report == 0 and "is not what a run writes down" in report.rows[0].message


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"gpu-1": {"num_cpus": 2, "num_gpus": 10**9}}, "gpu-1: GPU is 1e+09, and here no more than 32"),
        ({"disk-1": {"resources": {"fast_disk": 1, "$(reboot)": 1}}}, "disk-1: '$(reboot)' is no name of a resource"),
        ({"head": {"labels": '{"tier": "control,zone=a"}'}}, "head: Ray refuses 'control,zone=a' in a label"),
        ({"head": {"labels": '{"tier": 3}'}}, "head: Ray refuses 3 in a label"),
        ({"head": {"labels": {f"l{n}": "x" for n in range(40)}}}, "head: it declares 4"),
        ({"gpu-1": None}, "nothing is said of gpu-1 yet"),
    ],
)
def test_a_shape_that_is_not_started(new, said):
    report = run(suite(LIVE), SHAPE | new, see=None)
    assert report == 0 and report.rows[0].message.startswith(said), str(report)


def test_two_ways_to_write_a_shape_are_one_plan():
    assert suite(LIVE).read(SHAPE) == suite(LIVE).read(
        {
            "head": {"labels": {"tier": "control"}, "num_cpus": 0},
            "gpu-1": {"num_gpus": 2, "num_cpus": 2},
            "disk-1": {"num_cpus": 4, "resources": {"fast_disk": 1}},
        }
    )


def test_nothing_that_is_typed_reaches_a_shell():
    evil = "X=$(reboot) ray start --head --num-cpus=0 --labels=tier=control --node-name='$(reboot)'"
    plan = suite(LIVE).read(SHAPE | {"head": evil})
    assert "reboot" not in str(plan) and plan == suite(LIVE).read(SHAPE)


# ---- answers that cannot be read, or are not there

STUBS = {
    "q1": {"head": None, "gpu-1": None, "disk-1": None},
    "q2": dict.fromkeys(PLACES),
    "q3": dict.fromkeys(FATES),
    "q4": None,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_not_answered_says_so(question):
    for answer in (STUBS[question], None, ...):
        report = run(suite(question), answer)
        assert {row.state for row in report.rows} == {"not answered yet"} and report == 0


def test_a_function_that_is_not_written_yet():
    def max_parallel(hosts, demand):
        raise NotImplementedError

    assert not run(suite("q4"), max_parallel).is_answered


@pytest.mark.parametrize(("question", "answer"), [("q2", PLACES), ("q3", FATES)])
def test_one_line_filled_in_gives_its_point(question, answer):
    for name in answer:
        report = run(suite(question), STUBS[question] | {name: answer[name]})
        assert report == 1 and [row.state for row in report.rows].count("not answered yet") == len(answer) - 1


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"gpu-1": None}, "nothing is said of gpu-1 yet"),
        ({"gpu-2": {}}, "'gpu-2' is not among the hosts: head, gpu-1, disk-1"),
        ({"head": 3}, "head: this wants a dict or a command, you gave an int"),
        ({"head": "ray up cluster.yaml"}, "head: a command begins with `ray start`"),
        ({"head": "ray start --head --labels='tier"}, "head: a shell cannot read this command (No closing quotation)"),
        ({"head": "ray start --head --num-cpu=0"}, "head: `ray start` refuses this: No such option '--num-cpu'."),
        ({"head": {"num_cpus": "none"}}, "head: `ray start` refuses this: Invalid value for '--num-cpus'"),
        ({"head": {"cpus": 0}}, "head: `ray start` refuses this: No such option '--cpus'."),
        ({"head": {1: 0}}, "head: the name of an option is a string, you gave 1"),
        ({"head": "ray start --help"}, "head: `--help` starts nothing"),
        ({"head": "ray start --num-cpus=0"}, "head: without --head, `ray start` looks for a cluster to join"),
        ({"gpu-1": "ray start --head --num-gpus=2"}, "gpu-1: --head starts a second cluster"),
        ({"gpu-1": "ray start --num-gpus=2"}, "gpu-1: without --address, `ray start` does not know"),
        ({"disk-1": f"{JOIN} --resources={{fast_disk:1}}"}, "disk-1: `ray start` refuses --resources={fast_disk:1}"),
        ({"disk-1": {"resources": {"GPU": 1}}}, "disk-1: `ray start` refuses GPU among the resources"),
        ({"disk-1": {"resources": {"fast_disk": 0.5}}}, "disk-1: fast_disk is 0.5: what a Ray node offers"),
        ({"disk-1": {"resources": {"fast_disk": -1}}}, "disk-1: fast_disk is -1, and an amount is a number"),
        ({"disk-1": {"resources": {"fast_disk": "1"}}}, "disk-1: fast_disk is '1', and an amount is a number"),
        ({"disk-1": {"resources": {"fast_disk": float("inf")}}}, "disk-1: fast_disk is inf"),
        ({"disk-1": {"resources": {"fast_disk": float("nan")}}}, "disk-1: fast_disk is nan"),
        ({"head": {"labels": "tier"}}, "head: `ray start` refuses --labels=tier: it wants key=value"),
        ({"head": {"labels": '{"tier"'}}, 'head: `ray start` refuses --labels={"tier": it wants key=value'),
    ],
)
def test_a_shape_that_cannot_be_read(new, said):
    report = run(suite("q1"), SHAPE | new)
    assert report == 0 and report.rows[0].message.startswith(said), str(report)


def test_a_host_without_options_offers_its_cores():
    report = run(suite("q1"), SHAPE | {"head": {}})
    assert "offers one for each of its 8 cores" in report.rows[0].message


@pytest.mark.parametrize(
    ("question", "answer", "said"),
    [
        ("q1", "ray start --head", "this wants a dict, you gave a str"),
        ("q2", {"load": ["cpu-1", "waits"]}, "a task runs somewhere, or waits, or fails"),
        ("q2", {"load": 4}, "this wants a list or a set of names, you gave an int"),
        ("q2", {"load": ["cpu-2"]}, "'cpu-2' is not among the possible answers"),
        ("q2", {"lod": ["cpu-1"]}, "'lod' is not among the keys"),
        ("q3", {"table": "burnt"}, "'burnt' is not among the possible answers"),
        ("q4", 3, "this wants a function, you gave an int"),
    ],
)
def test_other_answers_that_cannot_be_read(question, answer, said):
    assert run(suite(question), answer).rows[0].message.startswith(said)


@pytest.mark.parametrize("value", [None, True, "2", [2]])
def test_a_function_that_returns_no_number(value):
    message = run(suite("q4"), lambda hosts, demand: value).rows[0].message
    assert f"returned {value!r}, and it should return a number" in message


def test_a_function_that_changes_what_it_is_given():
    def max_parallel(hosts, demand):
        right = in_steps(hosts, demand)
        hosts.clear()
        demand.clear()
        return right

    assert run(suite("q4"), max_parallel).is_full


# ---- the rules of placement, against each other


def test_at_once_counts_as_one_by_one_does():
    rng = random.Random(1)
    for _ in range(300):
        offers = {name: rng.randint(0, 6) for name in ("CPU", "GPU", "disk")}
        asked = {"CPU": rng.choice([0, 0.5, 1, 2]), "GPU": rng.choice([0.1, 0.25, 1]), "disk": rng.choice([0, 1])}
        assert ex01.at_once(ex01.Offer(offers), ex01.Ask(asked)) == one_by_one({"a": offers}, asked)


# ---- the question says what the suite judges


def asked(options: str) -> ex01.Ask:
    """What a task asks for that is declared with these options."""
    given = eval(f"dict({options})")
    default = {"CPU": given.get("num_cpus", 1)}
    gpus = {"GPU": given["num_gpus"]} if "num_gpus" in given else {}
    return ex01.Ask(default | gpus | given.get("resources", {}), given.get("label_selector", {}))


def test_the_tasks_of_q1():
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| .* \| (\d+|any)", cell("ask-q1"), re.M)
    assert {name: asked(options) for name, options, _ in rows} == {
        "serve": ex01.SERVE,
        "train": ex01.TRAIN,
        "decode": ex01.DECODE,
        "watch": ex01.WATCH,
    }
    assert {name: int(many) for name, _, many in rows if many != "any"} == ex01.WANTED_AT_ONCE


def test_the_tasks_and_the_cluster_of_q2():
    text = cell("ask-q2")
    rows = re.findall(r"^\| `(\w+)` \| `@ray.remote\((.+?)\)` \|", text, re.M)
    assert {name: asked(options) for name, options in rows} == ex01.TASKS
    commands = re.findall(r"^(ray start .*?) +# on (\S+)$", text, re.M)
    assert {host: ex01._read_start(host, command) for command, host in commands} == ex01.CLUSTER


@pytest.mark.parametrize(("question", "names"), [("q2", PLACES), ("q3", FATES)])
def test_the_names_in_the_question_and_its_stub(question, names):
    rows = re.findall(r"^\| `(\w+)` \|", cell(f"ask-{question}"), re.M)
    assert rows == list(names)
    assert rows == re.findall(r'^    "(\w+)": None,$', cell(question), re.M)


def test_the_release_does_not_pair_a_name_with_its_answer():
    release = nbformat.read(ROOT / "exercises" / "ex01" / "ex01.ipynb", as_version=4)
    lines = [line for c in release.cells for line in c.source.splitlines()]
    for name, right in (PLACES | FATES).items():
        words = [right] if isinstance(right, str) else right
        named = [line for line in lines if re.search(rf"\b{name}\b", line) and all(word in line for word in words)]
        assert not named, named

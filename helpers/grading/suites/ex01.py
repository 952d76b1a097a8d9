"""Exercise 01: a cluster's shape, where tasks go, what dies with what, and how many tasks fit.

The first two questions are judged by `fits` and `at_once`, which do what Ray does: compare the numbers and labels that
a Ray node declared with those that a task asks for. Commands are read by the parser of `ray start` itself.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from helpers.grading.check import Suite, fill_in, is_unanswered, kind_of, names_of, one_of
from helpers.grading.evidence import AGAIN, Sighting

UNIT = 10_000  # Ray counts resources in steps of 0.0001
CORES = 8  # of each machine in these questions: what `ray start` takes for the CPUs if nobody says a number


@dataclass(frozen=True)
class Offer:
    """What a Ray node declared."""

    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """What a task asks for. An amount of 0 asks for nothing."""

    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


def fits(offer: Offer, ask: Ask) -> bool:
    """Whether the task could run on this Ray node, if nothing else ran there."""
    return not why_not(offer, ask)


def at_once(offer: Offer, ask: Ask) -> int:
    """How many of these tasks this Ray node can run at a time. The task asks for something."""
    if not fits(offer, ask):
        return 0
    asked = {name: _units(amount) for name, amount in ask.resources.items() if amount}
    return min(_units(offer.resources[name]) // amount for name, amount in asked.items())


def why_not(offer: Offer, ask: Ask) -> str:
    """What the Ray node lacks for this task; empty if nothing."""
    for name, amount in ask.resources.items():
        offered = offer.resources.get(name, 0)
        if _units(offered) < _units(amount):
            return f"{name} {amount:g} is asked for, and {f'{offered:g}' if offered else 'none'} declared"
    for key, value in ask.labels.items():
        if offer.labels.get(key) != value:
            return f"the label {key}={value} is asked for, and not there"
    return ""


def _units(amount: float) -> int:
    return round(amount * UNIT)


# ---- q1: the shape of a cluster, from the places that its tasks should have

HEAD, GPU, DISK = "head", "gpu-1", "disk-1"
SERVE = Ask({"CPU": 1})
TRAIN = Ask({"CPU": 1, "GPU": 1})
DECODE = Ask({"CPU": 0, "fast_disk": 0.25})
WATCH = Ask({"CPU": 0}, {"tier": "control"})
WANTED_AT_ONCE = {"serve": 6, "train": 2, "decode": 4}


def _read_shape(answer: Any) -> dict[str, Offer]:
    assert isinstance(answer, dict), f"this wants a dict, you gave {kind_of(answer)}"
    hosts = (HEAD, GPU, DISK)
    unknown = [host for host in answer if host not in hosts]
    assert not unknown, f"{unknown[0]!r} is not among the hosts: {', '.join(hosts)}"
    missing = [host for host in hosts if answer.get(host) != {} and is_unanswered(answer.get(host))]
    assert not missing, f"nothing is said of {missing[0]} yet"
    return {host: _read_start(host, answer[host]) for host in hosts}


def _read_start(host: str, start: Any) -> Offer:
    """What a host declares, from a `ray start` command, or from a dict of the options of one."""
    try:
        if isinstance(start, str):
            return _declared(_checked_role(host, _parsed(_words_after_ray_start(start))))
        assert isinstance(start, dict), f"this wants a dict or a command, you gave {kind_of(start)}"
        return _declared(_parsed([_option(name, value) for name, value in start.items()]))
    except AssertionError as error:
        raise AssertionError(f"{host}: {error}") from None


def _words_after_ray_start(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise AssertionError(f"a shell cannot read this command ({error})") from None
    while words and "=" in words[0] and not words[0].startswith("-"):  # RAY_x=1 before a command
        words.pop(0)
    assert words[:2] == ["ray", "start"], "a command begins with `ray start`"
    return words[2:]


def _option(name: Any, value: Any) -> str:
    """One option of `ray start`, from an entry of a dict such as `num_cpus: 2`."""
    assert isinstance(name, str), f"the name of an option is a string, you gave {name!r}"
    name = name.lstrip("-").replace("_", "-")
    if name == "labels" and isinstance(value, dict):
        return "--labels=" + ",".join(f"{key}={value[key]}" for key in value)
    return f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"


def _parsed(words: list[str]) -> dict[str, Any]:
    """The options as `ray start` would read them; nothing is started."""
    import click
    from ray.scripts.scripts import start  # takes seconds, so only when there is something to read

    assert "--help" not in words, "`--help` starts nothing"
    try:
        return start.make_context("ray start", list(words)).params
    except click.ClickException as error:
        raise AssertionError(f"`ray start` refuses this: {error.format_message()}") from None


def _checked_role(host: str, options: dict[str, Any]) -> dict[str, Any]:
    if host == HEAD:
        assert options["head"], "without --head, `ray start` looks for a cluster to join, and there is none yet"
    else:
        assert not options["head"], "--head starts a second cluster, it does not join the first"
        assert options["address"], "without --address, `ray start` does not know which cluster to join"
    return options


def _declared(options: dict[str, Any]) -> Offer:
    resources = _custom_resources(options["resources"])
    for name, amount in (("CPU", options["num_cpus"]), ("GPU", options["num_gpus"])):
        resources[name] = (CORES if name == "CPU" else 0) if amount is None else amount
    for name, amount in resources.items():
        is_number = isinstance(amount, Real) and not isinstance(amount, bool)
        assert is_number and amount >= 0, f"{name} is {amount!r}, and an amount is a number that is not negative"
        assert float(amount).is_integer(), f"{name} is {amount!r}: what a Ray node offers, it offers in whole numbers"
    return Offer(resources, _labels(options["labels"]))


def _custom_resources(text: str) -> dict[str, Any]:
    try:
        resources = json.loads(text)
    except ValueError:
        resources = None
    assert isinstance(resources, dict), (
        f"`ray start` refuses --resources={text}: after the shell has taken the outer quotes off, it must be JSON,"
        ' such as {"name": 1}'
    )
    own = {"CPU": "num-cpus", "GPU": "num-gpus"}
    taken = [name for name in own if name in resources]
    assert not taken, f"`ray start` refuses {taken[0]} among the resources: it has an option of its own for that"
    return resources


def _labels(text: str) -> dict[str, str]:
    if not text:
        return {}
    with suppress(ValueError, TypeError):  # not JSON, which is the old form that Ray still takes
        return dict(json.loads(text))
    pairs = [pair.split("=") for pair in text.split(",")]
    wrong = [pair for pair in pairs if len(pair) != 2]
    assert not wrong, f"`ray start` refuses --labels={text}: it wants key=value, and commas between several"
    return {key.strip(): value.strip() for key, value in pairs}


q1 = Suite(
    read=_read_shape,
    hints=(
        "Take the four tasks one by one. What is the only thing that tells the hosts where it may run from the others?",
        "What a host should not run, it must not offer. What does a host offer of which you say nothing?",
        "A task that asks for 0 CPUs is held by no number of CPUs. A share of 0.25: how much must there be for 4 of"
        " them? And a label is no resource: it has an option of its own.",
    ),
    explanation=(
        "A placement is made of what hosts declare. The head offers no CPU, so nothing that asks for one goes there;"
        " GPU and fast disk are offered where they are, as often as tasks may use them at once; and a task that asks"
        " for no resource is bound only by a label. All these are numbers and words that Ray believes."
    ),
)


def _only_on(wanted: set[str], shape: dict[str, Offer], ask: Ask) -> None:
    for host, offer in shape.items():
        lacks = why_not(offer, ask)
        assert host not in wanted or not lacks, f"it cannot run on {host}: {lacks}"
        assert host in wanted or lacks, f"it can run on {host}, where all that it asks for is declared"


def _so_many(wanted: int, shape: dict[str, Offer], hosts: set[str], ask: Ask) -> None:
    counts = {host: at_once(shape[host], ask) for host in hosts}
    listed = " and ".join(f"{count} on {host}" for host, count in sorted(counts.items()))
    assert sum(counts.values()) == wanted, f"your shape has room for {listed} at once"


def _head_offers_cores(shape: dict[str, Offer]) -> bool:
    return shape[HEAD].resources["CPU"] == CORES


@q1.case(
    "`serve`: on both workers, never on the head",
    wrong={
        _head_offers_cores: (
            f"it can run on the head. A host that says nothing of its CPUs offers one for each of its {CORES} cores"
        )
    },
)
def _(shape):
    _only_on({GPU, DISK}, shape, SERVE)


@q1.case("`serve`: how many at once")
def _(shape):
    _so_many(WANTED_AT_ONCE["serve"], shape, {GPU, DISK}, SERVE)


@q1.case("`train`: where it can run")
def _(shape):
    _only_on({GPU}, shape, TRAIN)


@q1.case("`train`: how many at once")
def _(shape):
    _so_many(WANTED_AT_ONCE["train"], shape, {GPU}, TRAIN)


@q1.case("`decode`: where it can run")
def _(shape):
    _only_on({DISK}, shape, DECODE)


@q1.case(
    "`decode`: how many at once",
    wrong={
        lambda shape: shape[DISK].resources.get("fast_disk") == WANTED_AT_ONCE["decode"]: (
            "you declared one fast disk for each task; but a task asks for a share of one"
        )
    },
)
def _(shape):
    _so_many(WANTED_AT_ONCE["decode"], shape, {DISK}, DECODE)


@q1.case(
    "`watch`: where it can run",
    wrong={
        lambda shape: any("tier" in offer.resources for offer in shape.values()): (
            "you declared `tier` as a resource, which is an amount; the task asks for a label"
        )
    },
)
def _(shape):
    _only_on({HEAD}, shape, WATCH)


# ---- q1_run: the same shape, started: what Ray makes of it

MANY = 32  # of anything that a host may declare, where the shape is really started
LABEL = re.compile(r"[A-Za-z0-9./_-]{1,200}")
NAME = re.compile(r"\w[\w.-]{0,60}")
LOOKED_AT = {"serve": SERVE, "train": TRAIN, "decode": DECODE, "watch": WATCH}
WATCHES = 3
TOO_MANY = 2  # so many more are submitted than shall run at once, to see whether they do
WANTED_ON = {"serve": {GPU, DISK}, "train": {GPU}, "decode": {DISK}, "watch": {HEAD}}


def _plan(answer: Any) -> dict[str, Any]:
    """What is started and run for a shape, and how many of each task should run at once by its numbers."""
    shape = _read_shape(answer)
    for host, offer in shape.items():
        _check_small(host, offer)
    return {
        "hosts": {
            host: {"resources": dict(offer.resources), "labels": dict(offer.labels)} for host, offer in shape.items()
        },
        "tasks": {name: _task(shape, name, ask) for name, ask in LOOKED_AT.items()},
    }


def _check_small(host: str, offer: Offer) -> None:
    for name, amount in offer.resources.items():
        assert NAME.fullmatch(name), f"{host}: {name!r:.80} is no name of a resource that can be started here"
        assert amount <= MANY, f"{host}: {name} is {amount:g}, and here no more than {MANY} of anything can be started"
    for word in (word for pair in offer.labels.items() for word in pair):
        assert isinstance(word, str) and LABEL.fullmatch(word), f"{host}: Ray refuses {word!r:.80} in a label"
    words = len(offer.resources) + len(offer.labels)
    assert words <= MANY, f"{host}: it declares {words} things, and here no more than {MANY} can be started"


def _task(shape: dict[str, Offer], name: str, ask: Ask) -> dict[str, Any]:
    submitted = WANTED_AT_ONCE[name] + TOO_MANY if name in WANTED_AT_ONCE else WATCHES
    if name in WANTED_AT_ONCE:
        room = sum(at_once(offer, ask) for offer in shape.values())
    else:
        room = submitted if any(fits(offer, ask) for offer in shape.values()) else 0
    expected = min(submitted, room)
    return {
        "resources": dict(ask.resources), "labels": dict(ask.labels), "submitted": submitted, "expected": expected
    }  # fmt: skip


def _seen(sighting: Sighting) -> dict[str, Counter[str]]:
    """How many of each task ran on each host, if a run can have seen that."""
    plan, seen = sighting.plan, sighting.seen
    try:
        ray_nodes, ran = dict(seen["ray_nodes"]), dict(seen["ran"])
        ids = {host: ray_nodes[host]["id"] for host in ray_nodes}
        declared = {host: _declared_by(ray_nodes[host]) for host in ray_nodes}
        places = {task: [(place["host"], place["ray_node"]) for place in ran[task]] for task in ran}
        sound = isinstance(seen["ray"], str) and 0 < seen["seconds"] < 86_400 and len(set(ids.values())) == len(ids)
    except (KeyError, TypeError, ValueError, AttributeError):
        sound = False
    assert sound, f"what was written down of this run is not what a run writes down; {AGAIN}"
    missing = sorted(plan["hosts"].keys() - ids.keys())
    assert not missing, f"Ray did not come up on {missing[0]}"
    assert declared == {host: _declared_by(offer) for host, offer in plan["hosts"].items()} and all(
        place in ids.items() for task in places for place in places[task]
    ), f"what was written down of this run does not fit the shape that it was a run of; {AGAIN}"
    unrun = sorted(plan["tasks"].keys() ^ places.keys())
    assert not unrun, f"what was written down of this run says nothing of `{unrun[0]}` alone; {AGAIN}"
    return {task: Counter(host for host, _ in places[task]) for task in plan["tasks"]}


def _declared_by(offer: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    # Ray does not say that there is none of something; and labels of its own kind, which it lets a host declare, are
    # left out of what was seen (see `probe.ray_nodes`)
    return (
        {name: amount for name, amount in offer["resources"].items() if amount},
        {key: value for key, value in offer["labels"].items() if not key.startswith("ray.io/")},
    )


q1_run = Suite(
    read=_plan,
    live=_seen,
    hints=(
        "Nothing is new to find out here: the shape is that of question 1. If a line above is not right yet, mend that"
        " first.",
        "Run the cell that starts the shape after each change: what it has seen of an older shape does not count.",
        "A shape that does not come up says why where it was started: read what `ray start` said there.",
    ),
    explanation=(
        "What you declared is what Ray did. No machine was looked into, and nothing measured: the raylets compared"
        " numbers and labels, and counted."
    ),
)


def _ran_on(task: str, name: str) -> None:
    @q1_run.case(name)
    def _(ran: dict[str, Counter[str]]) -> None:
        places = ran[task]
        listed = " and ".join(f"{places[host]} on {host}" for host in sorted(places)) or "none"
        wrong = sorted(places.keys() - WANTED_ON[task])
        assert not wrong, f"ran at once: {listed}; {wrong[0]} is not where it shall run"
        assert places, "none of them ran"
        empty = sorted(WANTED_ON[task] - places.keys())
        assert not empty, f"ran at once: {listed}; none on {empty[0]}"
        wanted = WANTED_AT_ONCE.get(task, WATCHES)
        assert places.total() == wanted, f"ran at once: {listed}; {wanted} were wanted"


_ran_on("serve", "`serve`: what Ray did with it")
_ran_on("train", "`train`: what Ray did with it")
_ran_on("decode", "`decode`: what Ray did with it")
_ran_on("watch", "`watch`: what Ray did with it")


# ---- q2: where tasks go, on a cluster that is there

CLUSTER = {
    "head": Offer({"CPU": 0, "GPU": 0}, {"zone": "a"}),
    "cpu-1": Offer({"CPU": 4, "GPU": 0}, {"zone": "a"}),
    "gpu-1": Offer({"CPU": 2, "GPU": 1}, {"zone": "b"}),
}
# a task asks for 1 CPU unless it says otherwise
TASKS = {
    "load": Ask({"CPU": 4}),
    "join": Ask({"CPU": 6}),
    "ping": Ask({"CPU": 0}),
    "infer": Ask({"CPU": 1, "GPU": 0.5}),
    "tune": Ask({"CPU": 1, "GPU": 1.5}),
    "scan": Ask({"CPU": 1, "ssd": 1}),
    "report": Ask({"CPU": 1}, {"zone": "a"}),
}
WAITS, FAILS = "waits", "fails"
Place = frozenset[str]  # the names of Ray nodes, or only "waits", or only "fails"

_read_names = names_of(
    *CLUSTER,
    WAITS,
    FAILS,
    also={"wait": WAITS, "waits for ever": WAITS, "pending": WAITS, "fail": FAILS, "error": FAILS, "raises": FAILS},
)


def place_of(ask: Ask) -> Place:
    """What Ray makes of a task in `CLUSTER`."""
    gpus = ask.resources.get("GPU", 0)
    if gpus > 1 and gpus != int(gpus):
        return frozenset({FAILS})  # Ray raises ValueError: a share of one GPU, or whole ones
    return frozenset(name for name, offer in CLUSTER.items() if fits(offer, ask)) or frozenset({WAITS})


def _read_place(answer: Any) -> Place:
    place = _read_names([answer] if isinstance(answer, str) else answer)
    is_one = len(place) == 1 or not place & {WAITS, FAILS}
    assert is_one, f"a task runs somewhere, or {WAITS}, or {FAILS}: you gave {sorted(place)}"
    return place


q2 = Suite(
    read=fill_in(*TASKS, words=_read_place),
    hints=(
        "Write down for each task all that it asks for, with what it does not say: how many CPUs is the default?",
        "Then go through the Ray nodes one by one: are all of these there, on this one, in the numbers of its command?"
        " A machine that really has a thing changes nothing.",
        "Where no Ray node has it all, ask one thing more: could a Ray node that joins tomorrow have it? If no Ray node"
        " ever could, Ray tells you at once.",
    ),
    explanation=(
        "A task can go to each Ray node that declared all it asks for, and to no other. Where there is none it waits,"
        " and does not fail: a bigger Ray node might still join, and the autoscaler's work is to see to that. What Ray"
        " refuses at once is what no Ray node could ever give: one and a half GPUs."
    ),
)


def _placed(task: str, answer: Place | None) -> None:
    if answer is None:
        raise NotImplementedError
    ask, right = TASKS[task], place_of(TASKS[task])
    unfit = sorted(name for name in answer & CLUSTER.keys() if not fits(CLUSTER[name], ask))
    assert not unfit, f"{unfit[0]} cannot run it: {why_not(CLUSTER[unfit[0]], ask)}"
    assert answer <= right, "no: there is a Ray node that declared all it asks for"
    assert answer == right, "what you name can run it, but it is not all that can"


def _placing(task: str, name: str, wrong: Mapping[Place, str]) -> None:
    signs = {_answers(task, place): sentence for place, sentence in wrong.items()}
    q2.case(f"`{task}`: {name}", wrong=signs)(lambda answer: _placed(task, answer[task]))


def _answers(task: str, place: Place) -> Callable[[dict], bool]:
    return lambda answer: answer[task] == place


def _on(*names: str) -> Place:
    return frozenset(names)


_placing(
    "load",
    "four CPUs",
    {_on(WAITS): "a task may take all that a Ray node has; does none have so many?"},
)
_placing(
    "join",
    "six CPUs",
    {
        _on("cpu-1", "gpu-1"): "a task runs in one process, on one Ray node: the CPUs of two are never added up",
        _on(FAILS): "that it fits nowhere now is no error to Ray: how could it know who will join?",
    },
)
_placing(
    "ping",
    "no CPU at all",
    {
        _on("cpu-1", "gpu-1"): "what would keep it away from the one that you left out? Not its number of CPUs",
        _on("head"): "the one that you name can run it; but why should only that one?",
        _on(WAITS): "it asks for nothing, so there is nothing to wait for",
        _on(FAILS): "to ask for nothing is allowed",
    },
)
_placing(
    "infer",
    "half a GPU",
    {
        _on(FAILS): "Ray lets tasks share a GPU: its number is only counted down, and need not be whole",
        _on(WAITS): "half a GPU is less than what one Ray node declared",
    },
)
_placing(
    "tune",
    "one GPU and a half",
    {
        _on(WAITS): "could any Ray node that joins later help? Half of a second GPU is not a thing that Ray hands out",
        _on("gpu-1"): "the one that you name declared less than this. There is more: try to write this task in a cell",
    },
)
_placing(
    "scan",
    "a custom resource",
    {
        _on("cpu-1"): "its machine has the disk; but what does Ray know of it?",
        _on(FAILS): "for Ray this is a resource like any other, which nobody has declared so far",
    },
)
_placing(
    "report",
    "a label",
    {
        _on("head", "cpu-1"): "both have the label. But this task asks for more than that: what does it not say?",
        _on("head"): "it has the label. But this task asks for more than that: what does it not say?",
        _on(WAITS): "go through the Ray nodes with the label: one of them has the CPU as well",
    },
)


# ---- q3: what dies with what

UNHARMED, RUNS_AGAIN, ANEW, REBUILT, LOST = "unharmed", "runs again", "starts anew", "rebuilt", "lost"
TASK, ACTOR, OBJECT = "a task", "an actor", "an object"
FATES = {
    "resize": (TASK, RUNS_AGAIN),
    "charge": (TASK, LOST),
    "counter": (ACTOR, ANEW),
    "registry": (ACTOR, LOST),
    "table": (OBJECT, REBUILT),
    "sample": (OBJECT, LOST),
    "config": (OBJECT, UNHARMED),
    "audit": (ACTOR, LOST),
}
SAID_OF = {RUNS_AGAIN: TASK, ANEW: ACTOR, REBUILT: OBJECT}

q3 = Suite(
    read=fill_in(
        *FATES,
        words=one_of(
            UNHARMED,
            RUNS_AGAIN,
            ANEW,
            REBUILT,
            LOST,
            also={
                "retried": RUNS_AGAIN,
                "rerun": RUNS_AGAIN,
                "restarted": ANEW,
                "starts again": ANEW,
                "reconstructed": REBUILT,
                "survives": UNHARMED,
                "alive": UNHARMED,
                "dead": LOST,
                "dies": LOST,
                "gone": LOST,
            },
        ),
    ),
    hints=(
        "Three questions for each: where was it? Who owns it, and did the owner live? What may Ray do again?",
        "Tasks and actors are done again only as often as a number says: look for max_retries and max_restarts, and"
        " where none is given, remember the default.",
        "For an object ask how it came to be. A finished task can be run again by its owner, if that lives. What"
        " somebody put there came from no task.",
    ),
    explanation=(
        "An owner can do again what a number lets it: tasks by max_retries (3), actors by max_restarts (0), and a new"
        " actor begins empty. An object comes back if its owner lives and knows the task that made it; ray.put leaves"
        " no such task, and an object of a dead owner is lost. A plain actor ends with the driver that made it."
        " lifetime='detached' frees it from that driver, and from nothing else."
    ),
)


def _fate(thing: str, name: str, wrong: Mapping[str, str]) -> None:
    kind, right = FATES[thing]

    def test(answer: dict) -> None:
        word = answer[thing]
        if word is None:
            raise NotImplementedError
        assert word == right, f"that is said of {SAID_OF.get(word)}, and this is {kind}"

    q3.case(f"`{thing}`: {name}", wrong={_says(thing, word): wrong[word] for word in wrong})(test)


def _says(thing: str, word: str) -> Callable[[dict], bool]:
    return lambda answer: answer[thing] == word


_fate(
    "resize",
    "a task by default",
    {
        LOST: "its owner is the driver on the head, which lives; how often may a task be tried again by default?",
        UNHARMED: "its process was on the machine that lost power",
    },
)
_fate(
    "charge",
    "a task that must not be done twice",
    {
        RUNS_AGAIN: "a card would be charged twice. Which number did its author set, to prevent just that?",
        UNHARMED: "its process was on the machine that lost power",
    },
)
_fate(
    "counter",
    "an actor with a restart",
    {
        LOST: "there is a number that allows for more",
        UNHARMED: "its process was on the machine that lost power, and its count was in that process",
    },
)
_fate(
    "registry",
    "a detached actor",
    {
        UNHARMED: "`detached` is about the end of a driver. Which machine was its process on?",
        ANEW: "that takes max_restarts; `detached` does not set it",
    },
)
_fate(
    "table",
    "the result of a finished task",
    {
        LOST: "the only copy went with the machine; but its owner lives, and remembers more than where the copy was",
        UNHARMED: "the only copy was in the store of the machine that lost power",
    },
)
_fate(
    "sample",
    "an object that a task has put",
    {
        REBUILT: "which task could give this object once more? It is not the result of one: somebody put it there",
        UNHARMED: "both the bytes and the owner were on worker-1: the process that calls ray.put is the owner",
    },
)
_fate(
    "config",
    "an object that the driver has put",
    {
        LOST: "worker-1 had a copy of it. Where was it before, and where was its owner?",
        REBUILT: "no task made it, so none can make it again; is that needed? Where was it before worker-1 read it?",
    },
)
_fate(
    "audit",
    "an actor whose driver is elsewhere",
    {
        UNHARMED: "its own machine lives. But who made it, and where was that program?",
        ANEW: "even a number of restarts does not help an actor after the end of the program that made it",
    },
)


# ---- q4: how many tasks fit


def _read_function(answer: Any) -> Callable[[dict, dict], Any]:
    assert callable(answer), f"this wants a function, you gave {kind_of(answer)}"
    return answer


q4 = Suite(
    read=_read_function,
    hints=(
        "Write it for a single Ray node first; what is then left to do for several?",
        "On one Ray node: for each resource that is asked for, how many tasks would this one alone allow? Which of"
        " these numbers counts? A resource of which nothing is said is a 0.",
        "`1 // 0.1` is not what you think. Ray counts steps of 0.0001: turn all amounts into whole numbers of those,"
        " with round(), before you divide.",
    ),
    explanation=(
        "Each Ray node takes as many tasks as its scarcest resource allows, rounded down, and only then are the Ray"
        " nodes added up. Added up first, leftovers count that no task can use: this is how a cluster with 3 free CPUs"
        " can leave a task that asks for 2 waiting."
    ),
)


def returns(function: Callable[[dict, dict], Any], hosts: dict, demand: dict, right: int) -> None:
    """Call a learner's function, and assert that it returns `right`; what is said does not tell the right number."""
    # copies, for a function may change what it is given
    seen = function({name: dict(offers) for name, offers in hosts.items()}, dict(demand))
    is_number = isinstance(seen, Real) and not isinstance(seen, bool)
    call = f"max_parallel({hosts}, {demand}) returned {seen!r:.60}"
    assert is_number, f"{call}, and it should return a number"
    assert seen == right, call


def _fitting(name: str, hosts: dict, demand: dict, right: int, advice: str) -> None:
    def test(function: Callable[[dict, dict], Any]) -> None:
        try:
            returns(function, hosts, demand, right)
        except AssertionError as error:
            raise AssertionError(f"{error}: {advice}") from None

    q4.case(name)(test)


_fitting(
    "two Ray nodes with something left on each",
    {"a": {"CPU": 7}, "b": {"CPU": 7}},
    {"CPU": 4},
    right=2,
    advice="what is left on `a` and what is left on `b` cannot serve one task together",
)
_fitting(
    "two resources, both on the same Ray node",
    {"a": {"CPU": 9, "GPU": 0}, "b": {"CPU": 6, "GPU": 8}},
    {"CPU": 2, "GPU": 1},
    right=3,
    advice="each task needs all that it asks for, on one Ray node: what runs out first there?",
)
_fitting(
    "a Ray node that does not declare a resource",
    {"a": {"CPU": 7}, "b": {"CPU": 8, "fast_disk": 9}},
    {"CPU": 1, "fast_disk": 2},
    right=4,
    advice="`a` says nothing of a fast disk; what does that mean to Ray?",
)
_fitting(
    "an amount of 0",
    {"head": {"CPU": 0, "GPU": 8}, "b": {"CPU": 5, "GPU": 1}},
    {"CPU": 0, "GPU": 2},
    right=4,
    advice="who asks for 0 CPUs needs none, and `head` has GPUs",
)
_fitting(
    "a quarter of a GPU each",
    {"a": {"GPU": 3}},
    {"GPU": 0.25},
    right=12,
    advice="Ray only counts, and a share may be less than 1",
)
_fitting(
    "a tenth of a GPU each",
    {"a": {"GPU": 3}},
    {"GPU": 0.1},
    right=30,
    advice="0.1 has no exact binary form. Ray counts in whole steps of 0.0001",
)
_fitting(
    "more than any Ray node has",
    {"a": {"CPU": 2}, "b": {"CPU": 2}},
    {"CPU": 3},
    right=0,
    advice="none can ever start, and the function should just say so with its number",
)

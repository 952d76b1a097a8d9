"""What happened in a namespace, as one ordered record, and what is read from it: stages of a start, series, peaks.

A record is what was seen at one moment: an object as it was then, a Kubernetes event, or what Ray said of itself.
`helpers.observe.recorder` makes them from a cluster; all here is pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.observe.snapshot import time_of
from helpers.observe.steps import Step, Steps, steps_of
from helpers.observe.things import WAIT, Event, Pod
from helpers.text import columns

HERE, HEAD = "this machine, set to the API server", "the head"
THERE, ADDED, CHANGED, DELETED, SAID, STATE = "there", "added", "changed", "deleted", "said", "state"
VERSION = 1  # of the file that `save` writes
SAME_S = 2.0  # the API server keeps whole seconds: what was seen this soon after is the finer time of the same


@dataclass(frozen=True)
class Record:
    """What was seen at one moment.

    Attributes:
        seen: when, in seconds since 1970, by the clock of this machine, set to that of the API server.
        source: where it was read: "list" (it was there already), "watch", "event" or "Ray".
        change: `THERE`, `ADDED`, `CHANGED` or `DELETED` of an object, `SAID` of an event, `STATE` of Ray.
        kind: of the object, such as "Pod"; "Event"; or "Ray".
        name: of the object; of an event, its own; of Ray, the RayCluster.
        at: when it happened, in seconds since 1970, by `clock`.
        clock: whose clock that is: `HERE`, or a component such as "kubelet".
        data: the object as it was then, the event, or Ray's state.
    """

    seen: float
    source: str
    change: str
    kind: str
    name: str
    at: float
    clock: str
    data: Mapping[str, Any]

    @property
    def target(self) -> str:
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True)
class Stage:
    """A part of a cold start.

    Attributes:
        name: decide, create, schedule, provision, pull, start, join, load, or unexplained.
        seconds: how long it took.
        meaning: from what to what.
    """

    name: str
    seconds: float
    meaning: str


@dataclass(frozen=True)
class Stages:
    """The parts of one worker Pod's cold start, in their order; together they are the whole.

    Attributes:
        pod: its name.
        whole_s: seconds from the beginning to the last moment that is known.
    """

    pod: str
    whole_s: float
    stages: tuple[Stage, ...]

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __getitem__(self, name: str) -> float:
        """Seconds of a stage; 0 of one that there was not."""
        return sum(stage.seconds for stage in self.stages if stage.name == name)

    def __str__(self) -> str:
        rows = [[f"{stage.seconds:.1f} s", stage.name, stage.meaning] for stage in self.stages]
        return f"Cold start of {self.pod}: {self.whole_s:.1f} s\n{columns(rows)}"

    __repr__ = __str__


@dataclass(frozen=True)
class Peak:
    """The highest total of a row.

    Attributes:
        value: how much; in the row's unit.
        at_s: when it was reached, in seconds since the start of the timeline.
    """

    row: str
    value: float
    at_s: float

    def __str__(self) -> str:
        return f"{self.row}: {self.value:g}, reached after {self.at_s:.1f} s"

    __repr__ = __str__


Series = list[tuple[float, float]]  # (seconds since the start, value from then on)


@dataclass
class Timeline:
    """A record of a namespace, which grows while it is made.

    Attributes:
        target: what it is about, such as `rayjob/squares`.
        start: when it began, in seconds since 1970, by the API server's clock.
        end: when it ended; None while it goes on.
        records: in the order in which they were seen.
        gaps: where something may be missing, a sentence each; there is none as a rule.
    """

    target: str
    start: float
    end: float | None = None
    records: list[Record] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    # ---- what belongs to the target

    def clusters(self) -> list[str]:
        """The names of the target's RayClusters: itself, or those that a RayJob or RayService has owned."""
        kind, _, name = self.target.partition("/")
        if kind == "raycluster":
            return [name]
        found = [
            record.name
            for record in self.records
            if record.kind == "RayCluster" and (kind, name) in set(_owners(record.data))
        ]
        return list(dict.fromkeys(found))

    def pods(self) -> dict[str, list[Record]]:
        """The target's worker Pods by name: what was seen of each, in order."""
        clusters, found = set(self.clusters()), {}
        for record in self.records:
            if _is_worker(record, clusters):
                found.setdefault(record.name, []).append(record)
        return found

    def until(self) -> float:
        """When it ended, or what was last seen."""
        return self.end if self.end is not None else max((record.seen for record in self.records), default=self.start)

    # ---- what is read from it

    def stages(self, pod: str = "") -> Stages:
        """The cold start of a worker Pod, in parts; left away, of the first that Ray ran on.

        Raises:
            CourseError: there is no such Pod, or none has come since the timeline began.
        """
        return stages(self, pod)

    def steps(self) -> Steps:
        """What was done since the start, step by step, for the target's newest RayCluster: by whom, what it changed in
        its object, and how far each Pod was then.

        Raises:
            CourseError: there is no RayCluster of it in the record.
        """
        return steps(self)

    def rows(self) -> dict[str, dict[str, Series]]:
        """All rows that can be drawn: row → series → its values over time."""
        return rows(self)

    def peak(self, row: str) -> Peak:
        """The highest total of a row, and when it was reached.

        Raises:
            CourseError: there is no such row.
        """
        return peak(row, self.row(row))

    def row(self, name: str) -> dict[str, Series]:
        """One row: series → its values over time.

        Raises:
            CourseError: there is no such row.
        """
        found = self.rows()
        if name not in found:
            raise CourseError(f"A timeline has no row {name!r:.40}.", f"Rows are: {', '.join(found)}.")
        return found[name]

    def lines(self) -> list[tuple[str, str, str]]:
        """What happened, a line each: seconds since the start, of what, what."""
        return [(f"+{record.at - self.start:.1f} s", record.target, what)
                for record, what in told(self.records) if record.change != THERE]  # fmt: skip

    def table(self) -> str:
        """What happened, as text in columns."""
        return columns([("When", "What", "Change"), *self.lines()])

    def __str__(self) -> str:
        seconds, count = self.until() - self.start, len(self.records)
        gaps = f"; {'; '.join(self.gaps)}" if self.gaps else ""
        return f"Timeline of {self.target}: {count} records in {seconds:.0f} s{gaps}"

    __repr__ = __str__

    # ---- files

    def save(self, path: str | Path) -> None:
        """Write it to a file: JSON lines, the first of which is about all."""
        first = {"version": VERSION, "target": self.target, "start": self.start, "end": self.until(), "gaps": self.gaps}
        text = "".join(json.dumps(line) + "\n" for line in (first, *map(asdict, list(self.records))))
        Path(path).write_text(text)

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Read what `save` has written.

        Raises:
            CourseError: there is no such file, or a line of it is no record; the sentence has its number.
        """
        fix = "Give a file that `timeline.save(…)` has written."
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CourseError(f"The timeline {path} cannot be read: {error}.", fix) from None
        if not lines:
            raise CourseError(f"The timeline {path} is empty.", fix)
        read = []
        for number, line in enumerate(lines, 1):
            try:
                told = json.loads(line)
                if number == 1 and told.pop("version") != VERSION:
                    raise ValueError("another version")
                read.append(Record(**told) if number > 1 else cls(**told))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise CourseError(f"Line {number} of {path} is no record of a timeline ({error}).", fix) from None
        found, *records = read
        found.records = records
        return found


# ---- stages ----------------------------------------------------------------------------------------------------------

# the moments of a cold start in their order, and the stage that ends with each
_MOMENTS = ("begun", "asked", "created", "scheduled", "started", "joined", "used")
_STAGES = {
    "asked": ("decide", "from the beginning to the autoscaler's patch of the RayCluster"),
    "created": ("create", "until the operator had made the Pod"),
    "scheduled": ("schedule", "until the scheduler had chosen a Kubernetes node"),
    "started": ("start", "until Ray's container ran, its init containers included"),
    "joined": ("join", "until the Ray node was in the GCS"),
    "used": ("load", "until work ran on it"),
}
_PROVISION = ("provision", "until the machine that it waited for was Ready")
_PULL = ("pull", "images on their way to the Kubernetes node")
_UNEXPLAINED = ("unexplained", "moments that nobody noted lie in it")


def stages(timeline: Timeline, pod: str = "") -> Stages:
    """As `Timeline.stages`."""
    pods = timeline.pods()
    if pod and pod not in pods:
        raise CourseError(
            f"The timeline has no worker Pod {pod!r:.80} of {timeline.target}.",
            f"It has: {', '.join(pods) or 'none'}.",
        )
    moments = {name: _moments(timeline, name, seen) for name, seen in pods.items()}
    if not pod:
        come = {name: found for name, found in moments.items() if found.get("created", 0) >= timeline.start - 1}
        if not come:
            raise CourseError(
                f"No worker Pod of {timeline.target} has come since the timeline began.",
                "Begin it before the demand, and end it after; or name a Pod: `stages(pod=…)`.",
            )
        # the first that was of use; of those that never were, the first that was made
        pod = min(come, key=lambda name: (come[name].get("joined", float("inf")), come[name]["created"]))
    return Stages(pod, *_divided(timeline, pod, pods[pod], moments[pod]))


def _moments(timeline: Timeline, pod: str, seen: list[Record]) -> dict[str, float]:
    """When each moment of a Pod's start was, as far as it is known."""
    created = _exact(seen[0].data["metadata"]["creationTimestamp"], seen[0])
    found = {"begun": min(max(timeline.start, _target_made(timeline)), created), "created": created}
    asked = _asked(timeline, Pod(seen[0].data), created)
    if asked is not None:
        found["asked"] = asked
    for record in seen:
        made = Pod(record.data)
        scheduled, running = made.condition("PodScheduled"), made.ray.state.get("running")
        if scheduled.get("status") == "True":
            found.setdefault("scheduled", _exact(scheduled["lastTransitionTime"], record))
        if running:
            found.setdefault("started", _exact(running["startedAt"], record))
    for record in timeline.records:
        if record.kind == "Ray":
            for node in record.data.get("nodes") or ():
                if node.get("pod") == pod:
                    found.setdefault("joined", record.at)
                    if node.get("used"):
                        found.setdefault("used", record.at)
    return found


def _divided(
    timeline: Timeline, pod: str, seen: list[Record], moments: Mapping[str, float]
) -> tuple[float, tuple[Stage, ...]]:
    """Seconds of the whole, and its parts."""
    known = [name for name in _MOMENTS if name in moments]
    parts: list[Stage] = []
    at = moments["begun"]
    for before, name in zip(known, known[1:], strict=False):
        seconds = max(moments[name] - at, 0.0)  # two clocks may differ by a moment
        at += seconds
        is_next = _MOMENTS.index(name) == _MOMENTS.index(before) + 1
        # without Ray's autoscaler nobody asks: then the operator makes the Pod of its own accord
        if is_next or (before, name) == ("begun", "created"):
            parts += _with_waits(timeline, pod, seen, name, at - seconds, at)
        else:
            parts.append(Stage(_UNEXPLAINED[0], seconds, f"until it was {name}: {_UNEXPLAINED[1]}"))
    return at - moments["begun"], tuple(parts)


def _with_waits(timeline: Timeline, pod: str, seen: list[Record], name: str, begin: float, end: float) -> list[Stage]:
    """A stage, and before it what it waited for: a machine, or an image."""
    waited, what = 0.0, _PROVISION
    if name == "scheduled":
        waited = max(_machine_ready(timeline, seen, begin, end) - begin, 0.0)
    elif name == "started":
        waited, what = _pulling(timeline, pod, begin, end), _PULL
    stage, meaning = _STAGES[name]
    first = [Stage(what[0], waited, what[1])] if waited else []
    return [*first, Stage(stage, end - begin - waited, meaning)]


def _machine_ready(timeline: Timeline, seen: list[Record], begin: float, end: float) -> float:
    """When the Kubernetes node that a Pod went to was Ready, if that came after the Pod; else `begin`."""
    chosen = next((one for one in (record.data["spec"].get("nodeName") for record in reversed(seen)) if one), None)
    for record in timeline.records:
        if record.kind == "Node" and record.name == chosen:
            for condition in (record.data.get("status") or {}).get("conditions") or ():
                if (condition["type"], condition["status"]) == ("Ready", "True"):
                    return min(max(_exact(condition["lastTransitionTime"], record), begin), end)
    return begin


def _pulling(timeline: Timeline, pod: str, begin: float, end: float) -> float:
    """Seconds between `begin` and `end` in which an image of a Pod was on its way."""
    pulled, started = 0.0, None
    for record in sorted((one for one in timeline.records if _is_about(one, pod)), key=lambda one: one.at):
        if record.data.get("reason") == "Pulling":
            started = record.at if started is None else started
        elif record.data.get("reason") in ("Pulled", "Failed") and started is not None:
            pulled += max(min(record.at, end) - max(started, begin), 0.0)
            started = None
    return pulled


def _is_about(record: Record, pod: str) -> bool:
    return record.kind == "Event" and (Event(record.data).kind, Event(record.data).name) == ("Pod", pod)


def _asked(timeline: Timeline, pod: Pod, created: float) -> float | None:
    """When the autoscaler last asked for more of a Pod's group, before that Pod was made."""
    before, found = None, None
    for record in timeline.records:
        if record.kind == "RayCluster" and record.name == pod.cluster:
            now = _replicas(record.data).get(pod.group)
            if before is not None and now is not None and now > before and record.at <= created + SAME_S:
                found = min(record.at, created)
            before = now
    return found


def _replicas(cluster: Mapping[str, Any]) -> dict[str, int]:
    groups = (cluster.get("spec") or {}).get("workerGroupSpecs") or ()
    return {group["groupName"]: group.get("replicas") or 0 for group in groups}


def _target_made(timeline: Timeline) -> float:
    """When the target was made, as far as the record has it; else the start."""
    for record in timeline.records:
        if record.target == timeline.target:
            return _exact(record.data["metadata"]["creationTimestamp"], record)
    return timeline.start


# ---- steps -----------------------------------------------------------------------------------------------------------

# how far a Pod is, in order; "ending" may come after each of them
POD_STATES = ("pending", "scheduled", "init", "running", "Ready")


def steps(timeline: Timeline) -> Steps:
    """As `Timeline.steps`."""
    last = {(record.kind, record.name): record.data for record in timeline.records}
    found = [name for name in timeline.clusters() if ("RayCluster", name) in last]
    if not found:
        raise CourseError(
            f"The timeline has no RayCluster of {timeline.target}.", "Record one while it is made, or while it works."
        )
    cluster = last["RayCluster", found[-1]]
    pods = [one for (kind, _), one in last.items() if kind == "Pod" and Pod(one).cluster == found[-1]]
    names = {("RayCluster", found[-1]), *(("Pod", pod["metadata"]["name"]) for pod in pods)}
    events = [one for (kind, _), one in last.items() if kind == "Event" and (Event(one).kind, Event(one).name) in names]
    read = steps_of(cluster, pods, events).since(datetime.fromtimestamp(timeline.start, UTC))
    return replace(read, steps=tuple(_recorded(timeline, read, _pod_states(timeline, found[-1]))))


def _recorded(
    timeline: Timeline, read: Iterable[Step], states: Sequence[tuple[float, Mapping[str, str]]]
) -> Iterator[Step]:
    """Each step with what it changed, and how far each Pod was afterwards.

    A step that shows in no object, such as an event about something else, has the states of the step before: events
    have whole seconds, in which much may happen.
    """
    at = 0.0
    for step in read:
        change: tuple[str, ...] = ()
        for record, before in _history(timeline, step.about):
            if record.change != THERE and _shows(step, before, record):
                change = ("it is new",) if before is None else tuple(difference(before, record.data))
                at = max(at, record.seen)
                break
        there = next((one for seen, one in reversed(states) if seen <= at), {})
        yield replace(step, change=change, states=tuple(there.items()))


def _history(timeline: Timeline, about: str) -> Iterator[tuple[Record, Mapping[str, Any] | None]]:
    """The records of an object, each with what it was before."""
    before = None
    for record in timeline.records:
        if f"{record.kind}/{record.name}" == about:
            yield record, before
            before = record.data


def _shows(step: Step, before: Mapping[str, Any] | None, record: Record) -> bool:
    """Whether this is the record in which a step shows for the first time."""
    mark = _MARKS.get(step.key)
    return mark is not None and mark(step, record.data) and not (before and mark(step, before))


def _in_state(thing: Mapping[str, Any], container: str, state: str) -> bool:
    one = Pod(thing).container(container)
    return one is not None and state in one.state


def _has_condition(thing: Mapping[str, Any], kind: str, at: datetime) -> bool:
    written = Pod(thing).condition(kind)
    return written.get("status") == "True" and time_of(written["lastTransitionTime"]) == at


# by the key of a step: what an object has from that step on
_MARKS: dict[str, Callable[[Step, Mapping[str, Any]], bool]] = {
    "Stored": lambda step, thing: True,
    "CreatedHeadPod": lambda step, thing: True,
    "CreatedWorkerPod": lambda step, thing: True,
    "Scheduled": lambda step, thing: bool(thing["spec"].get("nodeName")),
    "Started init": lambda step, thing: _in_state(thing, WAIT, "running"),
    "Ended init": lambda step, thing: _in_state(thing, WAIT, "terminated"),
    "Started": lambda step, thing: _in_state(thing, step.what.rpartition("started ")[2], "running"),
    "Ready": lambda step, thing: _has_condition(thing, "Ready", step.at),
    "Killing": lambda step, thing: Pod(thing).is_leaving,
    "Provisioned": lambda step, thing: _has_condition(thing, "RayClusterProvisioned", step.at),
    "State": lambda step, thing: (thing.get("status") or {}).get("state") == "ready",
}


def _pod_states(timeline: Timeline, cluster: str) -> list[tuple[float, dict[str, str]]]:
    """(when it was seen, how far each Pod of a RayCluster was then), in order."""
    now: dict[str, str] = {}
    found = []
    for record in timeline.records:
        if record.kind == "Pod" and Pod(record.data).cluster == cluster:
            now.pop(record.name, None)
            if record.change != DELETED:
                now[record.name] = pod_state(Pod(record.data))
            found.append((record.seen, dict(now)))
    return found


def pod_state(pod: Pod) -> str:
    """How far a Pod is: one of `POD_STATES`, or "ending" or "ended"."""
    if pod.is_leaving:
        return "ending"
    if pod.is_over:
        return "ended"
    if pod.is_ready:
        return "Ready"
    if pod.ray.is_running:
        return "running"
    if any(one.state.keys() - {"waiting"} for one in pod.init_containers):
        return "init"
    return "scheduled" if pod.machine else "pending"


# ---- series ----------------------------------------------------------------------------------------------------------


def rows(timeline: Timeline) -> dict[str, dict[str, Series]]:
    """As `Timeline.rows`.

    demand: what is asked for and runs nowhere, by resource · replicas: what the RayCluster is to have, by group · pods:
    worker Pods, by how far they are · Ray nodes: workers, busy and idle · machines: Kubernetes nodes, Ready or not.
    """
    clusters = set(timeline.clusters())
    counts: dict[str, Callable[[dict[tuple[str, str], Record]], dict[str, float]]] = {
        "demand": lambda now: _demand(now, clusters),
        "replicas": lambda now: _all_replicas(now, clusters),
        "pods": lambda now: _pods(now, clusters),
        "Ray nodes": lambda now: _ray_nodes(now, clusters),
        "machines": _machines,
    }
    found: dict[str, dict[str, Series]] = {name: {} for name in counts}
    for at_s, now in _states(timeline):
        for name, count in counts.items():
            values = count(now)
            for series in {**found[name], **values}:
                _append(found[name].setdefault(series, []), at_s, values.get(series, 0.0))
    return found


def _states(timeline: Timeline) -> Iterator[tuple[float, dict[tuple[str, str], Record]]]:
    """What there was after each record: (seconds since the start, the last record of each object that was there)."""
    now: dict[tuple[str, str], Record] = {}
    for record in timeline.records:
        if record.kind == "Event":
            continue
        if record.change == DELETED:
            now.pop((record.kind, record.name), None)
        else:
            now[record.kind, record.name] = record
        yield max(record.seen - timeline.start, 0.0), now


def _append(series: Series, at_s: float, value: float) -> None:
    if not series and at_s > 0:
        series.append((0.0, 0.0))  # it was not there before
    if series and series[-1][0] == at_s:
        series.pop()
    if not series or series[-1][1] != value:
        series.append((at_s, value))


def peak(row: str, series: Mapping[str, Series]) -> Peak:
    """The highest total of a row's series, and when it was reached first."""
    at_s, value = max(total(series.values()), key=lambda point: (point[1], -point[0]), default=(0.0, 0.0))
    return Peak(row, value, at_s)


def total(series: Iterable[Series]) -> Series:
    """The sum of several series over time."""
    steps = sorted((at_s, number, value) for number, one in enumerate(series) for at_s, value in one)
    now: dict[int, float] = {}
    found: Series = []
    for at_s, number, value in steps:
        now[number] = value
        _append(found, at_s, sum(now.values()))
    return found


def _of(now: Mapping[tuple[str, str], Record], kind: str) -> list[Record]:
    return [record for (one, _), record in now.items() if one == kind]


def _demand(now: Mapping[tuple[str, str], Record], clusters: set[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for record in _of(now, "Ray"):
        if record.name in clusters:
            for wanted in record.data.get("demand") or ():
                for resource, amount in wanted["resources"].items():
                    found[resource] = found.get(resource, 0.0) + amount * wanted["count"]
    return {name: amount for name, amount in found.items() if name != "memory"}


def _all_replicas(now: Mapping[tuple[str, str], Record], clusters: set[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for record in _of(now, "RayCluster"):
        if record.name in clusters:
            for group, count in _replicas(record.data).items():
                found[group] = found.get(group, 0.0) + count
    return found


def _pods(now: Mapping[tuple[str, str], Record], clusters: set[str]) -> dict[str, float]:
    found = {"waiting for a Kubernetes node": 0.0, "starting": 0.0, "Ready": 0.0}
    for record in _of(now, "Pod"):
        if _is_worker(record, clusters):
            pod = Pod(record.data)
            state = "Ready" if pod.is_ready else "starting" if pod.machine else "waiting for a Kubernetes node"
            found[state] += 1
    return found


def _ray_nodes(now: Mapping[tuple[str, str], Record], clusters: set[str]) -> dict[str, float]:
    found = {"busy": 0.0, "idle": 0.0}
    for record in _of(now, "Ray"):
        if record.name in clusters:
            for node in record.data.get("nodes") or ():
                if not node.get("head"):
                    found["idle" if node.get("idle") else "busy"] += 1
    return found


def _machines(now: Mapping[tuple[str, str], Record]) -> dict[str, float]:
    found = {"Ready": 0.0, "not Ready": 0.0}
    for record in _of(now, "Node"):
        found["Ready" if conditions(record.data).get("Ready") == "True" else "not Ready"] += 1
    return found


# ---- what is said of each record -------------------------------------------------------------------------------------


def told(records: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    """Each record, and what of it is new, in words; those with nothing new are left out."""
    before: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.kind, record.name)
        if what := _what(record, before.get(key)):
            yield record, what
        before[key] = record


def _what(record: Record, before: Record | None) -> str:
    if record.kind == "Event":
        event = Event(record.data)
        return f"{event.reason} ({event.kind} {event.name}): {' '.join(event.message.split())}"
    if record.change in (THERE, ADDED, DELETED):
        return record.change
    old = before.data if before else {}
    return "; ".join(difference(old, record.data)[:4])


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What is different in two states of an object: a line for each field, with what it was and what it is.

    What the API server notes of its own (resourceVersion, generation, managedFields) is left out.
    """
    before, after = dict(_leaves(old)), dict(_leaves(new))
    lines = []
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            was, now = (_short(one[path]) if path in one else "nothing" for one in (before, after))
            lines.append(f"{path}: {was} → {now}")
    return lines


_NOT_TOLD = {"metadata.resourceVersion", "metadata.generation", "metadata.managedFields"}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if path in _NOT_TOLD:
        return
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(value[key], f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            # conditions, containers and groups keep their identity when their order changes
            name = next((item[key] for key in ("type", "groupName", "name", "pod") if key in item), number) \
                if isinstance(item, Mapping) else number  # fmt: skip
            yield from _leaves(item, f"{path}[{name}]")
    else:
        yield path, value


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# ---- small parts -----------------------------------------------------------------------------------------------------


def _exact(written: str, record: Record) -> float:
    """A moment that an object has to the second: finer, if it was seen to happen."""
    at = time_of(written).timestamp()
    return record.seen if record.source == "watch" and 0 <= record.seen - at < SAME_S else at


def conditions(thing: Mapping[str, Any]) -> dict[str, str]:
    """An object's conditions: type → "True", "False" or "Unknown"."""
    return {one["type"]: one["status"] for one in (thing.get("status") or {}).get("conditions") or ()}


def _is_worker(record: Record, clusters: set[str]) -> bool:
    return record.kind == "Pod" and Pod(record.data).is_worker and Pod(record.data).cluster in clusters


def _owners(thing: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["kind"].lower(), one["name"]) for one in thing["metadata"].get("ownerReferences") or ()]

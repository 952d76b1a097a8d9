"""The record of what happened: that nothing of it is lost, and what is read from it."""

from __future__ import annotations

import itertools
import random
import threading
import time
from datetime import UTC, datetime

import pytest

from helpers.errors import CourseError
from helpers.kube import KubeError, NoAnswer, Resource
from helpers.observe import recorder, timeline
from helpers.observe.recorder import Recorder
from helpers.observe.snapshot import time_of
from helpers.observe.things import Pod
from helpers.observe.timeline import CHANGED, HERE, Record, Timeline, difference
from helpers.wait import wait_until
from helpers.widgets.timeline import Drawn

T0 = 1_700_000_000.0  # 2023-11-14T22:13:20Z


def written(at_s: float) -> str:
    return datetime.fromtimestamp(int(T0 + at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- what is read from a record --------------------------------------------------------------------------------------


class Story:
    """A timeline that is told by a test: seconds after its start."""

    def __init__(self, target: str = "raycluster/demo"):
        self.timeline = Drawn(target, T0)

    def note(self, at_s: float, kind: str, name: str, data: dict, change: str = CHANGED, source: str = "watch") -> None:
        at = time_of(data["lastTimestamp"]).timestamp() if kind == "Event" else T0 + at_s
        self.timeline.records.append(Record(T0 + at_s, source, change, kind, name, at, HERE, data))

    def cluster(self, at_s: float, replicas: int, change: str = CHANGED) -> None:
        spec = {"workerGroupSpecs": [{"groupName": "gpu", "replicas": replicas}]}
        metadata = {"name": "demo", "creationTimestamp": written(-100)}
        self.note(at_s, "RayCluster", "demo", {"metadata": metadata, "spec": spec}, change)

    def pod(self, at_s: float, *, made: float, scheduled: float = -1, running: float = -1, change: str = CHANGED,
            node: str = "") -> None:  # fmt: skip
        labels = {"ray.io/cluster": "demo", "ray.io/group": "gpu", "ray.io/node-type": "worker"}
        status: dict = {"conditions": [], "containerStatuses": []}
        if scheduled >= 0:
            condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": written(scheduled)}
            status["conditions"].append(condition)
        if running >= 0:
            state = {"running": {"startedAt": written(running)}}
            status["containerStatuses"].append({"name": "ray-worker", "state": state})
        metadata = {"name": "w", "creationTimestamp": written(made), "labels": labels}
        spec = {"containers": [{"name": "ray-worker"}]} | ({"nodeName": node} if node else {})
        self.note(at_s, "Pod", "w", {"metadata": metadata, "spec": spec, "status": status}, change)

    def event(self, at_s: float, reason: str) -> None:
        about = {"kind": "Pod", "name": "w"}
        data = {"involvedObject": about, "reason": reason, "message": reason, "lastTimestamp": written(at_s)}
        self.note(at_s, "Event", f"w.{reason}", data, "said", "event")

    def ray(self, at_s: float, *, demand: float = 0, joined: bool = False, used: bool = False) -> None:
        nodes = [{"pod": "w", "head": False, "idle": not used, "used": {"GPU": 1} if used else {}}] if joined else []
        wanted = [{"resources": {"GPU": demand}, "count": 1}] if demand else []
        self.note(at_s, "Ray", "demo", {"nodes": nodes, "demand": wanted}, "state", "Ray")


@pytest.fixture
def story() -> Story:
    """A worker that comes: 10 s to be asked for, 1 s to be made, 9 s for a machine, 5 s for its image, and so on."""
    told = Story()
    told.cluster(0, 0, "there")
    told.ray(0.5, demand=1)
    told.cluster(10.25, 1)
    told.pod(11.5, made=11.5, change="added")
    told.note(15, "Node", "m", {"metadata": {"name": "m"}, "status": {"conditions": []}}, "added")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": written(20)}
    told.note(20.5, "Node", "m", {"metadata": {"name": "m"}, "status": {"conditions": [ready]}})
    told.pod(21.0, made=11.5, scheduled=21, node="m")
    told.event(22, "Pulling")
    told.event(27, "Pulled")
    told.pod(30.75, made=11.5, scheduled=21, running=30, node="m")
    told.ray(33.0, joined=True)
    told.ray(34.5, joined=True, used=True)
    return told


def test_a_cold_start_in_parts(story: Story) -> None:
    found = story.timeline.stages()
    assert {part.name: round(part.seconds, 3) for part in found} == {
        "decide": 10.25, "create": 1.25, "provision": 9.0, "schedule": 0.5, "pull": 5.0, "start": 4.75, "join": 2.25,
        "load": 1.5,
    }  # fmt: skip
    assert found.pod == "w" and found.whole_s == pytest.approx(34.5)
    assert sum(part.seconds for part in found) == pytest.approx(found.whole_s)
    assert found["pull"] == 5.0 and found["unexplained"] == 0.0
    assert "Cold start of w: 34.5 s" in str(found)


def test_what_nobody_noted_is_unexplained(story: Story) -> None:
    without = [record for record in story.timeline.records if not timeline.conditions(record.data).get("PodScheduled")]
    story.timeline.records[:] = without
    found = story.timeline.stages()
    assert [part.name for part in found] == ["decide", "create", "unexplained", "load"]
    assert sum(part.seconds for part in found) == pytest.approx(found.whole_s)


def test_a_group_that_nobody_scales_has_no_decision() -> None:
    told = Story()
    told.cluster(0, 1, "there")
    told.pod(2.0, made=2, change="added")
    told.pod(3.0, made=2, scheduled=3)
    told.pod(5.0, made=2, scheduled=3, running=5)
    assert [(part.name, part.seconds) for part in told.timeline.stages()] == [
        ("create", 2.0), ("schedule", 1.0), ("start", 2.0),
    ]  # fmt: skip


def test_times_that_were_not_seen_are_those_of_the_objects() -> None:
    """A record that begins late has the whole seconds that the API server keeps."""
    told = Story()
    told.cluster(0, 1, "there")
    told.pod(60.0, made=2, scheduled=3, running=9, change="added")
    assert {part.name: part.seconds for part in told.timeline.stages("w")} == {
        "create": 2.0, "schedule": 1.0, "start": 6.0,
    }  # fmt: skip


def test_clocks_that_differ_make_no_negative_stage(story: Story) -> None:
    story.ray(30.2, joined=True)  # by the head's clock before its container ran
    records = sorted(story.timeline.records, key=lambda record: record.at)
    story.timeline.records[:] = records
    found = story.timeline.stages()
    assert all(part.seconds >= 0 for part in found) and sum(p.seconds for p in found) == pytest.approx(found.whole_s)


def test_stages_of_what_is_not_there() -> None:
    told = Story()
    told.cluster(0, 0, "there")
    with pytest.raises(CourseError, match="No worker Pod of raycluster/demo has come"):
        told.timeline.stages()
    with pytest.raises(CourseError, match="no worker Pod 'x' of raycluster/demo"):
        told.timeline.stages("x")


def test_rows_and_their_peaks(story: Story) -> None:
    rows = story.timeline.rows()
    assert rows["demand"]["GPU"] == [(0.0, 0.0), (0.5, 1.0), (33.0, 0.0)]
    assert rows["replicas"]["gpu"] == [(0.0, 0.0), (10.25, 1)]
    assert rows["pods"]["starting"] == [(0.0, 0.0), (21.0, 1.0)]
    assert rows["machines"]["Ready"] == [(0.0, 0.0), (20.5, 1.0)]
    assert rows["Ray nodes"]["busy"] == [(0.0, 0.0), (34.5, 1.0)]
    assert (story.timeline.peak("pods").value, story.timeline.peak("pods").at_s) == (1.0, 11.5)
    assert str(story.timeline.peak("demand")) == "demand: 1, reached after 0.5 s"
    with pytest.raises(CourseError, match="no row 'pots'"):
        story.timeline.peak("pots")


def test_the_clusters_of_a_job(story: Story) -> None:
    told = Story("rayjob/squares")
    owner = {"ownerReferences": [{"kind": "RayJob", "name": "squares"}]}
    told.note(1, "RayCluster", "squares-x1", {"metadata": owner | {"name": "squares-x1"}, "spec": {}})
    told.note(2, "RayCluster", "other", {"metadata": {"name": "other"}, "spec": {}})
    assert told.timeline.clusters() == ["squares-x1"]


def test_the_table_tells_what_is_new(story: Story) -> None:
    text = story.timeline.table()
    assert "+10.2 s" in text and "spec.workerGroupSpecs[gpu].replicas: 0 → 1" in text
    assert "Pulling (Pod w): Pulling" in text


def test_differences() -> None:
    old = {
        "metadata": {"resourceVersion": "1"},
        "spec": {"a": 1, "list": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]},
    }
    new = {"metadata": {"resourceVersion": "2"}, "spec": {"b": "long " * 30, "list": [{"name": "y", "v": 3}]}}
    assert difference(old, old | {"metadata": {"resourceVersion": "9"}}) == []
    told = difference(old, new)
    assert told[0] == "spec.a: 1 → nothing" and told[1].endswith("…")
    assert told[2:] == [
        "spec.list[x].name: x → nothing", "spec.list[x].v: 1 → nothing", "spec.list[y].v: 2 → 3",
    ]  # fmt: skip


def test_saved_and_loaded(story: Story, tmp_path) -> None:
    path = tmp_path / "t.jsonl"
    story.timeline.save(path)
    again = Timeline.load(path)
    assert again.records == story.timeline.records and again.stages() == story.timeline.stages()
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[3][:40]]))
    with pytest.raises(CourseError, match="Line 4 of .* is no record"):
        Timeline.load(path)
    for text, said in (("", "is empty"), ("[]", "Line 1"), ('{"version": 99}', "another version")):
        path.write_text(text)
        with pytest.raises(CourseError, match=said):
            Timeline.load(path)
    with pytest.raises(CourseError, match="cannot be read"):
        Timeline.load(tmp_path / "nowhere")


def test_it_is_drawn_with_its_numbers(story: Story, capsys, monkeypatch) -> None:
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    story.timeline.end = T0 + 40
    story.timeline.plot()
    [drawing] = shown
    assert drawing.alt.startswith("Step charts over 40 seconds, raycluster/demo. demand: at most 1")
    assert ("0.5", "demand", "GPU", "1") in drawing.rows and drawing.png.startswith(b"\x89PNG")
    with pytest.raises(CourseError, match="no row"):
        story.timeline.plot("pots")
    Drawn("raycluster/none", T0).plot("pods")
    assert "pods: nothing happened" in capsys.readouterr().out


# ---- how it is recorded ----------------------------------------------------------------------------------------------


KINDS = {"pods": "Pod", "rayclusters": "RayCluster", "events": "Event"}


class Server:
    """Stands for an API server: objects, their history, and watches of it. Faults are made by the test."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict]] = {}
        self.history: list[tuple[int, str, str, dict]] = []
        self.version, self.oldest, self.down = itertools.count(100), 0, False
        self.now, self.lists, self.refused = 99, 0, 0
        self.lock = threading.Lock()

    def change(self, plural: str, name: str, kind: str, **fields: object) -> None:
        with self.lock:
            self.now = next(self.version)
            old = self.objects.setdefault(plural, {}).get(name)
            metadata = {"name": name, "uid": (old or {"metadata": {"uid": f"{name}-{self.now}"}})["metadata"]["uid"]}
            thing = {"metadata": metadata | {"resourceVersion": str(self.now)}, **fields}
            if kind == "DELETED":
                self.objects[plural].pop(name)
            else:
                self.objects[plural][name] = thing
            self.history.append((self.now, plural, kind, thing))

    def forget(self) -> None:
        """What happened until now can be watched no more."""
        with self.lock:
            self.oldest, self.history = self.now + 1, []

    def _answer(self) -> None:
        if self.down:
            self.refused += 1
            raise NoAnswer("connection refused")

    def be_down(self) -> None:
        """Answer nobody until all watches have noticed."""
        self.down, before = True, self.refused
        wait_until(lambda: self.refused >= before + 3 * len(KINDS), 5, what="the watches to notice")

    # what Recorder asks of Kube

    def find(self, name: str) -> Resource | None:
        return Resource("/v1", name, KINDS[name], frozenset({name}), True) if name in KINDS else None

    def list_at(self, resource: Resource, namespace: str) -> tuple[list[dict], str]:
        self._answer()
        self.lists += 1
        with self.lock:
            of_kind = {"kind": resource.kind, "apiVersion": "v1"}
            return [one | of_kind for one in self.objects.get(resource.plural, {}).values()], str(self.now)

    def watch(self, resource: Resource, namespace: str, since: str, timeout_s: int):
        at, end = int(since), time.monotonic() + 0.05
        while time.monotonic() < end:
            self._answer()
            with self.lock:
                if at + 1 < self.oldest:
                    raise KubeError(410, "Expired", "too old resource version")
                news = [one for one in self.history if one[0] > at and one[1] == resource.plural]
                at = max((one[0] for one in news), default=at)
            for _, _, kind, thing in news:
                yield {"type": kind, "object": thing}
            time.sleep(0.002)
        yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(at)}}}


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    monkeypatch.setattr(recorder, "AGAIN_S", 0.01)
    monkeypatch.setattr(Recorder.pause, "__defaults__", (0.01,))


def recording(server: Server) -> tuple[Recorder, Timeline]:
    made = Recorder(server, "lesson")
    return made, made.start(Timeline("raycluster/demo", made.now()))


def states(found: Timeline, kind: str) -> list[tuple[str, str, object]]:
    return [(one.change, one.name, one.data.get("step")) for one in found.records if one.kind == kind]


def test_each_state_of_each_object_is_noted_once_and_in_order() -> None:
    server = Server()
    server.change("pods", "old", "ADDED", step=0)
    made, found = recording(server)
    rng, wanted = random.Random(5), [("there", "old", 0)]
    for step in range(1, 120):
        name = rng.choice(["a", "b", "c"])
        there = name in server.objects["pods"]
        kind = rng.choice(["MODIFIED", "MODIFIED", "DELETED"]) if there else "ADDED"
        last = server.objects["pods"].get(name, {}).get("step")
        server.change("pods", name, kind, step=last if kind == "DELETED" else step)
        word = {"ADDED": "added", "MODIFIED": "changed", "DELETED": "deleted"}[kind]
        wanted.append((word, name, last if kind == "DELETED" else step))
        if step % 40 == 0:
            server.be_down()
            server.down = False
    made.stop()
    assert states(found, "Pod") == wanted
    assert not found.gaps and found.end is not None
    assert [one.seen for one in found.records] == sorted(one.seen for one in found.records)


def test_what_the_api_server_has_forgotten_is_a_gap_that_is_told() -> None:
    server = Server()
    for name in ("kept", "changed", "deleted"):
        server.change("pods", name, "ADDED", step=0)
    made, found = recording(server)
    server.be_down()
    server.change("pods", "changed", "MODIFIED", step=1)
    server.change("pods", "changed", "MODIFIED", step=2)
    server.change("pods", "deleted", "DELETED", step=0)
    server.change("pods", "new", "ADDED", step=3)
    server.forget()
    server.down = False
    wait_until(lambda: len(states(found, "Pod")) == 6, 5, what="the new list")
    made.stop()
    assert sorted(states(found, "Pod")[3:]) == [
        ("added", "new", 3),
        ("changed", "changed", 2),
        ("deleted", "deleted", 0),
    ]
    [said] = found.gaps
    assert "3 pods changed while the API server could not be watched" in said


def test_a_restart_after_which_nothing_has_changed_is_no_gap() -> None:
    server = Server()
    server.change("pods", "kept", "ADDED", step=0)
    made, found = recording(server)
    server.change("rayclusters", "else", "ADDED")
    wait_until(lambda: states(found, "RayCluster"), 5, what="the other one")
    listed = server.lists
    server.forget()
    wait_until(lambda: server.lists >= listed + 2, 5, what="the watches of Pods and events to list anew")
    made.stop()
    assert not found.gaps and states(found, "Pod") == [("there", "kept", 0)]


def test_after_the_end_nothing_is_noted() -> None:
    server = Server()
    made, found = recording(server)
    made.stop()
    made.put("watch", "added", "Pod", "late", {})
    made.gap("something")
    assert not found.records and not found.gaps


def test_an_end_that_does_not_come_is_told(monkeypatch, capsys) -> None:
    monkeypatch.setattr(recorder, "CAUGHT_UP_S", 0.05)
    server = Server()
    made, found = recording(server)
    server.down = True
    made.stop()
    assert len(found.gaps) == 3 and "may be missing" in found.gaps[0]


def test_events_have_their_own_time_and_clock() -> None:
    server = Server()
    made, found = recording(server)
    server.change("events", "e", "ADDED", involvedObject={}, reason="Pulling", lastTimestamp=written(5),
                  source={"component": "kubelet"})  # fmt: skip
    wait_until(lambda: [one for one in found.records if one.kind == "Event"], 5, what="the event")
    made.stop()
    [event] = [one for one in found.records if one.kind == "Event"]
    assert (event.at, event.clock, event.source, event.change) == (T0 + 5, "kubelet", "event", "said")


def test_what_changes_always_is_no_news() -> None:
    heartbeat = {"type": "Ready", "status": "True", "lastHeartbeatTime": written(1), "lastTransitionTime": written(0)}
    node = {
        "kind": "Node",
        "metadata": {"name": "m", "uid": "1", "resourceVersion": "1"},
        "status": {"conditions": [heartbeat]},
    }
    later = node | {
        "metadata": node["metadata"] | {"resourceVersion": "2"},
        "status": {"conditions": [heartbeat | {"lastHeartbeatTime": written(9)}]},
    }
    assert recorder._plain(recorder._reduced(node)) == recorder._plain(recorder._reduced(later))


# ---- its steps -------------------------------------------------------------------------------------------------------


@pytest.fixture
def start() -> Drawn:
    """The start of a worker: stored, made, scheduled, its init container, Ray, Ready."""
    told = Story()
    meta = {"name": "demo", "creationTimestamp": written(0)}
    told.note(0.1, "RayCluster", "demo", {"kind": "RayCluster", "metadata": meta, "spec": {}}, "added")
    labels = {"ray.io/cluster": "demo", "ray.io/node-type": "worker"}
    made = {"event": "CreatedWorkerPod", "message": "Created worker Pod lesson/w"}
    about = {"kind": "RayCluster", "name": "demo"}
    event = {"metadata": {"namespace": "lesson", "creationTimestamp": written(1)}, "involvedObject": about,
             "reason": made["event"], "message": made["message"], "firstTimestamp": written(1),
             "lastTimestamp": written(1), "source": {"component": "raycluster-controller"}}  # fmt: skip
    told.note(1.2, "Event", "made", event, "said", "event")
    pod: dict = {
        "kind": "Pod",
        "metadata": {"name": "w", "creationTimestamp": written(1), "labels": labels},
        "spec": {"containers": [{"name": "ray-worker"}]},
        "status": {"phase": "Pending"},
    }
    told.note(1.1, "Pod", "w", dict(pod), "added")
    pod |= {"spec": pod["spec"] | {"nodeName": "m"}}
    pod |= {"status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": written(2)}]}}
    told.note(2.1, "Pod", "w", dict(pod))
    init = [{"name": "wait-gcs-ready", "state": {"running": {}}}]
    told.note(3.1, "Pod", "w", pod | {"status": pod["status"] | {"initContainerStatuses": init}})
    init = [{"name": "wait-gcs-ready", "state": {"terminated": {"exitCode": 0, "finishedAt": written(8)}}}]
    status = pod["status"] | {"initContainerStatuses": init}
    told.note(8.1, "Pod", "w", pod | {"status": status})
    status = status | {"containerStatuses": [{"name": "ray-worker", "state": {"running": {"startedAt": written(9)}}}]}
    told.note(9.1, "Pod", "w", pod | {"status": status})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": written(20)}
    told.note(20.1, "Pod", "w", pod | {"status": status | {"conditions": [*status["conditions"], ready]}})
    return told.timeline


def test_each_step_has_what_it_changed_and_how_far_each_pod_was(start: Drawn) -> None:
    found = {step.key: step for step in start.steps()}
    assert list(found) == ["Stored", "CreatedWorkerPod", "Ended init", "Ready"]
    assert found["Stored"].change == ("it is new",) and found["Stored"].states == ()
    assert (found["CreatedWorkerPod"].change, found["CreatedWorkerPod"].states) == (("it is new",), (("w", "pending"),))
    ended = found["Ended init"]
    assert "status.initContainerStatuses[wait-gcs-ready].state.terminated.exitCode: nothing → 0" in ended.change
    assert found["Ready"].states == (("w", "Ready"),)
    assert "status.conditions[Ready].status: nothing → True" in found["Ready"].change


def test_a_step_that_shows_in_no_object_has_the_states_of_the_step_before(start: Drawn) -> None:
    """Its event has a whole second, in which the Pod that comes after it may have started already."""
    about = {"kind": "RayCluster", "name": "demo"}
    event = {"metadata": {"namespace": "lesson", "creationTimestamp": written(2)}, "involvedObject": about,
             "reason": "CreatedRole", "message": "Created role lesson/demo", "firstTimestamp": written(2),
             "lastTimestamp": written(2), "source": {"component": "raycluster-controller"}}  # fmt: skip
    start.records.append(Record(T0 + 2.05, "event", "said", "Event", "role", T0 + 2, HERE, event))
    [role] = [step for step in start.steps() if step.key == "CreatedRole"]
    assert role.states == (("w", "pending"),) and role.change == ()


def test_the_stepper_shows_the_states_and_the_change(start: Drawn) -> None:
    walk = start.stepper().go(3)
    assert walk.shows.splitlines() == [
        "w: pending → scheduled → init → running → ▶ Ready ◀",
        "Changed in Pod/w:",
        "  status.conditions[Ready].status: nothing → True",
        "  status.conditions[Ready].type: nothing → Ready",
        "  and 1 other field",
    ]
    assert walk.shows.splitlines()[0] in walk.widget.children[2].value
    assert "  status.conditions[Ready].status: nothing → True" in str(walk)


def test_how_far_a_pod_is(start: Drawn) -> None:
    seen = [timeline.pod_state(Pod(record.data)) for record in start.records if record.kind == "Pod"]
    assert seen == ["pending", "scheduled", "init", "init", "running", "Ready"]
    last = start.records[-1].data
    assert (
        timeline.pod_state(Pod(last | {"metadata": last["metadata"] | {"deletionTimestamp": written(30)}})) == "ending"
    )
    assert timeline.pod_state(Pod(last | {"status": {"phase": "Failed"}})) == "ended"


def test_steps_of_what_is_not_in_the_record() -> None:
    with pytest.raises(CourseError, match="no RayCluster of raycluster/demo"):
        Story().timeline.steps()

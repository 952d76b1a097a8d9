"""Records a timeline from a cluster: watches of the API server, and what Ray says of itself by an exec in the head.

One thread for each kind of object, and one for Ray. A watch that ends is taken up where it ended, by resourceVersion;
where the API server does not go back that far (410 Gone) all is listed again, and what had changed in between is a gap
that the timeline tells.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from helpers.errors import CourseError
from helpers.kube import Exec, Kube, KubeError, Resource, if_allowed
from helpers.observe.things import Event, Pod
from helpers.observe.timeline import ADDED, CHANGED, DELETED, HEAD, HERE, SAID, STATE, THERE, Record, Timeline
from helpers.wait import WaitTimeout, wait_until

T = TypeVar("T", bound=Timeline)
OF_NAMESPACE = ("rayclusters", "rayjobs", "rayservices", "pods", "events")
OF_ALL = ("nodes", "nodeclaims")  # Kubernetes nodes, and what Karpenter asks for
WATCH_S = 5  # a watch is begun anew so often: then its thread sees that it is to end
AGAIN_S = 1.0
FIRST_S = 20.0  # until Ray has said something: its import takes seconds
CAUGHT_UP_S = 10.0
GONE = 410
# Run by `python -c` in Ray's container: a line of JSON whenever something has changed. It ends with its standard input.
RAY_SAYS = """
import json, os, sys, threading, time, urllib.request
def end_with_input():
    sys.stdin.buffer.read()
    os._exit(0)
threading.Thread(target=end_with_input, daemon=True).start()
from ray.autoscaler.v2.sdk import get_cluster_status
def node(one, idle):
    used = {use.resource_name: use.used for use in one.resource_usage.usage} if one.resource_usage else {}
    head = "node:__internal_head__" in used
    used = {name: amount for name, amount in used.items() if amount and not name.startswith("node:")}
    return {"pod": one.instance_id, "ip": one.ip_address, "group": one.ray_node_type_name, "id": one.node_id,
            "idle": idle, "head": head, "used": used, "activity": list(one.node_activity or [])}
def wanted(demands):
    return [{"resources": dict(part.bundle), "count": part.count} for one in demands for part in one.bundles_by_count]
def jobs():
    try:
        with urllib.request.urlopen("http://127.0.0.1:8265/api/jobs/", timeout=5) as answer:
            return [{key: job.get(key) for key in ("submission_id", "job_id", "status", "start_time", "end_time")}
                    for job in json.load(answer)]
    except Exception:
        return []
last, listed, looks = None, [], 0
def look():
    global last, listed, looks
    at = time.time()
    listed = listed if looks % 5 else jobs()  # the dashboard works for that
    looks += 1
    try:
        status = get_cluster_status(os.environ.get("RAY_ADDRESS", "127.0.0.1:6379"))
    except Exception:  # the GCS is away
        time.sleep(1)
        return
    demand = status.resource_demands
    state = {
        "nodes": [node(one, False) for one in status.active_nodes] + [node(one, True) for one in status.idle_nodes],
        "pending": [{"group": one.ray_node_type_name, "pod": one.instance_id, "details": one.details}
                    for one in status.pending_nodes],
        "launches": [{"group": one.ray_node_type_name, "count": one.count} for one in status.pending_launches],
        "demand": wanted(demand.ray_task_actor_demand) + wanted(demand.placement_group_demand),
        "constraint": wanted(demand.cluster_constraint_demand),
        "jobs": listed,
    }
    if state != last:
        print(json.dumps({"at": at, "state": state}), flush=True)
        last = state
    time.sleep(max(0.0, 1 - (time.time() - at)))
try:
    while True:
        look()
except Exception as error:
    sys.stderr.write(f"{type(error).__name__}: {error}")
    sys.stderr.flush()
finally:
    os._exit(1)  # the thread that waits for the input would keep it from ending
"""


class Recorder:
    """Records what happens in a namespace, from `start` to `stop`.

    Args:
        kube: the cluster; used from several threads, so it is the recorder's own.
        namespace: where.
        ahead_s: seconds that the API server's clock is ahead of this machine's.
    """

    timeline: Timeline

    def __init__(self, kube: Kube, namespace: str, ahead_s: float = 0.0):
        self.kube, self.namespace = kube, namespace
        self._ahead_s, self._lock, self._ended = ahead_s, threading.Lock(), threading.Event()
        self._watches: list[_Watch] = []

    def now(self) -> float:
        """Seconds since 1970 by the API server's clock."""
        return time.time() + self._ahead_s

    def start(self, found: T) -> T:
        """Note what is there, and what happens from now on, in a timeline; returns that.

        Raises:
            CourseError: the API server does not answer, or refuses this user the namespace.
        """
        self.timeline = found
        for name in (*OF_NAMESPACE, *OF_ALL):
            # CRDs may not be there, and not everybody may see machines
            resource = self.kube.find(name)
            watch = resource and _Watch(self, resource, self.namespace if resource.namespaced else "")
            if watch and (name in OF_NAMESPACE or if_allowed(watch.check) is not None):
                watch.begin()
                self._watches.append(watch)
        ray = _Ray(self)
        for number, work in enumerate([*(watch.run for watch in self._watches), ray.run]):
            threading.Thread(target=work, name=f"timeline-{number}", daemon=True).start()
        if ray.head():
            # from here on nothing of it is missed; its import is over before the work of the block begins
            with contextlib.suppress(WaitTimeout):  # it may not be ours to enter
                wait_until(lambda: ray.has_spoken, FIRST_S, what="Ray's own account of itself")
        return found

    def stop(self) -> None:
        """End it, when all that the API server has now is noted."""
        for watch in self._watches:
            try:
                wait_until(watch.has_all, CAUGHT_UP_S, what=f"the record of {watch.resource.plural}")
            except CourseError as error:
                self.gap(f"the end of {watch.resource.plural} may be missing ({error.what.rstrip('.')})")
        with self._lock:
            self._ended.set()
            self.timeline.end = self.now()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    def pause(self, seconds: float = AGAIN_S) -> None:
        """Wait a moment, or until the end."""
        self._ended.wait(seconds)

    def put(
        self,
        source: str,
        change: str,
        kind: str,
        name: str,
        data: Mapping[str, Any],
        at: float = 0.0,
        clock: str = HERE,
    ) -> None:
        """Note a record, if it is not over yet."""
        with self._lock:
            if not self.is_over:
                seen = self.now()
                self.timeline.records.append(Record(seen, source, change, kind, name, at or seen, clock, data))

    def gap(self, sentence: str) -> None:
        with self._lock:
            if not self.is_over:
                self.timeline.gaps.append(sentence)


class _Watch:
    """One kind of object."""

    def __init__(self, recorder: Recorder, resource: Resource, namespace: str):
        self.recorder, self.resource, self.namespace = recorder, resource, namespace
        self.version = ""  # up to which all is noted
        self.known: dict[str, tuple[str, dict]] = {}  # by uid: the resourceVersion, and the object as it was noted

    def check(self) -> bool:
        """Whether it may be listed; KubeError if not."""
        self.recorder.kube.list_at(self.resource, self.namespace)
        return True

    def begin(self) -> None:
        """Note what is there."""
        things, self.version = self.recorder.kube.list_at(self.resource, self.namespace)
        for thing in things:
            self._note(thing, THERE, "list")

    def run(self) -> None:
        """Note what happens, until the end."""
        while not self.recorder.is_over:
            try:
                for told in self.recorder.kube.watch(self.resource, self.namespace, self.version, WATCH_S):
                    self._take(told)
            except CourseError as error:  # nobody answers, or its kubeconfig is just being written
                if isinstance(error, KubeError) and error.status == GONE:
                    self._again()
                else:
                    self.recorder.pause()

    def has_all(self) -> bool:
        """Whether what is noted is what the API server has; for `wait_until`."""
        things, _ = self.recorder.kube.list_at(self.resource, self.namespace)
        there = {thing["metadata"]["uid"]: thing["metadata"]["resourceVersion"] for thing in things}
        return there == {uid: version for uid, (version, _) in self.known.items()}

    def _take(self, told: dict) -> None:
        thing, kind = told["object"], told["type"]
        if kind != "BOOKMARK":
            change = {"ADDED": ADDED, "MODIFIED": CHANGED, "DELETED": DELETED}[kind]
            self._note(thing | {"kind": self.resource.kind, "apiVersion": self.resource.api_version}, change, "watch")
        self.version = thing["metadata"]["resourceVersion"]

    def _again(self) -> None:
        """List all, since the API server does not go back to what was noted last."""
        try:
            things, version = self.recorder.kube.list_at(self.resource, self.namespace)
        except CourseError:
            self.recorder.pause()
            return
        there = {thing["metadata"]["uid"]: thing for thing in things}
        missed = 0
        for uid, (_, old) in list(self.known.items()):
            if uid not in there:
                self._note(old, DELETED, "list")
                missed += 1
        for uid, thing in there.items():
            if uid not in self.known or self.known[uid][0] != thing["metadata"]["resourceVersion"]:
                self._note(thing, CHANGED if uid in self.known else ADDED, "list")
                missed += 1
        self.version = version
        if missed:
            self.recorder.gap(
                f"{missed} {self.resource.plural} changed while the API server could not be watched: what they were in"
                " between is not known"
            )

    def _note(self, thing: dict, change: str, source: str) -> None:
        uid, reduced = thing["metadata"]["uid"], _reduced(thing)
        before = self.known.pop(uid, (None, None))[1]
        if change != DELETED:
            self.known[uid] = (thing["metadata"]["resourceVersion"], reduced)
        name = thing["metadata"]["name"]
        if thing["kind"] == "Event":
            if change != DELETED:  # events go after an hour, which is no news
                self.recorder.put(
                    "list" if source == "list" else "event", THERE if change == THERE else SAID, "Event", name, reduced,
                    Event(thing).last.timestamp(), Event(thing).component or HERE,
                )  # fmt: skip
        elif before is None or change == DELETED or _plain(before) != _plain(reduced):
            self.recorder.put(source, change, thing["kind"], name, reduced)


def _reduced(thing: dict) -> dict:
    """An object without what nobody reads: of managedFields the managers, of Kubernetes nodes what changes always."""
    metadata = {key: value for key, value in thing["metadata"].items() if key != "managedFields"}
    managers = thing["metadata"].get("managedFields") or ()
    if managers and "ray.io" in thing.get("apiVersion", ""):
        kept = ("manager", "operation", "time", "subresource")
        metadata["managers"] = [{key: one[key] for key in kept if key in one} for one in managers]
    found = thing | {"metadata": metadata}
    if thing["kind"] != "Node":
        return found
    status = thing.get("status") or {}
    conditions = [
        {key: value for key, value in one.items() if key != "lastHeartbeatTime"} for one in status.get("conditions", ())
    ]
    return found | {"status": {"conditions": conditions, "allocatable": status.get("allocatable") or {}}}


def _plain(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object without its resourceVersion, which changes with every write."""
    metadata = {key: value for key, value in thing["metadata"].items() if key not in ("resourceVersion", "managers")}
    return {**thing, "metadata": metadata}


class _Ray:
    """What Ray says of itself in the heads of the target's RayClusters, one after the other."""

    def __init__(self, recorder: Recorder):
        self.recorder, self.has_spoken = recorder, False
        self._told: set[tuple[str, str, str]] = set()

    def run(self) -> None:
        """Note it, until the end."""
        while not self.recorder.is_over:
            head = self.head()
            if head is not None:
                try:
                    why = self._listen(*head) or "it ended"
                except CourseError as error:
                    why = error.what
                if not self.recorder.is_over and self.head() == head and head not in self._told:
                    self._told.add(head)
                    self.recorder.gap(f"Ray's own account of itself is not whole: {why.strip().rstrip('.')}")
            self.recorder.pause()

    def head(self) -> tuple[str, str, str] | None:
        """(RayCluster, Pod, container) of the newest head that is Ready."""
        clusters, known = set(self.recorder.timeline.clusters()), set()
        for record in reversed(list(self.recorder.timeline.records)):
            if record.kind != "Pod" or record.name in known:  # only its last state counts
                continue
            known.add(record.name)
            pod = Pod(record.data)
            if pod.is_head and pod.cluster in clusters and pod.is_ready and record.change != DELETED:
                return pod.cluster, pod.name, pod.ray.name
        return None

    def _listen(self, cluster: str, pod: str, container: str) -> str:
        """Note what is said, until that ends; returns the last complaint."""
        command = ["env", "RAY_LOG_TO_DRIVER=0", "python", "-u", "-c", RAY_SAYS]
        stream = self.recorder.kube.exec(pod, self.recorder.namespace, container, command)
        try:
            return self._read(stream, cluster)
        finally:
            stream.close()

    def _read(self, stream: Exec, cluster: str) -> str:
        begun, complaints = b"", b""
        while not self.recorder.is_over:
            is_open = stream.is_open
            said, complained = stream.read(AGAIN_S)
            complaints = (complaints + complained)[-300:]
            *lines, begun = (begun + said).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):  # what a library prints
                    self._note(cluster, json.loads(line))
            if not is_open:
                break
        return complaints.decode(errors="replace")

    def _note(self, cluster: str, told: dict) -> None:
        if "state" in told:
            self.recorder.put("Ray", STATE, "Ray", cluster, told["state"], told["at"], HEAD)
            self.has_spoken = True

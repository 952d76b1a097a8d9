"""What `course why` reads of a running cluster, from a stand-in for the API server; and the command itself."""

from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from helpers import cli
from helpers.errors import CourseError
from helpers.kube import KubeError, NoAnswer, Resource
from helpers.observe import live
from helpers.observe.diagnose import why
from tests.unit.dumps import cluster, ended, event, head, node_text, pod, rayjob, running, status, thing, waiting_worker

KINDS = ("RayCluster", "RayJob", "RayService", "Pod", "Job", "ResourceQuota", "NetworkPolicy", "Node", "Event")
WORKER = "sky-small-worker-aaaaa"
KEPT = status(
    nodes=node_text(
        WORKER,
        usage="30.00MiB/4.00GiB object_store_memory",
        activity="Resource: object_store_memory currently in use.",
    )
)
REFS = (
    "Grouping by node address...\n"
    "10.1.0.1  811  Driver  disabled  FINISHED  1  31457280.0 B  LOCAL_REFERENCE  00ffff0100\n"
)


class Stream:
    """What an exec gives: all at once, then the end."""

    def __init__(self, text: str, told: str = ""):
        self.text, self.told, self.is_open, self.closed = text, told, True, False

    def read(self, timeout_s: float) -> tuple[bytes, bytes]:
        self.is_open = False
        return self.text.encode(), b""

    def status(self) -> str:
        return self.told

    def close(self) -> None:
        self.closed = True


class StandIn:
    """Answers as `helpers.kube.Kube` does; what is in `refused` may not be read."""

    def __init__(self, *objects: dict, logs: dict | None = None, printed: dict | None = None, refused: tuple = ()):
        self.objects, self.texts, self.printed, self.refused = objects, logs or {}, printed or {}, set(refused)
        self.asked: list[str] = []
        self.streams: list[Stream] = []

    def ahead_s(self) -> float:
        return 0.0

    def find(self, name: str, api_version: str = "") -> Resource | None:
        known = {kind.lower(): kind for kind in KINDS} | {f"{kind.lower()}s": kind for kind in KINDS}
        kind = known.get(name.lower())
        return Resource("/api/v1", f"{kind.lower()}s", kind, frozenset({kind.lower()}), True) if kind else None

    def resource(self, name: str, api_version: str = "") -> Resource:
        found = self.find(name, api_version)
        assert found, name
        return found

    def list(self, resource: Resource, namespace: str, selector: str = "", fields: str = "") -> list[dict]:
        if resource.kind in self.refused:
            raise KubeError(403, "Forbidden", f"{resource.plural} is forbidden")
        found = [one for one in self.objects if one["kind"] == resource.kind]
        return [one for one in found if namespace in ("", one["metadata"].get("namespace", ""))]

    def logs(
        self, pod: str, namespace: str, container: str = "", *, tail: int | None = None, previous: bool = False
    ) -> str:
        where = f"{pod}/{container}" + (" (previous)" if previous else "")
        self.asked.append(where)
        if where not in self.texts:
            raise KubeError(400, "BadRequest", f"previous terminated container {container} not found")
        return self.texts[where]

    def exec(self, pod: str, namespace: str, container: str, command: list[str]) -> Stream:
        text = self.printed.get(" ".join(command[:3]))
        if text is None:
            raise NoAnswer("the connection broke")
        self.streams.append(Stream(text))
        return self.streams[-1]

    def request(self, method: str, path: str, **query: object) -> dict:
        raise KubeError(404, "NotFound", "the server could not find the requested resource")


def fresh(*objects: dict) -> list[dict]:
    """Objects whose times are of now: a running cluster is looked at with the clock of now."""
    from datetime import UTC, datetime

    from tests.unit.dumps import NOW

    shift = datetime.now(UTC) - NOW

    def moved(value: object) -> object:
        if isinstance(value, dict):
            return {key: moved(one) for key, one in value.items()}
        if isinstance(value, list):
            return [moved(one) for one in value]
        if isinstance(value, str) and len(value) == 20 and value.endswith("Z"):
            return (datetime.fromisoformat(value) + shift).strftime("%Y-%m-%dT%H:%M:%SZ")
        return value

    return [moved(one) for one in objects]


def test_a_held_reference_is_found_on_a_running_cluster():
    printed = {"ray status -v": KEPT, "ray memory": REFS, "ray list actors": "No resource in the cluster"}
    kube = StandIn(*fresh(cluster(), head(), pod(WORKER)), printed=printed, logs={"sky-head-abcde/ray-head": ""})
    seen = live.snapshot_of(kube, "ml", "raycluster/sky")
    told = why(seen, "raycluster/sky")
    assert told.cause == "pinned-by-object-refs"
    assert told.first.certainty == "certain"
    assert all(stream.closed for stream in kube.streams)
    assert seen.ray_version == "2.60.0"


def test_logs_are_read_of_what_waits_ended_or_restarted_only():
    crashed = pod("sky-small-worker-b", ready=False, restarts=2, state=running(9), last=ended(1))
    done = pod("sky-small-worker-c")
    kube = StandIn(*fresh(cluster(), head(), waiting_worker(), crashed, done))
    seen = live.snapshot_of(kube, "ml")
    assert "sky-head-abcde/autoscaler" in kube.asked
    assert f"{WORKER}/wait-gcs-ready" in kube.asked
    assert "sky-small-worker-b/ray-worker (previous)" in kube.asked
    assert not any("sky-small-worker-c" in one for one in kube.asked)
    assert any("log of sky-head-abcde/autoscaler" in one for one in seen.unread)


def test_what_may_not_be_read_is_named_and_no_error():
    waits = waiting_worker(image="rayproject/ray:2.52.0")
    kube = StandIn(*fresh(cluster(), head(), waits), refused=("Node", "Event", "ResourceQuota"))
    told = why(live.snapshot_of(kube, "ml", "raycluster/sky"), "raycluster/sky")
    assert told.cause == "version-mismatch"
    assert sum("could be read" in one for one in told.unread) >= 3
    assert any("`ray status -v` could not be run" in one for one in told.unread)


def test_the_ray_clusters_themselves_must_be_readable():
    with pytest.raises(CourseError, match="forbidden"):
        live.snapshot_of(StandIn(refused=("RayCluster",)), "ml")


def test_the_namespace_of_a_target_is_found():
    here, there = cluster(), cluster("sea", metadata={"namespace": "dev"})
    kube = StandIn(here, there, rayjob())
    assert live.namespace_of(kube, "raycluster/sea") == "dev"
    for target, needle in (("raycluster/none", "any namespace"), ("rayjob/fit", "")):
        if needle:
            with pytest.raises(CourseError, match=needle):
                live.namespace_of(kube, target)
        else:
            assert live.namespace_of(kube, target) == "ml"
    twice = StandIn(here, cluster(metadata={"namespace": "dev"}))
    with pytest.raises(CourseError, match="-n NAMESPACE"):
        live.namespace_of(twice, "raycluster/sky")


# ---- the command


def run(*words: str):
    return CliRunner().invoke(cli.app, ["why", *words])


@pytest.fixture
def dump(tmp_path):
    gated = thing("Pod", "sky-small-worker-x", status={"phase": "Pending"}) | {
        "spec": {"schedulingGates": [{"name": "team.example/quota"}], "containers": [{"name": "ray-worker"}]},
    }
    gated["metadata"]["labels"] = {"ray.io/cluster": "sky", "ray.io/group": "small", "ray.io/node-type": "worker"}
    items = [
        cluster(),
        head(),
        pod(WORKER),
        gated,
        event("RayCluster", "sky", "CreatedService", "Created service ml/x"),
    ]
    file = tmp_path / "dump.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "items": items, "kind": "List"}))
    return file


def test_course_why_reads_a_dump(dump):
    told = run("raycluster/sky", "--from", str(dump))
    assert told.exit_code == 0, told.output
    assert "scheduling-gated" in told.output
    assert "team.example/quota" in told.output
    assert run("--from", str(dump)).output == told.output


def test_course_why_speaks_json(dump):
    data = json.loads(run("raycluster/sky", "--from", str(dump), "--json").output)
    assert data["cause"] == "scheduling-gated"
    assert {"target", "certainty", "said", "evidence", "fix", "further", "ruled_out", "unread"} <= set(data)


def test_course_why_says_what_is_wrong_with_a_dump(dump):
    text = dump.read_text()
    dump.write_text(text[: len(text) // 2])
    told = run("--from", str(dump))
    assert isinstance(told.exception, CourseError)
    assert "line" in str(told.exception)
    dump.write_text(text)
    assert "raycluster/sky" in str(run("raycluster/none", "--from", str(dump)).exception)


def test_course_why_needs_a_name_on_a_running_cluster():
    assert "course why raycluster/demo" in str(run().exception)

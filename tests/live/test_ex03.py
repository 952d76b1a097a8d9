"""Exercise 03 against a real cluster.

What the rules say of a manifest is what the API server, the operator, the scheduler and Ray do with it; and the
solution, run top to bottom, is full.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from helpers import lab as lab_module
from helpers.cluster import backend as door
from helpers.cluster import tryout
from helpers.cluster.backend import Backend
from helpers.grading import evidence
from helpers.grading.check import find_suite, run
from helpers.grading.suites import ex03
from helpers.model import crds, manifest, raycluster, scheduling
from helpers.state import course_root
from tests.live.contract import Cluster, Place, place
from tests.unit.test_ex03 import REPAIRS, RIGHT, atlas, head, pod

pytestmark = [pytest.mark.live, pytest.mark.any_backend]
SOON_S = 60.0
MANIFESTS = ("q1", *REPAIRS)
NO_IMAGE = "registry.example/no-such-image:1"  # a Pod that is placed and never starts


def worker(change: dict, **container: Any) -> dict:
    """The solution of question 1 with another first group of workers."""

    def edit(spec: dict, groups: list) -> None:
        groups[0].update(copy.deepcopy(change))
        pod(groups[0])["containers"][0].update(container)

    return atlas(edit)


def spec_of(change: dict) -> dict:
    return atlas(lambda spec, groups: spec.update(change))


# ---- the API server


def test_the_rules_know_the_crds_that_the_api_server_has(kubernetes: Cluster) -> None:
    found = json.loads(kubernetes.must("get", "crd", "-o", "json"))["items"]
    ours = [crd for crd in found if crd["spec"]["group"] == "ray.io"]
    assert crds.dense(ours) == json.loads(crds.FILE.read_text())


DOCUMENTS = {
    **{f"right {q}-{n}": answer for q in MANIFESTS for n, answer in enumerate(RIGHT[q])},
    **{f"given {question}": given for question, given in REPAIRS.items()},
    "no spec": {name: part for name, part in atlas().items() if name != "spec"},
    "spec null": atlas() | {"spec": None},
    "status": atlas() | {"status": {}},
    "unknown at the top": atlas() | {"more": 1},
    "unknown in metadata": atlas() | {"metadata": {"name": "a", "nam": "b"}},
    "number as a label": atlas() | {"metadata": {"name": "a", "labels": {"a": 1}}},
    "capital name": atlas() | {"metadata": {"name": "Atlas"}},
    "long name": atlas() | {"metadata": {"name": "a" * 60}},
    "no head": atlas(lambda spec, groups: spec.pop("headGroupSpec")),
    "rayVersion a number": spec_of({"rayVersion": 2.6}),
    "suspend a string": spec_of({"suspend": "yes"}),
    "bad mode": spec_of({"autoscalerOptions": {"upscalingMode": "fast"}}),
    "bad version": spec_of({"autoscalerOptions": {"version": "v3"}}),
    "managed by somebody": spec_of({"managedBy": "me"}),
    "groups null": spec_of({"workerGroupSpecs": None}),
    "parameters null": worker({"rayStartParams": None}),
    "parameter a number": worker({"rayStartParams": {"num-cpus": 1}}),
    "parameter true": worker({"rayStartParams": {"block": True}}),
    "minReplicas null": worker({"minReplicas": None}),
    "minReplicas below 0": worker({"minReplicas": -1}),
    "replicas 1.0": worker({"replicas": 1.0}),
    "replicas 1.5": worker({"replicas": 1.5}),
    "replicas a string": worker({"replicas": "1"}),
    "replicas too big": worker({"replicas": 2**31}),
    "template null": spec_of({"headGroupSpec": {"template": None}}),
    "no containers": spec_of({"headGroupSpec": {"template": {"spec": {}}}}),
    "containers empty": spec_of({"headGroupSpec": {"template": {"spec": {"containers": []}}}}),
    "template unknown": atlas(lambda spec, groups: groups[0]["template"].update(tolerations=[])),
    "template metadata unknown": atlas(lambda spec, groups: groups[0]["template"].update(metadata={"labelz": {}})),
    "two containers of one name": atlas(lambda spec, groups: pod(groups[0])["containers"].append({"name": "ray"})),
    "no container name": atlas(lambda spec, groups: pod(groups[0])["containers"][0].pop("name")),
    "variable a number": worker({}, env=[{"name": "A", "value": 1}]),
    "resources null": worker({}, resources=None),
    "limits null": worker({}, resources={"limits": None}),
    "cpu half": worker({}, resources={"limits": {"cpu": 0.5}}),
    "cpu whole": worker({}, resources={"limits": {"cpu": 2}}),
    "cpu in words": worker({}, resources={"limits": {"cpu": "two"}}),
    "cpu with a blank": worker({}, resources={"limits": {"cpu": "4 "}}),
    "memory as 1e9": worker({}, resources={"limits": {"memory": "1e9"}}),
    "request above limit": worker({}, resources={"limits": {"cpu": 1}, "requests": {"cpu": 2}}),
    "bad toleration": atlas(lambda spec, groups: pod(groups[0]).update(tolerations=[{"key": "a", "operator": "Is"}])),
    "bad restartPolicy": atlas(lambda spec, groups: pod(groups[0]).update(restartPolicy="Sometimes")),
    "two groups of one name": atlas(lambda spec, groups: groups.append(copy.deepcopy(groups[0]))),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_api_server_says_what_the_rules_say(kubernetes: Cluster, name: str) -> None:
    [document] = manifest.documents(DOCUMENTS[name])
    # server-side apply, because that is what the lab does, and kubectl sends it as it is
    words = ["apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-"]
    said = kubernetes.ask(*words, stdin=json.dumps(document))
    ours = crds.faults(document)
    assert (said.returncode != 0) == bool(ours), f"{said.stderr or said.stdout}\n{[*map(str, ours)]}"


# ---- the operator

REDIS = [{"name": "RAY_REDIS_ADDRESS", "value": "r:1"}]
REFUSED = {
    "idle-timeout": atlas(lambda spec, groups: spec["autoscalerOptions"].pop("version")),
    "resources-twice": atlas(lambda spec, groups: head(spec).update(resources={"CPU": "0"})),
    "labels": worker({"rayStartParams": {"labels": "a=b"}}),
    "bad-label": worker({"labels": {"a": "b c"}}),
    "min-above-max": worker({"minReplicas": 9}),
    "below-zero": worker({"minReplicas": -1}),
    "restart-policy": atlas(lambda spec, groups: pod(groups[0]).update(restartPolicy="Always")),
    "suspended": worker({"suspend": True}),
    "redis": atlas(lambda spec, groups: pod(head(spec))["containers"][0].update(env=REDIS)),
    "no-container": spec_of({"headGroupSpec": {"template": {"spec": {"containers": []}}}}),
    "auth": spec_of({"rayVersion": "2.51.0", "authOptions": {"mode": "token"}}),
    "a" * 54: atlas(),
    "0-is-a-digit": atlas(),
}


@pytest.fixture(scope="module")
def refused(kubernetes: Cluster) -> Iterator[Place]:
    with place(kubernetes, "refused") as here:
        for name, document in REFUSED.items():
            text = json.dumps(document | {"metadata": {"name": name}})
            kubernetes.must("-n", here.namespace, "apply", "--server-side", "-f", "-", stdin=text)
        yield here


@pytest.mark.parametrize("name", REFUSED)
def test_the_operator_refuses_what_the_rules_refuse(refused: Place, name: str) -> None:
    document = REFUSED[name] | {"metadata": {"name": name}}
    assert not crds.faults(document) and raycluster.refusals(raycluster.cluster_of(document))

    def said() -> bool:
        reasons = [event["reason"] for event in refused.events(f"raycluster/{name}")]
        assert any(reason.startswith("InvalidRayCluster") for reason in reasons), f"only {reasons} are said of it"
        return True

    assert refused.wait("the operator's word", said, SOON_S)
    pods = refused.cluster.get(refused.url("pod"), labelSelector=f"ray.io/cluster={name[:50]}")["items"]
    assert not pods


# ---- the scheduler


def groups() -> list[Any]:
    """Each group of each manifest that is given, and of each solution."""
    texts = {**REPAIRS, **{f"solved-{question}": RIGHT[question][0] for question in MANIFESTS}}
    found = []
    for name, text in texts.items():
        cluster = raycluster.cluster_of(manifest.documents(text)[0])
        found += [pytest.param(cluster, group, id=f"{name}-{group.name}") for group in cluster.groups]
    return found


@pytest.fixture(scope="module")
def scheduled(kubernetes: Cluster) -> Iterator[Place]:
    if "fake_gpu" not in kubernetes.can:
        pytest.skip("the cluster has no machine with fake GPUs")
    with place(kubernetes, "scheduled") as here:
        yield here


@pytest.mark.parametrize(("cluster", "group"), groups())
def test_the_scheduler_places_pods_where_the_rules_do(
    scheduled: Place, cluster: raycluster.Cluster, group: raycluster.Group
) -> None:
    """One Pod for each machine, bound to it by its name, with the group's own requests, tolerations and selector."""
    needs = {name: f"{int(amount * 1000)}m" for name, amount in scheduling.needs(cluster, group).items() if amount}
    amounts = {"limits": needs, "requests": needs}
    found = {}
    for machine in ex03.MACHINES:
        selector = dict(group.pod.get("nodeSelector") or {}) | {"kubernetes.io/hostname": machine.name}
        spec = {"containers": [{"name": "a", "image": NO_IMAGE, "resources": amounts}], "nodeSelector": selector}
        spec |= {"tolerations": list(group.pod.get("tolerations") or ()), "terminationGracePeriodSeconds": 0}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": machine.name}, "spec": spec}
        scheduled.cluster.must("-n", scheduled.namespace, "create", "-f", "-", stdin=json.dumps(made))
    for machine in ex03.MACHINES:
        found[machine.name] = scheduled.wait("the scheduler's word", lambda name=machine.name: decided(scheduled, name))
    scheduled.cluster.must("-n", scheduled.namespace, "delete", "pod", "--all", "--force", "--grace-period=0")
    ours = scheduling.places(cluster, group, ex03.MACHINES)
    assert [name for name, word in found.items() if word == "placed"] == ours


def decided(here: Place, name: str) -> str:
    status = (here.get(f"pod/{name}") or {}).get("status", {})
    said = [one for one in status.get("conditions", ()) if one["type"] == "PodScheduled"]
    assert said, "the scheduler has not looked at it yet"
    return "placed" if said[0]["status"] == "True" else "waits"


# ---- the run


@pytest.fixture(scope="module")
def learner(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a learner whose cluster is that of the tests."""
    folder = tmp_path_factory.mktemp("ex03")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "make", lambda name: backend)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.delenv("NBGRADER_EXECUTION", raising=False)
        for name in ("KUBECONFIG", "KUBECACHEDIR", "COURSE_BACKEND", "PATH"):
            patch.setenv(name, os.environ.get(name, ""))  # so that what a lab sets is undone
        patch.setattr(lab_module, "_running", {})
        patch.setattr(lab_module, "_started_in", [])
        patch.setattr(evidence, "_folder", [])
        patch.chdir(folder)
        yield folder


def test_the_solution_top_to_bottom(learner: Path) -> None:
    notebook = nbformat.read(course_root() / "solutions" / "ex03" / "ex03.ipynb", as_version=4)
    names: dict[str, Any] = {"__name__": "__main__"}
    reports = {}
    for cell in (one for one in notebook.cells if one.cell_type == "code"):
        if cell.source.startswith("check("):
            reports[cell.metadata.nbgrader.grade_id] = eval(cell.source, names)
        else:
            exec(compile(cell.source, "<cell>", "exec"), names)
    for report in reports.values():
        assert report.is_full, str(report)
    assert reports["test-q1_run"].self_reported == 4
    [record] = evidence.read(learner / evidence.NAME).records
    assert (record.exercise, record.question, record.fault) == ("ex03", "q1_run", "")
    rows = {group: (machine, ready) for _, group, machine, ready, _ in names["seen"].rows()}
    # on other backends the machines of the text have other names
    for group, has_gpus in (("gpu", True), ("headgroup", False)):
        assert {bool(pod["machine_gpus"]) for pod in record.seen["groups"][group]} == {has_gpus}
    assert {ready for _, ready in rows.values()} == {"yes"}


def test_a_grader_who_applies_it(learner: Path) -> None:
    """Another right answer; what is not of the brief is left out, and what Ray counts is what the rules say."""
    answer = RIGHT["q1"][1]
    witness = evidence.by_running(tryout.run_apart)
    report = run(find_suite("ex03.q1_run"), answer, see=lambda plan: witness("ex03.q1_run", plan))
    assert report.is_full and {row.by for row in report.rows} == {evidence.VERIFIED}, str(report)


def test_a_manifest_that_does_not_settle_is_given_up(learner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine has the label: its head is never placed, and no Ray starts."""
    monkeypatch.setattr(tryout.try_out, "__defaults__", (15.0,))
    lost = atlas(
        lambda spec, groups: pod(head(spec)).update(nodeSelector={"pool": "nowhere"}),
        lambda spec, groups: groups.clear(),
    )
    with pytest.raises(AssertionError, match="this manifest was applied, and did not settle: Waited 15 s for"):
        tryout.run_apart(find_suite("ex03.q1_run").read(lost))

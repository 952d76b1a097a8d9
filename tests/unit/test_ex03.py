"""Exercise 03: what is right passes, each wrong answer that people give is told from it, and nothing is given away."""

from __future__ import annotations

import copy
import functools
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from helpers import versions
from helpers.cluster.embedded.layout import DEFAULT_MACHINES
from helpers.grading import evidence
from helpers.grading.check import KUBERNETES, find_suite, run
from helpers.grading.suites import ex03
from helpers.model import raycluster
from helpers.state import course_root
from tests.unit import authored

ROOT = course_root()
REPAIRS = {"q2": ex03.SURVEY, "q3": ex03.TUNING, "q4": ex03.RENDER}
MANIFESTS = ("q1", *REPAIRS)
QUESTIONS = (*MANIFESTS, "q5")
LIVE = "q1_run"
HIDDEN = "q5"  # has hidden variations
cell = functools.partial(authored.cell, "ex03")
IMAGE = ex03.IMAGE


def solution(question: str) -> Any:
    """What the solution gives to the question's name."""
    names: dict = {}
    exec(cell(question), names)
    name = {"q1": "atlas", "q2": "survey", "q3": "tuning", "q4": "render", "q5": "becomes"}[question]
    return names[name]


def edited(manifest: str | dict, *changes: Callable[[dict, list], Any]) -> dict:
    """A manifest with changes, each a function of its spec and its worker groups."""
    document = copy.deepcopy(manifest) if isinstance(manifest, dict) else yaml.safe_load(manifest)
    for change in changes:
        change(document["spec"], document["spec"]["workerGroupSpecs"])
    return document


def pod(group: dict) -> dict:
    return group["template"]["spec"]


def amounts(group: dict, **both: Any) -> None:
    """Give limits and requests the same numbers; None takes one off."""
    for part in ("limits", "requests"):
        there = pod(group)["containers"][0]["resources"].setdefault(part, {})
        there |= both
        for name in [name for name, amount in there.items() if amount is None]:
            del there[name]


def limits(group: dict) -> dict:
    return pod(group)["containers"][0]["resources"]["limits"]


def requests(group: dict) -> dict:
    return pod(group)["containers"][0]["resources"]["requests"]


# ---- right answers

ATLAS = solution("q1")
ATLAS_IN_YAML = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: atlas, labels: {team: atlas}}
spec:
  rayVersion: 2.60.0
  enableInTreeAutoscaling: true
  autoscalerOptions: {version: v2}
  headGroupSpec:
    resources: {CPU: "0"}
    template:
      spec:
        nodeSelector: {}
        containers:
        - name: r
          image: rayproject/ray:2.60.0-py311
          resources: {limits: {cpu: 2, memory: 3Gi}}
  workerGroupSpecs:
  - groupName: gpu
    minReplicas: 1
    maxReplicas: 2
    idleTimeoutSeconds: 300
    rayStartParams: {}
    template:
      spec:
        tolerations: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]
        containers:
        - name: r
          image: rayproject/ray:2.60.0-py311-gpu
          resources: {limits: {cpu: 1500m, memory: 4Gi, nvidia.com/gpu: 1}, requests: {cpu: 2, memory: 4Gi}}
  - groupName: cpu
    replicas: 1
    minReplicas: 1
    maxReplicas: 4
    idleTimeoutSeconds: 60
    resources: {CPU: "2", fast_disk: "1", memory: 2Gi}
    template:
      spec:
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms:
              - matchExpressions: [{key: accelerator, operator: DoesNotExist}]
        containers:
        - name: r
          image: rayproject/ray:2.60.0-py311
          resources: {requests: {cpu: 2500m, memory: 2Gi}}
""".replace("limits: {cpu: 1500m", "limits: {cpu: 2")
QUOTED = edited(
    ATLAS,
    lambda spec, w: w[0].update(rayStartParams={"resources": '"{\\"fast_disk\\": 1}"', "num-cpus": "2"}, replicas=0),
    lambda spec, w: pod(w[1]).update(tolerations=[{"operator": "Exists"}]),
    lambda spec, w: spec["headGroupSpec"]["rayStartParams"].update({"dashboard-host": "0.0.0.0"}),
)


def in_flow(question: str) -> str:
    """The solution in other words: a line of JSON, with some things added that change nothing."""
    document = yaml.safe_load(solution(question))
    document["metadata"]["annotations"] = {"owner": "somebody"}
    for group in document["spec"]["workerGroupSpecs"]:
        if "tolerations" in pod(group):
            pod(group)["tolerations"] = [{"operator": "Exists"}]
        pod(group)["nodeSelector"] = {}
        pod(group)["terminationGracePeriodSeconds"] = 5
    return json.dumps(document)


def by_hand(group):
    """Counts in whole numbers, without a library for quantities."""

    def number(text):
        units = {"m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "G": 10**9}
        unit = next((unit for unit in ("Ki", "Mi", "Gi", "m", "G") if str(text).endswith(unit)), "")
        return float(str(text).removesuffix(unit)) * units.get(unit, 1)

    told, found = group["rayStartParams"], {}
    there = group["template"]["spec"]["containers"][0]["resources"]
    limit, request = there.get("limits") or {}, there.get("requests") or {}
    gpus = [amount for key, amount in limit.items() if key.endswith("gpu")]
    found["num-cpus"] = limit.get("cpu") or request.get("cpu")
    found["num-gpus"] = gpus[0] if gpus else None
    found["memory"] = limit.get("memory")
    answer = {key: None if amount is None else math.ceil(number(amount) - 1e-9) for key, amount in found.items()}
    answer |= {key: int(value) for key, value in told.items()}
    low, high, wanted = group["minReplicas"], group["maxReplicas"], group.get("replicas") or 0
    return answer | {"pods": low if wanted < low else high if wanted > high else wanted}


BECOMES = solution("q5")
RIGHT = {
    "q1": [ATLAS, ATLAS_IN_YAML, QUOTED],
    "q5": [BECOMES, by_hand],
} | {question: [solution(question), in_flow(question)] for question in REPAIRS}


# ---- wrong answers, each with the position of the only case that rejects it


def atlas(*changes: Callable) -> dict:
    return edited(ATLAS, *changes)


def head(spec: dict) -> dict:
    return spec["headGroupSpec"]


GPU_TOLERATION = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def wrong_answer(key: str, change: Callable[[dict, Any], Any]) -> Callable:
    """A function that is right but for one of its numbers."""
    return lambda group: BECOMES(group) | {key: change(group, BECOMES(group)[key])}


def parts(group: dict) -> tuple[dict, dict, dict]:
    there = pod(group)["containers"][0]["resources"]
    return there.get("limits", {}), there.get("requests", {}), group["rayStartParams"]


def whole(amount: Any) -> int | None:
    return None if amount is None else math.ceil(ex03.quantity.parse(amount))


def requests_first(group):
    limit, request, told = parts(group)
    both = {"num-cpus": request.get("cpu") or limit.get("cpu")}
    both["memory"] = request.get("memory") if "memory" in request and "memory" in limit else limit.get("memory")
    return BECOMES(group) | {key: whole(amount) for key, amount in both.items() if key not in told}


def rounds_down(group):
    limit, request, told = parts(group)
    cpu = limit.get("cpu") or request.get("cpu")
    return BECOMES(group) | ({} if "num-cpus" in told else {"num-cpus": int(ex03.quantity.parse(cpu))})


MUTANTS: dict[str, list[tuple[int, Any]]] = {
    "q1": [
        (0, atlas(lambda s, w: s.pop("rayVersion"))),
        (0, atlas(lambda s, w: s.update(rayVersion="2.9.0"))),
        (0, atlas(lambda s, w: pod(w[0])["containers"][0].update(image="rayproject/ray:2.59.0-py311"))),
        (0, atlas(lambda s, w: pod(head(s))["containers"][0].update(image="rayproject/ray:nightly"))),
        (1, atlas(lambda s, w: head(s).pop("rayStartParams"))),
        (1, atlas(lambda s, w: head(s)["rayStartParams"].update({"num-cpus": "1"}))),
        (2, atlas(lambda s, w: pod(head(s)).update(tolerations=GPU_TOLERATION))),
        (2, atlas(lambda s, w: pod(head(s)).update(nodeSelector={"pool": "head"}))),
        (3, atlas(lambda s, w: w[0].pop("rayStartParams"))),
        (3, atlas(lambda s, w: w[0].update(rayStartParams={"resources": '{"fast_disk": 1}'}))),
        (3, atlas(lambda s, w: w[0]["rayStartParams"].update({"num-cpus": "1"}))),
        (3, atlas(lambda s, w: amounts(w[0], cpu="4"))),
        (4, atlas(lambda s, w: w[0].pop("maxReplicas"))),
        (4, atlas(lambda s, w: w[0].update(replicas=4))),
        (4, atlas(lambda s, w: w[0].update(minReplicas=0))),
        (4, atlas(lambda s, w: w[0].update(minReplicas=0, replicas=1))),
        (5, atlas(lambda s, w: w[1].update(rayStartParams={"num-gpus": "2"}))),
        (5, atlas(lambda s, w: w[1].update(rayStartParams={"resources": """'{"fast_disk": 1}'"""}))),
        (5, atlas(lambda s, w: amounts(w[1], cpu="1"))),
        (6, atlas(lambda s, w: w[1].update(maxReplicas=4))),
        (6, atlas(lambda s, w: w[1].pop("minReplicas"))),
        (7, atlas(lambda s, w: pod(w[1]).pop("tolerations"))),
        (7, atlas(lambda s, w: pod(w[1])["tolerations"][0].update(operator="Equal", value="true"))),
        (7, atlas(lambda s, w: pod(w[1]).update(nodeSelector={"gpu": "yes"}))),
        # Ray is told of a GPU, and Kubernetes is not
        (7, atlas(lambda s, w: amounts(w[1], **{"nvidia.com/gpu": None}) or w[1].update(
            rayStartParams={"num-gpus": "1"}))),
        (8, atlas(lambda s, w: pod(w[0])["containers"][0].update(
            resources={"limits": limits(w[0]), "requests": {"cpu": "1", "memory": "2Gi"}}))),
        (8, atlas(lambda s, w: pod(head(s))["containers"][0].update(
            resources={"limits": {"memory": "4Gi"}, "requests": {"cpu": "1", "memory": "2Gi"}}))),
        (8, atlas(lambda s, w: pod(w[0])["containers"][0].update(
            resources={"requests": {"cpu": "2", "memory": "2Gi"}}))),
        (9, atlas(lambda s, w: s.pop("enableInTreeAutoscaling"))),
        (9, atlas(lambda s, w: s["autoscalerOptions"].update(idleTimeoutSeconds=300))),
        (9, atlas(lambda s, w: w[1].pop("idleTimeoutSeconds"))),
        (9, atlas(lambda s, w: w[1].update(idleTimeoutSeconds=5))),
    ],
    "q5": [
        (0, lambda group: BECOMES(group) | ({"memory": 1} if parts(group)[0] == parts(group)[1] else {})),
        (1, requests_first),
        (2, rounds_down),
        (3, wrong_answer("num-cpus", lambda g, n: n if "cpu" in parts(g)[0] or "num-cpus" in parts(g)[2] else None)),
        (4, wrong_answer("memory", lambda g, n: n or whole(parts(g)[1].get("memory")))),
        (5, wrong_answer("num-gpus", lambda g, n: n if "num-gpus" in parts(g)[2] else whole(
            parts(g)[0].get("nvidia.com/gpu")))),
        (6, lambda group: BECOMES(group | {"rayStartParams": {}})),
        (6, lambda group: BECOMES(group | {
            "rayStartParams": {k: v for k, v in group["rayStartParams"].items() if v != "0" and k == "num-gpus"}})),
        (7, wrong_answer("pods", lambda g, n: max(g.get("replicas", 0), g["minReplicas"]))),
        (8, wrong_answer("pods", lambda g, n: min(g.get("replicas", 0), g["maxReplicas"]))),
        (8, wrong_answer("pods", lambda g, n: n if "replicas" in g else g["maxReplicas"])),
    ],
}  # fmt: skip


def fixed(question: str, *changes: Callable) -> dict:
    return edited(solution(question), *changes)


MUTANTS["q2"] = [
    (0, fixed("q2", lambda s, w: s.pop("rayVersion"))),
    (0, fixed("q2", lambda s, w: pod(w[1])["containers"][0].update(image="rayproject/ray:2.9.0-gpu"))),
    (1, fixed("q2", lambda s, w: head(s).update(rayStartParams={"dashboard-host": "0.0.0.0"}))),
    (1, fixed("q2", lambda s, w: head(s).update(rayStartParams={"num-gpus": "0"}))),
    (2, fixed("q2", lambda s, w: amounts(w[0], cpu="2"))),
    (2, fixed("q2", lambda s, w: (amounts(w[0], cpu="2"), w[0].update(rayStartParams={"num-cpus": "4"})))),
    (2, fixed("q2", lambda s, w: limits(w[0]).update(cpu="8"))),
    (3, fixed("q2", lambda s, w: pod(w[1]).pop("tolerations"))),
    (3, fixed("q2", lambda s, w: pod(w[1]).update(tolerations=[{"key": "gpu", "operator": "Exists"}]))),
    (3, fixed("q2", lambda s, w: amounts(w[1], **{"nvidia.com/gpu": None}) or w[1].update(
        rayStartParams={"num-gpus": "1"}))),
    (4, fixed("q2", lambda s, w: w[0].update(maxReplicas=64))),
    (4, fixed("q2", lambda s, w: w[1].update(maxReplicas=8))),
    (4, fixed("q2", lambda s, w: s.pop("enableInTreeAutoscaling"))),
    (5, fixed("q2", lambda s, w: amounts(w[1], cpu="12", memory="80Gi"))),
    (5, fixed("q2", lambda s, w: amounts(w[0], memory="12Gi"))),
    (5, fixed("q2", lambda s, w: amounts(head(s), cpu="4"))),
]  # fmt: skip
MUTANTS["q3"] = [
    (0, fixed("q3", lambda s, w: s.pop("enableInTreeAutoscaling"))),
    (0, fixed("q3", lambda s, w: w[0].update(minReplicas=2))),
    (0, fixed("q3", lambda s, w: w[0].update(maxReplicas=8))),
    (1, fixed("q3", lambda s, w: pod(head(s)).update(tolerations=GPU_TOLERATION))),
    (1, fixed("q3", lambda s, w: pod(head(s)).update(nodeSelector={"accelerator": "none"}))),
    (2, fixed("q3", lambda s, w: limits(head(s)).update(memory="8Gi"))),
    (2, fixed("q3", lambda s, w: limits(head(s)).pop("memory"))),
    (3, fixed("q3", lambda s, w: limits(w[0]).update(cpu="16"))),
    (3, fixed("q3", lambda s, w: limits(w[0]).update(memory="64Gi"))),
    (3, fixed("q3", lambda s, w: amounts(w[0], cpu="4"))),
    (3, fixed("q3", lambda s, w: w[0].update(rayStartParams={"num-gpus": "1"}))),
    (4, fixed("q3", lambda s, w: pod(w[0]).update(nodeSelector={"accelerator": "nvidia-a100"}))),
    (4, fixed("q3", lambda s, w: pod(w[0]).pop("tolerations"))),
]
MUTANTS["q4"] = [
    (0, fixed("q4", lambda s, w: s.update(rayVersion="2.9.0"))),
    (0, fixed("q4", lambda s, w: pod(w[0])["containers"][0].update(image="registry.example/team/ray-gpu:newest"))),
    (1, fixed("q4", lambda s, w: head(s).update(rayStartParams={"num-gpus": "0"}))),
    (1, fixed("q4", lambda s, w: head(s).update(rayStartParams={"num-cpus": "4"}))),
    (2, fixed("q4", lambda s, w: limits(w[0]).pop("memory"))),
    (2, fixed("q4", lambda s, w: limits(head(s)).pop("memory"))),
    (3, fixed("q4", lambda s, w: pod(w[0]).pop("tolerations"))),
    (3, fixed("q4", lambda s, w: amounts(w[0], cpu="48"))),
    (4, fixed("q4", lambda s, w: w[0].update(rayStartParams={"num-gpus": "1"}))),
    (4, fixed("q4", lambda s, w: amounts(w[0], **{"nvidia.com/gpu": 2}))),
]

VARIED = MUTANTS["q5"][1:]
ALL_MUTANTS = [
    pytest.param(question, position, answer, id=f"{question}-{number}")
    for question, mutants in sorted(MUTANTS.items())
    for number, (position, answer) in enumerate(mutants)
]


def suite(question: str):
    return find_suite(f"ex03.{question}")


def hard_coded(group):
    """Knows the examples of the check by heart."""
    known = [case.test.__closure__ for case in suite("q5").cases]
    specs = [c.cell_contents for cells in known for c in cells if isinstance(c.cell_contents, dict)]
    assert len(specs) == len(known)
    return ex03.right_for(group) if group in specs else dict.fromkeys(ex03.KEYS, -1)


# ---- wrong answers


RIGHT_LINES = [
    *("num-cpus", "num-gpus", "tolerations:", "operator:", "Exists", "version: v2", "limits:", "fast_disk:"),
    *("enableInTreeAutoscaling", "nodeSelector", "cpu:", "memory:"),
]


@pytest.mark.parametrize(("question", "position", "answer"), [p for p in ALL_MUTANTS if p.values[0] in MANIFESTS])
def test_no_message_says_what_to_write(question, position, answer):
    message = run(suite(question), answer).rows[position].message
    assert not [line for line in RIGHT_LINES if line in message], message


@pytest.mark.parametrize(("question", "position", "answer"), [p for p in ALL_MUTANTS if p.values[0] == "q5"])
def test_no_message_says_the_right_number(question, position, answer):
    case = suite("q5").cases[position]
    message = run(suite(question), answer).rows[position].message
    said = message.partition("it says that ")[2]
    right = [2, 4, 3, 3, None, 2, 1, 5, 2][position]
    assert case.name and said and not re.search(rf"\b{right}\b", said.partition(": ")[0]), message


@pytest.mark.parametrize("question", QUESTIONS)
def test_names_and_hints_do_not_say_the_answer(question):
    for text in [*(case.name for case in suite(question).cases), *suite(question).hints]:
        assert not re.search(r'num-cpus[:=]|"0"|version: ?v2|Exists|\'\{', text), text


# ---- what is refused before any case looks at it


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (7, "A manifest is YAML text or a dict, and this is a number"),
        ("just a line", "A manifest is a mapping that begins with apiVersion, and this is a text"),
        ("a: [1", "This is no YAML: line 1, column 6: "),
        ("a: 1\na: 2", "This is no YAML: line 2, column 1: the key 'a' is there twice"),
        ("a: 1\n---\nb: 2", "There are 2 documents in it, and it should be one RayCluster"),
        ("apiVersion: v1\nkind: Pod", "It has apiVersion 'v1' and kind 'Pod'"),
        ({1: 2}, "The manifest has the key 1, and a key is a string"),
        (ATLAS | {"spec": {"rayVersion": {1, 2}}}, "spec.rayVersion is a set, which no manifest can hold"),
        (
            atlas(lambda s, w: w[1]["template"].update(tolerations=[])),
            "the API server refuses this: spec.workerGroupSpecs[1].template.tolerations: there is no such field",
        ),
        (
            atlas(lambda s, w: head(s).update(rayStartParams={"num-cpus": 0})),
            "the API server refuses this: spec.headGroupSpec.rayStartParams.num-cpus: it should be a string, and is the"
            " number 0",
        ),
        (atlas(lambda s, w: s.pop("headGroupSpec")), "the API server refuses this: spec.headGroupSpec: it is required"),
        (
            atlas(lambda s, w: s["autoscalerOptions"].update(upscalingMode="fast")),
            "the API server refuses this: spec.autoscalerOptions.upscalingMode: 'fast' is not one of",
        ),
        (
            atlas(lambda s, w: amounts(w[0], cpu="two")),
            "the API server refuses this: spec.workerGroupSpecs[0].template.spec.containers[0].resources.limits.cpu:"
            " 'two' is no quantity",
        ),
        (
            atlas(lambda s, w: s["autoscalerOptions"].pop("version")),
            "the API server takes this, and the operator does not, so that no Pod is made: spec.workerGroupSpecs[1]"
            ".idleTimeoutSeconds: ",
        ),
        (
            atlas(lambda s, w: head(s).update(resources={"CPU": "0"})),
            "the API server takes this, and the operator does not, so that no Pod is made: spec.headGroupSpec"
            ".resources: ",
        ),
        (ATLAS | {"metadata": {"name": "Atlas"}}, "the API server refuses this: metadata.name: "),
        (ATLAS | {"metadata": {"name": "2-atlas"}}, "the API server takes this, and the operator does not"),
        ({name: part for name, part in ATLAS.items() if name != "spec"}, "there is no spec in it"),
        (
            atlas(lambda s, w: head(s)["template"].update(spec={"containers": []})),
            "the API server takes this, and the operator does not, so that no Pod is made: spec.headGroupSpec.template"
            ".spec.containers: there is no container",
        ),
        (
            atlas(lambda s, w: pod(w[1])["tolerations"][0].update(operator="Exist")),
            "the Pods of `gpu` are refused by the API server: a toleration has the operator 'Exist'",
        ),
        (
            atlas(
                lambda s, w: pod(w[0])["containers"][0].update(
                    resources={"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "4", "memory": "2Gi"}}
                )
            ),
            "the Pods of `cpu` are refused by the API server: the request of cpu is above its limit",
        ),
    ],
)
def test_what_is_refused(answer, said):
    for question in ("q1", "q2"):
        report = run(suite(question), answer)
        assert report == 0 and report.rows[0].message.startswith(said), str(report)
        assert "raised" not in report.rows[0].message


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    return "\n".join(lines)


def test_what_is_too_big():
    endless: dict = {}
    endless["spec"] = {"a": 1, "b": endless}
    for answer in (bomb(), "a" * 300_000, endless, "[" * 5000):
        report = run(suite("q1"), answer)
        assert report == 0 and len(report.rows[0].message) < 300
    huge = atlas(lambda s, w: amounts(w[0], cpu="1e999999999"))
    said = run(suite("q1"), huge).rows[0].message
    assert said.startswith("this cannot be reckoned with: ") and "'1e999999999' is no quantity" in said


# ---- the manifests that are to be repaired


@pytest.mark.parametrize(("question", "given"), REPAIRS.items())
def test_a_given_manifest_counts_as_not_answered(question, given):
    for answer in (given, yaml.safe_load(given), f"# a comment\n{given}"):
        report = run(suite(question), answer)
        assert report == 0 and {row.state for row in report.rows} == {"not answered yet"}


@pytest.mark.parametrize(("question", "given"), REPAIRS.items())
def test_a_given_manifest_misses_every_case(question, given):
    document = yaml.safe_load(given)
    document["metadata"]["annotations"] = {"touched": "yes"}
    report = run(suite(question), document)
    assert {row.state for row in report.rows} == {"not yet"}, str(report)


@pytest.mark.parametrize(("question", "given"), REPAIRS.items())
def test_the_cell_holds_the_given_manifest(question, given):
    release = cell(question).partition("### BEGIN SOLUTION")[0]
    names: dict = {}
    exec(release, names)
    assert given in names.values()


def test_the_machines_are_those_of_the_cluster():
    there = {
        one.name: (one.cpu, f"{one.memory_gib}Gi", one.gpus, tuple(one.taints))
        for one in DEFAULT_MACHINES
    }  # fmt: skip
    assert there == {
        one.name: (one.offers["cpu"], one.offers["memory"], one.offers.get("nvidia.com/gpu", 0), tuple(
            f"{taint.key}={taint.value}:{taint.effect}" for taint in one.taints))
        for one in ex03.MACHINES
    }  # fmt: skip
    rows = re.findall(r"^\| `(\S+)` \| (\d+) \| (\d+) GiB \| (\d*) ?\| (?:`(\S+)`)? ?\|$", cell("machines"), re.M)
    assert {name: (int(c), f"{m}Gi", int(g or 0), (t,) if t else ()) for name, c, m, g, t in rows} == there


def test_the_versions_in_the_text():
    assert f"KubeRay {versions.KUBERAY}" in cell("machines") and f"`{IMAGE}`" in cell("machines")


# ---- the run of question 1

GPUS = {one.name: one.offers.get("nvidia.com/gpu", 0) for one in ex03.MACHINES}


def run_of(plan: dict) -> dict:
    """What a run of a plan sees, by the rules. tests/live/test_ex03.py has what the cluster does."""
    cluster = raycluster.cluster_of(plan)
    groups = {}
    for group in cluster.groups:
        machines = ex03.scheduling.places(cluster, group, ex03.MACHINES)
        groups[group.name] = [
            {
                "name": f"{group.name}-{number}",
                "machine": machines[0] if machines else "",
                "machine_gpus": int(GPUS[machines[0]]) if machines else None,
                "ready": bool(machines),
                "ray_start": f"ulimit -n 65536; {raycluster.start_command(cluster, group)}",
                "autoscaler": group.is_head and cluster.is_autoscaling,
                "resources": {**group.offers, "object_store_memory": 5e8, "node:10.0.0.7": 1},
            }
            for number in range(group.desired_pods)
        ]
    return {"ray": versions.RAY, "seconds": 60.5, "groups": groups}


def as_run(answer, change=lambda seen: None, by=evidence.SELF_REPORTED):
    def see(plan):
        assert plan == json.loads(json.dumps(plan))
        seen = json.loads(json.dumps(run_of(plan)))
        change(seen)
        return evidence.Sighting(plan, seen, by)

    return run(suite(LIVE), answer, see=see)


@pytest.mark.parametrize("by", [evidence.SELF_REPORTED, evidence.VERIFIED])
@pytest.mark.parametrize("answer", RIGHT["q1"])
def test_a_run_of_a_right_manifest_is_full(answer, by):
    report = as_run(answer, by=by)
    assert report.is_full and report.points == 4, str(report)
    assert {row.by for row in report.rows} == {by}


RUN_MUTANTS = [
    (0, atlas(lambda s, w: head(s)["rayStartParams"].update({"num-cpus": "1"}))),
    (0, atlas(lambda s, w: pod(head(s)).update(nodeSelector={"pool": "head"}))),
    (1, atlas(lambda s, w: w[0].update(replicas=2))),
    (1, atlas(lambda s, w: w[0].pop("rayStartParams"))),
    (1, atlas(lambda s, w: w[0].update(groupName="cpus"))),
    (2, atlas(lambda s, w: w[1].update(rayStartParams={"num-gpus": "2"}))),
    (2, atlas(lambda s, w: w[1].update(minReplicas=0))),
    (2, atlas(lambda s, w: pod(w[1]).pop("tolerations"))),
    (3, atlas(lambda s, w: s.pop("enableInTreeAutoscaling"))),
]


@pytest.mark.parametrize(("position", "answer"), RUN_MUTANTS)
def test_a_run_of_a_wrong_manifest_misses_its_case_only(position, answer):
    report = as_run(answer)
    assert [number for number, row in enumerate(report.rows) if row.state != "pass"] == [position], str(report)
    assert not [line for line in RIGHT_LINES if line in report.rows[position].message]


def test_a_head_that_was_on_a_machine_with_gpus():
    report = as_run(ATLAS, lambda seen: first(seen, "headgroup").update(machine="m", machine_gpus=4))
    assert [row.state == "pass" for row in report.rows] == [False, True, True, True]
    assert "the head was on m, which has GPUs" in report.rows[0].message
    assert as_run(ATLAS, lambda seen: first(seen, "headgroup").update(machine_gpus=None)).is_full


def test_every_case_of_the_run_has_a_mutant():
    assert {position for position, _ in RUN_MUTANTS} == set(range(len(suite(LIVE).cases)))
    assert suite(LIVE).runs_on == KUBERNETES


def first(seen: dict, name: str) -> dict:
    return seen["groups"][name][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda seen: seen.pop("groups"), "is not what a run writes down"),
        (lambda seen: seen.update(groups=7), "is not what a run writes down"),
        (lambda seen: seen.update(ray=2.6), "is not what a run writes down"),
        (lambda seen: seen.update(seconds=-1), "is not what a run writes down"),
        (lambda seen: first(seen, "cpu").pop("machine"), "is not what a run writes down"),
        (lambda seen: first(seen, "cpu").update(machine_gpus="4"), "is not what a run writes down"),
        (lambda seen: first(seen, "cpu").pop("machine_gpus"), "is not what a run writes down"),
        (lambda seen: first(seen, "cpu").update(ready=1), "is not what a run writes down"),
        (lambda seen: first(seen, "cpu").update(resources={"CPU": "2"}), "is not what a run writes down"),
        (lambda seen: first(seen, "cpu").update(name="gpu-0"), "is not what a run writes down"),
        (lambda seen: seen["groups"].pop("headgroup"), "the head did not come up"),
        (lambda seen: first(seen, "gpu")["resources"].update(GPU=4), "does not fit the manifest"),
        (lambda seen: first(seen, "cpu")["resources"].pop("fast_disk"), "does not fit the manifest"),
        (lambda seen: first(seen, "cpu").update(ray_start="ray start --block"), "does not fit the manifest"),
    ],
)
def test_what_no_run_can_have_seen(change, said):
    report = as_run(ATLAS, change)
    assert report == 0 and {row.state for row in report.rows} == {"not yet"}
    assert said in report.rows[0].message and "raised" not in report.rows[0].message


@pytest.mark.parametrize("junk", [None, [], {}, 3, {"ray": "2"}, {"groups": [], "ray": "2"}])
def test_junk_for_a_run(junk):
    report = run(suite(LIVE), ATLAS, see=lambda plan: evidence.Sighting(plan, junk, evidence.SELF_REPORTED))
    assert report == 0 and "is not what a run writes down" in report.rows[0].message


def test_not_run_yet_and_not_answered_yet():
    def see(plan):
        raise evidence.NotRunYet("")

    report = run(suite(LIVE), ATLAS, see=see)
    assert report == 0 and {row.state for row in report.rows} == {"not run yet"} and not report.is_answered
    for answer in ("\n", None, ...):
        assert {row.state for row in run(suite(LIVE), answer, see=see).rows} == {"not answered yet"}


# ---- what is applied for somebody else's manifest


def test_what_is_applied_is_taken_by_everybody():
    for answer in RIGHT["q1"]:
        plan = suite(LIVE).read(answer)
        assert ex03.read_cluster(plan) and suite(LIVE).read(plan) == plan
        assert run(suite("q1"), plan).is_full


def test_two_ways_to_write_a_manifest_are_one_plan():
    text = yaml.safe_dump(ATLAS, sort_keys=True)
    assert suite(LIVE).read(text) == suite(LIVE).read(ATLAS)


HOSTILE = atlas(
    lambda s, w: pod(head(s))["containers"][0].update(command=["reboot"], args=["reboot"], name="reboot"),
    lambda s, w: pod(head(s))["containers"][0].update(env=[{"name": "X", "value": "reboot"}]),
    lambda s, w: pod(head(s))["containers"].append({"name": "more", "image": "reboot"}),
    lambda s, w: pod(head(s)).update(hostNetwork=True, serviceAccountName="reboot"),
    lambda s, w: pod(w[0]).update(volumes=[{"name": "x", "hostPath": {"path": "/reboot"}}]),
    lambda s, w: pod(w[0]).update(initContainers=[{"name": "reboot", "image": "reboot"}]),
    lambda s, w: head(s)["rayStartParams"].update({"temp-dir": "$(reboot)", "block": "true; reboot"}),
    lambda s, w: head(s)["template"].update(metadata={"annotations": {"ray.io/overwrite-container-cmd": "reboot"}}),
    lambda s, w: s["autoscalerOptions"].update(image="reboot", env=[{"name": "X", "value": "reboot"}]),
)


def test_nothing_that_is_typed_is_run():
    plan = suite(LIVE).read(HOSTILE)
    assert "reboot" not in json.dumps(plan)
    assert plan == suite(LIVE).read(ATLAS)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            atlas(lambda s, w: head(s)["rayStartParams"].update({"num-cpus": "0;reboot"})),
            "the head does not start: `ray start` wants a whole number for --num-cpus",
        ),
        (
            atlas(lambda s, w: w[0].update(rayStartParams={"resources": "'{\"$(reboot)\": 1}'"})),
            "`cpu`: '$(reboot)' is no name of a resource",
        ),
        (
            atlas(lambda s, w: w[0].update(rayStartParams={}, resources={"a b": "1"})),
            "`cpu`: 'a b' is no name of a resource",
        ),
        (atlas(lambda s, w: w[0].update(groupName="a;reboot")), "'a;reboot' is no name of a group"),
        (
            atlas(lambda s, w: pod(w[0]).update(nodeSelector={"a": "b c"})),
            "`cpu`: 'b c' cannot be applied here",
        ),
        (atlas(lambda s, w: w[0].update(replicas=4, minReplicas=4)), "it begins with 6 Pods"),
        (atlas(lambda s, w: w[0].update(rayStartParams={"num-cpus": "64"})), "`cpu`: more than 8 CPUs"),
        (atlas(lambda s, w: s.pop("rayVersion")), "the images say which Ray they hold"),
    ],
)
def test_a_manifest_that_is_not_applied(answer, said, monkeypatch):
    monkeypatch.setattr(ex03, "MOST_PODS", 5)
    report = run(suite(LIVE), answer, see=None)
    assert report == 0 and report.rows[0].message.startswith(said), str(report)


# ---- answers that are not there, or of another kind


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_not_answered_says_so(question):
    for answer in ("\n", None, ...):
        report = run(suite(question), answer)
        assert {row.state for row in report.rows} == {"not answered yet"} and report == 0


def test_a_function_that_is_not_written_yet():
    def becomes(group):
        raise NotImplementedError

    assert not run(suite("q5"), becomes).is_answered


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "it returned a NoneType, and it should return a dict"),
        ({"pods": 1}, "there is no 'num-cpus' in what it returned"),
        ({"pods": 1, "num-cpus": "2", "num-gpus": None, "memory": 4 * 2**30}, "its 'num-cpus' is '2'"),
        ({"pods": True, "num-cpus": 2, "num-gpus": None, "memory": 4 * 2**30}, "its 'pods' is True"),
    ],
)
def test_a_function_that_returns_something_else(returned, said):
    assert said in run(suite("q5"), lambda group: returned).rows[0].message


def test_a_function_that_changes_what_it_is_given():
    def becomes(group):
        right = BECOMES(group)
        group.clear()
        return right

    assert run(suite("q5"), becomes).is_full

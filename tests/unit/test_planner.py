"""The planner: that it is Ray's scheduler which decides, what else must hold of any plan, reasons, and bad input."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import combinations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.autoscaler._private.kuberay import autoscaling_config
from ray.autoscaler.v2 import scheduler as ray_scheduler
from ray.autoscaler.v2.instance_manager import config
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated import autoscaler_pb2 as proto
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind
from typer.testing import CliRunner

from helpers import cli
from helpers.errors import CourseError
from helpers.lab import Lab
from helpers.model import manifest, raycluster
from helpers.model.demand import Demand, Gang
from helpers.model.planner import NodeGroup, Plan, Running, decision, launch_waves, plan, plans
from helpers.model.planner.source import cluster_in
from helpers.model.scaling import manual_scale_down
from helpers.state import course_root
from tests.contract.cases_plan import _plan as plan_of_case
from tests.contract.cases_plan import wrong

CASES = course_root() / "tests" / "cases"
GIB = 2**30
SOAK = bool(os.environ.get("COURSE_SOAK"))
# a thousand new scenes each time take a minute; two hundred that are always the same are what `make test` has time for
MANY = {"max_examples": 1000 if SOAK else 200, "derandomize": not SOAK, "deadline": None}
FEW = MANY | {"max_examples": 100 if SOAK else 50}


def cluster(groups: str, head: str = "{num-cpus: '0'}", spec: str = "") -> str:
    """A RayCluster with autoscaling on; each line of groups is one group of workers in YAML's flow style."""
    workers = "\n".join(f"  - {line.strip()}" for line in groups.strip().splitlines())
    return f"""
apiVersion: ray.io/v1
kind: RayCluster
metadata: {{name: c}}
spec:
  enableInTreeAutoscaling: true
  autoscalerOptions: {{version: v2}}
{spec}
  headGroupSpec:
    rayStartParams: {head}
    template: {{spec: {{containers: [{{name: ray-head, resources: {{limits: {{cpu: 2, memory: 4Gi}}}}}}]}}}}
  workerGroupSpecs:
{workers}
"""


def group(name: str, limits: str, more: str = "") -> str:
    container = f"{{name: ray-worker, resources: {{limits: {{{limits}}}}}}}"
    return f"{{groupName: {name}, template: {{spec: {{containers: [{container}]}}}}, {more}}}"


CPU_4 = NodeGroup("cpu", {"CPU": 4, "memory": 16 * GIB}, most=3)
GPU_1 = NodeGroup("gpu", {"CPU": 8, "GPU": 1, "memory": 32 * GIB}, most=2, labels={"zone": "west"})


# ---- any plan: groups, what is there, what is asked, at random

GROUPS = st.lists(
    st.builds(
        lambda cpu, gpu, tag, least, more, hosts, zone: {
            "offers": {"CPU": cpu} | ({"GPU": gpu} if gpu is not None else {}) | ({"tag": tag} if tag else {}),
            "least": least,
            "most": least + more,
            "hosts": hosts,
            "labels": {"zone": zone} if zone else {},
        },
        st.integers(0, 8),
        st.sampled_from([None, None, 0, 1, 4]),
        st.sampled_from([0, 0, 2]),
        st.integers(0, 2),
        st.integers(0, 4),
        st.sampled_from([1, 1, 1, 2]),
        st.sampled_from(["", "a", "b"]),
    ),
    min_size=1,
    max_size=4,
).map(lambda ones: [NodeGroup(f"g{number}", **one) for number, one in enumerate(ones)])
SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "CPU": st.sampled_from([0.5, 1, 2, 4, 9]),
        "GPU": st.sampled_from([0, 0.5, 1, 2]),
        "tag": st.sampled_from([1, 2, 3]),
    },
).filter(lambda shape: any(shape.values()))
LABELS = st.sampled_from([{}, {}, {}, {"zone": "a"}, {"zone": "!a"}, {"zone": "in(a, b)"}, {"zone": "c"}])


def demand_of(most: int):
    return st.builds(Demand, SHAPES, st.integers(1, most), LABELS)


GANGS = st.lists(
    st.builds(
        Gang,
        st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
        st.lists(demand_of(4), min_size=1, max_size=3).map(tuple),
        st.integers(1, 2),
    ),
    max_size=3,
)


@st.composite
def scenes(draw):
    groups = draw(GROUPS)
    running, pending = [], {}
    for one in groups:
        up = draw(st.integers(0, one.most * one.hosts))
        if up:
            is_idle = draw(st.booleans())
            free = None if is_idle else {name: draw(st.integers(0, amount)) for name, amount in one.offers.items()}
            running.append(Running(one.name, up, free, draw(st.sampled_from([0, 59, 60, 61, 500])) if is_idle else 0))
        pending[one.name] = draw(st.integers(0, min(2, one.most * one.hosts - up)))
    return {
        "groups": groups,
        "demand": draw(st.lists(demand_of(8), max_size=4)),
        "running": running,
        "pending": pending,
        "request_resources": draw(st.lists(demand_of(4), max_size=2)),
        "placement_groups": draw(GANGS),
    }


def planned(scene: dict, **more) -> Plan:
    asked = {name: value for name, value in scene.items() if name not in ("groups", "demand")}
    with pytest.MonkeyPatch.context() as patch:
        # Ray compares its config with its schema, twice, which takes longer than the rest: other tests are for that
        patch.setattr(autoscaling_config, "validate_config", lambda _: None)
        patch.setattr(config, "validate_config", lambda _: None)
        return plan(scene["groups"], scene["demand"], **asked, **more)


def by_ray(scene: dict) -> ray_scheduler.SchedulingReply:
    """The same asked of Ray's scheduler by hand, from the groups themselves, without a manifest."""

    def request(one: Demand, constraint: tuple | None = None) -> proto.ResourceRequest:
        operators = {True: LabelSelectorOperator.LABEL_OPERATOR_IN, False: LabelSelectorOperator.LABEL_OPERATOR_NOT_IN}
        selector = [(key, operators[wanted], values) for key, wanted, values in one.selector]
        amounts = {name: amount for name, amount in one.resources.items() if amount}
        return ResourceRequestUtil.make(amounts, [constraint] if constraint else None, [selector] if selector else None)

    kinds = ResourceRequestUtil.PlacementConstraintType
    strict = {"STRICT_PACK": kinds.AFFINITY, "STRICT_SPREAD": kinds.ANTI_AFFINITY}
    gangs = []
    for one in scene["placement_groups"]:
        for _ in range(one.count):
            constraint = (strict[one.strategy], f"pg{len(gangs)}", "") if one.strategy in strict else None
            requests = [request(bundle, constraint) for bundle in one.bundles for _ in range(bundle.count)]
            gangs.append(proto.GangResourceRequest(requests=requests))
    types = {
        one.name: NodeTypeConfig(
            one.name, one.least * one.hosts, one.most * one.hosts, resources=dict(one.offers), labels=dict(one.labels)
        )
        for one in scene["groups"]
    }
    offers = {one.name: one.offers for one in scene["groups"]}
    there = [("head", "headgroup", NodeKind.HEAD, {"CPU": 0}, {"CPU": 0}, 0)]
    for one in scene["running"]:
        free = offers[one.group] if one.free is None else one.free
        there += [
            (f"{one.group}-{n}", one.group, NodeKind.WORKER, offers[one.group], free, one.idle_s)
            for n in range(one.count)
        ]
    labels = {one.name: one.labels for one in scene["groups"]}
    instances = [
        ray_scheduler.AutoscalerInstance(
            im_instance=Instance(
                instance_id=id, instance_type=name, status=Instance.RAY_RUNNING, node_id=id, node_kind=kind
            ),
            ray_node=proto.NodeState(
                total_resources=total,
                available_resources=free,
                labels=labels.get(name, {}),
                idle_duration_ms=idle_s * 1000,
            ),
        )
        for id, name, kind, total, free, idle_s in there
    ]
    instances += [
        ray_scheduler.AutoscalerInstance(
            im_instance=Instance(instance_id=f"{name} {n}", instance_type=name, status=Instance.REQUESTED)
        )
        for name, count in scene["pending"].items()
        for n in range(count)
    ]
    standing = [
        proto.ResourceRequestByCount(request=request(one), count=one.count) for one in scene["request_resources"]
    ]
    return ray_scheduler.ResourceDemandScheduler().schedule(
        ray_scheduler.SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs={"headgroup": NodeTypeConfig("headgroup", 0, 1, resources={"CPU": 0})} | types,
            max_num_nodes=sum(one.max_worker_nodes for one in types.values()) + 1,
            idle_timeout_s=60,
            resource_requests=[
                proto.ResourceRequestByCount(request=request(one), count=one.count) for one in scene["demand"]
            ],
            gang_resource_requests=gangs,
            cluster_resource_constraints=[proto.ClusterResourceConstraint(resource_requests=standing)]
            if standing
            else [],
            current_instances=instances,
        )
    )


@settings(**MANY)
@given(scenes())
def test_many_plans(scene):
    told = planned(scene)
    ray_decides_the_same(scene, told)
    what_holds_of_any_plan(scene, told)
    reasons_are_those_found_by_hand(scene, told)


def ray_decides_the_same(scene: dict, told: Plan) -> None:
    ray = by_ray(scene)
    assert told.launch == {one.instance_type: one.count for one in ray.to_launch}
    assert sum(one.what.count for one in told.unmet) == len(ray.infeasible_resource_requests)
    assert sum(one.what.count for one in told.unmet_groups) == len(ray.infeasible_gang_resource_requests)
    assert (told.unmet_request is None) is not bool(ray.infeasible_cluster_resource_constraints)
    assert told.terminate == Counter(one.instance_type for one in ray.to_terminate)


def sums(ones) -> Counter:
    found: Counter = Counter()
    for one in ones:
        for name, amount in one.resources.items():
            found[name] += amount * one.count
    return +found


def spread_out(gangs) -> list[Demand]:
    return [bundle.times(bundle.count * gang.count) for gang in gangs for bundle in gang.bundles]


def what_holds_of_any_plan(scene: dict, told: Plan) -> None:
    groups = {one.name: one for one in scene["groups"]}
    there = Counter({one.group: one.count for one in scene["running"]}) + Counter(scene["pending"])
    new = Counter(node.group for node in told.nodes if node.state == "new")
    assert new == Counter(told.launch)
    for name, one in groups.items():
        after = there[name] + told.launch.get(name, 0) - told.terminate.get(name, 0)
        assert one.least * one.hosts <= after <= one.most * one.hosts
    # all that is asked has a place or is named, and no Ray node takes more than it has free, or what it may not
    asked = sums([*scene["demand"], *spread_out(scene["placement_groups"])])
    missed = sums([*(one.what for one in told.unmet), *spread_out(one.what for one in told.unmet_groups)])
    taken = sums(take for node in told.nodes for take in node.takes)
    assert taken + missed == asked
    held = sums(one for node in told.nodes for one in node.holds)
    assert held == (Counter() if told.unmet_request else sums(scene["request_resources"]))
    free_before = {one.group: one.free for one in scene["running"]}
    for node in told.nodes:
        if node.group in groups:
            offers = groups[node.group].offers
            free = (free_before[node.group] if node.state == "running" else None) or offers
            for name, amount in sums(node.takes).items():
                assert amount <= free.get(name, 0) and node.free[name] == free[name] - amount
        for one in node.takes:
            assert one.allows(groups[node.group].labels if node.group in groups else {})
    # each new Ray node is there for something
    for name, one in groups.items():
        idlers = [
            node for node in told.nodes if node.group == name and node.state == "new" and not node.takes + node.holds
        ]
        assert not idlers or there[name] + len(idlers) <= one.least * one.hosts
    # what is stopped is idle for too long, and nobody wants it
    for node in told.nodes:
        if node.stops:
            assert node.state == "running" and not node.takes and not node.holds
    # no task is left out that a group has room for
    for one in told.unmet:
        for name, its in groups.items():
            fits = all(its.offers.get(what, 0) >= amount for what, amount in one.what.resources.items())
            if fits and one.what.allows(its.labels):
                assert there[name] + told.launch.get(name, 0) == its.most * its.hosts
        for node in told.nodes:
            labels = groups[node.group].labels if node.group in groups else {}
            is_free = all(node.free.get(what, 0) >= amount for what, amount in one.what.resources.items())
            assert node.stops or not (is_free and one.what.allows(labels))


def reason_by_hand(one: Demand, groups: list[NodeGroup]) -> str:
    asked = {name: amount for name, amount in one.resources.items() if amount}
    if any(max(its.offers.get(name, 0) for its in groups) == 0 for name in asked):
        return "resource-not-declared"
    big = [its for its in groups if not any(amount > its.offers.get(name, 0) for name, amount in asked.items())]
    if not big:
        return "too-big-for-any-group"
    return "max-replicas" if [its for its in big if one.allows(its.labels)] else "label-mismatch"


def gang_reasons_by_hand(gang: Gang, groups: list[NodeGroup]) -> set[str]:
    """What may be said of a placement group; of a strict spread by Hall's theorem: any n bundles need n Ray nodes."""
    reasons = {reason_by_hand(one, groups) for one in gang.bundles}
    if gang.strategy == "STRICT_PACK":
        # Ray sums the bundles of equal labels (combine_requests_with_affinity)
        alike = {
            one.shape[1]: [other for other in gang.bundles if other.shape[1] == one.shape[1]] for one in gang.bundles
        }
        wholes = [Demand(dict(sums(some)), 1, some[0].labels) for some in alike.values()]
        reasons = {reason_by_hand(whole, groups) for whole in wholes}
        reasons = {"pack-too-big-for-one-node" if one == "too-big-for-any-group" else one for one in reasons}
    if reasons == {"max-replicas"} and gang.strategy == "STRICT_SPREAD":
        for size in range(1, len(gang.bundles) + 1):
            for some in combinations(gang.bundles, size):
                nodes = sum(
                    its.most * its.hosts
                    for its in groups
                    if any(reason_by_hand(one, [its]) == "max-replicas" for one in some)
                )
                if sum(one.count for one in some) > nodes:
                    return {"spread-needs-more-nodes"}
    return reasons if reasons == {"max-replicas"} else reasons - {"max-replicas"}


def reasons_are_those_found_by_hand(scene: dict, told: Plan) -> None:
    for one in told.unmet:
        assert one.reason == reason_by_hand(one.what, scene["groups"])
    for one in told.unmet_groups:
        assert one.reason in gang_reasons_by_hand(one.what, scene["groups"])
    if told.unmet_request:
        alone = {reason_by_hand(one, scene["groups"]) for one in scene["request_resources"]} - {"max-replicas"}
        assert told.unmet_request in (alone or {"all-or-nothing"})


@settings(**FEW)
@given(scenes())
def test_each_state_once_changes_nothing(scene):
    """Ray tries each running Ray node, and the planner one of those that are alike."""
    quick = planned(scene)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decision, "_each_state_once", contextlib.nullcontext)
        assert planned(scene) == quick


@settings(**FEW)
@given(scenes())
def test_what_holds_of_any_plan_of_v1(scene):
    told = planned(scene, version="v1")
    there = Counter({one.group: one.count for one in scene["running"]}) + Counter(scene["pending"])
    for one in scene["groups"]:
        after = there[one.name] + told.launch.get(one.name, 0) - told.terminate.get(one.name, 0)
        assert one.least * one.hosts <= after <= one.most * one.hosts
    bare = [NodeGroup(one.name, one.offers, one.least, one.most, one.hosts) for one in scene["groups"]]
    for one in told.unmet:
        assert one.what.labels == {}
        assert one.reason == reason_by_hand(one.what, bare)
    for one in told.unmet_groups:
        assert one.reason in gang_reasons_by_hand(one.what, bare)
    launched: Counter = Counter()
    for one in told.rounds:
        launched.update(one)
    assert launched == Counter(told.launch)


# ---- the manifest is read as Ray reads it


def manifests() -> list:
    found = []
    for form in ("plan", "manifest"):
        for case in yaml.load((CASES / f"{form}.yaml").read_text(), yaml.CSafeLoader)["cases"]:
            found.append(pytest.param(case["input"]["manifest"], id=f"{form}-{case['id']}"))
    return found


@pytest.mark.parametrize("text", manifests())
def test_groups_are_as_the_course_counts_them(text):
    """`counted` of helpers.model.raycluster is ours, the planner's types are Ray's."""
    try:
        its = cluster_in(text)
    except CourseError:
        return  # the API server refuses it, or it has no cluster
    if not its.is_autoscaling:
        return  # nobody reads it
    with decision.quiet():
        types, _ = decision.types_of(its, None)
    try:
        counted = {one.name: one.counted for one in its.groups}
    except raycluster.NotCounted:
        assert types is None
        return
    for one in its.groups:
        if types and not any(name.startswith("TPU") for name in types.configs[one.name].resources):
            its_type = types.configs[one.name]
            assert its_type.resources == counted[one.name]
            assert (its_type.min_worker_nodes, its_type.max_worker_nodes) == (
                (0, 1) if one.is_head else (one.bounds[0] * one.hosts, one.max_pods)
            )


def test_groups_are_read_as_they_are_given():
    its = cluster_in([CPU_4, GPU_1, NodeGroup("two", {"tag": 2}, 1, 3, hosts=4)])
    types, _ = decision.types_of(its, None)
    assert types.configs["gpu"].resources == {"CPU": 8, "GPU": 1, "memory": 32 * GIB}
    assert types.configs["gpu"].labels == {"zone": "west"}
    assert types.configs["two"].resources == {"CPU": 0, "tag": 2}
    assert (types.configs["two"].min_worker_nodes, types.configs["two"].max_worker_nodes) == (4, 12)


@pytest.mark.parametrize(("kind", "field"), [("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")])
def test_a_cluster_inside_of_something(kind, field):
    document = manifest.documents(cluster(group("w", "cpu: 4")))[0]
    outer = {"entrypoint": "python a.py"} if kind == "RayJob" else {}
    document |= {"kind": kind, "spec": outer | {field: document["spec"]}}
    assert plan(document, "2×{CPU:4}").launch == {"w": 2}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_name_that_the_api_server_makes_is_no_matter(version):
    text = cluster(group("w", "cpu: 4")).replace("{name: c}", "{generateName: nightly-}")
    told = plan(text, "3×{CPU:3}", version=version)
    assert (told.launch, told.error) == ({"w": 3}, None)


def test_what_else_stands_in_the_file_is_no_matter():
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---" + cluster(group("w", "cpu: 4"))
    assert plan(text, "{CPU:1}").launch == {"w": 1}


# ---- what is decided, by example


def test_a_pending_pod_takes_what_waits():
    told = plan([CPU_4], "4×{CPU:2}", running=[Running("cpu", 1, {"CPU": 2})], pending={"cpu": 1})
    assert told.launch == {"cpu": 1}
    assert {name: sum(one.count for one in takes) for name, takes in told.absorbed.items()} == {"cpu 1": 1, "cpu 2": 2}
    assert [node.state for node in told.nodes] == ["running", "running", "pending", "new"]


def test_what_is_not_free_is_in_use():
    assert plan([CPU_4], "{CPU:1, memory:1Gi}", running=[Running("cpu", 1, {"CPU": 4})]).launch == {"cpu": 1}
    assert plan([CPU_4], "{CPU:1}", running=[Running("cpu", 1, {"CPU": 4})]).launch == {}


def test_a_ray_node_has_what_ray_start_is_told():
    """A slice of a GPU is a GPU to KubeRay, and nothing to the autoscaler."""
    text = cluster(group("mig", "cpu: 4, nvidia.com/mig-1g.5gb: 1"))
    told = plan(text, "2×{GPU:1}", running=[Running("mig", 1)])
    assert told.launch == {} and told.absorbed.keys() == {"mig 1"}
    assert [(one.what.count, one.reason) for one in told.unmet] == [(1, "resource-not-declared")]


def test_the_head_is_a_node_too():
    text = cluster(group("w", "cpu: 4"), head="{}")
    assert plan(text, "2×{CPU:1}").launch == {}
    assert plan(text, "3×{CPU:1}").launch == {"w": 1}
    assert plan(text, "{'node:__internal_head__': 0.001}").absorbed.keys() == {"headgroup"}


def test_a_label_without_a_value_is_asked_for_as_such():
    groups = group("a", "cpu: 4") + "\n" + group("b", "cpu: 4", "labels: {nvme: ''}")
    assert plan(cluster(groups), [Demand({"CPU": 3}, 2, {"nvme": ""})]).launch == {"b": 2}


def test_a_node_group_label_is_there_once_the_node_is():
    wanted = [Demand({"CPU": 1}, 1, {"ray.io/node-group": "cpu"})]
    assert [one.reason for one in plan([CPU_4], wanted).unmet] == ["label-mismatch"]
    assert plan([CPU_4], wanted, running=[Running("cpu")]).unmet == ()


@pytest.mark.parametrize(
    ("demand", "reason"),
    [
        ("{TPU:1}", "resource-not-declared"),
        ("{gpu:1}", "resource-not-declared"),
        ("{CPU:9}", "too-big-for-any-group"),
        ("{CPU:8, memory:33Gi}", "too-big-for-any-group"),
        ("{GPU:2}", "too-big-for-any-group"),
        ("9×{GPU:1}", "max-replicas"),
        (Demand({"GPU": 1}, 1, {"zone": "east"}), "label-mismatch"),
        (Demand({"CPU": 8}, 1, {"zone": "!west"}), "label-mismatch"),
        (Demand({"CPU": 8}, 3, {"zone": "in(west, east)"}), "max-replicas"),
        (Demand({"TPU": 1}, 1, {"zone": "east"}), "resource-not-declared"),
    ],
)
def test_reasons_of_tasks(demand, reason):
    assert {one.reason for one in plan([CPU_4, GPU_1], demand).unmet} == {reason}


@pytest.mark.parametrize(
    ("strategy", "bundles", "reason"),
    [
        ("STRICT_PACK", [Demand({"GPU": 1}, 2)], "pack-too-big-for-one-node"),
        ("STRICT_PACK", [Demand({"GPU": 1}), Demand({"CPU": 9})], "pack-too-big-for-one-node"),
        ("STRICT_PACK", [Demand({"TPU": 1})], "resource-not-declared"),
        ("STRICT_PACK", [Demand({"CPU": 1}, 2, {"zone": "east"})], "label-mismatch"),
        ("STRICT_SPREAD", [Demand({"GPU": 1}, 3)], "spread-needs-more-nodes"),
        ("STRICT_SPREAD", [Demand({"CPU": 1}, 6)], "spread-needs-more-nodes"),
        (
            "STRICT_SPREAD",
            [Demand({"GPU": 1}, 2), Demand({"CPU": 1}, 3), Demand({"CPU": 8})],
            "spread-needs-more-nodes",
        ),
        ("STRICT_SPREAD", [Demand({"CPU": 9}, 2)], "too-big-for-any-group"),
        ("SPREAD", [Demand({"GPU": 1}, 3)], "max-replicas"),
        ("PACK", [Demand({"CPU": 1}), Demand({"GPU": 2})], "too-big-for-any-group"),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_reasons_of_placement_groups(strategy, bundles, reason, version):
    if version == "v1" and any(one.labels for one in bundles):
        return  # it does not look at them
    told = plan([CPU_4, GPU_1], placement_groups=[Gang(strategy, tuple(bundles))], version=version)
    assert [(one.what.strategy, one.what.count, one.reason) for one in told.unmet_groups] == [(strategy, 1, reason)]
    assert told.unmet == ()


def test_a_spread_that_others_leave_no_room_for():
    gang = Gang("STRICT_SPREAD", (Demand({"CPU": 4}, 2),))
    told = plan([CPU_4], placement_groups=[gang], running=[Running("cpu", 2, {})])
    assert [one.reason for one in told.unmet_groups] == ["max-replicas"]


def test_a_group_without_all_its_bundles_launches_nothing_in_v2_and_something_in_v1():
    gang = Gang("PACK", (Demand({"CPU": 4}, 5),))
    assert plan([CPU_4], placement_groups=[gang]).launch == {}
    assert plan([CPU_4], placement_groups=[gang], version="v1").launch == {"cpu": 3}


def test_a_standing_request_beyond_the_maximum():
    v1, v2 = (plan([CPU_4], request_resources="5×{CPU:4}", version=version) for version in ("v1", "v2"))
    assert (v2.launch, v2.unmet_request) == ({}, "all-or-nothing")
    assert (v1.launch, v1.unmet_request) == ({"cpu": 3}, "max-replicas")
    assert plan([CPU_4], request_resources=["{CPU:1}", "{GPU:1}"]).unmet_request == "resource-not-declared"
    assert plan([CPU_4], request_resources="3×{CPU:4}").unmet_request is None


def test_a_standing_request_is_for_size_and_a_busy_node_meets_it():
    told = plan([CPU_4], request_resources="{CPU:4}", running=[Running("cpu", 1, {})])
    assert told.launch == {} and [node.holds for node in told.nodes if node.group == "cpu"] == [(Demand({"CPU": 4}),)]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_idle(version):
    def stopped(idle_s: float, **more) -> dict:
        return dict(plan([CPU_4], running=[Running("cpu", 2, None, idle_s)], version=version, **more).terminate)

    assert stopped(60) == {} and stopped(60.5) == {"cpu": 2}
    assert stopped(60.5, request_resources="{CPU:1}") == {"cpu": 1}
    assert stopped(60.5, idle_timeout_s=61) == {} and stopped(5, idle_timeout_s=4) == {"cpu": 2}
    least = NodeGroup("cpu", {"CPU": 4}, least=1)
    assert plan([least], running=[Running("cpu", 2, None, 99)], version=version).terminate == {"cpu": 1}
    assert plan([CPU_4], pending={"cpu": 2}, idle_timeout_s=0, version=version).terminate == {}


def test_an_idle_node_that_is_wanted_stays_in_v2_and_goes_in_v1():
    seen = {"demand": "{CPU:4}", "running": [Running("cpu", 1, None, 99)]}
    v2, v1 = (plan([CPU_4], **seen, version=version) for version in ("v2", "v1"))
    assert (v2.terminate, v2.launch) == ({}, {})
    assert (v1.terminate, v1.launch) == ({"cpu": 1}, {"cpu": 1})


def test_a_group_has_a_timeout_of_its_own():
    text = cluster(group("slow", "cpu: 4", "idleTimeoutSeconds: 600") + "\n" + group("w", "cpu: 4"))
    running = [Running("slow", 1, None, 120), Running("w", 1, None, 120)]
    assert plan(text, running=running).terminate == {"w": 1}
    assert plan(text, running=running, idle_timeout_s=300).terminate == {}


def test_more_than_may_be():
    for version in ("v1", "v2"):
        told = plan([CPU_4], running=[Running("cpu", 5)], version=version)
        assert (told.over_max, told.terminate) == ({"cpu": 2}, {})


def test_autoscaling_off():
    text = cluster(group("w", "cpu: 4", "minReplicas: 2")).replace("Autoscaling: true", "Autoscaling: false")
    told = plan(text, ["4×{CPU:2}", "{GPU:1}"], running=[Running("w", 1, None, 999)], pending={"w": 1})
    assert (told.launch, told.terminate, told.error) == ({}, {}, None)
    assert [(one.what.shape, one.reason) for one in told.unmet] == [(Demand({"GPU": 1}).shape, "autoscaler-off")]
    gang, request = Gang("PACK", (Demand({"CPU": 5}),)), Demand({"CPU": 4}, 3)
    told = plan(text, placement_groups=[gang], request_resources=request, version="v1")
    assert ([one.reason for one in told.unmet_groups], told.unmet_request) == (["autoscaler-off"], "autoscaler-off")


@pytest.mark.parametrize(
    "text",
    [
        cluster(group("w", "memory: 4Gi")),
        cluster(group("w", "cpu: 4", "rayStartParams: {resources: '{\"a\": 1}'}")),
        cluster(group("w", "cpu: 4", 'rayStartParams: {num-gpus: "one"}')),
        cluster(group("w", "cpu: 4", "minReplicas: 3, maxReplicas: 2")),
    ],
)
def test_a_manifest_that_the_autoscaler_cannot_read(text):
    for version in ("v1", "v2"):
        told = plan(text, "{CPU:1}", version=version)
        assert (told.error, told.launch, told.unmet) == ("config-rejected", {}, ())
        assert any(note.startswith("Ray says: ") for note in told.notes)


def test_what_the_operator_refuses_is_said():
    text = cluster(group("w", "cpu: 4", 'rayStartParams: {labels: "zone=west"}'))
    told = plan(text, [Demand({"CPU": 1}, 1, {"zone": "west"})])
    assert [one.reason for one in told.unmet] == ["label-mismatch"]
    assert "operator refuses" in told.notes[0] and "labels" in told.notes[0]


def test_what_a_plan_does_not_know_is_said():
    text = cluster(group("w", "cpu: 4"), spec="  rayVersion: 2.9.3").replace(
        "{name: c}", "{name: c, annotations: {ray.io/ippr: '{}'}}"
    )
    assert [note.split(",")[0] for note in plan(text).notes] == [
        "The manifest is for Ray 2.9.3",
        "Pods that run may be made bigger first",
    ]
    assert plan(text.replace("2.9.3", "2.60.0")).notes[0].startswith("Pods that run")


def test_a_field_that_this_kuberay_has_not_is_dropped():
    groups = group("a", "cpu: 4") + "\n" + group("b", "cpu: 4", "priority: 9")
    assert plan(cluster(groups), "{CPU:4}").launch == {"a": 1}


def test_hosts_come_whole():
    two = NodeGroup("tpu", {"CPU": 8}, most=2, hosts=4)
    assert plan([two], "8×{CPU:8}").notes == ()
    assert plan([two], "5×{CPU:8}").notes == ("Of 5 Pods of tpu, 4 come: a replica has 4.",)


# ---- rounds


@pytest.mark.parametrize(
    ("version", "mode", "start", "target", "after"),
    [
        ("v2", "Default", 0, 25, [10, 20, 25]),
        ("v2", "Aggressive", 3, 9, [9]),
        ("v2", None, 0, 0, []),
        ("v2", "Conservative", 3, 40, [6, 12, 22, 32, 40]),
        ("v1", "Conservative", 0, 12, [5, 10, 12]),
        ("v1", "Conservative", 8, 40, [16, 32, 40]),
        ("v1", "Default", 0, 1000, [1000]),
        ("v1", "Default", 0, 2500, [1000, 2500]),
        ("v2", "Default", 9, 5, []),
    ],
)
def test_waves(version, mode, start, target, after):
    assert launch_waves(version, mode, start, target) == after


def test_rounds_of_two_groups_share_ten():
    told = plan([NodeGroup("a", {"CPU": 4}), NodeGroup("b", {"tag": 1})], ["12×{CPU:4}", "3×{tag:1}"])
    assert [sum(one.values()) for one in told.rounds] == [10, 5]
    total: Counter = Counter()
    for one in told.rounds:
        total.update(one)
    assert total == Counter(told.launch) == {"a": 12, "b": 3}


def test_the_manifest_may_say_how_many_at_once():
    env = "{version: v2, env: [{name: AUTOSCALER_MAX_CONCURRENT_LAUNCHES, value: '25'}]}"
    told = plan(cluster(group("w", "cpu: 4")).replace("{version: v2}", env), "60×{CPU:4}")
    assert [one["w"] for one in told.rounds] == [25, 25, 10]


def test_v1_does_not_hold_back_what_must_be():
    slow = cluster(group("w", "cpu: 4", "minReplicas: 7")).replace("version: v2", "upscalingMode: Conservative")
    assert plan(slow, version="v1").rounds == ({"w": 7},)
    assert [one["w"] for one in plan(slow, "12×{CPU:4}", version="v1").rounds] == [7, 5]
    assert [one["w"] for one in plan(slow).rounds] == [1, 1, 2, 3]


# ---- by hand


@pytest.mark.parametrize(
    ("pods", "replicas", "more", "goes"),
    [
        ("a b c", 1, {"workers_to_delete": ["c", "b"]}, (["c", "b"], 0)),
        ("a b c", 1, {}, ([], 2)),
        ("a b c", 1, {"is_autoscaling": True}, ([], 0)),
        ("a b c", 1, {"is_autoscaling": True, "workers_to_delete": ["a"]}, (["a"], 0)),
        ("a b c d", 1, {"workers_to_delete": ["d"]}, (["d"], 2)),
        ("a b c d", 0, {"min_replicas": 3}, ([], 1)),
        ("a b c", 3, {"workers_to_delete": ["a"]}, (["a"], 0)),  # and another is made in its place
        ("a b c", 2, {"workers_to_delete": ["gone", "b", "b"]}, (["b"], 0)),
        ("a b", 5, {}, ([], 0)),
    ],
)
def test_scale_down_by_hand(pods, replicas, more, goes):
    assert manual_scale_down(pods.split(), replicas, **more) == goes


# ---- how it looks


def test_a_plan_is_said_in_words():
    told = plan([CPU_4, GPU_1], ["4×{GPU:1}", "6×{CPU:2}"], running=[Running("cpu", 2, {"CPU": 2})], pending={"gpu": 1})
    text = str(told)
    assert "launch  1 Pod of gpu" in text
    assert "unmet   2×{GPU: 1}: max-replicas: a group that fits is at its maxReplicas" in text
    assert "takes   cpu 1 to cpu 2, each: 1×{CPU: 2}" in text
    assert "&lt;" not in told._repr_html_() and told._repr_html_().startswith("<pre>")
    assert "Ray&#x27;s name is GPU." in plan([GPU_1], "{gpu:1}")._repr_html_()
    data = json.loads(json.dumps(told.data()))
    assert data["launch"] == {"gpu": 1}
    assert data["unmet"] == [{"resources": {"GPU": 1}, "count": 2, "reason": "max-replicas"}]
    assert {"resources": {"GPU": 1}, "count": 1} in data["absorbed"]["gpu 1"]


def test_ray_nodes_that_take_the_same_have_one_name_if_they_stand_side_by_side():
    busy = Running("cpu", 1, {})
    told = plan([CPU_4, GPU_1], ["20×{CPU:2}"], running=[Running("cpu", 2), busy, Running("cpu", 1), Running("gpu", 2)])
    assert [row for word, row in told.rows() if word == "takes"] == [
        "cpu 1 to cpu 2, each: 2×{CPU: 2}",
        "cpu 4: 2×{CPU: 2}",
        "gpu 1 to gpu 2, each: 4×{CPU: 2}",
    ]


def test_every_reason_has_its_words():
    text = (CASES / "plan.yaml").read_text()
    assert all(f"{reason}: " in plans._why(reason) for reason in plans.REASONS)
    assert {line.split("reason: ")[1].strip() for line in text.splitlines() if "reason: " in line} <= set(plans.REASONS)


def test_nothing_is_printed(capfd):
    text = cluster(group("w", "cpu: 4", 'rayStartParams: {labels: "a=b"}, minReplicas: 1'))
    for version in ("v1", "v2"):
        plan(text, ["{GPU:1}", "9×{CPU:9}"], version=version)
    plan(cluster(group("w", "memory: 1Gi")), "{CPU:1}")
    assert capfd.readouterr() == ("", "")


def test_ray_is_loaded_when_a_plan_is_made():
    code = "import sys, helpers.model.planner; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=course_root(), check=True)


def test_the_command(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(cluster(group("gpu", "cpu: 4, nvidia.com/gpu: 1", "maxReplicas: 8")))
    words = ["plan", str(file), "--demand", "12x{GPU:1}", "--demand", "{GPU:1}"]
    shown = CliRunner().invoke(cli.app, words)
    assert "launch  8 Pods of gpu" in shown.output and "5×{GPU: 1}: max-replicas" in shown.output
    data = json.loads(CliRunner().invoke(cli.app, [*words, "--json"]).output)
    assert data["launch"] == {"gpu": 8} and data["unmet"][0]["count"] == 5
    wrong = CliRunner().invoke(cli.app, ["plan", str(file), "--demand", "8 GPUs"])
    assert isinstance(wrong.exception, CourseError) and "'8 GPUs' is no demand" in wrong.exception.what
    gone = CliRunner().invoke(cli.app, ["plan", str(tmp_path / "gone.yaml")])
    assert isinstance(gone.exception, CourseError)


def test_lab_plan(tmp_path):
    text = cluster(group("w", "cpu: 4"))
    (tmp_path / "c.yaml").write_text(text)
    for source in (text, tmp_path / "c.yaml", str(tmp_path / "c.yaml"), manifest.documents(text)[0]):
        assert Lab.plan(None, source, ["2×{CPU:4}", "{CPU:4}"], running=[Running("w")]).launch == {"w": 2}
    assert Lab.plan(None, [CPU_4], "{CPU:1}", version="v1").launch == {"cpu": 1}


# ---- bad input

GOOD = cluster(group("w", "cpu: 4"))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "Nothing could be checked: there is no document in it"),
        ("just words", "A manifest is a mapping"),
        ("a: [1", "This is no YAML: line"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}", "Nothing here is of KubeRay: line 1 begins a Pod"),
        (GOOD + "---" + GOOD, "There are 2 Ray clusters"),
        (GOOD.replace("ray.io/v1", "ray.io/v1alpha1"), "line 2 has ray.io/v1alpha1, which is out of use"),
        (GOOD.replace("ray.io/v1", "v1"), "line 2 begins a RayCluster with the apiVersion 'v1'"),
        (GOOD.replace("RayCluster", "[RayCluster]"), "line 3 has the kind ['RayCluster']"),
        (GOOD + "---" + GOOD.replace("ray.io/v1", "ray.io/v2"), "Not all of it can be planned with: line 15 has"),
        (GOOD.replace("'0'", "0"), "line 10, spec.headGroupSpec.rayStartParams.num-cpus: it should be a string"),
        (cluster(group("w", "cpu: 4, memory: 1e400")), "'1e400' is no quantity"),
        (GOOD.replace("metadata: {name: c}", "metadata: {}"), "metadata.name"),
        (GOOD.replace("name: c}", "name: {{ .Values.name }}}"), "Line 4 has {{ … }} in it"),
        ("- op: replace\n  path: /spec\n  value: 3\n", "is a patch of Kustomize"),
        ("apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: c}", "There are 0 Ray clusters"),
        ("apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: c}\nspec: 3", "The API server refuses"),
        (cluster("{groupName: w, template: {spec: {containers: []}}}"), "There is no container"),
        (b"apiVersion", "A manifest is"),
        (["apiVersion"], "A manifest is"),
        (3, "A manifest is"),
    ],
)
def test_what_is_no_manifest(source, said):
    with pytest.raises(CourseError) as caught:
        plan(source, "{CPU:1}")
    assert said in caught.value.what


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"version": "v3"}, "'v3' is no autoscaler"),
        ({"running": [Running("x")]}, "There is no group x"),
        ({"pending": {"headgroup": 1}}, "There is no group headgroup"),
        ({"pending": {"w": -1}}, "-1 is no count"),
        ({"pending": {"w": 20_000}}, "more than 10000 Pods"),
        ({"demand": ["9999×{CPU:1}", "2×{CPU:2}"]}, "more than 10000 tasks"),
        ({"placement_groups": [Gang("PACK", (Demand({"CPU": 1}, 6000),), 2)]}, "more than 10000 bundles"),
        ({"demand": "{CPU:}"}, "'' is no amount of CPU"),
    ],
)
def test_what_cannot_be_asked(asked, said):
    with pytest.raises(CourseError) as caught:
        plan(GOOD, **asked)
    assert said in caught.value.what


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    ("bounds", "asked", "least"),
    [
        ("minReplicas: 2147483647, maxReplicas: 2147483647", {}, 2147483647),
        ("minReplicas: 10001", {}, 10001),
        ("minReplicas: 2, numOfHosts: 2147483647", {}, 4294967294),
        ("minReplicas: 10000", {"running": [Running("w", 50)], "pending": {"w": 50}}, None),
        ("maxReplicas: 2147483647, replicas: 2147483647", {}, None),
        ("maxReplicas: 2147483647, numOfHosts: 2147483647", {}, None),
    ],
)
def test_many_ray_nodes(version, bounds, asked, least):
    text = cluster(group("w", "cpu: 4", bounds))
    if least is None:
        assert not plan(text, "2×{CPU:4}", version=version, **asked).unmet
        return
    with pytest.raises(CourseError, match=f"^There are {least} Ray nodes at least, and more than 10000 are too many"):
        plan(text, "2×{CPU:4}", version=version, **asked)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gang("CLOSE", (Demand({"CPU": 1}),)),
        lambda: Gang("PACK", ()),
        lambda: Gang("PACK", (Demand({"CPU": 1}),), -1),
        lambda: Running("w", 1.5),
        lambda: Running("w", 1, None, -2),
        lambda: Running("w", 1, {"CPU": "all"}),
        lambda: NodeGroup("w", {"CPU": 1.5}),
        lambda: NodeGroup("w", {"CPU": 1}, 3, 2),
        lambda: launch_waves("v3", "Default", 0, 1),
        lambda: launch_waves("v2", "Slow", 0, 1),
        lambda: launch_waves("v2", "Default", -1, 1),
        lambda: launch_waves("v2", "Default", 0, 10**9),
    ],
)
def test_what_cannot_be_made(make):
    with pytest.raises(CourseError):
        make()


def test_a_case_may_name_labels():
    """Those that are there name none; the adapter takes any name."""
    text = cluster(group("w", "cpu: 4", "labels: {zone: west}"))
    for key in ("labels", "label_selector", "selector"):
        given = {"manifest": text, "demand": [{"resources": {"CPU": 1}, "count": 1, key: {"zone": "east"}}]}
        assert [one.reason for one in plan_of_case(given, "v2").unmet] == ["label-mismatch"]


def test_what_is_unmet_may_be_named_without_its_labels():
    """The form's rows of it have resources, a count and a reason."""
    text = cluster(group("w", "cpu: 4", "labels: {zone: west}, maxReplicas: 1"))
    demand = [{"resources": {"CPU": 4}, "count": 3, "labels": {"zone": "!east"}}]
    demand += [{"resources": {"CPU": 4}, "count": 2, "labels": {"zone": "north"}}]
    given = {"version": "v2", "manifest": text, "demand": demand}
    rows = [{"resources": {"CPU": 4}, "count": 2, "reason": reason} for reason in ("label-mismatch", "max-replicas")]
    assert wrong(given, {"launch": {"w": 1}, "unmet": rows}) == []
    named = [rows[0] | {"labels": {"zone": "north"}}, rows[1] | {"labels": {"zone": "!east"}}]
    assert wrong(given, {"launch": {"w": 1}, "unmet": named}) == []
    assert wrong(given, {"launch": {"w": 1}, "unmet": named[::-1]}) == []
    crossed = [rows[0] | {"labels": {"zone": "!east"}}, rows[1] | {"labels": {"zone": "north"}}]
    assert len(wrong(given, {"launch": {"w": 1}, "unmet": crossed})) == 1


def test_of_a_manifest_that_is_refused_there_is_no_plan():
    given = {"version": "v2", "manifest": GOOD.replace("4Gi", "4GB"), "demand": [{"resources": {"CPU": 1}, "count": 1}]}
    assert wrong(given, {"launch": {}, "error": "config-rejected"}) == []
    with pytest.raises(CourseError):
        wrong(given | {"manifest": GOOD, "pending": {"x": 1}}, {"launch": {}})

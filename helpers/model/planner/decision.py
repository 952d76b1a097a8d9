"""What Ray's autoscaler decides. The one place where private code of Ray is used, of the pinned Ray 2.60.0:

- `_derive_autoscaling_config_from_ray_cr` (ray/autoscaler/_private/kuberay/autoscaling_config.py) reads the RayCluster;
- `ResourceDemandScheduler.schedule` (ray/autoscaler/v2/scheduler.py) plans for v2;
- `ResourceDemandScheduler.get_nodes_to_launch` (ray/autoscaler/_private/resource_demand_scheduler.py) and
  `StandardAutoscaler.terminate_nodes_to_enforce_config_constraints` (ray/autoscaler/_private/autoscaler.py) for v1;
- `Reconciler._compute_to_launch` (ray/autoscaler/v2/instance_manager/reconciler.py) and
  `_get_concurrent_resource_demand_to_launch` (v1's scheduler) say how much is launched in one round.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from helpers.errors import CourseError
from helpers.model.demand import MOST, Demand, Gang, Shape, demands
from helpers.model.planner.plans import IDLE, MAX, V2, Amounts, RayNode, Running
from helpers.model.planner.source import offered
from helpers.model.raycluster import HEAD, Cluster

_LOCK = threading.RLock()  # what is changed in Ray while a plan is made is one for the process
_AT_ONCE = "AUTOSCALER_MAX_CONCURRENT_LAUNCHES"  # a variable of the autoscaler (constants.py)
_NODE_GROUP = "ray.io/node-group"  # a label of each Ray node (RAY_NODE_GROUP_KEY in _raylet): its group
_ON_HEAD = "node:__internal_head__"  # a resource of the head's Ray node (HEAD_NODE_RESOURCE_NAME in ray_constants.py)


# ---- the manifest, as Ray reads it -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Types:
    """The node types as the autoscaler has read them: Ray's `AutoscalingConfig`, or ours where no autoscaler runs.

    Attributes:
        configs: Ray's `NodeTypeConfig`s by name, the head's too.
        most: Ray nodes in all.
    """

    configs: Mapping[str, Any]
    most: int
    idle_timeout_s: float | None
    speed: float
    at_once: int
    raw: Mapping[str, Any]

    def frozen(self, nodes: Sequence[_Node]) -> Types:
        """The same, with room for those that are there and no others: nobody launches, nobody stops."""
        from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig

        there = Counter(node.group for node in nodes)
        configs = {
            name: NodeTypeConfig(name, 0, there[name], resources=dict(config.resources), labels=dict(config.labels))
            for name, config in self.configs.items()
        }
        return Types(configs, len(nodes), None, 0, 0, {})


def types_of(cluster: Cluster, idle_timeout_s: float | None) -> tuple[Types | None, str]:
    """Ray's reading of the cluster; where an autoscaler runs and cannot read it, None and what Ray says."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig, NodeTypeConfig

    if not cluster.is_autoscaling:
        configs = {
            one.name: NodeTypeConfig(one.name, 0, 0, resources=offered(one), labels=one.labels)
            for one in cluster.groups
        }
        return Types(configs, 0, None, 0, 0, {}), ""
    try:
        raw = _derive_autoscaling_config_from_ray_cr(_as_stored(cluster))
        config = AutoscalingConfig(raw, skip_content_hash=True)
        configs = config.get_node_type_configs()
    except Exception as error:
        # whatever it is, it ends the autoscaler's look (v2/autoscaler.py, monitor.py)
        said = str(error).strip().splitlines()
        return None, f"{type(error).__name__}: {said[0]:.200}" if said else type(error).__name__
    timeout_s = config.get_idle_timeout_s() if idle_timeout_s is None else idle_timeout_s
    at_once = _written_at_once(cluster) or config.get_max_concurrent_launches()
    return Types(configs, config.get_max_num_nodes(), timeout_s, config.get_upscaling_speed(), at_once, raw), ""


def _written_at_once(cluster: Cluster) -> int | None:
    """The limit on launches at once, if the manifest sets it for the autoscaler."""
    for one in cluster.options.get("env") or ():
        if one["name"] == _AT_ONCE and one.get("value", "").isdecimal():
            return int(one["value"])
    return None


def _as_stored(cluster: Cluster) -> dict[str, Any]:
    """The RayCluster with the CRD's defaults, as the API server gives it to the autoscaler."""
    spec = json.loads(json.dumps(cluster.spec))
    for group, written in zip(cluster.workers, spec.get("workerGroupSpecs") or (), strict=True):
        least, most = group.bounds
        written.pop("priority", None)  # Ray reads it, and this KubeRay has no such field: the API server drops it
        written |= {"minReplicas": least, "maxReplicas": most, "numOfHosts": group.hosts}
    return {"metadata": {"name": cluster.name, "namespace": "default"}, "spec": spec}


# ---- what is there, what is asked ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Node:
    """A Ray node that is there, or on its way."""

    name: str
    group: str
    state: str
    offers: Amounts
    free: Amounts
    labels: Mapping[str, str]
    idle_s: float = 0


@dataclass(frozen=True)
class Asked:
    demands: Sequence[Demand]
    gangs: Sequence[Gang]
    request: Sequence[Demand]

    @property
    def has_labels(self) -> bool:
        bundles = [bundle for gang in self.gangs for bundle in gang.bundles]
        return any(one.labels for one in (*self.demands, *self.request, *bundles))

    def without_labels(self) -> Asked:
        def bare(ones: Iterable[Demand]) -> list[Demand]:
            return demands(Demand(one.resources, one.count) for one in ones)

        gangs = [Gang(gang.strategy, tuple(bare(gang.bundles)), gang.count) for gang in self.gangs]
        return Asked(bare(self.demands), gangs, bare(self.request))


@dataclass(frozen=True)
class _Outcome:
    """What one of Ray's two schedulers decided."""

    launch: Mapping[str, int]
    unmet: Sequence[Demand] = ()
    unmet_gangs: Sequence[Gang] = ()
    unmet_request: Sequence[Demand] = ()
    idle: Mapping[str, int] = field(default_factory=dict)
    over_max: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[RayNode, ...] = ()
    hurried: Mapping[str, int] = field(default_factory=dict)  # of the launches, those that v1 does not hold back


def nodes_of(
    cluster: Cluster, types: Types | None, running: Iterable[Running], pending: Mapping[str, int]
) -> list[_Node]:
    there = [("running", one) for one in running]
    there += [("pending", Running(group, count)) for group, count in pending.items()]
    if sum(one.count for _, one in there) > MOST:
        raise CourseError(f"There are more than {MOST} Pods, which is too much to be planned here.", "Give fewer.")
    found = [_node(cluster, types, "running", HEAD, HEAD, Running(HEAD))]
    numbers: Counter[str] = Counter()
    for state, one in there:
        name = one.group
        if not cluster.group(name) or name == HEAD:
            names = ", ".join(group.name for group in cluster.workers)
            raise CourseError(f"There is no group {name!s:.60} of workers in it.", f"Its groups are {names or 'none'}.")
        for _ in range(one.count):
            numbers[name] += 1
            found.append(_node(cluster, types, state, name, f"{name} {numbers[name]}", one))
    for name, config in types.configs.items() if types else ():
        numbers[name] = max(numbers[name], config.min_worker_nodes)
    if numbers.total() > MOST:  # Ray's schedulers make each of them
        raise CourseError(
            f"There are {numbers.total()} Ray nodes at least, and more than {MOST} are too many to be planned here.",
            "Take a smaller minReplicas or numOfHosts.",
        )
    return found


def _node(cluster: Cluster, types: Types | None, state: str, group: str, name: str, one: Running) -> _Node:
    offers = dict(types.configs[group].resources) if types else {}
    labels: dict[str, str] = {}
    if state == "running":
        offers |= offered(cluster.group(group))
        labels = cluster.group(group).labels | {_NODE_GROUP: group}
    if group == HEAD:
        offers[_ON_HEAD] = 1
    free = offers if one.free is None else dict(one.free)
    for resource, amount in free.items():
        offers[resource] = max(amount, offers.get(resource, 0))  # Pods of an older template may have more
    return _Node(name, group, state, offers, free, labels, one.idle_s)


# ---- v2 --------------------------------------------------------------------------------------------------------------


def by_v2(types: Types, nodes: Sequence[_Node], asked: Asked) -> _Outcome:
    from ray.autoscaler.v2.scheduler import SchedulingRequest
    from ray.core.generated import autoscaler_pb2 as proto

    known = {_bytes(_request(one)): one for one in (*asked.demands, *asked.request)}
    gangs = [gang for gang in asked.gangs for _ in range(gang.count)]
    wanted = [proto.ResourceRequestByCount(request=_request(one), count=one.count) for one in asked.demands]
    standing = [proto.ResourceRequestByCount(request=_request(one), count=one.count) for one in asked.request]
    scheduler = _recorder()()
    request = SchedulingRequest(
        disable_launch_config_check=True,  # as KubeRay's provider has it
        node_type_configs=dict(types.configs),
        max_num_nodes=types.most,
        idle_timeout_s=types.idle_timeout_s,
        pending_idle_timeout_s=float("inf"),  # never, which is as None; but so the scheduler shows its context
        resource_requests=wanted,
        gang_resource_requests=[_gang_request(gang, number) for number, gang in enumerate(gangs)],
        cluster_resource_constraints=[proto.ClusterResourceConstraint(resource_requests=standing)] if standing else [],
        current_instances=[_instance(node) for node in nodes],
    )
    with _each_state_once():
        reply = scheduler.schedule(request)
    stopped = [(one.instance_type, _cause(one)) for one in reply.to_terminate]
    unmet = Counter(map(_bytes, reply.infeasible_resource_requests))
    missed = Counter(int(one.details.partition(":")[0]) for one in reply.infeasible_gang_resource_requests)
    return _Outcome(
        {one.instance_type: one.count for one in reply.to_launch},
        [one.times(unmet[key]) for one in asked.demands if unmet[key := _bytes(_request(one))]],
        _together([gangs[number] for number in sorted(missed)]),
        list(asked.request) if reply.infeasible_cluster_resource_constraints else [],
        Counter(group for group, cause in stopped if cause == IDLE),
        Counter(group for group, cause in stopped if cause != IDLE),
        tuple(_ray_nodes(scheduler.context, {node.name: node for node in nodes}, known)),
    )


@cache
def _recorder() -> type:
    """Ray's scheduler, which keeps the context that it planned in."""
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler

    class Recorder(ResourceDemandScheduler):
        context: Any = None

        def _update_pending_nodes_idle_duration(self, ctx: Any) -> None:
            pass  # nothing is planned before this plan, so no pending Ray node has been idle

        def _release_terminated_pending_nodes_idle_duration(self, ctx: Any) -> None:
            self.context = ctx  # the last step of `schedule`

    return Recorder


@contextmanager
def _each_state_once() -> Iterator[None]:
    """Of running Ray nodes that are alike, v2 tries the first, as of pending ones: with 100 that is ten times as fast.

    What it chooses is the same: of equal scores that of the first (`_sched_best_node`).
    """
    from ray.autoscaler.v2 import scheduler
    from ray.core.generated.instance_manager_pb2 import Instance

    class Cache(scheduler.NodeStateCache):
        def was_seen_or_mark(self, node: Any) -> bool:
            if node.im_instance_status != Instance.RAY_RUNNING:
                return super().was_seen_or_mark(node)
            if node.get_sched_requests(self.source):
                return False  # they count for its score
            parts = (node.total_resources, node.get_available_resources(self.source), node.labels)
            state = (node.node_type, *(frozenset(part.items()) for part in parts))
            is_seen = state in self.seen_states
            self.seen_states.add(state)
            return is_seen

    own, scheduler.NodeStateCache = scheduler.NodeStateCache, Cache
    try:
        yield
    finally:
        scheduler.NodeStateCache = own


def _cause(stop: Any) -> str:
    """Why v2 stops a Ray node: all other causes of a `TerminationRequest` that can be here are of maxReplicas."""
    return IDLE if stop.cause == stop.Cause.IDLE else MAX


def _request(one: Demand) -> Any:
    from ray.autoscaler.v2.utils import ResourceRequestUtil
    from ray.core.generated.common_pb2 import LabelSelectorOperator as operator

    # Ray's core leaves out what is 0
    resources = {name: float(amount) for name, amount in one.resources.items() if amount}
    selector = [
        (key, operator.LABEL_OPERATOR_IN if wanted else operator.LABEL_OPERATOR_NOT_IN, values)
        for key, wanted, values in one.selector
    ]
    return ResourceRequestUtil.make(resources, label_selectors=[selector] if selector else None)


def _gang_request(gang: Gang, number: int) -> Any:
    """A placement group as the GCS reports it (gcs_autoscaler_state_manager.cc): a constraint for the strict ones."""
    from ray.core.generated import autoscaler_pb2 as proto

    requests = []
    for bundle in gang.each:
        request = _request(bundle)
        constraint = request.placement_constraints.add() if gang.strategy.startswith("STRICT") else None
        if constraint is not None:
            kind = constraint.affinity if gang.strategy == "STRICT_PACK" else constraint.anti_affinity
            kind.label_name, kind.label_value = f"_PG_{number}", ""
        requests.append(request)
    return proto.GangResourceRequest(requests=requests, details=f"{number}:{gang.strategy}|PENDING")


def _instance(node: _Node) -> Any:
    from ray.autoscaler.v2.schema import AutoscalerInstance
    from ray.core.generated import autoscaler_pb2 as proto
    from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

    is_running = node.state == "running"
    instance = Instance(
        instance_id=node.name,
        instance_type=node.group,
        cloud_instance_id=node.name,
        node_id=node.name if is_running else "",
        status=Instance.RAY_RUNNING if is_running else Instance.ALLOCATED,
        node_kind=NodeKind.HEAD if node.group == HEAD else NodeKind.WORKER,
    )
    state = proto.NodeState(
        node_id=node.name.encode(),
        ray_node_type_name=node.group,
        total_resources=node.offers,
        available_resources=node.free,
        labels=node.labels,
        idle_duration_ms=int(node.idle_s * 1000),
    )
    return AutoscalerInstance(cloud_instance_id=node.name, im_instance=instance, ray_node=state if is_running else None)


def _ray_nodes(context: Any, known: Mapping[str, _Node], asked: Mapping[bytes, Demand]) -> Iterator[RayNode]:
    """The Ray nodes as the scheduler left them: those that were there first, then the new ones."""
    from ray.autoscaler.v2.scheduler import ResourceRequestSource as source

    order = {name: number for number, name in enumerate(known)}
    numbers: Counter[str] = Counter()
    for one in sorted(context._nodes, key=lambda one: order.get(one.im_instance_id, len(order))):
        before = known.get(one.im_instance_id)
        numbers[one.node_type] += before is None
        stop = one.termination_request
        yield RayNode(
            before.name if before else f"{one.node_type} new {numbers[one.node_type]}",
            one.node_type,
            before.state if before else "new",
            dict(one.total_resources),
            dict(one.get_available_resources(source.PENDING_DEMAND)),
            _taken(one.get_sched_requests(source.PENDING_DEMAND), asked),
            _taken(one.get_sched_requests(source.CLUSTER_RESOURCE_CONSTRAINT), asked),
            _cause(stop) if stop else "",
        )


def _taken(requests: Iterable[Any], asked: Mapping[bytes, Demand]) -> tuple[Demand, ...]:
    counts = Counter(map(_bytes, requests))
    bundles = {_bytes(one): dict(one.resources_bundle) for one in requests}
    return tuple((asked[key] if key in asked else Demand(bundles[key])).times(count) for key, count in counts.items())


def _bytes(request: Any) -> bytes:
    return request.SerializeToString(deterministic=True)


# ---- v1 --------------------------------------------------------------------------------------------------------------


def by_v1(types: Types, nodes: Sequence[_Node], asked: Asked) -> _Outcome:
    gangs = [gang for gang in asked.gangs for _ in range(gang.count)]
    stopped = _v1_stops(types, nodes, gangs, asked.request)
    left = [node for node in nodes if node.name not in stopped]
    scheduler = _v1_scheduler(types, left)
    launch, residual = scheduler.get_nodes_to_launch(
        [node.name for node in left],
        {},
        [_plain(one) for one in asked.demands for _ in range(one.count)],
        {node.name: dict(node.free) for node in left if node.state == "running"},
        [_table_data(gang) for gang in gangs],
        {node.name: dict(node.offers) for node in left if node.state == "running"},
        [_plain(one) for one in asked.request for _ in range(one.count)],
        _availability(),
    )
    unmet, unmet_gangs = _v1_unmet(residual, asked.demands, gangs, scheduler.not_spread)
    by_name = {node.name: node.group for node in nodes}
    return _Outcome(
        launch,
        unmet,
        unmet_gangs,
        _v1_unmet_request(types, left, launch, asked.request),
        Counter(by_name[name] for name, reason in stopped.items() if reason == IDLE),
        Counter(by_name[name] for name, reason in stopped.items() if reason != IDLE),
        hurried=scheduler.hurried,
    )


class _Provider:
    """The Ray nodes as v1's scheduler asks its provider for them; each has its name as its address."""

    def __init__(self, nodes: Iterable[_Node]):
        self._groups = {node.name: node.group for node in nodes}

    def node_tags(self, name: str) -> dict[str, str]:
        from ray.autoscaler import tags

        kind = tags.NODE_KIND_HEAD if self._groups[name] == HEAD else tags.NODE_KIND_WORKER
        return {tags.TAG_RAY_NODE_KIND: kind, tags.TAG_RAY_USER_NODE_TYPE: self._groups[name]}

    def internal_ip(self, name: str) -> str:
        return name


def _v1_scheduler(types: Types, nodes: Iterable[_Node]) -> Any:
    raw = types.raw
    return _v1_recorder()(
        _Provider(nodes), raw["available_node_types"], raw["max_workers"], raw["head_node_type"], types.speed
    )


@cache
def _v1_recorder() -> type:
    """v1's scheduler without its limit on launches, which keeps what the limit leaves alone, and what is not spread."""
    from ray.autoscaler._private.resource_demand_scheduler import ResourceDemandScheduler

    class Recorder(ResourceDemandScheduler):
        hurried: Mapping[str, int] = {}
        not_spread: tuple[int, ...] = ()

        def _get_concurrent_resource_demand_to_launch(
            self, to_launch: dict, connected: Any, nodes: Any, launching: Any, least: dict, gangs: dict
        ) -> dict:
            self.hurried = Counter(least) + Counter(gangs)
            return to_launch

        def reserve_and_allocate_spread(
            self, spreads: list, node_resources: list, counts: dict, scorer: Any
        ) -> tuple[dict, list, dict]:
            added: Counter[str] = Counter()
            for number, bundles in enumerate(spreads):
                before = node_resources
                more, node_resources, counts = super().reserve_and_allocate_spread([bundles], before, counts, scorer)
                added.update(more)
                if node_resources is before:  # it is given back as it was where a group finds no place
                    self.not_spread += (number,)
            return added, node_resources, counts

    return Recorder


def _v1_stops(types: Types, nodes: Sequence[_Node], gangs: Sequence[Gang], request: Sequence[Demand]) -> dict[str, str]:
    """The Ray nodes that v1 stops, by name, and why."""
    from types import SimpleNamespace

    from ray.autoscaler._private.autoscaler import StandardAutoscaler

    stopped: dict[str, str] = {}
    now_s = 2**30  # any time long after 0: those that have not joined count as last used then

    class Stopper(StandardAutoscaler):
        def __init__(self) -> None:
            raw = dict(types.raw)
            self.config = raw | {"idle_timeout_minutes": types.idle_timeout_s / 60}
            self.available_node_types = raw["available_node_types"]
            self.provider = _Provider(nodes)
            workers = [node.name for node in nodes if node.group != HEAD]
            self.non_terminated_nodes = SimpleNamespace(worker_ids=workers, head_id=HEAD)
            self.nodes_to_terminate = []
            self.load_metrics = SimpleNamespace(
                ray_nodes_last_used_time_by_ip={
                    one.name: now_s - one.idle_s for one in nodes if one.state == "running"
                },
                get_pending_placement_groups=lambda: [_table_data(gang) for gang in gangs],
                get_resource_requests=lambda: [_plain(one) for one in request for _ in range(one.count)],
                get_static_node_resources_by_ip=lambda: {one.name: dict(one.offers) for one in nodes},
            )

        def launch_config_ok(self, node_id: str) -> bool:
            return True

        def schedule_node_termination(self, node_id: str, reason_opt: str | None, logger_method: Any) -> None:
            stopped[node_id] = reason_opt
            self.nodes_to_terminate.append(node_id)

        def terminate_scheduled_nodes(self) -> None:
            pass

    Stopper().terminate_nodes_to_enforce_config_constraints(now_s)
    return stopped


def _v1_unmet(
    residual: Sequence[Amounts], wanted: Sequence[Demand], gangs: Sequence[Gang], not_spread: Sequence[int]
) -> tuple[list[Demand], list[Gang]]:
    """Whose the leftover of v1 is: it forgets of which placement group a bundle was.

    Of equal shapes those of placement groups are packed first, so that the leftover is tasks before all.
    """
    left = Counter(Demand(dict(one)).shape[0] for one in residual)
    unmet = []
    for one in wanted:
        count = min(one.count, left[one.shape[0]])
        left[one.shape[0]] -= count
        unmet += [one.times(count)] if count else []
    spreads = [gang for gang in gangs if gang.strategy == "STRICT_SPREAD"]
    missed = [spreads[number] for number in not_spread]
    for gang in reversed([gang for gang in gangs if gang.strategy != "STRICT_SPREAD"]):
        shapes = Counter(one.shape[0] for one in packed(gang))
        if any(left[shape] for shape in shapes):
            missed.append(gang)
            left -= shapes
    return unmet, _together(missed)


def _v1_unmet_request(
    types: Types, nodes: Sequence[_Node], launch: Mapping[str, int], request: Sequence[Demand]
) -> list[Demand]:
    """What of the standing request finds no room, when all that is launched is there and nothing is in use."""
    from ray.autoscaler._private.resource_demand_scheduler import get_bin_pack_residual

    offers = [dict(node.offers) for node in nodes]
    offers += [dict(types.configs[name].resources) for name, count in launch.items() for _ in range(count)]
    residual, _ = get_bin_pack_residual(offers, [_plain(one) for one in request for _ in range(one.count)])
    left = Counter(Demand(one).shape[0] for one in residual)
    return [one.times(left[one.shape[0]]) for one in request if left[one.shape[0]]]


def _plain(one: Demand) -> dict[str, float]:
    return {name: float(amount) for name, amount in one.resources.items() if amount}


def _table_data(gang: Gang) -> Any:
    from ray.core.generated.common_pb2 import Bundle, PlacementStrategy
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    return PlacementGroupTableData(
        bundles=[Bundle(unit_resources=_plain(one)) for one in gang.each],
        strategy=PlacementStrategy.Value(gang.strategy),
    )


def _availability() -> Any:
    from ray.autoscaler._private.node_provider_availability_tracker import NodeAvailabilitySummary

    return NodeAvailabilitySummary(node_availabilities={})


# ---- rounds ----------------------------------------------------------------------------------------------------------


def rounds_of(
    version: str, types: Types, nodes: Sequence[_Node], launch: Mapping[str, int], hurried: Mapping[str, int]
) -> list[dict[str, int]]:
    """What is launched in each round, if all that was launched is up before the next."""
    left = dict(launch)
    up = Counter(node.group for node in nodes if node.state == "running")
    pending = Counter(node.group for node in nodes if node.state == "pending")
    found = []
    while any(left.values()):
        asked = {group: count for group, count in left.items() if count}
        now = _v2_round(types, up, asked) if version == V2 else _v1_round(types, up, pending, asked, hurried)
        found += [{group: count for group, count in now.items() if count}] if any(now.values()) else []
        for group, count in now.items():
            left[group] -= count
            up[group] += count
        up, pending, hurried = up + pending, Counter(), {}
    return found


def _v2_round(types: Types, up: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    from ray.autoscaler.v2.instance_manager.reconciler import Reconciler
    from ray.core.generated.instance_manager_pb2 import Instance

    def instances(counts: Mapping[str, int]) -> list[Any]:
        # no more are launched at once, and more of those that run change nothing: the speed is at least 1
        return [one for group in counts for one in [Instance(instance_type=group)] * min(counts[group], types.at_once)]

    now = Reconciler._compute_to_launch(instances(asked), [], instances(up), types.speed, types.at_once)
    return {group: len(ones) for group, ones in now.items()}


def _v1_round(
    types: Types,
    up: Mapping[str, int],
    pending: Mapping[str, int],
    asked: Mapping[str, int],
    hurried: Mapping[str, int],
) -> dict[str, int]:
    from ray.autoscaler._private.resource_demand_scheduler import ResourceDemandScheduler

    def named(state: str, counts: Mapping[str, int]) -> list[_Node]:
        nodes = ((f"{state} {group} {number}", group) for group in counts for number in range(counts[group]))
        return [_Node(name, group, state, {}, {}, {}) for name, group in nodes]

    there, coming = named("running", up), named("pending", pending)
    limited = ResourceDemandScheduler._get_concurrent_resource_demand_to_launch
    names = [node.name for node in there]
    scheduler = _v1_scheduler(types, there + coming)
    return limited(scheduler, dict(asked), names, names + [node.name for node in coming], {}, dict(hurried), {})


# ---- small parts -----------------------------------------------------------------------------------------------------


def packed(gang: Gang) -> list[Demand]:
    """What a placement group asks one Ray node for: STRICT_PACK's bundles are summed, those of equal labels."""
    if gang.strategy != "STRICT_PACK":
        return gang.each
    sums: dict[Shape, Counter[str]] = {}
    labels = {}
    for bundle in gang.each:
        key = ((), bundle.shape[1])
        labels[key] = bundle.labels
        sums.setdefault(key, Counter()).update(bundle.resources)
    return [Demand(dict(amounts), 1, labels[key]) for key, amounts in sums.items()]


@contextmanager
def quiet() -> Iterator[None]:
    """Ray's autoscaler speaks to its log, which is no place of a notebook."""
    logger = logging.getLogger("ray.autoscaler")
    with _LOCK:
        level = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            logger.setLevel(level)


def _together(gangs: Iterable[Gang]) -> list[Gang]:
    """Equal ones as one, with their count."""
    counts: dict[Any, list[Gang]] = {}
    for gang in gangs:
        counts.setdefault((gang.strategy, tuple((one.shape, one.count) for one in gang.bundles)), []).append(gang)
    return [Gang(same[0].strategy, same[0].bundles, len(same)) for same in counts.values()]

"""What Ray's autoscaler makes of a demand, before it does: Ray's own scheduler, on Ray's own reading of a manifest.

The one place where private code of Ray is used, of the pinned Ray 2.60.0:

- `_derive_autoscaling_config_from_ray_cr` (ray/autoscaler/_private/kuberay/autoscaling_config.py) reads the RayCluster;
- `ResourceDemandScheduler.schedule` (ray/autoscaler/v2/scheduler.py) plans for v2;
- `ResourceDemandScheduler.get_nodes_to_launch` (ray/autoscaler/_private/resource_demand_scheduler.py) and
  `StandardAutoscaler.terminate_nodes_to_enforce_config_constraints` (ray/autoscaler/_private/autoscaler.py) for v1;
- `Reconciler._compute_to_launch` (ray/autoscaler/v2/instance_manager/reconciler.py) and
  `_get_concurrent_resource_demand_to_launch` (v1's scheduler) say how much is launched in one round.

What is ours is why something stays unmet: Ray does not say it. In-place resizing of Pods is not in it.
"""

from __future__ import annotations

import html
import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from helpers import versions
from helpers.errors import CourseError
from helpers.model import crds, manifest, raycluster
from helpers.model.demand import MOST, Demand, Gang, Shape, demands
from helpers.model.raycluster import HEAD, MAX_REPLICAS, Cluster, Group

V1, V2 = "v1", "v2"
MODES = ("Default", "Aggressive", "Conservative")  # of autoscalerOptions.upscalingMode
IDLE, MAX = "idle", "max-replicas"  # why a Ray node is stopped
REASONS = {
    "resource-not-declared": "no group has any of one of the resources asked for",
    "too-big-for-any-group": "each resource exists, but no Ray node of any group has enough of all",
    "max-replicas": "a group that fits is at its maxReplicas",
    "label-mismatch": "no group that fits has the labels asked for",
    "autoscaler-off": "enableInTreeAutoscaling is not true, so no autoscaler runs",
    "pack-too-big-for-one-node": "STRICT_PACK wants all bundles on one Ray node, and none is big enough for their sum",
    "spread-needs-more-nodes": "STRICT_SPREAD wants a Ray node for each bundle, and the groups may not have as many",
    "all-or-nothing": "it goes beyond the maximum of the groups, and v2 then launches nothing for it",
    "config-rejected": "the autoscaler cannot read the manifest, and launches nothing for any group",
}
_LOCK = threading.RLock()  # what is changed in Ray while a plan is made is one for the process
_AGAIN = "Mend that, then try again."
_RESIZE = "ray.io/ippr"  # an annotation (ippr_provider.py)
_AT_ONCE = "AUTOSCALER_MAX_CONCURRENT_LAUNCHES"  # a variable of the autoscaler (constants.py)
_EVERYWHERE = "node:__internal_implicit_resource_"  # each Ray node has 1 of such (IMPLICIT_RESOURCE_PREFIX in _raylet)
_NODE_GROUP = "ray.io/node-group"  # a label of each Ray node (RAY_NODE_GROUP_KEY in _raylet): its group
# which of several reasons is told: the one that must be mended first
_FIRST = ("autoscaler-off", "resource-not-declared", "too-big-for-any-group", "label-mismatch", "max-replicas")
_ON_HEAD = "node:__internal_head__"  # a resource of the head's Ray node (HEAD_NODE_RESOURCE_NAME in ray_constants.py)

Amounts = Mapping[str, float]


# ---- what goes in, and what comes out --------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeGroup:
    """A group of workers, where there is no manifest.

    Attributes:
        offers: what a Ray node of it has, as whole numbers by Ray's names; memory in bytes.
        least: minReplicas.
        most: maxReplicas.
        hosts: numOfHosts, Pods of one replica.
    """

    name: str
    offers: Mapping[str, int]
    least: int = 0
    most: int = MAX_REPLICAS
    hosts: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.hosts < 1:
            raise CourseError(
                f"The group {self.name} cannot have {self.least} to {self.most} replicas of {self.hosts} Pods.", _AGAIN
            )
        for name, amount in self.offers.items():
            if not isinstance(amount, int) or amount < 0:
                raise CourseError(f"The group {self.name} offers {amount!r:.40} of {name}.", "Give a whole number.")


@dataclass(frozen=True)
class Running:
    """Worker Pods that have joined the Ray cluster.

    Attributes:
        free: what each of them has free, by Ray's names; what is not in it is in use. None: all of it.
        idle_s: for how long each has been idle.
    """

    group: str
    count: int = 1
    free: Amounts | None = None
    idle_s: float = 0

    def __post_init__(self) -> None:
        Demand(self.free or {}, self.count)  # amounts and a count of the same kind
        if not isinstance(self.idle_s, int | float) or not self.idle_s >= 0:
            raise CourseError(f"{self.idle_s!r:.40} is no time to be idle.", "Give seconds, 0 or more.")


@dataclass(frozen=True)
class Unmet:
    """What gets no place: how many of it, and a reason id of `REASONS`."""

    what: Demand | Gang
    reason: str


@dataclass(frozen=True)
class RayNode:
    """A Ray node in the plan.

    Attributes:
        state: "running", "pending" or "new".
        offers: what it has.
        free: what it will have free.
        takes: which of the demand go there; STRICT_PACK's bundles as one.
        holds: which of request_resources count on it.
        stops: "idle" or "max-replicas" if it is stopped, else empty.
    """

    name: str
    group: str
    state: str
    offers: Amounts
    free: Amounts
    takes: tuple[Demand, ...] = ()
    holds: tuple[Demand, ...] = ()
    stops: str = ""


@dataclass(frozen=True)
class Plan:
    """What the autoscaler would do at one look, if nothing limited how much it launches at once.

    Attributes:
        launch: Pods by group; a group with none is not in it.
        unmet: tasks and actors that get no place.
        unmet_groups: placement groups that get no place.
        unmet_request: the reason id, if request_resources is not met; else None.
        terminate: Pods stopped because they are idle, by group.
        over_max: Pods stopped because there are more than maxReplicas, by group.
        error: the reason id, if no plan is made at all; else None.
        rounds: what is launched in each round, by group, if what was launched is up before the next.
        nodes: every Ray node with what it takes. Of v1 there is none, which keeps no account of it.
        notes: what else is to be known of this plan, a sentence each.
    """

    version: str
    launch: Mapping[str, int]
    unmet: tuple[Unmet, ...] = ()
    unmet_groups: tuple[Unmet, ...] = ()
    unmet_request: str | None = None
    terminate: Mapping[str, int] = field(default_factory=dict)
    over_max: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    rounds: tuple[Mapping[str, int], ...] = ()
    nodes: tuple[RayNode, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def absorbed(self) -> dict[str, tuple[Demand, ...]]:
        """What Ray nodes take that run or are pending already, by their name; those that take nothing are left out."""
        return {node.name: node.takes for node in self.nodes if node.takes and node.state != "new"}

    def data(self) -> dict[str, Any]:
        """The plan as plain data, as `course plan --json` prints it."""
        return {
            "version": self.version,
            "launch": dict(self.launch),
            "unmet": [_demand_data(one.what) | {"reason": one.reason} for one in self.unmet],
            "unmet_groups": [
                {"strategy": one.what.strategy, "count": one.what.count, "reason": one.reason}
                for one in self.unmet_groups
            ],
            "unmet_request": self.unmet_request,
            "terminate": dict(self.terminate),
            "over_max": dict(self.over_max),
            "error": self.error,
            "rounds": [dict(one) for one in self.rounds],
            "absorbed": {name: [_demand_data(one) for one in takes] for name, takes in self.absorbed.items()},
            "notes": list(self.notes),
        }

    def rows(self) -> list[tuple[str, str]]:
        """What is to be said, each with the word that it begins with."""
        rows = [("stop", f"{_pods(self.terminate)}: idle")] if self.terminate else []
        rows += [("stop", f"{_pods(self.over_max)}: more than maxReplicas")] if self.over_max else []
        rows += [("launch", _pods(self.launch) or "nothing")] if not self.error else []
        if len(self.rounds) > 1:
            counts = [sum(one.values()) for one in self.rounds]
            first = ", ".join(map(str, counts[:8])) + (", …" if len(counts) > 8 else "")
            rows.append(("rounds", f"{len(counts)}, of {first} Pods, if those of one are up before the next"))
        rows += [("takes", f"{name}: {', '.join(map(str, takes))}") for name, takes in _alike(self.absorbed)]
        rows += [("unmet", f"{one.what}: {_why(one.reason)}") for one in (*self.unmet, *self.unmet_groups)]
        rows += [("unmet", f"request_resources: {_why(self.unmet_request)}")] if self.unmet_request else []
        rows += [("error", _why(self.error))] if self.error else []
        return rows + [("note", one) for one in self.notes]

    def __str__(self) -> str:
        rows = self.rows()
        return "\n".join([f"The autoscaler {self.version} of Ray {versions.RAY}:"] + [f"  {a:<7} {b}" for a, b in rows])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def plan(
    source: str | Mapping[str, Any] | Sequence[NodeGroup],
    demand: str | Demand | Iterable[str | Demand] = (),
    *,
    running: Iterable[Running] = (),
    pending: Mapping[str, int] | None = None,
    request_resources: Iterable[str | Demand] = (),
    placement_groups: Iterable[Gang] = (),
    idle_timeout_s: float | None = None,
    version: str = V2,
) -> Plan:
    """What the autoscaler would launch and stop, and what stays unmet and why. Nothing is started or asked.

    The head runs too, and is free. v1 does not look at labels.

    Args:
        source: a manifest with one RayCluster, RayJob or RayService, as YAML text or a dict; or groups.
        demand: tasks and actors that wait, such as "8×{GPU:1}".
        running: worker Pods in the Ray cluster.
        pending: Pods that were asked for and are not there, by group.
        request_resources: what the standing request of `ray.autoscaler.sdk.request_resources` asks for.
        placement_groups: those that wait.
        idle_timeout_s: in place of the cluster's; that of a group stays.
        version: "v1" or "v2", the autoscaler that decides.

    Raises:
        CourseError: the manifest cannot be read or the API server refuses it, a demand is none, or there is no such
            group.
    """
    if version not in (V1, V2):
        raise CourseError(f"{version!r:.40} is no autoscaler of Ray.", 'Use "v2", or "v1".')
    cluster = _cluster(source)
    asked = _Asked(demands(demand), tuple(placement_groups), demands(request_resources))
    if sum(len(gang.each) * gang.count for gang in asked.gangs) > MOST:
        raise CourseError(f"There are more than {MOST} bundles, which is too much to be packed here.", "Ask less.")
    notes = _remarks(cluster)
    if version == V1 and asked.has_labels:
        asked, notes = asked.without_labels(), [*notes, "v1 does not look at labels."]
    with _quiet():
        types, trouble = _types(cluster, idle_timeout_s)
        nodes = _nodes(cluster, types, running, pending or {})
        if types is None:
            return Plan(version, {}, error="config-rejected", notes=(*notes, f"Ray says: {trouble}"))
        if not cluster.is_autoscaling:
            types = types.frozen(nodes)
        outcome = _v2(types, nodes, asked) if version == V2 or not cluster.is_autoscaling else _v1(types, nodes, asked)
        rounds = _rounds(version, types, nodes, outcome.launch, outcome.hurried)
    why = _Reasons(types, is_off=not cluster.is_autoscaling, is_v2=version == V2)
    notes += [_whole(cluster.group(name), count) for name, count in outcome.launch.items()]
    return Plan(
        version,
        dict(outcome.launch),
        tuple(Unmet(one, why.of_demand(one)) for one in outcome.unmet),
        tuple(Unmet(one, why.of_gang(one)) for one in outcome.unmet_gangs),
        why.of_request(outcome.unmet_request),
        dict(outcome.idle),
        dict(outcome.over_max),
        rounds=tuple(rounds),
        nodes=outcome.nodes,
        notes=tuple(filter(None, [*notes, *why.not_declared(outcome.unmet)])),
    )


def launch_waves(version: str, upscaling_mode: str | None, start: int, target: int) -> list[int]:
    """How many Ray nodes a group has after each round of launches, if each is up before the next is decided.

    v2 launches at most AUTOSCALER_MAX_CONCURRENT_LAUNCHES (10) at once, and at most `upscaling_speed` times those of
    the group that run, at least 1; v1 at most `upscaling_speed` times those that run, at least 5. The speed is 1 for
    Conservative, else 1000 (autoscaling_config.py).

    Args:
        upscaling_mode: one of `MODES`; None as Default.
        start: how many run before.
        target: how many are wanted.

    Raises:
        CourseError: there is no such version or mode.
    """
    if version not in (V1, V2) or upscaling_mode not in (None, *MODES):
        raise CourseError(
            f"There is no autoscaler {version!s:.20} with upscalingMode {upscaling_mode!s:.20}.",
            f"Versions are v1 and v2, modes {', '.join(MODES)}.",
        )
    if max(start, target) > MOST:
        raise CourseError(f"More than {MOST} Ray nodes are too many to be planned here.", "Ask for fewer.")
    group, more = NodeGroup("workers", {"CPU": 1}), max(0, target - start)
    cluster = raycluster.cluster_of(_document([group], {"upscalingMode": upscaling_mode or MODES[0]}))
    with _quiet():
        types, _ = _types(cluster, None)
        nodes = _nodes(cluster, types, [Running(group.name, start)], {})
        launched = _rounds(version, types, nodes, {group.name: more}, {})
    found, there = [], start
    for one in launched:
        there += one[group.name]
        found.append(there)
    return found


# ---- the manifest ----------------------------------------------------------------------------------------------------


def _cluster(source: str | Mapping[str, Any] | Sequence[NodeGroup]) -> Cluster:
    groups = source if isinstance(source, Sequence) and not isinstance(source, str) else None
    if groups is not None and all(isinstance(one, NodeGroup) for one in groups):
        return raycluster.cluster_of(_document(groups, {}))
    found = [one for one in manifest.documents(source) if one.get("kind") in raycluster.SPECS]
    old = [one for one in found if one.get("apiVersion") != "ray.io/v1"]
    if old:
        raise CourseError(
            f"It has the apiVersion {old[0].get('apiVersion')!r:.60}, and the API server has ray.io/v1.", _AGAIN
        )
    for document in found:
        # what the schema does not know is dropped, if `kubectl apply` does not refuse it
        for fault in crds.faults(document):
            if fault.rule != "unknown-field":
                raise CourseError(f"The API server refuses this manifest: {fault}.", _AGAIN)
    clusters = [one for one in map(raycluster.cluster_of, found) if one]
    if len(clusters) != 1:
        raise CourseError(
            f"There are {len(clusters)} Ray clusters in it, and a plan is made for one.",
            "Give one RayCluster, or a RayJob or RayService that has one in it.",
        )
    for group in clusters[0].groups:
        if not group.pod.get("containers"):
            raise CourseError(f"There is no container in {group.path}.", _AGAIN)
    return clusters[0]


def _document(groups: Sequence[NodeGroup], options: Mapping[str, Any]) -> dict[str, Any]:
    """A RayCluster with these groups, and a head that offers no CPU."""
    template = {"spec": {"containers": [{"name": "ray"}]}}
    workers = [
        {
            "groupName": group.name,
            "minReplicas": group.least,
            "maxReplicas": group.most,
            "numOfHosts": group.hosts,
            "resources": {"CPU": "0"} | {name: str(amount) for name, amount in group.offers.items()},
            "labels": dict(group.labels),
            "template": template,
        }
        for group in groups
    ]
    head = {"resources": {"CPU": "0"}, "template": template}
    spec = {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": V2} | dict(options),
        "headGroupSpec": head,
        "workerGroupSpecs": workers,
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "groups"}, "spec": spec}


@dataclass(frozen=True)
class _Types:
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

    def frozen(self, nodes: Sequence[_Node]) -> _Types:
        """The same, with room for those that are there and no others: nobody launches, nobody stops."""
        from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig

        there = Counter(node.group for node in nodes)
        configs = {
            name: NodeTypeConfig(name, 0, there[name], resources=dict(config.resources), labels=dict(config.labels))
            for name, config in self.configs.items()
        }
        return _Types(configs, len(nodes), None, 0, 0, {})


def _types(cluster: Cluster, idle_timeout_s: float | None) -> tuple[_Types | None, str]:
    """Ray's reading of the cluster; where an autoscaler runs and cannot read it, None and what Ray says."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig, NodeTypeConfig

    if not cluster.is_autoscaling:
        configs = {
            one.name: NodeTypeConfig(one.name, 0, 0, resources=_counted(one), labels=one.labels)
            for one in cluster.groups
        }
        return _Types(configs, 0, None, 0, 0, {}), ""
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
    return _Types(configs, config.get_max_num_nodes(), timeout_s, config.get_upscaling_speed(), at_once, raw), ""


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
    name = cluster.document["metadata"]["name"]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _counted(group: Group) -> dict[str, float]:
    """What Ray counts on a Ray node of this group: what the autoscaler reads, and over it what `ray start` is told."""
    found: dict[str, Any] = {}
    for name in ("counted", "offers"):
        with suppress(ValueError):  # it is not read, or not started so; what the other says is left
            found |= getattr(group, name)
    return {name: amount for name, amount in found.items() if isinstance(amount, int | float)}


def _remarks(cluster: Cluster) -> list[str]:
    """Where a plan is not what the cluster would do."""
    said = [f"KubeRay's operator refuses this manifest: {one}." for one in raycluster.refusals(cluster)]
    written = raycluster.version_in(cluster.spec.get("rayVersion") or "")
    if written and ".".join(map(str, written)) != versions.RAY:
        said.append(f"The manifest is for Ray {cluster.spec['rayVersion']}, and the plan is Ray {versions.RAY}'s.")
    if _RESIZE in (cluster.document["metadata"].get("annotations") or {}):
        said.append(f"Pods that run may be made bigger first, by {_RESIZE}: that is not in the plan.")
    return said


def _whole(group: Group | None, pods: int) -> str:
    """KubeRay makes whole replicas; `_submit_scale_request` in v2's cloud_provider.py rounds down."""
    if group is None or not pods % group.hosts:
        return ""
    return f"Of {pods} Pods of {group.name}, {pods // group.hosts * group.hosts} come: a replica has {group.hosts}."


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
class _Asked:
    demands: Sequence[Demand]
    gangs: Sequence[Gang]
    request: Sequence[Demand]

    @property
    def has_labels(self) -> bool:
        bundles = [bundle for gang in self.gangs for bundle in gang.bundles]
        return any(one.labels for one in (*self.demands, *self.request, *bundles))

    def without_labels(self) -> _Asked:
        def bare(ones: Iterable[Demand]) -> list[Demand]:
            return demands(Demand(one.resources, one.count) for one in ones)

        gangs = [Gang(gang.strategy, tuple(bare(gang.bundles)), gang.count) for gang in self.gangs]
        return _Asked(bare(self.demands), gangs, bare(self.request))


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


def _nodes(
    cluster: Cluster, types: _Types | None, running: Iterable[Running], pending: Mapping[str, int]
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
    return found


def _node(cluster: Cluster, types: _Types | None, state: str, group: str, name: str, one: Running) -> _Node:
    offers = dict(types.configs[group].resources) if types else {}
    labels: dict[str, str] = {}
    if state == "running":
        offers |= _counted(cluster.group(group))
        labels = cluster.group(group).labels | {_NODE_GROUP: group}
    if group == HEAD:
        offers[_ON_HEAD] = 1
    free = offers if one.free is None else dict(one.free)
    for resource, amount in free.items():
        offers[resource] = max(amount, offers.get(resource, 0))  # Pods of an older template may have more
    return _Node(name, group, state, offers, free, labels, one.idle_s)


# ---- v2 --------------------------------------------------------------------------------------------------------------


def _v2(types: _Types, nodes: Sequence[_Node], asked: _Asked) -> _Outcome:
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


def _v1(types: _Types, nodes: Sequence[_Node], asked: _Asked) -> _Outcome:
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


def _v1_scheduler(types: _Types, nodes: Iterable[_Node]) -> Any:
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


def _v1_stops(
    types: _Types, nodes: Sequence[_Node], gangs: Sequence[Gang], request: Sequence[Demand]
) -> dict[str, str]:
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
        shapes = Counter(one.shape[0] for one in _packed(gang))
        if any(left[shape] for shape in shapes):
            missed.append(gang)
            left -= shapes
    return unmet, _together(missed)


def _v1_unmet_request(
    types: _Types, nodes: Sequence[_Node], launch: Mapping[str, int], request: Sequence[Demand]
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


def _rounds(
    version: str, types: _Types, nodes: Sequence[_Node], launch: Mapping[str, int], hurried: Mapping[str, int]
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


def _v2_round(types: _Types, up: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    from ray.autoscaler.v2.instance_manager.reconciler import Reconciler
    from ray.core.generated.instance_manager_pb2 import Instance

    def instances(counts: Mapping[str, int]) -> list[Any]:
        # no more are launched at once, and more of those that run change nothing: the speed is at least 1
        return [one for group in counts for one in [Instance(instance_type=group)] * min(counts[group], types.at_once)]

    now = Reconciler._compute_to_launch(instances(asked), [], instances(up), types.speed, types.at_once)
    return {group: len(ones) for group, ones in now.items()}


def _v1_round(
    types: _Types,
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


# ---- why something stays unmet ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reasons:
    """Finds the reason of what stays unmet: by what the groups offer, their labels, and how many there may be."""

    types: _Types
    is_off: bool
    is_v2: bool

    def of_demand(self, one: Demand) -> str:
        if self.is_off:
            return "autoscaler-off"
        if self._missing(one):
            return "resource-not-declared"
        fitting = [config for config in self.types.configs.values() if _fits(config.resources, one)]
        if not fitting:
            return "too-big-for-any-group"
        return "max-replicas" if any(one.allows(config.labels) for config in fitting) else "label-mismatch"

    def of_gang(self, gang: Gang) -> str:
        first = _first(map(self.of_demand, _packed(gang)))
        if gang.strategy == "STRICT_PACK" and first == "too-big-for-any-group":
            return "pack-too-big-for-one-node"
        if gang.strategy == "STRICT_SPREAD" and first == "max-replicas" and not self._can_spread(gang):
            return "spread-needs-more-nodes"
        return first

    def of_request(self, unmet: Sequence[Demand]) -> str | None:
        first = _first(map(self.of_demand, unmet)) if unmet else None
        return "all-or-nothing" if self.is_v2 and first == "max-replicas" else first

    def not_declared(self, unmet: Sequence[Demand]) -> list[str]:
        """Which resources no group has, a sentence each."""
        names = dict.fromkeys(name for one in unmet if not self.is_off for name in self._missing(one))
        known = {there.lower(): there for config in self.types.configs.values() for there in config.resources}
        return [
            f"No group has any {name}." + (f" Ray's name is {known[name.lower()]}." if name.lower() in known else "")
            for name in names
        ]

    def _missing(self, one: Demand) -> list[str]:
        offers = [config.resources for config in self.types.configs.values()]
        return [name for name, _ in one.shape[0] if not any(_amount(there, name) for there in offers)]

    def _can_spread(self, gang: Gang) -> bool:
        """Whether each bundle can have a Ray node of its own, if there are as many as there may be of each group."""
        bundles, rooms = gang.each, {name: one.max_worker_nodes for name, one in self.types.configs.items()}
        on: dict[str, list[int]] = {name: [] for name in rooms}

        def place(number: int, tried: set[str]) -> bool:
            for name, config in self.types.configs.items():
                fits = _fits(config.resources, bundles[number]) and bundles[number].allows(config.labels)
                if name in tried or not fits:
                    continue
                tried.add(name)
                if len(on[name]) < rooms[name]:
                    on[name].append(number)
                    return True
                for place_of, other in enumerate(on[name]):
                    if place(other, tried):  # it moves to another group, and makes room
                        on[name][place_of] = number
                        return True
            return False

        return all(place(number, set()) for number in range(len(bundles)))


def _first(reasons: Iterable[str]) -> str:
    return min(reasons, key=_FIRST.index)


def _packed(gang: Gang) -> list[Demand]:
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


def _amount(offers: Amounts, name: str) -> float:
    return offers.get(name, 1 if name.startswith(_EVERYWHERE) else 0)


def _fits(offers: Amounts, one: Demand) -> bool:
    return all(_amount(offers, name) >= amount for name, amount in one.shape[0])


# ---- small parts -----------------------------------------------------------------------------------------------------


@contextmanager
def _quiet() -> Iterator[None]:
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


def _alike(absorbed: Mapping[str, tuple[Demand, ...]]) -> list[tuple[str, tuple[Demand, ...]]]:
    """Ray nodes that take the same, under one name."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, takes in absorbed.items():
        names.setdefault(tuple(map(str, takes)), []).append(name)
    return [
        (f"{same[0]} to {same[-1]}, each" if len(same) > 1 else same[0], absorbed[same[0]]) for same in names.values()
    ]


def _pods(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {'Pod' if count == 1 else 'Pods'} of {name}" for name, count in counts.items())


def _why(reason: str) -> str:
    return f"{reason}: {REASONS[reason]}"


def _demand_data(one: Demand) -> dict[str, Any]:
    data = {"resources": dict(one.resources), "count": one.count}
    return data | ({"labels": dict(one.labels)} if one.labels else {})

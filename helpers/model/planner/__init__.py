"""What Ray's autoscaler makes of a demand, before it does: Ray's own scheduler, on Ray's own reading of a manifest.

`decision` is the one place where private code of Ray is used. What is ours is why something stays unmet (`reasons`):
Ray does not say it. In-place resizing of Pods is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from helpers.errors import CourseError
from helpers.model import raycluster
from helpers.model.demand import MOST, Demand, Gang, demands
from helpers.model.planner.decision import Asked, by_v1, by_v2, nodes_of, quiet, rounds_of, types_of
from helpers.model.planner.plans import MODES, REASONS, V1, V2, NodeGroup, Plan, RayNode, Running, Unmet
from helpers.model.planner.reasons import Reasons
from helpers.model.planner.source import cluster_in, document_of, remarks, whole

__all__ = ["MODES", "REASONS", "V1", "V2", "NodeGroup", "Plan", "RayNode", "Running", "Unmet", "launch_waves", "plan"]


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
    cluster = cluster_in(source)
    asked = Asked(demands(demand), tuple(placement_groups), demands(request_resources))
    if sum(len(gang.each) * gang.count for gang in asked.gangs) > MOST:
        raise CourseError(f"There are more than {MOST} bundles, which is too much to be packed here.", "Ask less.")
    notes = remarks(cluster)
    if version == V1 and asked.has_labels:
        asked, notes = asked.without_labels(), [*notes, "v1 does not look at labels."]
    with quiet():
        types, trouble = types_of(cluster, idle_timeout_s)
        nodes = nodes_of(cluster, types, running, pending or {})
        if types is None:
            return Plan(version, {}, error="config-rejected", notes=(*notes, f"Ray says: {trouble}"))
        if not cluster.is_autoscaling:
            types = types.frozen(nodes)
        decide = by_v2 if version == V2 or not cluster.is_autoscaling else by_v1
        outcome = decide(types, nodes, asked)
        rounds = rounds_of(version, types, nodes, outcome.launch, outcome.hurried)
    why = Reasons(types, is_off=not cluster.is_autoscaling, is_v2=version == V2)
    notes += [whole(cluster.group(name), count) for name, count in outcome.launch.items()]
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
    cluster = raycluster.cluster_of(document_of([group], {"upscalingMode": upscaling_mode or MODES[0]}))
    with quiet():
        types, _ = types_of(cluster, None)
        nodes = nodes_of(cluster, types, [Running(group.name, start)], {})
        launched = rounds_of(version, types, nodes, {group.name: more}, {})
    found, there = [], start
    for one in launched:
        there += one[group.name]
        found.append(there)
    return found

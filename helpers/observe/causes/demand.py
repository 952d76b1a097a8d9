"""Causes that lie with what is asked for: a shape that no group has, or more than a group may have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from helpers.model.raycluster import Group
from helpers.observe import texts
from helpers.observe.causes.base import Evidence, Found, of_logs, shape
from helpers.observe.scene import RayCluster, Scene

FITS, FULL, NEVER = "fits", "full", "never"


def infeasible_demand(scene: Scene) -> Found | str:
    bad = [shown for shown, verdict in _judged(scene) if verdict == NEVER]
    if not bad:
        return _no_demand(scene, "every shape that is asked for fits a group")
    groups = "; ".join(f"{group.name}: {shape(told)}" for cluster, group in _groups(scene) if (told := counted(group)))
    said = f"{bad[0]} is asked for, and no group has Ray nodes of that shape ({groups})."
    return Found(said, (Evidence(f"pending: {bad[0]}", scene.on_head("ray status")), *_refused_lines(scene)))


def max_replicas_reached(scene: Scene) -> Found | str:
    full = [shown for shown, verdict in _judged(scene) if verdict == FULL]
    capped = _capped(scene)
    if not full and not capped:
        return _no_demand(scene, "each group that fits may still grow")
    at_most = [
        f"{group.name}: {group.max_pods}" for cluster, group in scene.autoscaled if is_full(scene, cluster, group)
    ]
    what = full[0] if full else "more"
    said = (
        f"{what} is asked for, and the groups that fit have as many Pods as maxReplicas allows"
        f" ({', '.join(at_most) or 'all'})."
    )
    shown = [Evidence(f"pending: {one}", scene.on_head("ray status")) for one in full[:2]]
    return Found(said, (*shown, *capped[:1], *_refused_lines(scene)))


def _no_demand(scene: Scene, otherwise: str) -> str:
    if not scene.status and not _refused(scene):
        return ""
    return otherwise if (scene.status and scene.status.has_demand) or _refused(scene) else "nothing is pending"


def _capped(scene: Scene) -> tuple[Evidence, ...]:
    """Ray 2.60 says it of a launch that it may not make: "Launch capped by maxReplicas limit."."""
    failed = scene.status.failures if scene.status else ()
    return tuple(Evidence(line, scene.on_head("ray status -v")) for line in failed if "maxReplicas" in line)


def _judged(scene: Scene) -> Iterator[tuple[str, str]]:
    """Each demand, and whether the autoscaler can give it; where none runs, only what it could not give either."""
    if any(True for _ in scene.autoscaled):
        yield from _judged_each(scene)
    else:
        yield from (one for one in _judged_each(scene) if one[1] == NEVER)


def _groups(scene: Scene) -> list[tuple[RayCluster, Group]]:
    """The groups from which an autoscaler chooses; where none runs, those from which one would."""
    return list(scene.autoscaled) or [(cluster, group) for cluster in scene.clusters for group in cluster.groups]


def nothing_fits(scene: Scene) -> bool:
    """Whether all that waits is of shapes that no group has."""
    verdicts = [verdict for _, verdict in _judged_each(scene)]
    return bool(verdicts) and all(verdict == NEVER for verdict in verdicts)


def _judged_each(scene: Scene) -> Iterator[tuple[str, str]]:
    if not _groups(scene):
        return
    status = scene.status
    yield from _judged_by_labels(scene)
    for bundle, number in status.demands if status else ():
        yield f"{number} x {shape(bundle)}", verdict(scene, bundle)
    for parts, strategy, number in status.gangs if status else ():
        shown = f"{number} x {strategy} of " + ", ".join(f"{n} x {shape(one)}" for one, n in parts)
        yield shown, _verdict_of_gang(scene, parts, strategy)
    for bundle, number in status.requests if status else ():
        if verdict(scene, bundle) == NEVER:
            yield f"{number} x {shape(bundle)} by request_resources()", NEVER
    if not status:
        for bundle in _refused(scene):
            # the autoscaler has said that it cannot; the rest is whether it ever could
            yield shape(bundle), NEVER if verdict(scene, bundle) == NEVER else FULL


def _judged_by_labels(scene: Scene) -> Iterator[tuple[str, str]]:
    """What is refused for the labels that it asks for, which only the autoscaler's log tells (event_logger.py)."""
    pending = [bundle for bundle, _ in scene.status.demands] if scene.status else None
    told = [one for log in scene.logs for one in texts.refused_selectors(log.text)]
    for bundle, selectors in told:
        # a label of Ray's own (ray.io/…) is not written with a group
        if not (pending is None or bundle in pending) or any(key.startswith("ray.io/") for key, _, _ in selectors):
            continue
        fitting = [
            (cluster, group)
            for cluster, group in _groups(scene)
            if holds(group, bundle) and all(_has_label(group, *one) for one in selectors)
        ]
        asked = ", ".join(
            f"{key} {'in' if wanted else 'not in'} {'|'.join(values)}" for key, wanted, values in selectors
        )
        full = all(is_full(scene, cluster, group) for cluster, group in fitting)
        yield f"{shape(bundle)} with label {asked}", NEVER if not fitting else FULL if full else FITS


def _has_label(group: Group, key: str, wanted: bool, values: list[str]) -> bool:
    return (group.labels.get(key) in values) is wanted


def verdict(scene: Scene, bundle: Mapping[str, float]) -> str:
    wanted = {name: amount for name, amount in bundle.items() if amount and not name.startswith("node:")}
    # what Ray counts besides what a group says, such as the type of an accelerator, it counts on some Ray node
    known = {name for cluster, group in _groups(scene) for name in counted(group) or ()}
    if scene.status:
        wanted = {name: amount for name, amount in wanted.items() if name in known or name not in scene.status.usage}
        if has_room_now(scene.status, wanted):
            return FITS
    fitting = [(cluster, group) for cluster, group in _groups(scene) if holds(group, wanted)]
    if not fitting:
        return FITS if any(holds(cluster.head, wanted) for cluster in scene.clusters) else NEVER
    # what is on its way, or asked for, may still take it
    return (
        FULL
        if all(is_full(scene, cluster, group) and not _is_coming(scene, cluster, group) for cluster, group in fitting)
        else FITS
    )


def _verdict_of_gang(scene: Scene, parts: list[tuple[Mapping[str, float], int]], strategy: str) -> str:
    if strategy == "STRICT_PACK":
        total: dict[str, float] = defaultdict(float)
        for bundle, number in parts:
            for name, amount in bundle.items():
                total[name] += amount * number
        return verdict(scene, total)
    verdicts = {verdict(scene, bundle) for bundle, _ in parts}
    if NEVER in verdicts:
        return NEVER
    most = sum(group.max_pods for cluster, group in _groups(scene)) + 1
    if strategy == "STRICT_SPREAD" and sum(number for _, number in parts) > most:
        return FULL
    return FULL if FULL in verdicts else FITS


def has_room_now(status: texts.RayStatus, wanted: Mapping[str, float]) -> bool:
    """Whether a Ray node has that much free as it is: of the cluster's free amount, one has at least the mean."""
    if status.nodes:
        return any(_is_free(node.usage, wanted, 1) for node in status.nodes)
    return _is_free(status.usage, wanted, sum(status.active.values()) + sum(status.idle.values()))


def _is_free(usage: Mapping[str, tuple[float, float]], wanted: Mapping[str, float], nodes: int) -> bool:
    free = {name: total - used for name, (used, total) in usage.items()}
    return bool(nodes) and all(free.get(name, 0) >= amount * nodes for name, amount in wanted.items())


def holds(group: Group, wanted: Mapping[str, float]) -> bool:
    there = counted(group)
    return there is not None and all(there.get(name, 0) >= amount for name, amount in wanted.items())


def counted(group: Group) -> dict[str, float] | None:
    """What the autoscaler takes a Pod of this group to have; None if that cannot be told."""
    try:
        return dict(group.counted)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def is_full(scene: Scene, cluster: RayCluster, group: Group) -> bool:
    there = max(group.desired_pods, len(scene.pods_of(cluster, group)))
    return there >= group.max_pods


def _is_coming(scene: Scene, cluster: RayCluster, group: Group) -> bool:
    """Whether Ray nodes of a group are on their way that may take what is pending."""
    status = scene.status
    asked = bool(status and any(name == group.name for _, name, _ in status.pending))
    return asked or any(not pod.is_ready for pod in scene.pods_of(cluster, group))


def _refused(scene: Scene) -> list[texts.Bundle]:
    return [bundle for log in scene.logs for bundle in texts.refused_requests(log.text)]


def _refused_lines(scene: Scene) -> tuple[Evidence, ...]:
    return of_logs(scene, "No available node types can fulfill", most=1)


def demands_shown(status: texts.RayStatus) -> list[str]:
    shown = [f"{number} x {shape(bundle)}" for bundle, number in status.demands]
    shown += [
        f"{number} x {strategy} of " + ", ".join(f"{n} x {shape(one)}" for one, n in parts)
        for parts, strategy, number in status.gangs
    ]
    return shown

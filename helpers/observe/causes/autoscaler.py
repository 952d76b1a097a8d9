"""Causes that lie with Ray's autoscaler: it is off, starved, misled, overruled, or cannot give what is asked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime

from helpers.model.raycluster import Group, NotCounted
from helpers.observe import texts
from helpers.observe.causes.base import LIKELY, Evidence, Found, count, of_events, of_logs, shape
from helpers.observe.scene import Log, RayCluster, Scene
from helpers.observe.snapshot import time_of
from helpers.observe.things import AUTOSCALER, seconds

ROUND_S = 5  # between two rounds: AUTOSCALER_UPDATE_INTERVAL_S in autoscaler/_private/constants.py
SLOW_S = 30
MANY_SHAPES = 100
NEAR_LIMIT = 0.85
# the autoscaler patches through `requests` and names itself no further; the operator is a Go program named manager
AUTOSCALER_MANAGERS = ("python-requests", "ray-autoscaler", "kuberay-autoscaler")
OPERATOR_MANAGERS = ("manager", "kuberay-operator", "ray-operator", "operator")


# ---- it cannot begin -----------------------------------------------------------------------------------------------

# what the autoscaler says when it cannot make a configuration of a RayCluster: autoscaling_config.py in
# autoscaler/_private/kuberay, StandardAutoscaler.reset in autoscaler/_private/autoscaler.py
UNREADABLE = (
    "failed to detect `CPU` resources", "Error reading `resource`", "Error parsing config",
    "_derive_autoscaling_config_from_ray_cr", "_node_type_from_group_spec", "_get_ray_resources_from_group_spec",
)  # fmt: skip


def autoscaler_config_error(scene: Scene) -> Found | str:
    lines = of_logs(scene, *UNREADABLE[:3], containers=(AUTOSCALER,)) or of_logs(
        scene, *UNREADABLE, containers=(AUTOSCALER,)
    )
    restarted = [
        Evidence(f"Pod {pod.name}, {AUTOSCALER}: {count(one.restarts, 'restart')}", scene.describe("pod", pod.name))
        for pod in scene.heads
        if (one := pod.container(AUTOSCALER)) and one.restarts and not one.was_killed_for_memory
    ]
    errors = [(group, str(error)) for cluster, group in _every_group(scene) if (error := _uncounted(group))]
    if lines or (restarted and errors):
        own = [
            Evidence(f"group {group.name}: {told}", f"kubectl get raycluster {scene.cluster_names[-1]} -o yaml")
            for group, told in errors
        ]
        last = [
            Evidence(line[:300], log.command)
            for log in scene.autoscaler_logs
            for line in log.lines("Error: ")[-1:]
            if lines
        ]
        said = "The autoscaler cannot read the RayCluster, ends, and plans for no group at all"
        said += f": {errors[0][1]}." if errors else "."
        return Found(said, (*lines[:2], *own[:1], *restarted[:1], *last[:1]))
    if scene.autoscaler_logs:
        return "the log of the autoscaler has no error of its configuration"
    return "the autoscaler can read every group" if scene.clusters and not errors else ""


def _every_group(scene: Scene) -> Iterator[tuple[RayCluster, Group]]:
    for cluster in scene.clusters:
        if cluster.is_autoscaling:
            yield from ((cluster, group) for group in (cluster.head, *cluster.groups))


def _uncounted(group: Group) -> str:
    """Why the autoscaler cannot count a group; empty if it can."""
    try:
        _ = group.counted
    except NotCounted as error:
        return str(error)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""
    return ""


def autoscaler_not_enabled(scene: Scene) -> Found | str:
    off = [cluster for cluster in scene.clusters if not cluster.is_autoscaling and not cluster.is_suspended]
    if not off:
        return "enableInTreeAutoscaling is true" if scene.clusters else ""
    wants = bool(scene.status and scene.status.has_demand) or bool(_unplaced_demand(scene))
    for cluster in off:
        empty = [group for group in cluster.groups if not group.desired_pods and group.max_pods]
        spread = [group for group in cluster.groups if group.bounds[0] != group.bounds[1] or not group.desired_pods]
        if (wants and cluster.groups) or (empty and len(empty) == len(cluster.groups) and spread):
            evidence = [
                Evidence(
                    (
                        f"enableInTreeAutoscaling of {cluster.name} is"
                        f" {cluster.spec.get('enableInTreeAutoscaling', 'not written')}"
                    ),
                    f"kubectl get raycluster {cluster.name} -o yaml",
                )
            ]
            evidence += _demand(scene)
            said = (
                f"No autoscaler runs for {cluster.name}: its groups keep the replicas that are written, whatever"
                " is asked."
            )
            return Found(said, tuple(evidence), "certain" if wants else LIKELY)
    return "nothing waits for more than there is" if scene.status else ""


def _unplaced_demand(scene: Scene) -> tuple[Evidence, ...]:
    """What raylet and driver say of demand that waits (cluster_lease_manager.cc, and worker.py of Ray)."""
    return of_logs(
        scene, "cannot be scheduled right now", "infeasible resource requests", "No available node types can fulfill"
    )


def _demand(scene: Scene) -> list[Evidence]:
    if scene.status and scene.status.has_demand:
        return [
            Evidence(f"pending: {shown}", scene.on_head("ray status")) for shown in _demands_shown(scene.status)[:2]
        ]
    return list(_unplaced_demand(scene)[:1])


def _demands_shown(status: texts.RayStatus) -> list[str]:
    shown = [f"{number} x {shape(bundle)}" for bundle, number in status.demands]
    shown += [
        f"{number} x {strategy} of " + ", ".join(f"{n} x {shape(one)}" for one, n in parts)
        for parts, strategy, number in status.gangs
    ]
    return shown


# ---- it is too slow ------------------------------------------------------------------------------------------------


def autoscaler_cpu_starved(scene: Scene) -> Found | str:
    shares = [(pod, one, scene.cpu_share(pod, one)) for pod in scene.heads if (one := pod.container(AUTOSCALER))]
    at_limit = [(pod, one, share) for pod, one, share in shares if share and share >= NEAR_LIMIT]
    slow = _round_s(scene)
    shapes = len(scene.status.demands) if scene.status else 0
    throttled = _throttled(scene)
    busy = bool(at_limit) or bool(throttled)
    works = scene.status is not None and (scene.status.iteration_s or 0) - scene.status.waited_s > SLOW_S
    if not (busy and (slow or shapes >= MANY_SHAPES)) and not (slow and works and not _api_failures(scene)):
        if slow:
            return "its rounds are slow, but it is not short of CPU" if shares and scene.top else ""
        return (
            "a round of the autoscaler takes no longer than it should" if scene.status or scene.autoscaler_logs else ""
        )
    evidence = [
        Evidence(f"{pod.name}, {one.name}: {share:.0%} of its CPU limit in use", "kubectl top pod --containers")
        for pod, one, share in at_limit
    ]
    evidence += [*throttled, *([slow] if slow else [])]
    if scene.status and scene.status.has_demand:
        evidence.append(Evidence(f"{shapes} or more different shapes are pending", scene.on_head("ray status")))
    said = f"The autoscaler has too little CPU for what is asked{': ' + slow.text if slow else ''}."
    return Found(said, tuple(evidence), "certain" if busy and slow else LIKELY)


def _round_s(scene: Scene) -> Evidence | None:
    """How long a round takes, if that is far longer than it should: by `ray status -v`, or by the autoscaler's log."""
    if scene.status and scene.status.iteration_s and scene.status.iteration_s > SLOW_S:
        return Evidence(
            f"a round takes {scene.status.iteration_s:.0f} s instead of {ROUND_S} s", scene.on_head("ray status -v")
        )
    for log in scene.autoscaler_logs:
        told = [
            float(found) for found in re.findall(r"took ([\d.]+) seconds to complete the update iteration", log.text)
        ]
        if told and told[-1] > SLOW_S:
            return Evidence(f"a round takes {told[-1]:.0f} s instead of {ROUND_S} s", log.command)
        rounds = [
            at
            for line in log.lines("Listing pods for RayCluster", "======== Autoscaler status")
            if (at := texts.moment(line))
        ]
        gaps = [seconds(one, other) for one, other in zip(rounds, rounds[1:], strict=False)]
        if len(gaps) > 1 and sorted(gaps)[len(gaps) // 2] > SLOW_S:
            return Evidence(
                f"{sorted(gaps)[len(gaps) // 2]:.0f} s lie between two rounds instead of {ROUND_S} s", log.command
            )
    return None


def _throttled(scene: Scene) -> list[Evidence]:
    """What cpu.stat of a cgroup says, if somebody has looked at the autoscaler's."""
    found = []
    for command, printed in scene.snapshot.exec.items():
        counts = dict(re.findall(r"(nr_periods|nr_throttled) (\d+)", printed))
        if AUTOSCALER in command and int(counts.get("nr_throttled", 0)) > int(counts.get("nr_periods", 0)) / 2 > 0:
            found.append(Evidence(f"throttled in {counts['nr_throttled']} of {counts['nr_periods']} periods", command))
    return found


# ---- it is misled --------------------------------------------------------------------------------------------------

API_FAILED = re.compile(
    r"(ReadTimeout|ConnectTimeout|ConnectionError|ReadTimeoutError|Read timed out|Max retries exceeded"
    r"|5\d\d Server Error|429 Client Error|Connection refused|Connection reset|Error during"
    r" autoscaling|context deadline exceeded)"
)
WENT_IDLE = re.compile(
    r"Terminating the node with id (\S+) .*\(idle\)|Removing (\d+) nodes? of type (\S+) \(idle\)|draining ray: .*idle",
    re.IGNORECASE,
)
AFTER_S = 300


def api_timeout_false_idle(scene: Scene) -> Found | str:
    for log in scene.autoscaler_logs:
        lines = log.text.splitlines()
        failed = [number for number, line in enumerate(lines) if API_FAILED.search(line)]
        idle = [number for number, line in enumerate(lines) if WENT_IDLE.search(line)]
        pair = next(
            ((bad, gone) for gone in idle for bad in reversed(failed) if bad < gone and _soon(lines, bad, gone)), None
        )
        if pair is None:
            continue
        if not _was_busy(scene):
            return "the nodes that were removed were idle"
        bad, gone = pair
        evidence = [Evidence(lines[number].strip()[:300], log.command) for number in (bad, gone)]
        removed = scene.events_of("DeletedWorkerPod")
        if scene.status:
            evidence.append(Evidence(f"before that, in use: {_usage(scene.status)}", scene.on_head("ray status")))
        said = "A call to the API server failed, and right after it the autoscaler removed busy Ray nodes as idle."
        return Found(said, (*evidence, *of_events(removed, 1)), LIKELY)
    return "no call of the autoscaler failed before it removed nodes" if scene.autoscaler_logs else ""


def _soon(lines: list[str], first: int, second: int) -> bool:
    """Whether two lines of a log are not far apart; the time of a line without one is that of the last before it."""
    at = [
        next((found for line in reversed(lines[: number + 1]) if (found := texts.moment(line))), None)
        for number in (first, second)
    ]
    return None in at or 0 <= seconds(at[0], at[1]) <= AFTER_S


def _was_busy(scene: Scene) -> bool:
    if scene.status is None:
        return True
    return scene.status.has_demand or any(
        used for name, (used, _) in scene.status.usage.items() if name in ("CPU", "GPU")
    )


def _usage(status: texts.RayStatus) -> str:
    return ", ".join(
        f"{used:g} of {total:g} {name}" for name, (used, total) in status.usage.items() if name in ("CPU", "GPU")
    )


def _api_failures(scene: Scene) -> bool:
    return any(API_FAILED.search(log.text) for log in scene.autoscaler_logs)


# ---- it is overruled -------------------------------------------------------------------------------------------------


def two_writers(scene: Scene) -> Found | str:
    """Something besides the autoscaler writes `replicas`.

    What shows it: who wrote the object (managedFields), Pods that the operator removed as too many (its event says
    "Deleted Pod", and "Deleted pod" of those that the autoscaler named: raycluster_controller.go), and Pods beyond
    `replicas` that nobody named.
    """
    for cluster in scene.clusters:
        if not cluster.is_autoscaling:
            continue
        others = _other_writers(cluster)
        signs = [*_surplus(scene, cluster), *_beyond(scene, cluster), *_again(scene, cluster)]
        signs += _held_down(scene, cluster) if others else []
        if len(signs) + bool(others) >= 2 and signs:
            writer = others[0][0] if others else "something"
            said = f"{writer} writes replicas of {cluster.name} too, and undoes what the autoscaler asks for."
            told = [
                Evidence(
                    f"{name} has written {cluster.name} at {at:%H:%M:%S}, after the autoscaler",
                    f"kubectl get raycluster {cluster.name} -o yaml --show-managed-fields",
                )
                for name, at in others
            ]
            return Found(said, (*told[:2], *signs[:3], *_synced(cluster)[:1]), "certain" if others else LIKELY)
    if not any(cluster.is_autoscaling for cluster in scene.clusters):
        return "no autoscaler runs" if scene.clusters else ""
    return "nobody but the autoscaler is seen to change replicas"


def _other_writers(cluster: RayCluster) -> list[tuple[str, datetime]]:
    """Who wrote the RayCluster after the autoscaler did; those of its status aside."""
    fields = [one for one in cluster.thing["metadata"].get("managedFields") or () if not one.get("subresource")]
    times = {one.get("manager", "?"): at for one in fields if (at := time_of(one.get("time")))}
    own = [at for name, at in times.items() if name in AUTOSCALER_MANAGERS]
    known = (*AUTOSCALER_MANAGERS, *OPERATOR_MANAGERS)
    return [(name, at) for name, at in times.items() if name not in known and own and at >= max(own)]


def _surplus(scene: Scene, cluster: RayCluster) -> tuple[Evidence, ...]:
    return of_events(
        (
            event
            for event in scene.events_of("DeletedWorkerPod", name=cluster.name)
            if event.message.startswith("Deleted Pod ")
        ),
        1,
    )


def _beyond(scene: Scene, cluster: RayCluster) -> Iterator[Evidence]:
    for group in cluster.groups:
        named = set((group.spec.get("scaleStrategy") or {}).get("workersToDelete") or ())
        pods = [pod for pod in scene.pods_of(cluster, group) if pod.name not in named]
        if len(pods) > group.desired_pods:
            told = (
                f"group {group.name} has {count(len(pods), 'Pod')} and wants {group.desired_pods}, and"
                " workersToDelete names none of them"
            )
            yield Evidence(told, f"kubectl get raycluster {cluster.name} -o yaml")


def _again(scene: Scene, cluster: RayCluster) -> Iterator[Evidence]:
    """The autoscaler has added to a group several times, has removed nothing between, and the group is no bigger."""
    added: dict[str, list[tuple[Log, str]]] = defaultdict(list)
    for log in scene.autoscaler_logs:
        for line in log.text.splitlines():
            if found := re.search(r"Adding (\d+) node\(s\) of type (.+?)\.?$", line):
                added[found[2]].append((log, line.strip()))
            elif found := re.search(r"Removing \d+ nodes? of type (\S+)", line):
                added.pop(found[1], None)
    for group in cluster.groups:
        lines = added.get(group.name, [])
        asked = sum(int(re.search(r"Adding (\d+)", line)[1]) for _, line in lines)
        if len(lines) > 1 and asked > group.desired_pods:
            log, line = lines[-1]
            yield Evidence(f"{line[:200]} ({len(lines)} times, and replicas is {group.desired_pods})", log.command)


def _held_down(scene: Scene, cluster: RayCluster) -> Iterator[Evidence]:
    """What waits would fit a group that may grow, and nothing is on its way for it."""
    status = scene.status
    if status and not status.pending and not status.launching:
        for bundle, number in status.demands:
            growing = [
                group for group in cluster.groups if _holds(group, bundle) and not _is_full(scene, cluster, group)
            ]
            if growing and _verdict(scene, bundle) == FITS and not _has_room_now(status, bundle):
                told = (
                    f"{number} x {shape(bundle)} waits, {growing[0].name} may grow, and replicas is"
                    f" {growing[0].desired_pods}"
                )
                yield Evidence(told, scene.on_head("ray status"))
                return


SYNC = ("argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", "meta.helm.sh/")


def _synced(cluster: RayCluster) -> list[Evidence]:
    notes = {**(cluster.thing["metadata"].get("annotations") or {}), **(cluster.thing["metadata"].get("labels") or {})}
    command = f"kubectl get raycluster {cluster.name} -o yaml"
    return [
        Evidence(f"{key}: a tool keeps {cluster.name} as a repository has it", command)
        for key in notes
        if key.startswith(SYNC)
    ]


# ---- it is not heard -------------------------------------------------------------------------------------------------

STUCK_S = 60


def launch_request_swallowed(scene: Scene) -> Found | str:
    if not scene.status:
        return ""
    for cluster, group in scene.autoscaled:
        number = scene.status.launching.get(group.name, 0)
        pods = scene.pods_of(cluster, group)
        if not number or len(pods) < group.desired_pods:
            continue  # the RayCluster was changed: the rest is the operator's
        again = [
            Evidence(line[:300], log.command)
            for log in scene.autoscaler_logs
            for line in log.lines(
                "queue again to launch", "more than maxReplicas pods", "is already processed", "stuck in REQUESTED"
            )
            if group.name in line or "stuck" in line or "processed" in line
        ]
        asked = _asked_s(scene, group)
        if not again and (asked is None or asked < STUCK_S):
            continue
        shown = Evidence(
            f"{group.name}: {number} launching, replicas {group.desired_pods}, {count(len(pods), 'Pod')}",
            scene.on_head("ray status"),
        )
        said = (
            f"The autoscaler waits for {count(number, 'Ray node')} of {group.name} that it believes to have asked"
            f" for, and replicas of {cluster.name} was not changed."
        )
        return Found(said, (shown, *again[-2:]), "certain" if again else LIKELY)
    return "no launch waits without the RayCluster being changed"


def _asked_s(scene: Scene, group: Group) -> float | None:
    """Seconds since the autoscaler's log says that it asks for Ray nodes of a group."""
    lines = [
        line
        for log in scene.autoscaler_logs
        for line in log.lines(f"of type {group.name}.", f"requested to launch {group.name} ")
    ]
    moments = [at for line in lines if (at := texts.moment(line))]
    return scene.since(max(moments)) if moments else None


# ---- it cannot give ------------------------------------------------------------------------------------------------

FITS, FULL, NEVER = "fits", "full", "never"


def infeasible_demand(scene: Scene) -> Found | str:
    bad = [shown for shown, verdict in _judged(scene) if verdict == NEVER]
    if not bad:
        return _no_demand(scene, "every shape that is asked for fits a group")
    groups = "; ".join(f"{group.name}: {shape(told)}" for cluster, group in scene.autoscaled if (told := _shape(group)))
    said = f"{bad[0]} is asked for, and no group has Ray nodes of that shape ({groups})."
    return Found(said, (Evidence(f"pending: {bad[0]}", scene.on_head("ray status")), *_refused_lines(scene)))


def max_replicas_reached(scene: Scene) -> Found | str:
    full = [shown for shown, verdict in _judged(scene) if verdict == FULL]
    capped = _capped(scene)
    if not full and not capped:
        return _no_demand(scene, "each group that fits may still grow")
    at_most = [
        f"{group.name}: {group.max_pods}" for cluster, group in scene.autoscaled if _is_full(scene, cluster, group)
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
    """Each demand, and whether the autoscaler can give it."""
    if not any(True for _ in scene.autoscaled):
        return
    status = scene.status
    for bundle, number in status.demands if status else ():
        yield f"{number} x {shape(bundle)}", _verdict(scene, bundle)
    for parts, strategy, number in status.gangs if status else ():
        shown = f"{number} x {strategy} of " + ", ".join(f"{n} x {shape(one)}" for one, n in parts)
        yield shown, _verdict_of_gang(scene, parts, strategy)
    for bundle, number in status.requests if status else ():
        if _verdict(scene, bundle) == NEVER:
            yield f"{number} x {shape(bundle)} by request_resources()", NEVER
    if not status:
        for bundle in _refused(scene):
            # the autoscaler has said that it cannot; the rest is whether it ever could
            yield shape(bundle), NEVER if _verdict(scene, bundle) == NEVER else FULL


def _verdict(scene: Scene, bundle: Mapping[str, float]) -> str:
    wanted = {name: amount for name, amount in bundle.items() if amount and not name.startswith("node:")}
    # what Ray counts besides what a group says, such as the type of an accelerator, it counts on some Ray node
    known = {name for cluster, group in scene.autoscaled for name in _shape(group) or ()}
    if scene.status:
        wanted = {name: amount for name, amount in wanted.items() if name in known or name not in scene.status.usage}
        if _has_room_now(scene.status, wanted):
            return FITS
    fitting = [(cluster, group) for cluster, group in scene.autoscaled if _holds(group, wanted)]
    if not fitting:
        return FITS if any(_holds(cluster.head, wanted) for cluster in scene.clusters) else NEVER
    # what is on its way, or asked for, may still take it
    return (
        FULL
        if all(_is_full(scene, cluster, group) and not _is_coming(scene, cluster, group) for cluster, group in fitting)
        else FITS
    )


def _verdict_of_gang(scene: Scene, parts: list[tuple[Mapping[str, float], int]], strategy: str) -> str:
    if strategy == "STRICT_PACK":
        total: dict[str, float] = defaultdict(float)
        for bundle, number in parts:
            for name, amount in bundle.items():
                total[name] += amount * number
        return _verdict(scene, total)
    verdicts = {_verdict(scene, bundle) for bundle, _ in parts}
    if NEVER in verdicts:
        return NEVER
    most = sum(group.max_pods for cluster, group in scene.autoscaled) + 1
    if strategy == "STRICT_SPREAD" and sum(number for _, number in parts) > most:
        return FULL
    return FULL if FULL in verdicts else FITS


def _has_room_now(status: texts.RayStatus, wanted: Mapping[str, float]) -> bool:
    """Whether a Ray node has that much free as it is: of the cluster's free amount, one has at least the mean."""
    if status.nodes:
        return any(_is_free(node.usage, wanted, 1) for node in status.nodes)
    return _is_free(status.usage, wanted, sum(status.active.values()) + sum(status.idle.values()))


def _is_free(usage: Mapping[str, tuple[float, float]], wanted: Mapping[str, float], nodes: int) -> bool:
    free = {name: total - used for name, (used, total) in usage.items()}
    return bool(nodes) and all(free.get(name, 0) >= amount * nodes for name, amount in wanted.items())


def _holds(group: Group, wanted: Mapping[str, float]) -> bool:
    there = _shape(group)
    return there is not None and all(there.get(name, 0) >= amount for name, amount in wanted.items())


def _shape(group: Group) -> dict[str, float] | None:
    """What the autoscaler takes a Pod of this group to have; None if that cannot be told."""
    try:
        return dict(group.counted)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def _is_full(scene: Scene, cluster: RayCluster, group: Group) -> bool:
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

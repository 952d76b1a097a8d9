"""Causes that lie with Ray's autoscaler: it is off, starved, misled, overruled, or cannot give what is asked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from statistics import median

from helpers.model.raycluster import Group, NotCounted
from helpers.observe import texts
from helpers.observe.causes.base import LIKELY, Evidence, Found, of_events, of_logs, shape
from helpers.observe.causes.demand import FITS, demands_shown, has_room_now, holds, is_full, nothing_fits, verdict
from helpers.observe.scene import Log, RayCluster, Scene
from helpers.observe.snapshot import time_of
from helpers.observe.things import AUTOSCALER, seconds
from helpers.text import count

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
    if older := _older_than_setting(scene):
        return older
    if not off:
        return "enableInTreeAutoscaling is true" if scene.clusters else ""
    wants = bool(scene.status and scene.status.has_demand) or bool(_unplaced_demand(scene))
    if wants and nothing_fits(scene):
        return "what waits would fit no group with an autoscaler either"
    for cluster in off:
        empty = [group for group in cluster.groups if not group.desired_pods and group.max_pods]
        spread = [group for group in cluster.groups if group.bounds[0] != group.bounds[1] or not group.desired_pods]
        # nobody takes away what is idle either; that is a question only where nothing else is wrong
        is_well = scene.kind == "RayCluster" and not scene.troubles
        idle = [
            group
            for group in spread
            if is_well
            and scene.status
            and scene.status.idle.get(group.name)
            and group.desired_pods > group.bounds[0] * group.hosts
        ]
        if (wants and cluster.groups) or (empty and len(empty) == len(cluster.groups) and spread) or idle:
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
            evidence += [
                Evidence(
                    f"idle: {scene.status.idle[group.name]} of {group.name}, minReplicas {group.bounds[0]}",
                    scene.on_head("ray status"),
                )
                for group in idle
            ]
            said = (
                f"No autoscaler runs for {cluster.name}: its groups keep the replicas that are written, whatever"
                " is asked."
            )
            return Found(said, tuple(evidence[:3]), "certain" if wants else LIKELY)
    return "nothing waits for more than there is" if scene.status else ""


def _older_than_setting(scene: Scene) -> Found | None:
    """Autoscaling was switched on after the head was made: the sidecar comes with a new head Pod only (pod.go)."""
    if (
        not _demand(scene)
        or scene.autoscaler_logs
        or (scene.status and (scene.status.launching or scene.status.pending))
    ):
        return None
    for cluster in scene.clusters:
        head = scene.head_of(cluster.name)
        if cluster.is_autoscaling and head and head.ray.is_running and not head.container(AUTOSCALER):
            said = (
                f"No autoscaler runs for {cluster.name}: its head Pod {head.name} has none, though"
                " enableInTreeAutoscaling is true; it was made before that was set."
            )
            names = ", ".join(one.name for one in head.containers)
            shown = Evidence(f"containers of {head.name}: {names}", scene.describe("pod", head.name))
            fix = f"Delete the head Pod {head.name} when no work is lost by it: the new one has an autoscaler."
            return Found(said, (shown, *_demand(scene)), fix=fix)
    return None


def _unplaced_demand(scene: Scene) -> tuple[Evidence, ...]:
    """What raylet and driver say of demand that waits (cluster_lease_manager.cc, and worker.py of Ray)."""
    return of_logs(
        scene, "cannot be scheduled right now", "infeasible resource requests", "No available node types can fulfill"
    )


def _demand(scene: Scene) -> list[Evidence]:
    if scene.status and scene.status.has_demand:
        return [Evidence(f"pending: {shown}", scene.on_head("ray status")) for shown in demands_shown(scene.status)[:2]]
    return list(_unplaced_demand(scene)[:1])


# ---- it is too slow ------------------------------------------------------------------------------------------------


def autoscaler_cpu_starved(scene: Scene) -> Found | str:
    shares = [(pod, one, scene.cpu_share(pod, one)) for pod in scene.heads if (one := pod.container(AUTOSCALER))]
    at_limit = [(pod, one, share) for pod, one, share in shares if share and share >= NEAR_LIMIT]
    shapes = len(scene.status.demands) if scene.status else 0
    throttled = _throttled(scene)
    busy = bool(at_limit) or bool(throttled)
    slow = _round_s(scene, busy)
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


def _round_s(scene: Scene, is_busy: bool) -> Evidence | None:
    """How long a round takes, if that is far longer than it should: by `ray status -v`, or by the autoscaler's log."""
    if scene.status and scene.status.iteration_s and scene.status.iteration_s > SLOW_S:
        told = f"a round takes {scene.status.iteration_s:.0f} s instead of {ROUND_S} s"
        return Evidence(told, scene.on_head("ray status -v"))
    for log in scene.autoscaler_logs:
        took = [float(one) for one in re.findall(r"took ([\d.]+) seconds to complete the update iteration", log.text)]
        if took and took[-1] > SLOW_S:
            return Evidence(f"a round takes {took[-1]:.0f} s instead of {ROUND_S} s", log.command)
        lines = log.lines("Listing pods for RayCluster", "======== Autoscaler status")
        # one that is at its limit writes something in each round that it comes to
        rounds = [at for line in lines or (log.text.splitlines() if is_busy else ()) if (at := texts.moment(line))]
        gaps = [gap for one, other in zip(rounds, rounds[1:], strict=False) if (gap := seconds(one, other)) > 1]
        if gaps and median(gaps) > SLOW_S:
            return Evidence(f"{median(gaps):.0f} s lie between two rounds instead of {ROUND_S} s", log.command)
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
    r"|5\d\d Server Error|429 Client Error|Connection refused|Connection reset|etcdserver|Error during"
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
        signs += _held_down(scene, cluster) if _has_last_word(cluster, others) else []
        if len(signs) + bool(others) >= 2 and signs:
            writer = others[0][0] if others else "something"
            said = f"{writer} writes replicas of {cluster.name} too, and undoes what the autoscaler asks for."
            told = [
                Evidence(
                    f"{name} has written {cluster.name} at {at:%H:%M:%S}",
                    f"kubectl get raycluster {cluster.name} -o yaml --show-managed-fields",
                )
                for name, at in others
            ]
            return Found(said, (*told[:2], *signs[:3], *_synced(cluster)[:1]), "certain" if others else LIKELY)
    if not any(cluster.is_autoscaling for cluster in scene.clusters):
        return "no autoscaler runs" if scene.clusters else ""
    return "nobody but the autoscaler is seen to change replicas"


def _other_writers(cluster: RayCluster) -> list[tuple[str, datetime]]:
    """Who else wrote the RayCluster since it was made; those of its status aside."""
    times = _writers(cluster)
    begun = (cluster.created or datetime.min.replace(tzinfo=UTC)) + timedelta(seconds=STUCK_S)
    known = (*AUTOSCALER_MANAGERS, *OPERATOR_MANAGERS)
    is_patched = any(name in AUTOSCALER_MANAGERS for name in times)
    return [(name, at) for name, at in times.items() if name not in known and is_patched and at > begun]


def _has_last_word(cluster: RayCluster, others: list[tuple[str, datetime]]) -> bool:
    """Whether one of them wrote after the autoscaler did."""
    own = [at for name, at in _writers(cluster).items() if name in AUTOSCALER_MANAGERS]
    return bool(own) and any(at >= max(own) for _, at in others)


def _writers(cluster: RayCluster) -> dict[str, datetime]:
    fields = [one for one in cluster.thing["metadata"].get("managedFields") or () if not one.get("subresource")]
    return {one.get("manager", "?"): at for one in fields if (at := time_of(one.get("time")))}


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
            growing = [group for group in cluster.groups if holds(group, bundle) and not is_full(scene, cluster, group)]
            if growing and verdict(scene, bundle) == FITS and not has_room_now(status, bundle):
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

"""How the Pods of a group have come and gone, read from the operator's events."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from helpers.model.raycluster import Group
from helpers.observe.scene import RayCluster, Scene
from helpers.observe.texts import moment
from helpers.observe.things import seconds

# raycluster_controller.go: "Deleted pod" are those that the autoscaler named in workersToDelete
NAME = re.compile(r"(?:Created worker Pod|Deleted pod) (?:\S+/)?(\S+)")
MOST = 1000
TOGETHER_S = 20.0  # between removals that belong together


@dataclass(frozen=True)
class Churn:
    """How the Pods of a group have come and gone: those that the autoscaler removed.

    Attributes:
        lives: seconds from creation to removal, of those of which both are known.
        gaps: seconds from a removal to the next creation.
        most: how many Pods there were at one time, at most.
    """

    cluster: RayCluster
    group: Group
    made: tuple[datetime, ...]
    gone: tuple[datetime, ...]
    lives: tuple[float, ...]
    gaps: tuple[float, ...]
    most: int

    @property
    def rounds(self) -> int:
        """How often a removal was followed by a creation."""
        return len(self.gaps)


def churns(scene: Scene) -> list[Churn]:
    found = []
    for cluster, group in scene.autoscaled:
        made, gone = _moments(scene, cluster, group)
        if made and gone:
            found.append(_churn(cluster, group, made, gone))
    return [one for one in found if one.rounds]


def _moments(scene: Scene, cluster: RayCluster, group: Group) -> tuple[dict[str, datetime], dict[str, datetime]]:
    made, gone = {}, {}
    for event in scene.events_of("CreatedWorkerPod", "DeletedWorkerPod", name=cluster.name):
        match = NAME.match(event.message)
        if match and event.last and _is_of(scene, cluster, group, match[1]):
            (made if event.reason == "CreatedWorkerPod" else gone)[match[1].rstrip(".,;")] = event.last
    if not gone:
        return _told_by_log(scene, group)
    for pod in scene.workers:
        if pod.cluster == cluster.name and pod.group == group.name and pod.created:
            made.setdefault(pod.name, pod.created)
    return made, gone


def _told_by_log(scene: Scene, group: Group) -> tuple[dict[str, datetime], dict[str, datetime]]:
    """The same from the autoscaler's log (v2's event_logger.py), which has no names: the oldest go first."""
    made: dict[str, datetime] = {}
    gone: dict[str, datetime] = {}
    for log in scene.autoscaler_logs:
        for line in log.text.splitlines():
            at = moment(line)
            added = re.search(rf"Adding (\d+) node\(s\) of type {re.escape(group.name)}\.", line)
            removed = re.search(rf"Removing (\d+) nodes? of type {re.escape(group.name)} \(idle\)", line)
            if at and added:
                made |= {str(len(made) + number): at for number in range(min(int(added[1]), MOST))}
            elif at and removed:
                gone |= {str(len(gone) + number): at for number in range(min(int(removed[1]), MOST))}
    return made, gone


def _is_of(scene: Scene, cluster: RayCluster, group: Group, pod: str) -> bool:
    """Whether a Pod is of a group, by its name: `<cluster>-<group>-worker-<5>`, its beginning cut at 50 (util.go)."""
    if any(one.name == pod for one in scene.workers):
        return any(one.name == pod and one.group == group.name for one in scene.workers)
    prefix = f"{cluster.name}-{group.name}-worker-"
    return pod.startswith(prefix[:50]) or len(cluster.groups) == 1


def _churn(cluster: RayCluster, group: Group, made: dict[str, datetime], gone: dict[str, datetime]) -> Churn:
    lives = [seconds(made[name], at) for name, at in gone.items() if name in made]
    bursts = _bursts(list(gone.values()))
    gaps = []
    for at in bursts:
        later = [one for one in made.values() if one >= at]
        if later:
            gaps.append(seconds(at, min(later)))
    steps = sorted(
        [(at, 1) for at in made.values()] + [(at, -1) for at in gone.values()], key=lambda one: (one[0], one[1])
    )
    there, most = 0, 0
    for _, step in steps:
        there = max(0, there + step)
        most = max(most, there)
    return Churn(cluster, group, tuple(made.values()), tuple(gone.values()), tuple(lives), tuple(gaps), most)


def _bursts(moments: list[datetime]) -> list[datetime]:
    """The last of each bunch of moments that belong together."""
    found: list[datetime] = []
    for at in sorted(moments):
        if found and seconds(found[-1], at) < TOGETHER_S:
            found[-1] = at
        else:
            found.append(at)
    return found

"""Why a target does not move, or does not shrink: one cause first, with what shows it and what mends it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from helpers.errors import CourseError
from helpers.observe.causes import CAUSES, NO_FAULT, UNKNOWN, Cause, Evidence, Found
from helpers.observe.scene import Scene
from helpers.observe.snapshot import ROOTS, Snapshot
from helpers.text import as_html

MARKS = {NO_FAULT: "✔", UNKNOWN: "?"}
KINDS = (*ROOTS, "Pod")
# what an object that somebody has edited may lead to: one such is no reason to look for nothing at all
ODD = (AttributeError, IndexError, KeyError, TypeError, ValueError)
# where two causes speak of the same thing, the first of them is said, and the second is left out
SAME = {
    "insufficient-node-capacity": (
        "upgrade-needs-double-capacity", "node-autoscaler-blocked", "no-node-autoscaler", "waiting-for-node",
    ),
    "no-node-autoscaler": ("upgrade-needs-double-capacity",),
    "demand-bursty": ("idle-timeout-too-short", "min-floor-thrash"),
    "idle-timeout-too-short": ("min-floor-thrash",),
}  # fmt: skip


@dataclass(frozen=True)
class Named:
    """One cause that was found.

    Attributes:
        cause: its id.
        certainty: certain, likely or possible.
        said: what is so, in one sentence.
        evidence: what shows it, the strongest first.
        fix: what mends it, in one sentence.
    """

    cause: str
    certainty: str
    said: str
    evidence: tuple[Evidence, ...]
    fix: str


@dataclass(frozen=True)
class Diagnosis:
    """Why a target does not move, or does not shrink.

    Attributes:
        target: such as `raycluster/demo`.
        first: the cause; `no-fault` if there is nothing to repair, `unknown` if something is wrong and no cause fits.
        further: causes that were found besides, in the order in which they bring about each other.
        ruled_out: what rules each other cause out, by its id.
        unread: what could not be looked at, a sentence each.
    """

    target: str
    first: Named
    further: tuple[Named, ...]
    ruled_out: Mapping[str, str]
    unread: tuple[str, ...]

    @property
    def cause(self) -> str:
        return self.first.cause

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for `--json`."""
        return {
            "target": self.target,
            **asdict(self.first),
            "further": [asdict(one) for one in self.further],
            "ruled_out": dict(self.ruled_out),
            "unread": list(self.unread),
        }

    def __str__(self) -> str:
        lines = [
            f"{MARKS.get(self.cause, '✘')} {self.target}: {self.cause} ({self.first.certainty})",
            *_lines(self.first),
        ]
        for one in self.further:
            lines += [f"\nAlso: {one.cause} ({one.certainty})", *_lines(one)]
        if self.ruled_out:
            lines += ["\nRuled out:", *(f"  · {cause}: {why}" for cause, why in self.ruled_out.items())]
        if self.unread:
            lines += ["\nNot looked at:", *(f"  · {one}" for one in self.unread)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [
            _html(f"{MARKS.get(self.cause, '✘')} {self.target}: {self.cause} ({self.first.certainty})", self.first)
        ]
        parts += [_html(f"Also: {one.cause} ({one.certainty})", one) for one in self.further]
        out = "".join(f"<li>{html.escape(cause)}: {as_html(why)}</li>" for cause, why in self.ruled_out.items())
        parts += (
            [f"<details><summary>Ruled out: {len(self.ruled_out)}</summary><ul>{out}</ul></details>"] if out else []
        )
        unread = "".join(f"<li>{as_html(one)}</li>" for one in self.unread)
        return "".join(parts) + (f"<p>Not looked at:</p><ul>{unread}</ul>" if unread else "")


def _lines(named: Named) -> list[str]:
    return [
        f"  {named.said}",
        *(f"  · {one.text}\n      $ {one.command}" for one in named.evidence),
        f"  → {named.fix}",
    ]


def _html(title: str, named: Named) -> str:
    rows = "".join(
        f"<li>{html.escape(one.text)}<br><code>{html.escape(one.command)}</code></li>" for one in named.evidence
    )
    return f"<p><b>{html.escape(title)}</b><br>{as_html(named.said)}</p><ul>{rows}</ul><p>→ {as_html(named.fix)}</p>"


def why(snapshot: Snapshot, target: str = "") -> Diagnosis:
    """Why a target does not move, or does not shrink.

    Args:
        snapshot: what is known.
        target: such as `raycluster/demo`, `rayjob/train`, `rayservice/chat` or `pod/demo-head-x7k2p`; left away, all
            that somebody applied: first the one whose cause is furthest upstream.

    Raises:
        CourseError: there is no such target.
    """
    if target:
        return diagnose(Scene(snapshot, find(snapshot, target)))
    found = [diagnose(Scene(snapshot, root)) for root in snapshot.roots()]
    if not found:
        raise CourseError("The dump holds a RayCronJob alone, which has no Pods of its own.", "Add its RayJobs to it.")
    first, *others = sorted(found, key=lambda one: _rank(one.cause))
    besides = [_of(other, one) for other in others for one in (other.first, *other.further) if one.cause != NO_FAULT]
    return replace(first, further=(*first.further, *besides))


def _of(diagnosis: Diagnosis, named: Named) -> Named:
    return replace(named, said=f"Of {diagnosis.target}: {named.said}")


def _rank(cause: str) -> int:
    ids = [one.id for one in CAUSES] + [UNKNOWN, NO_FAULT]
    return ids.index(cause)


def find(snapshot: Snapshot, target: str) -> Mapping[str, Any]:
    """The object that a target names: `KIND/NAME`, the kind as kubectl takes it.

    Raises:
        CourseError: it is not there, or of a kind of which nothing is known.
    """
    kind, _, name = target.partition("/")
    wanted = next(
        (one for one in KINDS if kind.lower().removesuffix("s").partition(".")[0] in (one.lower(), _short(one))), None
    )
    if not wanted or not name:
        raise CourseError(
            f"{target!r:.80} is no target.", "Name one as raycluster/NAME, rayjob/NAME, rayservice/NAME or pod/NAME."
        )
    there = snapshot.of_kind(wanted)
    for one in there:
        if one["metadata"]["name"] == name:
            return one
    names = ", ".join(f"{wanted.lower()}/{one['metadata']['name']}" for one in there[:8])
    others = ", ".join(f"{one['kind'].lower()}/{one['metadata']['name']}" for one in snapshot.roots()[:8])
    raise CourseError(f"There is no {wanted.lower()}/{name}.", f"There are: {names or others or 'none'}.")


def _short(kind: str) -> str:
    return {"Pod": "po"}.get(kind, kind.lower())


def diagnose(scene: Scene) -> Diagnosis:
    """Ask each cause, in the order in which they bring about each other."""
    found: list[tuple[Cause, Found]] = []
    ruled_out: dict[str, str] = {}
    if _is_done(scene):
        return Diagnosis(f"{scene.kind.lower()}/{scene.name}", _without_cause(scene), (), {}, _unread(scene))
    odd: list[str] = []
    for cause in CAUSES:
        try:
            seen = cause.look(scene)
        except ODD as error:
            odd.append(f"{cause.id} could not be looked for: an object is not as the API server writes it ({error}).")
            continue
        if isinstance(seen, Found):
            found.append((cause, seen))
        elif seen:
            ruled_out[cause.id] = seen
    ids = {cause.id for cause, _ in found}
    named = [_named(cause, seen) for cause, seen in found if not ids & set(SAME.get(cause.id, ()))]
    first = named[0] if named else _without_cause(scene)
    return Diagnosis(f"{scene.kind.lower()}/{scene.name}", first, tuple(named[1:]), ruled_out, (*odd, *_unread(scene)))


def _is_done(scene: Scene) -> bool:
    """Whether a RayJob has come to a good end: what was in its way before is of no matter."""
    status = scene.job_status
    return status.get("jobStatus") == "SUCCEEDED" and status.get("jobDeploymentStatus") == "Complete"


def _named(cause: Cause, seen: Found) -> Named:
    return Named(cause.id, seen.certainty, seen.said, seen.evidence, seen.fix or cause.fix)


def _without_cause(scene: Scene) -> Named:
    target = f"{scene.kind.lower()}/{scene.name}"
    if scene.troubles:
        shown = tuple(
            Evidence(one, f"kubectl describe {scene.kind.lower()} {scene.name}") for one in scene.troubles[:5]
        )
        said = "Something is not as it should be, and none of the known causes fits what is seen."
        return Named(
            UNKNOWN, "possible", said, shown, "Add to the dump what it lacks: events, logs, `ray status -v`; see below."
        )
    return Named(
        NO_FAULT, "likely", f"Nothing is wrong with {target}: {_how_it_is(scene)}", (), "There is nothing to repair."
    )


def _how_it_is(scene: Scene) -> str:
    parts = []
    if any(cluster.is_suspended for cluster in scene.clusters):
        parts.append("it is suspended, as its spec says")
    ready = sum(pod.is_ready for pod in scene.pods)
    coming = sum(not pod.is_ready and not pod.is_over and not pod.is_leaving for pod in scene.pods)
    parts.append(f"{ready} of {len(scene.pods)} Pods are ready" + (f", {coming} on their way" if coming else ""))
    if scene.job is not None and scene.job_status.get("jobDeploymentStatus"):
        parts.append(
            f"the job is {scene.job_status.get('jobStatus') or 'not begun'} ({scene.job_status['jobDeploymentStatus']})"
        )
    if scene.status:
        demand = sum(number for _, number in scene.status.demands)
        parts.append(f"{demand} or more requests are pending" if demand else "nothing is pending in Ray")
    return "; ".join(parts) + "."


def _unread(scene: Scene) -> tuple[str, ...]:
    """What would say more, and is not in the snapshot."""
    snapshot = scene.snapshot
    told = list(snapshot.unread)
    if scene.clusters and not scene.pods:
        told.append("There is no Pod of it: what they wait for is not known.")
    if not snapshot.of_kind("Event"):
        told.append("There is no Kubernetes event: quota, scheduling and probes are told by events.")
    if not snapshot.texts.get("ray_status"):
        told.append("There is no `ray status -v`: demand and idle nodes are not known.")
    elif scene.status is None:
        told.append("What stands for `ray status` is none, and was not read.")
    if not snapshot.logs:
        told.append("There are no logs.")
    return tuple(told)

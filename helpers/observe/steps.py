"""The steps of a RayCluster: what was done, by whom, in order, read from its objects and their Kubernetes events.

Pure: objects go in as the API server gives them, as dicts, and a table comes out.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from helpers.observe.snapshot import time_of
from helpers.observe.things import WAIT
from helpers.text import as_html

Object = Mapping[str, Any]

# What is to be said of a step, by the reason of its event (KubeRay's are in controllers/ray/utils/constant.go, the rest
# are the scheduler's and the kubelet's). The order is that of cause and effect. It decides between steps of one second,
# since Kubernetes keeps no finer times.
_MEANINGS = {
    "Stored": "The API server has checked it against the schema, no more. From here on it is the operator's.",
    "InvalidRayClusterSpec": "The operator compares fields with each other, which the schema cannot. It makes nothing.",
    "InvalidRayClusterMetadata": "The operator makes names from this name, and refuses one that is too long for that.",
    "CreatedServiceAccount": "For the autoscaler, which has to read Pods and to change the RayCluster.",
    "CreatedRole": "What the autoscaler may do: see Pods, and patch this RayCluster.",
    "CreatedRoleBinding": "Gives the role to the ServiceAccount.",
    "CreatedService": "A name for the head that stays when its Pod is replaced. Workers connect to it.",
    "CreatedIngress": "Only because enableIngress asks for it. It does nothing without an ingress controller.",
    "DeletedHeadPod": "It had ended. The next look finds no head, and makes one.",
    "CreatedHeadPod": "The template, with a `ray start` line, probes, variables and, for autoscaling, a sidecar added.",
    "FailedToCreateHeadPod": "The API server refused the Pod: a quota, an admission rule, a name.",
    "DeletedWorkerPod": "The message says why: it had ended, the autoscaler named it, or it was one too many.",
    "CreatedWorkerPod": "Made whether the head is ready or not: to wait for the head is the Pod's own first act.",
    "FailedToCreateWorkerPod": "The API server refused the Pod: a quota, an admission rule, a name.",
    "FailedScheduling": "No Kubernetes node fits. The message counts them by what was in the way.",
    "Scheduled": "The requests fit here; limits play no part in this.",
    "Pulling": "The image is not on this Kubernetes node yet.",
    "Failed": "The container cannot be started. The message says why.",
    "BackOff": "Tried again and again, with longer and longer pauses.",
    "Killing": "The kubelet ends it: SIGTERM, and SIGKILL when the grace period is over.",
    "Started init": "It asks the GCS for its health every 5 seconds. No answer, no worker.",
    "Ended init": "The GCS has answered, and runs the same version of Ray.",
    "Started": "Its command runs. That it works is the next question.",
    "Unhealthy": "The probe got no good answer.",
    "Ready": "The probe got a good answer: on the head from raylet and GCS, on a worker from its raylet.",
    "Provisioned": "All Pods were Ready once. It stays True whatever happens later.",
    "State": "Head and all desired workers were Ready at that moment. Nothing but suspend takes it back.",
}
_RANK = {reason: rank for rank, reason in enumerate(_MEANINGS)}
_CONTAINER = re.compile(r"ontainers\{(?P<name>[^}]+)\}")  # of spec.containers{…} or spec.initContainers{…}
_MADE_POD = re.compile(r"^Created (head|worker) Pod (?P<name>\S+)$")  # KubeRay, raycluster_controller.go
_CELL = "text-align: left; line-height: 1.4; padding: 0.1em 1em 0.1em 0"


@dataclass(frozen=True)
class Step:
    """One thing that was done.

    Attributes:
        at: when, to the second.
        who: who did it: you, the operator, the scheduler, or the kubelet of a Kubernetes node.
        what: what was done.
        meaning: what it is for.
        source: where that was read.
        key: what sort of step it is, such as "Scheduled".
        about: kind and name of the object that it is about, such as "Pod/demo-head-x7k2p".
        change: what was different in that object afterwards, a line a field; only a recorded timeline knows.
        states: how far each Pod was afterwards, by name; only a recorded timeline knows.
    """

    at: datetime
    who: str
    what: str
    meaning: str
    source: str
    key: str = ""
    about: str = ""
    change: tuple[str, ...] = ()
    states: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Steps:
    """What was done, in order.

    Attributes:
        target: whose steps they are, such as `raycluster/demo`.
        start: when the clock of the table begins: when the RayCluster was stored.
    """

    target: str
    start: datetime
    steps: tuple[Step, ...]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def seconds(self, step: Step) -> int:
        """Seconds from the start to a step."""
        return round((step.at - self.start).total_seconds())

    def since(self, moment: datetime) -> Steps:
        """Those from the second of a moment on, with a clock that begins with the first of them."""
        new = tuple(step for step in self.steps if step.at >= moment.replace(microsecond=0))
        return Steps(self.target, new[0].at if new else self.start, new)

    def rows(self) -> list[tuple[str, str, str]]:
        """Each step as it stands in the table: seconds, who, what."""
        return [(f"+{self.seconds(step)} s", step.who, step.what) for step in self.steps]

    def __str__(self) -> str:
        if not self.steps:
            return f"· {self.target}: no steps"
        rows = self.rows()
        time, who = (max(len(row[column]) for row in rows) for column in (0, 1))
        hang = " " * (time + who + 4)
        lines = (f"{row[0]:>{time}}  {row[1]:<{who}}  {row[2]}" for row in rows)
        return "\n".join(textwrap.fill(line, 118, subsequent_indent=hang, break_on_hyphens=False) for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_table(self.target, self.rows())


def as_table(caption: str, rows: Iterable[tuple[str, str, str]], current: int | None = None) -> str:
    """Steps as an HTML table; the row `current` is marked by a symbol, and to a screen reader."""
    if not (rows := list(rows)):
        return f"<p>· {html.escape(caption)}: no steps</p>"
    heads = "".join(f'<th scope="col" style="{_CELL}">{text}</th>' for text in ("", "When", "Who", "What"))
    body = "".join(_row(row, position == current) for position, row in enumerate(rows))
    caption = f'<caption style="text-align: left">Steps of {html.escape(caption)}</caption>'
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: tuple[str, str, str], is_current: bool) -> str:
    mark, attributes = ("▶", ' aria-current="step" style="font-weight: bold"') if is_current else ("", "")
    short = "".join(f'<td style="{_CELL}; white-space: nowrap">{as_html(text)}</td>' for text in (mark, *row[:2]))
    # names of Pods are long: they may break anywhere rather than widen the page
    return f'<tr{attributes}>{short}<td style="{_CELL}; overflow-wrap: anywhere">{as_html(row[2])}</td></tr>'


def steps_of(cluster: Object, pods: Iterable[Object], events: Iterable[Object]) -> Steps:
    """The steps of a RayCluster.

    Args:
        cluster: the RayCluster.
        pods: its Pods, as they are now.
        events: the Kubernetes events (core/v1) of it and of what it owns or owned. Those that add nothing are left out,
            such as each container's Created, or Pulled of an image that was there.
    """
    kind, name = cluster["kind"], cluster["metadata"]["name"]
    start = _time(cluster["metadata"]["creationTimestamp"])
    who = "operator" if cluster["metadata"].get("ownerReferences") else "you"  # a RayJob or RayService owns its cluster
    found = [_step("Stored", start, who, f"stored {kind} {name}", "the object", f"{kind}/{name}")]
    found += [step for event in events if (step := _of_event(event))]
    for pod in pods:
        found += _of_pod(pod)
    found += _of_status(cluster)
    found.sort(key=lambda step: (step.at, _RANK[step.key], step.what))
    return Steps(f"{kind.lower()}/{name}", start, tuple(dict.fromkeys(found)))


def _step(key: str, at: datetime, who: str, what: str, source: str, about: str) -> Step:
    return Step(at, who, what, _MEANINGS[key], source, key, about)


def _of_event(event: Object) -> Step | None:
    about, reason, is_init = event["involvedObject"], event.get("reason", ""), False
    what = _plain(event.get("message", ""), event["metadata"].get("namespace", ""))
    if about["kind"] == "Pod":
        container = _CONTAINER.search(about.get("fieldPath", ""))
        is_init = bool(container and container["name"] == WAIT)
        what = f"started {container['name']}" if reason == "Started" and container else what
        what = what if about["name"] in what else f"{about['name']}: {what}"
    key = "Started init" if reason == "Started" and is_init else reason
    if key not in _MEANINGS:
        return None
    moment = event.get("firstTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return _step(key, _time(moment), _who(event), what, f"event {reason}", _object_of(event, what))


def _object_of(event: Object, what: str) -> str:
    """What an event is about; where it is about the creator of a Pod, that Pod."""
    made = _MADE_POD.search(what)
    return f"Pod/{made['name']}" if made else f"{event['involvedObject']['kind']}/{event['involvedObject']['name']}"


def _who(event: Object) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or "?"
    if component.endswith("-controller") and component.startswith("ray"):
        return "operator"
    if component == "kubelet":
        return f"kubelet of {source.get('host') or event.get('reportingInstance') or '?'}"
    return component.removeprefix("default-")


def _plain(message: str, namespace: str) -> str:
    """A message in one line, without the namespace before each name; of how a container ended, its exit code only."""
    text = message.replace(f"{namespace}/", "") if namespace else message
    text = re.sub(r"&ContainerStateTerminated\{ExitCode:(\d+),.*?,\}", r"exit code \1", text, flags=re.DOTALL)
    return " ".join(text.split())


def _of_pod(pod: Object) -> list[Step]:
    """What an object keeps and no event says: when the wait for the GCS ended, and when the Pod was Ready."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    who = f"kubelet of {pod['spec'].get('nodeName', '?')}"
    found = []
    for container in status.get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if container["name"] == WAIT and ended and ended.get("exitCode") == 0:
            at, what = _time(ended["finishedAt"]), f"{name}: {WAIT} ended"
            found.append(_step("Ended init", at, who, what, "the Pod's status", f"Pod/{name}"))
    for condition in status.get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] == "True":
            at = _time(condition["lastTransitionTime"])
            found.append(_step("Ready", at, who, f"{name}: Ready", "the Pod", f"Pod/{name}"))
    return found


def _of_status(cluster: Object) -> list[Step]:
    status, found = cluster.get("status") or {}, []
    about = f"{cluster['kind']}/{cluster['metadata']['name']}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "RayClusterProvisioned" and condition["status"] == "True":
            at, what = _time(condition["lastTransitionTime"]), "wrote the condition RayClusterProvisioned"
            found.append(_step("Provisioned", at, "operator", what, "its status", about))
    ready = (status.get("stateTransitionTimes") or {}).get("ready")
    if ready:
        found.append(_step("State", _time(ready), "operator", "wrote `state: ready`", "its status", about))
    return found


def _time(text: str | datetime) -> datetime:
    return time_of(text).replace(microsecond=0)

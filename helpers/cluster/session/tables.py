"""Pods and Kubernetes events as a notebook shows them, and why a Pod is not ready."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from helpers.cluster.session.target import GROUP_LABEL, HEAD_GROUP, TYPE_LABEL, when
from helpers.text import columns

NOTHING = "none"
SHORT = 12  # characters of a cell that is not broken


class Table:
    """Rows under heads: plain text, HTML, and something to loop over."""

    caption: str
    rows: tuple[Any, ...]
    HEADS: tuple[str, ...] = ()

    def cells(self) -> list[tuple[str, ...]]:
        """What is shown of each row."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.caption}: {NOTHING}"
        return f"{self.caption}\n{columns([self.HEADS, *self.cells()])}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        caption = html.escape(self.caption)
        if not self.rows:
            return f"<p>{caption}: {NOTHING}</p>"
        heads = "".join(f'<th scope="col">{head}</th>' for head in self.HEADS)
        body = "".join(f"<tr>{''.join(map(_html_cell, line))}</tr>" for line in self.cells())
        return f"<table><caption>{caption}</caption><tr>{heads}</tr>{body}</table>"


def _html_cell(text: str) -> str:
    # names of Pods are long: they may break anywhere rather than widen the page, but a word stays whole
    wrap = "white-space: nowrap" if len(text) <= SHORT else "overflow-wrap: anywhere"
    return f'<td style="text-align: left; {wrap}">{html.escape(text)}</td>'


# ---- Pods ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PodRow:
    """A Pod at one moment.

    Attributes:
        name: its name.
        group: `head`, the name of its worker group, or nothing for a Pod that is no Ray node.
        phase: Pending, Running, Succeeded, Failed; Terminating if it is being deleted.
        ready: containers that are ready, and all of them: `1/2`.
        is_ready: whether the Pod is ready, and not being deleted.
        machine: the Kubernetes node that it is on; empty if it is on none yet.
        restarts: of its containers, together.
        reason: why it is not ready; empty if it is.
    """

    name: str
    group: str
    phase: str
    ready: str
    is_ready: bool
    machine: str
    restarts: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason or self.phase}"


@dataclass(frozen=True, repr=False)
class Pods(Table):
    """Pods at one moment, head first."""

    caption: str
    rows: tuple[PodRow, ...]

    HEADS = ("name", "group", "phase", "ready", "Kubernetes node", "restarts", "why not ready")

    def cells(self) -> list[tuple[str, ...]]:
        """What is shown of each row."""
        return [
            (row.name, row.group or "–", row.phase, row.ready, row.machine or "–", str(row.restarts), row.reason or "–")
            for row in self.rows
        ]


def pods(caption: str, things: Iterable[dict]) -> Pods:
    """The table of Pods as the API server has them."""
    rows = sorted(map(pod_row, things), key=lambda row: (row.group != "head", row.group, row.name))
    return Pods(caption, tuple(rows))


def pod_row(pod: dict) -> PodRow:
    """One Pod's row."""
    labels = pod["metadata"].get("labels", {})
    status = pod.get("status", {})
    states = status.get("containerStatuses", [])
    return PodRow(
        name=pod["metadata"]["name"],
        group="head" if labels.get(TYPE_LABEL) == "head" else labels.get(GROUP_LABEL, "").replace(HEAD_GROUP, "head"),
        phase="Terminating" if is_ending(pod) else status.get("phase", "Pending"),
        ready=f"{sum(state.get('ready', False) for state in states)}/{len(pod['spec']['containers'])}",
        is_ready=is_ready(pod),
        machine=pod["spec"].get("nodeName", ""),
        restarts=sum(state.get("restartCount", 0) for state in states),
        reason="" if is_ready(pod) else why_not_ready(pod),
    )


def is_ending(thing: dict) -> bool:
    """Whether an object is being deleted."""
    return "deletionTimestamp" in thing["metadata"]


def condition(thing: dict, type_: str) -> dict:
    """A condition of an object's status; empty if it has none of that type."""
    return next((c for c in thing.get("status", {}).get("conditions", []) if c["type"] == type_), {})


def is_ready(pod: dict) -> bool:
    """Whether a Pod is Ready, and not being deleted."""
    return condition(pod, "Ready").get("status") == "True" and not is_ending(pod)


def why_not_ready(pod: dict) -> str:
    """The Pod's own reason, in one phrase."""
    if is_ending(pod):
        return "it is being deleted"
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"no Kubernetes node takes it: {scheduled.get('message', 'not yet')}".rstrip(".")
    status = pod.get("status", {})
    if status.get("phase") == "Succeeded":
        return "it has ended, with success"
    if status.get("phase") == "Failed":
        return _why_failed(pod)
    for state in status.get("initContainerStatuses", []):
        if not state.get("ready") and not state.get("started"):
            told = _why_container(state)
            if told:
                return f"its init container {told}"
            if "running" in state.get("state", {}):
                what = (
                    " waits until the GCS of the head answers" if state["name"] == "wait-gcs-ready" else " runs still"
                )
                return f"its init container {state['name']}{what}"
    for state in status.get("containerStatuses", []):
        told = _why_container(state)
        if told:
            return f"its container {told}"
    waiting = [state["name"] for state in status.get("containerStatuses", []) if not state.get("ready")]
    if waiting:
        return f"its container {waiting[0]} runs, and is not ready yet"
    return "it is on its Kubernetes node, and nothing runs yet" if pod["spec"].get("nodeName") else "it is new"


def _why_failed(pod: dict) -> str:
    status = pod["status"]
    ended = [
        s["name"] + " " + _ended(s["state"]["terminated"])
        for s in status.get("containerStatuses", [])
        if "terminated" in s.get("state", {})
    ]
    told = status.get("message") or "; ".join(ended) or status.get("reason") or "no reason is given"
    return f"it has failed: {told}"


def _why_container(state: dict) -> str:
    """Why a container waits or has ended; empty if it runs, or will in a moment."""
    waiting, ended = state.get("state", {}).get("waiting"), state.get("state", {}).get("terminated")
    if ended and not (ended.get("exitCode") == 0 and ended.get("reason") == "Completed"):
        return f"{state['name']} {_ended(ended)}"
    if not waiting or waiting.get("reason") in (None, "PodInitializing", "ContainerCreating"):
        return ""
    last = state.get("lastState", {}).get("terminated")
    told = f"; the last time it {_ended(last)}" if last else ""
    said = f" ({waiting['message']})" if waiting.get("message") and not last else ""
    return f"{state['name']} waits: {waiting['reason']}{said}{told}"


def _ended(terminated: dict) -> str:
    reason = terminated.get("reason", "")
    said = f" ({reason})" if reason not in ("", "Error", "Completed") else ""
    message = f": {terminated['message'].strip()}" if terminated.get("message") else ""
    return f"ended with status {terminated.get('exitCode')}{said}{message}"


# ---- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EventRow:
    """A Kubernetes event.

    Attributes:
        time: when it happened last, in local time; events are recorded to the second.
        on: the object that it is about, such as `pod/demo-head-x7k2p`.
        reason: in one word, such as CreatedHeadPod.
        message: in a sentence.
        is_warning: whether its type is Warning.
        count: how often it has happened.
    """

    time: datetime
    on: str
    reason: str
    message: str
    is_warning: bool
    count: int

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.reason} on {self.on}{times}: {self.message}"


@dataclass(frozen=True, repr=False)
class Events(Table):
    """Kubernetes events, oldest first."""

    caption: str
    rows: tuple[EventRow, ...]

    HEADS = ("time", "type", "on", "reason", "times", "message")

    def cells(self) -> list[tuple[str, ...]]:
        """What is shown of each row."""
        return [
            (
                f"{row.time:%H:%M:%S}", "✘ Warning" if row.is_warning else "· Normal", row.on, row.reason,
                str(row.count), row.message,
            )
            for row in self.rows
        ]  # fmt: skip


def events(caption: str, things: Iterable[dict]) -> Events:
    """The table of events as the API server has them."""
    return Events(caption, tuple(map(event_row, things)))


def event_row(event: dict) -> EventRow:
    """One event's row."""
    about = event["involvedObject"]
    return EventRow(
        time=datetime.fromisoformat(when(event).replace("Z", "+00:00")).astimezone(),
        on=f"{about['kind'].lower()}/{about['name']}",
        reason=event.get("reason", ""),
        message=" ".join(event.get("message", "").split()),
        is_warning=event.get("type") == "Warning",
        count=event.get("count") or (event.get("series") or {}).get("count") or 1,
    )

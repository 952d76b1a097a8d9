"""Pods, containers and Kubernetes events of a snapshot, with names for what the causes ask of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from helpers.model import quantity
from helpers.observe.snapshot import time_of

Object = Mapping[str, Any]
WAIT = "wait-gcs-ready"  # the init container that KubeRay puts into each worker Pod (pod.go)
SUBMITTER = "ray-job-submitter"  # SubmitterContainerName in constant.go
AUTOSCALER = "autoscaler"
PULL_REASONS = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "RegistryUnavailable", "SignatureValidationFailed",
)  # of the kubelet (pkg/kubelet/images/types.go)  # fmt: skip


@dataclass(frozen=True)
class Container:
    """A container of a Pod: what was asked for, and how it is.

    Attributes:
        spec: as in the Pod's spec; empty if it is not there.
        status: as in the Pod's status; empty if there is none yet.
    """

    name: str
    spec: Object
    status: Object
    is_init: bool = False

    @property
    def state(self) -> Object:
        return self.status.get("state") or {}

    @property
    def waiting(self) -> Object:
        return self.state.get("waiting") or {}

    @property
    def is_running(self) -> bool:
        return "running" in self.state

    @property
    def started(self) -> datetime | None:
        return time_of((self.state.get("running") or {}).get("startedAt"))

    @property
    def ends(self) -> list[Object]:
        """How it ended: now, and the last time before."""
        last = self.status.get("lastState") or {}
        return [end for end in (self.state.get("terminated"), last.get("terminated")) if end]

    @property
    def ended(self) -> Object:
        """How it has ended, if it does not run now."""
        return self.state.get("terminated") or {}

    @property
    def restarts(self) -> int:
        return self.status.get("restartCount") or 0

    @property
    def was_killed_for_memory(self) -> bool:
        return any(end.get("reason") == "OOMKilled" for end in self.ends)

    @property
    def image(self) -> str:
        return self.spec.get("image") or self.status.get("image") or ""

    def limit(self, name: str) -> float | None:
        """In CPUs or bytes; None if there is none."""
        written = ((self.spec.get("resources") or {}).get("limits") or {}).get(name)
        try:
            return None if written is None else float(quantity.parse(written))
        except ValueError:
            return None


@dataclass(frozen=True)
class Pod:
    """A Pod, as the API server has it."""

    thing: Object

    @property
    def name(self) -> str:
        return self.thing["metadata"]["name"]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.thing["metadata"].get("labels") or {}

    @property
    def spec(self) -> Object:
        return self.thing.get("spec") or {}

    @property
    def status(self) -> Object:
        return self.thing.get("status") or {}

    @property
    def group(self) -> str:
        return self.labels.get("ray.io/group", "")

    @property
    def cluster(self) -> str:
        return self.labels.get("ray.io/cluster", "") or self.owner("RayCluster")

    @property
    def is_head(self) -> bool:
        return self.labels.get("ray.io/node-type") == "head"

    @property
    def is_worker(self) -> bool:
        return self.labels.get("ray.io/node-type") == "worker"

    @property
    def is_submitter(self) -> bool:
        return not self.cluster and any(one.name == SUBMITTER for one in self.containers)

    def owner(self, kind: str) -> str:
        refs = self.thing["metadata"].get("ownerReferences") or ()
        return next((ref["name"] for ref in refs if ref.get("kind") == kind), "")

    @property
    def phase(self) -> str:
        return self.status.get("phase") or "Pending"

    @property
    def machine(self) -> str:
        """The Kubernetes node that it is on; empty if it is on none."""
        return self.spec.get("nodeName") or ""

    @property
    def ip(self) -> str:
        return self.status.get("podIP") or ""

    @property
    def created(self) -> datetime | None:
        return time_of(self.thing["metadata"].get("creationTimestamp"))

    @property
    def is_leaving(self) -> bool:
        return bool(self.thing["metadata"].get("deletionTimestamp"))

    def condition(self, type: str) -> Object:
        found = (one for one in self.status.get("conditions") or () if one.get("type") == type)
        return next(found, {})

    @property
    def is_ready(self) -> bool:
        return self.condition("Ready").get("status") == "True" and not self.is_leaving

    @property
    def is_over(self) -> bool:
        return self.phase in ("Failed", "Succeeded")

    @property
    def is_gated(self) -> bool:
        gated = self.condition("PodScheduled").get("reason") == "SchedulingGated"
        return not self.machine and not self.is_over and (gated or bool(self.spec.get("schedulingGates")))

    @property
    def finds_no_room(self) -> bool:
        """Whether the scheduler has looked, and found no Kubernetes node."""
        seen = self.condition("PodScheduled")
        unfit = seen.get("status") == "False" and seen.get("reason") == "Unschedulable"
        return unfit and not self.machine and not self.is_over and not self.is_leaving

    @cached_property
    def containers(self) -> list[Container]:
        """Those of the Pod's main part; the first is Ray's to KubeRay."""
        return self._containers("containers", "containerStatuses", False)

    @cached_property
    def init_containers(self) -> list[Container]:
        return self._containers("initContainers", "initContainerStatuses", True)

    @property
    def every_container(self) -> list[Container]:
        return [*self.init_containers, *self.containers]

    def _containers(self, specs: str, statuses: str, is_init: bool) -> list[Container]:
        told = {one.get("name"): one for one in self.status.get(statuses) or ()}
        wanted = {one.get("name"): one for one in self.spec.get(specs) or ()}
        return [Container(name, wanted.get(name, {}), told.get(name, {}), is_init) for name in {**wanted, **told}]

    @property
    def ray(self) -> Container:
        """Ray's container: the first (`RayContainerIndex` in constant.go)."""
        return self.containers[0] if self.containers else Container("?", {}, {})

    def container(self, name: str) -> Container | None:
        return next((one for one in self.every_container if one.name == name), None)

    @property
    def waits_for_head(self) -> Container | None:
        """The init container that waits for the head, while it does."""
        return next((one for one in self.init_containers if one.name == WAIT and one.is_running), None)

    @property
    def is_initialising(self) -> bool:
        return self.phase == "Pending" and any(not one.status.get("ready") for one in self.init_containers)

    def request(self, name: str) -> float:
        """What its containers ask of a Kubernetes node together; CPUs, bytes or devices."""
        total = 0.0
        for one in self.containers:
            resources = one.spec.get("resources") or {}
            written = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(name)
            try:
                total += float(quantity.parse(written)) if written is not None else 0
            except ValueError:
                continue
        return total

    @property
    def requested(self) -> set[str]:
        """The names of what it asks of a Kubernetes node."""
        parts = [one.spec.get("resources") or {} for one in self.containers]
        return {name for part in parts for kind in ("limits", "requests") for name in part.get(kind) or ()}

    @property
    def has_gpu(self) -> bool:
        return any(re.search(r"gpu|/mig-", name) and self.request(name) for name in self.requested)


@dataclass(frozen=True)
class Event:
    """A Kubernetes event, of core/v1 or of events.k8s.io/v1."""

    thing: Object

    @property
    def about(self) -> Object:
        return self.thing.get("involvedObject") or self.thing.get("regarding") or {}

    @property
    def kind(self) -> str:
        return self.about.get("kind") or ""

    @property
    def name(self) -> str:
        return self.about.get("name") or ""

    @property
    def reason(self) -> str:
        return self.thing.get("reason") or ""

    @property
    def message(self) -> str:
        """In one line; what client-go puts before several that it folded into one is left off."""
        told = self.thing.get("message") or self.thing.get("note") or ""
        return " ".join(told.split()).removeprefix("(combined from similar events): ")

    @property
    def component(self) -> str:
        source = self.thing.get("source") or self.thing.get("deprecatedSource") or {}
        return (
            source.get("component")
            or self.thing.get("reportingComponent")
            or self.thing.get("reportingController")
            or ""
        )

    @property
    def count(self) -> int:
        series = (self.thing.get("series") or {}).get("count")
        return self.thing.get("count") or self.thing.get("deprecatedCount") or series or 1

    @property
    def first(self) -> datetime | None:
        keys = ("firstTimestamp", "deprecatedFirstTimestamp", "eventTime")
        return next((at for key in keys if (at := time_of(self.thing.get(key)))), self.last)

    @property
    def last(self) -> datetime | None:
        series = (self.thing.get("series") or {}).get("lastObservedTime")
        keys = ("lastTimestamp", "deprecatedLastTimestamp", "eventTime", "firstTimestamp")
        told = [series, *(self.thing.get(key) for key in keys), self.thing["metadata"].get("creationTimestamp")]
        return next((at for one in told if one and (at := time_of(one))), None)

    def __str__(self) -> str:
        times = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.kind.lower()}/{self.name}: {self.reason}{times}: {self.message}"


def seconds(from_: datetime | None, to: datetime | None) -> float:
    """Between two moments; 0 if one is not known."""
    return (to - from_).total_seconds() if from_ and to else 0.0


def later(at: datetime | None, than: datetime | None) -> bool:
    """Whether a moment comes after another, if both are known."""
    return bool(at and than and at > than)


def soon_after(at: datetime | None, than: datetime | None, within_s: float) -> bool:
    """Whether a moment follows another within so many seconds."""
    return bool(at and than and timedelta(0) <= at - than <= timedelta(seconds=within_s))

"""A target, and what of a snapshot belongs to it: what each cause looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from helpers.model.raycluster import HEAD, Group
from helpers.observe import texts
from helpers.observe.snapshot import Snapshot, time_of
from helpers.observe.things import AUTOSCALER, Container, Event, Pod, seconds

Object = Mapping[str, Any]
JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")
ORIGIN = "ray.io/originated-from-cr-name"  # on a RayCluster that a RayJob or RayService made (constant.go)
PULL_S = 1200  # in which the image of a Pod is pulled, be it a big one
SETTLING_S = 180  # for which a Pod may be on its way without anything being wrong


@dataclass(frozen=True)
class Log:
    """What a container printed."""

    pod: str
    container: str
    text: str
    is_previous: bool = False

    @property
    def command(self) -> str:
        return (
            f"kubectl logs {self.pod}"
            + (f" -c {self.container}" if self.container else "")
            + (" --previous" if self.is_previous else "")
        )

    def lines(self, *needles: str) -> list[str]:
        """The lines in which one of these texts stands, without the case of letters."""
        wanted = [one.lower() for one in needles]
        return [line.strip() for line in self.text.splitlines() if any(one in line.lower() for one in wanted)]


@dataclass(frozen=True)
class RayCluster:
    """A RayCluster, as the API server has it."""

    thing: Object

    @property
    def name(self) -> str:
        return self.thing["metadata"]["name"]

    @property
    def spec(self) -> Object:
        return self.thing["spec"]

    @property
    def status(self) -> Object:
        return self.thing.get("status") or {}

    @property
    def created(self) -> datetime | None:
        return time_of(self.thing["metadata"].get("creationTimestamp"))

    @property
    def is_autoscaling(self) -> bool:
        return self.spec.get("enableInTreeAutoscaling") is True

    @property
    def is_suspended(self) -> bool:
        return bool(self.spec.get("suspend"))

    @property
    def options(self) -> Object:
        return self.spec.get("autoscalerOptions") or {}

    @cached_property
    def groups(self) -> list[Group]:
        """The groups of workers."""
        found = [one for one in self.spec.get("workerGroupSpecs") or () if isinstance(one, dict)]
        return [Group(one, f"spec.workerGroupSpecs[{at}]") for at, one in enumerate(found) if one.get("groupName")]

    @property
    def head(self) -> Group:
        return Group(self.spec.get("headGroupSpec") or {}, "spec.headGroupSpec", is_head=True)

    def condition(self, type: str) -> Object:
        return next((one for one in self.status.get("conditions") or () if one.get("type") == type), {})

    def idle_timeout_s(self, group: Group) -> float:
        """Seconds for which a Ray node of this group may be idle: 60 by default (autoscaling_config.py)."""
        told = (group.spec.get("idleTimeoutSeconds"), self.options.get("idleTimeoutSeconds"))
        return next((float(one) for one in told if isinstance(one, int | float)), 60.0)


class Scene:
    """What is known of a target.

    Args:
        snapshot: all that is known.
        root: the target: a RayCluster, RayJob, RayService or Pod.
    """

    def __init__(self, snapshot: Snapshot, root: Object):
        self.snapshot, self.root, self.now = snapshot, root, snapshot.now
        self.kind, self.name = root["kind"], root["metadata"]["name"]

    # ---- objects -----------------------------------------------------------------------------------------------------

    @cached_property
    def job(self) -> Object | None:
        """The RayJob, if the target is one."""
        return self.root if self.kind == "RayJob" else None

    @cached_property
    def service(self) -> Object | None:
        """The RayService, if the target is one."""
        return self.root if self.kind == "RayService" else None

    @property
    def job_status(self) -> Object:
        return (self.job or {}).get("status") or {}

    @cached_property
    def cluster_names(self) -> list[str]:
        """Names of its RayClusters, also of those that are gone; the newest last."""
        if self.kind == "RayCluster":
            return [self.name]
        if self.kind == "Pod":
            return [name] if (name := Pod(self.root).cluster) else []
        status = self.root.get("status") or {}
        selected = (self.root["spec"].get("clusterSelector") or {}).get("ray.io/cluster")
        told = [status.get("rayClusterName"), selected]
        told += [
            (status.get(part) or {}).get("rayClusterName") for part in ("activeServiceStatus", "pendingServiceStatus")
        ]
        return list(dict.fromkeys([*(one["metadata"]["name"] for one in self._made()), *filter(None, told)]))

    def _made(self) -> list[Object]:
        mine = [one for one in self.snapshot.of_kind("RayCluster") if self._owns(one) or self._is_origin(one)]
        return sorted(mine, key=lambda one: str(one["metadata"].get("creationTimestamp")))

    def _owns(self, thing: Object) -> bool:
        refs = thing["metadata"].get("ownerReferences") or ()
        return any((ref.get("kind"), ref.get("name")) == (self.kind, self.name) for ref in refs)

    def _is_origin(self, thing: Object) -> bool:
        return (thing["metadata"].get("labels") or {}).get(ORIGIN) == self.name

    @cached_property
    def clusters(self) -> list[RayCluster]:
        found = {one["metadata"]["name"]: RayCluster(one) for one in self.snapshot.of_kind("RayCluster")}
        return [found[name] for name in self.cluster_names if name in found]

    @cached_property
    def pods(self) -> list[Pod]:
        """The Pods of its RayClusters, and those of its submitter."""
        every = [Pod(one) for one in self.snapshot.of_kind("Pod")]
        if self.kind == "Pod":
            return [
                pod for pod in every if pod.name == self.name or (pod.is_head and pod.cluster in self.cluster_names)
            ]
        return [pod for pod in every if pod.cluster in self.cluster_names or self._submits(pod)]

    def _submits(self, pod: Pod) -> bool:
        if not self.job:
            return False
        return self.name in (*(pod.labels.get(key) for key in JOB_LABELS), pod.owner("Job"))

    @cached_property
    def submitter_jobs(self) -> list[Object]:
        """The Kubernetes Jobs that hand the Ray job in."""
        return [
            one
            for one in self.snapshot.of_kind("Job")
            if self._owns(one) or (self.job and one["metadata"]["name"] == self.name)
        ]

    @cached_property
    def submitters(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.cluster]

    @cached_property
    def workers(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.is_worker]

    @cached_property
    def heads(self) -> list[Pod]:
        """Head Pods, those that live last."""
        return sorted((pod for pod in self.pods if pod.is_head), key=lambda pod: (not pod.is_over, str(pod.created)))

    def head_of(self, cluster: str) -> Pod | None:
        return next((pod for pod in reversed(self.heads) if pod.cluster == cluster), None)

    def cluster_of(self, pod: Pod) -> RayCluster | None:
        return next((one for one in self.clusters if one.name == pod.cluster), None)

    def group_of(self, pod: Pod) -> Group | None:
        cluster = self.cluster_of(pod)
        return next((one for one in cluster.groups if one.name == pod.group), None) if cluster else None

    def pods_of(self, cluster: RayCluster, group: Group) -> list[Pod]:
        """Pods of a group that are there: neither over nor on their way out."""
        return [
            pod
            for pod in self.workers
            if pod.cluster == cluster.name and pod.group == group.name and not pod.is_over and not pod.is_leaving
        ]

    @property
    def autoscaled(self) -> Iterator[tuple[RayCluster, Group]]:
        """Each group of workers in which an autoscaler decides how many there are."""
        for cluster in self.clusters:
            if cluster.is_autoscaling:
                yield from ((cluster, group) for group in cluster.groups)

    @property
    def namespace(self) -> str:
        return self.root["metadata"].get("namespace") or ""

    # ---- time --------------------------------------------------------------------------------------------------------

    def since(self, at: datetime | None) -> float:
        """Seconds from a moment until now."""
        return seconds(at, self.now)

    def age(self, pod: Pod) -> float:
        return self.since(pod.created)

    # ---- events ------------------------------------------------------------------------------------------------------

    @cached_property
    def events(self) -> list[Event]:
        """Events of the target and its parts, also of Pods that are gone, and of Kubernetes nodes; oldest first."""
        found = [event for event in map(Event, self.snapshot.of_kind("Event")) if self._is_mine(event)]
        return sorted(found, key=lambda event: (str(event.last), str(event.first)))

    def _is_mine(self, event: Event) -> bool:
        if event.kind in ("RayCluster", "RayJob", "RayService"):
            return event.name in self.cluster_names or (event.kind, event.name) == (self.kind, self.name)
        if event.kind == "Pod":
            return event.name in self._pod_names or (
                self.kind != "Pod" and self._owner_of(event.name) in self.cluster_names
            )
        if event.kind == "Job":
            return event.name in {one["metadata"]["name"] for one in self.submitter_jobs} | {self.name}
        return True

    @cached_property
    def _pod_names(self) -> set[str]:
        return {pod.name for pod in self.pods}

    @cached_property
    def _known_clusters(self) -> list[str]:
        named = {one["metadata"]["name"] for one in self.snapshot.of_kind("RayCluster")} | set(self.cluster_names)
        return sorted(named, key=len, reverse=True)

    def _owner_of(self, pod: str) -> str:
        """To which RayCluster a Pod belongs that is gone, by its name (`PodName` in util.go)."""
        return next((name for name in self._known_clusters if pod.startswith(f"{name}-")), "")

    def is_head_name(self, pod: str) -> bool:
        """Whether a Pod, there or gone, is a head's."""
        if any(one.name == pod for one in self.heads):
            return True
        owner = self._owner_of(pod)
        rest = pod.removeprefix(f"{owner}-")
        return bool(owner) and (rest == "head" or (rest.startswith("head-") and "-" not in rest.removeprefix("head-")))

    def events_of(self, *reasons: str, kind: str = "", name: str = "") -> list[Event]:
        """Events with one of these reasons; of one kind of object, or one object, if that is said."""
        return [
            event
            for event in self.events
            if (not reasons or event.reason in reasons) and kind in ("", event.kind) and name in ("", event.name)
        ]

    # ---- texts -------------------------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> texts.RayStatus | None:
        """What `ray status` says; None if that is not known."""
        return texts.ray_status(self.snapshot.texts.get("ray_status", ""))

    @cached_property
    def memory(self) -> texts.RayMemory | None:
        return texts.ray_memory(self.snapshot.texts.get("ray_memory", ""))

    @cached_property
    def actors(self) -> list[texts.Actor] | None:
        return texts.ray_actors(self.snapshot.texts.get("ray_list_actors", ""))

    @cached_property
    def top(self) -> dict[tuple[str, str], tuple[float, float]]:
        return texts.top(self.snapshot.texts.get("top", ""))

    def cpu_share(self, pod: Pod, container: Container) -> float | None:
        """How much of its CPU limit a container uses; None if that is not known."""
        used, limit = self.top.get((pod.name, container.name)), container.limit("cpu")
        return used[0] / limit if used and limit else None

    @cached_property
    def logs(self) -> list[Log]:
        """Logs of its Pods, also of those that are gone, and of Pods that are no Ray node of another cluster."""
        found = []
        for key, text in self.snapshot.logs.items():
            name = key.removesuffix("(previous)").strip()
            pod, _, container = name.partition("/")
            owner = self._owner_of(pod)
            if pod in self._pod_names or owner in self.cluster_names or not owner:
                found.append(Log(pod, container, text, key.endswith("(previous)")))
        return found

    def logs_of(self, container: str = "", pod: str = "") -> list[Log]:
        return [log for log in self.logs if container in ("", log.container) and pod in ("", log.pod)]

    @property
    def autoscaler_logs(self) -> list[Log]:
        return [log for log in self.logs if log.container == AUTOSCALER]

    # ---- commands ----------------------------------------------------------------------------------------------------

    def on_head(self, command: str) -> str:
        """How a command is run in the head's Ray container."""
        head = self.heads[-1] if self.heads else None
        pod = f"{head.name} -c {head.ray.name}" if head else "HEAD -c ray-head"
        return f"kubectl exec {pod} -- {command}"

    @staticmethod
    def describe(kind: str, name: str) -> str:
        return f"kubectl describe {kind.lower()} {name}"

    # ---- what is not as it should be ---------------------------------------------------------------------------------

    @cached_property
    def troubles(self) -> list[str]:
        """What is not as it should be, a sentence each, whatever the cause; what is on its way is no trouble yet."""
        return [*self._job_troubles(), *self._pod_troubles(), *self._missing()]

    def _job_troubles(self) -> Iterator[str]:
        deployment = self.job_status.get("jobDeploymentStatus")
        if deployment in ("Failed", "ValidationFailed"):
            yield f"The RayJob is {deployment}: {self.job_status.get('message') or self.job_status.get('reason')}"
        for event in self.events:
            if event.reason.startswith("InvalidRay"):
                yield f"The operator refuses it: {event.message}"

    def _pod_troubles(self) -> Iterator[str]:
        for pod in self.pods:
            if pod.is_leaving or pod.phase == "Succeeded":
                continue
            waiting = [one for one in pod.every_container if one.waiting.get("reason") not in (None, *ON_ITS_WAY)]
            if pod.phase == "Failed":
                yield f"Pod {pod.name} has failed: {pod.status.get('reason') or 'a container ended'}"
            elif waiting:
                yield f"Pod {pod.name}: {waiting[0].name} waits ({waiting[0].waiting['reason']})"
            elif self._is_pulling(pod):
                continue
            elif not pod.is_ready and self.age(pod) > SETTLING_S and self._was_unready(pod) > SETTLING_S:
                yield f"Pod {pod.name} is not ready, after {self.age(pod):.0f} s"

    def _is_pulling(self, pod: Pod) -> bool:
        """Whether an image of it is being pulled, as the last that the kubelet says; a big one takes minutes."""
        told = self.events_of("Pulling", "Pulled", "Failed", "BackOff", "Started", kind="Pod", name=pod.name)
        is_last = bool(told) and told[-1].reason == "Pulling" and self.since(told[-1].last) < PULL_S
        return pod.phase == "Pending" and is_last

    def _was_unready(self, pod: Pod) -> float:
        changed = time_of(pod.condition("Ready").get("lastTransitionTime"))
        return self.since(changed) if changed else self.age(pod)

    def _missing(self) -> Iterator[str]:
        for cluster in self.clusters:
            if cluster.is_suspended or self.kind == "Pod" or self.since(cluster.created) < SETTLING_S:
                continue
            if cluster.condition("HeadPodReady").get("reason") == "HeadPodNotFound" and not self.head_of(cluster.name):
                yield f"RayCluster {cluster.name} has no head Pod"
            ready, desired = (cluster.status.get(f"{kind}WorkerReplicas") for kind in ("ready", "desired"))
            if not self.pods and isinstance(desired, int) and (ready or 0) < desired:
                yield f"RayCluster {cluster.name}: {ready or 0} of {desired} workers are ready, by its status"
            if cluster.condition("ReplicaFailure").get("status") == "True":
                yield f"RayCluster {cluster.name}: {cluster.condition('ReplicaFailure').get('message')}"


ON_ITS_WAY = ("ContainerCreating", "PodInitializing")
__all__ = ["HEAD", "SETTLING_S", "Log", "RayCluster", "Scene"]

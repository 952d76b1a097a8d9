"""What a RayCluster becomes: whether KubeRay takes it, what each `ray start` is told, what the autoscaler counts.

Sources: KubeRay 1.6.2, `controllers/ray/utils/validation.go` and `controllers/ray/common/pod.go`; Ray 2.60.0,
`ray/autoscaler/_private/kuberay/autoscaling_config.py`. Each rule names the function that it follows.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from helpers.model import quantity
from helpers.model.findings import ERROR, NOTE, WARNING, Finding
from helpers.model.releases import PINNED, Releases

HEAD = "headgroup"  # what KubeRay, and Ray's autoscaler, call the head's group
MAX_NAME = 53  # of a RayCluster: MaxRayClusterNameLength in constant.go
MAX_REPLICAS = 2**31 - 1  # the CRD's default of maxReplicas
SPECS = {
    "RayCluster": "spec",
    "RayJob": "spec.rayClusterSpec",
    "RayService": "spec.rayClusterConfig",
    "RayCronJob": "spec.jobTemplate.rayClusterSpec",
}
# how many letters a name may have: MaxRay…NameLength in constant.go. A RayCronJob's is that of the RayJobs that it
# makes, less "-" and five letters (constructRayJob in raycronjob_controller.go)
MAX_NAMES = {"RayCluster": MAX_NAME, "RayJob": 47, "RayService": 47, "RayCronJob": 41}
SUFFIX = "-xxxxx"  # stands for what is put behind a name to make one of its own
MAX_LABEL = 63
V2 = "RAY_enable_autoscaler_v2"
DIGITS = re.compile(r"\d{1,18}")
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
GENERIC_VERSION = re.compile(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?")
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_NAME = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MIG = re.compile(r"nvidia\.com/mig-\d+g\.\d+gb$")
ACCELERATORS = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}
DEVICE = re.compile(r"gpu|/mig-", re.IGNORECASE)
POD_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
NAMED_FOR_RAY = re.compile(r"(^|[/_.-])ray(project)?([/_.:-]|$)")  # such as rayproject/ray:…, team/my-ray:…
RAY_NAME = re.compile(r"ray(-(head|worker|node|container))?")
SLOW_STORAGE = "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE"
REQUIRE_SHM = 10**10  # bytes: REQUIRE_SHM_SIZE_THRESHOLD of ray_constants.py


class NotCounted(ValueError):
    """The autoscaler cannot tell what a group has, and then plans for no group at all; the text says why."""


@dataclass(frozen=True)
class Group:
    """The head's group, or one group of workers, that the API server has taken.

    Attributes:
        spec: as it stands in the manifest.
        path: where that is.
    """

    spec: Mapping[str, Any]
    path: str
    is_head: bool = False

    @property
    def name(self) -> str:
        return HEAD if self.is_head else self.spec["groupName"]

    @property
    def params(self) -> dict[str, str]:
        return dict(self.spec.get("rayStartParams") or {})

    @property
    def resources(self) -> dict[str, str]:
        """The group's own `resources`, which are Ray's and not the container's."""
        return dict(self.spec.get("resources") or {})

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.spec.get("labels") or {})

    @property
    def pod(self) -> Mapping[str, Any]:
        """The Pod's spec, as it stands in the manifest."""
        return self.spec["template"].get("spec") or {}

    @property
    def container(self) -> Mapping[str, Any]:
        """The first one, which is Ray's to KubeRay (`RayContainerIndex` in constant.go)."""
        return self.pod["containers"][0]

    @property
    def container_path(self) -> str:
        return f"{self.path}.template.spec.containers[0]"

    @property
    def limits(self) -> dict[str, Any]:
        return dict((self.container.get("resources") or {}).get("limits") or {})

    @property
    def requests(self) -> dict[str, Any]:
        """What the container asks Kubernetes for: a request that is not written is as the limit (Kubernetes)."""
        return self.limits | dict((self.container.get("resources") or {}).get("requests") or {})

    @property
    def environment(self) -> dict[str, str]:
        return {one["name"]: one.get("value", "") for one in self.container.get("env") or ()}

    @property
    def shm_bytes(self) -> int | None:
        """The size of /dev/shm, where Ray keeps objects; None if nobody limits it, or Ray is to keep them elsewhere.

        KubeRay mounts one as big as the memory limit, or request (`addEmptyDir` and `findMemoryReqOrLimit` in pod.go),
        unless there is a mount already.
        """
        mounts = self.container.get("volumeMounts") or ()
        mounted = next((one.get("name") for one in mounts if one.get("mountPath") == "/dev/shm"), None)
        if "plasma-directory" in self.params:
            return None
        if mounted is not None:
            volume = next((one for one in self.pod.get("volumes") or () if one.get("name") == mounted), {})
            size = (volume.get("emptyDir") or {}).get("sizeLimit")
        else:
            size = self.limits.get("memory", self.requests.get("memory"))
        return None if size is None else quantity.whole(size)

    @property
    def bounds(self) -> tuple[int, int]:
        """minReplicas and maxReplicas, with the defaults of the CRD."""
        least, most = self.spec.get("minReplicas"), self.spec.get("maxReplicas")
        return 0 if least is None else least, MAX_REPLICAS if most is None else most

    @property
    def hosts(self) -> int:
        hosts = self.spec.get("numOfHosts")
        return 1 if hosts is None else hosts

    @property
    def desired_pods(self) -> int:
        """How many Pods the operator keeps: `GetWorkerGroupDesiredReplicas` in util.go."""
        if self.is_head:
            return 1
        if self.spec.get("suspend"):
            return 0
        (least, most), wanted = self.bounds, self.spec.get("replicas") or 0
        # in the operator's order, which is felt only where the bounds contradict each other
        return (least if wanted < least else min(wanted, most)) * self.hosts

    @property
    def offers_cpu(self) -> bool:
        """Whether a task that asks for a CPU may run there; where KubeRay says nothing, Ray counts the machine's."""
        return self.start.get("num-cpus") != "0"

    @property
    def max_pods(self) -> int:
        """How many Pods the autoscaler may ask for."""
        return 1 if self.is_head else self.bounds[1] * self.hosts

    @cached_property
    def start(self) -> dict[str, str]:
        """What KubeRay tells `ray start` of what this group offers: num-cpus, num-gpus, memory, resources, labels.

        What is not in it Ray finds out by itself. `generateRayStartCommand`, `updateRayStartParamsResources` and
        `updateRayStartParamsLabels` in pod.go.
        """
        told = self.params | _from_group(self.resources)
        cpu = next((q for q in (self.limits.get("cpu"), self.requests.get("cpu")) if not _is_zero(q)), None)
        if "num-cpus" not in told and cpu is not None:
            told["num-cpus"] = str(quantity.whole(cpu))
        if "memory" not in told and not _is_zero(self.limits.get("memory")):
            told["memory"] = str(quantity.whole(self.limits["memory"]))
        _add_accelerators(told, self.limits)
        if self.labels:
            told["labels"] = ",".join(f"{key}={self.labels[key]}" for key in sorted(self.labels))
        return {key: told[key] for key in ("num-cpus", "num-gpus", "memory", "resources", "labels") if key in told}

    @cached_property
    def amounts(self) -> dict[str, int]:
        """What KubeRay tells Ray of CPU, GPU and memory (bytes); the rest of `offers` aside.

        Raises:
            ValueError: `ray start` refuses what it is told; the text says why, in one sentence.
        """
        found = {}
        for option, name in (("num-cpus", "CPU"), ("num-gpus", "GPU"), ("memory", "memory")):
            if option in self.start:
                if not DIGITS.fullmatch(self.start[option]):
                    raise ValueError(f"`ray start` wants a whole number for --{option}, not {self.start[option]!r:.60}")
                found[name] = int(self.start[option])
        return found

    @cached_property
    def offers(self) -> dict[str, float]:
        """What Ray counts on a Ray node of this group, as far as KubeRay says it. Amounts; memory in bytes.

        Raises:
            ValueError: `ray start` refuses what it is told; the text says why, in one sentence.
        """
        return self.amounts | custom_resources(self.start.get("resources"))

    @cached_property
    def counted(self) -> dict[str, int]:
        """What the autoscaler of the pinned Ray takes a Pod of this group to have: `counted_by`."""
        return self.counted_by(PINNED)

    def counted_by(self, releases: Releases) -> dict[str, int]:
        """What a Ray's autoscaler takes a Pod of this group to have: `_get_ray_resources_from_group_spec`.

        Raises:
            NotCounted: it cannot tell.
        """
        if releases.autoscaler_needs_params and "rayStartParams" not in self.spec:
            said = f"the autoscaler of Ray {_dotted(releases.ray)} ends with a KeyError"
            raise NotCounted(f"{said}: the group {self.name} has no rayStartParams")
        own = self.resources if releases.autoscaler_reads_group_resources else {}
        requests = (self.container.get("resources") or {}).get("requests") or {}
        written = [self.limits, requests if releases.autoscaler_reads_requests else {}]  # in the order of its looks
        found = {
            "CPU": self._counted_one("CPU", "num-cpus", "cpu", own, written),
            "GPU": self._counted_gpus(own, written),
            "memory": self._counted_one("memory", "memory", "memory", own, written),
        }
        if found["CPU"] is None:
            raise NotCounted(f"the autoscaler finds no CPU in the group {self.name}, and then plans for none at all")
        return {name: amount for name, amount in found.items() if amount is not None} | self._counted_custom(own)

    def _counted_one(
        self, resource: str, option: str, key: str, own: Mapping[str, str], written: list[Mapping[str, Any]]
    ) -> int | None:
        if (told := self._told(resource, option, own)) is not None:
            return told
        there = next((part[key] for part in written if key in part), None)
        return None if there is None else _counted(there)

    def _counted_gpus(self, own: Mapping[str, str], written: list[Mapping[str, Any]]) -> int | None:
        if (told := self._told("GPU", "num-gpus", own)) is not None:
            return told
        found = [_counted(amount) for part in written for key, amount in part.items() if key.endswith("gpu")]
        return next((count for count in found if count > 0), None)

    def _told(self, resource: str, option: str, own: Mapping[str, str]) -> int | None:
        """What the group's own resources, or rayStartParams, say; the latter are read by `int`."""
        if resource in own:
            return _counted(own[resource])
        if option not in self.params:
            return None
        try:
            return int(self.params[option])
        except ValueError:
            said = f"the autoscaler wants a whole number for {option} of the group {self.name}"
            raise NotCounted(f"{said}, not {self.params[option]!r:.60}") from None

    def _counted_custom(self, own: Mapping[str, str]) -> dict[str, int]:
        if own:
            known = {"CPU", "GPU", "TPU", "memory"}
            return {name: _counted(amount) for name, amount in own.items() if name not in known}
        if "resources" not in self.params:
            return {}
        try:
            # the reading of the autoscaler: one pair of quotes off, and no backslashes
            read = json.loads(self.params["resources"][1:-1].replace("\\", ""))
        except ValueError:
            read = None
        if not isinstance(read, dict):
            raise NotCounted(f"the autoscaler cannot read the resources {self.params['resources']!r:.80}")
        wrong = [name for name, amount in read.items() if not isinstance(amount, int)]
        if wrong:
            raise NotCounted(f"the autoscaler wants a whole number for {wrong[0]!r:.60}, not {read[wrong[0]]!r:.60}")
        return read


@dataclass(frozen=True)
class Cluster:
    """A RayCluster, or the one inside a RayJob or a RayService, that the API server has taken.

    Attributes:
        document: the whole document.
        spec: of the cluster.
        path: where that is.
        groups: the head's first.
    """

    document: Mapping[str, Any]
    spec: Mapping[str, Any]
    path: str
    groups: tuple[Group, ...] = field(default=())

    @property
    def head(self) -> Group:
        return self.groups[0]

    @property
    def workers(self) -> tuple[Group, ...]:
        return self.groups[1:]

    @property
    def has_containers(self) -> bool:
        """Whether each group has a container, without which there is little to say."""
        return all(group.pod.get("containers") for group in self.groups)

    @property
    def is_autoscaling(self) -> bool:
        return self.spec.get("enableInTreeAutoscaling") is True

    @property
    def is_suspended(self) -> bool:
        """Whether the operator keeps no Pod of it: it says so itself, or the RayJob that makes it does."""
        around = part_of(self.document, self.path.rpartition(".")[0])
        return any((one or {}).get("suspend") is True for one in (self.spec, around))

    @property
    def options(self) -> Mapping[str, Any]:
        return self.spec.get("autoscalerOptions") or {}

    @property
    def name(self) -> str:
        """The RayCluster's; of one that a RayJob, a RayService or a RayCronJob makes, only the beginning is known."""
        metadata = self.document.get("metadata") or {}
        name = metadata.get("name") or f"{metadata.get('generateName', '')}{SUFFIX[1:]}"
        return name + {"RayCluster": "", "RayCronJob": 2 * SUFFIX}.get(self.document.get("kind", "RayCluster"), SUFFIX)

    @property
    def annotations(self) -> Mapping[str, str]:
        """The cluster's: those of the RayJob or RayService that makes it, too; a RayCronJob hands none down."""
        notes = {} if self.document.get("kind") == "RayCronJob" else self.document["metadata"].get("annotations")
        return notes or {}

    @property
    def has_fault_tolerance(self) -> bool:
        """Whether the GCS keeps its state outside: `IsGCSFaultToleranceEnabled` in util.go."""
        old = self.annotations.get("ray.io/ft-enabled", "").lower() == "true"
        return old or self.spec.get("gcsFaultToleranceOptions") is not None

    @property
    def writes_v2(self) -> bool:
        """Whether version v2 is written, which is what KubeRay looks at; Ray 2.60 runs v2 all the same."""
        return self.options.get("version") == "v2"

    def group(self, name: str) -> Group | None:
        return next((one for one in self.groups if one.name == name), None)

    def counted_by(self, releases: Releases = PINNED) -> dict[str, dict[str, int]] | None:
        """What a Ray's autoscaler takes a Pod of each group to have; None if it cannot tell, and plans for none."""
        try:
            return {group.name: group.counted_by(releases) for group in self.groups}
        except NotCounted:
            return None

    def idle_timeout_s(self, group: Group) -> float:
        """Seconds for which a Ray node of this group may be idle: 60 by default (autoscaling_config.py)."""
        written = (group.spec.get("idleTimeoutSeconds"), self.options.get("idleTimeoutSeconds"))
        return next((seconds for seconds in written if seconds is not None), 60)


def part_of(document: Mapping[str, Any], path: str) -> Any:
    """What stands at a path of names with dots between them; None if there is nothing, or no mapping on the way."""
    found: Any = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def cluster_of(document: Mapping[str, Any]) -> Cluster | None:
    """The cluster in a document of KubeRay to which the API server has said nothing; None if there is none in it.

    Raises:
        ValueError: a quantity is none.
    """
    path = SPECS.get(document.get("kind", ""))
    spec = part_of(document, path) if path else None
    if not spec:
        return None
    groups = [Group(spec["headGroupSpec"], f"{path}.headGroupSpec", is_head=True)]
    groups += [
        Group(one, f"{path}.workerGroupSpecs[{number}]")
        for number, one in enumerate(spec.get("workerGroupSpecs") or ())
    ]
    return Cluster(document, spec, path, tuple(groups))


@dataclass(frozen=True)
class Flag:
    """One option of `ray start`.

    Attributes:
        name: without its dashes.
        value: None if it stands alone.
        origin: where it comes from: a path in the manifest, or what of KubeRay sets it.
    """

    name: str
    value: str | None
    origin: str

    def __str__(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


KUBERAY = "KubeRay's default"


def start_flags(cluster: Cluster, group: Group, namespace: str = "default") -> list[Flag]:
    """The options of a group's `ray start`, in KubeRay's order.

    `setMissingRayStartParams`, `configureGCSFaultTolerance`, `generateRayStartCommand` and `convertParamMap` in pod.go.
    """
    told = {key: (value, f"{group.path}.rayStartParams.{key}") for key, value in group.params.items()}
    for key, value in group.start.items():
        told[key] = (value, _origin(group, key))
    options = cluster.spec.get("gcsFaultToleranceOptions") or {}
    if group.is_head:
        for key, name in (("redisUsername", "redis-username"), ("redisPassword", "redis-password")):
            if options.get(key) is not None:
                told[name] = (f"${name.upper().replace('-', '_')}", f"{cluster.path}.gcsFaultToleranceOptions.{key}")
        told.setdefault("dashboard-host", ("0.0.0.0", KUBERAY))
        if cluster.is_autoscaling:
            told["no-monitor"] = ("true", f"{cluster.path}.enableInTreeAutoscaling")
    else:
        told.setdefault("address", (gcs_address(cluster, namespace), "the head's Service"))
    told.setdefault("metrics-export-port", ("8080", KUBERAY))
    told.setdefault("dashboard-agent-listen-port", ("52365", KUBERAY))
    told["block"] = ("true", KUBERAY)
    flags = []
    for key in sorted(told):
        value, origin = told[key]
        if value.lower() not in ("true", "false") or key in ("log-color", "include-dashboard"):
            flags.append(Flag(key, value, origin))
        elif value.lower() == "true":
            flags.append(Flag(key, None, origin))
    return flags


def gcs_address(cluster: Cluster, namespace: str = "default") -> str:
    """Where workers find the head: `GenerateFQDNServiceName` in util.go, `GetHeadPort` in pod.go."""
    own = ((cluster.head.spec.get("headService") or {}).get("metadata") or {}).get("name")
    service = own or f"{cluster.name}-head-svc"
    return f"{service}.{namespace}.svc.cluster.local:{cluster.head.params.get('port', '6379')}"


def start_command(cluster: Cluster, group: Group, namespace: str = "default") -> str:
    """The `ray start` of a group's Pods, its options in KubeRay's order (`convertParamMap`), each with one blank."""
    first = "ray start --head" if group.is_head else "ray start"
    return " ".join([first, *map(str, start_flags(cluster, group, namespace))])


def container_args(cluster: Cluster, group: Group, namespace: str = "default") -> str | None:
    """What KubeRay gives bash in a group's Ray container, to the letter: `BuildPod` in pod.go.

    A command of the manifest's own comes before it.

    Returns:
        None if the container's command is left as the manifest has it, because it has a `ray start` of its own, or the
        annotation ray.io/overwrite-container-cmd says so.
    """
    words = [*(group.container.get("command") or ()), *(group.container.get("args") or ())]
    own = "".join(f" {word} " for word in words)
    notes = ((group.spec["template"].get("metadata") or {}).get("annotations") or {}) | cluster.annotations
    if "ray start" in own or str(notes.get("ray.io/overwrite-container-cmd")).lower() == "true":
        return None
    flags = "".join(f" {flag} " for flag in start_flags(cluster, group, namespace))
    made = f"ulimit -n 65536; ray start {'--head ' if group.is_head else ''}{flags}"
    return f"{own} && {made}" if own else made


def _origin(group: Group, option: str) -> str:
    """What of a group's spec says this option: `Group.start`."""
    resources = f"{group.container_path}.resources"
    if option == "labels":
        return f"{group.path}.labels"
    if group.resources and option in _from_group(group.resources):
        return f"{group.path}.resources"
    if option in group.params and (option != "resources" or group.params[option] == group.start[option]):
        return f"{group.path}.rayStartParams.{option}"
    match option:
        case "num-cpus":
            return f"{resources}.{'requests' if _is_zero(group.limits.get('cpu')) else 'limits'}.cpu"
        case "memory":
            return f"{resources}.limits.memory"
        case "num-gpus":
            key = next(key for key in sorted(group.limits) if is_gpu(key) and not _is_zero(group.limits[key]))
            return f"{resources}.limits.{key}"
    key = next(key for key in sorted(group.limits) if key in ACCELERATORS and not _is_zero(group.limits[key]))
    return f"{resources}.limits.{key}"


# ---- what the operator refuses -------------------------------------------------------------------------------------


def refusals(cluster: Cluster) -> list[Finding]:
    """What the operator refuses the cluster for (an event on it says so, and nothing is made); all errors.

    `ValidateRayClusterMetadata` and `ValidateRayClusterSpec`, as far as they are about the cluster itself.
    """
    found = list(name_refusals(cluster.document))
    if not cluster.has_containers:
        said = "there is no container"
        bare = [group for group in cluster.groups if not group.pod.get("containers")]
        return found + [
            Finding("missing-field", f"{group.path}.template.spec.containers", ERROR, said) for group in bare
        ]
    found += [*_gcs(cluster), *_autoscaler(cluster), *_auth(cluster)]
    kind = (cluster.spec.get("upgradeStrategy") or {}).get("type")
    if kind is not None and cluster.document["kind"] != "RayCluster":
        said = f"the RayCluster that a {cluster.document['kind']} makes may have none"
        found.append(Finding("upgrade-strategy-not-allowed", f"{cluster.path}.upgradeStrategy.type", ERROR, said))
    for group in cluster.groups:
        found += _group(cluster, group)
    return found


def name_refusals(document: Mapping[str, Any]) -> Iterator[Finding]:
    """What the operator has against a document's name: `ValidateRayClusterMetadata` and those of the other kinds."""
    metadata, most = document["metadata"], MAX_NAMES[document["kind"]]
    path = "metadata.name" if metadata.get("name") else "metadata.generateName"
    name = metadata.get("name") or f"{metadata.get('generateName', '')}{SUFFIX[1:]}"
    if len(name) > most:
        yield Finding("bad-name", path, ERROR, f"it has {len(name)} letters, and may have {most}")
    elif not DNS_1035.fullmatch(name):
        said = "it begins with a small letter, and has only small letters, digits and '-' in it"
        yield Finding("bad-name", path, ERROR, f"{name!r:.80} is no name for a Service: {said}")


def _group(cluster: Cluster, group: Group) -> Iterator[Finding]:
    params = group.params
    if group.resources and any(params.get(key) for key in ("num-cpus", "num-gpus", "memory", "resources")):
        said = "the group has resources, and rayStartParams speaks of them too: one of the two"
        yield Finding("resources-set-twice", f"{group.path}.resources", ERROR, said)
    if "labels" in params:
        said = "labels belong to the group itself, as `labels`, not to rayStartParams"
        yield Finding("labels-in-ray-start-params", f"{group.path}.rayStartParams.labels", ERROR, said)
    for key, value in group.labels.items():
        if not _is_label(key, value):
            yield Finding("bad-label", f"{group.path}.labels.{key}", ERROR, f"{key}={value} is no Kubernetes label")
    if not group.is_head:
        yield from _bounds(group)
        yield from _idle_timeout(cluster, group)
    if cluster.is_autoscaling:
        policy = group.pod.get("restartPolicy")
        if cluster.writes_v2 and policy not in (None, "", "Never"):
            said = f"it is {policy}, and with version v2 it must be Never, or not written"
            yield Finding("restart-policy-not-never", f"{group.path}.template.spec.restartPolicy", ERROR, said)
        if group.spec.get("suspend"):
            said = "a group cannot be suspended while autoscaling is on"
            yield Finding("suspended-group-with-autoscaler", f"{group.path}.suspend", ERROR, said)


def _bounds(group: Group) -> Iterator[Finding]:
    for name in ("minReplicas", "maxReplicas"):
        if (group.spec.get(name) or 0) < 0:
            yield Finding("negative-bound", f"{group.path}.{name}", ERROR, f"it is {group.spec[name]}, below 0")
    least, most = group.bounds
    if 0 <= most < least:
        said = f"it is {least}, and maxReplicas is {most}, which is less"
        yield Finding("min-above-max", f"{group.path}.minReplicas", ERROR, said)


def _idle_timeout(cluster: Cluster, group: Group) -> Iterator[Finding]:
    seconds, path = group.spec.get("idleTimeoutSeconds"), f"{group.path}.idleTimeoutSeconds"
    if seconds is None:
        return
    if seconds < 0:
        yield Finding("negative-bound", path, ERROR, f"it is {seconds}, below 0")
    elif not cluster.writes_v2 and cluster.head.environment.get(V2) not in ("1", "true"):
        said = "a group has an idle timeout of its own only where autoscalerOptions.version is written, and is v2"
        yield Finding("group-idle-timeout-needs-v2", path, ERROR, said)


def _autoscaler(cluster: Cluster) -> Iterator[Finding]:
    variable, path = cluster.head.environment.get(V2), f"{cluster.path}.autoscalerOptions"
    if cluster.is_autoscaling and "version" in cluster.options and variable is not None:
        said = f"the head's variable {V2} says it too: one of the two"
        yield Finding("version-set-twice", f"{path}.version", ERROR, said)
    if not cluster.is_autoscaling and variable in ("1", "true"):
        said = f"the head has {V2}={variable}, and autoscaling is not on"
        yield Finding("autoscaler-variable-without-autoscaling", f"{cluster.head.container_path}.env", ERROR, said)
    if (cluster.options.get("idleTimeoutSeconds") or 0) < 0:
        yield Finding("negative-bound", f"{path}.idleTimeoutSeconds", ERROR, "it is below 0")


def _gcs(cluster: Cluster) -> Iterator[Finding]:
    notes = cluster.annotations
    options, variables = cluster.spec.get("gcsFaultToleranceOptions"), cluster.head.environment
    path = f"{cluster.path}.gcsFaultToleranceOptions"
    if options is None:
        if notes.get("ray.io/ft-enabled", "").lower() != "true" and "RAY_REDIS_ADDRESS" in variables:
            said = "RAY_REDIS_ADDRESS is set, and gcsFaultToleranceOptions is not"
            yield Finding("redis-env-without-ft", f"{cluster.head.container_path}.env", ERROR, said)
    else:
        old = [name for name in ("ray.io/ft-enabled", "ray.io/external-storage-namespace") if notes.get(name)]
        old += [name for name in ("REDIS_PASSWORD", "RAY_REDIS_ADDRESS") if name in variables]
        old += ["redis-password"] if cluster.head.params.get("redis-password") else []
        for name in old:
            yield Finding("ft-set-twice", path, ERROR, f"{name} says a part of it too: one of the two")
    if cluster.head.params.get("redis-username") or "REDIS_USERNAME" in variables:
        yield Finding("ft-set-twice", path, ERROR, "the user of Redis belongs here, as redisUsername")


def _auth(cluster: Cluster) -> Iterator[Finding]:
    options, path = cluster.spec.get("authOptions") or {}, f"{cluster.path}.authOptions"
    written, with_kubernetes = _generic_version(cluster.spec.get("rayVersion") or ""), options.get("enableK8sTokenAuth")
    if options.get("mode") == "token":
        if not written or written < (2, 52, 0):
            said = "mode token needs a rayVersion that is written, and is 2.52.0 or newer"
            yield Finding("auth-needs-newer-ray", path, ERROR, said)
        elif with_kubernetes and written < (2, 55, 0):
            said = "enableK8sTokenAuth needs a rayVersion of 2.55.0 or newer"
            yield Finding("auth-needs-newer-ray", path, ERROR, said)
        if with_kubernetes and options.get("secretName"):
            said = "enableK8sTokenAuth makes its own token, and secretName names another"
            yield Finding("k8s-auth-not-possible", f"{path}.secretName", ERROR, said)
    elif with_kubernetes:
        yield Finding("k8s-auth-not-possible", f"{path}.enableK8sTokenAuth", ERROR, "it needs `mode: token`")
    if with_kubernetes and cluster.document["kind"] != "RayCluster":
        said = f"a {cluster.document['kind']} cannot have it yet"
        yield Finding("k8s-auth-not-possible", f"{path}.enableK8sTokenAuth", ERROR, said)


# ---- what Ray makes of it ------------------------------------------------------------------------------------------


def misreadings(cluster: Cluster, releases: Releases = PINNED) -> list[Finding]:
    """Where `ray start` or the autoscaler cannot do with what a group says, or does something else with it.

    Args:
        cluster: one that the API server has taken.
        releases: what its images run, and the operator.
    """
    found = [*_group_names(cluster), *_cluster_wide(cluster), *_sidecar(cluster), *_images(cluster)]
    for group in cluster.groups:
        found += [*_first_container(cluster, group), *_options(group), *_params(cluster, group, releases)]
        found += [*_custom_resources(cluster, group), *_gpus(cluster, group), *_kept(cluster, group, releases)]
        found += _object_store(group)
        if cluster.is_autoscaling:
            found += _autoscaled(cluster, group, releases)
    return found


def _cluster_wide(cluster: Cluster) -> Iterator[Finding]:
    grows = [
        group
        for group in cluster.workers
        if len(set(group.bounds)) > 1 and {"minReplicas", "maxReplicas"} & {*group.spec}
    ]
    if grows and not cluster.is_autoscaling:
        said = "it is not on, so minReplicas and maxReplicas of the groups only hold `replicas` within them"
        yield Finding("autoscaling-not-enabled", f"{cluster.path}.enableInTreeAutoscaling", WARNING, said)
    if cluster.is_autoscaling and cluster.head.offers_cpu:
        said = "the head offers CPUs, so tasks run on it"
        yield Finding("head-runs-tasks", f"{cluster.head.path}.rayStartParams", NOTE, said)
    if cluster.is_autoscaling and not cluster.options.get("version"):
        said = "it is not written: Ray decides which autoscaler runs, and KubeRay does not know which"
        yield Finding("version-not-written", f"{cluster.path}.autoscalerOptions.version", NOTE, said)
    seen: set[str] = set()
    for group in cluster.workers:
        if group.name in seen:
            yield Finding("duplicate-group-name", group.path, WARNING, f"there is a group {group.name} already")
        seen.add(group.name)


def _group_names(cluster: Cluster) -> Iterator[Finding]:
    """A group's name is the value of a label and a part of its Pods' names: DefaultWorkerPodTemplate, PodName."""
    for group in cluster.workers:
        pod = f"{'x' * len(cluster.name)}-{group.name}".lower()[:50]  # of the cluster's own name others speak
        if len(group.name) > MAX_LABEL or not LABEL_NAME.fullmatch(group.name):
            said = f"{group.name!r:.80} is no value for a label, and each Pod of the group has one with it"
        elif not POD_NAME.fullmatch(f"{pod}-worker-xxxxx"):
            said = f"{group.name!r:.80} stands in the names of Pods, which have letters, digits and '-' in them"
        else:
            continue
        yield Finding("bad-name", f"{group.path}.groupName", ERROR, said)


def _images(cluster: Cluster) -> Iterator[Finding]:
    named = {f"{group.container_path}.image": group.container.get("image", "") for group in cluster.groups}
    named[f"{cluster.path}.autoscalerOptions.image"] = cluster.options.get("image") or ""
    found = {path: ray_in(image) for path, image in named.items()}
    known = [one for one in found.values() if one]
    written = _generic_version(cluster.spec.get("rayVersion") or "")
    # what most say is taken for right; the head's, if no more say otherwise
    right = written or max(known, key=known.count, default=None)
    for path, version in found.items():
        if version and version != right:
            said = f"it is of Ray {_dotted(version)}, and the cluster of {_dotted(right)}"
            yield Finding("images-differ", path, WARNING, said)
    if written and known and written not in known:
        said = f"it is {_dotted(written)}, and no image is of that Ray"
        yield Finding("images-differ", f"{cluster.path}.rayVersion", WARNING, said)


def _sidecar(cluster: Cluster) -> Iterator[Finding]:
    """The autoscaler's own container: BuildAutoscalerContainer and mergeAutoscalerOverrides in pod.go."""
    given = _amounts(cluster.options.get("resources") or {})
    for group in cluster.workers if cluster.is_autoscaling else ():
        worker = _amounts(group.container.get("resources") or {})
        both = given.keys() & worker.keys()
        if both and all(given[name] >= worker[name] for name in both):
            said = f"it sizes the autoscaler's container, in the head's Pod, as big as a worker of {group.name}"
            path = f"{cluster.path}.autoscalerOptions.resources"
            yield Finding("autoscaler-sidecar-oversized", path, WARNING, said)
            return


def _amounts(resources: Mapping[str, Any]) -> dict[str, Fraction]:
    """CPU and memory of a container: of limit and request the greater."""
    found: dict[str, Fraction] = {}
    for part in ("limits", "requests"):
        for name, amount in (resources.get(part) or {}).items():
            if name in ("cpu", "memory"):
                found[name] = max(found.get(name, Fraction(0)), quantity.parse(amount))
    return found


def _object_store(group: Group) -> Iterator[Finding]:
    """`determine_plasma_store_config` of Ray's services.py."""
    written, there = group.params.get("object-store-memory", ""), group.shm_bytes
    if there is None or not DIGITS.fullmatch(written) or int(written) <= there:
        return
    refused = int(written) > REQUIRE_SHM and not group.environment.get(SLOW_STORAGE)
    said = f"it is {int(written):,} bytes, and /dev/shm has {there:,}: "
    said += "Ray does not start" if refused else "Ray keeps its objects on the disk below /tmp, which is slow"
    path = f"{group.path}.rayStartParams.object-store-memory"
    yield Finding("object-store-exceeds-shm", path, ERROR if refused else WARNING, said)


def _first_container(cluster: Cluster, group: Group) -> Iterator[Finding]:
    """Which container is meant for Ray: by its image or name; or it has the image that is Ray's in another group."""
    first, *others = group.pod["containers"]
    images = {one.container.get("image") for one in cluster.groups if one is not group} - {None}
    if _is_of_ray(first) or first.get("image") in images:
        return
    if any(_is_of_ray(one) or one.get("image") in images for one in others):
        said = "the first container is Ray's to KubeRay, and here it is another"
        yield Finding("ray-container-not-first", f"{group.path}.template.spec.containers", ERROR, said)


def _options(group: Group) -> Iterator[Finding]:
    for option in ("num-cpus", "num-gpus", "memory", "object-store-memory"):
        written = group.params.get(option)
        if written is not None and not DIGITS.fullmatch(written):
            said = f"`ray start` wants a whole number, and this is {written!r:.60}"
            yield Finding("quantity-in-ray-start-params", f"{group.path}.rayStartParams.{option}", ERROR, said)


def _params(cluster: Cluster, group: Group, releases: Releases) -> Iterator[Finding]:
    if "rayStartParams" in group.spec:
        return
    if cluster.is_autoscaling and releases.autoscaler_needs_params:
        said = f"it has no rayStartParams, and the autoscaler of Ray {_dotted(releases.ray)} ends with a KeyError"
        yield Finding("missing-ray-start-params", group.path, ERROR, said)
    else:
        said = "it has no rayStartParams, without which the autoscaler of Ray before 2.47 does not run"
        yield Finding("missing-ray-start-params", group.path, NOTE, said)


def _custom_resources(cluster: Cluster, group: Group) -> Iterator[Finding]:
    written, path = group.params.get("resources"), f"{group.path}.rayStartParams.resources"
    if group.resources:
        for name, amount in group.resources.items():
            if not quantity.is_one(amount):
                said = f"{name} is {amount!r:.60}, which is no number: KubeRay leaves it out, and the autoscaler ends"
                yield Finding("custom-resource-not-integer", f"{group.path}.resources", ERROR, said)
        for name, amount in custom_resources(_from_group(group.resources).get("resources")).items():
            if not isinstance(amount, int):
                said = f"{name} is {amount}, and what a Ray node offers is a whole number"
                yield Finding("custom-resource-not-integer", f"{group.path}.resources", ERROR, said)
        return
    if written is None:
        return
    try:
        told = custom_resources(written)
    except ValueError as error:
        yield Finding("custom-resource-quoting", path, ERROR, str(error))
        return
    wrong = [name for name, amount in told.items() if not isinstance(amount, int) or isinstance(amount, bool)]
    if wrong:
        said = f"{wrong[0]} is {told[wrong[0]]!r:.60}, and what a Ray node offers is a whole number"
        yield Finding("custom-resource-not-integer", path, ERROR, said)
        return
    try:
        _ = group._counted_custom({}) if cluster.is_autoscaling else {}
    except NotCounted as error:
        yield Finding("custom-resource-quoting", path, ERROR, str(error))


def _gpus(cluster: Cluster, group: Group) -> Iterator[Finding]:
    limits = {key: quantity.whole(amount) for key, amount in group.limits.items() if DEVICE.search(key)}
    known = [count for key, count in limits.items() if is_gpu(key) and count]
    written, path = group.params.get("num-gpus"), f"{group.path}.rayStartParams.num-gpus"
    if written is None:
        unread = [key for key, count in limits.items() if count and not key.endswith("gpu")]
        known_to_planner = group.resources.get("GPU") or any(
            count and key.endswith("gpu") for key, count in limits.items()
        )
        if cluster.is_autoscaling and unread and not known_to_planner:
            said = f"the autoscaler does not take {unread[0]} for a GPU, and num-gpus is not written"
            yield Finding("gpu-key-unknown-to-planner", f"{group.container_path}.resources.limits", ERROR, said)
    elif DIGITS.fullmatch(written):
        count = int(written)
        if not count and known:
            yield Finding("gpu-hidden", path, ERROR, "the container has a GPU, and Ray is told that there is none")
        elif count and not any(limits.values()):
            yield Finding("gpu-without-limit", path, WARNING, "Ray is told of a GPU that the container does not get")
        elif known and count > max(known):
            said = f"Ray is told of {count} GPUs, and the container gets {max(known)}"
            yield Finding("gpu-count-above-limit", path, WARNING, said)


def _kept(cluster: Cluster, group: Group, releases: Releases) -> Iterator[Finding]:
    path = f"{group.container_path}.resources"
    above = {
        name: option
        for name, option in (("cpu", "num-cpus"), ("memory", "memory"))
        if name in group.limits and quantity.parse(group.limits[name]) > quantity.parse(group.requests[name])
    }
    if above:
        counted = [name for name in above if _origin(group, above[name]) == f"{path}.limits.{name}"]
        if counted == [*above]:
            said = "Ray counts what Kubernetes does not keep"
        else:  # rayStartParams, or the group's own resources, say what Ray counts
            said = "Kubernetes does not keep the difference" + "".join(f", and Ray counts the {one}" for one in counted)
        said = f"the limit of {' and '.join(above)} is above the request: {said}"
        yield Finding("limits-differ-from-requests", path, WARNING, said)
    if (
        "memory" not in group.start
        and not _is_zero(group.requests.get("memory"))
        and releases.autoscaler_reads_requests
    ):
        who = "the autoscaler counts it" if cluster.is_autoscaling else "Kubernetes keeps it"
        said = f"memory stands only in the requests: {who}, and `ray start` is not told"
        yield Finding("memory-only-in-requests", path, WARNING, said)
    cpu = group.limits.get("cpu")
    if cpu is not None and quantity.parse(cpu).denominator != 1 and _origin_of_cpus(group) == "limits":
        said = f"it is {cpu}, and Ray counts {quantity.whole(cpu)}"
        yield Finding("cpu-rounded-up", f"{path}.limits.cpu", NOTE, said)


def _origin_of_cpus(group: Group) -> str:
    return "limits" if "num-cpus" not in group.params and "num-cpus" not in _from_group(group.resources) else ""


def _autoscaled(cluster: Cluster, group: Group, releases: Releases) -> Iterator[Finding]:
    yield from _without_cpu(group, releases)
    if not group.is_head and group.spec.get("maxReplicas") is None:
        said = f"it is not written, and then {MAX_REPLICAS}"
        yield Finding("unbounded-max-replicas", f"{group.path}.maxReplicas", WARNING, said)
    policy = group.pod.get("restartPolicy")
    if not cluster.options.get("version") and policy not in (None, "", "Never"):
        said = f"it is {policy}, and the autoscaler expects Never"
        yield Finding("restart-policy-not-never", f"{group.path}.template.spec.restartPolicy", WARNING, said)


def _without_cpu(group: Group, releases: Releases) -> Iterator[Finding]:
    """Where the autoscaler looks for CPUs: `_get_num_cpus` of autoscaling_config.py."""
    own = releases.autoscaler_reads_group_resources and "CPU" in group.resources
    if own or "num-cpus" in group.params or "cpu" in group.limits:
        return
    path = f"{group.container_path}.resources"
    if "cpu" not in group.requests:
        said = f"the autoscaler finds no CPU in the group {group.name}, and then plans for none at all"
        yield Finding("no-cpu", path, ERROR, said)
    elif not releases.autoscaler_reads_requests:
        said = f"CPUs stand only in the requests, where the autoscaler of Ray {_dotted(releases.ray)} does not look"
        yield Finding("cpu-only-in-requests", path, ERROR, said)


# ---- the small parts -----------------------------------------------------------------------------------------------


def is_gpu(key: str) -> bool:
    """Whether KubeRay takes a key of the limits for a GPU: `IsGPUResourceKey` in resources.go."""
    return key.endswith("gpu") or bool(MIG.search(key))


def ray_in(image: str) -> tuple[int, int, int] | None:
    """The version of Ray that an image names; None if it has none, or is not Ray's by name: then the tag is its own."""
    return version_in(image) if NAMED_FOR_RAY.search(image.partition("@")[0]) else None


def version_in(text: str) -> tuple[int, int, int] | None:
    """The version of Ray in a rayVersion, or in the tag of an image; None if none can be read there."""
    text = text.partition("@")[0]
    tag = text.rpartition(":")[2] if ":" in text.rpartition("/")[2] else text
    match = VERSION.match(tag) if "/" not in tag else None
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _generic_version(text: str) -> tuple[int, int, int] | None:
    """A version as KubeRay reads rayVersion (`ParseGeneric` of apimachinery): two numbers or more."""
    match = GENERIC_VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def custom_resources(written: str | None) -> dict[str, float]:
    """What is left of `--resources=…` after the shell; ValueError, with a sentence, if that is no JSON."""
    if written is None:
        return {}
    try:
        words = shlex.split(f"--resources={written}")
        read = json.loads(words[0].partition("=")[2]) if len(words) == 1 else None
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ValueError(
            f"a shell stands between rayStartParams and `ray start`, and takes quotes off: of {written!r:.80} no JSON"
            " is left"
        )
    return read


def _is_of_ray(container: Mapping[str, Any]) -> bool:
    """Whether a container is Ray's, by its image or by the name that is usual for it."""
    return _is_ray(container.get("image", "")) or bool(RAY_NAME.fullmatch(container.get("name", "")))


def _is_ray(image: str) -> bool:
    """Whether an image is Ray's by its name, such as rayproject/ray:2.60.0 or registry.example/team/ray-gpu:7."""
    return bool(re.search(r"(^|[/-])ray([-:@]|$)", image))


def _is_label(key: str, value: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    prefixed = not slash or (LABEL_PREFIX.fullmatch(prefix) and len(prefix) <= 253)
    return bool(prefixed and name and LABEL_NAME.fullmatch(name) and LABEL_NAME.fullmatch(value))


def _is_zero(amount: Any) -> bool:
    return amount is None or not quantity.parse(amount)


def _counted(amount: Any) -> int:
    try:
        return quantity.whole(amount)
    except ValueError as error:
        raise NotCounted(str(error)) from None


def _from_group(resources: Mapping[str, str]) -> dict[str, str]:
    told, custom = {}, {}
    for name, amount in resources.items():
        try:
            number = quantity.parse(amount)
        except ValueError:
            continue  # KubeRay leaves out what it cannot read
        plain = name.lower()
        option = {"cpu": "num-cpus", "memory": "memory"}.get(plain) or ("num-gpus" if is_gpu(plain) else "")
        if option:
            told[option] = str(quantity.whole(amount))
        else:
            custom[name] = int(number) if number.denominator == 1 else float(number)
    if custom:
        told["resources"] = f"'{json.dumps(custom, sort_keys=True, separators=(',', ':'))}'"
    return told


def _add_accelerators(told: dict[str, str], limits: Mapping[str, Any]) -> None:
    """`addWellKnownAcceleratorResources`: the first GPU of the limits, and the first of the other accelerators."""
    for key in sorted(limits):
        if _is_zero(limits[key]):
            continue
        if is_gpu(key) and "num-gpus" not in told:
            told["num-gpus"] = str(quantity.whole(limits[key]))
    others = [key for key in sorted(limits) if key in ACCELERATORS and not _is_zero(limits[key])]
    try:
        there = json.loads(told.get("resources", "{}").strip("'\"` "))
    except ValueError:
        return  # KubeRay logs an error, and goes on
    if others and isinstance(there, dict) and not set(there) & set(ACCELERATORS.values()):
        there[ACCELERATORS[others[0]]] = quantity.whole(limits[others[0]])
        told["resources"] = f"'{json.dumps(there, sort_keys=True, separators=(',', ':'))}'"

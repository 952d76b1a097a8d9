"""Exercise 03: a RayCluster to a brief, three that are repaired, what a group becomes, and the first one run.

A manifest is judged by what becomes of it (`helpers.model`): whether the API server and the operator take it, what
`ray start` is told, what Kubernetes keeps for it, and on which machines its Pods can be. How it is written is free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from helpers import versions
from helpers.errors import CourseError
from helpers.grading.check import KUBERNETES, Suite, kind_of
from helpers.grading.evidence import AGAIN, Sighting
from helpers.model import crds, manifest, quantity, raycluster, scheduling
from helpers.model.findings import UNREADABLE
from helpers.model.raycluster import Cluster, Group
from helpers.model.scheduling import Machine, Taint

GIB = 2**30
RAY = raycluster.version_in(versions.RAY)
# the machines of every question, which are those of `course up`
MACHINES = (
    Machine("cpu-a", {"cpu": 8, "memory": "16Gi"}),
    Machine("cpu-b", {"cpu": 8, "memory": "16Gi"}),
    Machine("gpu-a", {"cpu": 32, "memory": "128Gi", "nvidia.com/gpu": 4}, taints=(Taint("nvidia.com/gpu", "present"),)),
)
CPU_MACHINES, GPU_MACHINES = {"cpu-a", "cpu-b"}, {"gpu-a"}


# ---- reading: what the API server, the operator, and the API server once more say to it


def read_cluster(answer: Any) -> Cluster:
    """The cluster of a manifest that gets as far as to Pods; AssertionError says who refuses it otherwise, and why."""
    try:
        document = manifest.document(answer, "RayCluster")
    except CourseError as error:
        raise AssertionError(error.what) from None
    faults = crds.faults(document)
    is_stored = bool(faults) and faults[0].rule == UNREADABLE
    who = "this cannot be reckoned with" if is_stored else "the API server refuses this"
    assert not faults, f"{who}: {faults[0]}"
    cluster = raycluster.cluster_of(document)
    assert cluster, "there is no spec in it, or an empty one"
    refused = raycluster.refusals(cluster)
    assert not refused, f"the API server takes this, and the operator does not, so that no Pod is made: {refused[0]}"
    for group in cluster.groups:
        try:
            said = scheduling.pod_refusals(group)
        except ValueError as error:
            said = [str(error)]
        assert not said, f"the Pods of {_name(group)} are refused by the API server: {said[0]}"
    return cluster


def _name(group: Group) -> str:
    return "the head" if group.is_head else f"`{group.name}`"


def _group(cluster: Cluster, name: str) -> Group:
    group = cluster.group(name)
    assert group, f"there is no group `{name}`"
    return group


# ---- what the questions ask of a cluster


def is_of_one_ray(cluster: Cluster) -> None:
    """Every image says which Ray it holds, it is the course's, and KubeRay is told."""
    for group in cluster.groups:
        image = group.container.get("image", "")
        version = raycluster.version_in(image)
        assert version, f"which Ray {_name(group)} runs, its image {image!r:.80} does not say"
        assert version == RAY, f"{_name(group)} runs Ray {'.'.join(map(str, version))}, by its image"
    written = cluster.spec.get("rayVersion") or ""
    assert written, "the images say which Ray they hold; KubeRay does not look there, and nobody has told it"
    assert raycluster.version_in(written) == RAY, f"KubeRay is told that this is Ray {written!r:.40}"


def offers_of(group: Group) -> Mapping[str, float]:
    """What Ray counts on the group's Ray nodes."""
    return _started(group, lambda: group.offers)


def _started(group: Group, read: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    try:
        return read()
    except ValueError as error:
        raise AssertionError(f"{_name(group)} does not start: {error}") from None


def takes_no_tasks(group: Group) -> None:
    """No task that asks for a CPU runs there."""
    cpus = offers_of(group).get("CPU")
    assert cpus is not None, f"nothing is said of the CPUs of {_name(group)}, so Ray counts those of its machine"
    assert cpus == 0, f"Ray counts {cpus:g} CPUs on {_name(group)}, and places tasks there"


def counts(cluster: Cluster, group: Group, wanted: Mapping[str, float]) -> None:
    """Ray and the autoscaler count these on each of the group's Ray nodes, memory aside, and nothing else."""
    offered = {name: amount for name, amount in offers_of(group).items() if amount and name != "memory"}
    for name in sorted({*wanted, *offered}):
        seen, right = offered.get(name, 0), wanted.get(name, 0)
        assert seen == right, f"Ray counts {seen:g} of {name} on each Ray node of {_name(group)}"
    try:
        planned = {name: amount for name, amount in group.counted.items() if amount and name != "memory"}
    except ValueError as error:
        raise AssertionError(str(error)) from None
    assert planned == wanted, f"the autoscaler takes {_name(group)} to have {planned}, and Ray counts {offered}"


def is_kept(group: Group) -> None:
    """Kubernetes keeps for a Pod all the CPUs and the memory that Ray counts on it."""
    offered = _started(group, lambda: group.amounts)
    assert "memory" in offered, f"Ray is not told how much memory {_name(group)} has, and takes the machine's"
    for name, asked in (("CPU", "cpu"), ("memory", "memory")):
        kept = quantity.parse(group.requests.get(asked, 0))
        counted = Fraction(offered.get(name, 0))
        assert counted <= kept, (
            f"{_name(group)}: Ray counts {_shown(name, counted)}, Kubernetes keeps {_shown('', kept)}"
        )


def _shown(name: str, amount: Fraction) -> str:
    shown = f"{float(amount / GIB):g} GiB" if amount >= 10_000 else f"{float(amount):g}"
    return f"{shown} of {name}" if name else shown


def has_room_on(cluster: Cluster, group: Group, wanted: set[str]) -> None:
    """A Pod of the group could be on these machines, and on no other."""
    for machine in MACHINES:
        lacks = scheduling.why_not(cluster, group, machine)
        if machine.name in wanted:
            assert not lacks, f"a Pod of {_name(group)} cannot be placed: {lacks}"
        else:
            assert lacks, f"a Pod of {_name(group)} can be placed on {machine.name}"


def has_some_room_on(cluster: Cluster, group: Group, wanted: set[str]) -> None:
    """A Pod of the group could be on one of these machines, and on no other."""
    found = set(scheduling.places(cluster, group, MACHINES))
    for name in sorted(found - wanted):
        raise AssertionError(f"a Pod of {_name(group)} can be placed on {name}")
    machine = next(one for one in MACHINES if one.name in wanted)
    assert found, f"no machine can have a Pod of {_name(group)}: {scheduling.why_not(cluster, group, machine)}"


def gets_gpus(group: Group) -> None:
    """Kubernetes gives the container a GPU, whatever Ray is told."""
    given = [key for key, amount in group.limits.items() if raycluster.is_gpu(key) and quantity.parse(amount)]
    assert given, f"Kubernetes is not asked for a GPU, so the container of {_name(group)} gets none"


def is_between(cluster: Cluster, group: Group, least: int, most: int) -> None:
    """The autoscaler may move the group between these numbers of Pods, and the operator begins with the first."""
    assert group.desired_pods == least, f"the operator begins with {_pods(group.desired_pods)} of {_name(group)}"
    bottom, top = (bound * group.hosts for bound in group.bounds)
    top_said = f"{top} Pods" if top < 10**6 else "any number of Pods"
    assert bottom == least, f"the autoscaler keeps at least {_pods(bottom)} of {_name(group)}"
    assert top == most, f"the autoscaler may ask for {top_said} of {_name(group)}"


def _pods(count: int) -> str:
    return f"{count} Pod{'' if count == 1 else 's'}"


def is_autoscaled(cluster: Cluster) -> None:
    """There is an autoscaler."""
    assert cluster.is_autoscaling, "no autoscaler is started, so nothing changes the number of Pods"


# ---- q1: a manifest to a brief

CPU, GPU = "cpu", "gpu"
WANTED = {CPU: {"CPU": 2, "fast_disk": 1}, GPU: {"CPU": 2, "GPU": 1}}
BOUNDS = {CPU: (1, 4), GPU: (1, 2)}
IDLE_S = {CPU: 60, GPU: 300}

q1 = Suite(
    read=read_cluster,
    hints=(
        "Begin with lesson 03's manifest and go through the brief line by line. Who reads each line: Kubernetes, the"
        " operator, Ray, or two of them?",
        "What Ray counts on a Ray node comes from the limits of the first container, unless rayStartParams say it. A"
        " custom resource stands there as JSON; and between there and `ray start` is a shell, which takes quotes off.",
        "To keep Pods off a machine is the machine's part: its taint. To be allowed there in spite of it is the Pod's:"
        " a toleration, in the Pod's spec. An idle timeout of one group needs a version of the autoscaler, written.",
    ),
    explanation=(
        "One line, several readers: a limit is what the container may use, what Ray counts, and what the autoscaler"
        " plans with; a request is what Kubernetes keeps. Where both are the same, all of them speak of the same"
        " machine. Taints and tolerations are Kubernetes' alone, rayStartParams are Ray's alone."
    ),
)


@q1.case("all parts run the same Ray, and KubeRay knows which")
def _(cluster: Cluster) -> None:
    is_of_one_ray(cluster)


@q1.case("the head: no tasks")
def _(cluster: Cluster) -> None:
    takes_no_tasks(cluster.head)


@q1.case("the head: which machines it can be on")
def _(cluster: Cluster) -> None:
    has_room_on(cluster, cluster.head, CPU_MACHINES)


@q1.case("`cpu`: what Ray counts on a worker")
def _(cluster: Cluster) -> None:
    counts(cluster, _group(cluster, CPU), WANTED[CPU])


@q1.case("`cpu`: how many workers")
def _(cluster: Cluster) -> None:
    is_between(cluster, _group(cluster, CPU), *BOUNDS[CPU])


@q1.case("`gpu`: what Ray counts on a worker")
def _(cluster: Cluster) -> None:
    counts(cluster, _group(cluster, GPU), WANTED[GPU])


@q1.case("`gpu`: how many workers")
def _(cluster: Cluster) -> None:
    is_between(cluster, _group(cluster, GPU), *BOUNDS[GPU])


@q1.case("`gpu`: which machines they can be on")
def _(cluster: Cluster) -> None:
    has_room_on(cluster, _group(cluster, GPU), GPU_MACHINES)
    gets_gpus(_group(cluster, GPU))


@q1.case("Kubernetes keeps what Ray counts")
def _(cluster: Cluster) -> None:
    for group in cluster.groups:
        is_kept(group)


@q1.case("the autoscaler: there, and how long it lets a Ray node idle")
def _(cluster: Cluster) -> None:
    is_autoscaled(cluster)
    for name, wanted in IDLE_S.items():
        seconds = cluster.idle_timeout_s(_group(cluster, name))
        assert seconds == wanted, f"an idle Ray node of `{name}` goes after {seconds:g} s"


# ---- q1_run: the same manifest, applied to a cluster

MOST_PODS = 6
MOST_CPUS = 8  # of one Ray node: Ray may start a process for each
GROUP_NAME = re.compile(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?")
WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,80}[A-Za-z0-9])?")
RESOURCE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,60}")
IMAGE = f"rayproject/ray:{versions.RAY}-py{versions.PYTHON.replace('.', '')}"


def plan_of(answer: Any) -> dict[str, Any]:
    """What is applied for an answer: its manifest, with nothing in it but what the brief speaks of.

    Each value is a number, or a word of letters and digits: commands, variables, volumes, other containers and images
    are left out, so that a grader who applies it runs nothing that somebody has typed.
    """
    cluster = read_cluster(answer)
    is_of_one_ray(cluster)
    total = sum(group.desired_pods for group in cluster.groups)
    assert total <= MOST_PODS, f"it begins with {_pods(total)}, and here no more than {MOST_PODS} can be started"
    spec: dict[str, Any] = {"rayVersion": versions.RAY, "enableInTreeAutoscaling": cluster.is_autoscaling}
    options = {key: cluster.options[key] for key in ("version", "idleTimeoutSeconds") if key in cluster.options}
    spec |= {"autoscalerOptions": options} if options else {}
    spec["headGroupSpec"] = _small(cluster.head)
    spec["workerGroupSpecs"] = [_small(group) for group in cluster.workers]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": cluster.document["metadata"]["name"]},
        "spec": spec,
    }


def _small(group: Group) -> dict[str, Any]:
    offered = offers_of(group)
    assert offered.get("CPU", 1) <= MOST_CPUS, f"{_name(group)}: more than {MOST_CPUS} CPUs cannot be started here"
    made: dict[str, Any] = {"rayStartParams": _params(group)}
    if group.resources:
        made["resources"] = {_resource(group, name): _amount(amount) for name, amount in group.resources.items()}
    if group.labels:
        made["labels"] = {_word(group, key): _word(group, value) for key, value in group.labels.items()}
    if not group.is_head:
        assert GROUP_NAME.fullmatch(group.name), f"{group.name!r:.40} is no name of a group that can be started here"
        names = ("replicas", "minReplicas", "maxReplicas", "numOfHosts", "idleTimeoutSeconds")
        made |= {"groupName": group.name} | {key: group.spec[key] for key in names if group.spec.get(key) is not None}
    written = group.container.get("resources") or {}
    amounts = {
        part: {_word(group, name): _amount(amount) for name, amount in written[part].items()}
        for part in ("limits", "requests")
        if written.get(part)
    }
    pod: dict[str, Any] = {"containers": [{"name": "ray", "image": IMAGE, "resources": amounts}]}
    pod["terminationGracePeriodSeconds"] = 5
    if group.pod.get("tolerations"):
        pod["tolerations"] = [_words(group, one) for one in group.pod["tolerations"]]
    if group.pod.get("nodeSelector"):
        pod["nodeSelector"] = _words(group, group.pod["nodeSelector"])
    return made | {"template": {"spec": pod}}


def _params(group: Group) -> dict[str, str]:
    """What rayStartParams say of the offer. A shell will read it: only numbers and plain names come through."""
    told = {key: group.params[key] for key in ("num-cpus", "num-gpus", "memory") if key in group.params}
    if "resources" in group.params:
        custom = raycluster.custom_resources(group.params["resources"])
        plain = {_resource(group, name): amount for name, amount in custom.items()}
        wrong = [name for name, amount in plain.items() if not isinstance(amount, int)]
        assert not wrong, f"{_name(group)}: {wrong[0]} is no whole number"
        told["resources"] = f"'{json.dumps(plain, sort_keys=True)}'"
    return told


def _amount(amount: str | int) -> str:
    exact = quantity.parse(amount)
    return str(exact) if exact.denominator == 1 else f"{round(exact * 1000)}m"


def _resource(group: Group, name: str) -> str:
    assert RESOURCE.fullmatch(name), f"{_name(group)}: {name!r:.60} is no name of a resource that can be started here"
    return name


def _word(group: Group, word: Any) -> str:
    fits = isinstance(word, str) and (not word or WORD.fullmatch(word))
    assert fits, f"{_name(group)}: {word!r:.60} cannot be applied here"
    return word


def _words(group: Group, words: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value if isinstance(value, int) and key == "tolerationSeconds" else _word(group, value)
        for key, value in ((_word(group, key), value) for key, value in words.items())
        if value is not None
    }


# what is seen of one group: its Pods, each with its machine, and what Ray counts on it
Seen = Mapping[str, list[Mapping[str, Any]]]


def seen_of(sighting: Sighting) -> Seen:
    """The Pods of each group, if a run can have seen that."""
    cluster, seen = raycluster.cluster_of(sighting.plan), sighting.seen
    try:
        pods = {name: [dict(pod) for pod in group] for name, group in dict(seen["groups"]).items()}
        sound = isinstance(seen["ray"], str) and 0 < seen["seconds"] < 86_400
        for pod in (pod for group in pods.values() for pod in group):
            sound &= isinstance(pod["name"], str) and isinstance(pod["machine"], str) and isinstance(pod["ready"], bool)
            sound &= isinstance(pod["machine_gpus"], int | None)
            sound &= isinstance(pod["ray_start"], str) and isinstance(pod["autoscaler"], bool)
            sound &= all(isinstance(amount, int | float) for amount in dict(pod["resources"]).values())
        names = [pod["name"] for group in pods.values() for pod in group]
        sound &= len(set(names)) == len(names)
    except (KeyError, TypeError, ValueError, AttributeError):
        sound = False
    assert sound, f"what was written down of this run is not what a run writes down; {AGAIN}"
    for group in cluster.groups:
        there = pods.get(group.name, [])
        assert there or not group.is_head, "the head did not come up"
        for pod in there:
            told = _offered_by(pod["ray_start"])
            assert told == group.start, f"what was written down does not fit the manifest that it was a run of; {AGAIN}"
            counted = {name: amount for name, amount in pod["resources"].items() if name in _known(group) and amount}
            fits = counted == {name: amount for name, amount in offers_of(group).items() if amount}
            assert fits, f"what was written down does not fit the manifest that it was a run of; {AGAIN}"
    return pods


def _known(group: Group) -> set[str]:
    return {"CPU", "GPU", *offers_of(group)}


def _offered_by(command: str) -> dict[str, str]:
    """What a `ray start` says of the offer, as KubeRay writes it: options with a blank on either side."""
    found = dict(re.findall(r" --([a-z-]+)=('[^']*'|\S+)", f" {command}"))
    return {key: found[key] for key in ("num-cpus", "num-gpus", "memory", "resources", "labels") if key in found}


q1_run = Suite(
    read=plan_of,
    live=seen_of,
    runs_on=KUBERNETES,
    hints=(
        "Nothing is new to find out here: the manifest is that of question 1. If a line above is not right yet, mend"
        " that first.",
        "Run the cell that applies the manifest after each change: what it has seen of an older one does not count.",
        "A cluster that does not settle says why where it was applied: read the last reason, and ask `kubectl describe`"
        " for the Pod that it names.",
    ),
    explanation=(
        "The operator made the Pods, Kubernetes placed them, and each raylet told the GCS what its `ray start` line"
        " said. No number was measured anywhere: what you have written is what Ray counts."
    ),
)


def _all_ready(pods: Seen, name: str) -> list[Mapping[str, Any]]:
    there = pods.get(name, [])
    assert there, f"there was no Pod of `{name}`"
    unready = [pod["name"] for pod in there if not pod["ready"]]
    assert not unready, f"the Pod {unready[0]} was not ready"
    return there


def _ran(name: str) -> None:
    @q1_run.case(f"`{name}`: the Pods, and what Ray counts on them")
    def _(pods: Seen) -> None:
        there, wanted = _all_ready(pods, name), WANTED[name]
        assert len(there) == BOUNDS[name][0], f"there were {_pods(len(there))} of `{name}`"
        for pod in there:
            counted = {key: pod["resources"].get(key, 0) for key in wanted}
            assert counted == wanted, f"on {pod['name']} Ray counted {counted}"


@q1_run.case("the head: ready, and no tasks run there")
def _(pods: Seen) -> None:
    [head] = _all_ready(pods, raycluster.HEAD)
    cpus = head["resources"].get("CPU", 0)
    assert cpus == 0, f"Ray counted {cpus:g} CPUs on the head"
    # not told where a learner may not look at Kubernetes nodes; question 1 says where the head can be
    assert not head["machine_gpus"], f"the head was on {head['machine']}, which has GPUs"


_ran(CPU)
_ran(GPU)


@q1_run.case("the autoscaler runs beside the head")
def _(pods: Seen) -> None:
    [head] = pods[raycluster.HEAD]
    assert head["autoscaler"], "the Pod of the head had no autoscaler in it"


# ---- q2 to q4: three manifests that are repaired

SURVEY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: survey
spec:
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams:
      dashboard-host: "0.0.0.0"
    template:
      spec:
        containers:
        - name: ray-head
          image: rayproject/ray:2.9.0-gpu
          resources:
            limits: {cpu: "1", memory: 2Gi}
            requests: {cpu: "1", memory: 2Gi}
  workerGroupSpecs:
  - groupName: cpu
    minReplicas: 2
    maxReplicas: 64
    rayStartParams: {}
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.9.0-gpu
          resources:
            limits: {cpu: "16", memory: 64Gi}
            requests: {cpu: "16", memory: 64Gi}
  - groupName: gpu
    minReplicas: 0
    maxReplicas: 8
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.9.0-gpu
          resources:
            limits: {nvidia.com/gpu: 1, cpu: "12", memory: 80Gi}
            requests: {nvidia.com/gpu: 1, cpu: "12", memory: 80Gi}
"""

TUNING = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: tuning
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      spec:
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0-py311
          resources:
            limits: {cpu: "2", memory: 8Gi, nvidia.com/gpu: "0"}
            requests: {cpu: "1", memory: 4Gi}
        tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  workerGroupSpecs:
  - groupName: gpu
    replicas: 2
    minReplicas: 1
    maxReplicas: 2
    rayStartParams: {}
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0-py311
          resources:
            limits: {cpu: "16", memory: 64Gi, nvidia.com/gpu: "2"}
            requests: {cpu: "8", memory: 32Gi, nvidia.com/gpu: "2"}
        nodeSelector:
          accelerator: nvidia-a100
        tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
"""

RENDER = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: render
spec:
  rayVersion: "2.9.0"
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams:
      num-gpus: "0"
    template:
      spec:
        containers:
        - name: ray-head
          image: registry.example/team/ray-gpu:newest
          resources:
            requests: {cpu: "4", memory: 8Gi}
  workerGroupSpecs:
  - groupName: gpu
    replicas: 0
    minReplicas: 0
    maxReplicas: 4
    rayStartParams:
      num-gpus: "1"
    template:
      spec:
        containers:
        - name: ray-worker
          image: registry.example/team/ray-gpu:newest
          resources:
            limits: {nvidia.com/gpu: 1}
            requests: {cpu: "8", memory: 16Gi}
"""


def _repair(given: str, hints: tuple[str, str, str], explanation: str) -> tuple[Suite, Callable]:
    """A question to repair a manifest, and its decorator for a case: one that is as it was given has no answer yet."""
    suite, broken = Suite(read_cluster, hints, explanation), read_cluster(given)

    def case(name: str) -> Callable[[Callable[[Cluster], None]], None]:
        def add(test: Callable[[Cluster], None]) -> None:
            @suite.case(name)
            def _(cluster: Cluster) -> None:
                if cluster.document == broken.document:
                    raise NotImplementedError
                test(cluster)

        return add

    return suite, case


q2, _q2_case = _repair(
    SURVEY,
    hints=(
        "Six lines of the table, and the manifest misses each of them. Take one at a time, and check after each.",
        "Who refuses a Pod that is bigger than each machine? Nobody: it waits. Compare requests with the table of"
        " machines, and do not forget that the autoscaler has a container of its own in the head's Pod.",
        "A GPU in the limits says that the Pod wants one. That it may go to the machine with the taint, only a"
        " toleration says. And what a head offers that says nothing of its CPUs is its limit.",
    ),
    explanation=(
        "Nothing of this was an error to the API server or to the operator: a Pod that fits no machine waits, a head"
        " that offers CPUs gets tasks, and an image of another Ray starts, until something of the right version talks"
        " to it. A manifest is right only together with the machines that it is for."
    ),
)


@_q2_case("all parts run the same Ray, and KubeRay knows which")
def _(cluster: Cluster) -> None:
    is_of_one_ray(cluster)


@_q2_case("the head: no tasks")
def _(cluster: Cluster) -> None:
    takes_no_tasks(cluster.head)


@_q2_case("`cpu`: what Ray counts on a worker, and what Kubernetes keeps for it")
def _(cluster: Cluster) -> None:
    counts(cluster, _group(cluster, CPU), {"CPU": 4})
    is_kept(_group(cluster, CPU))


@_q2_case("`gpu`: which machines they can be on")
def _(cluster: Cluster) -> None:
    group = _group(cluster, GPU)
    assert offers_of(group).get("GPU") == 1, f"Ray counts {offers_of(group).get('GPU', 0):g} GPUs on each of them"
    has_some_room_on(cluster, group, GPU_MACHINES)
    gets_gpus(group)


@_q2_case("how many workers")
def _(cluster: Cluster) -> None:
    is_autoscaled(cluster)
    is_between(cluster, _group(cluster, CPU), 2, 3)
    is_between(cluster, _group(cluster, GPU), 0, 4)


@_q2_case("room for all of them at once")
def _(cluster: Cluster) -> None:
    # as many as are wanted, and not as the manifest says: that is the case before
    wanted = {raycluster.HEAD: 1, CPU: 3, GPU: 4}
    sized = {group.name: group for group in cluster.groups if group.name in wanted}
    for name, count in scheduling.left_over(_tolerant(cluster), wanted, MACHINES).items():
        raise AssertionError(f"with everything at its maximum, {_pods(count)} of {_name(sized[name])} find no room")


def _tolerant(cluster: Cluster) -> Cluster:
    """The cluster, with Pods of `gpu` that may go to the machine with GPUs whether or not they say so."""
    document = json.loads(json.dumps(cluster.document))
    for group in document["spec"]["workerGroupSpecs"]:
        if group["groupName"] == GPU:
            group["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    return raycluster.cluster_of(document)


q3, _q3_case = _repair(
    TUNING,
    hints=(
        "Ask of each line who reads it, and what would be different without it.",
        "Between two numbers of workers somebody has to choose: who, and is that started? A toleration opens a door;"
        " for which Pods should this one be open?",
        "Ray's numbers come from the limits, what Kubernetes keeps from the requests: make both the same, at the size"
        " of the table. A nodeSelector is a demand: does any of the machines have that label?",
    ),
    explanation=(
        "minReplicas and maxReplicas are only bounds: without the autoscaler the operator keeps `replicas` for ever. A"
        " toleration does not draw a Pod anywhere, and on a head it opens the dearest machine to the one Pod that needs"
        " no GPU. And limits above requests promise tasks what Kubernetes has promised to somebody else."
    ),
)


@_q3_case("`gpu`: how many workers, and who chooses")
def _(cluster: Cluster) -> None:
    is_autoscaled(cluster)
    group = _group(cluster, GPU)
    assert group.bounds == (1, 2), f"the autoscaler keeps between {group.bounds[0]} and {group.bounds[1]:g} of them"


@_q3_case("the head: which machines it can be on")
def _(cluster: Cluster) -> None:
    has_room_on(cluster, cluster.head, CPU_MACHINES)


@_q3_case("the head: Kubernetes keeps what Ray counts")
def _(cluster: Cluster) -> None:
    is_kept(cluster.head)


@_q3_case("`gpu`: what Ray counts on a worker, and what Kubernetes keeps for it")
def _(cluster: Cluster) -> None:
    counts(cluster, _group(cluster, GPU), {"CPU": 8, "GPU": 2})
    is_kept(_group(cluster, GPU))


@_q3_case("`gpu`: which machines they can be on")
def _(cluster: Cluster) -> None:
    has_some_room_on(cluster, _group(cluster, GPU), GPU_MACHINES)
    gets_gpus(_group(cluster, GPU))


q4, _q4_case = _repair(
    RENDER,
    hints=(
        "For each group write down two lists: what `ray start` is told, and what the autoscaler counts. Where do they"
        " differ?",
        "KubeRay takes CPUs from the limits, else from the requests; memory only from the limits. The autoscaler takes"
        " both from either.",
        "An image of a name such as `newest` says nothing of its Ray, and rayVersion is believed without a look. What"
        " stands in two places can be changed in one: what does KubeRay do with a GPU in the limits, if rayStartParams"
        " say nothing?",
    ),
    explanation=(
        "Ray and its autoscaler read the same manifest with different eyes: memory that stands only in the requests is"
        " counted by one, and not told to the other. Limits equal to requests end that. A number belongs in one place,"
        " and the limits are the place that Kubernetes, KubeRay and Ray all read."
    ),
)


@_q4_case("all parts run the same Ray, and KubeRay knows which")
def _(cluster: Cluster) -> None:
    is_of_one_ray(cluster)


@_q4_case("the head: no tasks")
def _(cluster: Cluster) -> None:
    takes_no_tasks(cluster.head)


@_q4_case("memory: Ray is told what the autoscaler counts, in each group")
def _(cluster: Cluster) -> None:
    for group in cluster.groups:
        told, counted = offers_of(group).get("memory"), _counted(group).get("memory")
        assert told is not None, f"`ray start` of {_name(group)} is told nothing of memory"
        assert told == counted, f"{_name(group)}: Ray is told {told:g} bytes, the autoscaler counts {counted}"


@_q4_case("`gpu`: which machines they can be on")
def _(cluster: Cluster) -> None:
    has_some_room_on(cluster, _group(cluster, GPU), GPU_MACHINES)


@_q4_case("`gpu`: a container with other GPUs, and Ray counts those")
def _(cluster: Cluster) -> None:
    group = _group(cluster, GPU)
    gets_gpus(group)
    asked = [key for key in group.limits if raycluster.is_gpu(key)]
    assert offers_of(group).get("GPU") == 1, f"Ray counts {offers_of(group).get('GPU', 0):g} GPUs on each of them"
    spec = json.loads(json.dumps(group.spec))
    for part in ("limits", "requests"):
        there = spec["template"]["spec"]["containers"][0]["resources"].get(part) or {}
        there |= {key: "2" for key in asked if key in there}
    now = offers_of(Group(spec, group.path)).get("GPU")
    assert now == 2, "if somebody gives the container 2 GPUs, Ray goes on to count 1: the number stands in two places"


def _counted(group: Group) -> Mapping[str, int]:
    try:
        return group.counted
    except ValueError as error:
        raise AssertionError(str(error)) from None


# ---- q5: what a group becomes

KEYS = ("pods", "num-cpus", "num-gpus", "memory")


def _read_function(answer: Any) -> Callable[[dict], Any]:
    assert callable(answer), f"this wants a function, you gave {kind_of(answer)}"
    return answer


def group_of(
    limits: Mapping[str, Any] | None = None,
    requests: Mapping[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
    replicas: int | None = 1,
    bounds: tuple[int, int] = (0, 4),
) -> dict[str, Any]:
    """A worker group with one container, as it stands in a manifest."""
    amounts = {part: dict(there) for part, there in (("limits", limits), ("requests", requests)) if there is not None}
    container = {"name": "ray-worker", "image": IMAGE, "resources": amounts}
    group: dict[str, Any] = {"groupName": "workers", "minReplicas": bounds[0], "maxReplicas": bounds[1]}
    group |= {} if replicas is None else {"replicas": replicas}
    return group | {"rayStartParams": dict(params or {}), "template": {"spec": {"containers": [container]}}}


def right_for(spec: Mapping[str, Any]) -> dict[str, int | None]:
    """What KubeRay makes of a worker group."""
    group = Group(spec, "")
    told = {key: int(group.start[key]) if key in group.start else None for key in KEYS[1:]}
    return {"pods": group.desired_pods, **told}


def returns(function: Callable[[dict], Any], spec: Mapping[str, Any]) -> None:
    """Call a learner's function, and assert that it is right; what is said does not tell the right number."""
    seen = function(json.loads(json.dumps(spec)))  # a copy, for a function may change what it is given
    assert isinstance(seen, dict), f"it returned {kind_of(seen)}, and it should return a dict"
    missing = [key for key in KEYS if key not in seen]
    assert not missing, f"there is no {missing[0]!r} in what it returned"
    right = right_for(spec)
    for key in KEYS:
        plain = seen[key] is None or (isinstance(seen[key], int | float) and not isinstance(seen[key], bool))
        assert plain, f"its {key!r} is {seen[key]!r:.60}, and it should be a number, or None"
        written = (spec["template"]["spec"]["containers"][0]["resources"], spec["rayStartParams"])
        about = f"replicas {spec.get('replicas')}" if key == "pods" else f"resources {written[0]}, {written[1]}"
        assert seen[key] == right[key], f"for {about} it says that {key!r} is {seen[key]!r:.40}"


q5 = Suite(
    read=_read_function,
    hints=(
        "Four answers, each from its own lines: begin with the Pods, then num-cpus, and so on. What does KubeRay do"
        " where something is not written?",
        "What rayStartParams say always goes first. Then the limits. For one of the three options, and only for one,"
        " KubeRay looks into the requests after that.",
        "A GPU is any limit whose name ends in `gpu`. `ray start` takes whole numbers, and KubeRay rounds up; math.ceil"
        " does that to what parse_quantity returns. And `replicas` counts only as far as the bounds let it.",
    ),
    explanation=(
        "rayStartParams first, then limits, and for CPUs the requests as well; never the machine. What is in none of"
        " them is not passed, and Ray then looks at the machine that the Pod is on: the one case in which two Pods of"
        " a group may come out different."
    ),
)


def _becomes(name: str, spec: Mapping[str, Any], advice: str) -> None:
    def test(function: Callable[[dict], Any]) -> None:
        try:
            returns(function, spec)
        except AssertionError as error:
            raise AssertionError(f"{error}: {advice}") from None

    q5.case(name)(test)


_SAME = {"cpu": "2", "memory": "4Gi"}
_becomes(
    "limits and requests alike",
    group_of(limits=_SAME, requests=_SAME),
    "the simplest group there is",
)
_becomes(
    "limits above the requests",
    group_of(limits={"cpu": "4", "memory": "8Gi"}, requests={"cpu": "2", "memory": "4Gi"}),
    "one of the two is what a container may use, the other what is kept for it; which does KubeRay pass on?",
)
_becomes(
    "a CPU limit that is not whole",
    group_of(limits={"cpu": "2500m", "memory": "4Gi"}),
    "`ray start` takes whole numbers only; in which direction does KubeRay go?",
)
_becomes(
    "CPUs in the requests only",
    group_of(limits={"memory": "4Gi"}, requests={"cpu": "3", "memory": "4Gi"}),
    "with no limit, is nothing known of the CPUs?",
)
_becomes(
    "memory in the requests only",
    group_of(limits={"cpu": "2"}, requests={"cpu": "2", "memory": "4Gi"}),
    "memory is not treated as CPUs are",
)
_becomes(
    "a GPU of another maker",
    group_of(limits=_SAME | {"amd.com/gpu": 2}),
    "KubeRay does not ask who made it: how does it know a GPU among the limits?",
)
_becomes(
    "what rayStartParams say",
    group_of(limits=_SAME | {"nvidia.com/gpu": 4}, params={"num-cpus": "0", "num-gpus": "1"}),
    "who wrote an option out has the last word, even if it is 0",
)
_becomes(
    "more replicas than the group may have",
    group_of(limits=_SAME, replicas=9, bounds=(1, 5)),
    "both bounds hold, whoever writes `replicas`",
)
_becomes(
    "no replicas written",
    group_of(limits=_SAME, replicas=None, bounds=(2, 5)),
    "what is not written is 0 to Kubernetes; may there be so few?",
)

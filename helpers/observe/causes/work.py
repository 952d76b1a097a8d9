"""Causes that lie with what runs on the cluster: workers that do not join, GPUs, jobs, applications."""

from __future__ import annotations

import re
from collections.abc import Iterator

from helpers.observe.causes.base import LIKELY, POSSIBLE, Evidence, Found, of_events, of_logs
from helpers.observe.causes.demand import counted
from helpers.observe.scene import Scene
from helpers.observe.snapshot import time_of
from helpers.observe.things import SUBMITTER, Container, Event, Pod, later, seconds
from helpers.text import count

DEADLINES = ("DeadlineExceeded", "PreRunningDeadlineExceeded")
JOIN_S = 120  # in which a Ray node joins, once its container runs
NO_GPU = re.compile(
    r"has no GPU available|No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device"
    r"|NVIDIA-SMI has failed|CUDA driver version is insufficient|Failed to initialize NVML"
    r"|nvidia-smi: command not found|libcuda\.so\.1: cannot open|NVIDIA driver on your system is too old"
    r"|Torch not compiled with CUDA enabled"
    r"|requires (at least )?(one |a )?GPU|no (visible )?GPUs? (is|are|was|were)? ?(found|available|detected|visible)",
    re.IGNORECASE,
)
GPU_LABEL = re.compile(r"gpu\.present|gpu\.count|gke-accelerator$|/accelerator$|k8s\.amazonaws\.com/accelerator")
ADDRESS = re.compile(r"\bip=(\d+\.\d+\.\d+\.\d+)|'node:(\d+\.\d+\.\d+\.\d+)'")
# of the kubelet's device manager (pkg/kubelet/cm/devicemanager/manager.go), in the message of a Pod that it refuses
NO_DEVICE = re.compile(r"no healthy devices present|requested number of devices unavailable for \S*(gpu|/mig-)")
UNANSWERED = (
    "Connection refused", "Max retries exceeded", "Failed to connect to Ray", "ConnectionError", "No available agent",
    "NewConnectionError", "status code 50", "timed out", "Name or service not known",
    "Temporary failure in name resolution",
)  # fmt: skip
# what `ray job submit` (dashboard/modules/job/cli.py) and the supervisor of a job (job_supervisor.py) say of one
JOB_FAILED = re.compile(r"^Job '\S+' failed$|Job entrypoint command failed with exit code")
OF_THE_SHELL = ("syntax error", "unexpected EOF while looking", "command not found")


# ---- workers -------------------------------------------------------------------------------------------------------


def workers_never_register(scene: Scene) -> Found | str:
    late = [pod for pod in scene.workers if runs_apart(scene, pod)]
    if not late:
        return "every worker that runs is in the Ray cluster, or is still starting" if scene.workers else ""
    said = (
        f"{count(len(late), 'worker Pod')} run and {'is' if len(late) == 1 else 'are'} not in the Ray cluster:"
        " Ray's container is up, its Ray node never joins."
    )
    evidence = [
        Evidence(
            (
                f"Pod {late[0].name}: {late[0].ray.name} runs for {scene.since(late[0].ray.started):.0f} s and is"
                " not ready"
            ),
            scene.describe("pod", late[0].name),
        )
    ]
    if scene.status:
        joined = sum(
            number for name, number in {**scene.status.active, **scene.status.idle}.items() if name != "headgroup"
        )
        evidence.append(
            Evidence(
                f"{count(joined, 'worker')} in the Ray cluster; pending: {len(scene.status.pending)}",
                scene.on_head("ray status"),
            )
        )
    removed = [event for event in scene.events_of("DeletedWorkerPod") if event.message.startswith("Deleted pod ")]
    logs = of_logs(scene, "error", "failed", containers=(late[0].ray.name,), most=1)
    return Found(said, (*evidence, *of_events(removed, 1), *logs), LIKELY)


def runs_apart(scene: Scene, pod: Pod) -> bool:
    """Whether Ray's container of a worker runs, and its Ray node is not in the Ray cluster."""
    if pod.is_leaving or pod.is_over or not pod.ray.is_running or pod.ray.restarts:
        return False
    waited = scene.since(pod.ray.started) > JOIN_S
    status = scene.status
    if pod.is_ready:  # without a probe a Pod is ready at once
        return status is not None and waited and any(name == pod.name for name, _, _ in status.pending)
    if status is None:  # where Ray's own container is ready, another of the Pod is not
        return waited and not pod.ray.status.get("ready") and not _head_is_down(scene, pod)
    if any(node.name in (pod.name, pod.ip) for node in status.nodes):
        return False
    here = [
        one
        for one in scene.workers
        if one.cluster == pod.cluster and one.group == pod.group and one.ray.is_running and not one.is_over
    ]
    return waited and status.joined(pod.group) < len(here) and not _head_is_down(scene, pod)


def _head_is_down(scene: Scene, pod: Pod) -> bool:
    head = scene.head_of(pod.cluster)
    return head is None or not head.ray.is_running


# ---- GPUs ----------------------------------------------------------------------------------------------------------


def _no_gpu_lines(scene: Scene) -> Iterator[tuple[Evidence, Pod | None]]:
    """Lines that say that there is no GPU, with the Pod of the process that says it."""
    by_ip = {pod.ip: pod for pod in scene.pods if pod.ip}
    for log in scene.logs:
        for line in log.text.splitlines():
            if NO_GPU.search(line):
                own = next((pod for pod in scene.pods if pod.name == log.pod), None)
                yield Evidence(line.strip()[:300], log.command), by_ip.get(_address(line)) or own
    for command, printed in scene.snapshot.exec.items():
        pod = next((one for one in scene.pods if one.name in command and _counts_gpu(scene, one)), None)
        line = next((line.strip() for line in printed.splitlines() if NO_GPU.search(line)), "")
        if line and pod:
            yield Evidence(line[:300], command), pod
    message = scene.job_status.get("message") or ""
    if lines := [line for line in message.splitlines() if NO_GPU.search(line)]:
        shown = Evidence(f"RayJob: {message.strip()[-300:]}", f"kubectl get rayjob {scene.name} -o yaml")
        yield shown, by_ip.get(_address(lines[0]))
    for told in _app_messages(scene):
        if NO_GPU.search(told.text):
            yield told, None


def _address(line: str) -> str:
    """The address of the Ray node that a line is of, as Ray puts it before what a worker prints; empty if it is not."""
    return next((one for found in ADDRESS.findall(line) for one in found if one), "")


def _gpus(scene: Scene) -> tuple[float, float]:
    """GPUs of the Ray cluster: in use, and all."""
    return scene.status.usage.get("GPU", (0.0, 0.0)) if scene.status else (0.0, 0.0)


def driver_off_gpu(scene: Scene) -> Found | str:
    lines = list(_no_gpu_lines(scene))
    if not lines:
        return "nobody says that there is no GPU" if scene.logs else ""
    with_gpu = [pod for pod in scene.workers if pod.has_gpu and pod.ray.is_running]
    used, total = _gpus(scene)
    off = [(line, pod) for line, pod in lines if (pod is None or not _counts_gpu(scene, pod)) and (with_gpu or total)]
    if not off:
        return "the process that says it is on a Ray node with a GPU, or there is none"
    line, pod = off[0]
    where = f"on {pod.name}, which has none" if pod else "on a Ray node that has none"
    said = (
        f"The process that drives the GPUs sits {where}; the cluster has {total or len(with_gpu):g}, {used:g} of"
        " them in use."
    )
    shown = [Evidence(f"{used:g} of {total:g} GPU in use", scene.on_head("ray status"))] if total else []
    return Found(said, (line, *shown, *_actors_off(scene)), "certain" if pod else LIKELY)


def _counts_gpu(scene: Scene, pod: Pod) -> bool:
    """Whether a Pod has a GPU, or Ray is told that it has (num-gpus): then work for GPUs is right there."""
    group = scene.group_of(pod)
    return pod.has_gpu or bool(group and (counted(group) or {}).get("GPU"))


def _actors_off(scene: Scene) -> list[Evidence]:
    alive = [one for one in scene.actors or () if one.state == "ALIVE"]
    return [
        Evidence(f"{one.class_name} is on the Ray node {one.node_id[:12]}", scene.on_head("ray list actors"))
        for one in alive[:1]
    ]


def gpu_missing(scene: Scene) -> Found | str:
    sick = [pod for pod in scene.pods if NO_DEVICE.search(pod.status.get("message") or "")]
    if sick:
        shown = Evidence(
            f"Pod {sick[0].name}: {sick[0].status['message'].strip()}", scene.describe("pod", sick[0].name)
        )
        return Found("A Kubernetes node has no healthy GPU to give.", (shown,))
    if lacking := _without_plugin(scene):
        return Found("A Kubernetes node that has GPUs by its labels offers none.", tuple(lacking[:2]), LIKELY)
    if isinstance(driver_off_gpu(scene), Found):
        return "the cluster has GPUs: the process is on another Ray node"
    lines = [(line, pod) for line, pod in _no_gpu_lines(scene) if _wants_gpu(scene) or "Error" in line.text]
    hidden = _hidden(scene)
    if lines:
        line, pod = lines[0]
        said = f"No GPU is visible to the process{' on ' + pod.name if pod else ''}."
        return Found(said, (line, *hidden[:1]), "certain" if pod and pod.has_gpu else LIKELY)
    wants = scene.status and any("GPU" in bundle for bundle, _ in scene.status.demands)
    if hidden and wants and not _gpus(scene)[1]:
        return Found("The containers have a GPU, and Ray is told of none.", tuple(hidden[:2]))
    return "nobody says that there is no GPU" if scene.logs or scene.status else ""


def _without_plugin(scene: Scene) -> list[Evidence]:
    """Kubernetes nodes that are said to have GPUs and offer none, while Pods wait for one: no device plug-in runs."""
    if not any(pod.has_gpu and pod.finds_no_room for pod in scene.pods):
        return []
    found = []
    for node in scene.snapshot.of_kind("Node"):
        labels = node["metadata"].get("labels") or {}
        offers = (node.get("status") or {}).get("allocatable") or {}
        said = [key for key, value in labels.items() if GPU_LABEL.search(key) and value not in ("false", "0", "")]
        if said and not any(re.search(r"gpu|/mig-", key) and str(amount) != "0" for key, amount in offers.items()):
            name = node["metadata"]["name"]
            found.append(
                Evidence(f"Kubernetes node {name}: {said[0]}, and no GPU to allocate", scene.describe("node", name))
            )
    return found


def _wants_gpu(scene: Scene) -> bool:
    """Whether the cluster has, or asks for, GPUs at all: on others a program may say that it runs without."""
    asked = scene.status is not None and any("GPU" in bundle for bundle, _ in scene.status.demands)
    return asked or bool(_gpus(scene)[1]) or any(pod.has_gpu for pod in scene.pods)


def _hidden(scene: Scene) -> list[Evidence]:
    """Groups whose containers have a GPU of which Ray is told nothing."""
    found = []
    for cluster in scene.clusters:
        for group in cluster.groups:
            told = group.params.get("num-gpus")
            limits = ((group.pod.get("containers") or [{}])[0].get("resources") or {}).get("limits") or {}
            if told == "0" and any(key.endswith("gpu") and str(limits[key]) != "0" for key in limits):
                found.append(
                    Evidence(
                        f"group {group.name}: rayStartParams num-gpus is 0, and the container has a GPU",
                        f"kubectl get raycluster {cluster.name} -o yaml",
                    )
                )
    return found


# ---- jobs ----------------------------------------------------------------------------------------------------------


def _rayjob(scene: Scene, text: str) -> Evidence:
    return Evidence(text, f"kubectl get rayjob {scene.name} -o yaml")


def job_deadline_exceeded(scene: Scene) -> Found | str:
    if scene.job is None:
        return ""
    reason, message = scene.job_status.get("reason"), scene.job_status.get("message") or ""
    if reason not in DEADLINES:
        return f"its reason is {reason or 'none'}, and no deadline"
    which = "preRunningDeadlineSeconds" if reason.startswith("Pre") else "activeDeadlineSeconds"
    said = (
        f"The RayJob ran into its {which}; that its jobStatus is {scene.job_status.get('jobStatus') or 'empty'} is"
        " only what was last seen."
    )
    return Found(
        said, (_rayjob(scene, f"reason {reason}: {message}"), *of_events(scene.events_of("DeletedRayCluster"), 1))
    )


def head_lost_during_job(scene: Scene) -> Found | str:
    """The head was lost while a Ray job ran, and what it knew of the job went with it (rayjob_controller.go)."""
    if scene.job is None:
        return ""
    status = scene.job_status
    message = status.get("message") or ""
    reason = status.get("reason")
    is_over_it = status.get("jobStatus") == "SUCCEEDED" or status.get("jobDeploymentStatus") in (
        "Suspended",
        "Suspending",
    )
    said_so = any(one in message for one in ("Ray head pod not found", "Ray job not found in RayCluster"))
    # the submitter followed the job's log to its end, and the new head knows no such job
    forgotten = reason == "JobDeploymentStatusTransitionGracePeriodExceeded" and "submitter finished" in message
    has_run = bool(status.get("jobStatus")) or forgotten
    lost = _lost_heads(scene) if has_run else []
    newer = _newer_head(scene) if has_run else None
    if is_over_it or not (said_so or forgotten or lost or newer) or reason in DEADLINES:
        return "the head was not replaced while the job ran"
    state = f"{status.get('jobDeploymentStatus')}, {reason or 'no reason'}: {message}".strip(": ")
    said = "The head was replaced while the job ran, and what it knew of the job went with it."
    seen = (
        [Evidence(f"Pod {newer.name} is of {newer.created:%H:%M:%S}", scene.describe("pod", newer.name))]
        if newer
        else []
    )
    evidence = (*of_events(lost, 3), *seen, *_how_it_went(scene), _rayjob(scene, state))
    return Found(said, evidence, "certain" if said_so or lost else LIKELY)


def _lost_heads(scene: Scene) -> list[Event]:
    """Events by which a head went, or a second one came, between the job's start and its end."""
    begun = time_of(scene.job_status.get("startTime"))
    ended = time_of(scene.job_status.get("endTime")) or scene.now
    within = [
        event for event in scene.events_of("CreatedHeadPod", "DeletedHeadPod") if event.last and event.last <= ended
    ]
    for cluster in scene.cluster_names:
        mine = [event for event in within if event.name == cluster]
        made = [event for event in mine if event.reason == "CreatedHeadPod"]
        gone = [event for event in mine if event.reason == "DeletedHeadPod" and not later(begun, event.last)]
        if gone or len({event.message for event in made}) > 1:
            return mine
    return []


def _newer_head(scene: Scene) -> Pod | None:
    """The head that is there, if it was made long after the job began, and its cluster was there before."""
    begun = time_of(scene.job_status.get("startTime"))
    ended = time_of(scene.job_status.get("endTime")) or scene.now
    head = scene.heads[-1] if scene.heads else None
    if not head or not begun or not head.created or scene.job_status.get("jobStatus") not in ("RUNNING", "FAILED"):
        return None
    is_new = seconds(begun, head.created) > JOIN_S and head.created <= ended and _has_run(scene, head)
    return head if is_new else None


def _has_run(scene: Scene, head: Pod) -> bool:
    """Whether the cluster was there long before this head of it."""
    cluster = scene.cluster_of(head)
    return bool(cluster and seconds(cluster.created, head.created) > JOIN_S)


def _how_it_went(scene: Scene) -> tuple[Evidence, ...]:
    reasons = ("Evicted", "Killing", "ScaleDown", "Preempting", "TaintManagerEviction", "NodeNotReady")
    return of_events((event for event in scene.events_of(*reasons, kind="Pod") if scene.is_head_name(event.name)), 1)


def submission_retries_exhausted(scene: Scene) -> Found | str:
    if scene.job is None:
        return ""
    status = scene.job_status
    mode = scene.job["spec"].get("submissionMode") or "K8sJobMode"
    failed = [
        condition
        for condition in _job_conditions(scene)
        if condition.get("type") == "Failed" and condition.get("status") == "True"
    ]
    gave_up = any(condition.get("reason") == "BackoffLimitExceeded" for condition in failed)
    if mode != "K8sJobMode" or not (
        status.get("reason") == "SubmissionFailed" or (gave_up and not status.get("jobStatus"))
    ):
        return "its submitter did not give up"
    if status.get("jobStatus") in ("FAILED", "SUCCEEDED", "RUNNING") or of_logs(
        scene, *OF_THE_SHELL, containers=(SUBMITTER,)
    ):
        return "the Ray job was handed in, or the submitter failed for a reason of its own"
    tries = len([pod for pod in scene.submitters if pod.phase == "Failed"])
    limit = (scene.job["spec"].get("submitterConfig") or {}).get("backoffLimit", 2)
    lines = of_logs(scene, *UNANSWERED, containers=(SUBMITTER,), most=1)
    said = (
        f"The submitter gave up after {tries or limit + 1} tries (backoffLimit {limit}), before the dashboard answered."
    )
    answered = of_logs(scene, "Dashboard running on", most=1)
    return Found(
        said,
        (_rayjob(scene, f"{status.get('reason')}: {status.get('message')}"), *lines, *answered),
        "certain" if lines else LIKELY,
    )


def _job_conditions(scene: Scene) -> list:
    return [one for job in scene.submitter_jobs for one in (job.get("status") or {}).get("conditions") or ()]


def sidecar_submitter_failed(scene: Scene) -> Found | str:
    if scene.job is None:
        return ""
    if scene.job["spec"].get("submissionMode") != "SidecarMode":
        return "its submitter is not in the head's Pod"
    ended = _sidecar(scene)
    message = scene.job_status.get("message") or ""
    told = f"container {SUBMITTER} terminated" in message
    if not ended and not told:
        return "the submitter in the head's Pod has not ended"
    if scene.job_status.get("jobStatus") in ("FAILED", "SUCCEEDED", "STOPPED"):
        return "the Ray job itself has ended"
    evidence = []
    if ended:
        pod, one = ended
        evidence.append(
            Evidence(
                (
                    f"Pod {pod.name}, {one.name}: exit code {one.ended.get('exitCode')}, restartPolicy"
                    f" {pod.spec.get('restartPolicy')}"
                ),
                scene.describe("pod", pod.name),
            )
        )
    state = scene.job_status.get("jobDeploymentStatus") or "new"
    said = (
        "The submitter in the head's Pod ended before the cluster was ready: the head can never be ready again,"
        f" and the RayJob stays {state}."
    )
    if state == "Failed":
        said = "The submitter in the head's Pod ended before the job was handed in."
    log = [
        Evidence(line.strip()[:300], one.command)
        for one in scene.logs_of(SUBMITTER)
        for line in one.text.strip().splitlines()[-1:]
    ]
    return Found(said, (*evidence, *log, _rayjob(scene, f"jobDeploymentStatus {state} {message}".strip())))


def _sidecar(scene: Scene) -> tuple[Pod, Container] | None:
    for pod in scene.heads:
        one = pod.container(SUBMITTER)
        if one and one.ended and one.ended.get("exitCode"):
            return pod, one
    return None


def app_failed(scene: Scene) -> Found | str:
    messages = _app_messages(scene)
    if messages:
        return Found(f"The application failed by itself: {messages[0].text[:200]}", tuple(messages[:3]))
    if scene.job is None and scene.service is None:
        return _submitted_by_hand(scene)
    if isinstance(head_lost_during_job(scene), Found):
        return "the head was lost, and the job with it"
    status = scene.job_status
    reason = status.get("reason")
    if reason == "AppFailed" or (status.get("jobStatus") == "FAILED" and reason in (None, "", "SubmissionFailed")):
        shell = of_logs(scene, "Traceback", "Error:", *OF_THE_SHELL, containers=(SUBMITTER,), most=2)
        message = (status.get("message") or "").strip()
        return Found(
            "The program of the job failed by itself.",
            (_rayjob(scene, f"{status.get('reason')}: {message[-400:]}"), *shell),
        )
    shell = of_logs(scene, *OF_THE_SHELL, containers=(SUBMITTER,), most=2)
    if shell and status.get("jobDeploymentStatus") == "Failed":
        return Found("The entrypoint is not what a shell can run.", shell, LIKELY)
    return (
        f"its jobStatus is {status.get('jobStatus') or 'empty'}"
        if scene.job
        else "its applications are not said to have failed"
    )


def _submitted_by_hand(scene: Scene) -> Found | str:
    """Of a job that somebody handed in to a RayCluster: what the logs say of its end."""
    for log in scene.logs:
        lines = [line.strip() for line in log.text.splitlines()]
        if failed := [line for line in lines if JOB_FAILED.search(line)]:
            said = "A job that was handed in to the cluster failed by itself."
            errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b.*", line)]
            shown = [Evidence(line[:300], log.command) for line in (*failed[-1:], *errors[-1:])]
            return Found(said, tuple(shown), POSSIBLE)
    return ""


def _app_messages(scene: Scene) -> list[Evidence]:
    """What a RayService says of applications that failed."""
    found = []
    for part in ("activeServiceStatus", "pendingServiceStatus"):
        apps = (((scene.service or {}).get("status") or {}).get(part) or {}).get("applicationStatuses") or {}
        for name, app in apps.items():
            bad = app.get("status") in ("DEPLOY_FAILED", "UNHEALTHY")
            parts = [
                f"{key} {one.get('status')}: {one.get('message') or ''}"
                for key, one in (app.get("serveDeploymentStatuses") or {}).items()
                if one.get("status") in ("UNHEALTHY", "DEPLOY_FAILED")
            ]
            if bad or parts:
                told = " ".join(f"{name} {app.get('status')}: {app.get('message') or ''} {'; '.join(parts)}".split())
                found.append(Evidence(told[:400], f"kubectl get rayservice {scene.name} -o yaml"))
    return found

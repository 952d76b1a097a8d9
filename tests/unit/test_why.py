"""Why a cluster does not move: each cause from texts of the real programs, near misses, two faults, bad input."""

from __future__ import annotations

import json
import random

import pytest
import yaml

from helpers.errors import CourseError
from helpers.observe import causes, texts
from helpers.observe.diagnose import diagnose, why
from helpers.observe.scene import Scene
from helpers.observe.snapshot import Snapshot, from_file, from_mapping, from_text
from tests.unit.dumps import (
    NOW,
    ago,
    box,
    cluster,
    ended,
    event,
    group,
    head,
    node,
    node_text,
    of_job,
    pod,
    rayjob,
    running,
    snapshot,
    status,
    thing,
    unplaced,
    waiting,
    waiting_worker,
)

OWN = ("sky-small-worker-aaaaa", "sky-small-worker-bbbbb")
WORKERS = [pod(name) for name in OWN]
HEALTHY = [cluster(), head(), *WORKERS]
STAMP = "2026-05-04 11:5{},000"
MANY = " {'CPU': 1.0}: 40+ pending tasks/actors"
FULL = " 8.0/8.0 CPU"


def seen(*objects, **known) -> Snapshot:
    return snapshot(*objects, **known)


def with_events(*events, objects=None, **known) -> Snapshot:
    return snapshot(*(objects or HEALTHY), *events, **known)


def created(name, seconds):
    return event("RayCluster", "sky", "CreatedWorkerPod", f"Created worker Pod ml/{name}", seconds=seconds)


def removed(name, seconds, text="Deleted pod ml/{}"):
    return event("RayCluster", "sky", "DeletedWorkerPod", text.replace("{}", name), seconds=seconds)


def unfit(name, message="0/3 nodes are available: 3 Insufficient cpu.", **more):
    return event("Pod", name, "FailedScheduling", message, component="default-scheduler", **more)


def rounds(*times):
    """Pods of a group that came and went: from second to second before now."""
    made = [created(f"sky-small-worker-{number:05}", first) for number, (first, _) in enumerate(times)]
    gone = [
        removed(f"sky-small-worker-{number:05}", last) for number, (_, last) in enumerate(times) if last is not None
    ]
    return [*made, *gone]


def policy(**spec):
    return thing("NetworkPolicy", "strict", spec={"podSelector": {}, **spec})


def upgrade(*pods, nodes=(), events=()):
    both = {
        "activeServiceStatus": {"rayClusterName": "talk-old"},
        "pendingServiceStatus": {"rayClusterName": "talk-new"},
    }
    service = thing("RayService", "talk", spec={"rayClusterConfig": cluster()["spec"]}, status=both)
    made = [of_job(cluster(name), "talk", "RayService") for name in ("talk-old", "talk-new")]
    old = [head("talk-old-head-a", of="talk-old"), pod("talk-old-small-worker-a", of="talk-old", limits={"cpu": "8"})]
    return snapshot(service, *made, *old, head("talk-new-head-a", of="talk-new"), *pods, *nodes, *events)


NEW = unplaced("talk-new-small-worker-a", of="talk-new", limits={"cpu": "8"})
DIED = (
    "Deleted head Pod ml/sky-head-old11; Pod status: Failed; Pod restart policy: Never; Ray container terminated"
    " status: nil"
)
OOM_TEXT = "&ContainerStateTerminated{ExitCode:137,Signal:0,Reason:OOMKilled,Message:,}"
UNANSWERED = (
    "74 seconds elapsed: Waiting for GCS to be ready.\n"
    "[2026-05-04 11:58:26,616 W 151 151] rpc_client.h:153: Failed to connect to GCS at address"
    " sky-head-svc:6379 within 5 seconds.\n"
    "151 seconds elapsed: Still waiting for GCS to be ready."
)
WAIT_LOG = "sky-small-worker-aaaaa/wait-gcs-ready"
SCALER = "sky-head-abcde/autoscaler"
GPU = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
GPU_GROUP = group("big", 1, 0, 1, limits=GPU)


def not_admitted(message):
    """The worker with the GPU, which the kubelet has refused."""
    status = {"reason": "UnexpectedAdmissionError", "message": message}
    return pod("sky-big-worker-a", "big", limits=GPU, ready=False, phase="Failed", status=status)


BUSY_SCALER = {"top": "POD NAME CPU(cores) MEMORY(bytes)\nsky-head-abcde autoscaler 498m 300Mi\n"}
FULL_GROUP = cluster("sky", group("small", 2, 0, 2))
CLOSED = "Deleted pod ml/{}"

# cause: dumps that have it, as programs write them
FOUND: dict[str, list[Snapshot]] = {
    "rbac-denied": [
        with_events(
            logs={
                SCALER: (
                    r'{"kind":"Status","message":"rayclusters.ray.io \"sky\" is forbidden: User'
                    r' \"system:serviceaccount:ml:own\" cannot patch resource \"rayclusters\"","code":403}'
                )
            }
        ),
        seen(
            *HEALTHY,
            exec={"kubectl auth can-i patch rayclusters -n ml --as=system:serviceaccount:ml:own": "no\n"},
            ray_status=status(pending=" small, 2 launching", demands=MANY),
        ),
        with_events(
            logs={
                SCALER: (
                    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url:"
                    " https://10.0.0.1:443/api/v1/namespaces/ml/pods"
                )
            }
        ),
        with_events(
            event(
                "RayCluster",
                "sky",
                "FailedToCreateRole",
                (
                    'Failed creating role ml/sky, roles.rbac.authorization.k8s.io "sky" is forbidden: user'
                    ' "system:serviceaccount:ray:op" (groups=["system:serviceaccounts"]) is attempting to grant'
                    " RBAC permissions not currently held"
                ),
            )
        ),
        with_events(
            event(
                "RayCluster",
                "sky",
                "FailedToCreateWorkerPod",
                (
                    "Failed to create worker Pod for the cluster ml/sky, pods is forbidden: User"
                    ' "system:serviceaccount:ray:op" cannot create resource "pods" in API group "" in the'
                    ' namespace "ml"'
                ),
            )
        ),
        seen(
            cluster(),
            event(
                "RayCluster",
                "sky",
                "AutoscalerServiceAccountNotFound",
                (
                    "Failed to reconcile RayCluster ml/sky. If users specify ServiceAccountName for the head Pod,"
                    " they need to create a ServiceAccount themselves."
                ),
            ),
        ),
    ],
    "quota-needs-limits": [
        seen(
            cluster(),
            head(),
            event(
                "RayCluster",
                "sky",
                "FailedToCreateWorkerPod",
                (
                    'Failed to create worker Pod for the cluster ml/sky, pods "sky-small-worker-x" is forbidden:'
                    " failed quota: team: must specify limits.cpu for: ray-worker; limits.memory for: ray-worker"
                ),
            ),
        ),
        seen(
            cluster(
                status={
                    "conditions": [
                        {
                            "type": "ReplicaFailure",
                            "status": "True",
                            "message": 'pods "p" is forbidden: failed quota: q: must specify requests.memory for: tool',
                        }
                    ]
                }
            ),
            head(),
        ),
    ],
    "quota-exceeded": [
        seen(
            cluster(),
            event(
                "RayCluster",
                "sky",
                "FailedToCreateHeadPod",
                (
                    'Failed to create head Pod ml/, pods "sky-head-x" is forbidden: exceeded quota: team,'
                    " requested: limits.memory=4Gi, used: limits.memory=62Gi, limited: limits.memory=64Gi"
                ),
            ),
        ),
        seen(
            cluster(),
            head(),
            event(
                "RayCluster",
                "sky",
                "FailedToCreateWorkerPod",
                (
                    '(combined from similar events): Failed to create worker Pod for the cluster ml/sky, pods "w"'
                    " is forbidden: exceeded quota: pods, requested: pods=1, used: pods=3, limited: pods=3"
                ),
                count=40,
            ),
        ),
        seen(
            rayjob(),
            of_job(cluster()),
            head(),
            *WORKERS,
            of_job(thing("Job", "fit", status={})),
            event(
                "Job",
                "fit",
                "FailedCreate",
                (
                    'Error creating: pods "fit-k2" is forbidden: exceeded quota: team, requested:'
                    " requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=8, limited:"
                    " requests.nvidia.com/gpu=8"
                ),
            ),
        ),
    ],
    "scheduling-gated": [
        seen(
            cluster(),
            head(),
            unplaced("w", status={})
            | {
                "spec": {"schedulingGates": [{"name": "corp.example/budget"}], "containers": [box("ray-worker")]},
                "status": {"phase": "Pending"},
            },
        ),
    ],
    "image-pull-failed": [
        seen(
            cluster(),
            head(),
            pod(
                OWN[0],
                age=300,
                ready=False,
                init=waiting("ImagePullBackOff", 'Back-off pulling image "rayproject/ray:2.6o.0"'),
                state=waiting("PodInitializing"),
            ),
        ),
        seen(cluster(), head(ready=False, state=waiting("ErrImagePull", "manifest unknown"))),
        seen(cluster(), head(), pod(OWN[0], ready=False, state=waiting("InvalidImageName"), phase="Pending")),
    ],
    "version-mismatch": [
        seen(
            cluster(),
            head(),
            waiting_worker(),
            logs={
                WAIT_LOG: (
                    "151 seconds elapsed: Still waiting for GCS to be ready.\nRuntimeError: Ray version mismatch:"
                    " cluster has Ray version 2.60.0 but local Ray version is 2.52.0"
                )
            },
        ),
        seen(cluster(), head(), waiting_worker(image="rayproject/ray:2.52.0-py311")),
        seen(
            cluster(),
            head(),
            pod(
                OWN[0],
                ready=False,
                restarts=3,
                state=waiting("CrashLoopBackOff"),
                last=ended(1),
                age=600,
                policy="Always",
            ),
            logs={
                f"{OWN[0]}/ray-worker (previous)": (
                    "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python:"
                    " 3.11.9\nThis process on 10.1.0.9 was started with:\n    Ray: 2.60.0\n    Python: 3.10.4"
                )
            },
        ),
        seen(cluster(), head(), pod(OWN[0], ready=False, image="rayproject/ray:2.60.0-py310-gpu", age=900)),
    ],
    "upgrade-needs-double-capacity": [
        upgrade(NEW),
        upgrade(NEW, nodes=[node("m-1", cpu="12")]),
        upgrade(
            NEW,
            events=[
                event(
                    "Pod",
                    NEW["metadata"]["name"],
                    "NotTriggerScaleUp",
                    "pod didn't trigger scale-up: 1 max node group size reached",
                    component="cluster-autoscaler",
                )
            ],
        ),
    ],
    "spill-filled-disk": [
        seen(
            cluster(),
            head(),
            pod(
                OWN[0],
                ready=False,
                phase="Failed",
                state=ended(137, "Error"),
                status={
                    "reason": "Evicted",
                    "message": "Pod ephemeral local storage usage exceeds the total limit of containers 20Gi. ",
                },
            ),
        ),
        with_events(
            logs={
                f"{OWN[0]}/ray-worker": (
                    "(raylet) Spilled 90112 MiB, 21000 objects, write throughput 500 MiB/s.\nOSError: [Errno 28]"
                    " No space left on device"
                )
            }
        ),
        with_events(
            event(
                "Pod",
                "sky-small-worker-old11",
                "Evicted",
                "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 1Gi.",
                component="kubelet",
            )
        ),
    ],
    "head-evicted-node-scale-down": [
        seen(
            cluster(),
            unplaced("sky-head-new11", "headgroup", age=60),
            *WORKERS,
            event("Pod", "sky-head-old11", "Evicted", "Evicted pod: Underutilized", component="karpenter", seconds=90),
        ),
        seen(
            cluster(),
            head("sky-head-new11", age=100),
            *WORKERS,
            event(
                "Pod",
                "sky-head-old11",
                "ScaleDown",
                "deleting pod for node scale down",
                component="cluster-autoscaler",
                seconds=140,
            ),
        ),
        seen(
            cluster(),
            head(
                ready=False,
                metadata={"deletionTimestamp": ago(5)},
                status={
                    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
                },
            ),
            node("m-1") | {"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}},
        ),
        seen(
            cluster(),
            head("sky-head-new11", age=60),
            event("Pod", "sky-head-old11", "Killing", "Stopping container ray-head", seconds=80),
            event("Node", "m-7", "DisruptionTerminating", "Disrupting Node: Empty", component="karpenter", seconds=95),
        ),
    ],
    "spot-interruption": [
        seen(
            *HEALTHY,
            node("m-2"),
            event("Node", "m-2", "SpotInterrupted", "Spot interruption warning was triggered", component="karpenter"),
            pod("sky-small-worker-ccccc", age=20),
        ),
        seen(
            cluster(),
            head(),
            WORKERS[0],
            pod(OWN[1], node="m-2", metadata={"deletionTimestamp": ago(5)}),
            node("m-1"),
            node("m-2")
            | {"spec": {"taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]}},
        ),
        with_events(
            event(
                "Node",
                "m-1",
                "SpotInterrupted",
                "Spot interruption warning was triggered for the node",
                component="karpenter",
            )
        ),
        seen(
            cluster(),
            head(),
            pod(
                OWN[0],
                ready=False,
                phase="Failed",
                state=ended(137),
                status={"reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown."},
            ),
            node("m-1", {"cloud.google.com/gke-spot": "true"}),
        ),
        seen(cluster(), head(), *WORKERS, node("m-1", {"karpenter.sh/capacity-type": "spot"}, ready=False)),
    ],
    "head-oom": [
        seen(
            cluster(),
            head(ready=False, restarts=2, state=waiting("CrashLoopBackOff"), last=ended(137, "OOMKilled")),
            *WORKERS,
        ),
        seen(cluster(), head(restarts=1, last=ended(137, "OOMKilled", 300), policy="Always"), *WORKERS),
        seen(
            cluster(),
            head("sky-head-new11", age=30),
            *WORKERS,
            event(
                "RayCluster",
                "sky",
                "DeletedHeadPod",
                (
                    "Deleted head Pod ml/sky-head-old11; Pod status: Running; Pod restart policy: Never; Ray"
                    f" container terminated status: {OOM_TEXT}"
                ),
                seconds=40,
            ),
        ),
        with_events(
            logs={
                "sky-head-abcde/ray-head": (
                    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on"
                    " memory.\nMemory on the node (IP: 10.1.0.1, ID: abc) where the task was running was 3.9GB /"
                    " 4.0GB"
                )
            }
        ),
    ],
    "probe-too-strict": [
        seen(
            cluster(),
            head(ready=False),
            *WORKERS,
            event(
                "Pod",
                "sky-head-abcde",
                "Unhealthy",
                (
                    'Readiness probe failed: Get "http://10.1.0.1:52365/api/healthz": context deadline exceeded'
                    " (Client.Timeout exceeded while awaiting headers)"
                ),
                count=90,
                component="kubelet",
            ),
        ),
        seen(
            cluster(),
            head(restarts=4, last=ended(137, "Error", 100, 70), policy="Always"),
            *WORKERS,
            event(
                "Pod",
                "sky-head-abcde",
                "Unhealthy",
                (
                    'Liveness probe failed: Get "http://10.1.0.1:52365/api/healthz": dial tcp 10.1.0.1:52365:'
                    " connect: connection refused"
                ),
                count=12,
                component="kubelet",
            ),
            event(
                "Pod",
                "sky-head-abcde",
                "Killing",
                "Container ray-head failed liveness probe, will be restarted",
                count=4,
                component="kubelet",
            ),
        ),
    ],
    "ray-crash": [
        seen(
            cluster(),
            head(),
            WORKERS[0],
            pod(OWN[1], phase="Failed", ready=False, state=ended(1)),
            logs={
                "sky-small-worker-bbbbb/ray-worker": (
                    "[2026-05-04 11:58:28,001 C 88 88] (raylet) worker_pool.cc:640:  Check failed: state\n"
                    "*** StackTrace Information ***"
                )
            },
        ),
        seen(
            cluster(),
            head(),
            WORKERS[0],
            pod(OWN[1], phase="Failed", ready=False, state=ended(1)),
            logs={
                "sky-small-worker-bbbbb/ray-worker": (
                    "Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user"
                )
            },
        ),
        seen(
            cluster(),
            head(ready=False, restarts=3, state=waiting("CrashLoopBackOff"), last=ended(1), policy="Always"),
            *WORKERS,
            logs={
                "sky-head-abcde/ray-head (previous)": (
                    "Some Ray subprocesses exited unexpectedly:\n  gcs_server [exit code=-6]"
                )
            },
        ),
        seen(
            cluster(),
            head(),
            pod(OWN[0], ready=False, restarts=2, state=waiting("CrashLoopBackOff"), last=ended(139), policy="Always"),
        ),
    ],
    "head-not-restarted": [
        # the operator does not run: its condition is of before
        seen(
            cluster(status={"conditions": [{"type": "HeadPodReady", "status": "True"}]}),
            *WORKERS,
            event("Pod", "sky-head-abcde", "Killing", "Stopping container ray-head", seconds=1200),
        ),
        seen(cluster(), head(ready=False, phase="Failed", state=ended(0, "Completed", 900)), *WORKERS),
        seen(
            cluster(
                status={
                    "state": "ready",
                    "conditions": [
                        {
                            "type": "HeadPodReady",
                            "status": "False",
                            "reason": "HeadPodNotFound",
                            "lastTransitionTime": ago(600),
                        }
                    ],
                }
            ),
            *WORKERS,
        ),
    ],
    "head-not-ready": [
        seen(
            cluster(), head(ready=False, age=500, state=waiting("ContainerCreating"), phase="Pending"), waiting_worker()
        ),
        seen(
            cluster(),
            head(ready=False, age=90, state=waiting("CreateContainerConfigError", "secret not found"), phase="Pending"),
            waiting_worker(age=60),
        ),
    ],
    "node-autoscaler-blocked": [
        seen(
            cluster(),
            head(),
            unplaced("w1"),
            unfit("w1"),
            event(
                "Pod",
                "w1",
                "FailedScheduling",
                (
                    "Failed to schedule pod, incompatible requirements, key group, group In [tpu] not in group In"
                    " [cpu]; did not tolerate taint (taint=nvidia.com/gpu=present:NoSchedule)"
                ),
                component="karpenter",
            ),
        ),
        seen(
            cluster(),
            head(),
            unplaced("w1"),
            event(
                "Pod",
                "w1",
                "TriggeredScaleUp",
                "pod triggered scale-up: [{p 0->1 (max: 1)}]",
                seconds=900,
                component="cluster-autoscaler",
            ),
            event(
                "Pod",
                "w1",
                "FailedScaleUp",
                "Node scale up in zones us-central1-a associated with this pod failed: GCE out of resources.",
                seconds=20,
                component="cluster-autoscaler",
            ),
        ),
        seen(
            cluster(),
            head(),
            unplaced("w1"),
            event(
                "NodeClaim",
                "gpu-vs4p4",
                "InsufficientCapacityError",
                "NodeClaim gpu-vs4p4 event: insufficient capacity, no stock: g.1x/zone-a/on-demand",
                component="karpenter",
            ),
        ),
    ],
    "no-node-autoscaler": [
        seen(
            cluster(),
            head(),
            unplaced("w1", age=900, message="0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}."),
        ),
        seen(cluster(), head(), unplaced("w1", age=900), unfit("w1", count=9, first=890), node("m-1")),
    ],
    "allocation-timeout": [
        with_events(
            objects=[cluster(), head(), unplaced("sky-small-worker-cc", age=40)],
            logs={
                SCALER: (
                    f"{STAMP.format('0:00')}\tINFO instance_manager.py:263 -- Update instance"
                    " ALLOCATED->ALLOCATION_TIMEOUT (id=8f0c, type=small, cloud_instance_id=sky-small-worker-aa,"
                    " ray_id=): timeout=300s at status ALLOCATED"
                )
            },
        ),
        seen(cluster(), head(), waiting_worker("sky-small-worker-00001", age=100), *rounds((720, 410), (405, 100))),
    ],
    "waiting-for-node": [
        seen(
            cluster(),
            head(),
            unplaced("w1", age=60),
            unfit("w1"),
            event("Pod", "w1", "Nominated", "Pod should schedule on: nodeclaim/gpu-m4t84", component="karpenter"),
        ),
        seen(
            cluster(),
            head(),
            unplaced("w1", age=60),
            thing(
                "NodeClaim",
                "cpu-x1",
                status={
                    "conditions": [{"type": "Launched", "status": "True"}, {"type": "Initialized", "status": "Unknown"}]
                },
            ),
        ),
    ],
    "insufficient-node-capacity": [
        seen(cluster(), head(), unplaced("w1", age=40), unfit("w1")),
        seen(cluster(), head(), unplaced("w1", age=900), thing("NodePool", "cpu")),
    ],
    "init-oom": [
        seen(
            cluster(),
            head(),
            pod(OWN[0], age=200, ready=False, init=ended(137, "OOMKilled", 5), state=waiting("PodInitializing")),
        ),
    ],
    "dns-blocked": [
        seen(
            cluster(),
            head(),
            waiting_worker(),
            exec={
                "kubectl exec sky-small-worker-aaaaa -c wait-gcs-ready -- ping -c 1 sky-head-svc": (
                    "ping: sky-head-svc: Name or service not known\ncommand terminated with exit code 2"
                )
            },
        ),
        seen(
            cluster(),
            head(),
            waiting_worker(),
            exec={
                "kubectl exec sky-small-worker-aaaaa -- python3 -c 'socket.gethostbyname(\"sky-head-svc\")'": (
                    "socket.gaierror: [Errno -3] Temporary failure in name resolution"
                )
            },
            logs={WAIT_LOG: UNANSWERED},
        ),
        seen(
            cluster(),
            head(),
            waiting_worker(),
            thing("Pod", "coredns-7d-x", status={"conditions": [{"type": "Ready", "status": "False"}]}),
            logs={WAIT_LOG: UNANSWERED},
        ),
        seen(
            cluster(),
            head(),
            waiting_worker(),
            policy(policyTypes=["Egress"], egress=[{"ports": [{"port": 6379}]}]),
            logs={WAIT_LOG: UNANSWERED},
        ),
        seen(
            cluster(),
            head(),
            waiting_worker(),
            logs={WAIT_LOG: UNANSWERED},
            exec={
                "kubectl exec w -- nslookup sky-head-svc": (
                    ";; connection timed out; no servers could be reached\ncommand terminated with exit code 1"
                )
            },
        ),
        seen(
            cluster(),
            head(),
            waiting_worker(),
            logs={WAIT_LOG: "socket.gaierror: [Errno -3] Temporary failure in name resolution"},
        ),
        seen(cluster(), head(), waiting_worker(), policy(policyTypes=["Egress"]), logs={WAIT_LOG: UNANSWERED}),
    ],
    "network-blocked": [
        seen(
            cluster(),
            head(),
            waiting_worker(),
            policy(podSelector={"matchLabels": {"ray.io/node-type": "head"}}, ingress=[{"ports": [{"port": 8265}]}]),
            logs={WAIT_LOG: UNANSWERED},
        ),
        seen(
            cluster(),
            head(),
            waiting_worker(),
            policy(
                policyTypes=["Egress"],
                egress=[
                    {"to": [{"namespaceSelector": {}}], "ports": [{"port": 53, "protocol": "UDP"}]},
                    {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]},
                ],
            ),
            logs={WAIT_LOG: UNANSWERED},
        ),
        seen(
            cluster(),
            head(),
            waiting_worker(),
            logs={WAIT_LOG: UNANSWERED},
            exec={
                "kubectl exec w -- getent hosts sky-head-svc": "10.1.0.1 sky-head-svc",
                "kubectl exec w -- nc -zv -w 3 10.1.0.1 6379": (
                    "nc: connect to 10.1.0.1 port 6379 (tcp) timed out: Operation now in progress"
                ),
            },
        ),
        seen(cluster(), head(), waiting_worker(), logs={WAIT_LOG: UNANSWERED}),
    ],
    "init-throttled": [
        seen(cluster(), head(), waiting_worker(), logs={WAIT_LOG: "\n"}),
        seen(
            cluster(),
            head(),
            waiting_worker(),
            logs={WAIT_LOG: "20 seconds elapsed: Waiting for GCS to be ready.\nKilled\n"},
            top=f"POD NAME CPU MEMORY\n{OWN[0]} wait-gcs-ready 195m 90Mi",
        ),
    ],
    "workers-never-register": [
        seen(
            cluster(),
            head(),
            *(pod(name, ready=False, age=200) for name in OWN),
            ray_status=status(active=" 1 headgroup", pending=f" {OWN[0]}: small, starting ray", demands=MANY),
        ),
        seen(
            cluster(),
            head(),
            pod(OWN[0], ready=False, age=400),
            event("Pod", OWN[0], "Unhealthy", "Readiness probe failed: ", count=60),
        ),
        seen(
            cluster(),
            head(),
            pod(OWN[0], ready=False, age=400),
            event("Pod", OWN[0], "Unhealthy", "Readiness probe failed: command timed out", count=60),
            ray_status=status(active=" 1 headgroup"),
        ),
    ],
    "autoscaler-config-error": [
        with_events(
            logs={
                SCALER: (
                    "Traceback (most recent call last):\nValueError: Autoscaler failed to detect `CPU` resources"
                    " for group big.\nSet the `--num-cpus` rayStartParam and/or the CPU resource limit for the"
                    " Ray container."
                )
            }
        ),
        seen(
            cluster("sky", group("bare", limits={})),
            head(
                sidecars={"autoscaler": waiting("CrashLoopBackOff")},
                status={
                    "containerStatuses": [
                        {"name": "ray-head", "ready": True, "state": running()},
                        {
                            "name": "autoscaler",
                            "ready": False,
                            "restartCount": 6,
                            "state": waiting("CrashLoopBackOff"),
                            "lastState": ended(1),
                        },
                    ]
                },
            ),
        ),
        with_events(
            logs={
                f"{SCALER} (previous)": (
                    "ERROR autoscaling_config.py:552 -- Error reading `resource` rayStartParam for group small."
                    " For the correct format, refer to example configuration"
                )
            }
        ),
    ],
    "autoscaler-not-enabled": [
        # idle, above the minimum, and nobody takes them away
        seen(
            cluster("sky", group("small", 2, 0, 8), enableInTreeAutoscaling=False),
            head(sidecars={}),
            *WORKERS,
            ray_status=status(active=" 1 headgroup", idle=" 2 small"),
        ),
        # switched on when the head was there already: the sidecar comes with a new head only
        seen(cluster(), head(sidecars={}), *WORKERS, ray_status=status(usage=FULL, demands=MANY)),
        seen(
            cluster(enableInTreeAutoscaling=False),
            head(sidecars={}),
            *WORKERS,
            ray_status=status(demands=MANY, usage=FULL),
        ),
        seen(cluster("sky", group(replicas=0), enableInTreeAutoscaling=None), head(sidecars={})),
    ],
    "autoscaler-cpu-starved": [
        with_events(
            ray_status=status(
                demands="\n".join(f" {{'CPU': 1.0, 'shape{n}': 1.0}}: 1+ pending tasks/actors" for n in range(150)),
                usage=FULL,
            ),
            **BUSY_SCALER,
            objects=[cluster("sky", group()), head(), *WORKERS],
        ),
        with_events(
            logs={
                SCALER: "INFO autoscaler.py:470 -- The autoscaler took 95.2 seconds to complete the update iteration."
            },
            **BUSY_SCALER,
        ),
        with_events(
            ray_status=status(
                times="GCS request time: 0.01s\nAutoscaler iteration time: 88.0s\n\n", demands=MANY, usage=FULL
            )
        ),
    ],
    "api-timeout-false-idle": [
        with_events(
            removed(OWN[0], 20),
            logs={
                SCALER: (
                    f"{STAMP.format('0:00')} ERROR -- Error in monitor\nrequests.exceptions.ConnectionError:"
                    f" ('Connection aborted.')\n{STAMP.format('0:40')} INFO event_logger.py:97 -- Removing 12"
                    " nodes of type small (idle)."
                )
            },
            ray_status=status(usage=" 47.0/48.0 CPU"),
        ),
        with_events(
            logs={
                SCALER: (
                    f"{STAMP.format('0:00')} requests.exceptions.HTTPError: 504 Server Error: Gateway Timeout for"
                    f" url: https://k/api/v1/namespaces/ml/pods\n{STAMP.format('0:09')} INFO --"
                    " StandardAutoscaler: Terminating the node with id sky-small-worker-aaaaa and ip 10.1.0.9."
                    " (idle)"
                )
            }
        ),
    ],
    "two-writers": [
        seen(
            cluster(
                "sky",
                group(replicas=1),
                metadata={
                    "managedFields": [
                        {"manager": "kustomize-controller", "operation": "Apply", "time": ago(20)},
                        {"manager": "python-requests", "operation": "Update", "time": ago(60)},
                    ]
                },
            ),
            head(),
            *WORKERS,
        ),
        seen(
            cluster(),
            head(),
            *WORKERS,
            removed("sky-small-worker-ccccc", 40, "Deleted Pod ml/{}"),
            logs={
                SCALER: (
                    f"{STAMP.format('0:00')} Adding 3 node(s) of type small.\n{STAMP.format('3:00')} Adding 3"
                    " node(s) of type small."
                )
            },
        ),
        seen(
            cluster(
                "sky",
                group(replicas=2),
                metadata={
                    "managedFields": [
                        {"manager": "kubectl-edit", "operation": "Update", "time": ago(9)},
                        {"manager": "python-requests", "operation": "Update", "time": ago(60)},
                    ]
                },
            ),
            head(),
            *WORKERS,
            ray_status=status(demands=MANY, usage=FULL),
        ),
    ],
    "launch-request-swallowed": [
        with_events(
            ray_status=status(pending=" small, 3 launching", demands=MANY, usage=FULL),
            logs={SCALER: f"{STAMP.format('0:00')} INFO event_logger.py:77 -- Adding 3 node(s) of type small."},
        ),
        with_events(
            ray_status=status(pending=" small, 1 launching", demands=MANY, usage=FULL),
            logs={
                SCALER: (
                    "Update instance REQUESTED->QUEUED (id=1, type=small, cloud_instance_id=, ray_id=): queue"
                    " again to launch after timeout=600s"
                )
            },
        ),
    ],
    "infeasible-demand": [
        # an autoscaler would not help
        seen(
            cluster("sky", group("small", 2, 2, 2), enableInTreeAutoscaling=False),
            head(sidecars={}),
            *WORKERS,
            ray_status=status(usage=FULL, demands=" {'TPU': 4.0}: 1+ pending tasks/actors"),
        ),
        seen(
            cluster("sky", group(labels={"zone": "north"})),
            head(),
            *WORKERS,
            ray_status=status(idle=" 2 small", active=" 1 headgroup", demands=" {'CPU': 2.0}: 3+ pending tasks/actors"),
            logs={
                SCALER: (
                    "No available node types can fulfill resource requests {'CPU': 2.0}*3 with label selectors: [zone"
                    " LABEL_OPERATOR_IN [south,east]]. Add suitable node types to this cluster to resolve this issue."
                )
            },
        ),
        with_events(ray_status=status(demands=" {'CPU': 16.0}: 1+ pending tasks/actors", usage=FULL)),
        with_events(
            ray_status=status(demands=" {'CPU': 1.0, 'TPU': 4.0}: 2+ pending tasks/actors (2+ using placement groups)")
        ),
        with_events(
            ray_status=status(demands=" {'CPU': 3.0} * 2 (STRICT_PACK): 1+ pending placement groups", usage=FULL)
        ),
        with_events(
            logs={
                SCALER: (
                    "WARNING event_logger.py:140 -- No available node types can fulfill resource requests {'GPU':"
                    " 2.0}*1. Add suitable node types to this cluster to resolve this issue."
                )
            }
        ),
        with_events(ray_status=status(requests=" {'GPU': 8.0}: 1 from request_resources()")),
    ],
    "max-replicas-reached": [
        seen(FULL_GROUP, head(), *WORKERS, ray_status=status(demands=MANY, usage=FULL)),
        seen(
            FULL_GROUP,
            head(),
            *WORKERS,
            ray_status=status(
                failures=" small: LaunchFailed (latest_attempt: 11:59:01) - Launch capped by maxReplicas limit.",
                demands=MANY,
                usage=FULL,
            ),
        ),
        seen(
            FULL_GROUP,
            head(),
            *WORKERS,
            logs={
                SCALER: (
                    "No available node types can fulfill resource requests {'CPU': 1.0}*12, {'CPU': 2.0}*1. Add"
                    " suitable node types"
                )
            },
        ),
        seen(
            cluster("sky", group(most=0, replicas=0)),
            head(),
            ray_status=status(active=" 1 headgroup", usage=" 0.0/0.0 CPU", demands=MANY),
        ),
    ],
    "worker-oom": [
        seen(
            cluster(),
            head(),
            pod(OWN[0], ready=False, restarts=1, last=ended(137, "OOMKilled"), policy="Always"),
            WORKERS[1],
        ),
        with_events(
            removed(
                OWN[0],
                20,
                (
                    "Deleted worker Pod ml/{}; Pod status: Failed; Pod restart policy: Never; Ray container"
                    " terminated status: "
                )
                + OOM_TEXT,
            )
        ),
        with_events(
            logs={
                "sky-head-abcde/ray-head": (
                    "(raylet, ip=10.1.0.9) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0"
                    " Workers crashed due to other reasons at node (ID: ab, IP: 10.1.0.9) over the last time"
                    " period."
                )
            }
        ),
    ],
    "driver-off-gpu": [
        seen(
            cluster("sky", GPU_GROUP),
            head(),
            pod("sky-big-worker-a", "big", limits=GPU),
            logs={"sky-head-abcde/ray-head": "RuntimeError: No CUDA GPUs are available"},
            ray_status=status(usage=" 0.0/1.0 GPU", active=" 1 headgroup", idle=" 1 big"),
        ),
    ],
    "gpu-missing": [
        seen(
            cluster("sky", GPU_GROUP),
            head(),
            not_admitted(
                "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested:"
                " 1, Available: 0, which is unexpected"
            ),
        ),
        # the address says that it is on the worker with the GPU
        seen(
            rayjob(
                status={
                    "jobStatus": "FAILED",
                    "reason": "AppFailed",
                    "message": "exit code 1\n(fit pid=8, ip=10.1.0.9) RuntimeError: No CUDA GPUs are available",
                }
            ),
            of_job(cluster("sky", GPU_GROUP)),
            head(),
            pod("sky-big-worker-a", "big", limits=GPU),
        ),
        seen(
            cluster("sky", GPU_GROUP),
            head(),
            pod("sky-big-worker-aaaaa", "big", limits=GPU),
            exec={
                "kubectl exec -n ml sky-big-worker-aaaaa -- nvidia-smi": (
                    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\nexit code 9"
                )
            },
            ray_status=status(active=" 1 headgroup\n 1 big", usage=" 1.0/8.0 CPU\n 1.0/1.0 GPU"),
        ),
        # Ray is told of a GPU that the container does not have
        seen(
            cluster("sky", group(rayStartParams={"num-gpus": "1"})),
            head(),
            *WORKERS,
            ray_status=status(usage=" 1.0/8.0 CPU\n 1.0/2.0 GPU"),
            logs={"sky-small-worker-aaaaa/ray-worker": "RuntimeError: No CUDA GPUs are available"},
        ),
        seen(
            cluster("sky", GPU_GROUP),
            head(),
            pod("sky-big-worker-a", "big", limits=GPU),
            logs={"sky-big-worker-a/ray-worker": "(train pid=9) RuntimeError: Found no NVIDIA driver on your system."},
        ),
        seen(
            cluster("sky", GPU_GROUP),
            head(),
            not_admitted(
                "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate"
                " unhealthy devices nvidia.com/gpu"
            ),
        ),
        seen(
            cluster("sky", GPU_GROUP),
            head(),
            logs={"fit-a/ray-job-submitter": "RuntimeError: No CUDA GPUs are available"},
        ),
    ],
    "nccl-wrong-interface": [
        with_events(
            logs={
                f"{name}/ray-worker": f"{name}:7:7 [0] NCCL INFO NET/Socket : Using [0]virbr0:192.168.122.1<0>"
                for name in OWN
            }
        ),
        with_events(logs={f"{OWN[0]}/ray-worker": "w:1:1 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>"}),
    ],
    "submission-retries-exhausted": [
        # before the head is ready its Service has no address to give
        seen(
            rayjob(
                status={
                    "jobDeploymentStatus": "Failed",
                    "reason": "SubmissionFailed",
                    "message": "Job submission has failed. Reason: BackoffLimitExceeded.",
                }
            ),
            logs={
                "fit-x1/ray-job-submitter": (
                    "NameResolutionError: Failed to resolve 'sky-head-svc' ([Errno -2] Name or service not known)"
                )
            },
        ),
        seen(
            rayjob(
                status={
                    "jobDeploymentStatus": "Failed",
                    "reason": "SubmissionFailed",
                    "message": (
                        "Job submission has failed. Reason: BackoffLimitExceeded. Message: Job has reached the"
                        " specified backoff limit"
                    ),
                }
            ),
            of_job(cluster()),
            head(),
            *WORKERS,
        ),
    ],
    "sidecar-submitter-failed": [
        seen(
            rayjob(
                status={
                    "jobDeploymentStatus": "Failed",
                    "reason": "SubmissionFailed",
                    "message": "Ray head pod container ray-job-submitter terminated with exit code 1: Error",
                },
                submissionMode="SidecarMode",
            ),
            of_job(cluster()),
            head(),
        ),
        seen(
            rayjob(status={"jobDeploymentStatus": "Initializing"}, submissionMode="SidecarMode"),
            of_job(cluster()),
            head(ready=False, sidecars={"ray-job-submitter": ended(1)}),
            unplaced(OWN[0]),
        ),
    ],
    "app-failed": [
        # handed in to a RayCluster by hand
        seen(
            *HEALTHY,
            logs={
                "sky-head-abcde/ray-head": (
                    "ray.exceptions.RayTaskError(KeyError): ray::step() (pid=81)\nKeyError: 'lr'\n---\n"
                    "Job 'raysubmit_8Ab' failed\n---\n"
                    "Status message: Job entrypoint command failed with exit code 1"
                )
            },
        ),
        seen(
            rayjob(
                status={
                    "jobStatus": "FAILED",
                    "jobDeploymentStatus": "Failed",
                    "reason": "AppFailed",
                    "message": (
                        "Job entrypoint command failed with exit code 1, last available logs:\nZeroDivisionError:"
                        " division by zero"
                    ),
                }
            ),
            of_job(cluster()),
            head(),
            *WORKERS,
        ),
        seen(
            thing(
                "RayService",
                "talk",
                spec={"rayClusterConfig": {}},
                status={
                    "activeServiceStatus": {
                        "rayClusterName": "sky",
                        "applicationStatuses": {
                            "a": {"status": "DEPLOY_FAILED", "message": "ModuleNotFoundError: No module named 'app'"}
                        },
                    }
                },
            ),
            of_job(cluster(), "talk", "RayService"),
            head(),
            *WORKERS,
        ),
        seen(
            thing(
                "RayService",
                "talk",
                spec={"rayClusterConfig": {}},
                status={
                    "activeServiceStatus": {
                        "rayClusterName": "sky",
                        "applicationStatuses": {
                            "a": {
                                "status": "DEPLOYING",
                                "serveDeploymentStatuses": {"D": {"status": "UNHEALTHY", "message": "replica died"}},
                            }
                        },
                    }
                },
            ),
            of_job(cluster(), "talk", "RayService"),
            head(),
            *WORKERS,
        ),
    ],
    "job-deadline-exceeded": [
        seen(
            rayjob(
                status={
                    "jobDeploymentStatus": "Failed",
                    "reason": "PreRunningDeadlineExceeded",
                    "message": "The RayJob has passed the preRunningDeadlineSeconds.",
                }
            )
        ),
    ],
    "head-lost-during-job": [
        # no event is left; the head is younger than the job, and the cluster is not
        seen(
            rayjob(status={"jobStatus": "RUNNING", "jobDeploymentStatus": "Running", "startTime": ago(3500)}),
            of_job(cluster()),
            head("sky-head-new11", age=900),
            *WORKERS,
        ),
        seen(
            rayjob(
                status={
                    "jobStatus": "RUNNING",
                    "jobDeploymentStatus": "Failed",
                    "reason": "AppFailed",
                    "message": "Ray head pod not found.",
                },
                submissionMode="SidecarMode",
            )
        ),
        seen(
            rayjob(
                status={
                    "jobStatus": "RUNNING",
                    "jobDeploymentStatus": "Failed",
                    "reason": "AppFailed",
                    "message": "Submitter completed but Ray job not found in RayCluster.",
                }
            )
        ),
        seen(
            rayjob(status={"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}),
            of_job(cluster()),
            head("sky-head-new11", age=200),
            event("RayCluster", "sky", "DeletedHeadPod", DIED, seconds=230),
            event("RayCluster", "sky", "CreatedHeadPod", "Created head Pod ml/sky-head-new11", seconds=200),
        ),
    ],
    "min-floor-thrash": [
        seen(
            cluster("sky", group(replicas=2, least=2), rayVersion="2.37.0"),
            head(image="rayproject/ray:2.37.0"),
            *rounds((400, 335), (400, 335), (330, 260), (330, 260), (255, None), (255, None)),
            ray_status=status(),
        ),
    ],
    "idle-timeout-too-short": [
        seen(
            cluster(),
            head(),
            *rounds((1000, 700), (670, 400), (360, 150), (120, None)),
            pod("sky-small-worker-00003", age=120),
        ),
    ],
    "demand-bursty": [
        seen(
            cluster(),
            head(),
            *rounds((9000, 8400), (6000, 5400), (3000, 2400), (60, None)),
            pod("sky-small-worker-00003", age=60),
        ),
    ],
    "pinned-by-actor": [
        with_events(
            ray_status=status(nodes=node_text(OWN[0], activity="Busy workers on node.")),
            ray_list_actors=(
                "======== List ========\n    ACTOR_ID  CLASS_NAME  STATE  JOB_ID  NAME  NODE_ID  PID\n 0 "
                " 00aa11bb22cc33dd01000000  Cache  ALIVE  01000000    "
            )
            + "ab12" * 14
            + "  77",
        ),
        with_events(ray_status=status(nodes=node_text(OWN[0], activity="Busy workers on node."))),
        with_events(
            ray_status=status(
                usage=" 1.0/8.0 CPU",
                nodes=node_text(OWN[0], usage="1.0/4.0 CPU", activity="Resource: CPU currently in use."),
            ),
            ray_list_actors='[{"actor_id": "1", "class_name": "Env", "state": "ALIVE", "node_id": "'
            + "ab12" * 14
            + '"}]',
        ),
    ],
    "object-store-in-use": [
        # no table, and no first copy among what is in the store
        seen(
            *HEALTHY,
            ray_status=status(nodes=node_text(OWN[0], usage="50.00MiB/1.00GiB object_store_memory")),
            ray_memory="Plasma memory usage 50 MiB, 4 objects, 5.0% full, 0.0% needed",
        ),
        with_events(
            ray_status=status(
                nodes=node_text(
                    OWN[0],
                    usage="30.00MiB/4.00GiB object_store_memory",
                    activity="Resource: object_store_memory currently in use.",
                )
            ),
            ray_memory=(
                "Grouping by node address...        Sorting by object size...        Display all entries per"
                " group...\n\n\n--- Aggregate object store stats across all nodes ---\nPlasma memory usage 30"
                " MiB, 2 objects, 0.7% full, 0.7% needed\n"
            ),
        ),
    ],
    "pinned-by-object-refs": [
        # `ray status` was not asked for
        seen(
            *HEALTHY, ray_memory="10.1.0.1 | 31 | Driver | disabled | - | 1 | 52428944.0 B | LOCAL_REFERENCE | 00ff01"
        ),
        seen(
            *HEALTHY,
            ray_status=status(nodes=node_text(OWN[0], usage="50.00MiB/1.00GiB object_store_memory")),
            ray_memory="Plasma memory usage 50 MiB, 4 objects, 5.0% full, 2.5% needed",
        ),
        with_events(
            ray_status=status(
                nodes=node_text(
                    OWN[0],
                    usage="30.00MiB/4.00GiB object_store_memory",
                    activity="Resource: object_store_memory currently in use.",
                )
            ),
            ray_memory=(
                "Grouping by node address...\n--- Object references for node address: 10.1.0.1 ---\n10.1.0.1     "
                "  811    Driver  disabled                FINISHED        1         31457280.0 B  LOCAL_REFERENCE"
                "     00ffff0100\n"
            ),
        ),
        with_events(ray_status=status(usage=" 0.0/8.0 CPU\n 30.00MiB/8.00GiB object_store_memory")),
    ],
    "pinned-by-request-resources": [
        with_events(
            ray_status=status(
                active=" 1 headgroup", idle=" 2 small", requests=" {'CPU': 1.0}: 8 from request_resources()"
            )
        ),
    ],
    "min-replicas-floor": [
        seen(
            cluster("sky", group(least=2)), head(), *WORKERS, ray_status=status(active=" 1 headgroup", idle=" 2 small")
        ),
        seen(
            cluster("sky", group(least=2)),
            head(),
            *WORKERS,
            ray_status=status(
                active=" 1 headgroup",
                idle=" 2 small",
                nodes=node_text(OWN[0], idle_ms=900_000) + node_text(OWN[1], idle_ms=70_000),
            ),
        ),
    ],
    "idle-timeout-too-long": [
        seen(
            cluster(autoscalerOptions={"version": "v2", "idleTimeoutSeconds": 240}),
            head(),
            *WORKERS,
            ray_status=status(active=" 1 headgroup", idle=" 2 small", nodes=node_text(OWN[0], idle_ms=150_000)),
        ),
        seen(
            cluster(autoscalerOptions={"version": "v2", "idleTimeoutSeconds": 3600}),
            head(),
            *WORKERS,
            ray_status=status(active=" 1 headgroup", idle=" 2 small", nodes=node_text(OWN[0], idle_ms=600_000)),
        ),
        seen(
            cluster("sky", group(idleTimeoutSeconds=1800)),
            head(),
            *WORKERS,
            ray_status=status(active=" 1 headgroup", idle=" 2 small"),
        ),
    ],
}


# more of them, that came up after the first
FOUND["quota-exceeded"].append(
    seen(
        cluster("sky", group(replicas=4)),
        head(),
        *WORKERS,
        thing("ResourceQuota", "team", status={"hard": {"requests.cpu": "12"}, "used": {"requests.cpu": "10500m"}}),
    )
)
FOUND["idle-timeout-too-short"].append(
    seen(
        cluster(),
        head(),
        WORKERS[0],
        logs={
            SCALER: (
                "2026-05-04 11:40:00,000 Adding 1 node(s) of type small.\n"
                "2026-05-04 11:45:00,000 Removing 1 nodes of type small (idle).\n"
                "2026-05-04 11:45:40,000 Adding 1 node(s) of type small.\n"
                "2026-05-04 11:51:00,000 Removing 1 nodes of type small (idle).\n"
                "2026-05-04 11:51:20,000 Adding 1 node(s) of type small.\n"
            )
        },
    )
)
FOUND["gpu-missing"].append(
    seen(
        cluster("sky", GPU_GROUP),
        head(),
        unplaced(
            "sky-big-worker-a", "big", limits=GPU, message="0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
        ),
        node("m-1", {"nvidia.com/gpu.present": "true"}),
    )
)
FOUND["pinned-by-request-resources"].append(
    with_events(ray_status=status(requests=" {'CPU': 4.0}: 2 from request_resources()"))
)
FOUND["probe-too-strict"].append(
    seen(
        cluster(),
        head(),
        pod(OWN[0], ready=False),
        event(
            "Pod", OWN[0], "Unhealthy", 'Readiness probe failed: command timed out: "bash -c wget" timed out', count=30
        ),
    )
)
FOUND["head-not-restarted"].append(
    seen(cluster(), head(ready=False, phase="Failed", state=ended(1, "Error", 900)), *WORKERS)
)
FOUND["spot-interruption"].append(
    with_events(event("Node", "m-1", "SpotInterruption", "Spot ITN received. Instance will be interrupted soon"))
)
FOUND["two-writers"].append(
    seen(
        cluster(
            "sky",
            group(replicas=5),
            metadata={
                "managedFields": [
                    {"manager": "argocd-controller", "operation": "Update", "time": ago(200)},
                    {"manager": "python-requests", "operation": "Update", "time": ago(190)},
                ]
            },
        ),
        head(),
        *(pod(f"sky-small-worker-{n}") for n in range(5)),
        logs={
            SCALER: (
                "2026-05-04 11:51:00,000 Adding 3 node(s) of type small.\n"
                "2026-05-04 11:54:00,000 Adding 3 node(s) of type small."
            )
        },
    )
)
FOUND["head-oom"].append(
    seen(
        cluster(),
        head(restarts=1, last=ended(137, "Error", 100), policy="Always"),
        event(
            "Node", "m-1", "OOMKilling", "Memory cgroup out of memory: Killed process 4711 (gcs_server)", seconds=101
        ),
    )
)
FOUND["nccl-wrong-interface"].append(
    with_events(
        logs={f"{OWN[0]}/ray-worker": "w:9:9 [0] NCCL WARN socketStartConnect: Connect to 172.18.0.1<41234> failed"}
    )
)
FOUND["head-lost-during-job"].append(
    seen(
        rayjob(
            status={
                "jobStatus": "FAILED",
                "jobDeploymentStatus": "Failed",
                "reason": "JobDeploymentStatusTransitionGracePeriodExceeded",
                "message": "The RayJob submitter finished at 11:50:00 but the ray job did not reach terminal state",
            }
        )
    )
)
FOUND["workers-never-register"].append(
    seen(
        cluster(),
        head(),
        *WORKERS,
        ray_status=status(active=" 1 headgroup", pending="\n".join(f" {name}: small, starting ray" for name in OWN)),
    )
)
FOUND["autoscaler-cpu-starved"].append(
    with_events(
        logs={
            SCALER: (
                "2026-05-04 11:50:00,000 INFO a.py:1 -- one thing\n2026-05-04 11:53:20,000 INFO a.py:1 -- another\n"
            )
        },
        **BUSY_SCALER,
    )
)
FOUND["dns-blocked"].append(
    seen(
        cluster(),
        head(),
        waiting_worker(),
        logs={WAIT_LOG: UNANSWERED},
        exec={"kubectl exec w -- getent hosts sky-head-svc": ""},
    )
)


@pytest.mark.parametrize(
    ("cause", "given"),
    [pytest.param(cause, one, id=f"{cause}-{n}") for cause, many in FOUND.items() for n, one in enumerate(many)],
)
def test_a_cause_is_found_in_what_the_programs_write(cause, given):
    told = why(given)
    assert told.cause == cause, str(told)
    assert told.first.said
    assert told.first.fix
    assert told.first.evidence
    assert all(one.text and one.command for one in told.first.evidence)


def test_each_cause_has_its_examples():
    assert set(FOUND) == {one.id for one in causes.CAUSES}


# ---- what is healthy

NO_FAULT = {
    "a-big-image-that-is-being-pulled": seen(
        cluster(),
        head(),
        WORKERS[0],
        pod(OWN[1], age=500, ready=False, init=waiting("PodInitializing"), state=waiting("PodInitializing")),
        event("Pod", OWN[1], "Pulling", 'Pulling image "corp/ray:gpu"', seconds=480),
    ),
    "a-cluster-of-a-fixed-size": seen(
        cluster("sky", group("small", 2, 2, 2), enableInTreeAutoscaling=False),
        head(sidecars={}),
        *WORKERS,
        ray_status=status(active=" 1 headgroup", idle=" 2 small"),
    ),
    "autoscaler-that-is-named-in-no-container-but-writes-a-log": seen(
        cluster(),
        head(sidecars={}),
        *WORKERS,
        ray_status=status(demands=MANY),
        logs={SCALER: "2026-05-04 11:59:55,000 INFO event_logger.py:80 -- Adding 2 node(s) of type small."},
    ),
    "a-head-without-nvidia-smi": seen(
        *HEALTHY, exec={"kubectl exec sky-head-abcde -- nvidia-smi": "bash: nvidia-smi: command not found"}
    ),
    "rights-that-are-there": seen(*HEALTHY, exec={"kubectl auth can-i patch rayclusters": "yes"}),
    "a-name-that-is-not-the-heads": seen(
        *HEALTHY, exec={"kubectl exec sky-head-abcde -- curl http://store": "curl: (6) Could not resolve host: store"}
    ),
    "labels-that-a-group-has": seen(
        cluster("sky", group(labels={"zone": "north"})),
        head(),
        *WORKERS,
        ray_status=status(usage=FULL, demands=" {'CPU': 2.0}: 3+ pending tasks/actors"),
        logs={
            SCALER: (
                "No available node types can fulfill resource requests {'CPU': 2.0}*3 with label selectors: [zone"
                " LABEL_OPERATOR_NOT_IN [south]]. Add suitable node types to this cluster to resolve this issue."
            )
        },
    ),
    "a-spot-machine-of-others": seen(
        *HEALTHY,
        node("m-1"),
        node("m-2"),
        event("Node", "m-2", "SpotInterrupted", "Spot interruption warning was triggered", component="karpenter"),
    ),
    "a-name-service-of-which-one-pod-is-ready": seen(
        *HEALTHY,
        thing("Pod", "coredns-7d-x", status={"conditions": [{"type": "Ready", "status": "False"}]}),
        thing("Pod", "coredns-7d-y", status={"conditions": [{"type": "Ready", "status": "True"}]}),
    ),
    "all ready": seen(*HEALTHY, ray_status=status(usage=FULL)),
    "busy": seen(
        *HEALTHY,
        ray_status=status(
            usage=" 7.0/8.0 CPU",
            demands=" (no resource demands)",
            nodes=node_text(
                OWN[0], usage="4.0/4.0 CPU", activity="Resource: CPU currently in use.\n  Busy workers on node."
            ),
        ),
    ),
    "scaling": seen(
        cluster("sky", group(replicas=4)),
        head(),
        *WORKERS,
        pod("sky-small-worker-c", age=20, ready=False, init=running(10), state=waiting("PodInitializing")),
        pod(
            "sky-small-worker-d", age=15, ready=False, init=waiting("PodInitializing"), state=waiting("PodInitializing")
        ),
        ray_status=status(usage=FULL, demands=MANY, pending=" sky-small-worker-c: small, starting ray"),
    ),
    "just asked": seen(
        cluster("sky", group(replicas=4)),
        head(),
        *WORKERS,
        created("sky-small-worker-c", 1),
        ray_status=status(usage=FULL, demands=MANY, pending=" small, 2 launching"),
        logs={SCALER: "2026-05-04 11:59:57,000 INFO event_logger.py:77 -- Adding 2 node(s) of type small."},
    ),
    "starting": seen(
        cluster(metadata={"creationTimestamp": ago(30)}, status={}),
        head(age=25, ready=False, state=running(10)),
        waiting_worker(age=20),
        waiting_worker(OWN[1], age=20),
    ),
    "quota was raised": seen(
        cluster(),
        head(),
        *WORKERS,
        event(
            "RayCluster",
            "sky",
            "FailedToCreateWorkerPod",
            'pods "x" is forbidden: exceeded quota: team, requested: cpu=4',
            seconds=500,
        ),
        created(OWN[0], 300),
        created(OWN[1], 300),
    ),
    "idle for a moment": seen(
        *HEALTHY, ray_status=status(active=" 1 headgroup", idle=" 2 small", nodes=node_text(OWN[0], idle_ms=9000))
    ),
    "a probe at the start": seen(
        *HEALTHY, event("Pod", OWN[0], "Unhealthy", "Readiness probe failed: connection refused", count=2, seconds=3500)
    ),
    "an OOM of yesterday": seen(
        cluster(), head(restarts=1, last=ended(137, "OOMKilled", 80_000), age=90_000), *WORKERS
    ),
    "one scale-down": seen(cluster("sky", group(replicas=1)), head(), WORKERS[0], removed(OWN[1], 300)),
    "job done": seen(
        rayjob(status={"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}),
        of_job(cluster()),
        head(),
        *WORKERS,
    ),
    "job runs": seen(
        rayjob(status={"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}),
        of_job(cluster()),
        head(),
        *WORKERS,
        ray_status=status(
            usage=" 2.0/8.0 CPU",
            nodes=node_text(
                OWN[0], usage="1.0/4.0 CPU", activity="Resource: CPU currently in use.\n  Busy workers on node."
            ),
        ),
    ),
    "suspended": seen(cluster(suspend=True, status={"state": "suspended"})),
    "a job that once waited for quota": seen(
        rayjob(status={"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}),
        event("RayCluster", "sky", "FailedToCreateWorkerPod", "pods is forbidden: exceeded quota: team", seconds=60),
    ),
    "a program that checks something": seen(
        *HEALTHY, logs={f"{OWN[0]}/ray-worker": "F1204 tensor.cc:9] Check failed: x == y\n*** SIGSEGV received"}
    ),
    "a service at work": seen(
        of_job(cluster(), "talk", "RayService"),
        thing(
            "RayService",
            "talk",
            spec={"rayClusterConfig": {}},
            status={
                "activeServiceStatus": {"rayClusterName": "sky", "applicationStatuses": {"a": {"status": "RUNNING"}}}
            },
        ),
        head(),
        *WORKERS,
        ray_status=status(nodes=node_text(OWN[0], activity="Busy workers on node.")),
        ray_list_actors=f"0  00aa11bb22cc33dd  ServeReplica:a:D  ALIVE  01000000  SERVE_REPLICA  {'ab12' * 14}  9",
    ),
    "edited by hand once": seen(
        cluster(
            metadata={
                "managedFields": [
                    {"manager": "kubectl-edit", "operation": "Update", "time": ago(900)},
                    {"manager": "python-requests", "operation": "Update", "time": ago(60)},
                ]
            }
        ),
        head(),
        *WORKERS,
        ray_status=status(usage=FULL),
        logs={SCALER: "2026-05-04 11:40:00,000 Adding 2 node(s) of type small."},
    ),
    "no GPU, none wanted": seen(*HEALTHY, logs={f"{OWN[0]}/ray-worker": "WARNING: no GPU found, will use CPU"}),
    "the way it should be": seen(
        *HEALTHY, logs={f"{OWN[0]}/ray-worker": "w:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.0.9<0>"}
    ),
    "nobody was killed": seen(
        *HEALTHY,
        logs={
            "sky-head-abcde/ray-head": (
                "(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed due"
                " to other reasons"
            )
        },
    ),
    "a Python patch apart": seen(
        *HEALTHY, logs={f"{OWN[0]}/ray-worker": "WARNING Python patch version mismatch: The cluster was started with:"}
    ),
    "applied by a tool before": seen(
        cluster(
            metadata={
                "managedFields": [
                    {"manager": "argocd-controller", "operation": "Update", "time": ago(900)},
                    {"manager": "python-requests", "operation": "Update", "time": ago(60)},
                ]
            }
        ),
        head(),
        *WORKERS,
        ray_status=status(usage=FULL),
    ),
    "a policy that lets it through": seen(
        cluster(),
        head(),
        pod(OWN[0], age=100, ready=False, init=running(60), state=waiting("PodInitializing")),
        policy(policyTypes=["Egress"], egress=[{}]),
    ),
    "free room for what waits": seen(
        FULL_GROUP,
        head(),
        *WORKERS,
        ray_status=status(usage=" 1.0/8.0 CPU", demands=" {'CPU': 1.0}: 1+ pending tasks/actors"),
    ),
}


@pytest.mark.parametrize("given", NO_FAULT.values(), ids=NO_FAULT)
def test_what_works_has_no_fault(given):
    told = why(given)
    assert told.cause == "no-fault", str(told)
    assert "nothing to repair" in told.first.fix


def test_what_is_wrong_for_no_known_cause_is_not_called_healthy():
    stuck = pod(
        OWN[0],
        age=900,
        ready=False,
        state=waiting("CreateContainerConfigError", 'secret "x" not found'),
        phase="Pending",
    )
    assert why(snapshot(cluster(), head(), stuck)).cause == "unknown"
    refused = event("RayCluster", "sky", "InvalidRayClusterSpec", "The RayCluster spec is invalid ml/sky: …")
    assert why(snapshot(cluster(), refused)).cause == "unknown"


# ---- two at once


def both(given: Snapshot) -> list[str]:
    told = why(given)
    return [told.cause, *(one.cause for one in told.further)]


def test_two_faults_are_both_named_the_upstream_one_first():
    quota = event(
        "RayCluster", "sky", "FailedToCreateWorkerPod", 'pods "w" is forbidden: exceeded quota: team, requested: cpu=4'
    )
    typo = pod(OWN[0], age=300, ready=False, init=waiting("ErrImagePull"), state=waiting("PodInitializing"))
    assert both(snapshot(cluster(), head(), typo, quota)) == ["quota-exceeded", "image-pull-failed"]
    lost = head(ready=False, phase="Failed", state=ended(137, "OOMKilled", 600))
    assert both(snapshot(cluster(), lost, *WORKERS)) == ["head-oom", "head-not-restarted"]
    down = unplaced("sky-head-abcde", "headgroup", age=600)
    assert both(snapshot(cluster(), down, waiting_worker())) == ["head-not-ready", "no-node-autoscaler"]


def test_what_is_said_twice_is_said_once():
    given = snapshot(cluster(), head(), unplaced("w1", age=900))
    assert both(given) == ["no-node-autoscaler"]
    assert "insufficient-node-capacity" not in why(given).ruled_out


def test_the_order_of_the_objects_is_of_no_matter():
    for cause, many in FOUND.items():
        for given in many:
            objects = list(given.objects)
            random.Random(cause).shuffle(objects)
            shuffled = Snapshot(tuple(objects), given.now, given.texts, given.logs, given.exec)
            assert why(shuffled).cause == cause


def test_another_cluster_beside_it_is_of_no_matter():
    other = [
        cluster("sky-two"),
        head("sky-two-head-a", of="sky-two"),
        unplaced("sky-two-small-worker-a", of="sky-two", age=900),
    ]
    noise = event(
        "Pod", "sky-two-head-gone1", "ScaleDown", "deleting pod for node scale down", component="cluster-autoscaler"
    )
    given = snapshot(*HEALTHY, *other, noise)
    assert why(given, "raycluster/sky").cause == "no-fault"
    assert why(given, "RayClusters/sky-two").cause == "head-evicted-node-scale-down"
    assert why(given).target == "raycluster/sky-two"


def test_without_a_target_the_faults_of_all_are_named():
    starting = waiting("PodInitializing")
    typo = pod("b-small-worker-a", of="b", age=300, ready=False, init=waiting("ErrImagePull"), state=starting)
    full = event("RayCluster", "a", "FailedToCreateWorkerPod", 'pods "w" is forbidden: exceeded quota: q, requested')
    given = snapshot(cluster("b"), head("b-head-a", of="b"), typo, cluster("a"), head("a-head-a", of="a"), full)
    assert both(given) == ["quota-exceeded", "image-pull-failed"]
    assert why(given).further[0].said.startswith("Of raycluster/b: ")


def test_a_cluster_that_a_job_names_is_no_target_of_its_own_though_nothing_says_who_owns_it():
    bare = cluster("sky", group("small", 2, 0, 8), enableInTreeAutoscaling=False)
    failed = {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "exit code 1"}
    given = (bare, head(sidecars={}), *WORKERS)
    idle = {"ray_status": status(active=" 1 headgroup", idle=" 2 small")}
    assert why(seen(rayjob(status=failed), *given, **idle)).cause == "app-failed"
    chosen = rayjob(status=failed, clusterSelector={"ray.io/cluster": "sky"})
    assert [one["kind"] for one in seen(chosen, *given).roots()] == ["RayJob", "RayCluster"]


def test_a_sidecar_that_crashes_is_no_ray_node_that_does_not_join():
    worker = pod(OWN[0], sidecars={"shipper": waiting("CrashLoopBackOff")})
    worker["status"]["conditions"][1]["status"] = "False"
    assert why(seen(cluster(), head(), worker)).cause == "unknown"


def test_a_pod_is_a_target_too():
    given = snapshot(*HEALTHY, unplaced("sky-small-worker-zzzzz", age=900))
    assert why(given, "pod/sky-small-worker-zzzzz").cause == "no-node-autoscaler"
    assert why(given, f"po/{OWN[0]}").cause == "no-fault"


@pytest.mark.parametrize("target", ["raycluster/none", "sky", "deployment/x", "raycluster/", ""])
def test_a_target_that_is_not_there_is_an_error_that_names_those_that_are(target):
    if target:
        with pytest.raises(CourseError) as caught:
            why(snapshot(*HEALTHY), target)
        assert "raycluster/" in str(caught.value)


# ---- what is said


def test_a_diagnosis_is_text_html_and_json():
    told = why(FOUND["quota-exceeded"][1])
    text = str(told)
    assert text.startswith("✘ raycluster/sky: quota-exceeded")
    assert "Ruled out:" in text
    assert "$ kubectl describe raycluster sky" in text
    data = json.loads(json.dumps(told.as_dict()))
    assert data["cause"] == "quota-exceeded"
    assert data["evidence"][0]["command"]
    assert data["ruled_out"]["version-mismatch"]
    html = told._repr_html_()
    assert "quota-exceeded" in html
    assert "<script" not in html


def test_html_shows_texts_of_the_cluster_as_they_are():
    evil = event("RayCluster", "sky", "FailedToCreateWorkerPod", "exceeded quota: <script>alert(1)</script>")
    assert "<script" not in why(snapshot(cluster(), head(), evil))._repr_html_()


def test_what_was_not_looked_at_is_said():
    told = why(snapshot(*HEALTHY))
    assert len(told.unread) == 3
    assert "`ray status -v`" in str(told)


def test_an_object_that_is_odd_hides_no_other_cause():
    odd = cluster(
        "sky",
        group(replicas="two"),
        status={
            "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q, requested"}]
        },
    )
    told = why(snapshot(odd, head(), unplaced("w1", age=900)))
    assert told.cause == "no-node-autoscaler" or told.cause == "quota-exceeded"


# ---- dumps


def dump(*objects, **more) -> str:
    return yaml.safe_dump(
        {"apiVersion": "v1", "items": list(objects or HEALTHY), "kind": "List", "metadata": {}} | more
    )


def test_a_list_as_kubectl_prints_it_is_read():
    assert why(from_text(dump())).cause == "no-fault"
    assert from_text(dump()).now <= NOW
    assert why(from_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": HEALTHY}))).cause == "no-fault"
    of_kinds = [
        {"apiVersion": "v1", "kind": f"{kind}List", "items": [one]}
        for kind, one in (("RayCluster", cluster()), ("Pod", head()))
    ]
    for one in of_kinds:
        one["items"][0].pop("kind")
    assert len(from_text(yaml.safe_dump_all(of_kinds)).objects) == 2
    assert len(from_text(yaml.safe_dump(cluster())).objects) == 1


def test_texts_stand_beside_the_objects():
    given = {
        "objects": dump(FULL_GROUP, head(), *WORKERS),
        "now": "2026-05-04T12:00:00Z",
        "ray_status": status(demands=MANY, usage=FULL),
    }
    assert why(from_text(yaml.safe_dump(given))).cause == "max-replicas-reached"
    given["objects"] = yaml.safe_load(given["objects"])
    assert why(from_mapping(given)).cause == "max-replicas-reached"
    assert from_mapping(given).now == NOW


CUT = dump()[: len(dump()) // 2]
BAD = {
    "empty": ("", "empty"),
    "no YAML": ("a: b: c\n", "line 1"),
    "a tab": ("kind: List\nitems:\n\t- a\n", "line 3"),
    "a key twice": ("kind: List\nkind: List\nitems: []\n", "line 2"),
    "a text": ("nothing of that kind", "no List"),
    "a list": ("- a\n- b\n", "no List"),
    "no items": ("kind: List\nitems: []\n", "no object"),
    "a wrong kind": (yaml.safe_dump(thing("Deployment", "x", spec={}, status={})), "no RayCluster"),
    "a manifest": (
        yaml.safe_dump({key: value for key, value in cluster().items() if key != "status"}),
        "course explain",
    ),
    "a template": ("apiVersion: ray.io/v1\nkind: RayCluster\nmetadata:\n  name: {{ .Values.name }}\n", "Line 4"),
    "cut in half": (CUT, "line "),
    "cut between two items": (CUT[: CUT.rindex("\n- ") + 1] if "\n- " in CUT else CUT, "no `kind: List` follows"),
    "an item that is none": ("kind: List\nitems:\n- 3\n", "Item 1 of the dump (line 3)"),
    "an item that is none, in JSON": ('{"kind": "List",\n"items": [{}, 3]}', "Item 1 of the dump (line 2)"),
    "items that are none": ("kind: List\nitems: 3\n", "no list (line 2)"),
    "a kind that is a list": ("kind: [List]\nmetadata: {name: a}\n", "The document (line 1) has no kind"),
    "a name that is a number": ("kind: List\nitems:\n- kind: Pod\n  metadata: {name: 5}\n", "has no name"),
    "a number that is none": ("kind: List\nitems:\n- kind: Pod\n  spec: {a: .inf}\n", "items[0].spec.a (line 4)"),
    "a number that is none, in JSON": ('{"kind": "List",\n"items":\n[NaN]}', "items[0] (line 3)"),
    "a second document that is none": (f"{dump()}---\n- 1\n", f"(line {dump().count(chr(10)) + 2})"),
    "an item without a name": ("kind: List\nitems:\n- kind: Pod\n  metadata: {}\n", "Item 1"),
    "a status that is a text": (dump(cluster() | {"status": "fine"}), "status"),
    "a container's state that was cut": (
        dump(cluster(), head(status={"containerStatuses": [{"name": "ray-head", "state": "runni"}]})),
        "status.containerStatuses.state is no mapping",
    ),
    "a container's name that is a list": (
        dump(cluster(), head(status={"containerStatuses": [{"name": ["ray-head"]}]})),
        "status.containerStatuses.name is no text",
    ),
    "conditions that are a text": (dump(cluster(status={"conditions": "all well"})), "conditions"),
    "no time at all": (
        dump(
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "metadata": {"name": "x"},
                "spec": {"a": 1},
                "status": {"b": 1},
            }
        ),
        "time",
    ),
    "an unknown text": ("objects: x\nray_stats: y\n", "ray_stats"),
    "a now that is none": (yaml.safe_dump({"objects": dump(), "now": "yesterday"}), "now"),
    "logs that are a text": (yaml.safe_dump({"objects": dump(), "logs": "x"}), "logs"),
    "a status that is a number": (yaml.safe_dump({"objects": dump(), "ray_status": 7}), "ray_status"),
    "too deep": ("[" * 5000, "depth"),
    "aliases without end": (
        "a: &a0 [1]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
        "too big",
    ),
    "only a RayCronJob": (
        dump(thing("RayCronJob", "nightly", spec={"schedule": "0 * * * *"}, status={"a": "b"})),
        "RayCronJob",
    ),
}


@pytest.mark.parametrize(("text", "needle"), BAD.values(), ids=BAD)
def test_what_is_no_dump_is_said_in_a_sentence(text, needle):
    with pytest.raises(CourseError) as caught:
        why(from_text(text))
    assert needle in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    binary = tmp_path / "dump.yaml"
    binary.write_bytes(b"kind: List\nitems:\n\xff\xfe\x00")
    with pytest.raises(CourseError, match="line 3"):
        from_file(binary)
    with pytest.raises(CourseError, match="cannot be read"):
        from_file(tmp_path / "none.yaml")
    binary.write_text(dump())
    assert why(from_file(binary)).cause == "no-fault"


def test_a_dump_that_does_not_end_in_a_line_break_may_be_cut():
    assert any("cut" in one for one in from_text(dump().rstrip("\n")).unread)


# ---- texts


def test_ray_status_in_the_forms_of_several_rays():
    told = texts.ray_status(
        status(
            times=(
                "GCS request time: 0.5s\nNode Provider non_terminated_nodes time: 0.25s\nAutoscaler iteration"
                " time: 4.0s\n\n"
            ),
            pending=" small, 2 launching\n 10.0.0.3: small, waiting-for-ssh",
            failures=" big: NodeTerminated (instance_id: x)",
            nodes=node_text("p-1", idle_ms=1234),
        )
    )
    assert (told.iteration_s, told.waited_s) == (4.0, 0.75)
    assert told.launching == {"small": 2}
    assert told.pending == [("10.0.0.3", "small", "waiting-for-ssh")]
    assert told.nodes[0].idle_ms == 1234
    old = (
        "======== Autoscaler status: 2023-01-01 10:00:00.1 ========\nNode status\n---\nHealthy:\n 1"
        " head.default\nPending:\n (no pending nodes)\nRecent failures:\n (no"
        " failures)\n\nResources\n---\nUsage:\n 0.0/4.0 CPU\n 0.00/1.862 GiB memory\n\nDemands:\n {'CPU': 1.0} *"
        " 2 (PACK): 1+ pending placement groups\n"
    )
    told = texts.ray_status(old)
    assert told.active == {"head.default": 1}
    assert told.usage["memory"][1] == pytest.approx(1.862 * 2**30)
    assert told.gangs == [([({"CPU": 1.0}, 2)], "PACK", 1)]
    assert (
        texts.ray_status("No cluster status. It may take a few seconds for the Ray internal services to start up.")
        is None
    )
    for end in range(0, len(old), 17):
        texts.ray_status(old[:end])


def test_of_several_statuses_the_last_one_counts():
    assert texts.ray_status(status(usage=" 1.0/8.0 CPU") + "\n" + status(usage=" 5.0/8.0 CPU")).usage["CPU"][0] == 5


def test_actors_in_each_format():
    row = {"actor_id": "a1" * 8, "class_name": "Env", "state": "ALIVE", "name": "e", "node_id": "ff" * 20}
    table = f"Total: 1\n 0  {'a1' * 8}  Env  ALIVE  01000000  e  {'ff' * 20}  9  ns"
    assert (
        texts.ray_actors(table)
        == texts.ray_actors(json.dumps([row]))
        == texts.ray_actors("---\n" + yaml.safe_dump([row]))
    )
    assert texts.ray_actors("No resource in the cluster") == []
    assert texts.ray_actors("Error: no such command") is None


def test_top_with_and_without_namespaces():
    assert texts.top("NAMESPACE POD NAME CPU(cores) MEMORY(bytes)\nml p c 250m 1Gi\n") == {("p", "c"): (0.25, 2.0**30)}
    assert texts.top("error: Metrics API not available") == {}


def test_memory_counts_what_keeps_objects_only():
    told = texts.ray_memory(
        "Grouping by node address...\n10.0.0.1 | 7 | Driver | disabled | - | - | 8 B | ACTOR_HANDLE | 00ff\n"
    )
    assert told.references == []
    assert told.has_table
    assert texts.ray_memory("Traceback") is None


def test_a_big_cluster_is_healthy_too():
    many = [pod(f"sky-small-worker-{n:05}") for n in range(50)]
    events = [created(f"sky-small-worker-{n:05}", n) for n in range(500)]
    big = cluster("sky", group(replicas=50, most=60))
    given = snapshot(big, head(), *many, *events, ray_status=status(usage=FULL))
    assert diagnose(Scene(given, big)).cause == "no-fault"

"""Why a cluster does not move, or does not shrink: the causes, in the order in which they bring about each other.

base        what a cause is · refused  rights, quota, gates, images, versions · capacity  Kubernetes nodes
ends        memory, disk, machines that go, probes, crashes, heads · network  names, ports, the init container
autoscaler  Ray's autoscaler · idle  Ray nodes that come and go, or stay · churn  how Pods have come and gone
work        workers that do not join, GPUs, jobs · demand  what is asked for

Each function looks at a scene and returns the cause with its evidence, or what rules it out.
"""

from helpers.observe.causes import autoscaler, capacity, demand, ends, idle, network, refused, work
from helpers.observe.causes.base import Cause, Evidence, Found

NO_FAULT, UNKNOWN = "no-fault", "unknown"

# What is upstream comes first: of two causes that are found, the later one may be of the earlier one's making.
CAUSES = (
    # a RayJob that has ended, or that nothing can bring on any more
    Cause(
        "job-deadline-exceeded",
        "the RayJob ran into its deadline",
        (
            "Give it more time (activeDeadlineSeconds, preRunningDeadlineSeconds), or make it need less; look at"
            " jobDeploymentStatus, not at jobStatus."
        ),
        work.job_deadline_exceeded,
    ),
    Cause(
        "sidecar-submitter-failed",
        "the submitter in the head Pod ended before the cluster was ready",
        (
            "Delete the RayJob and apply it again with submissionMode K8sJobMode, so that a submitter's end does"
            " not make the head unready."
        ),
        work.sidecar_submitter_failed,
    ),
    Cause(
        "head-lost-during-job",
        "the head was replaced while a job ran",
        (
            "Run the job again (backoffLimit does that by itself), and keep the head where nobody moves it:"
            " enough memory, no spot machine, an annotation against eviction."
        ),
        work.head_lost_during_job,
    ),
    # the API server, or somebody else, does not let a Pod be or begin
    Cause(
        "rbac-denied",
        "a service account lacks a right",
        (
            "Leave serviceAccountName out of the head's template, so that KubeRay makes account and rights, or"
            " bind the same rights: Pods get, list, watch, patch; RayClusters get, patch."
        ),
        refused.rbac_denied,
    ),
    Cause(
        "quota-needs-limits",
        "the API server refuses Pods that do not set what the quota counts",
        "Set in each container what the quota counts, or add a LimitRange with defaults to the namespace.",
        refused.quota_needs_limits,
    ),
    Cause(
        "quota-exceeded",
        "the API server refuses Pods for a ResourceQuota",
        "Raise the quota, free some of it, or ask for fewer or smaller Pods.",
        refused.quota_exceeded,
    ),
    Cause(
        "scheduling-gated",
        "Pods exist and are held by a scheduling gate",
        "Ask what set the gate (a queue manager such as Kueue): its queue decides when they may go.",
        refused.scheduling_gated,
    ),
    Cause(
        "image-pull-failed",
        "an image cannot be pulled",
        "Mend the image's name or tag, or give the Pod an imagePullSecret for the registry.",
        refused.image_pull_failed,
    ),
    Cause(
        "version-mismatch",
        "Ray or Python differ between two parts",
        "Use one image, of one Ray and one Python, for head, workers and whoever connects.",
        refused.version_mismatch,
    ),
    Cause(
        "upgrade-needs-double-capacity",
        "the second cluster of an upgrade finds no room beside the first",
        (
            "Give the upgrade room for a second cluster, or set upgradeStrategy.type to None and replace the"
            " cluster in a pause."
        ),
        capacity.upgrade_needs_double_capacity,
    ),
    # something has ended, or been taken away
    Cause(
        "spill-filled-disk",
        "spilled objects filled the local disk",
        (
            "Mount a volume for spilled objects, set an ephemeral-storage request, and keep less in the object"
            " store at a time."
        ),
        ends.spill_filled_disk,
    ),
    Cause(
        "head-evicted-node-scale-down",
        "the head was moved off a machine that was being removed",
        (
            'Annotate the head\'s template: cluster-autoscaler.kubernetes.io/safe-to-evict: "false", or'
            ' karpenter.sh/do-not-disrupt: "true".'
        ),
        ends.head_evicted_node_scale_down,
    ),
    Cause(
        "spot-interruption",
        "the machine was taken back by the cloud",
        "Keep the head off spot machines, and let what runs on them be repeatable (retries, checkpoints).",
        ends.spot_interruption,
    ),
    Cause(
        "head-oom",
        "the head ran out of memory",
        (
            'Give the head more memory (4 GiB is little), set num-cpus: "0" on it, and move drivers off it'
            " (entrypointNumCpus)."
        ),
        ends.head_oom,
    ),
    Cause(
        "probe-too-strict",
        "Ray is alive, the probe gives it too little time",
        (
            "Give the head more CPU, and write probes of your own with a longer timeoutSeconds and a higher"
            " failureThreshold."
        ),
        ends.probe_too_strict,
    ),
    Cause(
        "ray-crash",
        "a Ray process failed by itself",
        "Read the last lines of its log (/tmp/ray/session_latest/logs), and look for them among Ray's issues.",
        ends.ray_crash,
    ),
    Cause(
        "head-not-restarted",
        "a dead head Pod stays and nobody replaces it",
        "Delete the head Pod; then see whether the operator runs, and what its log says.",
        ends.head_not_restarted,
    ),
    Cause(
        "head-not-ready",
        "workers wait for a head that is not up",
        "Mend the head first: its own Pod says what it waits for.",
        ends.head_not_ready,
    ),
    # GPUs
    Cause(
        "driver-off-gpu",
        "GPUs are there, the process that drives them sits on a node without one",
        (
            "Put it on a GPU (num_gpus or placement_group_bundles of the deployment, entrypointNumGpus of the"
            ' job), and set num-cpus: "0" on the head.'
        ),
        work.driver_off_gpu,
    ),
    Cause(
        "gpu-missing",
        "no GPU is there or visible",
        (
            "See that the container has a GPU limit, that the device plug-in runs on that Kubernetes node, and"
            " that Ray is told of the GPU."
        ),
        work.gpu_missing,
    ),
    # Kubernetes nodes
    Cause(
        "node-autoscaler-blocked",
        "the node autoscaler looked and no pool fits",
        (
            "Make a pool fit the Pod (its maximum, shape, labels and taints, the cloud's stock), or the Pod fit a"
            " pool (requests, tolerations, selectors)."
        ),
        capacity.node_autoscaler_blocked,
    ),
    Cause(
        "no-node-autoscaler",
        "nothing reacts to Pods that do not fit",
        "Add Kubernetes nodes that fit, or a node autoscaler; or ask for less.",
        capacity.no_node_autoscaler,
    ),
    Cause(
        "allocation-timeout",
        "Pods are deleted because they took too long to join",
        (
            "Make the start faster (image, machine), or give it longer:"
            " RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S in autoscalerOptions.env."
        ),
        capacity.allocation_timeout,
    ),
    Cause(
        "waiting-for-node",
        "a machine has been asked for and is on its way",
        "Wait: it takes minutes; if it does not come within 15, look at the node autoscaler's log.",
        capacity.waiting_for_node,
    ),
    Cause(
        "insufficient-node-capacity",
        "the Kubernetes nodes that exist have no room",
        "Add Kubernetes nodes that fit, free some room, or ask for less.",
        capacity.insufficient_node_capacity,
    ),
    # between worker and head
    Cause(
        "init-oom",
        "the init container runs out of memory",
        (
            "Its limit is fixed (256Mi): switch it off (ENABLE_INIT_CONTAINER_INJECTION=false on the operator)"
            " and write one of your own, or use an image that starts with less."
        ),
        ends.init_oom,
    ),
    Cause(
        "dns-blocked",
        "the head's name is not resolved",
        "Allow port 53 (UDP and TCP) to the cluster's name service in the NetworkPolicy, and see that CoreDNS runs.",
        network.dns_blocked,
    ),
    Cause(
        "network-blocked",
        "the name resolves, the port is not reached",
        "Allow the Pods of the cluster to reach each other on all ports, 6379 among them.",
        network.network_blocked,
    ),
    Cause(
        "init-throttled",
        "the init container's check is too slow at its CPU limit",
        (
            "Its limit is fixed (200m): use an image whose `import ray` is fast, or switch it off"
            " (ENABLE_INIT_CONTAINER_INJECTION=false) and write one of your own."
        ),
        network.init_throttled,
    ),
    Cause(
        "workers-never-register",
        "Pods run but never join the Ray cluster",
        (
            "Read the log of such a worker: its init container, its Ray version and Python, and whether it"
            " reaches the head on 6379."
        ),
        work.workers_never_register,
    ),
    # Ray's autoscaler
    Cause(
        "autoscaler-config-error",
        "the autoscaler cannot read the RayCluster and restarts",
        "Mend the group that it names: a CPU limit, and resources that are JSON; `course explain` shows the rest.",
        autoscaler.autoscaler_config_error,
    ),
    Cause(
        "autoscaler-not-enabled",
        "no autoscaler runs",
        "Set enableInTreeAutoscaling: true, or write the replicas that you want.",
        autoscaler.autoscaler_not_enabled,
    ),
    Cause(
        "autoscaler-cpu-starved",
        "the autoscaler container has too little CPU for the demand",
        "Give it more (autoscalerOptions.resources, 1 or 2 CPUs), and ask for fewer different shapes.",
        autoscaler.autoscaler_cpu_starved,
    ),
    Cause(
        "api-timeout-false-idle",
        "a failed call to the API server made running nodes look idle",
        (
            "Use a newer Ray with the autoscaler v2, which asks a Ray node before it goes; a minReplicas keeps"
            " the service alive meanwhile."
        ),
        autoscaler.api_timeout_false_idle,
    ),
    Cause(
        "two-writers",
        "something besides the autoscaler writes replicas",
        (
            "Leave replicas out of what that tool applies, or let it ignore /spec/workerGroupSpecs/*/replicas and"
            " scaleStrategy."
        ),
        autoscaler.two_writers,
    ),
    Cause(
        "launch-request-swallowed",
        "the autoscaler believes it has asked, the RayCluster was never changed",
        "Restart the autoscaler's container (delete the head Pod only if that is not possible), and use a newer Ray.",
        autoscaler.launch_request_swallowed,
    ),
    Cause(
        "infeasible-demand",
        "asked for a shape that no group has",
        "Ask for what a group has, or add a group with Ray nodes of that shape.",
        demand.infeasible_demand,
    ),
    Cause(
        "max-replicas-reached",
        "demand is fine, the group is full",
        "Raise maxReplicas of the group, or wait until some of its work has ended.",
        demand.max_replicas_reached,
    ),
    # what runs on it
    Cause(
        "worker-oom",
        "a worker ran out of memory",
        "Give workers more memory, or ask for memory= in tasks so that fewer run side by side.",
        ends.worker_oom,
    ),
    Cause(
        "nccl-wrong-interface",
        "the process group chose an interface that does not reach the others",
        "Set NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME) to the Pod's own interface, mostly eth0.",
        network.nccl_wrong_interface,
    ),
    Cause(
        "submission-retries-exhausted",
        "the submitter gave up before the dashboard answered",
        "Raise submitterConfig.backoffLimit, and make the head start faster.",
        work.submission_retries_exhausted,
    ),
    Cause(
        "app-failed",
        "the user's program failed",
        "Read the program's own error; the cluster did its part.",
        work.app_failed,
    ),
    # nodes that come and go, or stay
    Cause(
        "min-floor-thrash",
        "idle nodes removed below minReplicas and made again",
        "Use Ray 2.40 or newer, whose autoscaler keeps minReplicas.",
        idle.min_floor_thrash,
    ),
    Cause(
        "idle-timeout-too-short",
        "nodes go in gaps that the timeout should bridge",
        "Set idleTimeoutSeconds above the gap, or minReplicas to what is always needed.",
        idle.idle_timeout_too_short,
    ),
    Cause(
        "demand-bursty",
        "nodes come and go because the load does",
        "Nothing is broken; a higher minReplicas trades money for waiting.",
        idle.demand_bursty,
    ),
    Cause(
        "pinned-by-actor",
        "a node is kept by a live actor",
        "End the actor (ray.kill, or the job that owns it), or place it on the head.",
        idle.pinned_by_actor,
    ),
    Cause(
        "object-store-in-use",
        "a node is kept by store use that no listed reference explains",
        "End the job; compare `ray status -v` with `ray memory --stats-only`, and use a newer Ray if it stays.",
        idle.object_store_in_use,
    ),
    Cause(
        "pinned-by-object-refs",
        "a node is kept by objects that something refers to",
        "Drop the references (`del ref`) or end the driver that holds them; `ray memory` lists them.",
        idle.pinned_by_object_refs,
    ),
    Cause(
        "pinned-by-request-resources",
        "nodes are kept by the standing request",
        "Clear it: `ray.autoscaler.sdk.request_resources(bundles=[])`.",
        idle.pinned_by_request_resources,
    ),
    Cause(
        "min-replicas-floor",
        "nodes are kept by minReplicas",
        "Lower minReplicas of the group, if that many shall not wait.",
        idle.min_replicas_floor,
    ),
    Cause(
        "idle-timeout-too-long",
        "nodes are idle and the timeout has not run out",
        "Wait for it, or lower idleTimeoutSeconds.",
        idle.idle_timeout_too_long,
    ),
)

__all__ = ["CAUSES", "NO_FAULT", "UNKNOWN", "Cause", "Evidence", "Found"]

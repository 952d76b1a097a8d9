"""What is found in a manifest: by which rule, where, how bad."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)  # the worst first
UNREADABLE = "unreadable-quantity"  # the one fault of the form that the API server takes

# what to do about what a rule finds
FIXES = {
    # what the API server refuses
    "unknown-field": "Look for the field's right name or place: `kubectl explain` shows what is there.",
    "missing-field": "Write the field.",
    "wrong-type": "Write a value of the type that is wanted; a number that is to be a string stands in quotes.",
    "bad-enum": "Write one of the words of the list, in the same case.",
    "bad-name": "Take a shorter name of small letters, digits and '-' that begins with a letter.",
    "negative-bound": "Write 0 or more; a deadline is 1 or more.",
    "duplicate-entry": "Give one of the two another name, or remove it.",
    # seen with KubeRay 1.6.2: it logs "failed to list *v1.RayCluster" from then on
    UNREADABLE: "Write an amount such as 500m, 2 or 16Gi. With one like 1e1.5 in any RayCluster the operator can list"
    " none of them, and does nothing for any.",
    "bad-label": "Use letters, digits, '-', '_' and '.', at most 63 of them.",
    # what the operator refuses
    "min-above-max": "Raise maxReplicas, or lower minReplicas.",
    "group-idle-timeout-needs-v2": "Write `autoscalerOptions: {version: v2}`.",
    "restart-policy-not-never": "Write `restartPolicy: Never`, or leave it away.",
    "version-set-twice": "Keep autoscalerOptions.version, and remove the variable.",
    "autoscaler-variable-without-autoscaling": "Write `enableInTreeAutoscaling: true`, or remove the variable.",
    "resources-set-twice": "Keep the group's resources, and take num-cpus, num-gpus, memory and resources out of"
    " rayStartParams.",
    "labels-in-ray-start-params": "Move them to the group's own `labels`.",
    "suspended-group-with-autoscaler": "Remove suspend, or switch autoscaling off; minReplicas and maxReplicas 0 keep a"
    " group empty.",
    "redis-env-without-ft": "Write gcsFaultToleranceOptions with the redisAddress, and remove the variable.",
    "ft-set-twice": "Keep what gcsFaultToleranceOptions says, and remove the other.",
    "auth-needs-newer-ray": "Write rayVersion, 2.52.0 or newer, and use images of it.",
    "k8s-auth-not-possible": "Remove enableK8sTokenAuth; `mode: token` alone makes a Secret with a token.",
    "upgrade-strategy-not-allowed": "Remove it: only a RayCluster of its own has one; a RayService has"
    " spec.upgradeStrategy.",
    "ttl-needs-shutdown": "Write `shutdownAfterJobFinishes: true`.",
    "suspend-needs-shutdown": "Write `shutdownAfterJobFinishes: true`.",
    "suspend-with-selector": "Remove suspend, or let the RayJob make its own cluster.",
    "backoff-with-selector": "Remove backoffLimit; `submitterConfig.backoffLimit` is what retries the submitter.",
    "backoff-with-interactive": "Remove backoffLimit.",
    "sidecar-with-selector": "Use K8sJobMode or HTTPMode for a cluster that is there already.",
    "sidecar-with-submitter-template": "Remove it, or use K8sJobMode.",
    "delete-workers-with-autoscaler": "Use DeleteCluster, or let the autoscaler remove the workers.",
    "bad-deletion-strategy": "Write deletionRules alone, each with one condition, and with times that do not"
    " go down from DeleteWorkers to DeleteCluster to DeleteSelf.",
    "bad-runtime-env": "Mend the YAML in runtimeEnvYAML.",
    "bad-schedule": "Write five fields: minute, hour, day of the month, month, day of the week.",
    "bad-annotation": 'Write a time such as "5m", or seconds as a whole number above 0.',
    "head-service-name": "Remove the name: a RayService makes its own.",
    "bad-upgrade-options": "Write clusterUpgradeOptions with stepSizePercent, intervalSeconds and gatewayClassName, and"
    " switch autoscaling on.",
    "metadata-needs-ray-version": "Write rayClusterSpec.rayVersion, or remove metadata.",
    "dashboard-port-missing": "Declare a port with the name dashboard (8265), or no port at all.",
    # what Ray makes of it
    "no-cpu": "Write a CPU limit and request, or num-cpus.",
    "cpu-only-in-requests": "Write the CPU under limits too, or use Ray 2.41 or newer.",
    "memory-only-in-requests": "Write the memory under limits too, with the same amount.",
    "missing-ray-start-params": "Write `rayStartParams: {}`.",
    "custom-resource-quoting": """Write it as '"{\\"name\\": 1}"', with both sorts of quotes, or use the group's"""
    " own `resources`.",
    "custom-resource-not-integer": "Count in smaller units, so that each Ray node has a whole number of them.",
    "quantity-in-ray-start-params": "Write a whole number; memory in bytes.",
    "cpu-rounded-up": "Use whole CPUs, or write num-cpus.",
    "ray-container-not-first": "Move the Ray container to the first place.",
    "gpu-key-unknown-to-planner": "Write num-gpus in rayStartParams.",
    "gpu-hidden": "Remove num-gpus, or write the number of GPUs.",
    "gpu-count-above-limit": "Remove num-gpus: KubeRay takes it from the limit.",
    "gpu-without-limit": "Write the GPU under limits, such as `nvidia.com/gpu: 1`, and remove num-gpus.",
    "autoscaling-not-enabled": "Write `enableInTreeAutoscaling: true`, or set replicas and leave the bounds away.",
    "unbounded-max-replicas": "Write maxReplicas: it is what bounds the bill.",
    "limits-differ-from-requests": "Make requests and limits of CPU and memory the same.",
    "autoscaler-sidecar-oversized": "Remove it; the size of a worker is in the template of its group.",
    "object-store-exceeds-shm": "Raise the memory limit, or lower object-store-memory to a part of it.",
    "quota-needs-limit": "Write the limits that the quota counts, or give the namespace a LimitRange with defaults.",
    "pinned-storage-namespace": "Leave externalStorageNamespace away: each cluster then has one of its own.",
    "shell-expansion-in-runtime-env": "Set the variable in the templates of head and workers (env.valueFrom), not in"
    " runtimeEnvYAML.",
    "shell-in-entrypoint": "Put it into a script of its own, or write `bash -c '…'`.",
    "head-runs-tasks": 'Write `num-cpus: "0"` in the head\'s rayStartParams, if it should run no tasks.',
    "images-differ": "Use one Ray for head, workers, autoscaler and rayVersion.",
    "duplicate-group-name": "Give each group a name of its own.",
    "version-not-written": "Write `autoscalerOptions: {version: v2}`.",
}


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        rule: the rule's id, such as "unknown-field".
        path: where, from the root of the document, such as "spec.workerGroupSpecs[0].groupName".
        severity: `ERROR` (it is refused, or a part can never do what it is for), `WARNING` (it runs, but not as it is
            written) or `NOTE`.
        message: what is so, in one sentence without the path.
    """

    rule: str
    path: str
    severity: str
    message: str

    @property
    def fix(self) -> str:
        """What to do about it, in one sentence."""
        return FIXES[self.rule]

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"

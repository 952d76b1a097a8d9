"""What the operator deletes when replicas are made fewer by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def manual_scale_down(
    pods: Sequence[str],
    replicas: int,
    *,
    min_replicas: int = 0,
    workers_to_delete: Iterable[str] = (),
    is_autoscaling: bool = False,
) -> tuple[list[str], int]:
    """Which worker Pods of a group go, after a change of the RayCluster.

    `reconcilePods` in raycluster_controller.go: what `workersToDelete` names goes in any case. What is then still too
    many goes in the order in which the API server lists the Pods, busy or not; but with autoscaling on only the
    autoscaler deletes (unless the operator has ENABLE_RANDOM_POD_DELETE).

    Args:
        pods: the names of the group's Pods.
        replicas: what stands there now; the operator does not go below min_replicas (`GetWorkerGroupDesiredReplicas`).
        workers_to_delete: the names in scaleStrategy.

    Returns:
        The Pods that go by their name; and how many of the others, whichever are listed first.
    """
    named = [name for name in dict.fromkeys(workers_to_delete) if name in pods]
    surplus = len(pods) - len(named) - max(replicas, min_replicas)
    return named, 0 if is_autoscaling else max(0, surplus)

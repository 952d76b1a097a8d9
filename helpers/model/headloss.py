"""What is left when the head is replaced.

Sources: KubeRay 1.6.2, `configureGCSFaultTolerance` in pod.go; Ray 2.60.0, gcs_rpc_server_reconnect_timeout_s.
"""

from __future__ import annotations

from dataclasses import dataclass

RECONNECT_S = 600  # for how long a worker looks for the GCS again: DefaultWorkerRayGcsReconnectTimeoutS in constant.go


@dataclass(frozen=True)
class Left:
    """What is left.

    Attributes:
        actors_survive: those on workers.
        jobs_survive: those whose driver was on the head, which is where it is by default.
        worker_pods_restart: whether the workers' containers end, and start again.
    """

    actors_survive: bool
    jobs_survive: bool
    worker_pods_restart: bool


def head_lost(has_fault_tolerance: bool, new_head_ready_s: float) -> Left:
    """What is left when the head's Pod is replaced.

    Without fault tolerance the new GCS knows nothing of the old Ray nodes, and they end. With it, workers come back to
    a head that is there within `RECONNECT_S`; the old head's own processes are gone either way.

    Args:
        has_fault_tolerance: whether the GCS keeps its state outside the Pod.
        new_head_ready_s: seconds until the new head answers.
    """
    kept = has_fault_tolerance and new_head_ready_s <= RECONNECT_S
    return Left(actors_survive=kept, jobs_survive=False, worker_pods_restart=not kept)

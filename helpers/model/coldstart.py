"""How long a new worker takes, and whether it may take that long.

Source: Ray 2.60.0, `ray/autoscaler/v2/instance_manager/config.py` and `reconciler.py` (`_handle_stuck_instances`).
"""

from __future__ import annotations

from collections.abc import Mapping

from helpers.model.releases import PINNED, Releases

STAGES = ("decide", "create", "schedule", "provision", "pull", "start", "join", "load")
BEFORE_POD = {"decide", "create"}  # the clock of the allocation timeout runs from the Pod's being there
AFTER_JOIN = {"load"}
ALLOCATE_TIMEOUT = "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S"


def joins_s(
    stages_s: Mapping[str, float], env: Mapping[str, str] | None = None, v2: bool = True, releases: Releases = PINNED
) -> float | None:
    """Seconds from submit until a new worker has joined the Ray cluster.

    Args:
        stages_s: how long each stage takes, in seconds, by its name; those of `STAGES`, or others in between.
        env: of the autoscaler's container.
        v2: which autoscaler runs; v1 waits for Pods for ever.

    Returns:
        None if v2 deletes the Pod before it has joined, and makes another, again and again.
    """
    until = {name: seconds for name, seconds in stages_s.items() if name not in AFTER_JOIN}
    waited = sum(seconds for name, seconds in until.items() if name not in BEFORE_POD)
    written = (env or {}).get(ALLOCATE_TIMEOUT)
    limit = releases.allocation_timeout_s if written is None else int(written)
    return None if v2 and waited > limit else sum(until.values())

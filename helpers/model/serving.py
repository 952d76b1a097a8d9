"""Ray Serve at zero replicas: two delays one after the other on the way down, and what a request then waits for.

Source: Ray 2.60.0, `ray/serve/autoscaling_policy.py` (a delay must be over; from zero it scales up at once).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FirstRequest:
    """What a request finds after a gap.

    Attributes:
        replica_gone: whether no replica is there any more.
        node_gone: whether its Ray node is gone too.
        wait_s: seconds until a replica answers.
    """

    replica_gone: bool
    node_gone: bool
    wait_s: float


def first_request(
    min_replicas: int,
    downscale_to_zero_delay_s: float,
    idle_timeout_s: float,
    cold_start_s: float,
    model_load_s: float,
    gap_s: float,
) -> FirstRequest:
    """What the first request after a gap waits for; all times in seconds.

    Args:
        downscale_to_zero_delay_s: for how long nothing must come before the last replica goes.
        idle_timeout_s: for how long its node is kept then.
        cold_start_s: from the wish for a node to a node.
        model_load_s: from a node to a replica that answers.
        gap_s: since the last request.
    """
    replica_gone = min_replicas == 0 and gap_s >= downscale_to_zero_delay_s
    node_gone = replica_gone and gap_s > downscale_to_zero_delay_s + idle_timeout_s
    return FirstRequest(replica_gone, node_gone, replica_gone * model_load_s + node_gone * cold_start_s)

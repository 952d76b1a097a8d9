"""When a Ray node is idle, and what it costs that it is not taken at once.

Sources: Ray 2.60.0, the raylet's idle clock (`ray/_raylet`, seen live with both autoscalers),
`ray/autoscaler/v2/scheduler.py` (a node goes when it has been idle for longer than the timeout),
`ray/autoscaler/_private/constants.py` (Pods that wait are not withdrawn), `ray/serve/_private/proxy_state.py`, and
`default_impl.py` (the controller is tied to the head).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TASK, ACTOR, OBJECT = "task", "actor", "object"  # what keeps a Ray node
# the states of an actor that has a process (gcs.proto, ActorTableData.ActorState)
LIVE = {"ALIVE"}
INLINED_BYTES = 100 * 1024  # results below this go to who asked, not into a store: max_direct_call_object_size
LOOP_S = 5  # of the autoscaler: AUTOSCALER_UPDATE_INTERVAL_S


@dataclass(frozen=True)
class Stored:
    """An object whose first copy is in the node's store.

    Attributes:
        bytes: its size.
        reference_held: whether somebody holds a reference to it.
    """

    bytes: int
    reference_held: bool


@dataclass(frozen=True)
class Serve:
    """What Serve has on a node.

    Attributes:
        proxy_location: "HeadOnly", "EveryNode" or "Disabled".
        replicas_here: how many replicas are on it.
        head: whether the node is the head.
    """

    proxy_location: str
    replicas_here: int
    head: bool = False

    @property
    def actors(self) -> int:
        """Replicas; the proxy, on the head, and with EveryNode where a replica is too; the controller, on the head."""
        has_proxy = self.proxy_location != "Disabled" and (
            self.head or (self.proxy_location == "EveryNode" and self.replicas_here > 0)
        )
        return self.replicas_here + has_proxy + self.head


def kept_by(
    running_tasks: int = 0,
    actor_states: Sequence[str] = (),
    objects: Sequence[Stored] = (),
    serve: Serve | None = None,
) -> str | None:
    """What keeps a worker's Ray node that is left alone, with either autoscaler: both ask the raylet.

    An actor keeps it whatever it asks for, also with num_cpus=0: it has a process, and the raylet counts that.

    Args:
        actor_states: of the actors on it, as `ray list actors` says them.

    Returns:
        `TASK`, `ACTOR` or `OBJECT`; None if it is idle, and goes when the timeout is over.
    """
    if running_tasks:
        return TASK
    if LIVE & {*actor_states} or (serve and serve.actors):
        return ACTOR
    if any(one.reference_held and one.bytes >= INLINED_BYTES for one in objects):
        return OBJECT
    return None


@dataclass(frozen=True)
class Bursts:
    """What a timeout makes of a row of bursts.

    Attributes:
        cold_starts: how many of them found no node.
        wait_s: seconds that they waited, all together.
        idle_node_s: seconds for which nodes were there and did nothing, the time after the last burst included.
    """

    cold_starts: int
    wait_s: float
    idle_node_s: float


def bursts(cold_start_s: float, idle_timeout_s: float, gaps_s: Sequence[float], nodes: int = 1) -> Bursts:
    """What bursts pay that come one after the other, from no node at all.

    Args:
        cold_start_s: seconds from submit to a node.
        idle_timeout_s: seconds for which a node may be idle; it goes when it has been for longer.
        gaps_s: seconds from the end of a burst to the next.
        nodes: how many each of them needs.
    """
    starts = 1 + sum(gap > idle_timeout_s for gap in gaps_s)
    idle = sum(min(gap, idle_timeout_s) for gap in gaps_s) + idle_timeout_s
    return Bursts(starts, starts * cold_start_s, idle * nodes)


@dataclass(frozen=True)
class Late:
    """What becomes of Pods whose work has gone while they waited.

    Attributes:
        withdrawn_before_running: whether they are deleted while they wait.
        removed_s: when they are deleted.
        tolerance_s: by how much that can be later or earlier: two loops of the autoscaler.
        wasted_node_s: seconds for which their nodes ran for nothing, all together.
        wasted_usd: what that costs.
    """

    withdrawn_before_running: bool
    removed_s: float
    tolerance_s: float
    wasted_node_s: float
    wasted_usd: float


def pods_too_late(
    pods: int,
    created_s: float,
    demand_gone_s: float,
    running_s: float,
    idle_timeout_s: float,
    usd_per_node_hour: float,
    allocation_timeout_s: float = 3600,
) -> Late:
    """Pods that still wait when their work has gone: autoscaler v2 lets them come up, and be idle.

    It withdraws none (RAY_AUTOSCALER_PENDING_NODE_IDLE_TIMEOUT_S is -1) but those that have waited for longer than the
    allocation timeout. Times are seconds on one clock.
    """
    if running_s - created_s > allocation_timeout_s:
        return Late(True, created_s + allocation_timeout_s, 2 * LOOP_S, 0, 0)
    removed_s = max(running_s, demand_gone_s) + idle_timeout_s
    wasted = pods * idle_timeout_s
    return Late(False, removed_s, 2 * LOOP_S, wasted, wasted * usd_per_node_hour / 3600)

"""How often the raylet of a host was asked for a lease on one of its workers."""

from __future__ import annotations

import re
import time
from pathlib import Path

from helpers.rayhost.hosts import Host
from helpers.wait import wait_until

COUNTER = re.compile(r"NodeManagerService\.grpc_server\.RequestWorkerLease - (\d+) total")

WRITTEN_S = 0.3


def lease_requests(host: Host) -> int:
    """Requests for a lease that the raylet of this host has handled since it started.

    A raylet of Ray 2.60 writes its counters into `debug_state.txt` every RAY_debug_dump_period_milliseconds (10 s by
    default). This waits for the next time, so that what happened until now is in the number.

    Raises:
        WaitTimeout: if no raylet runs there, or it does not write for 30 seconds.
    """
    since = time.time()

    def written() -> Path:
        files = list((host.scratch / "ray").glob("session_2*/logs/debug_state.txt"))
        newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
        at = newest.stat().st_mtime if newest else 0.0
        # just begun, the file is there and the counter is not in it yet
        assert at > since and time.time() - at > WRITTEN_S, f"the raylet of {host.name} has not written them yet"
        return newest

    found = COUNTER.search(wait_until(written, 30, what=f"the counters of {host.name}'s raylet").read_text())
    return int(found[1]) if found else 0

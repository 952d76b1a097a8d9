"""A raylet's counters are read when they are whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

from helpers.rayhost.leases import lease_requests

LINE = "NodeManagerService.grpc_server.RequestWorkerLease - 7 total (0 active)"


def test_a_file_that_is_just_being_written_is_not_read(tmp_path: Path) -> None:
    logs = tmp_path / "ray" / "session_2026" / "logs"
    logs.mkdir(parents=True)

    def write() -> None:
        time.sleep(0.2)
        with open(logs / "debug_state.txt", "w") as file:
            print("begun", file=file, flush=True)
            time.sleep(0.15)
            print(LINE, file=file)

    writer = threading.Thread(target=write)
    writer.start()
    assert lease_requests(SimpleNamespace(scratch=tmp_path, name="h")) == 7
    writer.join()

"""The program that sees where tasks run, and how many at once. It runs in a driver, and its tasks in workers.

A task that runs holds a connection to the driver, and ends when that is closed. It must not wait by way of Ray: a task
that is blocked in `ray.get` gives its CPU back, and others would run in its place.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from typing import Any

QUIET_S = 2.0  # once all are there that should be: how long to look for one too many
HOST = "course-host"  # a label with the host's name: what `ray.nodes()` else says of it is not the same everywhere
HELD_S = 600  # a task ends by itself after this long, should its driver be gone without a word


def ray_nodes() -> dict[str, dict[str, Any]]:
    """What each Ray node that is alive has declared, by Ray's own account: id → its resources, and its labels."""
    import ray

    return {
        one["NodeID"]: {
            "resources": {name: amount for name, amount in one["Resources"].items() if _is_declared(name)},
            "labels": {key: value for key, value in one["Labels"].items() if not key.startswith("ray.io/")},
        }
        for one in ray.nodes()
        if one["Alive"]
    }


def _is_declared(name: str) -> bool:
    # what Ray adds of its own
    return name not in ("memory", "object_store_memory") and not name.startswith(("node:", "accelerator_type:"))


def at_once(address: str, task: dict[str, Any], timeout_s: float) -> list[dict[str, str]]:
    """Submit tasks that do not end, and see which of them run.

    Args:
        address: of the driver's host, where its tasks can reach it.
        task: `resources` and `labels` that each asks for, `submitted`, and `expected`: how many should run at once.
        timeout_s: seconds until those that are expected must have started.

    Returns:
        For each that ran the `host` and the `ray_node`; more than expected, if more run, and fewer after the timeout.
    """
    import ray

    with socket.create_server((address, 0), backlog=64) as server:
        options = _options(task)
        refs = [
            ray.remote(_hold).options(**options).remote(address, server.getsockname()[1], number)
            for number in range(task["submitted"])
        ]
        held = _Held(server)
        try:
            held.look(timeout_s, until=task["expected"])
            held.look(QUIET_S, until=task["submitted"])
            began = [refs[one.pop("number")] for one in held.said]
            # Those that have not begun would begin as soon as the others end. The others are left alone: Ray 2.60 ends
            # a driver that cancels a task just as it ends (task_manager.cc: "complete task that was not pending").
            for ref in set(refs) - set(began):
                ray.cancel(ref)
        finally:
            held.let_go()
    if began:
        ray.wait(began, num_returns=len(began), timeout=10)
    return held.said


def _options(task: dict[str, Any]) -> dict[str, Any]:
    own = {name: amount for name, amount in task["resources"].items() if name not in ("CPU", "GPU")}
    options = {
        "num_cpus": task["resources"].get("CPU", 0),
        "num_gpus": task["resources"].get("GPU", 0),
        "max_retries": 0,
        "scheduling_strategy": "SPREAD",  # so that each Ray node that can run it gets some
    }
    return (
        options | ({"resources": own} if own else {}) | ({"label_selector": task["labels"]} if task["labels"] else {})
    )


class _Held:
    """The connections of the tasks that run, and what they have said of themselves."""

    def __init__(self, server: socket.socket):
        self.said: list[dict[str, Any]] = []
        self.server, self.connections = server, []
        server.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(server, selectors.EVENT_READ)

    def look(self, seconds: float, until: int) -> None:
        """Take in what tasks say, until so many have come, or for so long."""
        deadline = time.monotonic() + seconds
        while len(self.said) < until and (left := deadline - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                if key.fileobj is self.server:
                    connection, _ = self.server.accept()
                    self.connections.append(connection)
                    self.selector.register(connection, selectors.EVENT_READ)
                else:
                    self._hear(key.fileobj)

    def _hear(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        connection.settimeout(5)
        line = connection.recv(4096)  # a task says all of it in one piece, and it is short
        if line:
            self.said.append(json.loads(line))

    def let_go(self) -> None:
        self.selector.close()
        for connection in self.connections:
            connection.close()


def _hold(address: str, port: int, number: int) -> None:
    """The task: says where it runs, and ends when it is let go."""
    import ray

    here = {"number": number, "host": os.environ["HOSTNAME"], "ray_node": ray.get_runtime_context().get_node_id()}
    try:
        with socket.create_connection((address, port), timeout=10) as connection:
            connection.sendall(json.dumps(here).encode())
            connection.settimeout(HELD_S)
            connection.recv(1)
    except OSError:
        pass  # nobody looks any more

"""A Ray driver on a host: the program that submits tasks, as it would run there after a login.

`Driver` is the notebook's end. Run as a module, this file is the other end: a Python process on the host that joins its
Ray cluster, then calls the functions that it is sent, one after the other, and sends back what they return.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from helpers.errors import CourseError
from helpers.rayhost.hosts import Host
from helpers.wait import say, wait_until


class Call:
    """A function that runs in a driver. `result()` waits for what it returns."""

    def __init__(self, driver: Driver, name: str):
        self.driver, self.name, self.outcome = driver, name, None

    def result(self, timeout_s: float = 120) -> Any:
        """What the function returned; what it printed appears here.

        Args:
            timeout_s: seconds to wait.

        Raises:
            WaitTimeout: if it is not done by then; it goes on, and `result` can be asked again.
            Exception: whatever the function raised, with a note that holds its stack trace.
        """
        if self.outcome is None:
            what = f"`{self.name}` to finish on {self.driver.host.name}"
            wait_until(self._received, timeout_s, what=what, every_s=0.02)
        kind, value = self.outcome
        if kind == "raised":
            raise value
        return value

    def _received(self) -> bool:
        assert self.driver.connection.poll(), "still running"
        kind, value = self.driver.receive()
        if kind == "printed":
            say(value)
            return False
        self.outcome, self.driver.current = (kind, value), None
        return True


class Driver:
    """A driver process on `host`, attached to the Ray cluster that this host is part of.

    Args:
        host: where it runs. Ray must have been started there.

    Raises:
        CourseError: if no Ray runs on the host, or the driver cannot join it.
    """

    def __init__(self, host: Host):
        if "raylet" not in host.processes().parts:
            raise CourseError(f"{host.name} runs no Ray yet.", "Run the cell above with `ray start` first.")
        from ray import cloudpickle  # slow: loads Ray

        self.dumps, self.loads = cloudpickle.dumps, cloudpickle.loads
        self.host, self.current = host, None
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        command = [sys.executable, "-m", "helpers.rayhost.driver", str(fd)]
        self.process = host.hosts.spawn(
            host, command, pass_fds=[fd], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.current = Call(self, "ray.init")
        self.node_id = self.current.result(60)

    def start(self, function: Callable, *args: Any, **kwargs: Any) -> Call:
        """Send `function` to the driver and return at once. One call runs at a time.

        Raises:
            CourseError: if the call before has not been waited for, or the driver is gone.
        """
        self.host.hosts.check_open()
        if self.current is not None:
            raise CourseError(
                f"The driver on {self.host.name} is still busy with `{self.current.name}`.",
                "Wait for its result() first, or run the notebook again from its first cell.",
            )
        try:
            self.connection.send_bytes(self.dumps((function, args, kwargs)))
        except OSError:
            raise self._gone() from None
        self.current = Call(self, getattr(function, "__name__", "the function"))
        return self.current

    def run(self, function: Callable, *args: Any, timeout_s: float = 120, **kwargs: Any) -> Any:
        """Run `function` in the driver and return what it returns. See `start` and `Call.result`."""
        return self.start(function, *args, **kwargs).result(timeout_s)

    def close(self) -> None:
        self.connection.close()
        self.process.wait()

    def receive(self) -> tuple[str, Any]:
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise self._gone() from None
        try:
            return self.loads(message)
        except Exception as error:
            return "raised", CourseError(
                f"What `{self.current.name}` returned cannot leave its Ray cluster ({type(error).__name__}: {error}).",
                "Return plain values, such as numbers, texts and lists of them, and keep ObjectRefs and actors inside.",
            )

    def _gone(self) -> CourseError:
        return CourseError(
            f"The driver on {self.host.name} has ended: Ray ends a driver whose raylet or GCS is gone.",
            "Run the notebook again from its first cell.",
        )


class _Printed(io.TextIOBase):
    """Standard output of a call: each piece goes to the notebook as it is written.

    What other threads print stays out: Ray's own reports there are long, and would land under any cell.
    """

    def __init__(self, send: Callable):
        self.send, self.thread = send, threading.get_ident()

    def write(self, text: str) -> int:
        if text and threading.get_ident() == self.thread:
            self.send("printed", text)
        return len(text)


def _serve(connection: Connection) -> None:
    import ray
    from ray import cloudpickle

    def send(kind: str, value: Any) -> None:
        connection.send_bytes(cloudpickle.dumps((kind, value)))

    def call(function: Callable, args: tuple, kwargs: dict) -> None:
        try:
            with contextlib.redirect_stdout(_Printed(send)):
                value = function(*args, **kwargs)
            send("returned", value)
        except Exception as error:
            error.add_note(f"In the driver:\n{traceback.format_exc()}")
            send("raised", error)

    def join() -> str:
        ray.init(address="auto", namespace="course", log_to_driver=False, logging_level="ERROR")
        return ray.get_runtime_context().get_node_id()

    call(join, (), {})
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:  # the notebook closed its end, or is gone
            os._exit(0)
        call(*cloudpickle.loads(request))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))

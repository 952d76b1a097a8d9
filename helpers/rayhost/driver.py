"""A Ray driver on a host: the program that submits tasks, as it would run there after a login.

`Driver` is the notebook's end. Run as a module, this file is the other end: a Python process on the host that joins its
Ray cluster, then calls the functions that it is sent, one after the other, and sends back what they return.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from helpers.errors import CourseError
from helpers.rayhost import members
from helpers.rayhost.hosts import Host
from helpers.wait import say, wait_until

JOIN_S = 60.0  # seconds that ray.init may take
INTERRUPT_S = 5.0  # how long an interrupted function gets to stop


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
            CourseError: if the driver has ended, or what the function returned cannot leave it.
            Exception: whatever the function raised, with a note that holds its stack trace.
            KeyboardInterrupt: if you interrupt the kernel; the function is interrupted too.
        """
        if self.outcome is None:
            try:
                self._wait(timeout_s)
            except KeyboardInterrupt:
                self.driver.interrupt()
                self.done_within(INTERRUPT_S)  # so that the next function finds the driver free
                raise
        kind, value = self.outcome
        if kind != "returned":
            raise value
        return value

    def done_within(self, seconds: float) -> bool:
        """Whether the function is done, after at most this many seconds; never raises what it raised."""
        deadline = time.monotonic() + seconds
        while not self._received() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.outcome is not None

    def _wait(self, timeout_s: float) -> None:
        def finished() -> bool:
            assert self._received(), "still running"
            return True

        wait_until(
            finished,
            timeout_s,
            what=f"`{self.name}` on {self.driver.host.name}",
            fix="It goes on: ask for its result() again, or interrupt the kernel while you do, which ends it.",
            every_s=0.02,
        )

    def _received(self) -> bool:
        """Show what the function has printed by now; whether its outcome has come."""
        while self.outcome is None and self.driver.inbox:
            # taken out only when it is dealt with: an interrupt in between must not lose it
            kind, value = self.driver.decode(self.driver.inbox[0])
            if kind == "printed":
                say(value)
            else:
                self.outcome, self.driver.current = (kind, value), None
            if kind != "gone":
                self.driver.inbox.popleft()
        return self.outcome is not None


_kept: dict[str, Any] = {}  # in a driver process: what its functions leave for the next ones


class Kept:
    """Stands for a dict that lives in the driver: passed to a function there, it arrives as that dict.

    ObjectRefs and actors cannot leave their cluster; what one call puts in here, the next one finds.
    """

    def __reduce__(self):
        return _the_kept, ()


def _the_kept() -> dict[str, Any]:
    return _kept


class Driver:
    """A driver process on `host`, attached to the Ray cluster that this host is part of.

    Attributes:
        kept: pass it to a function, and it arrives as a dict that stays in the driver between calls.
        node_id: Ray's id of the Ray node that the driver is on.

    Args:
        host: where it runs. Ray must have been started there.

    Raises:
        CourseError: if no Ray runs on the host, or the driver cannot join it.
    """

    kept = Kept()

    def __init__(self, host: Host):
        if "raylet" not in host.processes().parts:
            raise CourseError(f"{host.name} runs no Ray yet.", "Run the cell above with `ray start` first.")
        from ray import cloudpickle  # slow: loads Ray

        self.dumps, self.loads = cloudpickle.dumps, cloudpickle.loads
        self.host, self.current, self.inbox = host, None, deque()
        self.socket, theirs = socket.socketpair()
        with theirs, host.hosts.log.open("ab") as log:
            command = [sys.executable, "-m", "helpers.rayhost.driver", str(theirs.fileno())]
            self.process = host.hosts.spawn(
                host, command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, stderr=log
            )
        self.connection = Connection(os.dup(self.socket.fileno()))
        # a thread, so that the driver never waits for the notebook to take in what its functions print
        threading.Thread(target=_receive, args=(self.connection, self.inbox), daemon=True).start()
        self.node_id = self._join()

    def _join(self) -> str:
        self.current = Call(self, "ray.init")
        try:
            return self.current.result(JOIN_S)
        except Exception as error:
            self.close()
            if isinstance(error, CourseError):
                raise
            raise CourseError(
                f"The driver on {self.host.name} cannot join Ray: {type(error).__name__}: {error}.".replace("..", "."),
                f"See with {self.host.name}.processes() whether Ray still runs there, and on its head.",
            ) from None

    def start(self, function: Callable, *args: Any, **kwargs: Any) -> Call:
        """Send `function` to the driver and return at once. One call runs at a time.

        Raises:
            CourseError: if the call before has not been waited for, or the driver is gone.
        """
        self.host.hosts.check_open()
        if self.current is not None:
            raise CourseError(
                f"The driver on {self.host.name} is still busy with `{self.current.name}`.",
                "Wait for its result() first; interrupting that ends it.",
            )
        name = getattr(function, "__name__", "the function")
        try:
            request = self.dumps((function, args, kwargs))
        except Exception as error:
            raise CourseError(
                f"`{name}` uses something that cannot be sent to the driver ({type(error).__name__}: {error}).",
                "Pass it plain values and import modules inside it; `lab`, hosts and drivers stay in the notebook.",
            ) from None
        try:
            self.connection.send_bytes(request)
        except OSError:
            raise self._gone() from None
        self.current = Call(self, name)
        return self.current

    def run(self, function: Callable, *args: Any, timeout_s: float = 120, **kwargs: Any) -> Any:
        """Run `function` in the driver and return what it returns. See `start` and `Call.result`."""
        return self.start(function, *args, **kwargs).result(timeout_s)

    def interrupt(self) -> None:
        """Interrupt the function that runs now, as Ctrl-C would."""
        # on a separate host the process is nsenter, and the driver is its child
        for pid in members.children(self.process.pid) if self.host.hosts.separate else [self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def close(self) -> None:
        """End the driver. Its host and cluster go on."""
        with contextlib.suppress(OSError):  # it was closed before, or the driver is gone
            self.socket.shutdown(socket.SHUT_RDWR)  # ends the driver, and the thread that listens to it
        self.socket.close()

    def __del__(self):
        if hasattr(self, "socket"):
            self.close()

    def decode(self, message: bytes | None) -> tuple[str, Any]:
        """What a message of the driver says: (kind, value)."""
        if message is None:
            return "gone", self._gone()
        try:
            kind, value = self.loads(message)
        except Exception as error:
            kind, value = "stuck", f"{type(error).__name__}: {error}"
        if kind == "stuck":
            return "raised", _cannot_leave(self.current.name, value)
        if kind == "raised":
            return "raised", _with_note(self.current.name, *value)
        return kind, value

    def _gone(self) -> CourseError:
        return CourseError(
            f"The driver on {self.host.name} has ended: Ray ends a driver whose raylet or GCS is gone.",
            "Run the notebook again from its first cell.",
        )


def _receive(connection: Connection, inbox: deque[bytes | None]) -> None:
    """Put every message of a driver into `inbox`, and None when it ended."""
    with connection, contextlib.suppress(EOFError, OSError):
        while True:
            inbox.append(connection.recv_bytes())
    inbox.append(None)


def _with_note(name: str, error: BaseException, note: str) -> Exception:
    if not isinstance(error, Exception):  # KeyboardInterrupt or SystemExit, which would mean the notebook's kernel
        return CourseError(f"`{name}` was ended by {type(error).__name__}.", "Run the cell again.")
    error.add_note(note)
    return error


def _cannot_leave(name: str, error: object) -> CourseError:
    return CourseError(
        f"What `{name}` returned or raised cannot leave its driver ({error}).",
        "Return plain values, such as numbers, texts and lists of them, and keep ObjectRefs and actors inside.",
    )


class _Printed(io.TextIOBase):
    """Standard output of a call: each line goes to the notebook as soon as it is whole.

    What other threads print stays out: Ray's own reports there are long, and would land under any cell.
    """

    def __init__(self, send: Callable):
        self.send, self.thread, self.begun = send, threading.get_ident(), ""

    def write(self, text: str) -> int:
        if threading.get_ident() == self.thread:
            lines, newline, self.begun = (self.begun + text).rpartition("\n")
            if newline:
                self.send("printed", lines + newline)
        return len(text)

    def finish(self) -> None:
        if self.begun:
            self.write("\n")


class _Server:
    """The other end: joins Ray, then calls what the notebook sends."""

    def __init__(self, connection: Connection):
        self.connection, self.is_calling = connection, False
        signal.signal(signal.SIGINT, self._interrupt)

    def serve(self) -> None:
        self.call(_join_ray)
        while True:
            try:
                request = self.connection.recv_bytes()
            except (EOFError, OSError):  # the notebook closed its end, or is gone
                os._exit(0)
            self.call(_run, request)

    def call(self, function: Callable, *args: Any) -> None:
        printed = _Printed(self.send)
        try:
            self.is_calling = True
            with contextlib.redirect_stdout(printed):
                answer = "returned", function(*args)
        except BaseException as error:
            answer = "raised", (error, f"In the driver:\n{traceback.format_exc()}")
        finally:
            self.is_calling = False
        printed.finish()
        try:
            self.send(*answer)
        except Exception as error:  # what cannot be pickled
            why = answer[1][0] if answer[0] == "raised" else error
            self.send("stuck", f"{type(why).__name__}: {why}")

    def send(self, kind: str, value: Any) -> None:
        from ray import cloudpickle

        self.connection.send_bytes(cloudpickle.dumps((kind, value)))

    def _interrupt(self, *_: object) -> None:
        if self.is_calling:
            raise KeyboardInterrupt


def _join_ray() -> str:
    import ray

    # hosts that share a machine are told apart by their directory: without it the driver would go to the head's raylet
    directory = os.path.join(os.environ["RAY_TMPDIR"], "ray")
    ray.init(address="auto", namespace="course", log_to_driver=False, logging_level="ERROR", _temp_dir=directory)
    return ray.get_runtime_context().get_node_id()


def _run(request: bytes) -> Any:
    from ray import cloudpickle

    function, args, kwargs = cloudpickle.loads(request)
    return function(*args, **kwargs)


if __name__ == "__main__":
    _Server(Connection(int(sys.argv[1]))).serve()

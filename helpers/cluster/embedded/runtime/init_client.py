"""The runtime's side of a machine's init: asks it to make sandboxes, to start containers, and hears when they end.

Containers are children of the init, not of the runtime, so that they outlive a runtime that dies. See init.py.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from helpers.cluster.embedded.runtime import messages


class InitError(Exception):
    """The init refused, in one sentence: a state that does not allow it, a kernel that says no, a wrong request."""


class NotFound(InitError):
    """There is no such sandbox or container."""


class StartError(InitError):
    """The program could not be started, as `exec: "x": executable file not found in $PATH`."""


class InitGone(InitError):
    """The init does not answer any more: the machine is lost, or it shuts down."""


ERRORS = {kind.__name__: kind for kind in (InitError, NotFound, StartError)}


@dataclass(frozen=True)
class Started:
    """A container that runs: `pid` as the machine counts, `started_ns` since the epoch."""

    pid: int
    started_ns: int


@dataclass
class Exec:
    """A further process in a container.

    Attributes:
        pid: as the machine counts.
        tty: with `"tty": true`, the master side of its terminal, which the caller closes; else None.
    """

    pid: int
    tty: int | None
    _init: Init
    _number: int
    _code: asyncio.Future[int]

    async def wait(self) -> int:
        """Its exit code; 128 + n when signal n ended it.

        Raises:
            InitGone: the machine was lost meanwhile.
        """
        return await asyncio.shield(self._code)

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends it and what it started (its process group) a signal. Nothing happens when it has ended already."""
        await self._init._ask("exec_kill", exec=self._number, signal=int(number))


@dataclass
class Attached:
    """Ends of pipes that carry copies of what a container writes from now on; `close` them.

    A reader that is too slow loses output; a line in the stream says how much.

    Attributes:
        stdout: to read from; end of file when the container has ended.
        stderr: to read from; None for a container with a terminal, which has one stream.
        stdin: to write to; None when not asked for, or when the container has no standard input (any more). With
            `stdin_once` the container sees the end of its input when this is closed.
        tty: the terminal's master side is `stdin` then: its window size can be set on it.
    """

    stdout: int
    stderr: int | None
    stdin: int | None
    tty: bool

    def close(self) -> None:
        """Closes what is still open of them."""
        for name in ("stdout", "stderr", "stdin"):
            if (fd := getattr(self, name)) is not None:
                os.close(fd)
                setattr(self, name, None)


@dataclass
class Init:
    """A connection to the init of one machine; all its methods may be called at the same time.

    Every method raises InitError, with one sentence that says why, when the init refuses.
    """

    _sock: socket.socket
    _numbers: itertools.count = field(default_factory=itertools.count)
    _waiting: dict[int, asyncio.Future] = field(default_factory=dict)
    _execs: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    _early: dict[int, int] = field(default_factory=dict)
    _callbacks: list[Callable[[str, dict], None]] = field(default_factory=list)
    _unsent: deque[tuple[dict, tuple[int, ...], asyncio.Future]] = field(default_factory=deque)
    _gone: asyncio.Future[None] | None = None

    @classmethod
    async def connect(cls, path: str | Path) -> Init:
        """Connects to the init's socket.

        Raises:
            InitGone: nothing listens there.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            sock.connect(str(path))
        except OSError as error:
            sock.close()
            raise InitGone(f"the machine's init does not listen at {path}: {error.strerror}") from None
        sock.setblocking(False)
        self = cls(sock)
        loop = asyncio.get_running_loop()
        self._gone = loop.create_future()
        loop.add_reader(sock, self._read)
        return self

    def close(self) -> None:
        """Ends the connection. What was exec'ed through it is killed by the init; containers are not."""
        self._lost()

    async def gone(self) -> None:
        """Returns when the connection has ended: the machine is lost, or `close` was called."""
        await asyncio.shield(self._gone)

    # ---- sandboxes and containers

    async def make_sandbox(self, id: str, spec: dict) -> None:
        """Makes a sandbox's namespaces, and mounts their files at `<disk>/sandboxes/<id>/ns/{net,ipc,uts,pid}`.

        There is a file for a namespace of the sandbox's own only, none for one of the machine's ("host").

        Args:
            spec: {"hostname", "namespaces", "sysctls": {}}; namespaces is
                {"net": "pod"|"host", "ipc": "pod"|"host", "pid": "container"|"pod"|"host"}.
        """
        await self._ask("make_sandbox", name=id, spec=spec)

    async def remove_sandbox(self, id: str) -> None:
        """Ends a sandbox's namespaces, when its containers have ended. Nothing happens when there is no such one."""
        await self._ask("remove_sandbox", name=id)

    async def start(self, id: str, spec: dict) -> Started:
        """Starts a container; returns when its program runs.

        Raises:
            StartError: the program could not be started. There is no container then, and nothing to forget.
        """
        reply, _ = await self._ask("start", name=id, spec=spec)
        return Started(reply["pid"], reply["started_ns"])

    async def exec(self, container_id: str, spec: dict, fds: tuple[int, int, int] | None = None) -> Exec:
        """Starts a further process in a running container.

        Args:
            spec: {"argv": […], "tty": false} and, if they differ from the container's own: "env" (added to its), "cwd",
                "uid", "gid", "groups".
            fds: its stdin, stdout and stderr. The caller may close its own copies afterwards. None with a terminal.

        Raises:
            StartError: the program could not be started.
        """
        reply, received = await self._ask("exec", fds or (), name=container_id, spec=spec)
        code = asyncio.get_running_loop().create_future()
        if reply["exec"] in self._early:
            code.set_result(self._early.pop(reply["exec"]))
        elif self._gone.done():
            code.set_exception(InitGone("the machine's init is gone"))
        else:
            self._execs[reply["exec"]] = code
        return Exec(reply["pid"], received[0] if received else None, self, reply["exec"], code)

    async def signal(self, id: str, number: int) -> None:
        """Sends a signal to a container's first process. Nothing happens when it has ended already."""
        await self._ask("signal", name=id, signal=int(number))

    async def attach(self, id: str, *, stdin: bool) -> Attached:
        """Copies of what a running container writes, and its standard input if asked for."""
        reply, fds = await self._ask("attach", name=id, stdin=stdin)
        ends = dict(zip(reply["fds"], fds, strict=True))
        return Attached(ends["stdout"], ends.get("stderr"), ends.get("stdin"), reply["tty"])

    async def reopen_log(self, id: str) -> None:
        """Opens the log file anew, after whoever rotates it has moved it away."""
        await self._ask("reopen_log", name=id)

    async def resize(self, id: str, memory_bytes: int | None) -> None:
        """Changes the memory limit of a running container; None or 0: no limit."""
        await self._ask("resize", name=id, memory_bytes=memory_bytes or 0)

    async def usage(self, ids: Iterable[str]) -> dict[str, dict[str, int]]:
        """What running containers use: memory_bytes, working_set_bytes, rss_bytes, cpu_ns, pids. No others."""
        reply, _ = await self._ask("usage", names=list(ids))
        return reply["usage"]

    async def containers(self) -> dict[str, dict]:
        """All containers that were started and not forgotten, those of before the machine's last boot among them.

        Returns:
            id: {"state": "running"|"exited", "pid", "code", "oom_killed", "reason", "started_ns", "finished_ns"}; for
            one that ran when the machine was lost, reason is "Unknown" and code 255, else reason is "".
        """
        reply, _ = await self._ask("containers")
        return reply["containers"]

    async def sandboxes(self) -> list[str]:
        """The sandboxes that were made since the machine's last boot, and not removed."""
        reply, _ = await self._ask("sandboxes")
        return reply["sandboxes"]

    async def services(self) -> list[dict]:
        """The machine's services: {"name", "pid" (as the machine counts; 0: not running), "started_ns", "restarts"}."""
        reply, _ = await self._ask("services")
        return reply["services"]

    def on_exit(self, callback: Callable[[str, dict], None]) -> None:
        """Calls `callback(id, record)` for every container that ends from now on; record as in `containers`."""
        self._callbacks.append(callback)

    async def forget(self, id: str) -> None:
        """Removes what is kept of a container that has ended. Nothing happens when there is no such container."""
        await self._ask("forget", name=id)

    # ---- messages

    async def _ask(self, op: str, fds: tuple[int, ...] = (), **arguments: object) -> tuple[dict, list[int]]:
        if self._gone.done():
            raise InitGone("the machine's init is gone")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        # copies, so that the caller may close its own even when the message has to wait
        self._unsent.append(({"id": number, "op": op, **arguments}, tuple(os.dup(fd) for fd in fds), answer))
        self._write()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and not answer.exception():
                messages.close(answer.result()[1])
            raise

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unsent:
            message, fds, answer = self._unsent[0]
            try:
                messages.send(self._sock, message, fds)
            except BlockingIOError:
                loop.add_writer(self._sock, self._write)
                return
            except OSError:
                self._lost()
                return
            except (TypeError, ValueError) as error:
                self._waiting.pop(message["id"], None)
                if not answer.done():
                    answer.set_exception(InitError(f"not JSON: {error}"))
            self._unsent.popleft()
            messages.close(fds)
        loop.remove_writer(self._sock)

    def _read(self) -> None:
        while not self._gone.done():
            try:
                got = messages.receive(self._sock)
            except BlockingIOError:
                return
            except (OSError, messages.BadMessage):
                got = None
            if got is None:
                self._lost()
                return
            self._handle(*got)

    def _handle(self, message: dict, fds: list[int]) -> None:
        if message.get("event") == "exit":
            for callback in self._callbacks:
                callback(message["name"], message["record"])
        elif message.get("event") == "exec_exit":
            if code := self._execs.pop(message["exec"], None):
                code.set_result(message["code"])
            else:  # it ended before whoever asked for it had a chance to run
                self._early[message["exec"]] = message["code"]
        else:
            self._answer(message, fds)

    def _answer(self, message: dict, fds: list[int]) -> None:
        answer = self._waiting.pop(message.get("id"), None)
        if answer is None or answer.done():  # whoever asked was cancelled
            messages.close(fds)
        elif error := message.get("error"):
            messages.close(fds)
            answer.set_exception(ERRORS.get(error["kind"], InitError)(error["message"]))
        else:
            answer.set_result((message["ok"], fds))

    def _lost(self) -> None:
        if self._gone.done():
            return
        loop = self._gone.get_loop()
        loop.remove_reader(self._sock)
        loop.remove_writer(self._sock)
        self._sock.close()
        self._gone.set_result(None)
        for future in (*self._waiting.values(), *self._execs.values()):
            if not future.done():
                future.set_exception(InitGone("the machine's init is gone"))
                future.exception()  # nobody may be waiting for it
        for _, fds, _ in self._unsent:
            messages.close(fds)
        self._unsent.clear()
        self._waiting.clear()
        self._execs.clear()

"""Exec, attach and port-forward: a server on loopback, to which the kubelet takes what `kubectl` sends and receives.

A call of the CRI only makes a URL with a token that is good once and for a minute; the kubelet then connects to it.
Between kubelet and runtime it is always SPDY/3.1 with the subprotocols below: the kubelet translates WebSockets.
What travels in which stream, and the status at the end: k8s.io/kubelet/pkg/cri/streaming (remotecommand, portforward).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from helpers.cluster.embedded.runtime.fds import pump, write_all
from helpers.cluster.embedded.runtime.init_client import Attached, Exec, InitError
from helpers.cluster.embedded.runtime.spdy import Connection, Stream

COMMAND, PORTS = "v4.channel.k8s.io", "portforward.k8s.io"
TOKEN_S = 60  # a token that nobody used for so long is void
HEAD_S = 10  # within which the request's head must be there
STREAMS_S = 30  # within which the client must have opened the streams that it asked for
HANG_UP_S = 30  # within which it must hang up when all is said
Serve = Callable[[Connection], Awaitable[None]]
log = logging.getLogger("streaming")


@dataclass(frozen=True)
class Wanted:
    """Which streams a client asked for. With `tty` there is no stderr: a terminal has one output."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    def names(self) -> set[str]:
        names = {"error"} | {name for name in ("stdin", "stdout") if getattr(self, name)}
        return names | ({"resize"} if self.tty else {"stderr"} if self.stderr else set())


class BadRequest(Exception):
    """The request cannot become a stream; its text is the answer."""


class Streaming:
    """The server. `url` makes an address for one session."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, Serve, asyncio.TimerHandle]] = {}
        self._sessions: set[asyncio.Task] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens on a free port of loopback."""
        self._server = await asyncio.start_server(self._session, "127.0.0.1", 0)

    async def close(self) -> None:
        """Ends all sessions."""
        self._server.close()
        for session in self._sessions:
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def url(self, kind: str, protocol: str, serve: Serve) -> str:
        """Where the kubelet finds a session.

        Args:
            kind: exec, attach or portforward; it only says so in the URL.
            protocol: the subprotocol that the client must offer.
            serve: is awaited with the connection; the session ends with it.
        """
        token = secrets.token_urlsafe(16)
        expiry = asyncio.get_running_loop().call_later(TOKEN_S, self._waiting.pop, token, None)
        self._waiting[token] = protocol, serve, expiry
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}/{kind}/{token}"

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = asyncio.current_task()
        self._sessions.add(session)
        try:
            serve = await self._upgrade(reader, writer)
            if serve:
                await _serve(Connection(reader, writer), serve)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
            log.warning("a connection ended early: %r", error)
        except Exception:
            log.exception("session")
        finally:
            self._sessions.discard(session)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _upgrade(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Serve | None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
        try:
            protocol, serve = self._admit(head)
        except BadRequest as error:
            body = f"{error}\n".encode()
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            return None
        answer = ("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: SPDY/3.1")
        writer.write("\r\n".join((*answer, f"X-Stream-Protocol-Version: {protocol}", "", "")).encode())
        await writer.drain()
        return serve

    def _admit(self, head: bytes) -> tuple[str, Serve]:
        path, headers = parse_head(head)
        token = path.partition("?")[0].rpartition("/")[2]
        if token not in self._waiting:
            raise BadRequest("there is no such session: its token was used already, or it is too old")
        if "spdy/3.1" not in [value.lower() for value in headers.get("upgrade", [])]:
            raise BadRequest("this server wants Upgrade: SPDY/3.1")
        protocol, serve, expiry = self._waiting[token]
        if protocol not in headers.get("x-stream-protocol-version", []):
            raise BadRequest(f"this server wants X-Stream-Protocol-Version: {protocol}")
        del self._waiting[token]
        expiry.cancel()
        return protocol, serve


def parse_head(head: bytes) -> tuple[str, dict[str, list[str]]]:
    """Path and headers (names in lower case, values separated at commas) of an HTTP request.

    Raises:
        BadRequest: it is no HTTP request.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest("this is no HTTP request")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers.setdefault(name.strip().lower(), []).extend(part.strip() for part in value.split(","))
    return words[1], headers


async def _serve(connection: Connection, serve: Serve) -> None:
    incoming = asyncio.create_task(connection.run())
    try:
        await serve(connection)
        await connection.close(HANG_UP_S)
    finally:
        incoming.cancel()
        await asyncio.gather(incoming, return_exceptions=True)


async def _until_gone(connection: Connection, work: Awaitable[None]) -> bool:
    """Does the work, or drops it when the client hangs up. Says whether it was done."""
    tasks = [asyncio.ensure_future(work), asyncio.create_task(connection.gone.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def open_streams(connection: Connection, wanted: set[str]) -> dict[str, Stream]:
    """Waits until the client has opened its streams.

    Raises:
        TimeoutError: it did not within half a minute.
        ConnectionError: it hung up.
    """
    streams: dict[str, Stream] = {}
    async with asyncio.timeout(STREAMS_S):
        while wanted - streams.keys():
            stream = await connection.accept()
            if stream is None:
                raise ConnectionResetError("the client hung up before it had opened its streams")
            streams[stream.headers.get("streamtype", "")] = stream
    return streams


# ---- what is said at the end, in the stream "error"


def status(code: int) -> bytes:
    """The Status object (meta/v1) for an exit code."""
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    text = f"command terminated with non-zero exit code: exit status {code}"
    answer = {"status": "Failure", "message": text, "reason": "NonZeroExitCode", "details": {"causes": causes}}
    return json.dumps({"metadata": {}} | answer).encode()


def failure(text: str) -> bytes:
    """The Status object for a command that could not be run."""
    text = f"Internal error occurred: {text}"
    answer = {"status": "Failure", "message": text, "reason": "InternalError", "code": 500}
    return json.dumps({"metadata": {}} | answer | {"details": {"causes": [{"message": text}]}}).encode()


async def _finish(streams: dict[str, Stream], answer: bytes) -> None:
    # the answer comes last: a client may hang up as soon as it has it
    for name in ("stdout", "stderr"):
        if name in streams:
            await streams[name].close()
    with contextlib.suppress(ConnectionError):
        await streams["error"].write(answer)
    await streams["error"].close()
    for stream in streams.values():
        await stream.close()


# ---- exec


async def serve_exec(
    connection: Connection, wanted: Wanted, launch: Callable[[tuple[int, int, int] | None], Awaitable[Exec]]
) -> None:
    """Runs a command with the client's streams as its own. A client that hangs up ends it.

    Args:
        connection: the client's.
        wanted: the streams that it asked for.
        launch: starts the command with descriptors for stdin, stdout and stderr, or with a terminal of its own (None).
    """
    streams = await open_streams(connection, wanted.names())
    with contextlib.ExitStack() as open_fds:
        try:
            process, ends = await (_on_terminal if wanted.tty else _on_pipes)(launch, wanted, open_fds)
        except InitError as error:
            return await _finish(streams, failure(f"error executing command in container: {error}"))
        ended = asyncio.Event()
        code = asyncio.create_task(_wait(process, ended))

        async def talk() -> None:
            # a terminal says itself when its last process is gone, and what is under way in it must not be cut off
            outlasts = None if wanted.tty else ended
            await _talk(streams, ends, keep_stdin=wanted.tty, terminal=process.tty, ended=outlasts)
            await ended.wait()

        try:
            if not await _until_gone(connection, talk()):
                await process.kill()
                return None
            return await _finish(streams, status(await code))
        finally:
            code.cancel()
            await asyncio.gather(code, return_exceptions=True)


async def _wait(process: Exec, ended: asyncio.Event) -> int:
    try:
        return await process.wait()
    finally:
        ended.set()


async def _on_terminal(launch: Callable, wanted: Wanted, open_fds: contextlib.ExitStack) -> tuple[Exec, dict[str, int]]:
    process = await launch(None)
    open_fds.callback(os.close, process.tty)
    return process, {"stdin": process.tty, "stdout": process.tty}


async def _on_pipes(launch: Callable, wanted: Wanted, open_fds: contextlib.ExitStack) -> tuple[Exec, dict[str, int]]:
    ends, theirs = {}, []
    with contextlib.ExitStack() as handed_over:
        for name in ("stdin", "stdout", "stderr"):
            if getattr(wanted, name):
                read, write = os.pipe2(os.O_CLOEXEC)
                ours, other = (write, read) if name == "stdin" else (read, write)
                ends[name] = ours
                open_fds.callback(_close_end, ends, name)
            else:
                other = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            handed_over.callback(os.close, other)
            theirs.append(other)
        return await launch(tuple(theirs)), ends


def _close_end(ends: dict[str, int], name: str) -> None:
    if name in ends:
        os.close(ends.pop(name))


async def _talk(
    streams: dict[str, Stream],
    ends: dict[str, int],
    *,
    keep_stdin: bool,
    terminal: int | None,
    ended: asyncio.Event | None,
) -> None:
    """Carries input in and output out, until the output has ended.

    Args:
        streams: the client's, by name.
        ends: the descriptors of what it talks to, by the same names; what is closed here is taken out.
        keep_stdin: whether the end of the client's input is to leave the other's input open.
        terminal: whose window size the client may set.
        ended: when the process has ended, if its output may outlast it. See `pump`.
    """
    inward = []
    if "stdin" in streams and "stdin" in ends:
        inward.append(asyncio.create_task(_feed(streams["stdin"], ends, keep=keep_stdin)))
    if "resize" in streams and terminal is not None:
        inward.append(asyncio.create_task(_resize(streams["resize"], terminal)))
    try:
        outward = [name for name in ("stdout", "stderr") if name in ends]
        await asyncio.gather(*(_drain(ends[name], streams.get(name), ended) for name in outward))
    finally:
        for task in inward:
            task.cancel()
        await asyncio.gather(*inward, return_exceptions=True)


async def _drain(fd: int, stream: Stream | None, ended: asyncio.Event | None) -> None:
    async def sink(data: bytes) -> None:
        # a client that does not want this stream (any more) gets none of it, and the process goes on
        if stream:
            with contextlib.suppress(ConnectionError):
                await stream.write(data)

    await pump(fd, sink, ended)


async def _feed(stream: Stream, ends: dict[str, int], *, keep: bool) -> None:
    """Gives the client's input to the process; its end is the end of the process's input, if not `keep`."""
    try:
        while data := await stream.read():
            await write_all(ends["stdin"], data)
    except OSError:  # the process does not read any more
        stream.discard()
    if not keep:
        _close_end(ends, "stdin")


async def _resize(stream: Stream, terminal: int) -> None:
    while data := await stream.read():
        with contextlib.suppress(ValueError, KeyError, TypeError, struct.error, OSError):
            size = json.loads(data)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))


# ---- attach


async def serve_attach(
    connection: Connection, wanted: Wanted, stdin_once: bool, attach: Callable[[], Awaitable[Attached]]
) -> None:
    """Shows what a container writes from now on, and gives it input, until it ends or the client hangs up.

    Args:
        connection: the client's.
        wanted: the streams that it asked for.
        stdin_once: whether the end of the client's input is the end of the container's.
        attach: opens the container's ends.
    """
    streams = await open_streams(connection, wanted.names())
    try:
        attached = await attach()
    except InitError as error:
        return await _finish(streams, failure(f"error attaching to container: {error}"))
    names = ("stdin", "stdout", "stderr")
    ends = {name: end for name in names if (end := getattr(attached, name)) is not None}
    terminal = attached.stdin if attached.tty else None
    keep = attached.tty or not stdin_once
    try:
        if await _until_gone(connection, _talk(streams, ends, keep_stdin=keep, terminal=terminal, ended=None)):
            return await _finish(streams, status(0))
        return None
    finally:
        for fd in ends.values():
            os.close(fd)


# ---- port-forward


async def serve_ports(connection: Connection, pod: str, dial: Callable[[int], Awaitable[socket.socket]]) -> None:
    """Connects to ports of a Pod for as long as the client stays. Each connection is a pair of streams.

    Args:
        connection: the client's.
        pod: what to call it in an error.
        dial: connects to a port on the Pod's loopback, or raises OSError.
    """
    halves: dict[str, dict[str, Stream]] = {}
    pairs: set[asyncio.Task] = set()
    try:
        while stream := await connection.accept():
            request = stream.headers.get("requestid", "")
            pair = halves.setdefault(request, {})
            pair[stream.headers.get("streamtype", "")] = stream
            if {"data", "error"} <= pair.keys():
                del halves[request]
                task = asyncio.create_task(_forward(pair["data"], pair["error"], pod, dial))
                pairs.add(task)
                task.add_done_callback(pairs.discard)
    finally:
        for task in pairs:
            task.cancel()
        await asyncio.gather(*pairs, return_exceptions=True)


async def _forward(data: Stream, error: Stream, pod: str, dial: Callable[[int], Awaitable[socket.socket]]) -> None:
    port = data.headers.get("port", "")
    try:
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise OSError(f"{port!r} is not a port")
        with await dial(int(port)) as sock:
            await asyncio.gather(_upward(data, sock), _downward(data, sock))
    except OSError as problem:
        # asyncio says "Connect call failed", whatever it was
        why = os.strerror(problem.errno).lower() if problem.errno else problem
        with contextlib.suppress(ConnectionError):
            await error.write(f"error forwarding port {port} to pod {pod}: {why}".encode())
    finally:
        data.discard()
        await data.close()
        await error.close()


async def _upward(data: Stream, sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    try:
        while piece := await data.read():
            await loop.sock_sendall(sock, piece)
        sock.shutdown(socket.SHUT_WR)
    except OSError:  # the Pod closed it: the client learns it from the other direction
        data.discard()


async def _downward(data: Stream, sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(sock, 64 << 10):
        await data.write(piece)
    await data.close()

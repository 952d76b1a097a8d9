"""The streaming server with real processes behind it, and a client that behaves well, badly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cluster.embedded.runtime import spdy, streaming
from helpers.cluster.embedded.runtime.init_client import StartError
from helpers.cluster.embedded.runtime.spdy import HeaderCodec, ProtocolError, parse_headers
from helpers.cluster.embedded.runtime.streaming import COMMAND, PORTS, BadRequest, Streaming, Wanted, parse_head
from tests.cri import SpdyClient, exit_code, session

ALL = Wanted(stdin=True, stdout=True, stderr=True, tty=False)


class Child:
    """A process of our own where init would have one in a container: what `Init.exec` returns."""

    tty = None

    def __init__(self, process: asyncio.subprocess.Process):
        self.process, self.pid = process, process.pid

    async def wait(self) -> int:
        code = await self.process.wait()
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[Streaming]:
    streams = Streaming()
    await streams.start()
    yield streams
    await streams.close()


def exec_url(streams: Streaming, *argv: str, wanted: Wanted = ALL, children: list[Child] | None = None) -> str:
    async def launch(fds: tuple[int, int, int]) -> Child:
        stdin, stdout, stderr = fds
        child = Child(await asyncio.create_subprocess_exec(*argv, stdin=stdin, stdout=stdout, stderr=stderr))
        if children is not None:
            children.append(child)
        return child

    return streams.url("exec", COMMAND, lambda connection: streaming.serve_exec(connection, wanted, launch))


async def open_all(client: SpdyClient) -> dict[str, int]:
    return {name: await client.open(streamtype=name) for name in ("error", "stdin", "stdout", "stderr")}


# ---- exec


def test_a_command_gets_input_and_gives_output_on_both_streams_and_its_exit_code() -> None:
    async def run() -> None:
        async with server() as streams:
            url = exec_url(streams, "sh", "-c", "cat; echo oops >&2; exit 7")
            async with session(url, COMMAND) as client:
                ids = await open_all(client)
                await client.send(ids["stdin"], b"hello", end=True)
                assert await client.whole(ids["stdout"]) == b"hello"
                assert await client.whole(ids["stderr"]) == b"oops\n"
                assert exit_code(await client.whole(ids["error"])) == 7
                assert client.replies == list(ids.values())

    asyncio.run(run())


def test_twenty_megabytes_go_in_and_out_unchanged() -> None:
    async def run() -> None:
        sent = os.urandom(20 << 20)
        async with server() as streams, session(exec_url(streams, "cat"), COMMAND) as client:
            ids = await open_all(client)
            sending = asyncio.create_task(client.send(ids["stdin"], sent, end=True))
            assert await client.whole(ids["stdout"]) == sent
            await sending
            assert exit_code(await client.whole(ids["error"])) == 0

    asyncio.run(run())


def test_a_command_that_reads_nothing_does_not_hold_up_its_end() -> None:
    async def run() -> None:
        async with server() as streams, session(exec_url(streams, "true"), COMMAND) as client:
            ids = await open_all(client)
            await client.send(ids["stdin"], b"x" * (3 << 20), end=True)
            assert exit_code(await client.whole(ids["error"])) == 0

    asyncio.run(run())


def test_a_daemon_that_a_command_leaves_behind_does_not_hold_the_client() -> None:
    async def run() -> None:
        argv = ("sh", "-c", "echo started; sleep 1000 & echo $! >&2")
        async with server() as streams, session(exec_url(streams, *argv), COMMAND) as client:
            ids = await open_all(client)
            assert await client.whole(ids["stdout"]) == b"started\n"
            assert exit_code(await client.whole(ids["error"])) == 0
            os.kill(int(await client.whole(ids["stderr"])), 9)

    asyncio.run(run())


def test_a_client_that_hangs_up_ends_the_command() -> None:
    async def run() -> None:
        children: list[Child] = []
        async with server() as streams:
            async with session(exec_url(streams, "sleep", "1000", children=children), COMMAND) as client:
                ids = await open_all(client)
                await client.until(lambda: len(client.replies) == len(ids))
            assert await asyncio.wait_for(children[0].wait(), 30) == 137

    asyncio.run(run())


def test_a_stream_that_the_client_resets_does_not_end_the_command() -> None:
    async def run() -> None:
        async with server() as streams:
            url = exec_url(streams, "sh", "-c", "read line; seq 1 100000; exit 3")
            async with session(url, COMMAND) as client:
                ids = await open_all(client)
                client.frame(spdy.RST_STREAM, struct.pack(">II", ids["stdout"], 5))
                await client.send(ids["stdin"], b"go\n")
                assert exit_code(await client.whole(ids["error"])) == 3

    asyncio.run(run())


def test_a_command_that_cannot_be_started_is_an_internal_error_with_the_reason() -> None:
    async def launch(fds: object) -> Child:
        raise StartError('exec: "nope": executable file not found in $PATH')

    async def run() -> None:
        async with server() as streams:
            url = streams.url("exec", COMMAND, lambda connection: streaming.serve_exec(connection, ALL, launch))
            async with session(url, COMMAND) as client:
                ids = await open_all(client)
                answer = await client.whole(ids["error"])
                assert b'exec: \\"nope\\": executable file not found in $PATH' in answer
                assert exit_code(answer) == -1

    asyncio.run(run())


def test_no_descriptor_is_left_open() -> None:
    async def run() -> None:
        async with server() as streams:
            before = None
            for _ in range(5):
                async with session(exec_url(streams, "cat"), COMMAND) as client:
                    ids = await open_all(client)
                    await client.send(ids["stdin"], b"x", end=True)
                    await client.whole(ids["error"])
                while streams._sessions:
                    await asyncio.wait(streams._sessions)
                now = len(os.listdir("/proc/self/fd"))
                before = before or now  # the loop and its watcher of children open theirs with the first
                assert now == before

    asyncio.run(run())


# ---- port-forward


def test_ports_are_forwarded_side_by_side_and_a_closed_one_says_so() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.write(b" bye")
        writer.close()

    async def dial(port: int) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        return sock

    async def run() -> None:
        listener = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            closed = free.getsockname()[1]
        async with server() as streams:
            url = streams.url("portforward", PORTS, lambda c: streaming.serve_ports(c, "web-0", dial))
            async with session(url, PORTS) as client:
                pairs = []
                for request, target in (("0", port), ("1", port), ("2", closed), ("3", "http")):
                    headers = {"port": str(target), "requestid": request}
                    pairs.append([await client.open(streamtype=kind, **headers) for kind in ("error", "data")])
                await client.send(pairs[0][1], b"one", end=True)
                await client.send(pairs[1][1], b"two", end=True)
                assert await client.whole(pairs[1][1]) == b"two bye"
                assert await client.whole(pairs[0][1]) == b"one bye"
                assert await client.whole(pairs[0][0]) == b""
                refused = await client.whole(pairs[2][0])
                assert refused.startswith(f"error forwarding port {closed} to pod web-0: ".encode())
                assert b"refused" in refused
                assert b"'http' is not a port" in await client.whole(pairs[3][0])
        listener.close()

    asyncio.run(run())


# ---- the way in


async def ask(streams: Streaming, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*streams._server.sockets[0].getsockname())
    writer.write(request)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def test_a_token_is_good_once_and_only_for_its_own_protocol() -> None:
    async def run() -> None:
        async with server() as streams:
            url = exec_url(streams, "true")
            path = "/" + url.split("/", 3)[3]
            head = f"POST {path} HTTP/1.1\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: "
            assert b"this server wants X-Stream" in await ask(streams, f"{head}{PORTS}\r\n\r\n".encode())
            plain = f"POST {path} HTTP/1.1\r\nX-Stream-Protocol-Version: {COMMAND}\r\n\r\n"
            assert b"wants Upgrade: SPDY/3.1" in await ask(streams, plain.encode())
            async with session(url, COMMAND):
                pass
            answer = await ask(streams, f"{head}{COMMAND}\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"its token was used already" in answer

    asyncio.run(run())


@pytest.mark.parametrize("request_", [b"", b"\r\n\r\n", b"GET / SPDY\r\n\r\n", b"\xff\xfe\r\n\r\n", b"x" * 200_000])
def test_what_is_no_request_is_answered_or_dropped_and_the_server_goes_on(request_: bytes) -> None:
    async def run() -> None:
        async with server() as streams:
            answer = await ask(streams, request_)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
            async with session(exec_url(streams, "true"), COMMAND) as client:
                assert exit_code(await client.whole((await open_all(client))["error"])) == 0

    asyncio.run(run())


def test_headers_are_read_whatever_their_case_and_however_they_are_split() -> None:
    path, headers = parse_head(b"POST /a HTTP/1.1\r\nUPGRADE: x\r\nx-p: a, b\r\nX-P: c\r\nnonsense\r\n\r\n")
    assert (path, headers) == ("/a", {"upgrade": ["x"], "x-p": ["a", "b", "c"]})
    with pytest.raises(BadRequest):
        parse_head(b"hello\r\n\r\n")


# ---- frames


async def talk(frames: bytes) -> tuple[spdy.Connection, bytes]:
    """What a connection answers to these bytes, until the client hangs up."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    answers, sender = await asyncio.open_connection(sock=theirs)
    sender.write(frames)
    sender.write_eof()
    answer = asyncio.create_task(answers.read())
    connection = spdy.Connection(reader, writer)
    await asyncio.wait_for(connection.run(), 30)
    writer.close()
    await asyncio.wait_for(answer, 30)
    sender.close()
    return connection, answer.result()


def control(kind: int, payload: bytes, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(payload)) + payload


def syn(codec: HeaderCodec, number: int, **headers: str) -> bytes:
    return control(spdy.SYN_STREAM, struct.pack(">IIH", number, 0, 0) + codec.encode(headers))


def test_the_dictionary_is_that_of_the_draft() -> None:
    import zlib

    # the checksum stands in the first header block of every SPDY/3 connection
    assert (len(spdy.DICTIONARY), zlib.adler32(spdy.DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_a_ping_is_sent_back_and_an_answer_to_one_is_not() -> None:
    _, answer = asyncio.run(talk(control(spdy.PING, b"\0\0\0\5") + control(spdy.PING, b"\0\0\0\4")))
    assert answer == control(spdy.PING, b"\0\0\0\5")


@pytest.mark.parametrize("kind", [spdy.SETTINGS, spdy.WINDOW_UPDATE, spdy.GOAWAY, 5, 99])
def test_frames_that_say_nothing_here_are_passed_over(kind: int) -> None:
    _, answer = asyncio.run(talk(control(kind, b"whatever") + control(spdy.PING, b"\0\0\0\1")))
    assert answer == control(spdy.PING, b"\0\0\0\1")


@pytest.mark.parametrize(
    "frame",
    [
        control(spdy.PING, b"\0\0\0\1", version=2),
        control(spdy.PING, b"\0"),
        control(spdy.RST_STREAM, b"\0"),
        control(spdy.SYN_STREAM, b"\0" * 9),
        control(spdy.SYN_STREAM, b"\0\0\0\1" + b"\0" * 6 + b"no zlib"),
        struct.pack(">HHI", 0x8003, spdy.PING, spdy.MAX_CONTROL + 1),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection_with_goaway(frame: bytes) -> None:
    connection, answer = asyncio.run(talk(frame + control(spdy.PING, b"\0\0\0\1")))
    assert answer == control(spdy.GOAWAY, struct.pack(">II", 0, spdy.PROTOCOL_ERROR))
    assert connection.gone.is_set()


def test_streams_with_wrong_numbers_are_reset_and_the_others_live() -> None:
    codec = HeaderCodec()
    frames = (
        syn(codec, 1, a="b") + syn(codec, 1) + syn(codec, 2) + struct.pack(">II", 9, 1) + b"x" + syn(codec, 3, c="d")
    )

    async def run() -> None:
        connection, answer = await talk(frames)
        assert answer.count(control(spdy.RST_STREAM, struct.pack(">II", 1, spdy.PROTOCOL_ERROR))) == 1
        assert answer.count(control(spdy.RST_STREAM, struct.pack(">II", 2, spdy.PROTOCOL_ERROR))) == 1
        assert answer.count(control(spdy.RST_STREAM, struct.pack(">II", 9, spdy.INVALID_STREAM))) == 1
        headers = [(await connection.accept()).headers for _ in range(2)]
        assert headers == [{"a": "b"}, {"c": "d"}]
        assert await connection.accept() is None

    asyncio.run(run())


def test_too_many_streams_are_refused() -> None:
    codec = HeaderCodec()
    frames = b"".join(syn(codec, 2 * number + 1) for number in range(spdy.MAX_STREAMS + 1))
    _, answer = asyncio.run(talk(frames))
    assert answer.endswith(control(spdy.RST_STREAM, struct.pack(">II", 2 * spdy.MAX_STREAMS + 1, spdy.REFUSED_STREAM)))


def test_a_header_block_that_unpacks_to_megabytes_is_refused() -> None:
    block = HeaderCodec().encode({"a": "b" * (4 << 20)})
    with pytest.raises(ProtocolError, match="more than"):
        HeaderCodec().decode(block)


@given(st.lists(st.dictionaries(st.text(), st.text(), max_size=5), max_size=5))
@settings(deadline=None)
def test_headers_come_out_as_they_went_in(blocks: list[dict[str, str]]) -> None:
    ours, theirs = HeaderCodec(), HeaderCodec()
    for headers in blocks:
        wanted = {name.encode("utf-8", "replace").decode().lower(): value for name, value in headers.items()}
        assert theirs.decode(ours.encode(wanted)) == wanted


@given(st.binary(max_size=300))
def test_any_bytes_are_headers_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        parse_headers(data)


@given(st.binary(max_size=400))
@settings(deadline=None, max_examples=50)
def test_any_bytes_end_a_connection_in_order(data: bytes) -> None:
    connection, _ = asyncio.run(talk(data))
    assert connection.gone.is_set()

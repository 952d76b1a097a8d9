"""What the tests of the process runtime share: a client of the CRI, and the client's end of SPDY."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message

from helpers.cluster.embedded import tools
from helpers.cluster.embedded.runtime import spdy
from helpers.cluster.embedded.runtime.cri import PACKAGE, Messages
from helpers.cluster.embedded.tools.table import DESCRIPTOR


def descriptor() -> Path:
    """The description of the CRI, which is built with the kubelet."""
    return tools.binary("kubelet").with_name(DESCRIPTOR)


class Client:
    """Calls of the CRI by name: `await client.Version()`; a request may be given as fields.

    Args:
        messages: the messages of the CRI.
        channel: to the runtime.
    """

    def __init__(self, messages: Messages, channel: grpc.aio.Channel):
        self.pb, self._calls = messages, {}
        for service, description in messages.services.items():
            for method in description.methods:
                request, response = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
                kind = channel.unary_stream if method.server_streaming else channel.unary_unary
                path = f"/{PACKAGE}.{service}/{method.name}"
                call = kind(
                    path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
                )
                self._calls[method.name] = request, call

    def __getattr__(self, name: str) -> Any:
        request, call = self._calls[name]

        def send(message: Message | None = None, **fields: Any) -> Any:
            return call(message if message is not None else request(**fields), timeout=60)

        return send


class SpdyClient:
    """The client's end of a session with the streaming server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer
        self.codec = spdy.HeaderCodec()
        self.received: dict[int, bytearray] = {}
        self.finished: set[int] = set()
        self.replies: list[int] = []
        self.control: list[tuple[int, bytes]] = []  # frames that are about no stream
        self._number = -1
        self._news = asyncio.Condition()
        self._task = asyncio.create_task(self._read())

    async def open(self, **headers: str) -> int:
        """Opens a stream; its number."""
        self._number += 2
        self.received[self._number] = bytearray()
        self.frame(spdy.SYN_STREAM, struct.pack(">IIH", self._number, 0, 0) + self.codec.encode(headers))
        await self.writer.drain()
        return self._number

    def frame(self, kind: int, payload: bytes, flags: int = 0, version: int = 3) -> None:
        self.writer.write(struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(payload)) + payload)

    async def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        for start in range(0, max(len(data), 1), 32768):
            piece = data[start : start + 32768]
            flags = spdy.FIN if end and start + 32768 >= len(data) else 0
            self.writer.write(struct.pack(">II", stream, flags << 24 | len(piece)) + piece)
            await self.writer.drain()

    async def until(self, holds: Any) -> None:
        """Waits until something holds, which is looked at after each frame."""
        async with asyncio.timeout(30), self._news:
            await self._news.wait_for(holds)

    async def whole(self, stream: int) -> bytes:
        """All that comes in a stream, until its end."""
        await self.until(lambda: stream in self.finished)
        return bytes(self.received[stream])

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self.reader.readexactly(8)
                payload = await self.reader.readexactly(int.from_bytes(head[5:8], "big"))
                self._take(head, payload)
                async with self._news:
                    self._news.notify_all()
        self.finished |= self.received.keys()
        async with self._news:
            self._news.notify_all()

    def _take(self, head: bytes, payload: bytes) -> None:
        kind = int.from_bytes(head[2:4], "big")
        if not head[0] & 0x80:
            stream = int.from_bytes(head[:4], "big")
            self.received[stream] += payload
            if head[4] & spdy.FIN:
                self.finished.add(stream)
        elif kind == spdy.SYN_REPLY:
            self.codec.decode(payload[4:])
            self.replies.append(int.from_bytes(payload[:4], "big"))
        else:
            self.control.append((kind, payload))


async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, protocol: str) -> SpdyClient:
    """Takes a connection to the streaming server over to SPDY, as the kubelet does."""
    path = "/" + url.split("/", 3)[3]
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n".encode())
    writer.write(f"X-Stream-Protocol-Version: v5.x, {protocol}\r\n\r\n".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    assert f"X-Stream-Protocol-Version: {protocol}".encode() in answer
    return SpdyClient(reader, writer)


@contextlib.asynccontextmanager
async def session(url: str, protocol: str, connect: Any = None) -> AsyncIterator[SpdyClient]:
    """A session with the streaming server.

    Args:
        url: from the answer to Exec, Attach or PortForward.
        protocol: the subprotocol.
        connect: makes the connection, if not from here: `await connect(port)` is a socket.
    """
    port = int(url.split(":")[2].split("/")[0])
    where = {"sock": await connect(port)} if connect else {"host": "127.0.0.1", "port": port}
    reader, writer = await asyncio.open_connection(**where)
    client = await upgrade(reader, writer, url, protocol)
    try:
        yield client
    finally:
        await client.close()


def exit_code(status: bytes) -> int:
    """The exit code that a Status object tells; -1 if it tells another failure."""
    answer = json.loads(status)
    if answer["status"] == "Success":
        return 0
    causes = {cause.get("reason"): cause["message"] for cause in answer["details"]["causes"]}
    return int(causes.get("ExitCode", -1))

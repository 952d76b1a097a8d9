"""The server's end of SPDY/3.1, as far as the kubelet speaks it: streams that the client opens, in one connection.

Sources: the SPDY/3 draft (draft-mbelshe-httpbis-spdy-00) for frames and the name/value block; what clients really send
is github.com/moby/spdystream. Flow control (WINDOW_UPDATE) is not used by that library, so it is not here either:
when a stream's reader is slow we stop reading the connection, and TCP holds the client back.
`spdy_dictionary.bin` is the draft's dictionary for header compression (section 2.6.10.1), byte for byte as in
spdystream's `spdy/dictionary.go`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import zlib
from collections import deque
from pathlib import Path

DICTIONARY = (Path(__file__).parent / "spdy_dictionary.bin").read_bytes()
VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN = 0x01
PROTOCOL_ERROR, INVALID_STREAM, REFUSED_STREAM = 1, 2, 3  # reasons of RST_STREAM
MAX_CONTROL = 64 << 10  # bytes of a control frame, and of a header block once it is unpacked
MAX_STREAMS = 1000  # a forwarded connection has two
PIECE = 64 << 10  # bytes of a data frame that are read, and sent, at a time
BUFFER = 1 << 20  # bytes that wait in a stream for its reader before the whole connection waits
log = logging.getLogger("spdy")


class ProtocolError(Exception):
    """What came is not SPDY/3.1; the connection cannot go on."""


class HeaderCodec:
    """Name/value blocks. All blocks of a direction share one compression context, refused streams' too."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(zdict=DICTIONARY)
        self._pack = zlib.compressobj(zdict=DICTIONARY)

    def decode(self, block: bytes) -> dict[str, str]:
        """The headers of a block, names in lower case.

        Raises:
            ProtocolError: the block is cut off, too long or no block at all.
        """
        try:
            plain = self._unpack.decompress(block, MAX_CONTROL)
        except zlib.error as error:
            raise ProtocolError(f"a header block does not unpack: {error}") from error
        if self._unpack.unconsumed_tail:
            raise ProtocolError(f"a header block of more than {MAX_CONTROL} bytes")
        return parse_headers(plain)

    def encode(self, headers: dict[str, str]) -> bytes:
        """A block for headers, compressed."""
        plain = struct.pack(">I", len(headers))
        for pair in headers.items():
            for text in pair:
                plain += struct.pack(">I", len(text.encode())) + text.encode()
        return self._pack.compress(plain) + self._pack.flush(zlib.Z_SYNC_FLUSH)


def parse_headers(plain: bytes) -> dict[str, str]:
    """The headers of a block that is not compressed."""
    at = 0

    def take(length: int) -> bytes:
        nonlocal at
        if at + length > len(plain):
            raise ProtocolError("a header block is cut off")
        at += length
        return plain[at - length : at]

    headers = {}
    for _ in range(int.from_bytes(take(4), "big")):
        name, value = (take(int.from_bytes(take(4), "big")).decode("utf-8", "replace") for _ in range(2))
        headers[name.lower()] = value
    return headers


class Stream:
    """One stream of a connection, opened by the client.

    Attributes:
        headers: what it was opened with, names in lower case: `streamtype`, `port`, `requestid`.
    """

    def __init__(self, connection: Connection, number: int, headers: dict[str, str]):
        self.connection, self.number, self.headers = connection, number, headers
        self._inbox: deque[bytes] = deque()
        self._held = 0  # bytes in the inbox
        self._ended = self._closed = self._discards = False
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def read(self) -> bytes:
        """What came next; b"" at the end: the client has closed its half, reset the stream, or is gone."""
        while not self._inbox and not self._ended:
            self._news.clear()
            await self._news.wait()
        if not self._inbox:
            return b""
        data = self._inbox.popleft()
        self._held -= len(data)
        self._room.set()
        return data

    async def write(self, data: bytes) -> None:
        """Sends; waits while the client does not take it.

        Raises:
            ConnectionError: the client is gone, or does not want this stream any more.
        """
        if self._closed:
            raise ConnectionResetError("the stream is closed")
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            await self.connection.send_data(self.number, view[start : start + PIECE])

    async def close(self) -> None:
        """Ends our half of the stream. Twice is no error, and neither is a client that is gone."""
        if not self._closed:
            self._closed = True
            await self.connection.send_data(self.number, b"", FIN)
            self.connection.forget(self)

    def discard(self) -> None:
        """From now on what comes on the stream is thrown away, so that it holds up no other."""
        self._discards = True
        self._inbox.clear()
        self._held = 0
        self._room.set()

    @property
    def finished(self) -> bool:
        return self._ended and self._closed

    # what the connection calls

    async def feed(self, data: bytes) -> None:
        if self._ended or self._discards:
            return
        self._inbox.append(data)
        self._held += len(data)
        self._news.set()
        while self._held > BUFFER and not self._discards:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def reset(self) -> None:
        self._closed = True
        self.discard()
        self.end()


class Connection:
    """A connection after its upgrade to SPDY. `run` serves it; new streams come out of `accept`.

    Args:
        reader, writer: the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._codec = HeaderCodec()
        self._streams: dict[int, Stream] = {}
        self._highest = 0
        self._opened: asyncio.Queue[Stream | None] = asyncio.Queue()
        self.gone = asyncio.Event()  # the client has hung up, or spoke nonsense

    async def accept(self) -> Stream | None:
        """The next stream that the client opens; None when it is gone."""
        stream = await self._opened.get()
        if stream is None:
            self._opened.put_nowait(None)  # for whoever asks again
        return stream

    async def run(self) -> None:
        """Takes in what the client sends, until it hangs up."""
        try:
            while True:
                await self._frame()
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        except ProtocolError as error:
            log.warning("the client broke the protocol: %s", error)
            self._control(GOAWAY, 0, struct.pack(">II", self._highest, PROTOCOL_ERROR))
        finally:
            for stream in list(self._streams.values()):
                stream.end()
            self.gone.set()
            self._opened.put_nowait(None)

    async def close(self, patience_s: float) -> None:
        """Says that we are done, and waits until the client hangs up, so that nothing that is under way is lost.

        Args:
            patience_s: at most so long.
        """
        self._control(GOAWAY, 0, struct.pack(">II", self._highest, 0))
        for stream in list(self._streams.values()):
            stream.discard()
        try:
            await asyncio.wait_for(self.gone.wait(), patience_s)
        except TimeoutError:
            log.warning("the client did not hang up within %s s", patience_s)

    async def send_data(self, number: int, data: bytes | memoryview, flags: int = 0) -> None:
        """Sends one data frame and waits while too much is under way.

        Raises:
            ConnectionError: the client is gone; not for an empty frame.
        """
        if self._writer.is_closing() or self.gone.is_set():
            if data:
                raise ConnectionResetError("the client is gone")
            return
        self._writer.write(struct.pack(">II", number, flags << 24 | len(data)) + data)
        try:
            await self._writer.drain()
        except ConnectionError:
            if data:
                raise

    def forget(self, stream: Stream) -> None:
        """Drops a stream that has ended in both directions."""
        if stream.finished:
            self._streams.pop(stream.number, None)

    # ---- frames that come in

    async def _frame(self) -> None:
        head = await self._reader.readexactly(8)
        flags, length = head[4], int.from_bytes(head[5:8], "big")
        if not head[0] & 0x80:
            return await self._data(int.from_bytes(head[:4], "big"), flags, length)
        version, kind = int.from_bytes(head[:2], "big") & 0x7FFF, int.from_bytes(head[2:4], "big")
        if version != VERSION:
            raise ProtocolError(f"a frame of version {version}")
        if length > MAX_CONTROL:
            raise ProtocolError(f"a control frame of {length} bytes")
        payload = await self._reader.readexactly(length)
        if kind == SYN_STREAM:
            self._syn_stream(flags, payload)
        elif kind == RST_STREAM:
            self._rst_stream(payload)
        elif kind == PING:
            self._ping(payload)
        elif kind in (SYN_REPLY, HEADERS):
            self._codec.decode(payload[4:])  # says nothing to us, but later blocks build on it
        # SETTINGS, WINDOW_UPDATE, GOAWAY and what nobody knows: ignored, as the draft wants it
        return None

    async def _data(self, number: int, flags: int, length: int) -> None:
        stream = self._streams.get(number)
        if stream is None:
            self._reset(number, INVALID_STREAM)
        while length:
            data = await self._reader.readexactly(min(length, PIECE))
            length -= len(data)
            if stream:
                await stream.feed(data)
        if stream and flags & FIN:
            stream.end()
            self.forget(stream)

    def _syn_stream(self, flags: int, payload: bytes) -> None:
        if len(payload) < 10:
            raise ProtocolError(f"a SYN_STREAM of {len(payload)} bytes")
        number = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        headers = self._codec.decode(payload[10:])
        if number % 2 == 0 or number <= self._highest:
            return self._reset(number, PROTOCOL_ERROR)
        self._highest = number
        if len(self._streams) >= MAX_STREAMS:
            return self._reset(number, REFUSED_STREAM)
        stream = self._streams[number] = Stream(self, number, headers)
        self._control(SYN_REPLY, 0, struct.pack(">I", number) + self._codec.encode({}))
        if flags & FIN:
            stream.end()
        self._opened.put_nowait(stream)
        return None

    def _rst_stream(self, payload: bytes) -> None:
        if len(payload) != 8:
            raise ProtocolError(f"an RST_STREAM of {len(payload)} bytes")
        if stream := self._streams.pop(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, None):
            stream.reset()

    def _ping(self, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(f"a PING of {len(payload)} bytes")
        if payload[3] & 1:  # an even one would be the answer to a PING of ours, and we send none
            self._control(PING, 0, payload)

    def _reset(self, number: int, reason: int) -> None:
        self._control(RST_STREAM, 0, struct.pack(">II", number, reason))

    def _control(self, kind: int, flags: int, payload: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(struct.pack(">HHI", 0x8000 | VERSION, kind, flags << 24 | len(payload)) + payload)

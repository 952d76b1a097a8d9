"""The one door between the host and the cluster: accepts on the host's loopback, dials inside the cluster's network.

Run as `forwarder FD HOST PORT`. A socket stays in the network namespace in which it was made, so `course up` makes the
listening one on the host, and this process, which lives in the cluster's network, inherits it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

CHUNK_BYTES = 64 * 1024


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way, no faster than the other side takes them, until one side has no more to say."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()  # the other direction goes on
    except OSError:
        writer.transport.abort()


async def connect_through(
    client: asyncio.StreamReader, to_client: asyncio.StreamWriter, address: tuple[str, int]
) -> None:
    """Serve one connection. If nobody answers inside, the client sees its connection close, and may try again."""
    with contextlib.closing(to_client):
        try:
            server, to_server = await asyncio.open_connection(*address)
        except OSError:
            return
        with contextlib.closing(to_server):
            await asyncio.gather(carry(client, to_server), carry(server, to_client))


async def forward(listener: socket.socket, address: tuple[str, int]) -> None:
    """Accept for ever."""
    server = await asyncio.start_server(lambda r, w: connect_through(r, w, address), sock=listener)
    await server.serve_forever()


def main() -> None:
    fd, host, port = sys.argv[1:]
    asyncio.run(forward(socket.socket(fileno=int(fd)), (host, int(port))))


if __name__ == "__main__":
    main()

"""Reading and writing pipes and terminals from asyncio, without a transport for each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

PIECE = 64 << 10  # bytes at a time: what a pipe holds
Sink = Callable[[bytes], Awaitable[None]]


async def pump(fd: int, sink: Sink, ended: asyncio.Event | None = None) -> None:
    """Passes on what can be read, until the end of the file.

    Args:
        fd: read end of a pipe, or master of a terminal; it is made non-blocking. The caller closes it.
        sink: is called with each piece, and awaited.
        ended: set when the process that writes has ended. What it wrote is passed on then, but nobody waits for its
            children: a daemon that it left behind may hold the pipe open for ever.
    """
    os.set_blocking(fd, False)
    while True:
        # looked at before reading: what was written before the end is then surely read
        last = ended is not None and ended.is_set()
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            if last:
                return
            await _readable(fd, ended)
            continue
        except OSError:  # a terminal whose other side is closed says EIO
            return
        if not data:
            return
        await sink(data)


async def write_all(fd: int, data: bytes) -> None:
    """Writes all of it, waiting while the reader does not read.

    Raises:
        OSError: the reader is gone.
    """
    os.set_blocking(fd, False)
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await _when(fd, "writer")


async def _readable(fd: int, ended: asyncio.Event | None) -> None:
    waits = [asyncio.ensure_future(_when(fd, "reader"))]
    if ended is not None:
        waits.append(asyncio.ensure_future(ended.wait()))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)  # so that the loop has let go of the descriptor


async def _when(fd: int, which: str) -> None:
    """Returns when a descriptor can be read ("reader") or written ("writer")."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    getattr(loop, f"add_{which}")(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        getattr(loop, f"remove_{which}")(fd)

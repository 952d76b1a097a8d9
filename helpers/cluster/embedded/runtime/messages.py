"""What a machine's init and its clients say to each other: one JSON object a message, file descriptors beside it.

The sockets are SOCK_SEQPACKET, so a message arrives whole or not at all. A message that is too large for the socket's
buffer travels in a file in memory, whose descriptor comes first among the message's.
"""

from __future__ import annotations

import array
import json
import os
import socket

IN_SOCKET = 64 * 1024  # bytes; above it the JSON goes into a file, since the default buffer takes about 200 KiB
IN_FILE = 64 * 1024 * 1024  # bytes; more is a mistake of the sender's
MAX_FDS = 8
_INT = array.array("i").itemsize


class BadMessage(Exception):
    """What arrived is not a message; nothing was kept of it."""


def send(sock: socket.socket, message: dict, fds: tuple[int, ...] = ()) -> None:
    """Sends one message.

    Raises:
        BlockingIOError: the receiver does not read, and the socket is non-blocking; nothing was sent.
        OSError: the receiver is gone.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) <= IN_SOCKET:
        _send(sock, b"d" + data, fds)
        return
    file = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(data)
        _send(sock, b"f", (file, *fds))
    finally:
        os.close(file)


def _send(sock: socket.socket, data: bytes, fds: tuple[int, ...]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights)


def receive(sock: socket.socket) -> tuple[dict, list[int]] | None:
    """The next message and its descriptors, which are the caller's to close; None when the sender is gone.

    Raises:
        BlockingIOError: nothing is there, and the socket is non-blocking.
        BadMessage: it was not a message. Its descriptors are closed.
    """
    data, ancillary, flags, _ = sock.recvmsg(IN_SOCKET + 1, socket.CMSG_SPACE(MAX_FDS * _INT), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % _INT])
    if not data and not fds:
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise BadMessage("it is too large")
        return _decode(data, fds), list(fds)
    except BadMessage:
        close(fds)
        raise


def _decode(data: bytes, fds: array.array) -> dict:
    body = data[1:]
    if data[:1] == b"f" and fds:
        body = _from_file(fds.pop(0))
    elif data[:1] != b"d":
        raise BadMessage("its first byte is neither d nor f")
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"it is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise BadMessage("it is not a JSON object")
    return message


def _from_file(file: int) -> bytes:
    # pread and a limit: the sender chose what descriptor this is, and a pipe or a device must not hold the reader
    try:
        size = os.fstat(file).st_size
        if size > IN_FILE:
            raise BadMessage("it is too large")
        return os.pread(file, size, 0)
    except OSError as error:
        raise BadMessage(f"its file cannot be read: {error.strerror}") from None
    finally:
        os.close(file)


def close(fds: array.array | list[int] | tuple[int, ...]) -> None:
    """Closes each of the descriptors."""
    for fd in fds:
        os.close(fd)

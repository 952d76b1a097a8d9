"""The supervisor's control socket: one JSON object asks, one answers.

The socket lies in the cluster's directory, whose path may be longer than the 107 bytes that a Unix address may have
(unix(7)). So both ends name it through `/proc/self/fd`, which is short.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "control.sock"
CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


@contextmanager
def _short(root: Path) -> Iterator[str]:
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{NAME}"
    finally:
        os.close(directory)


def listen(root: Path) -> socket.socket:
    """The supervisor's end. Only the owner can reach it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (root / NAME).unlink(missing_ok=True)  # of one that was killed; who holds the cluster's lock may remove it
    mask = os.umask(0o177)
    try:
        with _short(root) as path:
            listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(16)
    return listener


def connect(root: Path, timeout_s: float) -> socket.socket:
    """A connection to the supervisor.

    Raises:
        OSError: if none runs.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        with _short(root) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def supervisor_pid(connection: socket.socket) -> int:
    """The pid of the supervisor, as this process sees it; 0 if it cannot see it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return CREDENTIALS.unpack(credentials)[0]


def ask(connection: socket.socket, **request: object) -> dict:
    """Ask the supervisor for one thing.

    Raises:
        OSError: if it is gone, or does not answer within the connection's timeout.
    """
    connection.sendall(json.dumps(request, default=str).encode() + b"\n")
    with connection.makefile("rb") as answer:
        line = answer.readline()
    if not line:
        raise ConnectionResetError("the supervisor ended before it answered")
    return json.loads(line)

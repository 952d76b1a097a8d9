"""The little netlink that a Pod's network takes: veth pairs, addresses, routes, and forgetting tracked connections.

By hand, because pyroute2 would be half of what the runtime of each machine takes to start, and a third of its memory,
and because it decodes each tracked connection into objects: a second of CPU for some thousands of them.
Formats and constants: linux/netlink.h, if_link.h, if_addr.h, rtnetlink.h, veth.h, netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address

ROUTE, NETFILTER = 0, 12  # families of netlink
REQUEST, ACK, DUMP, EXCL, CREATE = 0x1, 0x4, 0x300, 0x200, 0x400
ERROR, DONE = 2, 3
NEW_LINK, DELETE_LINK, NEW_ADDRESS, NEW_ROUTE = 16, 17, 20, 24
IFNAME, LINKINFO, NET_NS_FD = 3, 18, 28  # attributes of a link
INFO_KIND, INFO_DATA, VETH_PEER = 1, 2, 1
CONNTRACK, GET, DELETE = 1 << 8, 1, 2
TUPLE_ORIGINAL, TUPLE_REPLY, TUPLE_IP = 1, 2, 1
NESTED = 0x8000
UP, MAIN_TABLE, STATIC, UNICAST, EVERYWHERE, ON_LINK = 1, 254, 4, 1, 0, 253
HEADER = struct.Struct("=IHHII")  # of a message: length, type, flags, sequence, port
IPV4 = struct.pack("=BBH", socket.AF_INET, 0, 0)  # struct nfgenmsg


class Netlink:
    """A netlink socket of the network namespace that the thread is in: `with Netlink(ROUTE) as kernel:`."""

    def __init__(self, family: int):
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        self._socket.bind((0, 0))

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, kind: int, payload: bytes, flags: int = 0) -> None:
        """Sends a request and waits until the kernel has done it.

        Raises:
            OSError: the kernel refuses.
        """
        self._send(kind, payload, REQUEST | ACK | flags)
        for answer, content in messages(self._socket.recv(1 << 16)):
            if answer == ERROR:
                fail(content)

    def dump(self, kind: int, payload: bytes) -> Iterator[bytes]:
        """What the kernel lists, each without its header."""
        self._send(kind, payload, REQUEST | DUMP)
        while True:
            for answer, content in messages(self._socket.recv(1 << 20)):
                if answer == DONE:
                    return
                if answer == ERROR:
                    fail(content)
                else:
                    yield content

    def _send(self, kind: int, payload: bytes, flags: int) -> None:
        self._socket.send(HEADER.pack(HEADER.size + len(payload), kind, flags, 0, 0) + payload)


# ---- links, addresses, routes


def add_veth(kernel: Netlink, name: str, peer: str, namespace: int) -> None:
    """Makes a veth pair, one end here, the other in another network namespace, which is an open file."""
    there = link() + attribute(IFNAME, text(peer)) + attribute(NET_NS_FD, struct.pack("=I", namespace))
    data = attribute(INFO_DATA, attribute(VETH_PEER, there))
    info = attribute(LINKINFO, attribute(INFO_KIND, text("veth")) + data)
    kernel.ask(NEW_LINK, link() + attribute(IFNAME, text(name)) + info, CREATE | EXCL)


def delete_link(kernel: Netlink, name: str) -> None:
    """Removes an interface; with it goes the other end of its pair.

    Raises:
        OSError: ENODEV: there is none of that name.
    """
    kernel.ask(DELETE_LINK, link() + attribute(IFNAME, text(name)))


def set_up(kernel: Netlink, name: str) -> None:
    """Switches an interface on."""
    kernel.ask(NEW_LINK, link(socket.if_nametoindex(name), UP, UP))


def add_address(kernel: Netlink, name: str, address: str) -> None:
    """Gives an interface an address, as a network of one."""
    packed = IPv4Address(address).packed
    head = struct.pack("=BBBBI", socket.AF_INET, 32, 0, EVERYWHERE, socket.if_nametoindex(name))
    kernel.ask(NEW_ADDRESS, head + attribute(2, packed) + attribute(1, packed), CREATE | EXCL)


def add_route(kernel: Netlink, name: str, to: str | None = None, gateway: str | None = None) -> None:
    """Adds a route through an interface: to one address, or to all others; through a gateway, or directly."""
    scope = EVERYWHERE if gateway else ON_LINK
    lengths = (32 if to else 0, 0)
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, *lengths, 0, MAIN_TABLE, STATIC, scope, UNICAST, 0)
    payload = head + attribute(4, struct.pack("=I", socket.if_nametoindex(name)))
    for kind, address in ((1, to), (5, gateway)):
        if address:
            payload += attribute(kind, IPv4Address(address).packed)
    kernel.ask(NEW_ROUTE, payload, CREATE | EXCL)


def link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    """struct ifinfomsg."""
    return struct.pack("=BxHiII", 0, 0, index, flags, change)


# ---- tracked connections


def forget_connections(address: str) -> int:
    """Removes all connections from or to an address, before or after its translation; says how many.

    Raises:
        OSError: the kernel refuses.
    """
    packed = IPv4Address(address).packed
    wanted = [attribute(kind, packed) for kind in (1, 2)]  # as source and as destination
    with Netlink(NETFILTER) as kernel:
        entries = [entry[len(IPV4) :] for entry in kernel.dump(CONNTRACK | GET, IPV4)]
        found = [original for entry in entries if (original := matching(entry, wanted))]
        for original in found:
            with contextlib.suppress(FileNotFoundError):  # the connection ended by itself
                kernel.ask(CONNTRACK | DELETE, IPV4 + original)
    return len(found)


def matching(entry: bytes, wanted: list[bytes]) -> bytes | None:
    """The original tuple of an entry, if it or the reply's names an address; None if not."""
    tuples = {kind: whole for kind, whole in attributes(entry) if kind in (TUPLE_ORIGINAL, TUPLE_REPLY)}
    for whole in tuples.values():
        for kind, inner in attributes(whole[4:]):
            if kind == TUPLE_IP and any(part in inner for part in wanted):
                return tuples.get(TUPLE_ORIGINAL)
    return None


# ---- the form of it


def text(name: str) -> bytes:
    return name.encode() + b"\0"


def attribute(kind: int, payload: bytes) -> bytes:
    """An attribute: its length and type, what it is, and padding."""
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + bytes(-length % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and whole (header and padding included) of each attribute."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        end = length + -length % 4
        yield kind & ~NESTED, data[:end]
        data = data[end:]


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and payload of each message."""
    while len(data) >= HEADER.size:
        length, kind, *_ = HEADER.unpack_from(data)
        if length < HEADER.size:
            return
        yield kind, data[HEADER.size : length]
        data = data[length + -length % 4 :]


def fail(payload: bytes) -> None:
    """Raises what an error message says; 0 says that all is well."""
    number = -struct.unpack("=i", payload[:4])[0]
    if number:
        raise OSError(number, os.strerror(number))

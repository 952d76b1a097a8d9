"""A Pod's network: an address of the Kubernetes node's range on one end of a veth pair, the way out through the other.

Every Pod has a /32 and the same gateway, 169.254.1.1, which answers on the machine's end of its pair; so there is no
bridge and no broadcast domain, only routes. What Services need beyond kube-proxy is the hairpin set: see layout.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TypeVar

from helpers.cluster.embedded.runtime import netlink
from helpers.cluster.embedded.runtime.netlink import ROUTE, Netlink
from helpers.cluster.embedded.runtime.state import Store

HAIRPIN = re.compile(r"\b(\d+\.\d+\.\d+\.\d+) \. \1\b")
CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
log = logging.getLogger("network")
T = TypeVar("T")


class NetworkError(Exception):
    """The network of a Pod could not be made, in one sentence."""


class Addresses:
    """Hands out the addresses of a range, one after the other, so that a freed one rests before it is used again.

    Args:
        network: the range; its first two addresses and its last are left out.
        following: number of the address, from 0, to try first.
    """

    def __init__(self, network: IPv4Network, following: int = 0):
        self.network, self.following = network, following
        self._count = max(network.num_addresses - 3, 0)

    def take(self, used: set[str]) -> str:
        """A free address.

        Raises:
            NetworkError: there is none.
        """
        for _ in range(self._count):
            address = str(self.network[2 + self.following % self._count])
            self.following = (self.following + 1) % self._count
            if address not in used:
                return address
        raise NetworkError(f"all {self._count} addresses of {self.network} are in use")


class Network:
    """The Pods' network on one machine.

    Args:
        store: keeps the range and the place in it over a restart of the runtime.
        gateway: the Pods' way out.
        hairpin_table: nftables table (family ip) with the set `hairpin`, which names each Pod's address twice.
    """

    def __init__(self, store: Store, gateway: str, hairpin_table: str):
        self._store, self._gateway, self._table = store, gateway, hairpin_table
        self._addresses: Addresses | None = None
        self._used: dict[str, str] = {}  # sandbox: address
        if kept := store.load("network", "addresses"):
            self._addresses = Addresses(IPv4Network(kept["pod_cidr"]), kept["next"])

    @property
    def ready(self) -> bool:
        """Whether the Kubernetes node has its range of addresses."""
        return self._addresses is not None

    def set_range(self, pod_cidr: str) -> None:
        """Takes the range that kube-controller-manager gave this Kubernetes node; the first of several.

        Raises:
            ValueError: it is no IPv4 network.
        """
        network = IPv4Network(pod_cidr.split(",")[0])
        if self._addresses is None or self._addresses.network != network:
            log.info("Pods get addresses of %s", network)
            self._addresses = Addresses(network)
            self._save()

    def remember(self, sandbox: str, address: str) -> None:
        """An address that a sandbox of before the runtime's restart has."""
        self._used[sandbox] = address

    async def attach(self, sandbox: str, namespace: Path) -> str:
        """Gives a sandbox its network, and says its address.

        Args:
            sandbox: its id.
            namespace: file of its network namespace.

        Raises:
            NetworkError: it cannot be made; nothing of it is left.
        """
        if self._addresses is None:
            raise NetworkError("the Kubernetes node has no range of Pod addresses yet")
        address = self._used[sandbox] = self._addresses.take(set(self._used.values()))
        self._save()
        try:
            await in_thread(lambda: self._plug(sandbox, namespace, address))
            await self._hairpin("add", address)
        except BaseException as error:
            await asyncio.shield(self.detach(sandbox))
            if isinstance(error, OSError):
                raise NetworkError(f"the network of the Pod cannot be made: {error}") from error
            raise
        return address

    async def detach(self, sandbox: str) -> None:
        """Takes a sandbox's network away, and its address back. One that has none is no error."""
        address = self._used.get(sandbox)
        if address is None:
            return
        await in_thread(lambda: self._unplug(sandbox, address))
        with contextlib.suppress(NetworkError):  # the set may never have had it
            await self._hairpin("delete", address)
        self._used.pop(sandbox, None)

    async def clean(self) -> None:
        """Takes out of the hairpin set what of our range belongs to no sandbox, as after a kill in between.

        Raises:
            NetworkError: the set cannot be read.
        """
        if self._addresses is None:
            return
        listed = await nft("list", "set", "ip", self._table, "hairpin")
        for address in set(HAIRPIN.findall(listed)) - set(self._used.values()):
            if IPv4Address(address) in self._addresses.network:
                log.warning("%s belongs to no Pod", address)
                await self._hairpin("delete", address)

    def usage(self) -> dict[str, tuple[int, int, int, int]]:
        """Bytes received, errors, bytes sent, errors, as the Pods see it, by name of the machine's end (`veth`)."""
        return read_usage(Path("/proc/self/net/dev").read_text())

    # ---- what runs in a thread

    def _plug(self, sandbox: str, namespace: Path, address: str) -> None:
        name, fd = veth(sandbox), os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with Netlink(ROUTE) as machine:
                netlink.add_veth(machine, name, "eth0", fd)
                netlink.add_address(machine, name, self._gateway)
                netlink.set_up(machine, name)
                netlink.add_route(machine, name, to=address)
            enter(fd)
        finally:
            os.close(fd)
        with Netlink(ROUTE) as pod:
            netlink.set_up(pod, "lo")
            netlink.add_address(pod, "eth0", address)
            netlink.set_up(pod, "eth0")
            netlink.add_route(pod, "eth0", to=self._gateway)
            netlink.add_route(pod, "eth0", gateway=self._gateway)

    def _unplug(self, sandbox: str, address: str) -> None:
        with contextlib.suppress(OSError), Netlink(ROUTE) as machine:  # it may have gone with the Pod's namespace
            netlink.delete_link(machine, veth(sandbox))
        try:
            # or the next Pod with this address gets another one's translations
            netlink.forget_connections(address)
        except OSError as error:
            log.warning("connections of %s are not forgotten: %s", address, error)

    async def _hairpin(self, verb: str, address: str) -> None:
        await nft(verb, "element", "ip", self._table, "hairpin", f"{{ {address} . {address} }}")

    def _save(self) -> None:
        addresses = self._addresses
        self._store.save("network", "addresses", {"pod_cidr": str(addresses.network), "next": addresses.following})


async def nft(*words: str) -> str:
    """What the command nft says: the one program that the runtime starts itself.

    Raises:
        NetworkError: there is no such command, or it refuses.
    """
    pipes = {
        "stdin": asyncio.subprocess.DEVNULL,
        "stdout": asyncio.subprocess.PIPE,
        "stderr": asyncio.subprocess.STDOUT,
    }
    try:
        process = await asyncio.create_subprocess_exec("nft", *words, **pipes)
    except FileNotFoundError as error:
        raise NetworkError("there is no command nft: install the package nftables") from error
    output, _ = await process.communicate()
    text = output.decode(errors="replace").strip()
    if process.returncode:
        raise NetworkError(f"nft {' '.join(words)}: {text}")
    return text


def veth(sandbox: str) -> str:
    """Name of the machine's end of a sandbox's veth pair: at most 15 characters."""
    return f"v{sandbox[:12]}"


def read_usage(text: str) -> dict[str, tuple[int, int, int, int]]:
    """`/proc/net/dev` by interface, seen from the other end: what it sent is what the Pod received."""
    usage = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        received, _, received_errors, *_, sent, _, sent_errors = map(int, numbers.split()[:11])
        usage[name.strip()] = sent, sent_errors, received, received_errors
    return usage


def enter(namespace: int) -> None:
    """Moves this thread into a network namespace. There is no way back: the thread must end with what it does there."""
    if libc.setns(namespace, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


async def in_thread(work: Callable[[], T]) -> T:
    """Does something in a thread of its own, which may enter a namespace since it ends afterwards."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, result, problem)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.shield(future)


async def dial(namespace: Path | None, port: int) -> socket.socket:
    """Connects to a port on a Pod's loopback; IPv4 first, as containerd does.

    Args:
        namespace: file of the Pod's network namespace; None for that of the machine.
        port: the port.

    Raises:
        OSError: nobody listens there.
    """
    problem: OSError | None = None
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        sock = await in_thread(lambda family=family: _socket_in(namespace, family))
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
            return sock
        except OSError as error:
            sock.close()
            problem = problem or error
    raise problem


def _socket_in(namespace: Path | None, family: int) -> socket.socket:
    # a socket belongs to the namespace that it was made in, whoever uses it
    if namespace:
        fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(fd)
        finally:
            os.close(fd)
    return socket.socket(family, socket.SOCK_STREAM)

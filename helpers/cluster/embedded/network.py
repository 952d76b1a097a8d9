"""The network inside the cluster's own network namespace, which is empty but for a loopback card that is down."""

from __future__ import annotations

import asyncio
import subprocess
from ipaddress import IPv4Address
from pathlib import Path

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from helpers.cluster.embedded.layout import API_ADDRESS, COREDNS_ADDRESS, SERVICE_NETWORK
from helpers.errors import CourseError

HAIRPIN_TABLE = "course"
HAIRPIN_SET = "hairpin"
# kube-proxy masquerades a Pod's connection that a Service sends back to the same Pod, but only for Pods of the
# Kubernetes node that it runs for. Ours serves all of them at once; the runtime puts each Pod's address into this set.
HAIRPIN = f"""
table ip {HAIRPIN_TABLE} {{
    set {HAIRPIN_SET} {{
        type ipv4_addr . ipv4_addr
        comment "each Pod's address, twice"
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat
        ct status dnat ip saddr . ip daddr @{HAIRPIN_SET} masquerade fully-random
    }}
}}
"""
LOOPBACK = 1  # the number of that card in every network namespace
EEXIST, EADDRNOTAVAIL = 17, 99


def set_up(nft: str) -> None:
    """Bring up loopback with the addresses of the API server and of CoreDNS, and let packets through between Pods.

    Args:
        nft: path of the program nft.

    Raises:
        CourseError: if the kernel lacks nftables.
    """
    asyncio.run(_addresses_and_routes())
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    done = subprocess.run([nft, "-f", "-"], input=HAIRPIN, capture_output=True, text=True)
    if done.returncode != 0:
        first = (done.stderr.strip().splitlines() or ["it did not say why"])[0]
        raise CourseError(
            f"The kernel does not take the cluster's network rules; nft says: {first}.",
            "Load the module by `sudo modprobe nf_tables`, or use a kernel with nftables and NAT.",
        )


async def _addresses_and_routes() -> None:
    async with AsyncIPRoute() as route:
        await route.link("set", index=LOOPBACK, state="up")
    for address in (API_ADDRESS, COREDNS_ADDRESS):
        await add_address(address)
    async with AsyncIPRoute() as route:
        # Without a route the kernel refuses a packet to a Service before kube-proxy's rules see it
        await route.route("add", dst=str(SERVICE_NETWORK), oif=LOOPBACK, prefsrc=str(API_ADDRESS))


async def add_address(address: IPv4Address) -> None:
    """Give the namespace a machine's address; nothing is said if it has it."""
    await _address("add", address, EEXIST)


async def remove_address(address: IPv4Address) -> None:
    """Take a machine's address away; nothing is said if it is not there."""
    await _address("del", address, EADDRNOTAVAIL)


async def _address(change: str, address: IPv4Address, is_so: int) -> None:
    async with AsyncIPRoute() as route:
        try:
            await route.addr(change, index=LOOPBACK, address=str(address), prefixlen=32)
        except NetlinkError as error:
            if error.code != is_so:
                raise

"""Ports of hosts that share this machine: near the usual ones, and out of the way of other hosts and other Rays."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from helpers import versions

if TYPE_CHECKING:
    from helpers.rayhost.hosts import Host

USUAL_PORTS = {
    "gcs": versions.PORT_GCS,
    "dashboard": versions.PORT_DASHBOARD,
    "client": versions.PORT_CLIENT,
    "serve": versions.PORT_SERVE,
    "agent": versions.PORT_AGENT,
}
ADDRESS = re.compile(r"(?P<option>--address(?:=|\s+)['\"]?)(?P<name>[\w.-]+):\d+")


def joined(command: str, host: Host, by_name: dict[str, Host]) -> Host | None:
    """The head of the cluster that a `ray start` puts `host` into; None for another command or an unknown head."""
    if not re.search(r"\bray\s+start\b", command):
        return None
    address = ADDRESS.search(command)
    return host if "--head" in command else by_name.get(address["name"]) if address else None


def shift_ports(command: str, host: Host, by_name: dict[str, Host]) -> str:
    """`ray start …` with the options that keep it off the ports of other hosts and other Rays on this machine.

    Any other command is returned as it is.
    """
    options = {
        "node-ip-address": host.address,
        "temp-dir": f"{host.directory}/ray",  # without it a worker would use the head's
        "dashboard-agent-listen-port": host.ports["agent"],
        "min-worker-port": 0,  # any that are free: Ray's own range, from 10002 on, is the same for all Ray nodes
        "max-worker-port": 0,
    }
    if "--head" in command:
        options["port"], options["dashboard-port"] = host.ports["gcs"], host.ports["dashboard"]
        options["ray-client-server-port"] = host.ports["client"]
    ours = " ".join(f"--{option}={value}" for option, value in options.items())
    theirs = re.sub(rf"\s+--(?:{'|'.join(options)})(?:=|\s+)\S+", "", command)

    def address(match: re.Match) -> str:
        name = match["name"]
        head = by_name.get(name)
        return f"{match['option']}{head.address}:{head.ports['gcs']}" if head else match[0]

    shifted, starts = re.subn(r"\bray\s+start\b", f"ray start {ours}", theirs)
    return ADDRESS.sub(address, shifted) if starts else command


def next_free(port: int) -> int:
    """This port, or the next one that nothing on this machine listens on: near the usual one, easy to recognize."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                port += 1

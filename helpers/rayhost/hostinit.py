"""The first process of a separate host: sets it up from inside, then waits for children whose parents are gone.

Runs as process 1 of new network, mount, process, host-name and IPC namespaces:
`hostinit NAME ADDRESS SCRATCH HOSTS_FILE`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

from pyroute2 import IPRoute

from helpers.rayhost.keeper import BRIDGE_ADDRESS, PREFIX_LENGTH

MS_BIND = 4096  # linux/mount.h


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount {kind} on {target}: {os.strerror(error)}")


def private_files(scratch: str, hosts_file: str) -> None:
    mount("tmpfs", "/dev/shm", "tmpfs", options="mode=1777")  # Ray's object store lives here
    mount("tmpfs", scratch, "tmpfs", options="mode=1777")  # and its logs and sockets here
    mount(hosts_file, "/etc/hosts", "none", MS_BIND)
    if os.path.exists("/etc/resolv.conf"):
        # no name server is reachable from here, and gRPC asks one even for names in /etc/hosts: let it fail at once
        resolv = Path(scratch) / "resolv.conf"
        resolv.write_text("nameserver 127.0.0.1\n")
        mount(str(resolv), "/etc/resolv.conf", "none", MS_BIND)
    token = Path(scratch) / "home" / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.touch(mode=0o600)
    token.write_text(os.environ.pop("COURSE_RAY_TOKEN"))


def network(address: str) -> None:
    with IPRoute() as ipr:
        ipr.link("set", index=ipr.link_lookup(ifname="lo")[0], state="up")
        eth0 = ipr.link_lookup(ifname="eth0")[0]
        ipr.addr("add", index=eth0, address=address, prefixlen=PREFIX_LENGTH)
        ipr.link("set", index=eth0, state="up")
        # Ray learns its own address from the route to the outside; without one it would advertise 127.0.0.1
        ipr.route("add", dst="default", gateway=BRIDGE_ADDRESS)


def reap_for_ever() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})


def main() -> None:
    name, address, scratch, hosts_file = sys.argv[1:]
    socket.sethostname(name)
    private_files(scratch, hosts_file)
    print("waiting for eth0", flush=True)
    with IPRoute() as ipr:
        while not ipr.link_lookup(ifname="eth0"):
            signal.sigtimedwait({signal.SIGCHLD}, 0.01)
    network(address)
    print("up", flush=True)
    reap_for_ever()


if __name__ == "__main__":
    main()

"""The keeper: the process that owns the hosts of one lab, and takes them down when the notebook is gone.

It is started by `helpers.rayhost.hosts` as a process of its own. It reads one JSON request a line from standard input
and answers each with one JSON line. End of input means that the notebook's kernel ended, in whatever way: the keeper
then kills every process of its hosts, removes what they left, and exits. If the keeper itself is killed, the operating
system kills the separate hosts (parent-death signal); hosts on shifted ports are then cleaned by the next `Lab.start`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.rayhost import members

BRIDGE_ADDRESS = "10.77.0.1"
PREFIX_LENGTH = 24
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class SeparateHosts:
    """Hosts as namespaces: own network, process table, host name, /dev/shm and scratch directory.

    The keeper already runs in a network namespace of its own (and, without root, in a user namespace); a bridge in it
    is the switch that the hosts hang on.
    """

    def __init__(self, session: Path):
        from pyroute2 import IPRoute  # Linux only, and slow to import

        self.session, self.unshares = session, []
        self.hosts_file = session / "hosts"
        self.hosts_file.write_text("127.0.0.1 localhost\n")
        self.ipr = IPRoute()
        self.ipr.link("set", index=self.index("lo"), state="up")
        self.ipr.link("add", ifname="switch", kind="bridge")
        self.ipr.addr("add", index=self.index("switch"), address=BRIDGE_ADDRESS, prefixlen=PREFIX_LENGTH)
        self.ipr.link("set", index=self.index("switch"), state="up")

    def index(self, ifname: str) -> int:
        return self.ipr.link_lookup(ifname=ifname)[0]

    def add(self, name: str, address: str, scratch: str) -> dict:
        with self.hosts_file.open("a") as hosts:
            hosts.write(f"{address} {name}\n")
        command = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        command += [sys.executable, "-m", "helpers.rayhost.hostinit", name, address, scratch, str(self.hosts_file)]
        unshare = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        self.unshares.append(unshare)
        if unshare.stdout.readline() != "waiting for eth0\n":
            raise OSError(f"host {name} did not start: see {self.session / 'keeper.log'}")
        pid = members.children(unshare.pid)[0]
        self.plug(len(self.unshares), pid)
        if unshare.stdout.readline() != "up\n":
            raise OSError(f"host {name} did not come up: see {self.session / 'keeper.log'}")
        return {"pid": pid}

    def plug(self, number: int, pid: int) -> None:
        """Lay a cable (a veth pair) from the switch to the host whose first process is `pid`."""
        near, far = f"port{number}", f"far{number}"
        self.ipr.link("add", ifname=near, kind="veth", peer={"ifname": far})
        self.ipr.link("set", index=self.index(near), master=self.index("switch"), state="up")
        self.ipr.link("set", index=self.index(far), net_ns_pid=pid, ifname="eth0")

    def close(self) -> None:
        for unshare in self.unshares:
            unshare.kill()  # --kill-child: the host's first process goes with it, and so all of its process table
        for unshare in self.unshares:
            unshare.wait()


class ShiftedHosts:
    """Hosts that share this machine's network and process table, told apart by their ports and environment."""

    def __init__(self, session: Path):
        self.session, self.scratches = session, set()

    def add(self, name: str, address: str, scratch: str) -> dict:
        self.scratches.add(scratch)
        return {"pid": os.getpid()}

    def close(self) -> None:
        members.kill_session(self.session.name)
        for scratch in self.scratches:
            shutil.rmtree(scratch, ignore_errors=True)


def reply(**message) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    mode, session = sys.argv[1], Path(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal means the notebook, not its hosts
    try:
        hosts = SeparateHosts(session) if mode == "separate" else ShiftedHosts(session)
    except Exception as error:  # the notebook turns it into a sentence, and falls back to shifted ports
        reply(error=f"{type(error).__name__}: {error}")
        return
    reply(ready=True, at=time.time())
    for line in sys.stdin:
        try:
            reply(**hosts.add(**json.loads(line)))
        except Exception as error:
            reply(error=f"{type(error).__name__}: {error}")
    hosts.close()


if __name__ == "__main__":
    main()

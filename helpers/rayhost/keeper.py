"""The keeper: the process that owns the hosts of one lab, and takes them down when the notebook is gone.

It is started by `helpers.rayhost.hosts` as a process of its own: `keeper separate|shared DIRECTORY SCRATCH`. It reads
one JSON request a line from standard input and answers each with one JSON line. End of input means that the notebook's
kernel ended, in whatever way: the keeper then kills every process of its hosts, removes what they left, and exits. If
the keeper itself is killed, the operating system kills the separate hosts (parent-death signal); hosts that share the
machine are then ended by the notebook, or by the next `Lab.start`.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from helpers.rayhost import members

LOG = "keeper.log"  # in the lab's directory
BRIDGE_ADDRESS = "10.77.0.1"
TRIAL_ADDRESS = "10.77.0.2"
PREFIX_LENGTH = 24
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class SeparateHosts:
    """Hosts as namespaces: own network, process table, host name, /dev/shm and scratch directory.

    The keeper already runs in a network namespace of its own (and, without root, in a user namespace); a bridge in it
    is the switch that the hosts hang on.
    """

    def __init__(self, directory: Path, scratch: str):
        from pyroute2 import IPRoute  # Linux only, and slow to import

        self.directory, self.scratch, self.unshares, self.numbers = directory, scratch, [], itertools.count(1)
        self.hosts_file = directory / "hosts"
        self.hosts_file.write_text("127.0.0.1 localhost\n")
        self.ipr = IPRoute()
        self.ipr.link("set", index=self.index("lo"), state="up")
        self.ipr.link("add", ifname="switch", kind="bridge")
        self.ipr.addr("add", index=self.index("switch"), address=BRIDGE_ADDRESS, prefixlen=PREFIX_LENGTH)
        self.ipr.link("set", index=self.index("switch"), state="up")
        # much that may be forbidden shows only when a host comes up: find out while hosts can still share the machine
        self.bring_up("trial", TRIAL_ADDRESS)
        self.close()

    def index(self, ifname: str) -> int:
        return self.ipr.link_lookup(ifname=ifname)[0]

    def add(self, name: str, address: str) -> dict:
        with self.hosts_file.open("a") as hosts:
            hosts.write(f"{address} {name}\n")
        pid = self.bring_up(name, address)
        return {"pid": pid, "namespace": members.namespace(pid)}

    def bring_up(self, name: str, address: str) -> int:
        """Start a host; returns the pid of its first process."""
        command = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        command += [sys.executable, "-m", "helpers.rayhost.hostinit", name, address, self.scratch, str(self.hosts_file)]
        unshare = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        self.unshares.append(unshare)
        self.expect("waiting for eth0", unshare)
        pid = members.children(unshare.pid)[0]
        self.plug(pid)
        self.expect("up", unshare)
        return pid

    def expect(self, line: str, unshare: subprocess.Popen) -> None:
        if unshare.stdout.readline() != f"{line}\n":
            unshare.wait()
            said = (self.directory / LOG).read_text().strip().splitlines()
            raise OSError(said[-1] if said else f"its first process ended before it said {line!r}")

    def plug(self, pid: int) -> None:
        """Lay a cable (a veth pair) from the switch to the host whose first process is `pid`."""
        number = next(self.numbers)
        near, far = f"port{number}", f"far{number}"
        self.ipr.link("add", ifname=near, kind="veth", peer={"ifname": far})
        self.ipr.link("set", index=self.index(near), master=self.index("switch"), state="up")
        self.ipr.link("set", index=self.index(far), net_ns_pid=pid, ifname="eth0")

    def close(self) -> None:
        for unshare in self.unshares:
            # the host's first process takes its whole process table with it. Its parent, unshare, ends after it: were
            # that killed instead (which is what --kill-child is for), nobody might ever collect the first process
            first = members.children(unshare.pid)
            os.kill(first[0] if first else unshare.pid, signal.SIGKILL)
        for unshare in self.unshares:
            unshare.wait()
            unshare.stdout.close()
        self.unshares.clear()


class SharingHosts:
    """Hosts that share this machine's network and process table, told apart by their ports and environment."""

    def __init__(self, directory: Path, scratch: str):
        self.session, self.scratch = directory.name, scratch

    def add(self, name: str, address: str) -> dict:
        return {"pid": os.getpid(), "namespace": None}

    def close(self) -> None:
        members.kill_session(self.session)
        shutil.rmtree(self.scratch, ignore_errors=True)


def reply(**message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    mode, directory, scratch = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal means the notebook, not its hosts
    try:
        hosts = (SeparateHosts if mode == "separate" else SharingHosts)(Path(directory), scratch)
    except Exception as error:  # the notebook turns it into a sentence, and lets the hosts share the machine
        reply(error=f"{type(error).__name__}: {error}")
        return
    reply(ready=True)
    up: dict[str, dict] = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["name"]
        try:
            # the same question again: its first answer was lost, as the notebook was interrupted while it waited
            up[name] = up.get(name) or hosts.add(**request)
            reply(name=name, **up[name])
        except Exception as error:
            reply(name=name, error=f"{type(error).__name__}: {error}")
    # nobody listens any more: what goes wrong from here on goes to the log
    with open(os.devnull, "w") as sys.stdout:
        hosts.close()


if __name__ == "__main__":
    main()

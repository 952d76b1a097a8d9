"""The cluster of lesson 01, head and two workers: at most 1.3 times what three bare `ray start`s take.

Both start in turn, from nothing: once as the lesson starts it, once typed into a plain shell, all three on one address.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from _figure import finish, report, seconds

BOUND = 1.3
PAIRS = 3
SMALL = "--object-store-memory=100000000"
HEAD = f"ray start --head --num-cpus=0 --dashboard-host=0.0.0.0 {SMALL}"
WORKER = f"ray start --address={{address}} --num-cpus=1 {SMALL}"
# the same port would be taken twice where all share one address
ONE_ADDRESS = "--node-ip-address=127.0.0.1 --dashboard-agent-listen-port={port}"


def by_lab() -> float:
    """Seconds from `Lab.start` to the last `ray start`."""
    from helpers import Lab

    with contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        lab = Lab.start("01")
        head, *workers = lab.hosts("head", "worker-1", "worker-2")
        head.run(HEAD, quiet=True)
        for worker in workers:
            worker.run(WORKER.format(address=f"head:{head.ports['gcs']}"), quiet=True)
        took = time.perf_counter() - start
        separate = lab.separate
        lab.clean_up()
    if not separate:
        print("– cluster: hosts share this machine, which starts other commands than a bare one; nothing was measured")
        sys.exit(0)
    return took


class Shell:
    """A shell with a network, process table and temporary files of its own: what it has started ends with it."""

    def __init__(self, home: str):
        namespaces = ["--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
        user = ["--user", "--map-root-user"] if os.geteuid() else []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.process = subprocess.Popen(
            ["unshare", *namespaces, *user, "sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": path, "HOME": home, "RAY_TMPDIR": home, "LANG": "C.UTF-8"},
        )
        up = "from pyroute2 import IPRoute; ip = IPRoute(); ip.link('set', index=1, state='up')"
        self.run(f'{sys.executable} -c "{up}" && mount -t tmpfs tmpfs {home} && mount -t tmpfs tmpfs /dev/shm')

    def run(self, command: str) -> None:
        print(f"{command}; echo status $?", file=self.process.stdin, flush=True)
        said = []
        for line in self.process.stdout:
            if line.startswith("status "):
                break
            said.append(line)
        assert line == "status 0\n", "".join(said)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def bare() -> float:
    """Seconds of the three commands together."""
    with tempfile.TemporaryDirectory() as home:
        shell = Shell(home)
        try:
            commands = [f"{HEAD} {ONE_ADDRESS.format(port=52365)}"]
            for port in (52366, 52367):
                commands.append(f"{WORKER.format(address='127.0.0.1:6379')} {ONE_ADDRESS.format(port=port)}")
            return seconds(lambda: [shell.run(command) for command in commands])
        finally:
            shell.close()


with tempfile.TemporaryDirectory() as state_home:
    os.environ["XDG_STATE_HOME"] = state_home
    pairs = [(by_lab(), bare()) for _ in range(PAIRS)]
lab_s, bare_s = (median(column) for column in zip(*pairs, strict=True))
ratio = median(mine / theirs for mine, theirs in pairs)
beside = f"medians of {PAIRS}: {lab_s:.1f} s, and {bare_s:.1f} s for three bare `ray start`s"
finish(report("cluster of lesson 01", ratio, BOUND, beside, "times"))

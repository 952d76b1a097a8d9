"""An embedded cluster as the live tests use it, and what of the computer below it must stay as it is. Linux only."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

from helpers.cluster.embedded import control, tools
from helpers.cluster.embedded.cluster import EmbeddedCluster
from helpers.wait import wait_until

# settings under /proc/sys that the kernel itself changes all the time
VOLATILE = ("fs/dentry-state", "fs/file-nr", "fs/inode-nr", "fs/inode-state", "kernel/ns_last_pid", "kernel/random/")
VOLATILE += ("kernel/pty/nr", "kernel/perf_event_max_sample_rate", "net/netfilter/nf_conntrack_count", "fs/aio-nr")
VOLATILE += ("fs/quota/", "kernel/hostname")  # the latter is compared on its own


class Cluster(EmbeddedCluster):
    """With kubectl on the host, as a learner uses it."""

    def kubectl(self, *words: str, given: str = "", fails: bool = False) -> str:
        # else it would make a cache in HOME, which is compared with what it was before
        options = [f"--kubeconfig={self.layout.kubeconfig}", f"--cache-dir={self.layout.root / 'kubectl-cache'}"]
        command = [str(tools.binary("kubectl")), *options, *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=200)
        assert (done.returncode != 0) == fails, done.stderr
        return (done.stderr if fails else done.stdout).strip()

    def works(self) -> bool:
        """For `wait_until`: an object can be made, controllers see it, and it is gone again."""
        try:
            self.kubectl("create", "namespace", "probe")
            self.kubectl("wait", "--for=create", "serviceaccount/default", "-n", "probe", "--timeout=120s")
            self.kubectl("delete", "namespace", "probe", "--timeout=120s")
        except AssertionError:
            self.kubectl("delete", "namespace", "probe", "--ignore-not-found", "--timeout=120s")
            raise
        return True

    def is_ready(self) -> bool:
        missing = [component.name for component in self.status().components if not component.is_ready]
        assert not missing, f"not ready: {missing}"
        return True

    @property
    def port(self) -> int:
        """Of the API server, on the host's loopback."""
        return int(self.status().server.rpartition(":")[2])

    def processes(self) -> list[psutil.Process]:
        """All that runs in the cluster."""
        with control.connect(self.layout.root, 5) as connection:
            supervisor = psutil.Process(control.supervisor_pid(connection))
        return [supervisor, *supervisor.children(recursive=True)]

    def power_loss(self) -> None:
        running = self.processes()
        running[0].kill()
        wait_until(lambda: not any(map(is_alive, running)), 20, what="the kernel to end all that ran in the cluster")


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def cgroups(cluster: Cluster) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/ray-course/{cluster.layout.id}"))


def host() -> dict[str, object]:
    """What of this computer a cluster must leave as it is, by name."""
    found = {
        "network cards": {
            name: sorted((address.family.name, address.address, address.netmask) for address in addresses)
            for name, addresses in psutil.net_if_addrs().items()
        },
        "routes": _routes(),
        "mounts": Path("/proc/self/mountinfo").read_text().splitlines(),
        "cgroups": _cgroups(),
        "host name": socket.gethostname(),
        "/etc": files(Path("/etc")),
        "HOME": sorted(path.name for path in Path.home().iterdir()),
        "kernel settings": _kernel_settings(),
    }
    if os.geteuid() == 0:
        found["network rules"] = _lines("nft", "--stateless", "list", "ruleset")  # without counters, which count
    return found


def files(top: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, size and time of change of all files below a directory, by path."""
    found = {}
    for directory, directories, names in os.walk(top):
        for name in (*directories, *names):
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                found[path] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def sockets_on_the_host(processes: Iterable[psutil.Process]) -> set[tuple[str, int]]:
    """The local addresses of the internet sockets that processes have in this process's network namespace."""
    pids = {process.pid for process in processes}
    return {tuple(found.laddr) for found in psutil.net_connections("inet") if found.pid in pids}


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _routes() -> list[str]:
    version_6 = Path("/proc/net/ipv6_route")
    lines = version_6.read_text().splitlines() if version_6.exists() else []
    # the 7th and 8th word count uses
    return [*Path("/proc/net/route").read_text().splitlines(), *(str(_without(line.split(), 6, 8)) for line in lines)]


def _without(words: list[str], start: int, end: int) -> list[str]:
    return words[:start] + words[end:]


def _cgroups() -> list[str]:
    """The topmost of each hierarchy; deeper, a desktop makes and removes its own all the time."""
    top = Path("/sys/fs/cgroup")
    levels = ["*/"] if (top / "cgroup.controllers").exists() else ["*/", "*/*/"]  # version 1: below each controller
    found = {str(path) for level in levels for path in top.glob(level)}
    return sorted(path for path in found if "ray-course" not in path)


def _kernel_settings() -> dict[str, str]:
    found = {}
    for file in filter(Path.is_file, Path("/proc/sys").rglob("*")):
        name = str(file.relative_to("/proc/sys"))
        if not name.startswith(VOLATILE):
            with contextlib.suppress(OSError):  # some can only be written
                found[name] = file.read_text(errors="replace")
    return found

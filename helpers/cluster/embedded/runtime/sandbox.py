"""A sandbox: the namespaces that the containers of a Pod share, kept by bind mounts of their files."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from contextlib import suppress

from helpers.cluster.embedded.runtime import linux

FLAGS = {"net": linux.CLONE_NEWNET, "ipc": linux.CLONE_NEWIPC, "uts": linux.CLONE_NEWUTS}
# sysctls that belong to one of these namespaces (kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster)
SYSCTLS = {"net.": "net", "kernel.shm": "ipc", "kernel.msg": "ipc", "kernel.sem": "ipc", "fs.mqueue.": "ipc"}
SHM = "mode=1777,size=64m"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h


class BadSandbox(Exception):
    """The sandbox cannot be made as asked, in one sentence."""


class Sandbox:
    """One sandbox of a machine.

    Attributes:
        directory: <disk>/sandboxes/<id>; `ns` and `shm` in it are ours.
        own: which of net, ipc and uts it has for itself; the others are the machine's.
        pid: "container": each container has its own processes; "pod": they share theirs; "host": the machine's.
        reaper: pid of the first process of the shared ones, or 0.
    """

    def __init__(self, directory: str, spec: dict):
        wanted = spec.get("namespaces") or {}
        self.directory, self.hostname = directory, spec.get("hostname") or ""
        self.own = [name for name in ("net", "ipc") if wanted.get(name, "pod") == "pod"]
        if "net" in self.own:  # a Pod in the machine's network has the machine's name
            self.own.append("uts")
        self.pid, self.reaper = wanted.get("pid", "container"), 0
        self.sysctls = dict(spec.get("sysctls") or {})
        if self.pid not in ("container", "pod", "host"):
            raise BadSandbox(f'"{self.pid}" is no way to share processes')
        for name in self.sysctls:
            namespace = next((space for start, space in SYSCTLS.items() if name.startswith(start)), None)
            if namespace not in self.own:
                raise BadSandbox(f'sysctl "{name}" is not of a namespace that the sandbox has for itself')

    @property
    def shm(self) -> str:
        """What /dev/shm is for its containers."""
        return f"{self.directory}/shm" if "ipc" in self.own else "/dev/shm"

    def namespace(self, name: str) -> str:
        """The file of one of its own namespaces."""
        return f"{self.directory}/ns/{name}"

    def make(self) -> None:
        """Makes all of it. Runs in a child of the init, in the machine's mount namespace.

        Raises:
            OSError, BadSandbox: the kernel refuses.
        """
        os.makedirs(f"{self.directory}/ns", exist_ok=True)
        os.makedirs(f"{self.directory}/shm", exist_ok=True)
        linux.unshare(sum(FLAGS[name] for name in self.own))
        if "uts" in self.own and self.hostname:
            linux.sethostname(self.hostname)
        if "net" in self.own:
            _loopback_up()
        for name, value in self.sysctls.items():
            _set_sysctl(name, str(value))
        for name in self.own:
            self._keep(name, f"/proc/self/ns/{name}")
        if self.reaper:
            self._keep("pid", f"/proc/{self.reaper}/ns/pid")
        if "ipc" in self.own:
            linux.mount("tmpfs", f"{self.directory}/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, SHM)

    def _keep(self, name: str, namespace: str) -> None:
        os.close(os.open(self.namespace(name), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        linux.mount(namespace, self.namespace(name), flags=linux.MS_BIND)

    def start_reaper(self, own: int) -> None:
        """Starts the first process of the shared ones. Runs in the init."""
        self.reaper = linux.fork_into(linux.NEW, own)
        if self.reaper == 0:
            try:
                _reap_forever()
            finally:
                os._exit(1)

    def remove(self) -> None:
        """Ends the namespaces, as far as there are any.

        Raises:
            OSError: something is still in use.
        """
        self.end_reaper()
        remove_files(self.directory)

    def end_reaper(self) -> None:
        """Ends the first process of the shared ones, and so all of them."""
        if self.reaper:
            with suppress(ProcessLookupError):
                os.kill(self.reaper, signal.SIGKILL)
            self.reaper = 0


def remove_files(directory: str) -> None:
    """Removes what `Sandbox.make` left in a directory, and the directory if nothing else is in it.

    Runs in a child of the init: the kernel takes some milliseconds for each mount.
    """
    for name in (*FLAGS, "pid"):
        path = f"{directory}/ns/{name}"
        if os.path.lexists(path):
            _unmount(path)
            os.unlink(path)
    _unmount(f"{directory}/shm")
    for path in (f"{directory}/ns", f"{directory}/shm"):
        if os.path.isdir(path):
            os.rmdir(path)
    with suppress(OSError):  # not empty: the runtime keeps files there; or not there
        os.rmdir(directory)


def _unmount(path: str) -> None:
    with suppress(OSError):  # nothing is mounted there
        linux.umount(path)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("16sH", fcntl.ioctl(sock, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def _set_sysctl(name: str, value: str) -> None:
    path = os.path.normpath("/proc/sys/" + name.replace(".", "/"))
    if not path.startswith("/proc/sys/"):
        raise BadSandbox(f'"{name}" is no sysctl')
    try:
        with open(path, "w") as file:
            file.write(value)
    except OSError as error:
        raise BadSandbox(f'sysctl "{name}" cannot be set to "{value}": {os.strerror(error.errno)}') from None


def _reap_forever() -> None:
    linux.signals_as_new()
    linux.prctl(linux.PR_SET_DUMPABLE, 0)  # it has a copy of the init's memory
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # else it would hold the init's pipes open
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait([signal.SIGCHLD])

"""Process 1 of the cluster's namespaces: starts the components, starts again what ends, boots the machines.

Run by `course up` as `supervisor BOOT_FILE LOCK_FD REPORT_FD` (see `boot.py`). One thread, one event loop. All that
runs in the cluster is a descendant of this process, and the kernel ends it all when this process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from helpers.cluster.embedded import control, namespaces, network
from helpers.cluster.embedded.boot import MACHINE, Boot, Component, DeclaredMachine, as_component, as_machine
from helpers.cluster.embedded.layout import COREDNS_ADDRESS, INSIDE, RUN, Layout
from helpers.cluster.embedded.runtime import cgroups, linux
from helpers.cluster.embedded.runtime.backoff import Backoff
from helpers.cluster.embedded.runtime.init_client import Init, InitError
from helpers.errors import CourseError
from helpers.proc import namespace_pids

PROBE_EVERY_S, PROBE_TIMEOUT_S = 0.05, 2.0
INIT_TIMEOUT_S = 2.0
STOP_S = 10.0  # what a component has between SIGTERM and SIGKILL
MACHINE_STOP_S = 15.0  # a machine ends its Pods first
LOG_LIMIT = 16 * 1024**2  # a longer log is put aside when its component starts


# ---- the world of the cluster ----------------------------------------------------------------------------------------


def make_world(boot: Boot) -> None:
    """Set the new namespaces up: nothing here is seen outside of them.

    Raises:
        CourseError: if the kernel refuses something that the cluster cannot do without.
    """
    # what the host unmounts is unmounted here too; what is mounted here stays here
    linux.mount(None, "/", flags=linux.MS_REC | linux.MS_SLAVE)
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    except OSError:
        raise CourseError(
            "The cluster needs a /proc of its own, and this container hides parts of /proc from it.",
            "Start the container with `--privileged`, or use a virtual machine.",
        ) from None
    linux.sethostname("course")
    _own_run()
    INSIDE.mkdir()
    linux.mount(str(boot.root), str(INSIDE), flags=linux.MS_BIND)
    _check_overlay(INSIDE, boot.root)
    network.set_up(boot.nft)


def _own_run() -> None:
    """A /run of our own, and in it, if need be, what /etc/resolv.conf points to."""
    resolv = Path("/etc/resolv.conf")
    target = resolv.resolve()
    linux.mount("tmpfs", "/run", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")
    RUN.mkdir(mode=0o700)
    ours = RUN / "resolv.conf"
    # KubeRay's operator asks for the names of Services. The host's own servers are out of reach here.
    ours.write_text(f"nameserver {COREDNS_ADDRESS}\n")
    if target.is_relative_to("/run"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    if target.is_file():
        linux.mount(str(ours), str(target), flags=linux.MS_BIND)


def _check_overlay(inside: Path, root: Path) -> None:
    """Mount what every container gets: a writable layer in the cluster's directory over files of the host."""
    try:
        with tempfile.TemporaryDirectory(prefix="overlay-", dir=inside) as trial:
            for part in ("upper", "work", "lower", "merged"):
                (Path(trial) / part).mkdir()
            options = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
            linux.mount("overlay", f"{trial}/merged", "overlay", data=options + _userxattr())
            linux.umount(f"{trial}/merged")
    except OSError as error:
        if error.errno == errno.ENODEV:  # mount(2): the kernel knows no such file system, and found no module of it
            raise CourseError(
                "This kernel has no overlay file system, which containers get their files by.",
                "Load it by `sudo modprobe overlay`, or use a kernel that has it.",
            ) from None
        raise CourseError(
            f"The file system of {root} cannot hold the writable files of containers: {os.strerror(error.errno)}.",
            "Set XDG_STATE_HOME to a directory on a local disk, such as ext4 or xfs.",
        ) from None


def _userxattr() -> str:
    """The option without which a user namespace cannot mount overlays (kernel: Documentation/filesystems/overlayfs)."""
    return "" if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"] else ",userxattr"


# ---- processes -------------------------------------------------------------------------------------------------------


@dataclass
class Child:
    """A component or a machine's init, as the supervisor knows it.

    Attributes:
        name: its name.
        state: waiting, no machine, starting, ready, backing off, stopped; a machine's: waiting, ready or lost.
        pid: in the cluster's PID namespace; 0 while it does not run.
        started: time of its last start, seconds since 1970.
        restarts: how often it was started again.
        exit_code: of its last end; minus the number of a signal that ended it.
    """

    name: str
    state: str = "waiting"
    pid: int = 0
    started: float = 0.0
    restarts: int = 0
    exit_code: int | None = None
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    def began(self, pid: int) -> None:
        self.pid, self.started, self.state = pid, time.time(), "starting"
        self.exited.clear()

    def ended(self, status: int) -> None:
        self.pid, self.exit_code = 0, os.waitstatus_to_exitcode(status)
        self.exited.set()

    def as_json(self) -> dict:
        return {key: getattr(self, key) for key in ("name", "state", "pid", "started", "restarts", "exit_code")}


def pids_of_children(init: int) -> dict[int, int]:
    """Pids of a machine's processes as the cluster counts, by those that the machine's init counts them by."""
    found = {}
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{init}/task/{init}/children").read_text().split():
            with contextlib.suppress(OSError):
                found[namespace_pids(int(pid))[-1]] = int(pid)
    return found


def open_log(path: Path) -> int:
    """The log of something that starts now; a long one of before is put aside as `NAME.log.1`."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT:
            os.replace(path, path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


async def answers(url: str, ca: str) -> bool:
    """Whether the URL answers with 200."""
    parts = urlsplit(url)
    context = None
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca) if ca else ssl._create_unverified_context()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
            writer.write(f"GET {parts.path} HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n".encode())
            line = await reader.readline()
            writer.transport.abort()
    except (OSError, TimeoutError):
        return False
    return line.split()[1:2] == [b"200"]


class Supervisor:
    """The event loop's owner of all that runs."""

    def __init__(self, boot: Boot):
        self.boot, self.layout = boot, Layout(boot.root).inside
        self.components: dict[str, Child] = {}
        self.machines: dict[str, Child] = {}
        self.declared: dict[str, DeclaredMachine] = {}
        self.by_pid: dict[int, Child] = {}
        self.tasks: dict[str, asyncio.Task] = {}
        self.own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self.machine_added = asyncio.Event()
        self.stopped = asyncio.Event()
        self.stopping = False

    async def run(self, listener: object) -> None:
        """Start everything, and go on until `stop` is asked for or SIGTERM comes."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self.reap)
        loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(self.stop()))
        server = await asyncio.start_unix_server(self.serve, sock=listener)
        for component in self.boot.components:
            self.add_component(component)
        for machine in self.boot.machines:
            await self.add_machine(machine)
        async with server:
            await self.stopped.wait()

    def reap(self) -> None:
        """Take note of every child that has ended; orphans come to process 1 too."""
        for pid, status in linux.ended_children():
            if child := self.by_pid.pop(pid, None):
                child.ended(status)

    # ---- components --------------------------------------------------------------------------------------------------

    def add_component(self, component: Component) -> None:
        """Run a component from now on, unless it is one already."""
        if component.name not in self.components:
            self.components[component.name] = Child(component.name)
            self.tasks[component.name] = asyncio.create_task(self.keep(component))

    async def keep(self, component: Component) -> None:
        """Run a component for ever."""
        child, backoff = self.components[component.name], Backoff()
        for earlier in component.after:
            await self.components[earlier].answered.wait()
        while True:
            if component.needs_machine and not self.a_machine():
                child.state = "no machine"
                await self.machine_added.wait()
            self.start(component, child)
            ready = asyncio.create_task(self.become_ready(component, child))
            await child.exited.wait()
            ready.cancel()
            wait_s = backoff.after(time.time() - child.started)
            child.state = "backing off"
            say(f"{component.name} ended with {child.exit_code}; it starts again in {wait_s:g} s")
            await asyncio.sleep(wait_s)
            child.restarts += 1

    def start(self, component: Component, child: Child) -> None:
        log = open_log(self.layout.logs / f"{component.name}.log")
        argv = [word.replace(MACHINE, self.a_machine()) for word in component.argv]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            env=self.boot.env | component.env, pass_fds=component.inherits, start_new_session=True,
        )  # fmt: skip
        os.close(log)
        linux.come_first(process.pid)
        process.returncode = 0  # `reap` is who waits for it: the object must not
        child.began(process.pid)
        self.by_pid[process.pid] = child

    def a_machine(self) -> str:
        """The name of a machine, if possible of one that runs; empty if there is none."""
        return next(iter(sorted(self.machines, key=lambda name: self.machines[name].state == "lost")), "")

    async def become_ready(self, component: Component, child: Child) -> None:
        while component.ready_url and not await answers(component.ready_url, component.ready_ca):
            await asyncio.sleep(PROBE_EVERY_S)
        child.state = "ready"
        child.answered.set()

    # ---- machines ----------------------------------------------------------------------------------------------------

    async def add_machine(self, machine: DeclaredMachine) -> None:
        """Boot a machine, unless it runs. A lost one is booted again, like a computer that is switched on again."""
        child = self.machines.get(machine.name)
        if child and (child.pid or child.state == "waiting"):
            return
        self.machines[machine.name] = child = Child(machine.name, restarts=child.restarts + 1 if child else 0)
        self.declared[machine.name] = machine
        self.machine_added.set()
        await network.add_address(machine.address)
        self.tasks[f"machine {machine.name}"] = asyncio.create_task(self.watch_machine(machine, child))

    async def watch_machine(self, machine: DeclaredMachine, child: Child) -> None:
        """Boot a machine and see it end. It is not started again: a machine that is gone is a lost machine."""
        await self.components[self.boot.machines_after].answered.wait()
        pid = self.fork_machine(machine)
        child.began(pid)
        child.state = "ready"
        self.by_pid[pid] = child
        await child.exited.wait()
        child.state = "lost"
        say(f"the machine {machine.name} is lost: its init ended with {child.exit_code}")

    def fork_machine(self, machine: DeclaredMachine) -> int:
        log = open_log(self.layout.logs / f"{machine.name}.init.log")
        pid = linux.fork_into(linux.NEW, self.own_namespace)
        if pid == 0:
            try:
                linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
                linux.signals_as_new()
                os.setsid()
                for number in (1, 2):
                    os.dup2(log, number)
                argv = [*self.boot.init, str(machine.spec)]
                os.execve(argv[0], argv, self.boot.env)
            finally:
                os._exit(127)
        os.close(log)
        return pid

    async def remove_machine(self, name: str) -> None:
        """Shut a machine down and forget it. Nothing happens if there is none of that name."""
        if child := self.machines.get(name):
            await self.end(child, MACHINE_STOP_S)
            self.tasks.pop(f"machine {name}").cancel()
            await network.remove_address(self.declared.pop(name).address)
            del self.machines[name]
            if not self.machines:
                self.machine_added.clear()

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def end(self, child: Child, patience_s: float) -> None:
        if not child.pid:
            return
        os.kill(child.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(child.exited.wait(), patience_s)
        except TimeoutError:
            say(f"{child.name} did not end within {patience_s:g} s")
            os.kill(child.pid, signal.SIGKILL)
            await child.exited.wait()

    async def stop(self) -> None:
        """Machines first, all at once; then the components, the last started first."""
        if self.stopping:
            return
        self.stopping = True
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*(self.end(child, MACHINE_STOP_S) for child in self.machines.values()))
        for child in reversed(self.components.values()):
            await self.end(child, STOP_S)
            child.state = "stopped"
        self.stopped.set()

    # ---- the control socket ------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests, one a line, until the other side has no more."""
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while line := await reader.readline():
                writer.write(json.dumps(await self.answer(json.loads(line))).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def answer(self, request: dict) -> dict:
        operations: dict[str, Callable[[dict], Awaitable[None]]] = {
            "status": self._op_status,
            "add_component": self._op_add_component,
            "add_machine": self._op_add_machine,
            "remove_machine": self._op_remove_machine,
            "stop": self._op_stop,
        }
        await operations[request["op"]](request)
        return await self.report(with_memory=request.get("memory", False))

    async def report(self, with_memory: bool) -> dict:
        """The state of everything. Memory is told when it is asked for: the kernel counts every page for that."""
        services = await asyncio.gather(*map(self.services, self.machines.values()))
        components = [child.as_json() for child in self.components.values()]
        machines = [child.as_json() for child in self.machines.values()]
        for machine, told in zip(machines, services, strict=True):
            machine["services"] = told
        if with_memory:
            for one in (*components, *machines, *itertools.chain(*services)):
                one["pss_bytes"] = cgroups.pss(one["pid"]) if one["pid"] else 0
        return {"components": components, "machines": machines}

    async def services(self, machine: Child) -> list[dict]:
        """What the machine's init says of its services, in the form of `Child.as_json`."""
        if not machine.pid:
            return []
        try:
            async with asyncio.timeout(INIT_TIMEOUT_S):
                init = await Init.connect(self.layout.machine(machine.name).init_socket)
                told = await init.services()
                init.close()
        except (InitError, TimeoutError):  # it is just booting, or it ends
            return []
        pids = pids_of_children(machine.pid)
        return [
            {
                "name": f"{machine.name}.{one['name']}",
                "state": "ready" if one["pid"] else "starting",
                "pid": pids.get(one["pid"], 0),
                "started": one["started_ns"] / 1e9,
                "restarts": one["restarts"],
            }
            for one in told
        ]

    async def _op_status(self, request: dict) -> None:
        """Every answer holds it."""

    async def _op_add_component(self, request: dict) -> None:
        self.add_component(as_component(request["component"]))

    async def _op_add_machine(self, request: dict) -> None:
        await self.add_machine(as_machine(request["machine"]))

    async def _op_remove_machine(self, request: dict) -> None:
        await self.remove_machine(request["name"])

    async def _op_stop(self, request: dict) -> None:
        await self.stop()


def say(text: str) -> None:
    """A line of the supervisor's log."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}", flush=True)


def main() -> None:
    """Make the world and run it; the first line on the report pipe is nothing, or the two sentences of an error."""
    boot_file, lock, report = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    boot = Boot.from_text(Path(boot_file).read_text())
    try:
        if namespaces.enter() != 0:
            os._exit(0)  # the rest is the child's; it holds the lock and the report pipe open
        make_world(boot)
        listener = control.listen(boot.root)
    except CourseError as error:
        os.write(report, json.dumps([error.what, error.fix]).encode())
        os._exit(1)
    os.set_inheritable(lock, False)  # whoever holds it is the running cluster, and components do not
    os.write(report, b"[]")
    os.close(report)
    asyncio.run(Supervisor(boot).run(listener))


if __name__ == "__main__":
    main()

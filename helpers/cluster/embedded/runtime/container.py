"""One container of a machine: its first process, its streams, and what is known of it, as the init sees it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from helpers.cluster.embedded.runtime import cgroups, child, linux, messages, rootfs
from helpers.cluster.embedded.runtime.logs import READ, LogFile, Tap
from helpers.cluster.embedded.runtime.loop import READ as READABLE
from helpers.cluster.embedded.runtime.loop import WRITE as WRITABLE
from helpers.cluster.embedded.runtime.loop import Loop
from helpers.cluster.embedded.runtime.sandbox import FLAGS, Sandbox

DRAIN_S = 2.0  # for output after the end: somebody else may hold the pipe open
OURS = ("root", "upper", "work", "tmp", "empty", "cgroup", "spec.json", "record.json")
NAMESPACES = {**FLAGS, "mnt": linux.CLONE_NEWNS}  # in the order in which they are entered
EMPTY_RECORD = {"state": "running", "pid": 0, "code": 0, "oom_killed": False, "reason": ""}
EMPTY_RECORD |= {"started_ns": 0, "finished_ns": 0}


class Surroundings:
    """What a container needs of its machine.

    Attributes:
        loop: the init's.
        own: a descriptor of the machine's namespace of processes.
        cgroups: the machine's groups.
        view: what of the host is hidden and visible.
        log: tells something to whoever looks after the machine.
    """

    def __init__(self, loop: Loop, own: int, groups: cgroups.Cgroups, view: dict, log: Callable[[str], None]):
        self.loop, self.own, self.cgroups, self.view, self.log = loop, own, groups, view, log


class Birth:
    """A child that is to become a program: whether it has, it reports on a socket that closes when it does."""

    def __init__(self, place: Surroundings, namespace: int, become: Callable[[socket.socket], None]):
        self._loop = place.loop
        self._report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.pid = linux.fork_into(namespace, place.own)
        except OSError:
            self._report.close()
            theirs.close()
            raise
        if self.pid == 0:
            child.run(theirs, lambda: become(theirs))
        theirs.close()
        self._report.setblocking(False)
        self.error: str | None = None
        self.terminal = -1

    def wait(self, done: Callable[[], None]) -> None:
        """Calls `done()` when `error` and `terminal` are known."""
        self._loop.watch(self._report.fileno(), READABLE, lambda _: self._hear(done))

    def _hear(self, done: Callable[[], None]) -> None:
        try:
            got = messages.receive(self._report)
        except BlockingIOError:
            return
        except (OSError, messages.BadMessage) as error:
            got = {"error": str(error)}, []
        if got and got[1]:
            self.terminal = got[1][0]
            return
        self.error = got[0].get("error") if got else None
        self._loop.ignore(self._report.fileno())
        self._report.close()
        done()


class Container:
    """A container, from its start until it is forgotten.

    Attributes:
        record: what is told about it; see `Init.containers`.
    """

    def __init__(self, id: str, directory: str, spec: dict, place: Surroundings):
        self.id, self.directory, self.spec, self.place = id, directory, spec, place
        self.record = dict(EMPTY_RECORD)
        self.memory_bytes = int(spec.get("memory_bytes") or 0)
        self.group = cgroups.Group(0, {})
        self.log: LogFile | None = None
        self.files: cgroups.SyntheticFiles | None = None
        self.mount_namespace = ""
        self.on_end: Callable[[Container], None] = lambda _: None
        self._streams: dict[str, int] = {}
        self._stdin = self._terminal = self._held = -1
        self._own_processes = True
        self._taps: dict[str, list[Tap]] = {"stdout": [], "stderr": []}
        self._ended: int | None = None
        self._waiting_for_birth = True
        self._oom_kills = 0

    # ---- start

    def start(self, sandbox: Sandbox, target: Container | None, done: Callable[[str | None], None]) -> None:
        """Starts it; calls `done(None)` when its program runs, or `done(why not)` when nothing of it is left.

        Args:
            sandbox: the Sandbox that it is in.
            target: the container whose processes it is to share.
        """
        pipes: list[int] = []
        try:
            self._prepare()
            become = self._plumbing(sandbox, pipes)
            namespace = self._pid_namespace(sandbox, target)
            self._own_processes = namespace == linux.NEW
            try:
                birth = Birth(self.place, namespace, become)
            finally:
                if namespace >= 0:
                    os.close(namespace)
        except OSError as error:
            messages.close(pipes)
            self._close()
            self._remove_group()
            why = error.strerror or str(error)
            self.remove(lambda: done(why))
            return
        messages.close(pipes)
        self.record |= {"pid": birth.pid, "started_ns": time.time_ns()}
        self.place.loop.on_child(birth.pid, self._exited)
        birth.wait(partial(self._born, birth, done))

    def _prepare(self) -> None:
        rootfs.prepare(self.directory)
        _write_json(f"{self.directory}/spec.json", self.spec)
        self.log = LogFile(self.spec.get("log"), self.place.log)
        self.group = self.place.cgroups.container(self.id, self.memory_bytes)
        if not self.group.version:
            self.files = cgroups.SyntheticFiles(f"{self.directory}/cgroup")
            self.files.limit(self.memory_bytes)
            self.files.used(0)

    def _plumbing(self, sandbox: Sandbox, theirs: list[int]) -> Callable[[socket.socket], None]:
        """Makes the pipes; returns what the child does with them. Its ends of them are added to `theirs`."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        theirs.append(null)
        streams = [null, null, null]
        if not self.spec.get("tty"):
            if self.spec.get("stdin"):
                streams[0], self._stdin = os.pipe()
                theirs.append(streams[0])
            for number, name in ((1, "stdout"), (2, "stderr")):
                self._streams[name], streams[number] = os.pipe()
                theirs.append(streams[number])
        shows = self.group.view() if self.group.version else {"": self.files.directory}
        root = rootfs.Root(self.directory, self.spec, self.place.view, sandbox.shm, shows)
        return partial(_become_container, self.spec, self.group, sandbox, root, streams)

    def _pid_namespace(self, sandbox: Sandbox, target: Container | None) -> int:
        if target is not None:
            return _open_namespace(target.record["pid"], "pid")
        if sandbox.pid == "container":
            return linux.NEW
        return _open_namespace(sandbox.reaper or os.getpid(), "pid")

    def _born(self, birth: Birth, done: Callable[[str | None], None]) -> None:
        self._waiting_for_birth = False
        if birth.error is not None:
            self._failed(birth, done)
            return
        with suppress(OSError):  # it has ended already
            # held open, because the number of a namespace that is gone is given to the next one at once
            self._held = _open_namespace(birth.pid, "mnt")
            self.mount_namespace = os.readlink(f"/proc/self/fd/{self._held}")
        if birth.terminal >= 0:
            self._terminal = birth.terminal
            self._streams = {"stdout": birth.terminal}
        for name, fd in self._streams.items():
            os.set_blocking(fd, False)
            self.place.loop.watch(fd, READABLE, partial(self._pump, name))
        self._write_record()
        done(None)
        if self._ended is not None:
            self._exited(self._ended)

    def _failed(self, birth: Birth, done: Callable[[str | None], None]) -> None:
        if birth.terminal >= 0:
            os.close(birth.terminal)

        def gone(_: int) -> None:
            self._close()
            self._remove_group()
            self.remove(lambda: done(birth.error))

        if self._ended is not None:
            gone(self._ended)
        else:
            self.place.loop.on_child(birth.pid, gone)

    # ---- streams

    def _pump(self, name: str, _: int) -> None:
        try:
            data = os.read(self._streams[name], READ)
        except BlockingIOError:
            return
        except OSError:  # of a terminal that nobody has open any more
            data = b""
        if not data:
            self._end_stream(name)
            return
        self.log.write(name, data)
        for tap in list(self._taps[name]):
            if not tap.write(data):
                self._drop(name, tap)
            elif tap.behind:
                self.place.loop.watch(tap.fd, READABLE | WRITABLE, partial(self._tap_ready, name, tap))

    def _end_stream(self, name: str) -> None:
        fd = self._streams.pop(name)
        self.place.loop.ignore(fd)
        os.close(fd)
        if fd == self._terminal:
            self._terminal = -1
        self.log.end(name)
        if self._ended is not None and not self._streams:
            self._finish()

    def attach(self, stdin: bool) -> tuple[list[str], list[int]]:
        """Names and descriptors of what somebody attached gets; the descriptors are the caller's to close."""
        names, fds = [], []
        for name in ("stdout",) if self.has_terminal else ("stdout", "stderr"):
            ours, theirs = os.pipe()
            names.append(name)
            fds.append(ours)
            tap = Tap(theirs)
            if name not in self._streams:  # the container has closed it
                tap.close()
                continue
            self._taps[name].append(tap)
            # a pipe that cannot be read is "readable" when its other end is closed
            self.place.loop.watch(tap.fd, READABLE, partial(self._tap_ready, name, tap))
        if stdin and self.spec.get("stdin") and (fd := self._take_stdin()) >= 0:
            names.append("stdin")
            fds.append(fd)
        return names, fds

    def _take_stdin(self) -> int:
        if self._terminal >= 0:
            return os.dup(self._terminal)
        if self._stdin < 0:
            return -1
        if not self.spec.get("stdin_once"):
            return os.dup(self._stdin)
        fd, self._stdin = self._stdin, -1  # when its new owner closes it, the container reads the end of its input
        return fd

    def _tap_ready(self, name: str, tap: Tap, events: int) -> None:
        if events & READABLE or not tap.flush():
            self._drop(name, tap)
        elif not tap.behind:
            self.place.loop.watch(tap.fd, READABLE, partial(self._tap_ready, name, tap))

    def _drop(self, name: str, tap: Tap) -> None:
        self._taps[name].remove(tap)
        self.place.loop.ignore(tap.fd)
        tap.close()

    # ---- end

    def _exited(self, code: int) -> None:
        self._ended = code
        if self._waiting_for_birth:
            return
        self._kill_rest()
        if not self._streams:
            self._finish()
        else:
            self.place.loop.later(DRAIN_S, self._finish)

    def _kill_rest(self) -> None:
        """Ends what it started, where that does not end with its first process: in shared processes."""
        if not self.mount_namespace or self._own_processes:
            return
        for _ in range(20):
            pids = cgroups.processes_of({self.mount_namespace})[self.mount_namespace]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.place.loop.reap()
            if not pids:
                return

    def _finish(self) -> None:
        if self.record["state"] == "exited":
            return
        self._note_oom_kills()
        self._close()
        self._remove_group()
        self.record |= {"state": "exited", "code": self._ended, "finished_ns": time.time_ns()}
        self._write_record()
        self.on_end(self)

    def _close(self) -> None:
        for fd in self._streams.values():
            self.place.loop.ignore(fd)
            os.close(fd)
        self._streams, self._terminal = {}, -1
        for fd in (self._stdin, self._held):
            if fd >= 0:
                os.close(fd)
        self._stdin = self._held = -1
        for name, taps in self._taps.items():
            for tap in list(taps):
                self._drop_when_read(name, tap)
        if self.log:
            self.log.close()

    def _drop_when_read(self, name: str, tap: Tap) -> None:
        """What somebody attached has not read yet, it may still read: the pipe's end comes after it."""
        if not tap.behind:
            self._drop(name, tap)
            return

        def ready(events: int) -> None:
            if events & READABLE or not tap.flush() or not tap.behind:
                self._drop(name, tap)

        self.place.loop.watch(tap.fd, READABLE | WRITABLE, ready)

    def _remove_group(self, attempts: int = 50) -> None:
        if not self.group.remove() and attempts:
            self.place.loop.later(0.1, lambda: self._remove_group(attempts - 1))

    def remove(self, done: Callable[[], None]) -> None:
        """Removes its files, in a process of its own: there may be many."""
        paths = [path for name in OURS if os.path.lexists(path := f"{self.directory}/{name}")]

        def removed(_: int) -> None:
            with suppress(OSError):  # the runtime keeps files there
                os.rmdir(self.directory)
            done()

        pid = os.fork()
        if pid == 0:
            try:
                linux.signals_as_new()
                os.execv(child.find_program("rm", child.PATH), ["rm", "-rf", "--one-file-system", "--", *paths])
            finally:
                os._exit(127)
        self.place.loop.on_child(pid, removed)

    # ---- while it runs

    @property
    def running(self) -> bool:
        """Whether it has started and has not ended."""
        return self.record["state"] == "running"

    @property
    def has_terminal(self) -> bool:
        return bool(self.spec.get("tty"))

    def signal(self, number: int) -> None:
        """Sends a signal to its first process, if there still is one."""
        if self._ended is None and self.record["pid"]:
            with suppress(ProcessLookupError):
                os.kill(self.record["pid"], number)

    def limit(self, memory_bytes: int) -> None:
        """Changes its memory limit; 0: none.

        Raises:
            OSError: the kernel refuses, as when more is in use.
        """
        self.group.limit(memory_bytes)
        self.memory_bytes = self.spec["memory_bytes"] = memory_bytes
        _write_json(f"{self.directory}/spec.json", self.spec)
        if self.files:
            self.files.limit(memory_bytes)

    def look_at_memory(self, pids: list[int]) -> None:
        """Ends it when it uses more memory than it may. All of it, as kubelets ask for since Kubernetes 1.28.

        Args:
            pids: its processes; only used without cgroups.
        """
        if self.group.version:
            if self._note_oom_kills():
                self.signal(signal.SIGKILL)
            return
        used = cgroups.memory_of(pids, self.memory_bytes)
        if self.files:
            self.files.used(used)
        if self.memory_bytes and used > self.memory_bytes:
            self.record["oom_killed"] = True
            self.signal(signal.SIGKILL)

    def _note_oom_kills(self) -> bool:
        if not self.memory_bytes:
            return False
        before, self._oom_kills = self._oom_kills, self.group.oom_kills()
        self.record["oom_killed"] |= self._oom_kills > before
        return self._oom_kills > before

    def execute(self, spec: dict, fds: list[int]) -> Birth:
        """Forks a further process into it.

        Args:
            spec: as Init.exec takes.
            fds: stdin, stdout and stderr; none with a terminal.

        Raises:
            OSError: it is ending just now.
        """
        keep = ("cwd", "uid", "gid", "groups", "umask", "no_new_privs", "privileged", "add", "drop", "rlimits")
        keep = (*keep, "oom_score_adj")
        whole = {name: self.spec.get(name) for name in keep} | spec
        whole["env"] = {**(self.spec.get("env") or {}), **(spec.get("env") or {})}
        namespaces = []
        try:
            for name, flag in (*NAMESPACES.items(), ("pid", 0)):
                namespaces.append((_open_namespace(self.record["pid"], name), flag))
            become = partial(_become_exec, whole, self.group, namespaces[:-1], fds)
            return Birth(self.place, namespaces[-1][0], become)
        finally:
            messages.close([fd for fd, _ in namespaces])

    def _write_record(self) -> None:
        try:
            _write_json(f"{self.directory}/record.json", self.record)
        except OSError as error:  # of a full disk
            self.place.log(f"the record of {self.id} is not written: {error.strerror}")


def read_record(directory: str) -> dict | None:
    """What an earlier boot left of a container; None when that never ran.

    What ran then was lost with its machine: it is told as containerd tells it, and noted so.
    """
    path = f"{directory}/record.json"
    if not os.path.exists(path):
        return None
    try:
        with open(path) as file:
            record = {**EMPTY_RECORD, **json.load(file)}
    except (OSError, ValueError, TypeError):  # half written when the power went
        record = dict(EMPTY_RECORD)
    if record["state"] != "exited":
        record |= {"state": "exited", "code": 255, "reason": "Unknown", "finished_ns": time.time_ns()}
        with suppress(OSError):  # of a full disk
            _write_json(path, record)
    return record


def _become_container(
    spec: dict, group: cgroups.Group, sandbox: Sandbox, root: rootfs.Root, streams: list[int], report: socket.socket
) -> None:
    child.use_streams(*streams)
    group.join()
    for name in sandbox.own:
        fd = os.open(sandbox.namespace(name), os.O_RDONLY | os.O_CLOEXEC)
        linux.setns(fd, NAMESPACES[name])
        os.close(fd)
    root.enter()
    if spec.get("tty"):
        child.use_terminal(report, spec.get("uid") or 0)
    child.become(spec)


def _become_exec(
    spec: dict, group: cgroups.Group, namespaces: list[tuple[int, int]], streams: list[int], report: socket.socket
) -> None:
    if streams:
        child.use_streams(*streams)
    group.join()
    for fd, flag in namespaces:
        linux.setns(fd, flag)
    if not streams:
        child.use_terminal(report, spec.get("uid") or 0)
    child.become(spec)


def _open_namespace(pid: int, name: str) -> int:
    return os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def _write_json(path: str, content: dict) -> None:
    with open(f"{path}.new", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.new", path)

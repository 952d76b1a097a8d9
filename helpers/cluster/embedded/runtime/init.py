"""PID 1 of a machine: `python -m helpers.cluster.embedded.runtime.init machine.json`.

It has its own namespaces of processes and mounts, so its end is the machine's end. It starts the machine's services
(runtime, kubelet) again when they end; makes sandboxes and containers for the runtime, over a socket; pumps what
containers write into their logs; and knows, being their parent, how they ended. A runtime that dies loses nothing.

It has one thread, waits for nothing but its selector, and keeps its imports few: there is one for each machine.

machine.json:
    name, hostname: of the machine.
    run: a directory that does not outlive the machine. disk: one that does; `sandboxes` and `containers` are in it.
    socket: where the runtime asks. See init_client.py.
    cgroup: name of the machine's group below each controller, or null: then /proc is watched.
    services: [{"name", "argv", "env", "log", "after"}, …]; `after` is a path that must be there first.
    view: {"hidden": […], "visible": […]}: host directories that containers find empty; paths that they see read-only.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from helpers.cluster.embedded.runtime import cgroups, child, linux, messages
from helpers.cluster.embedded.runtime.container import Birth, Container, Surroundings, read_record
from helpers.cluster.embedded.runtime.loop import READ, WRITE, Loop
from helpers.cluster.embedded.runtime.sandbox import BadSandbox, Sandbox, remove_files
from helpers.cluster.embedded.runtime.services import Service

LOOK_AT_MEMORY_S = 1.0
GRACE_S = 3.0  # for services and containers when the machine is switched off
MOST_UNREAD = 10_000  # messages for a client that does not read; then it is given up
ENDING = (signal.SIGTERM, signal.SIGINT)  # switch the machine off
ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")

Answer = Callable[..., None]  # called as answer({"…": …}, fds)
Refuse = Callable[[str, str], None]  # called as refuse(kind of error, sentence)


def log(text: str) -> None:
    """Writes a line to the machine's own log."""
    with suppress(OSError):  # of a full disk: the machine goes on
        os.write(1, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n".encode())


class Refused(Exception):
    """A request cannot be fulfilled. `kind` is the name of an exception of init_client.py."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class Client:
    """A connection to the socket. What it does not read never holds up the init."""

    def __init__(self, sock: socket.socket, loop: Loop, requested: Callable[[Client, dict, list[int]], None]):
        self.sock, self._loop, self._requested = sock, loop, requested
        self._unsent: deque[tuple[dict, list[int]]] = deque()
        self.on_close: Callable[[], None] = lambda: None
        self.open = True
        sock.setblocking(False)
        loop.watch(sock.fileno(), READ, self._ready)

    def send(self, message: dict, fds: list[int] | tuple[int, ...] = ()) -> None:
        """Sends a message as soon as the client reads it, and closes the descriptors."""
        if not self.open or len(self._unsent) >= MOST_UNREAD:
            messages.close(fds)
            self.close()
            return
        self._unsent.append((message, list(fds)))
        self._flush()

    def close(self) -> None:
        """Ends the connection."""
        if not self.open:
            return
        self.open = False
        self._loop.ignore(self.sock.fileno())
        self.sock.close()
        for _, fds in self._unsent:
            messages.close(fds)
        self._unsent.clear()
        self.on_close()

    def _flush(self) -> None:
        while self._unsent:
            message, fds = self._unsent[0]
            try:
                messages.send(self.sock, message, tuple(fds))
            except BlockingIOError:
                self._loop.watch(self.sock.fileno(), READ | WRITE, self._ready)
                return
            except OSError:
                self.close()
                return
            self._unsent.popleft()
            messages.close(fds)
        self._loop.watch(self.sock.fileno(), READ, self._ready)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & READ and self.open:
            self._receive()

    def _receive(self) -> None:
        try:
            got = messages.receive(self.sock)
        except BlockingIOError:
            return
        except messages.BadMessage as error:
            self.send({"id": None, "error": {"kind": "InitError", "message": f"not understood: {error}"}})
            return
        except OSError:
            got = None
        if got is None:
            self.close()
        else:
            self._requested(self, *got)


class Executed:
    """A process that a client started in a container.

    Attributes:
        told: whether the client knows of it; before, its end is not told.
        code: its exit code, when it has ended.
    """

    def __init__(self, pid: int, client: Client, number: int):
        self.pid, self.client, self.number = pid, client, number
        self.told, self.code = False, None

    def signal(self, number: int) -> None:
        """Sends its process group a signal, if it runs."""
        if self.code is None:
            _kill(self.pid, number)  # it may not have made its group yet
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class Machine:
    """The state of a machine, and what its socket can be asked for."""

    def __init__(self, spec: dict):
        self.spec, self.disk = spec, spec["disk"]
        self.loop = Loop(log)
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, Container] = {}
        self.lost: dict[str, dict] = {}  # records of before this boot
        self.executed: dict[int, Executed] = {}
        self.numbers = itertools.count(1)
        self.clients: list[Client] = []
        self.busy: set[str] = set()  # sandboxes and containers that are being made or removed
        self.stopping = False
        own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        view = spec.get("view") or {}
        hidden = [*view.get("hidden", []), self.disk, spec["run"]]
        view = {"hidden": [os.path.realpath(path) for path in hidden], "visible": view.get("visible", [])}
        self.groups = cgroups.Cgroups(spec.get("cgroup"))
        self.place = Surroundings(self.loop, own, self.groups, view, log)
        self.services = [Service(service, self.loop, log) for service in spec.get("services", [])]

    def run(self) -> None:
        """Until the machine is switched off by SIGTERM."""
        self._read_records()
        listener = self._listen()
        self.loop.watch(listener.fileno(), READ, lambda _: self._accept(listener))
        for number in ENDING:
            self.loop.on_signal(number, self.switch_off)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        self.loop.later(LOOK_AT_MEMORY_S, self._look_at_memory)
        for service in self.services:
            service.start()
        log(f"machine {self.spec['name']} is up; memory is watched by {self._watched_by()}")
        self.loop.run()
        listener.close()
        for sandbox in self.sandboxes.values():
            sandbox.remove()
        self.groups.remove()
        os.unlink(self.spec["socket"])
        log(f"machine {self.spec['name']} is off")

    def _watched_by(self) -> str:
        return f"cgroups of version {self.groups.version}" if self.groups.version else "adding up /proc"

    def _read_records(self) -> None:
        for kind in ("sandboxes", "containers"):
            os.makedirs(f"{self.disk}/{kind}", exist_ok=True)
        for name in os.listdir(f"{self.disk}/containers"):
            directory = f"{self.disk}/containers/{name}"
            if record := read_record(directory):
                self.lost[name] = record
            else:
                Container(name, directory, {}, self.place).remove(lambda: None)

    def _listen(self) -> socket.socket:
        os.makedirs(os.path.dirname(self.spec["socket"]), mode=0o700, exist_ok=True)
        if os.path.lexists(self.spec["socket"]):
            os.unlink(self.spec["socket"])
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.umask(0o177)
        listener.bind(self.spec["socket"])
        os.umask(0o022)
        listener.listen(16)
        listener.setblocking(False)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:  # it is gone already
            return
        client = Client(sock, self.loop, self._requested)
        client.on_close = partial(self._client_gone, client)
        self.clients.append(client)

    def _client_gone(self, client: Client) -> None:
        self.clients.remove(client)
        for executed in self.executed.values():
            if executed.client is client:
                executed.signal(signal.SIGKILL)

    # ---- requests

    def _requested(self, client: Client, message: dict, fds: list[int]) -> None:
        number = message.get("id")

        def answer(result: dict | None = None, fds: list[int] | tuple[int, ...] = ()) -> None:
            client.send({"id": number, "ok": result or {}}, fds)

        def refuse(kind: str, sentence: str) -> None:
            client.send({"id": number, "error": {"kind": kind, "message": sentence}})

        try:
            op = message.get("op")
            if not isinstance(op, str) or op not in OPERATIONS:
                raise Refused("InitError", f"{op!r:.50} is no operation")
            if self.stopping and op in ("make_sandbox", "start", "exec"):
                raise Refused("InitError", "the machine is being switched off")
            OPERATIONS[op](self, client, message, fds, answer, refuse)
        except Refused as error:
            refuse(error.kind, str(error))
        except BadSandbox as error:
            refuse("InitError", str(error))
        except OSError as error:
            refuse("InitError", error.strerror or str(error))
        except Exception as error:  # a request that is not of the agreed form
            refuse("InitError", f"not understood: {type(error).__name__}: {error}")
        finally:
            messages.close(fds)

    def make_sandbox(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        name = self._new_name(message, self.sandboxes)
        sandbox = Sandbox(f"{self.disk}/sandboxes/{name}", message["spec"])
        if sandbox.pid == "pod":
            sandbox.start_reaper(self.place.own)
        self.busy.add(name)

        def made(error: str | None) -> None:
            self.busy.discard(name)
            if error is None:
                self.sandboxes[name] = sandbox
                answer()
            else:
                sandbox.remove()
                refuse("InitError", f"the sandbox cannot be made: {error}")

        self._in_child(sandbox.make, made)

    def remove_sandbox(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        name = _name(message)
        if name in self.busy:
            raise Refused("InitError", f'sandbox "{name}" is being made or removed')
        inside = [id for id, made in self.containers.items() if made.running and made.spec.get("sandbox") == name]
        if inside:
            raise Refused("InitError", f'sandbox "{name}" still has the running container "{inside[0]}"')
        if sandbox := self.sandboxes.pop(name, None):
            sandbox.end_reaper()
        self.busy.add(name)

        def removed(error: str | None) -> None:
            self.busy.discard(name)
            if error is None:
                answer()
            else:
                refuse("InitError", f"the sandbox cannot be removed: {error}")

        self._in_child(partial(remove_files, f"{self.disk}/sandboxes/{name}"), removed)

    def start(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        name, spec = self._new_name(message, self.containers, self.lost), message["spec"]
        _check_spec(spec)
        sandbox = self.sandboxes.get(spec.get("sandbox"))
        if sandbox is None:
            raise Refused("NotFound", f'there is no sandbox "{spec.get("sandbox")}"')
        target = self._running(spec["pid_target"]) if spec.get("pid_target") else None
        container = Container(name, f"{self.disk}/containers/{name}", spec, self.place)
        container.on_end = self._container_ended
        self.containers[name] = container
        self.busy.add(name)

        def started(error: str | None) -> None:
            self.busy.discard(name)
            if error is None:
                answer({"pid": container.record["pid"], "started_ns": container.record["started_ns"]})
            else:
                del self.containers[name]
                refuse("StartError", error)

        container.start(sandbox, target, started)

    def exec(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        container, spec = self._running(_name(message)), message["spec"]
        _check_spec(spec)
        if len(fds) != (0 if spec.get("tty") else 3):
            raise Refused("InitError", "stdin, stdout and stderr are needed, and with a terminal none of them")
        try:
            birth = container.execute(spec, fds)
        except OSError:
            raise Refused("InitError", f'container "{container.id}" is not running') from None
        executed = Executed(birth.pid, client, next(self.numbers))
        self.executed[executed.number] = executed
        self.loop.on_child(birth.pid, partial(self._exec_ended, executed))
        birth.wait(partial(self._exec_born, executed, birth, answer, refuse))

    def _exec_born(self, executed: Executed, birth: Birth, answer: Answer, refuse: Refuse) -> None:
        terminal = [birth.terminal] if birth.terminal >= 0 else []
        if birth.error is not None:
            messages.close(terminal)
            del self.executed[executed.number]
            refuse("StartError", birth.error)
            return
        executed.told = True
        answer({"exec": executed.number, "pid": executed.pid}, terminal)
        if executed.code is not None:
            self._tell_exec_ended(executed)

    def _exec_ended(self, executed: Executed, code: int) -> None:
        executed.code = code
        if executed.told:
            self._tell_exec_ended(executed)

    def _tell_exec_ended(self, executed: Executed) -> None:
        del self.executed[executed.number]
        if executed.client.open:
            executed.client.send({"event": "exec_exit", "exec": executed.number, "code": executed.code})

    def exec_kill(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        executed = self.executed.get(message["exec"])
        if executed and executed.client is client:
            executed.signal(_signal_number(message))
        answer()

    def signal(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        self._known(_name(message)).signal(_signal_number(message))
        answer()

    def attach(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        container = self._running(_name(message))
        names, ends = container.attach(bool(message.get("stdin")))
        answer({"fds": names, "tty": container.has_terminal}, ends)

    def reopen_log(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        self._running(_name(message)).log.reopen()
        answer()

    def resize(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        self._running(_name(message)).limit(int(message.get("memory_bytes") or 0))
        answer()

    def usage(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        asked = [self.containers[name] for name in message["names"] if name in self.containers]
        running = [made for made in asked if made.running and made.id not in self.busy]
        spaces = {made.mount_namespace for made in running if not made.group.version}
        pids = cgroups.processes_of(spaces) if spaces else {}
        answer(
            {
                "usage": {
                    made.id: made.group.usage() or cgroups.usage_of(pids.get(made.mount_namespace, []))
                    for made in running
                }
            }
        )

    def list_containers(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        here = {name: made.record for name, made in self.containers.items() if name not in self.busy}
        answer({"containers": self.lost | here})

    def list_sandboxes(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        answer({"sandboxes": list(self.sandboxes)})

    def list_services(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        told = ("name", "pid", "started_ns", "restarts")
        answer({"services": [{name: getattr(service, name) for name in told} for service in self.services]})

    def forget(self, client: Client, message: dict, fds: list[int], answer: Answer, refuse: Refuse) -> None:
        name = _name(message)
        container = self.containers.get(name)
        if name in self.busy or (container and container.running):
            raise Refused("InitError", f'container "{name}" is still running')
        if container is None:
            if self.lost.pop(name, None) is None:
                answer()
                return
            container = Container(name, f"{self.disk}/containers/{name}", {}, self.place)
        self.busy.add(name)

        def gone() -> None:
            self.busy.discard(name)
            self.containers.pop(name, None)
            answer()

        container.remove(gone)

    def _new_name(self, message: dict, *taken: dict) -> str:
        name = _name(message)
        if name in self.busy or any(name in names for names in taken):
            raise Refused("InitError", f'"{name}" exists already')
        return name

    def _known(self, name: str) -> Container:
        container = self.containers.get(name)
        if container is None:
            raise Refused("NotFound", f'there is no container "{name}"')
        return container

    def _running(self, name: str) -> Container:
        container = self._known(name)
        if name in self.busy or not container.running:
            raise Refused("InitError", f'container "{name}" is not running')
        return container

    # ---- what happens by itself

    def _container_ended(self, container: Container) -> None:
        for client in list(self.clients):
            client.send({"event": "exit", "name": container.id, "record": container.record})

    def _look_at_memory(self) -> None:
        self.loop.later(LOOK_AT_MEMORY_S, self._look_at_memory)
        looked_at = [
            made
            for name, made in self.containers.items()
            if made.running and name not in self.busy and (made.files or made.memory_bytes)
        ]
        spaces = {made.mount_namespace for made in looked_at if made.files}
        pids = cgroups.processes_of(spaces) if spaces else {}
        for container in looked_at:
            container.look_at_memory(pids.get(container.mount_namespace, []))

    def _in_child(self, task: Callable[[], None], done: Callable[[str | None], None]) -> None:
        """Runs what may take long, or changes namespaces, in a child; then calls `done(what went wrong or None)`."""

        def run(report: socket.socket) -> None:
            try:
                task()
            except BadSandbox as error:
                raise child.CannotRun(str(error)) from None
            os._exit(0)

        birth = Birth(self.place, self.place.own, run)
        birth.wait(lambda: done(birth.error))

    def switch_off(self) -> None:
        """The orderly end: services and containers are asked, then killed."""
        if self.stopping:
            return
        self.stopping = True
        log(f"machine {self.spec['name']} is being switched off")
        for service in self.services:
            service.end()
        for container in self.containers.values():
            container.signal(signal.SIGTERM)
        self._await_end(time.monotonic() + GRACE_S)

    def _await_end(self, deadline: float) -> None:
        running = any(made.running for made in self.containers.values())
        if not running and not any(service.pid for service in self.services):
            _kill(-1, signal.SIGKILL)  # whatever else there is: this process is not in it
            self.loop.stop()
            return
        if time.monotonic() > deadline:
            _kill(-1, signal.SIGKILL)
        self.loop.later(0.05, lambda: self._await_end(deadline))


OPERATIONS: dict[str, Callable] = {
    name: getattr(Machine, name)
    for name in (
        *("make_sandbox", "remove_sandbox", "start", "exec", "exec_kill", "signal", "attach", "reopen_log", "resize"),
        *("usage", "forget"),
    )
}
OPERATIONS |= {name: getattr(Machine, f"list_{name}") for name in ("containers", "sandboxes", "services")}


def _name(message: dict) -> str:
    name = message.get("name")
    if (
        not isinstance(name, str)
        or not name
        or not ID_LETTERS.issuperset(name)
        or name.strip(".") == ""
        or len(name) > 128
    ):
        raise Refused("InitError", f"{name!r:.50} cannot be the name of a sandbox or container")
    return name


def _signal_number(message: dict) -> int:
    number = message.get("signal")
    if not isinstance(number, int) or not 0 < number < signal.NSIG:
        raise Refused("InitError", f"{number!r:.50} is no signal")
    return number


def _check_spec(spec: dict) -> None:
    argv, env = spec.get("argv"), spec.get("env") or {}
    texts = [*(argv if isinstance(argv, list) else [None]), *env.keys(), *env.values()]
    if not argv or any(not isinstance(text, str) or "\0" in text for text in texts):
        raise Refused("StartError", "the command and its environment must be texts, and there must be a command")


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


# ---- the start of a machine


def main() -> int:
    """Runs a machine until it is switched off; as another process than PID 1, makes a PID 1 and waits for it."""
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until somebody heeds them: a PID 1 would never hear of them
    if os.getpid() != 1:
        linux.unshare(linux.CLONE_NEWPID)
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return _stand_by(pid)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if not os.path.exists(f"/proc/{parent}"):  # it ended before this was set; /proc is still the old one
            return 1
    _own_files(spec)
    Machine(spec).run()
    return 0


def _own_files(spec: dict) -> None:
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC)
    linux.mount(None, "/", flags=linux.MS_REC | linux.MS_PRIVATE)  # nothing gets out of this machine …
    linux.mount(None, "/", flags=linux.MS_REC | linux.MS_SHARED)  # … and volumes can get into containers (rslave)
    linux.sethostname(spec["hostname"])
    nothing = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", "/proc", "proc", nothing | linux.MS_NOEXEC)
    linux.mount("tmpfs", "/var/log", "tmpfs", nothing, "mode=755")
    linux.mount("tmpfs", "/dev/shm", "tmpfs", nothing, "mode=1777")
    os.makedirs(spec["run"], mode=0o755, exist_ok=True)
    os.makedirs(spec["disk"], mode=0o711, exist_ok=True)
    os.chdir("/")
    os.umask(0o022)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))


def _stand_by(pid: int) -> int:
    """Passes signals on to PID 1 and has its exit status. If this process is killed, so is PID 1."""
    for number in ENDING:
        signal.signal(number, lambda number, _: _kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

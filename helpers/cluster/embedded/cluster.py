"""The embedded cluster as notebooks and the command line use it: up, status, logs, down, and its machines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import psutil

from helpers import versions
from helpers.cluster.embedded import control, controlplane, kubeconfig, kuberay, machines, pki
from helpers.cluster.embedded.api import Api, ApiError
from helpers.cluster.embedded.boot import Boot
from helpers.cluster.embedded.layout import DEFAULT_MACHINES, Layout, Machine
from helpers.cluster.embedded.status import Component, Status
from helpers.errors import CourseError
from helpers.proc import namespace_pids
from helpers.state import course_root, try_lock, write_private
from helpers.wait import wait_until

PORT = 26443  # below the ports that a system gives to outgoing connections, and known for nothing else
READY_S = 180.0  # a first start on a busy machine with slow disks; a usual one takes seconds
DEFINITIONS_S = 600.0  # KubeRay's, once: 8 s where nothing else runs, minutes where much does
BOOT_S = 30.0  # namespaces and mounts: parts of a second
STOP_S = 60.0
ASK_S = 10.0
DISK_BYTES = 512 * 1024**2
HOPELESS = 5  # a component that has ended so often before it was ready once will not make it
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"  # where nft is; not on every user's PATH


@dataclass(frozen=True)
class EmbeddedCluster:
    """Kubernetes without a container engine.

    Attributes:
        layout: where its files are.

    Any process of the same user may use it: what runs is found through a socket among the files.

    Example:
        >>> cluster = EmbeddedCluster()
        >>> cluster.up()                    # doctest: +SKIP
        >>> cluster.down()                  # doctest: +SKIP
    """

    layout: Layout

    def __init__(self, layout: Layout | None = None):
        object.__setattr__(self, "layout", layout or Layout.usual())

    # ---- up ----------------------------------------------------------------------------------------------------------

    def up(
        self, machines_wanted: Sequence[Machine] | None = None, *, kuberay_wanted: bool | None = None, wait: bool = True
    ) -> Status:
        """Start the cluster, or find that it runs; boot the machines that are declared and do not run.

        Args:
            machines_wanted: machines to declare. Left away: those declared before, or `DEFAULT_MACHINES` in a new
                cluster.
            kuberay_wanted: whether KubeRay belongs to the cluster. Left away: as declared before, or yes in a new one.
                Its definitions take the first start 12 s longer.
            wait: return when everything is ready; otherwise as soon as the API server answers.

        Returns:
            The status. Its remarks say what differs from before: another port, new certificates, that it ran already.

        Raises:
            CourseError: if this machine lacks something, or a component does not start.
        """
        self._check_machine()
        self._make_root()
        with_kuberay = self._with_kuberay() if kuberay_wanted is None else kuberay_wanted
        manifests = self._kuberay_manifests() if with_kuberay else {}
        wanted = DEFAULT_MACHINES if machines_wanted is None and not self.layout.machines.exists() else machines_wanted
        lock = self._lock()
        if lock is None:
            remarks = ["The cluster ran already."]
            self._declare_kuberay(with_kuberay)
            for machine in wanted or ():
                self.add_machine(machine, wait=False)
        else:
            with lock:
                self._declare_kuberay(with_kuberay)
                for machine in wanted or ():
                    machines.declare(self.layout, machine)
                remarks = self._boot(lock)
        self._become_ready(wait, manifests)
        return replace(self.status(), remarks=tuple(remarks))

    def _check_machine(self) -> None:
        if sys.platform != "linux":
            raise CourseError(
                "The embedded cluster needs Linux.",
                "Use a Linux machine or virtual machine (on Windows: `wsl --install`), or a kind cluster.",
            )
        if not self._nft():
            raise CourseError(
                "The program nft is missing, by which the cluster's Services are made.",
                "Run `sudo apt-get install -y nftables`.",
            )
        if self.layout.root.is_relative_to("/run"):
            raise CourseError(
                "The cluster cannot keep its files below /run, which it has one of its own of.",
                "Set XDG_STATE_HOME to a directory on a disk.",
            )

    def _make_root(self) -> None:
        root = self.layout.root
        try:
            for directory in (root, self.layout.configs, self.layout.logs):
                directory.mkdir(parents=True, exist_ok=True)
            root.chmod(0o700)
            free = shutil.disk_usage(root).free
        except OSError as error:
            raise CourseError(
                f"The cluster's directory {root} cannot be written: {error.strerror}.",
                "Make it writable, or set XDG_STATE_HOME to a directory that is.",
            ) from None
        if free < DISK_BYTES:
            raise CourseError(
                f"{free // 1024**2} MiB are free at {root}, and the cluster needs {DISK_BYTES // 1024**2}.",
                "Free some space there, or set XDG_STATE_HOME to a directory on another disk.",
            )

    def _lock(self) -> IO | None:
        """The lock that a running cluster holds; None if one runs. Another `course up` at work is waited for."""
        lock = open(self.layout.root / "lock", "a")  # noqa: SIM115 - the caller closes it

        def free_or_running() -> bool:
            if try_lock(lock):
                return True
            running = self._connection()
            if running:
                running.close()
                lock.close()
            assert running, "another `course up` or `course down` is at work"
            return True

        try:
            wait_until(free_or_running, STOP_S, what="the other command")
        except BaseException:
            lock.close()
            raise
        return None if lock.closed else lock

    def _boot(self, lock: IO) -> list[str]:
        """Write all files and start the supervisor."""
        machines.remove_cgroups(self.layout.id)  # of one that was killed
        listener, remarks = self._listener()
        with listener:
            port = listener.getsockname()[1]
            keys = pki.Pki(self.layout.pki)
            declared = machines.declared(self.layout)
            is_new = not keys.key(pki.CA).exists()
            made = keys.ensure([*pki.CERTIFICATES, *machines.certificates(list(declared.values()))])
            if set(made) & {c.name for c in pki.CERTIFICATES} and not is_new:
                remarks.append("Certificates were about to end, or of another time: new ones were made.")
            self._write_configs(keys, port)
            writer, inside = self._writer(), self.layout.inside
            boot = Boot(
                root=self.layout.root,
                env=self._env(),
                nft=self._nft(),
                components=controlplane.components(
                    inside, pki.Pki(inside.pki), self._binary, self._python, listener.fileno()
                ),
                init=(*self._python, "helpers.cluster.embedded.runtime.init"),
                machines_after=controlplane.API,
                machines=tuple(map(writer.write, declared.values())),
            )
            self._start_supervisor(boot, lock, listener)
        return remarks

    def _write_configs(self, keys: pki.Pki, port: int) -> None:
        """What the components read, and the learner's kubeconfig."""
        inside = self.layout.inside
        for user in controlplane.USERS:
            text = kubeconfig.by_paths(pki.Pki(inside.pki), user, controlplane.SERVER)
            write_private(controlplane.kubeconfig(self.layout, user), text.encode())
        text = kubeconfig.by_value(keys, pki.ADMIN.name, f"https://127.0.0.1:{port}")
        write_private(self.layout.kubeconfig, text.encode())
        controlplane.corefile(self.layout).write_text(controlplane.corefile_text(inside))
        self._writer().write_shared()

    def _start_supervisor(self, boot: Boot, lock: IO, listener: socket.socket) -> None:
        boot_file = self.layout.configs / "boot.json"
        write_private(boot_file, boot.as_text().encode())
        log = self.layout.logs / "supervisor.log"
        reader, writer = os.pipe()
        with open(reader, "rb") as report, open(log, "ab") as output:
            try:
                process = subprocess.Popen(
                    [*self._python, "helpers.cluster.embedded.supervisor", boot_file, str(lock.fileno()), str(writer)],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", env=boot.env,
                    pass_fds=(lock.fileno(), writer, listener.fileno()), start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(writer)
            told = report.read() if select.select([report], [], [], BOOT_S)[0] else b""
            process.wait()  # it has split off what goes on
        if told == b"[]":
            return
        if told:
            raise CourseError(*json.loads(told))
        raise CourseError("The cluster's first process did not start.", f"See the end of {log}, and report it.")

    def _listener(self) -> tuple[socket.socket, list[str]]:
        """The socket on the host's loopback, at the port of last time if that is free."""
        try:
            last = int((self.layout.root / "port").read_text())
        except (OSError, ValueError):
            last = 0
        remarks = []
        for port in (last or PORT, 0):
            try:
                listener = socket.create_server(("127.0.0.1", port), backlog=128)
                break
            except OSError:
                if last:
                    remarks.append(f"Port {port} is taken by another program, so the API server has another one now.")
        (self.layout.root / "port").write_text(str(listener.getsockname()[1]))
        return listener, remarks

    def _become_ready(self, wait: bool, manifests: Mapping[str, Path]) -> None:
        api = self._api()
        self._await(lambda: self._look({controlplane.API, controlplane.FORWARDER}), "the API server")
        for collection, thing in controlplane.objects():
            self._await(lambda c=collection, t=thing: api.apply(c, t) or True, "the cluster's first objects")
        if manifests:
            self._add_kuberay(api, manifests)
        if not wait:
            return
        self._await(lambda: self._look(None), "the cluster")
        self._await(lambda: _has_service_account(api), "the default ServiceAccount")
        for name in machines.declared(self.layout):
            self._await(lambda n=name: self._is_machine_ready(api, n), f"the Kubernetes node {name}")

    def _with_kuberay(self) -> bool:
        """Whether KubeRay is declared to belong to the cluster."""
        file = self.layout.declared
        return json.loads(file.read_text())["kuberay"] if file.exists() else True

    def _declare_kuberay(self, wanted: bool) -> None:
        if not self.layout.declared.exists() or wanted != self._with_kuberay():
            write_private(self.layout.declared, json.dumps({"kuberay": wanted}).encode())

    def _add_kuberay(self, api: Api, manifests: Mapping[str, Path]) -> None:
        """The definitions first: for a kind that is not there, the operator looks again only after ten seconds."""
        is_up = lambda: self._look({controlplane.API, controlplane.FORWARDER})  # noqa: E731 - else it may have ended
        install = lambda: is_up() and kuberay.install(api, manifests)  # noqa: E731
        self._await(install, "KubeRay's custom resource definitions", DEFINITIONS_S)
        # the API server is busy enough without being asked ten times a second
        self._await(lambda: is_up() and kuberay.is_served(api), "the kinds of KubeRay", DEFINITIONS_S, every_s=0.5)
        self._ask(op="add_component", component=_as_json(kuberay.operator(self.layout.inside, self._binary)))

    def _await(
        self, predicate: Callable[[], bool], what: str, timeout_s: float = READY_S, every_s: float = 0.1
    ) -> None:
        def ask() -> bool:
            try:
                return predicate()
            except (OSError, ApiError) as error:
                raise AssertionError(str(error)) from error

        fix = "Run `course status` to see which component is in the way, and `course logs COMPONENT` to see why."
        wait_until(ask, timeout_s, what=what, fix=fix, every_s=every_s)

    def _look(self, names: set[str] | None) -> bool:
        """Whether the named components are ready (None: all, and the machines).

        Raises:
            AssertionError: with those that are not, and do not wait for others.
            CourseError: if one of all will not make it.
        """
        components = self._rows()
        for component in components:
            if component.state != "ready" and component.restarts >= HOPELESS:
                raise self._hopeless(component.name)
            if component.state == "lost":
                raise CourseError(
                    f"The machine {component.name} ended as soon as it had booted: {self._last_line(component.name)}",
                    f"Run `course logs {component.name}.init`, and report what it says.",
                )
        if not components:
            last = self._last_line("supervisor")
            raise CourseError(f"The cluster ended by itself; it says: {last}", "Run `course up` again.")
        missing = [c for c in components if not c.is_ready and c.state != "no machine"]
        if names is not None and names.isdisjoint(c.name for c in missing):
            return True
        assert not missing, ", ".join(f"{c.name} is {c.state}" for c in missing if c.state != "waiting")
        return True

    def _hopeless(self, name: str) -> CourseError:
        return CourseError(
            f"{name} ends again and again; it says: {self._last_line(name)}",
            f"Run `course logs {name}` to see more. `course down --wipe` begins anew, without the cluster's objects.",
        )

    def _last_line(self, name: str) -> str:
        for file in (self.layout.logs / f"{name}.log", self.layout.logs / f"{name}.init.log"):
            with contextlib.suppress(OSError, IndexError):
                return file.read_text(errors="replace").splitlines()[-1].strip()[:300]
        return "nothing."

    def _is_machine_ready(self, api: Api, name: str) -> bool:
        """Whether the Kubernetes node is ready, by word of the kubelet that runs now, not of one before a restart."""
        booted = self._booted(name)
        node = api.get(f"/api/v1/nodes/{name}")
        assert node, "it has not registered"
        ready = next((c for c in node["status"].get("conditions", []) if c["type"] == "Ready"), None)
        assert ready, "it has said nothing of itself"
        assert ready["status"] == "True", f"it says: {ready['message']}"
        assert ready.get("lastHeartbeatTime", "") >= booted, "its kubelet has not reported since it started"
        return True

    def _booted(self, name: str) -> str:
        started = next(m["started"] for m in self._ask(op="status")["machines"] if m["name"] == name)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started))  # as Kubernetes writes times

    # ---- status, logs, down ------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """What runs now. A cluster that is down is no error."""
        rows = tuple(self._rows(full=True))
        has_real_gpus = machines.gpus_declared(self.layout) == "real"
        return Status(rows, self.layout.kubeconfig, self._server() if rows else "", has_real_gpus=has_real_gpus)

    def _rows(self, full: bool = False) -> list[Component]:
        connection = self._connection()
        if connection is None:
            return []
        with connection:
            supervisor = control.supervisor_pid(connection)
            told = control.ask(connection, op="status", memory=full)
        host_pids = _host_pids(supervisor) if full else {}
        now = time.time()
        machines_told = [one for machine in told["machines"] for one in (machine, *machine["services"])]
        return [
            Component(
                name=one["name"],
                state=one["state"],
                version=_version(one["name"]),
                pid=host_pids.get(one["pid"], 0),
                memory_bytes=one.get("pss_bytes", 0),
                restarts=one["restarts"],
                age_s=max(now - one["started"], 0.0) if one["pid"] else 0.0,
            )
            for one in (*told["components"], *machines_told)
        ]

    def logs(self, component: str, follow: bool = False) -> Iterator[str]:
        """The lines of a component's log, oldest first.

        Args:
            component: as in the table of the status, such as `etcd` or `cpu-a.kubelet`; or `supervisor`.
            follow: go on with what is written from now on, until the caller stops.

        Raises:
            CourseError: if there is no such log.
        """
        path = self.layout.logs / f"{component}.log"
        if not path.is_file():
            there = ", ".join(sorted(file.name.removesuffix(".log") for file in self.layout.logs.glob("*.log")))
            raise CourseError(
                f"There is no log of {component}.",
                f"There are logs of: {there}." if there else "Run `course up` first.",
            )
        return _lines(path, follow)

    def down(self, wipe: bool = False) -> bool:
        """Stop everything; nothing of the cluster runs or is mounted afterwards.

        Args:
            wipe: also remove all its files: objects, certificates, logs.

        Returns:
            Whether anything ran.

        Raises:
            CourseError: if it does not end.
        """
        ran = self._stop()
        machines.remove_cgroups(self.layout.id)
        if wipe and self.layout.root.exists():
            self._remove(self.layout.root)
        return ran

    def _stop(self) -> bool:
        connection = self._connection(STOP_S)
        if connection is None:
            return False
        with connection, open(os.pidfd_open(control.supervisor_pid(connection)), "rb") as supervisor:
            try:
                control.ask(connection, op="stop")
            except OSError:
                signal.pidfd_send_signal(supervisor.fileno(), signal.SIGKILL)  # it hangs: the kernel ends all the rest
            gone, _, _ = select.select([supervisor], [], [], STOP_S)
        if not gone:
            raise CourseError("The cluster does not end.", "Run `course down` again.")
        return True

    def _remove(self, directory: Path) -> None:
        done = subprocess.run(
            [*self._python, "helpers.cluster.embedded.wipe", str(directory)],
            env=self._env(), capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise CourseError(
                f"{directory} could not be removed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}.",
                f"Remove it by `sudo rm -rf '{directory}'`.",
            )

    # ---- machines ----------------------------------------------------------------------------------------------------

    def add_machine(self, machine: Machine, *, wait: bool = True) -> None:
        """Declare a machine and boot it, unless it runs. One that was lost is booted again, with the disk that it had.

        Raises:
            CourseError: if the cluster is down, or a machine of that name has another shape.
        """
        self._ask(op="status")  # before anything is written
        declaration = machines.declare(self.layout, machine)
        keys = pki.Pki(self.layout.pki)
        keys.ensure(machines.certificates([declaration]))
        self._ask(op="add_machine", machine=_as_json(self._writer().write(declaration)))
        if wait:
            self._await(
                lambda: self._is_machine_ready(self._api(), machine.name), f"the Kubernetes node {machine.name}"
            )

    def remove_machine(self, name: str) -> None:
        """Shut a machine down and forget it, its disk too. Its Kubernetes node stays in the API until it is deleted.

        Raises:
            CourseError: if there is no machine of that name.
        """
        if name not in machines.declared(self.layout):
            there = ", ".join(machines.declared(self.layout)) or "none"
            raise CourseError(f"There is no machine {name}.", f"The machines are: {there}.")
        connection = self._connection(STOP_S)
        if connection:
            with connection:
                control.ask(connection, op="remove_machine", name=name)
        machines.forget(self.layout, name)
        self._remove(self.layout.machine(name).disk)

    # ---- what all of them use ----------------------------------------------------------------------------------------

    def _connection(self, timeout_s: float = ASK_S) -> socket.socket | None:
        try:
            return control.connect(self.layout.root, timeout_s)
        except OSError:
            return None

    def _ask(self, **request: object) -> dict:
        connection = self._connection()
        if connection is None:
            raise CourseError("The embedded cluster is down.", "Run `course up` first.")
        with connection:
            return control.ask(connection, **request)

    def _server(self) -> str:
        return f"https://127.0.0.1:{(self.layout.root / 'port').read_text()}"

    def _api(self) -> Api:
        return Api(pki.Pki(self.layout.pki), self._server())

    def _writer(self) -> machines.Writer:
        return machines.Writer(self.layout, self._binary, self._python, self._env())

    def _binary(self, name: str) -> Path:
        from helpers.cluster.embedded import tools

        return tools.binary(name)

    def _kuberay_manifests(self) -> dict[str, Path]:
        from helpers.cluster.embedded import tools

        return tools.kuberay_manifests()

    @property
    def _python(self) -> tuple[str, ...]:
        return (sys.executable, "-m")

    def _env(self) -> dict[str, str]:
        """Of everything in the cluster: nothing of the learner's own, such as proxies or RAY_ADDRESS, gets in."""
        path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), SYSTEM_PATH]
        return {"PATH": os.pathsep.join(path), "HOME": "/", "LANG": "C.UTF-8", "PYTHONPATH": str(course_root())}

    def _nft(self) -> str | None:
        return shutil.which("nft", path=self._env()["PATH"])


def _has_service_account(api: Api) -> bool:
    # without it, Pods are refused
    return api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None


def _as_json(machine: object) -> dict:
    return json.loads(json.dumps(vars(machine), default=str))


def _version(component: str) -> str:
    own = {"etcd": "ETCD", "coredns": "COREDNS", kuberay.OPERATOR: "KUBERAY", "forwarder": ""}
    family = own.get(component, "KUBERNETES")
    is_machine = not component.startswith("kube-") and component not in own
    return "" if is_machine and not component.endswith(".kubelet") else getattr(versions, family, "")


def _host_pids(supervisor: int) -> dict[int, int]:
    """Pids as this process sees them, by the pid that the same process has in the cluster's own namespace."""
    found = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(supervisor)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(OSError):
                # ours, the cluster's, and for some a machine's
                found[namespace_pids(process.pid)[1]] = process.pid
    return found


def _lines(path: Path, follow: bool) -> Iterator[str]:
    file = path.open(errors="replace")
    try:
        while True:
            while line := file.readline():
                yield line.rstrip("\n")
            if not follow:
                return
            time.sleep(0.2)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino != os.fstat(file.fileno()).st_ino:  # put aside, and begun anew
                    file.close()
                    file = path.open(errors="replace")
    finally:
        file.close()

"""A port of this machine's loopback that leads to a port of a Pod, or of the Pods of a Service.

The way to the Pod is `kubectl port-forward`, which ends with its Pod. The port of this machine is ours and stays: each
connection goes to a Pod that is ready then, so that a Pod that was replaced is noticed only by who was connected to it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from helpers.cluster.session.tables import is_ending, is_ready
from helpers.cluster.session.target import Target
from helpers.errors import CourseError
from helpers.kube import Kube
from helpers.wait import say

PATIENCE_S = 30.0  # how long a connection waits for a Pod that is just being replaced
AGAIN_S = 0.5
BEGIN_S = 20.0  # for kubectl to say that it listens
CHUNK = 2**16


@dataclass(frozen=True)
class Kubectl:
    """kubectl as a lesson has it: the program, and the lesson's kubeconfig."""

    program: Path
    kubeconfig: Path
    namespace: str

    def command(self, *words: str) -> list[str]:
        """A command line; on Linux the program ends with the kernel that started it, even if that is killed."""
        end = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return [*end, str(self.program), f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}", *words]


class Tunnel:
    """`kubectl port-forward` to one Pod.

    To be made in a thread that lives as long: the kernel ends the program with the thread that started it (prctl(2)).
    """

    def __init__(self, kubectl: Kubectl, pod: str, port: int):
        self.pod = pod
        # a file and no pipe: it writes a line for each connection, and a pipe that nobody reads fills up
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            kubectl.command("port-forward", f"pod/{pod}", f":{port}", "--address=127.0.0.1"),
            stdin=subprocess.DEVNULL, stdout=self._said, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            self.port = self._port()
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._process.poll() is None

    def _port(self) -> int:
        """The port that kubectl listens at, once it says so. Nothing is shown: this is no cell's own thread."""
        deadline = time.monotonic() + BEGIN_S
        while True:
            said = os.pread(self._said.fileno(), 4096, 0).decode(errors="replace")
            found = re.search(r"127\.0\.0\.1:(\d+) ->", said)
            if found:
                return int(found[1])
            if not self.is_open or time.monotonic() > deadline:
                raise CourseError(f"kubectl port-forward did not begin: {said.strip()}.", "Run the cell again.")
            time.sleep(0.02)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()


class Forward:
    """A forwarded port. `close` ends it, and so does leaving its `with` block.

    Attributes:
        port: on 127.0.0.1.
        url: `http://127.0.0.1:PORT`.
    """

    def __init__(self, kube: Kube, kubectl: Kubectl, target: Target, port: int):
        self._kube, self._kubectl, self._target, self._remote = kube, kubectl, target, port
        self._tunnel: Tunnel | None = None
        self._pod = ""
        self._pod = self._find()[0]  # so that a wrong name or port is said at once
        self._listener = _listener(port)
        self.port = self._listener.getsockname()[1]
        if self.port != port:
            print(f"· port {port} of this machine is taken, so {target} has port {self.port} here")
        self._thread = threading.Thread(target=self._serve, name=f"forward {target}", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __repr__(self) -> str:
        return f"{self._target} port {self._remote} is at {self.url}"

    def close(self) -> None:
        """Take no more connections, and end those that there are. May be called again."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._thread.join(BEGIN_S)

    def __enter__(self) -> Forward:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            while True:
                ours, _ = self._listener.accept()
                theirs = self._connected()
                if theirs is None:
                    ours.close()
                    continue
                for way in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=_pump, args=way, daemon=True).start()
        except OSError:  # the listener was closed
            if self._tunnel:
                self._tunnel.close()

    def _connected(self) -> socket.socket | None:
        """A connection to a Pod that is ready; None after `PATIENCE_S`, which is said, or when this is closed."""
        deadline, why = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < deadline and self._listener.fileno() != -1:
            try:
                return socket.create_connection(("127.0.0.1", self._way().port), timeout=BEGIN_S)
            except (CourseError, OSError) as error:
                why = str(error)
            time.sleep(AGAIN_S)
        if self._listener.fileno() != -1:
            say(f"✘ {self._target} port {self._remote} led nowhere for {PATIENCE_S:g} s: {why}\n")
        return None

    def _way(self) -> Tunnel:
        """The way to a Pod that is ready now."""
        pod, port = self._find()
        if self._tunnel and (self._tunnel.pod != pod or not self._tunnel.is_open):
            self._tunnel.close()
            self._tunnel = None
        if self._tunnel is None:
            self._tunnel = Tunnel(self._kubectl, pod, port)
        if pod != self._pod:
            say(f"· {self._target} port {self._remote} leads to {pod} now; {self._pod} was replaced\n")
            self._pod = pod
        return self._tunnel

    def _find(self) -> tuple[str, int]:
        """A Pod that is ready, and its port.

        Raises:
            CourseError: if there is none.
        """
        thing = self._kube.get(self._target.resource, self._target.name, self._kubectl.namespace)
        if thing is None:
            raise CourseError(f"There is no {self._target}.", "See what there is by `kubectl get services,pods`.")
        if thing["kind"] == "Pod":
            return self._target.name, self._remote
        if thing["kind"] != "Service":
            raise CourseError(
                f"{self._target} has no ports of its own.", "Forward to a Service or a Pod: `svc/…`, `pod/…`."
            )
        port = _service_port(thing, self._target, self._remote)
        selector = ",".join(f"{key}={value}" for key, value in (thing["spec"].get("selector") or {}).items())
        pods = self._kube.list(self._kube.resource("pods"), self._kubectl.namespace, selector) if selector else []
        ready = [pod for pod in pods if is_ready(pod)]
        if not ready:
            there = ", ".join(pod["metadata"]["name"] for pod in pods if not is_ending(pod)) or "none"
            raise CourseError(
                f"No Pod of {self._target} is ready; there are: {there}.", "Wait for it by `lab.wait(…)` first."
            )
        # the one of before, as long as it is there
        pod = next((pod for pod in ready if pod["metadata"]["name"] == self._pod), ready[0])
        return pod["metadata"]["name"], port if isinstance(port, int) else _named_port(pod, port)


def _service_port(service: dict, target: Target, port: int) -> int | str:
    """The port of its Pods, or the name of it."""
    ports = service["spec"].get("ports", [])
    for entry in ports:
        if entry["port"] == port:
            return entry.get("targetPort", port)
    there = ", ".join(f"{entry['port']} ({entry.get('name', 'no name')})" for entry in ports) or "none"
    raise CourseError(f"{target} has no port {port}.", f"Its ports are: {there}.")


def _named_port(pod: dict, name: str) -> int:
    for container in pod["spec"]["containers"]:
        for entry in container.get("ports", []):
            if entry.get("name") == name:
                return entry["containerPort"]
    raise CourseError(
        f"{pod['metadata']['name']} has no port of the name {name}.", "Forward to a port number of the Pod."
    )


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Carry bytes one way until that is done, and tell the other end; both ways end with an error on one."""
    source.settimeout(None)
    try:
        while part := source.recv(CHUNK):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

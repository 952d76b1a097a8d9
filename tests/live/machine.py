"""One machine without a kubelet: its init and the process runtime in namespaces of their own, driven over the CRI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from helpers.cluster.embedded.runtime.cri import Messages
from helpers.cluster.embedded.runtime.images import default_images
from helpers.cluster.embedded.runtime.network import dial
from helpers.state import course_root
from helpers.wait import wait_until
from tests.cri import Client, descriptor

POD_CIDR = "10.88.0.0/24"
# what the control plane's side makes in the cluster's network: the way between Pods, and the set for hairpins
SETUP = """
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
nft 'add table ip course; add set ip course hairpin { type ipv4_addr . ipv4_addr; }'
exec "$@"
"""


class Machine:
    """A machine, from its start until `close`.

    Args:
        root: directory for its files; its name is short, since sockets are below.
        visible: paths that containers see although they are in a directory of their own there, such as /tmp.
        options: fields of RUNTIME.json that are to be others.
    """

    def __init__(self, root: Path, *, visible: tuple[str, ...] = (), **options: Any):
        self.root, self.disk, self.run = root, root / "disk", root / "run"
        self.cri, self.log = self.run / "cri.sock", root / "runtime.log"
        self.logs = root / "pods"
        python = [sys.executable, "-m", "helpers.cluster.embedded.runtime"]
        runtime = {
            "socket": str(self.cri),
            "init_socket": str(self.run / "init.sock"),
            "disk": str(self.disk),
            "descriptor": str(descriptor()),
            "machine": "cpu-a",
            "images": default_images(Path(sys.prefix)),
            "pull_delay_s": 0.0,
            "pod_gateway": "169.254.1.1",
            "hairpin_table": "course",
        } | options
        (root / "runtime.json").write_text(json.dumps(runtime))
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(course_root()), "LANG": "C.UTF-8", "HOME": "/"}
        service = {"name": "runtime", "argv": [*python, str(root / "runtime.json")], "env": env, "log": str(self.log)}
        machine = {
            "name": "cpu-a",
            "hostname": "cpu-a",
            "run": str(self.run),
            "disk": str(self.disk),
            "socket": str(self.run / "init.sock"),
            "cgroup": f"course-test-{os.getpid()}" if os.getuid() == 0 else None,
            "services": [service],
            "view": {"hidden": [], "visible": list(visible)},
        }
        (root / "machine.json").write_text(json.dumps(machine))
        self._start = [*python[:2], f"{python[2]}.init", str(root / "machine.json")]
        self._env = env
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Boots it, and waits until the runtime answers."""
        user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        kinds = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL")
        self.cri.unlink(missing_ok=True)
        with (self.root / "init.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", *user, *kinds, "sh", "-ec", SETUP, "sh", *self._start],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.wait_for_runtime()

    def wait_for_runtime(self) -> None:
        """Waits until the runtime takes connections."""

        def answers() -> bool:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(self.cri))
                return True
            return False

        wait_until(answers, 60, what="the runtime to answer")

    @property
    def init(self) -> int:
        """Process id of its PID 1, as we count."""
        parent = self._process.pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    def pid_of(self, what: str) -> int:
        """Process id of the one process of the machine whose command line has `what` in it."""
        found = [pid for pid in descendants(self.init) if what in command_line(pid)]
        assert len(found) == 1, (what, found)
        return found[0]

    @property
    def runtime(self) -> int:
        """Process id of the runtime."""
        return self.pid_of(str(self.root / "runtime.json"))

    def in_network(self, *command: str) -> str:
        """What a command says in the machine's network."""
        whole = ["nsenter", "-t", str(self.init), *([] if os.getuid() == 0 else ["-U"]), "-n", *command]
        return subprocess.run(whole, capture_output=True, text=True, check=True).stdout

    async def connect(self, port: int) -> socket.socket:
        """A connection to a port of the machine's loopback."""
        return await dial(Path(f"/proc/{self.init}/ns/net"), port)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of its CRI."""
        options = [("grpc.max_receive_message_length", 16 << 20)]  # as the kubelet's
        async with grpc.aio.insecure_channel(f"unix:{self.cri}", options=options) as channel:
            yield Client(Messages(descriptor()), channel)

    def kill(self) -> None:
        """Loses it: everything in it ends at once."""
        if self._process:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        if os.getuid() == 0:
            for controller in Path("/sys/fs/cgroup").rglob(f"course-test-{os.getpid()}"):
                for group in sorted([controller, *filter(Path.is_dir, controller.rglob("*"))], reverse=True):
                    with contextlib.suppress(OSError):
                        group.rmdir()


def descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Driver:
    """What a kubelet would do, in few words."""

    def __init__(self, machine: Machine, client: Client):
        self.machine, self.client, self.pb = machine, client, client.pb
        self._count = 0

    async def ready(self) -> None:
        """Gives the machine its range of addresses."""
        network = self.pb.NetworkConfig(pod_cidr=POD_CIDR)
        await self.client.UpdateRuntimeConfig(runtime_config=self.pb.RuntimeConfig(network_config=network))

    def pod_config(self, name: str = "", **fields: Any) -> Any:
        self._count += 1
        name = name or f"pod-{self._count}"
        metadata = self.pb.PodSandboxMetadata(name=name, uid=f"{name}-uid", namespace="default")
        directory = str(self.machine.logs / name)
        config = self.pb.PodSandboxConfig(metadata=metadata, hostname=name, log_directory=directory)
        config.MergeFrom(self.pb.PodSandboxConfig(**fields))
        return config

    async def pod(self, name: str = "", **fields: Any) -> str:
        """Makes a sandbox; its id."""
        answer = await self.client.RunPodSandbox(config=self.pod_config(name, **fields))
        return answer.pod_sandbox_id

    async def create(self, pod: str, *command: str, image: str = "busybox", name: str = "c", **fields: Any) -> str:
        """Makes a container; its id."""
        pulled = await self.client.PullImage(image=self.pb.ImageSpec(image=image))
        spec = self.pb.ImageSpec(image=pulled.image_ref, user_specified_image=image)
        self._count += 1
        metadata, log = self.pb.ContainerMetadata(name=name), f"{name}-{self._count}.log"
        config = self.pb.ContainerConfig(metadata=metadata, image=spec, command=command, log_path=log)
        config.MergeFrom(self.pb.ContainerConfig(**fields))
        return (await self.client.CreateContainer(pod_sandbox_id=pod, config=config)).container_id

    async def start(self, pod: str, *command: str, **fields: Any) -> str:
        """Makes a container and starts it; its id."""
        id = await self.create(pod, *command, **fields)
        await self.client.StartContainer(container_id=id)
        return id

    async def status(self, id: str) -> Any:
        return (await self.client.ContainerStatus(container_id=id)).status

    async def ended(self, id: str) -> Any:
        """Status of a container once it has ended."""
        return await self.until(lambda: self.status(id), lambda status: status.state == self.pb.CONTAINER_EXITED)

    async def until(self, ask: Callable, holds: Callable) -> Any:
        """Asks until the answer is right; the answer."""
        async with asyncio.timeout(60):
            while True:
                answer = await ask()
                if holds(answer):
                    return answer
                await asyncio.sleep(0.02)

    async def sync(self, id: str, *command: str, timeout: int = 0) -> Any:
        """Runs a command in a container: stdout, stderr, exit_code."""
        return await self.client.ExecSync(container_id=id, cmd=command, timeout=timeout)

    async def remove(self, *pods: str) -> None:
        for pod in pods:
            await self.client.StopPodSandbox(pod_sandbox_id=pod)
            await self.client.RemovePodSandbox(pod_sandbox_id=pod)

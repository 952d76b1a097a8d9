"""RuntimeService of the CRI: sandboxes and containers, each container a process that the machine's init starts.

What each call has to do, and that most may be called twice, is said in api.proto of k8s.io/cri-api; where it is silent
we do as containerd does (internal/cri/server), since that is what kubelets are tested with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from pathlib import Path

from google.protobuf.message import Message

from helpers.cluster.embedded.runtime import streaming
from helpers.cluster.embedded.runtime.cri import Messages, Refused
from helpers.cluster.embedded.runtime.fds import pump
from helpers.cluster.embedded.runtime.images import Images
from helpers.cluster.embedded.runtime.init_client import Exec, Init, InitError, StartError
from helpers.cluster.embedded.runtime.network import Network, NetworkError, dial, veth
from helpers.cluster.embedded.runtime.objects import (
    CREATED,
    EXITED,
    RUNNING,
    START_ERROR_CODE,
    Container,
    Objects,
    Sandbox,
    new_id,
)
from helpers.cluster.embedded.runtime.spec import container_spec, resolv_conf, resolve_user, stop_signal
from helpers.cluster.embedded.runtime.stats import Cores, Disk, cpu_message, memory_message, network_message
from helpers.cluster.embedded.runtime.unsupported import check_container, check_resources, check_sandbox

NAME, VERSION = "process", "1.0.0"
KILLED_S = 30  # within which a process that got SIGKILL must be gone
# stdout and stderr together, so that the answer of ExecSync fits into the 16 MiB that the kubelet takes
MAX_OUTPUT = (16 << 20) - (64 << 10)
NO_USAGE = {"memory_bytes": 0, "working_set_bytes": 0, "rss_bytes": 0, "cpu_ns": 0, "pids": 0}
log = logging.getLogger("runtime")


class Runtime:
    """RuntimeService.

    Args:
        messages: the messages of the CRI.
        machine: name of the machine, which is the hostname of Pods with hostNetwork.
        disk: directory of the runtime and of init.
        init: the machine's init.
        objects: sandboxes and containers.
        network: of the Pods.
        images: what containers can be made of.
        sessions: the streaming server.
        usage: of the disk.
    """

    def __init__(
        self,
        messages: Messages,
        machine: str,
        disk: Path,
        init: Init,
        objects: Objects,
        network: Network,
        images: Images,
        sessions: streaming.Streaming,
        usage: Disk,
    ):
        self._pb, self._machine, self._disk, self._init = messages, machine, disk, init
        self._objects, self._network, self._images = objects, network, images
        self._sessions, self._usage, self._cores = sessions, usage, Cores()

    async def recover(self) -> None:
        """Finds what runs already: after a restart of the runtime all of it, after one of the machine nothing."""
        self._init.on_exit(self._ended)
        alive = set(await self._init.sandboxes())
        self._objects.load()
        for sandbox in self._objects.sandboxes.values():
            if sandbox.ip:
                self._network.remember(sandbox.id, sandbox.ip)
            if sandbox.ready and sandbox.id not in alive:
                log.warning("sandbox %s was lost with the machine", sandbox.id)
                sandbox.ready = False
                self._objects.save_sandbox(sandbox)
        records = await self._init.containers()
        for container in self._objects.containers.values():
            if record := records.pop(container.id, None):
                container.update(record)
            elif container.state == RUNNING:
                container.end(255, "Unknown", "it was lost with the machine", time.time_ns())
            self._objects.save_container(container)
        await asyncio.gather(*map(self._end_stray, records))
        for id in alive - self._objects.sandboxes.keys():
            await self._init.remove_sandbox(id)
        try:
            await self._network.clean()
        except NetworkError as error:
            log.error("what belongs to no Pod stays in the network: %s", error)

    async def _end_stray(self, id: str) -> None:
        """Ends a container that init has and we know nothing of: its file was damaged."""
        log.error("container %s belongs to no Pod: it is ended", id)
        ended = asyncio.Event()
        self._init.on_exit(lambda other, _: ended.set() if other == id else None)
        with contextlib.suppress(InitError):
            await self._init.signal(id, signal.SIGKILL)
            if (await self._init.containers()).get(id, {}).get("state") == "running":
                await asyncio.wait_for(ended.wait(), KILLED_S)
            await self._init.forget(id)

    def _ended(self, id: str, record: dict) -> None:
        if container := self._objects.containers.get(id):
            container.update(record)
            self._objects.save_container(container)
            log.info("container %s ended: %s, %s", id[:12], container.code, container.reason)

    # ---- the runtime itself

    async def version(self, request: Message) -> Message:
        return self._pb.VersionResponse(
            version="0.1.0", runtime_name=NAME, runtime_version=VERSION, runtime_api_version="v1"
        )

    async def status(self, request: Message) -> Message:
        pb, ready = self._pb, self._network.ready
        why = (
            {} if ready else {"reason": "NoPodCIDR", "message": "the Kubernetes node has no range of Pod addresses yet"}
        )
        conditions = [
            pb.RuntimeCondition(type="RuntimeReady", status=True),
            pb.RuntimeCondition(type="NetworkReady", status=ready, **why),
        ]
        return pb.StatusResponse(
            status=pb.RuntimeStatus(conditions=conditions),
            runtime_handlers=[pb.RuntimeHandler(name="", features=pb.RuntimeHandlerFeatures())],
            features=pb.RuntimeFeatures(supplemental_groups_policy=True),
        )

    async def runtime_config(self, request: Message) -> Message:
        linux = self._pb.LinuxRuntimeConfiguration(cgroup_driver=self._pb.CGROUPFS)
        return self._pb.RuntimeConfigResponse(linux=linux)

    async def update_runtime_config(self, request: Message) -> Message:
        if cidr := request.runtime_config.network_config.pod_cidr:
            try:
                self._network.set_range(cidr)
            except ValueError as error:
                raise Refused("INVALID_ARGUMENT", f"the Pod CIDR {cidr} is wrong: {error}") from error
        return self._pb.UpdateRuntimeConfigResponse()

    # ---- sandboxes

    async def run_pod_sandbox(self, request: Message) -> Message:
        pb, config = self._pb, request.config
        check_sandbox(pb, config, request.runtime_handler)
        sandbox = Sandbox(new_id(), config)
        own_network = sandbox.namespaces.network != pb.NODE
        if own_network and not self._network.ready:
            raise Refused(
                "UNAVAILABLE", "the network is not ready: the Kubernetes node has no range of Pod addresses yet"
            )
        self._objects.save_sandbox(sandbox)  # first, so that whatever happens, somebody knows what to take down
        try:
            self._write_files(sandbox)
            await self._init.make_sandbox(sandbox.id, self._sandbox_spec(sandbox))
            if own_network:
                sandbox.ip = await self._network.attach(sandbox.id, self._namespace(sandbox))
            sandbox.ready = True
            self._objects.save_sandbox(sandbox)
        except BaseException as error:
            await asyncio.shield(self._take_down(sandbox))
            self._objects.remove_sandbox(sandbox)
            if isinstance(error, InitError | NetworkError | OSError):
                raise Refused("INTERNAL", f"the sandbox cannot be made: {error}") from error
            raise
        return pb.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    def _write_files(self, sandbox: Sandbox) -> None:
        if sandbox.config.log_directory:
            os.makedirs(sandbox.config.log_directory, exist_ok=True)
        files = self._objects.files(sandbox)
        files.mkdir(parents=True)
        (files / "hostname").write_text(self._hostname(sandbox) + "\n")
        if text := resolv_conf(sandbox.config.dns_config):
            (files / "resolv.conf").write_text(text)

    def _hostname(self, sandbox: Sandbox) -> str:
        return sandbox.config.hostname or self._machine

    def _sandbox_spec(self, sandbox: Sandbox) -> dict:
        pb, options = self._pb, sandbox.namespaces
        modes = {pb.POD: "pod", pb.CONTAINER: "container", pb.NODE: "host"}
        names = {"net": "network", "ipc": "ipc", "pid": "pid"}
        namespaces = {name: modes[getattr(options, ours)] for name, ours in names.items()}
        sysctls = dict(sandbox.config.linux.sysctls)
        return {"hostname": self._hostname(sandbox), "namespaces": namespaces, "sysctls": sysctls}

    def _namespace(self, sandbox: Sandbox) -> Path | None:
        """File of a sandbox's network namespace; None if it has the machine's."""
        if sandbox.namespaces.network == self._pb.NODE:
            return None
        return self._disk / "sandboxes" / sandbox.id / "ns" / "net"

    async def stop_pod_sandbox(self, request: Message) -> Message:
        if sandbox := self._objects.sandboxes.get(request.pod_sandbox_id):
            await self._stop_sandbox(sandbox)
        return self._pb.StopPodSandboxResponse()

    async def _stop_sandbox(self, sandbox: Sandbox) -> None:
        async with sandbox.lock:
            await asyncio.gather(*(self._stop(container, 0) for container in self._objects.of_sandbox(sandbox)))
            await self._take_down(sandbox)
            if sandbox.id in self._objects.sandboxes:
                self._objects.save_sandbox(sandbox)

    async def _take_down(self, sandbox: Sandbox) -> None:
        await self._network.detach(sandbox.id)
        sandbox.ready, sandbox.ip = False, ""
        await self._init.remove_sandbox(sandbox.id)

    async def remove_pod_sandbox(self, request: Message) -> Message:
        if sandbox := self._objects.sandboxes.get(request.pod_sandbox_id):
            await self._stop_sandbox(sandbox)
            await asyncio.gather(*map(self._remove, self._objects.of_sandbox(sandbox)))
            self._objects.remove_sandbox(sandbox)
        return self._pb.RemovePodSandboxResponse()

    async def pod_sandbox_status(self, request: Message) -> Message:
        sandbox = self._sandbox(request.pod_sandbox_id)
        return self._pb.PodSandboxStatusResponse(status=self._objects.sandbox_status(sandbox))

    async def list_pod_sandbox(self, request: Message) -> Message:
        found = map(self._objects.sandbox_item, self._objects.find_sandboxes(request.filter))
        return self._pb.ListPodSandboxResponse(items=found)

    async def update_pod_sandbox_resources(self, request: Message) -> Message:
        self._sandbox(request.pod_sandbox_id)  # nothing is limited for a whole Pod, so there is nothing to change
        return self._pb.UpdatePodSandboxResourcesResponse()

    def _sandbox(self, id: str) -> Sandbox:
        try:
            return self._objects.sandboxes[id]
        except KeyError:
            raise Refused("NOT_FOUND", f'an error occurred when try to find sandbox "{id}": not found') from None

    # ---- containers

    async def create_container(self, request: Message) -> Message:
        pb, config = self._pb, request.config
        sandbox = self._sandbox(request.pod_sandbox_id)
        if not sandbox.ready:
            raise Refused("FAILED_PRECONDITION", f"the sandbox {sandbox.id} is not ready")
        check_container(pb, config)
        image = self._images.find(config.image.image)
        if image is None:
            raise Refused("NOT_FOUND", f'failed to resolve image "{config.image.image}": not found')
        user = resolve_user(pb, config.linux.security_context)
        called = config.image.user_specified_image or config.image.image
        container = Container(
            new_id(),
            sandbox,
            config,
            image_id=image.entry.id,
            image_name=image.name_for(called),
            image_digest=image.digest_for(called),
            user=[user.uid, user.gid, list(user.groups)],
        )
        self._spec(container)  # only to see that there is something to run
        self._objects.save_container(container)
        return pb.CreateContainerResponse(container_id=container.id)

    def _spec(self, container: Container) -> dict:
        image = self._images.find(container.image_id)
        if image is None:
            raise Refused("FAILED_PRECONDITION", f"the image {container.image_name} was removed")
        sandbox = container.sandbox
        hostname, files = self._hostname(sandbox), self._objects.files(sandbox)
        return container_spec(self._pb, sandbox.id, container.config, image.entry, hostname, container.log, files)

    async def start_container(self, request: Message) -> Message:
        container = self._container(request.container_id)
        async with container.lock:
            if container.state != CREATED:
                raise Refused("FAILED_PRECONDITION", f"container is in {container.state} state")
            spec = self._spec(container)
            if container.log:
                container.log.parent.mkdir(parents=True, exist_ok=True)
            try:
                started = await self._init.start(container.id, spec)
            except StartError as error:
                container.end(START_ERROR_CODE, "StartError", str(error), time.time_ns())
                self._objects.save_container(container)
                raise Refused("UNKNOWN", f"failed to start container: {error}") from error
            except InitError as error:
                raise Refused("INTERNAL", f"failed to start container: {error}") from error
            if container.state == CREATED:  # else it has ended already
                container.state, container.started_ns = RUNNING, started.started_ns
                self._objects.save_container(container)
        return self._pb.StartContainerResponse()

    async def stop_container(self, request: Message) -> Message:
        if container := self._objects.containers.get(request.container_id):
            await self._stop(container, request.timeout)
        return self._pb.StopContainerResponse()

    async def _stop(self, container: Container, grace_s: float) -> None:
        """Asks a container to stop, and ends it when it has not within its time of grace."""
        if container.state != RUNNING:
            return None
        with _internal("failed to stop container"):
            if grace_s > 0:
                await self._init.signal(container.id, stop_signal(self._pb, container.config))
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(container.ended.wait(), grace_s)
            await self._init.signal(container.id, signal.SIGKILL)
        try:
            await asyncio.wait_for(container.ended.wait(), KILLED_S)
        except TimeoutError:
            raise Refused("DEADLINE_EXCEEDED", f"{container.id} did not end within {KILLED_S} s of SIGKILL") from None
        return None

    async def remove_container(self, request: Message) -> Message:
        if container := self._objects.containers.get(request.container_id):
            await self._remove(container)
        return self._pb.RemoveContainerResponse()

    async def _remove(self, container: Container) -> None:
        async with container.lock:
            await self._stop(container, 0)
            with _internal("failed to remove container"):
                await self._init.forget(container.id)
            self._objects.remove_container(container)
            self._cores.forget(container.id)
            self._usage.forget(self._layer(container))

    async def list_containers(self, request: Message) -> Message:
        found = map(self._objects.container_item, self._objects.find_containers(request.filter))
        return self._pb.ListContainersResponse(containers=found)

    async def container_status(self, request: Message) -> Message:
        container = self._container(request.container_id)
        return self._pb.ContainerStatusResponse(status=self._objects.container_status(container))

    async def update_container_resources(self, request: Message) -> Message:
        container = self._container(request.container_id)
        async with container.lock:
            if container.state == EXITED:
                raise Refused("FAILED_PRECONDITION", f"container is in {container.state} state")
            wanted = self._pb.LinuxContainerResources()
            wanted.CopyFrom(container.config.linux.resources)
            wanted.MergeFrom(request.linux)  # what is 0 stays as it is
            check_resources(wanted)
            if container.state == RUNNING and wanted.memory_limit_in_bytes != container.memory_limit_bytes:
                with _internal("failed to update resources"):
                    await self._init.resize(container.id, wanted.memory_limit_in_bytes)
            container.config.linux.resources.CopyFrom(wanted)
            self._objects.save_container(container)
        return self._pb.UpdateContainerResourcesResponse()

    async def reopen_container_log(self, request: Message) -> Message:
        container = self._running(request.container_id)
        with _internal("failed to reopen the log"):
            await self._init.reopen_log(container.id)
        return self._pb.ReopenContainerLogResponse()

    def _container(self, id: str) -> Container:
        try:
            return self._objects.containers[id]
        except KeyError:
            raise Refused("NOT_FOUND", f'an error occurred when try to find container "{id}": not found') from None

    def _running(self, id: str) -> Container:
        container = self._container(id)
        if container.state != RUNNING:
            raise Refused("FAILED_PRECONDITION", f"container is in {container.state} state")
        return container

    # ---- commands in containers, and streams

    async def exec_sync(self, request: Message) -> Message:
        container = self._running(request.container_id)
        if not request.cmd:
            raise Refused("INVALID_ARGUMENT", "there is no command to run")
        outputs = [bytearray(), bytearray()]
        try:
            async with asyncio.timeout(request.timeout or None):
                code = await self._run(container, list(request.cmd), outputs)
        except TimeoutError:
            text = f"failed to exec in container: timeout {request.timeout}s exceeded: context deadline exceeded"
            raise Refused("DEADLINE_EXCEEDED", text) from None
        except StartError as error:
            raise Refused("UNKNOWN", f"failed to exec in container: {error}") from error
        except InitError as error:
            raise Refused("INTERNAL", f"failed to exec in container: {error}") from error
        stdout, stderr = map(bytes, outputs)
        return self._pb.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=code)

    async def _run(self, container: Container, command: list[str], outputs: list[bytearray]) -> int:
        """Runs a command with its output in memory; the exit code. Whoever gives up on it ends it."""
        with contextlib.ExitStack() as fds:
            pipes = [os.pipe2(os.O_CLOEXEC) for _ in outputs]
            for read, _ in pipes:
                fds.callback(os.close, read)
            with contextlib.ExitStack() as theirs:
                for _, write in pipes:
                    theirs.callback(os.close, write)
                nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                theirs.callback(os.close, nothing)
                process = await self._exec(container, command, (nothing, pipes[0][1], pipes[1][1]))
            ended = asyncio.Event()
            pumps = [
                asyncio.create_task(pump(read, _bounded(output, outputs), ended))
                for (read, _), output in zip(pipes, outputs, strict=True)
            ]
            try:
                code = await process.wait()
                ended.set()
                await asyncio.gather(*pumps)
                return code
            except asyncio.CancelledError:
                await asyncio.shield(_kill(process))
                raise
            finally:
                for task in pumps:
                    task.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    async def _exec(self, container: Container, command: list[str], fds: tuple[int, int, int] | None) -> Exec:
        return await self._init.exec(container.id, {"argv": command, "tty": fds is None}, fds)

    async def exec(self, request: Message) -> Message:
        container, wanted = self._running(request.container_id), _wanted(request)
        command = list(request.cmd)
        if not command:
            raise Refused("INVALID_ARGUMENT", "there is no command to run")

        async def serve(connection: streaming.Connection) -> None:
            await streaming.serve_exec(connection, wanted, lambda fds: self._exec(container, command, fds))

        return self._pb.ExecResponse(url=self._sessions.url("exec", streaming.COMMAND, serve))

    async def attach(self, request: Message) -> Message:
        container, wanted = self._running(request.container_id), _wanted(request)
        once = container.config.stdin_once

        async def serve(connection: streaming.Connection) -> None:
            await streaming.serve_attach(
                connection, wanted, once, lambda: self._init.attach(container.id, stdin=wanted.stdin)
            )

        return self._pb.AttachResponse(url=self._sessions.url("attach", streaming.COMMAND, serve))

    async def port_forward(self, request: Message) -> Message:
        sandbox = self._sandbox(request.pod_sandbox_id)
        if not sandbox.ready:
            raise Refused("FAILED_PRECONDITION", f"the sandbox {sandbox.id} is not ready")
        namespace = self._namespace(sandbox)

        async def serve(connection: streaming.Connection) -> None:
            await streaming.serve_ports(connection, sandbox.config.metadata.name, lambda port: dial(namespace, port))

        return self._pb.PortForwardResponse(url=self._sessions.url("portforward", streaming.PORTS, serve))

    # ---- what is used

    async def container_stats(self, request: Message) -> Message:
        container = self._container(request.container_id)
        return self._pb.ContainerStatsResponse(stats=(await self._container_stats([container]))[0])

    async def list_container_stats(self, request: Message) -> Message:
        running = [found for found in self._objects.find_containers(request.filter) if found.state == RUNNING]
        return self._pb.ListContainerStatsResponse(stats=await self._container_stats(running))

    async def pod_sandbox_stats(self, request: Message) -> Message:
        sandbox = self._sandbox(request.pod_sandbox_id)
        return self._pb.PodSandboxStatsResponse(stats=await self._sandbox_stats(sandbox, self._network.usage()))

    async def list_pod_sandbox_stats(self, request: Message) -> Message:
        ready = [sandbox for sandbox in self._objects.find_sandboxes(request.filter) if sandbox.ready]
        network = self._network.usage()
        stats = await asyncio.gather(*(self._sandbox_stats(sandbox, network) for sandbox in ready))
        return self._pb.ListPodSandboxStatsResponse(stats=stats)

    async def _container_stats(self, containers: list[Container]) -> list[Message]:
        usage = await self._container_usage(containers)
        disks = await asyncio.gather(*(self._usage.usage(self._layer(container)) for container in containers))
        now, pb = time.time_ns(), self._pb
        stats = []
        for container, disk in zip(containers, disks, strict=True):
            used, config = usage[container.id], container.config
            names = {"metadata": config.metadata, "labels": config.labels, "annotations": config.annotations}
            cores = self._cores.update(container.id, now, used["cpu_ns"])
            message = pb.ContainerStats(
                attributes=pb.ContainerAttributes(id=container.id, **names),
                cpu=cpu_message(pb, now, used["cpu_ns"], cores),
                memory=memory_message(pb, now, used, container.memory_limit_bytes),
                writable_layer=self._usage.message(pb, disk),
            )
            stats.append(message)
        return stats

    async def _container_usage(self, containers: list[Container]) -> dict[str, dict[str, int]]:
        ids = [container.id for container in containers if container.state == RUNNING]
        usage = await self._init.usage(ids) if ids else {}
        return {container.id: usage.get(container.id, NO_USAGE) for container in containers}

    async def _sandbox_stats(self, sandbox: Sandbox, network: dict[str, tuple[int, int, int, int]]) -> Message:
        containers = [found for found in self._objects.of_sandbox(sandbox) if found.state == RUNNING]
        stats = await self._container_stats(containers)
        usage = (await self._container_usage(containers)).values()
        total = {name: sum(used[name] for used in usage) for name in NO_USAGE}
        cores = sum(message.cpu.usage_nano_cores.value for message in stats)
        now, pb, config = time.time_ns(), self._pb, sandbox.config
        names = {"metadata": config.metadata, "labels": config.labels, "annotations": config.annotations}
        linux = pb.LinuxPodSandboxStats(
            cpu=cpu_message(pb, now, total["cpu_ns"], cores),
            memory=memory_message(pb, now, total, 0),
            process=pb.ProcessUsage(timestamp=now, process_count=pb.UInt64Value(value=total["pids"])),
            containers=stats,
        )
        if numbers := network.get(veth(sandbox.id)):
            linux.network.CopyFrom(network_message(pb, now, numbers))
        return pb.PodSandboxStats(attributes=pb.PodSandboxAttributes(id=sandbox.id, **names), linux=linux)

    def _layer(self, container: Container) -> Path:
        """Where init keeps what a container writes."""
        return self._disk / "containers" / container.id


def _wanted(request: Message) -> streaming.Wanted:
    wanted = streaming.Wanted(request.stdin, request.stdout, request.stderr, request.tty)
    if wanted.tty and wanted.stderr:
        raise Refused("INVALID_ARGUMENT", "tty and stderr cannot both be true")
    if not (wanted.stdin or wanted.stdout or wanted.stderr):
        raise Refused("INVALID_ARGUMENT", "one of stdin, stdout and stderr must be set")
    return wanted


def _bounded(output: bytearray, outputs: list[bytearray]) -> streaming.Sink:
    async def keep(data: bytes) -> None:
        output.extend(data[: max(MAX_OUTPUT - sum(map(len, outputs)), 0)])

    return keep


async def _kill(process: Exec) -> None:
    with contextlib.suppress(InitError):
        await process.kill()
        await process.wait()


@contextlib.contextmanager
def _internal(what: str):
    """Turns what init refuses into an answer."""
    try:
        yield
    except InitError as error:
        raise Refused("INTERNAL", f"{what}: {error}") from error

"""A machine's init and runtime, driven as a kubelet drives them, with real processes, namespaces and kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from helpers.cluster.embedded.runtime.streaming import COMMAND, PORTS
from helpers.wait import wait_until
from tests.cri import exit_code, session
from tests.live.machine import Driver, Machine

pytestmark = pytest.mark.live
SERVER = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=80, bind='{}')"
FOREVER = ("sleep", "100000")
Do = Callable[[Callable[[Driver], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    root = Path(tempfile.mkdtemp(prefix="m-"))  # short: sockets are below it
    made = Machine(root)
    try:
        made.start()
        yield made
    finally:
        made.close()
        shutil.rmtree(root)


@pytest.fixture
def do(machine: Machine) -> Do:
    """Does something with the machine; afterwards no Pod is left."""

    def run(act: Callable[[Driver], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with machine.client() as client:
                driver = Driver(machine, client)
                await driver.ready()
                try:
                    await act(driver)
                finally:
                    await driver.remove(*[pod.id for pod in (await client.ListPodSandbox()).items])

        asyncio.run(whole())

    return run


def log_of(status: object) -> list[list[str]]:
    """The lines of a container's log: stream, F or P, text."""
    return [line.split(" ", 3)[1:] for line in Path(status.log_path).read_text().splitlines()]


@contextlib.contextmanager
def refused(code: str, *texts: str) -> Iterator[None]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        yield
    assert error.value.code().name == code, error.value.details()
    for text in texts:
        assert text in error.value.details()


# ---- sandboxes


def test_the_network_is_ready_once_there_is_a_range_of_addresses() -> None:
    root = Path(tempfile.mkdtemp(prefix="m-"))
    machine = Machine(root)

    async def act() -> None:
        async with machine.client() as client:
            driver = Driver(machine, client)
            conditions = {one.type: one for one in (await client.Status()).status.conditions}
            assert conditions["RuntimeReady"].status
            assert (conditions["NetworkReady"].status, conditions["NetworkReady"].reason) == (False, "NoPodCIDR")
            with refused("UNAVAILABLE", "no range of Pod addresses"):
                await driver.pod()
            assert not (await client.ListPodSandbox()).items
            with refused("INVALID_ARGUMENT", "10.88.0.0/99"):
                network = driver.pb.NetworkConfig(pod_cidr="10.88.0.0/99")
                await client.UpdateRuntimeConfig(runtime_config=driver.pb.RuntimeConfig(network_config=network))
            await driver.ready()
            assert all(one.status for one in (await client.Status()).status.conditions)

    try:
        machine.start()
        asyncio.run(act())
    finally:
        machine.close()
        shutil.rmtree(root)


def test_a_pod_has_its_hostname_its_resolv_conf_and_an_address_of_its_own(do: Do) -> None:
    async def act(driver: Driver) -> None:
        dns = driver.pb.DNSConfig(servers=["10.96.0.10"], searches=["a.b", "b"], options=["ndots:5"])
        pods = [await driver.pod(f"web-{number}", dns_config=dns) for number in range(3)]
        addresses = []
        for pod in pods:
            status = (await driver.client.PodSandboxStatus(pod_sandbox_id=pod)).status
            assert status.state == driver.pb.SANDBOX_READY
            addresses.append(status.network.ip)
        assert len(set(addresses)) == 3
        assert all(address.startswith("10.88.0.") for address in addresses)
        ended = await driver.ended(
            await driver.start(pods[1], "sh", "-c", "hostname; cat /etc/hostname /etc/resolv.conf")
        )
        lines = [text for _, _, text in log_of(ended)]
        assert lines == ["web-1", "web-1", "nameserver 10.96.0.10", "search a.b b", "options ndots:5"]

    do(act)


def test_pods_reach_each_other_and_a_freed_address_rests(do: Do) -> None:
    async def act(driver: Driver) -> None:
        server, client = [await driver.pod(name) for name in ("server", "client")]
        address = (await driver.client.PodSandboxStatus(pod_sandbox_id=server)).status.network.ip
        await driver.start(server, "python3", "-c", SERVER.format("0.0.0.0"), image="python")
        there = f"import urllib.request as u; print(u.urlopen('http://{address}').status)"
        asked = await driver.start(client, *FOREVER, image="python")
        answer = await driver.until(lambda: driver.sync(asked, "python3", "-c", there), lambda done: not done.exit_code)
        assert answer.stdout == b"200\n"
        await driver.remove(server)
        used = {address}
        for _ in range(5):
            pod = await driver.pod()
            used.add((await driver.client.PodSandboxStatus(pod_sandbox_id=pod)).status.network.ip)
            await driver.remove(pod)
        assert len(used) == 6

    do(act)


def test_what_is_gone_may_be_stopped_and_removed_again(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pod = await driver.pod()
        container = await driver.start(pod, *FOREVER)
        for _ in range(2):
            await driver.client.StopContainer(container_id=container, timeout=0)
        for _ in range(2):
            await driver.client.RemoveContainer(container_id=container)
        for _ in range(2):
            await driver.client.StopPodSandbox(pod_sandbox_id=pod)
        status = (await driver.client.PodSandboxStatus(pod_sandbox_id=pod)).status
        assert (status.state, status.network.ip) == (driver.pb.SANDBOX_NOTREADY, "")
        with refused("FAILED_PRECONDITION", "not ready"):
            await driver.create(pod, *FOREVER)
        for _ in range(2):
            await driver.client.RemovePodSandbox(pod_sandbox_id=pod)
        with refused("NOT_FOUND"):
            await driver.client.PodSandboxStatus(pod_sandbox_id=pod)
        with refused("NOT_FOUND"):
            await driver.client.ContainerStatus(container_id=container)

    do(act)


def test_what_cannot_be_done_is_refused_with_its_name_and_leaves_nothing(do: Do) -> None:
    async def act(driver: Driver) -> None:
        ports = [driver.pb.PortMapping(container_port=80, host_port=8080)]
        with refused("INVALID_ARGUMENT", "hostPort (container port 80 → host port 8080)"):
            await driver.pod(port_mappings=ports)
        with refused("INVALID_ARGUMENT", "the sysctl vm.swappiness"):
            await driver.pod(linux=driver.pb.LinuxPodSandboxConfig(sysctls={"vm.swappiness": "1"}))
        assert not (await driver.client.ListPodSandbox()).items
        with refused("UNIMPLEMENTED", "CheckpointContainer"):
            await driver.client.CheckpointContainer()

    do(act)


def test_lists_are_filtered_by_id_state_and_labels(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pb, client = driver.pb, driver.client
        pods = [await driver.pod(labels={"app": app}) for app in ("a", "b")]
        running = await driver.start(pods[0], *FOREVER, labels={"part": "x"})
        created = await driver.create(pods[0], *FOREVER, name="d")

        async def containers(**filter: object) -> set[str]:
            answer = await client.ListContainers(filter=pb.ContainerFilter(**filter))
            return {found.id for found in answer.containers}

        async def sandboxes(**filter: object) -> set[str]:
            answer = await client.ListPodSandbox(filter=pb.PodSandboxFilter(**filter))
            return {found.id for found in answer.items}

        assert await sandboxes() == set(pods)
        assert await sandboxes(label_selector={"app": "b"}) == {pods[1]}
        assert await sandboxes(id=pods[0][:13]) == {pods[0]}
        await client.StopPodSandbox(pod_sandbox_id=pods[1])
        assert await sandboxes(state=pb.PodSandboxStateValue(state=pb.SANDBOX_NOTREADY)) == {pods[1]}
        assert await sandboxes(state=pb.PodSandboxStateValue(state=pb.SANDBOX_READY)) == {pods[0]}
        assert await containers() == {running, created}
        assert await containers(pod_sandbox_id=pods[1]) == set()
        assert await containers(state=pb.ContainerStateValue(state=pb.CONTAINER_CREATED)) == {created}
        assert await containers(label_selector={"part": "x"}) == {running}
        assert await containers(id=running[:10]) == {running}

    do(act)


# ---- containers


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("echo out; echo err >&2", 0, "Completed"), ("exit 7", 7, "Error"), ("kill -9 $$", 137, "Error")],
)
def test_how_a_container_ended(do: Do, script: str, code: int, reason: str) -> None:
    async def act(driver: Driver) -> None:
        ended = await driver.ended(await driver.start(await driver.pod(), "sh", "-c", script))
        assert (ended.exit_code, ended.reason) == (code, reason)
        assert ended.created_at <= ended.started_at <= ended.finished_at
        if not code:
            assert sorted(log_of(ended)) == [["stderr", "F", "err"], ["stdout", "F", "out"]]

    do(act)


def test_a_program_that_is_not_there_is_a_start_error(do: Do) -> None:
    async def act(driver: Driver) -> None:
        container = await driver.create(await driver.pod(), "no-such-program")
        with refused("UNKNOWN", 'exec: "no-such-program": executable file not found in $PATH'):
            await driver.client.StartContainer(container_id=container)
        status = await driver.status(container)
        assert (status.state, status.exit_code, status.reason) == (driver.pb.CONTAINER_EXITED, 128, "StartError")
        assert "executable file not found" in status.message
        with refused("FAILED_PRECONDITION", "CONTAINER_EXITED"):
            await driver.client.StartContainer(container_id=container)

    do(act)


def test_more_memory_than_the_limit_is_oom_killed(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pod, pb = await driver.pod(), driver.pb
        linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(memory_limit_in_bytes=64 << 20))
        take = "x = bytearray(200 << 20); import time; print('had', flush=True); time.sleep(100000)"
        ended = await driver.ended(await driver.start(pod, "python3", "-c", take, image="python", linux=linux))
        assert (ended.exit_code, ended.reason) == (137, "OOMKilled")

    do(act)


def test_a_raised_limit_is_one(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pod, pb = await driver.pod(), driver.pb
        linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(memory_limit_in_bytes=64 << 20))
        container = await driver.start(pod, *FOREVER, image="python", linux=linux)
        more = pb.LinuxContainerResources(memory_limit_in_bytes=400 << 20)
        await driver.client.UpdateContainerResources(container_id=container, linux=more)
        assert (await driver.status(container)).resources.linux.memory_limit_in_bytes == 400 << 20
        took = await driver.sync(container, "python3", "-c", "x = bytearray(200 << 20); print(len(x))")
        assert (took.exit_code, took.stdout) == (0, b"%d\n" % (200 << 20))

    do(act)


def test_stopping_asks_first_and_kills_after_the_grace_and_holds_up_nobody(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pod, client = await driver.pod(), driver.client
        polite = await driver.start(pod, "sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done")
        stubborn = await driver.start(pod, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done", name="d")
        usr1 = await driver.start(
            pod, "sh", "-c", "trap 'exit 6' USR1; echo up; while :; do sleep 0.05; done", stop_signal=driver.pb.SIGUSR1
        )
        for id in (polite, stubborn, usr1):
            await driver.until(lambda id=id: driver.status(id), lambda status: Path(status.log_path).read_text())
        stopping = asyncio.ensure_future(client.StopContainer(container_id=stubborn, timeout=2))
        await client.StopContainer(container_id=polite, timeout=30)
        assert not stopping.done()
        await client.StopContainer(container_id=usr1, timeout=30)
        await stopping
        codes = [(await driver.status(id)).exit_code for id in (polite, stubborn, usr1)]
        assert codes == [5, 137, 6]

    do(act)


def test_processes_are_shared_as_the_pod_says(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pb = driver.pb

        async def processes(mode: int, target: str = "") -> bytes:
            options = pb.NamespaceOption(pid=mode, target_id=target)
            linux = pb.LinuxContainerConfig(
                security_context=pb.LinuxContainerSecurityContext(namespace_options=options)
            )
            container = await driver.start(pods[mode], *FOREVER, name="d", linux=linux)
            script = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"
            return (await driver.sync(container, "sh", "-c", script)).stdout

        pods, others = {}, {}
        for mode in (pb.POD, pb.CONTAINER):
            options = pb.NamespaceOption(pid=mode)
            security = pb.LinuxSandboxSecurityContext(namespace_options=options)
            pods[mode] = await driver.pod(linux=pb.LinuxPodSandboxConfig(security_context=security))
            own = pb.LinuxContainerSecurityContext(namespace_options=options)
            linux = pb.LinuxContainerConfig(security_context=own)
            others[mode] = await driver.start(pods[mode], "sleep", "54321", linux=linux)
        pods[pb.TARGET] = pods[pb.CONTAINER]
        assert b"sleep 54321" in await processes(pb.POD)
        assert b"sleep 54321" not in await processes(pb.CONTAINER)
        assert b"sleep 54321" in await processes(pb.TARGET, others[pb.CONTAINER])

    do(act)


def test_users_groups_environment_and_read_only_roots(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pb, pod = driver.pb, await driver.pod("who")
        security = pb.LinuxContainerSecurityContext(
            run_as_user=pb.Int64Value(value=1234),
            run_as_group=pb.Int64Value(value=77),
            supplemental_groups=[88],
            readonly_rootfs=True,
        )
        envs = [pb.KeyValue(key="A", value=b"b c")]
        script = "id -u; id -g; id -G; echo $A $HOSTNAME; touch /x 2>&1; pwd"
        container = await driver.start(
            pod,
            *("sh", "-c", script),
            envs=envs,
            working_dir="/usr",
            linux=pb.LinuxContainerConfig(security_context=security),
        )
        lines = [text for _, _, text in log_of(await driver.ended(container))]
        assert lines[:4] == ["1234", "77", "77 88", "b c who"]
        assert "Read-only file system" in lines[4]
        assert lines[5] == "/usr"
        user = (await driver.status(container)).user.linux
        assert (user.uid, user.gid, list(user.supplemental_groups)) == (1234, 77, [77, 88])

    if os.getuid():
        pytest.skip("only root has other users to give")
    do(act)


def test_volumes_are_mounted_and_a_missing_host_path_is_made(do: Do, tmp_path: Path) -> None:
    async def act(driver: Driver) -> None:
        mount = driver.pb.Mount
        (tmp_path / "here").write_text("here\n")
        mounts = [
            mount(host_path=str(tmp_path), container_path="/data"),
            mount(host_path=str(tmp_path / "here"), container_path="/data/in/file", readonly=True),
            mount(host_path=str(tmp_path / "new" / "one"), container_path="/new"),
        ]
        script = "cat /data/in/file; echo x > /data/out; echo y > /new/out; echo z > /data/in/file"
        ended = await driver.ended(await driver.start(await driver.pod(), "sh", "-c", script, mounts=mounts))
        assert ["stdout", "F", "here"] in log_of(ended)
        assert any("Read-only file system" in text for _, _, text in log_of(ended))
        assert (tmp_path / "out").read_text() == "x\n"
        assert (tmp_path / "new" / "one" / "out").read_text() == "y\n"

    do(act)


def test_a_log_that_was_moved_away_is_opened_anew(do: Do) -> None:
    async def act(driver: Driver) -> None:
        container = await driver.start(await driver.pod(), "sh", "-c", "while :; do echo x; sleep 0.02; done")
        log = Path((await driver.status(container)).log_path)
        await driver.until(lambda: driver.status(container), lambda _: log.exists() and log.read_text())
        log.rename(log.with_suffix(".old"))
        await driver.client.ReopenContainerLog(container_id=container)
        await driver.until(lambda: driver.status(container), lambda _: log.exists() and log.read_text())
        await driver.client.StopContainer(container_id=container)
        with refused("FAILED_PRECONDITION"):
            await driver.client.ReopenContainerLog(container_id=container)

    do(act)


def test_what_is_used_is_told(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pod = await driver.pod("busy")
        script = "x = bytearray(50 << 20); print('had', flush=True)\nwhile True: pass"
        container = await driver.start(pod, "python3", "-c", script, image="python")

        async def stats() -> object:
            return (await driver.client.ContainerStats(container_id=container)).stats

        told = await driver.until(
            stats, lambda told: told.memory.usage_bytes.value > 50 << 20 and told.cpu.usage_nano_cores.value > 10**7
        )
        assert told.cpu.usage_core_nano_seconds.value > 0
        assert told.writable_layer.fs_id.mountpoint == str(driver.machine.disk)
        whole = (await driver.client.PodSandboxStats(pod_sandbox_id=pod)).stats
        assert whole.attributes.metadata.name == "busy"
        assert whole.linux.memory.usage_bytes.value > 50 << 20
        assert whole.linux.process.process_count.value >= 1
        assert whole.linux.network.default_interface.name == "eth0"
        assert [one.attributes.id for one in whole.linux.containers] == [container]
        (filesystem,) = (await driver.client.ImageFsInfo()).image_filesystems
        assert filesystem.used_bytes.value > 0

    do(act)


# ---- images


def test_an_unknown_image_is_not_found_and_a_known_one_is_there_after_it_was_pulled(do: Do) -> None:
    async def act(driver: Driver) -> None:
        client, spec = driver.client, driver.pb.ImageSpec
        with refused("NOT_FOUND", 'failed to resolve reference "docker.io/library/nope:1": docker.io/library/nope:1'):
            await client.PullImage(image=spec(image="nope:1"))
        assert not (await client.ImageStatus(image=spec(image="nope:1"))).HasField("image")
        id = (await client.PullImage(image=spec(image="alpine:3"))).image_ref
        status = (await client.ImageStatus(image=spec(image="alpine:3"))).image
        assert (status.id, list(status.repo_tags)) == (id, ["docker.io/library/alpine:3"])
        await client.RemoveImage(image=spec(image=id))
        assert not (await client.ImageStatus(image=spec(image="alpine:3"))).HasField("image")

    do(act)


# ---- commands and streams


def test_a_command_in_a_container(do: Do) -> None:
    async def act(driver: Driver) -> None:
        container = await driver.start(await driver.pod(), *FOREVER)
        done = await driver.sync(container, "sh", "-c", "echo out; echo err >&2; exit 9")
        assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 9)
        much = await driver.sync(container, "sh", "-c", "head -c 20000000 /dev/zero; echo end >&2")
        assert 15 << 20 < len(much.stdout) < 16 << 20
        assert much.exit_code == 0
        with refused("UNKNOWN", 'exec: "nope": executable file not found in $PATH'):
            await driver.sync(container, "nope")
        with refused("DEADLINE_EXCEEDED", "timeout 1s exceeded"):
            await driver.sync(container, "sh", "-c", "sleep 4321; true", timeout=1)
        left = await driver.sync(container, "sh", "-c", "grep -l '[4]321' /proc/[0-9]*/cmdline || true")
        assert not left.stdout
        await driver.client.StopContainer(container_id=container)
        with refused("FAILED_PRECONDITION", "CONTAINER_EXITED"):
            await driver.sync(container, "true")

    do(act)


def test_exec_streams_and_a_client_that_hangs_up(do: Do) -> None:
    async def act(driver: Driver) -> None:
        container, connect = await driver.start(await driver.pod(), *FOREVER), driver.machine.connect
        fields = {"container_id": container, "stdin": True, "stdout": True, "stderr": True}
        answer = await driver.client.Exec(cmd=["sh", "-c", "cat; exit 3"], **fields)
        async with session(answer.url, COMMAND, connect) as client:
            ids = {name: await client.open(streamtype=name) for name in ("error", "stdin", "stdout", "stderr")}
            await client.send(ids["stdin"], b"x" * 5_000_000, end=True)
            assert await client.whole(ids["stdout"]) == b"x" * 5_000_000
            assert exit_code(await client.whole(ids["error"])) == 3
        answer = await driver.client.Exec(cmd=["sh", "-c", "sleep 4321; true"], **fields)
        async with session(answer.url, COMMAND, connect) as client:
            for name in ("error", "stdin", "stdout", "stderr"):
                await client.open(streamtype=name)
            look = ("sh", "-c", "grep -l '[4]321' /proc/[0-9]*/cmdline || true")
            await driver.until(lambda: driver.sync(container, *look), lambda done: done.stdout)
        await driver.until(lambda: driver.sync(container, *look), lambda done: not done.stdout)

    do(act)


def test_a_terminal_has_the_size_that_the_client_says(do: Do) -> None:
    async def act(driver: Driver) -> None:
        container = await driver.start(await driver.pod(), *FOREVER)
        command = ["sh", "-c", "while read x; do stty size; tty; done; exit 4"]
        answer = await driver.client.Exec(container_id=container, cmd=command, stdin=True, stdout=True, tty=True)
        async with session(answer.url, COMMAND, driver.machine.connect) as client:
            ids = {name: await client.open(streamtype=name) for name in ("error", "stdin", "stdout", "resize")}
            await client.send(ids["resize"], json.dumps({"Width": 91, "Height": 17}).encode())
            while b"17 91\r\n/dev/pts/0" not in client.received[ids["stdout"]]:
                seen = len(client.received[ids["stdout"]])
                await client.send(ids["stdin"], b"\n")
                await client.until(lambda seen=seen: len(client.received[ids["stdout"]]) > seen)
            await client.send(ids["stdin"], b"\x04")
            assert exit_code(await client.whole(ids["error"])) == 4

    do(act)


def test_attach_shows_what_comes_and_gives_input_once(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pod = await driver.pod()
        container = await driver.start(pod, "sh", "-c", "cat; echo end >&2; exit 2", stdin=True, stdin_once=True)
        answer = await driver.client.Attach(container_id=container, stdin=True, stdout=True, stderr=True)
        async with session(answer.url, COMMAND, driver.machine.connect) as client:
            ids = {name: await client.open(streamtype=name) for name in ("error", "stdin", "stdout", "stderr")}
            await client.send(ids["stdin"], b"hello\n", end=True)
            assert await client.whole(ids["stdout"]) == b"hello\n"
            assert await client.whole(ids["stderr"]) == b"end\n"
        assert (await driver.ended(container)).exit_code == 2

    do(act)


def test_a_port_is_forwarded_to_the_pods_own_loopback(do: Do) -> None:
    async def act(driver: Driver) -> None:
        pod = await driver.pod("web")
        server = await driver.start(pod, "python3", "-uc", SERVER.format("127.0.0.1"), image="python")
        await driver.until(lambda: driver.status(server), lambda status: Path(status.log_path).read_text())
        answer = await driver.client.PortForward(pod_sandbox_id=pod, port=[80])
        async with session(answer.url, PORTS, driver.machine.connect) as client:
            for request in ("0", "1"):
                headers = {"port": "80", "requestid": request}
                error, data = [await client.open(streamtype=kind, **headers) for kind in ("error", "data")]
                await client.send(data, b"GET / HTTP/1.0\r\n\r\n", end=True)
                assert b"200 OK" in await client.whole(data)
                assert await client.whole(error) == b""
            headers = {"port": "81", "requestid": "2"}
            error, _ = [await client.open(streamtype=kind, **headers) for kind in ("error", "data")]
            text = await client.whole(error)
            assert text == b"error forwarding port 81 to pod web: connection refused"

    do(act)


# ---- what dies


def test_a_runtime_that_is_killed_finds_its_containers_again(machine: Machine, do: Do, tmp_path: Path) -> None:
    state = {}

    async def before(driver: Driver) -> None:
        pod = await driver.pod("stays")
        running = await driver.start(pod, *FOREVER)
        ended = await driver.ended(await driver.start(pod, "sh", "-c", "exit 7", name="d"))
        mounts = [driver.pb.Mount(host_path=str(tmp_path), container_path="/data")]
        script = "while [ ! -e /data/go ]; do sleep 0.02; done; exit 8"
        dies = await driver.start(pod, "sh", "-c", script, name="e", mounts=mounts)
        created = await driver.create(pod, *FOREVER, name="f")
        address = (await driver.client.PodSandboxStatus(pod_sandbox_id=pod)).status.network.ip
        state.update(pod=pod, running=running, ended=ended, dies=dies, created=created, address=address)
        old = machine.runtime
        os.kill(old, signal.SIGKILL)
        (tmp_path / "go").touch()
        wait_until(lambda: not Path(f"/proc/{old}").exists(), 30, what="the runtime's end")
        machine.wait_for_runtime()

    async def both(driver: Driver) -> None:
        await before(driver)
        async with machine.client() as client:
            again = Driver(machine, client)
            status = (await client.PodSandboxStatus(pod_sandbox_id=state["pod"])).status
            assert (status.state, status.network.ip) == (again.pb.SANDBOX_READY, state["address"])
            assert all(one.status for one in (await client.Status()).status.conditions)
            assert (await again.status(state["running"])).state == again.pb.CONTAINER_RUNNING
            assert str(await again.status(state["ended"].id)) == str(state["ended"])
            assert (await again.ended(state["dies"])).exit_code == 8
            await client.StartContainer(container_id=state["created"])
            for id in (state["running"], state["created"]):
                assert (await again.sync(id, "hostname")).stdout == b"stays\n"
            other = await again.pod("other")
            assert (await client.PodSandboxStatus(pod_sandbox_id=other)).status.network.ip != state["address"]

    do(both)


def test_a_machine_that_was_lost_says_so_of_its_pods_and_they_can_be_removed(machine: Machine, do: Do) -> None:
    state = {}

    async def before() -> None:
        async with machine.client() as client:
            driver = Driver(machine, client)
            await driver.ready()
            pod = await driver.pod("lost")
            state.update(pod=pod, running=await driver.start(pod, *FOREVER))
            state["pid"] = int((await driver.sync(state["running"], "sh", "-c", "echo $PPID")).stdout)

    async def after(driver: Driver) -> None:
        pb, client = driver.pb, driver.client
        status = (await client.PodSandboxStatus(pod_sandbox_id=state["pod"])).status
        assert status.state == pb.SANDBOX_NOTREADY
        assert status.metadata.name == "lost"
        ended = await driver.status(state["running"])
        assert (ended.state, ended.exit_code, ended.reason) == (pb.CONTAINER_EXITED, 255, "Unknown")
        await driver.remove(state["pod"])
        pod = await driver.pod("lost")
        assert (await driver.sync(await driver.start(pod, *FOREVER), "hostname")).stdout == b"lost\n"

    asyncio.run(before())
    machine.kill()
    machine.start()
    do(after)


def test_damaged_files_cost_their_own_object_only(machine: Machine, do: Do) -> None:
    async def both(driver: Driver) -> None:
        sound, damaged = [await driver.pod(name) for name in ("sound", "damaged")]
        containers = {}
        for pod in (sound, damaged):
            containers[pod] = [await driver.start(pod, *FOREVER, name=name) for name in ("c", "d")]
        state = machine.disk / "cri"
        old = machine.runtime
        (state / "sandboxes" / f"{damaged}.json").write_text('{"config": {"metada')
        (state / "containers" / f"{containers[sound][0]}.json").write_text("")
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{old}").exists(), 30, what="the runtime's end")
        machine.wait_for_runtime()
        async with machine.client() as client:
            again = Driver(machine, client)
            states = {one.id: one.state for one in (await client.ListPodSandbox()).items}
            assert states == {sound: again.pb.SANDBOX_READY, damaged: again.pb.SANDBOX_NOTREADY}
            left = {one.id for one in (await client.ListContainers()).containers}
            assert left == {containers[sound][1], *containers[damaged]}
            assert (await again.sync(containers[sound][1], "hostname")).stdout == b"sound\n"
            await again.remove(damaged, sound)
        assert " . 10.88." not in machine.in_network("nft", "list", "set", "ip", "course", "hairpin")
        for part in ("sandboxes", "containers"):
            assert not list((state / part).iterdir())
            assert not list((machine.disk / part).iterdir())

    do(both)


# ---- what is left


def test_hundreds_of_pods_leave_nothing(machine: Machine, do: Do) -> None:
    def levels() -> dict[str, int]:
        pids = {"runtime": machine.runtime, "init": machine.init}
        found = {f"fds of {name}": len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()}
        found |= {
            f"mounts of {name}": Path(f"/proc/{pid}/mounts").read_text().count("\n") for name, pid in pids.items()
        }
        found["files"] = sum(1 for _ in machine.disk.rglob("*"))
        found["interfaces"] = machine.in_network("ip", "-o", "link").count("\n")
        found["routes"] = machine.in_network("ip", "route").count("\n")
        found["hairpins"] = machine.in_network("nft", "list", "set", "ip", "course", "hairpin").count(" . ") - 1
        found["threads of runtime"] = len(os.listdir(f"/proc/{machine.runtime}/task"))
        return found

    async def cycle(driver: Driver) -> None:
        pod = await driver.pod()
        container = await driver.start(pod, *FOREVER)
        assert (await driver.sync(container, "hostname")).exit_code == 0
        await driver.start(pod, "true", name="d")
        await driver.remove(pod)

    async def act(driver: Driver) -> None:
        for _ in range(5):  # until everything that is made once is made
            await asyncio.gather(*(cycle(driver) for _ in range(4)))
        before = levels()
        for _ in range(20):
            await asyncio.gather(*(cycle(driver) for _ in range(4)))
        memory = resident_bytes(machine.runtime)
        for _ in range(50):
            await asyncio.gather(*(cycle(driver) for _ in range(4)))
        after = await driver.until(_async(levels), lambda now: all(now[name] <= before[name] for name in before))
        assert after["hairpins"] == 0
        assert resident_bytes(machine.runtime) < memory + (2 << 20)

    do(act)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _async(function: Callable) -> Callable:
    async def call() -> object:
        return function()

    return call

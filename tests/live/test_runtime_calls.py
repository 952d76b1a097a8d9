"""The parts of the process runtime between the CRI's messages and what init is told. No machine is started."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from helpers.cluster.embedded.runtime import spec, unsupported
from helpers.cluster.embedded.runtime.cri import Messages, Refused, serve
from helpers.cluster.embedded.runtime.images import Entry, Images, read_table
from helpers.cluster.embedded.runtime.objects import Container, Objects, Sandbox
from helpers.cluster.embedded.runtime.state import Store
from helpers.cluster.embedded.runtime.stats import Disk, memory_message
from helpers.errors import CourseError
from tests.cri import Client, descriptor

pytestmark = pytest.mark.live
try:
    pb = Messages(descriptor())
except CourseError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_messages_and_enum_values_are_there_by_name() -> None:
    assert (pb.SANDBOX_NOTREADY, pb.NODE, pb.SIGTERM) == (1, 2, 23)
    assert pb.enum_name("Signal", pb.SIGTERM) == "SIGTERM"
    assert pb.enum_name("Signal", 999) == "UNKNOWN_999"
    assert pb.KeyValue(key="a", value=b"\xff").value == b"\xff"  # bytes since 1.36
    with pytest.raises(AttributeError, match="no message or enum value NoSuchThing"):
        _ = pb.NoSuchThing


class Half:
    """Implements little, and that badly."""

    async def version(self, request: Message) -> Message:
        return pb.VersionResponse(runtime_name=request.version)

    async def status(self, request: Message) -> Message:
        raise Refused("NOT_FOUND", "it is not here")

    async def exec_sync(self, request: Message) -> Message:
        raise ZeroDivisionError("oops")


def test_calls_are_answered_refused_and_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def code(call: Any) -> tuple[str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        return error.value.code().name, error.value.details()

    async def run() -> None:
        path = tmp_path / "cri.sock"
        path.write_text("left from before")
        server = await serve(path, pb, Half(), object())
        assert path.stat().st_mode & 0o777 == 0o600
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            client = Client(pb, channel)
            assert (await client.Version(version="x")).runtime_name == "x"
            assert await code(client.Status()) == ("NOT_FOUND", "it is not here")
            assert await code(client.ExecSync()) == ("INTERNAL", "ZeroDivisionError: oops")
            text = "the process runtime does not implement RemoveImage"
            assert await code(client.RemoveImage()) == ("UNIMPLEMENTED", text)
            stream = client.GetContainerEvents()
            assert (await code(stream.read()))[0] == "UNIMPLEMENTED"
        await server.stop(0)

    asyncio.run(run())
    failed = [record.message for record in caplog.records if " failed after " in record.message]
    assert [line.split(" ")[0] for line in failed] == ["Status", "ExecSync", "RemoveImage"]


def images(tmp_path: Path, *entries: dict[str, Any], delay_s: float = 0.0) -> Images:
    return Images(pb, read_table(list(entries)), Store(tmp_path), delay_s, Disk(tmp_path))


def pull(made: Images, name: str) -> str:
    return asyncio.run(made.pull_image(pb.PullImageRequest(image=pb.ImageSpec(image=name)))).image_ref


def listed(made: Images, **filter: Any) -> list[Message]:
    request = pb.ListImagesRequest(filter=pb.ImageFilter(**filter))
    return list(asyncio.run(made.list_images(request)).images)


def test_tags_of_one_line_are_one_image_and_go_together(tmp_path: Path) -> None:
    made = images(tmp_path, {"name": "docker.io/rayproject/ray:*"}, {"name": "docker.io/library/busybox:*"})
    ids = {pull(made, "rayproject/ray:1"), pull(made, "rayproject/ray:2"), pull(made, "rayproject/ray:1")}
    assert len(ids) == 1
    other = pull(made, "busybox")
    assert other not in ids
    (ray,) = listed(made, image=pb.ImageSpec(image="rayproject/ray:2"))
    assert list(ray.repo_tags) == ["docker.io/rayproject/ray:1", "docker.io/rayproject/ray:2"]
    assert list(ray.repo_digests) == [f"docker.io/rayproject/ray@{ray.id}"]
    assert ray.size > 0
    again = images(tmp_path, {"name": "docker.io/rayproject/ray:*"})  # after a restart, with another table
    assert [image.id for image in listed(again)] == [ray.id]
    for name in ("rayproject/ray:1", "rayproject/ray:2", ray.id, f"rayproject/ray@{ray.id}"):
        assert again.find(name), name
    asyncio.run(again.remove_image(pb.RemoveImageRequest(image=pb.ImageSpec(image="rayproject/ray:2"))))
    assert not listed(again)
    assert not again.find("rayproject/ray:1")
    asyncio.run(again.remove_image(pb.RemoveImageRequest(image=pb.ImageSpec(image="rayproject/ray:2"))))


def test_a_name_by_digest_has_that_digest_and_no_tag(tmp_path: Path) -> None:
    made = images(tmp_path, {"name": "docker.io/library/busybox:*"})
    name = f"docker.io/library/busybox@sha256:{'a' * 64}"
    pull(made, name)
    (image,) = listed(made)
    assert (list(image.repo_tags), list(image.repo_digests)) == ([], [name])


def test_an_image_whose_command_is_missing_names_the_package(tmp_path: Path) -> None:
    made = images(
        tmp_path, {"name": "docker.io/library/redis:*", "needs": ["redis-server"], "env": {"PATH": "/nowhere"}}
    )
    with pytest.raises(Refused, match="install the package redis-server") as error:
        pull(made, "redis:7")
    assert error.value.code == grpc.StatusCode.FAILED_PRECONDITION


def test_only_the_first_pull_takes_its_time_and_two_at_once_share_it(tmp_path: Path) -> None:
    made = images(tmp_path, {"name": "docker.io/library/busybox:*"}, delay_s=0.3)

    async def both() -> float:
        requests = [pb.PullImageRequest(image=pb.ImageSpec(image=f"busybox:{tag}")) for tag in (1, 2)]
        begun = time.monotonic()
        await asyncio.gather(*map(made.pull_image, requests))
        return time.monotonic() - begun

    assert asyncio.run(both()) >= 0.3
    made._delay_s = None  # a further sleep would fail
    assert pull(made, "busybox:3")


IMAGE = Entry("a:*", env={"PATH": "/p", "X": "image"}, entrypoint=["entry"], command=["one", "two"], cwd="/w")


@pytest.mark.parametrize(
    ("command", "args", "argv"),
    [
        # https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/#notes
        ([], [], ["entry", "one", "two"]),
        (["c"], [], ["c"]),
        ([], ["a"], ["entry", "a"]),
        (["c"], ["a"], ["c", "a"]),
    ],
)
def test_command_and_args_replace_what_the_image_says(command: list[str], args: list[str], argv: list[str]) -> None:
    assert spec.arguments(pb.ContainerConfig(command=command, args=args), IMAGE) == argv


def test_nothing_to_run_is_refused() -> None:
    with pytest.raises(Refused, match="no command specified"):
        spec.arguments(pb.ContainerConfig(), Entry("a:*"))


def test_the_environment_is_the_images_then_the_pods() -> None:
    envs = [pb.KeyValue(key="X", value=b"pod"), pb.KeyValue(key="RAW", value=b"\xff")]
    env = spec.environment(pb.ContainerConfig(envs=envs, tty=True), IMAGE, "web-0")
    assert env == {"PATH": "/p", "X": "pod", "HOSTNAME": "web-0", "TERM": "xterm", "RAW": "\udcff"}
    assert (
        spec.environment(pb.ContainerConfig(envs=[pb.KeyValue(key="HOSTNAME", value=b"h")]), IMAGE, "w")["HOSTNAME"]
        == "h"
    )


def test_mounts_are_in_order_and_the_pods_own_win(tmp_path: Path) -> None:
    for name in ("hostname", "resolv.conf"):
        (tmp_path / name).touch()
    mounts = [
        pb.Mount(host_path=str(tmp_path / "new"), container_path="/a/b/c"),
        pb.Mount(host_path=str(tmp_path), container_path="/a", readonly=True, propagation=pb.PROPAGATION_BIDIRECTIONAL),
        pb.Mount(host_path="/dev/null", container_path="/etc/resolv.conf"),
    ]
    found = spec.mounts(pb, pb.ContainerConfig(mounts=mounts), tmp_path)
    assert [mount["target"] for mount in found] == ["/a", "/etc/hostname", "/etc/resolv.conf", "/a/b/c"]
    assert found[0] == {"source": str(tmp_path), "target": "/a", "read_only": True, "propagation": "bidirectional"}
    assert found[2]["source"] == "/dev/null"
    assert (tmp_path / "new").is_dir()


def test_users_are_numbers_and_have_the_groups_of_the_host() -> None:
    context = pb.LinuxContainerSecurityContext
    assert spec.resolve_user(pb, context()).uid == 0
    number = pb.Int64Value(value=4_000_001)
    nobody_knows = context(run_as_user=number, supplemental_groups=[9])
    assert spec.resolve_user(pb, nobody_knows) == spec.User(4_000_001, 0, (0, 9))
    strict = context(run_as_user=number, supplemental_groups=[9], supplemental_groups_policy=pb.Strict)
    assert spec.resolve_user(pb, strict).groups == (9,)
    assert spec.resolve_user(pb, context(run_as_username="root")).uid == 0
    with pytest.raises(Refused, match="no user nobody-of-that-name"):
        spec.resolve_user(pb, context(run_as_username="nobody-of-that-name"))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("RUNTIME_DEFAULT", signal.SIGTERM),
        ("SIGQUIT", signal.SIGQUIT),
        ("SIGPOLL", signal.SIGIO),
        ("SIGRTMIN", signal.SIGRTMIN),
        ("SIGRTMINPLUS3", signal.SIGRTMIN + 3),
        ("SIGRTMAXMINUS2", signal.SIGRTMAX - 2),
    ],
)
def test_stop_signals_have_the_numbers_of_this_kernel(name: str, number: int) -> None:
    assert spec.stop_signal(pb, pb.ContainerConfig(stop_signal=getattr(pb, name))) == number


def test_every_stop_signal_of_the_cri_has_a_number() -> None:
    for number in range(66):
        assert 0 < spec.stop_signal(pb, pb.ContainerConfig(stop_signal=number)) < signal.NSIG


def test_resolv_conf_says_what_the_pod_says() -> None:
    dns = pb.DNSConfig(servers=["1.1.1.1", "2.2.2.2"], searches=["a", "b"], options=["ndots:5", "edns0"])
    text = "nameserver 1.1.1.1\nnameserver 2.2.2.2\nsearch a b\noptions ndots:5 edns0\n"
    assert spec.resolv_conf(dns) == text
    assert spec.resolv_conf(pb.DNSConfig()) == ""


def test_privileged_containers_see_all_of_proc_and_others_what_the_kubelet_leaves(tmp_path: Path) -> None:
    for privileged in (False, True):
        paths = {"masked_paths": ["/proc/kcore"], "readonly_paths": ["/proc/sys"]}
        security = pb.LinuxContainerSecurityContext(privileged=privileged, **paths)
        config = pb.ContainerConfig(linux=pb.LinuxContainerConfig(security_context=security))
        made = spec.container_spec(pb, "s", config, IMAGE, "h", None, tmp_path)
        assert {name: made[name] for name in paths} == ({name: [] for name in paths} if privileged else paths)
        assert (made["cwd"], made["log"], made["pid_target"]) == ("/w", None, None)


# ---- what is refused

SECURITY = pb.LinuxContainerSecurityContext
LOCALHOST = pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref="p.json")
HUGE = pb.HugepageLimit(page_size="2Mi", limit=1)
OWN_USERS = pb.NamespaceOption(userns_options=pb.UserNamespace(mode=pb.POD))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"devices": [pb.Device(host_path="/dev/x")]}, "devices (/dev/x)"),
        ({"CDI_devices": [pb.CDIDevice(name="v/c=1")]}, "CDI devices (v/c=1)"),
        ({"windows": pb.WindowsContainerConfig()}, "Windows"),
        ({"mounts": [pb.Mount(container_path="/m", image=pb.ImageSpec(image="i"))]}, "an image as a volume (i at /m)"),
        ({"mounts": [pb.Mount(container_path="/m", uidMappings=[pb.IDMapping()])]}, "mapped ids (/m)"),
        ({"mounts": [pb.Mount(container_path="/m", recursive_read_only=True)]}, "recursiveReadOnly (/m)"),
        ({"security": SECURITY(capabilities=pb.Capability(add_capabilities=["FLY"]))}, "no capability FLY"),
        ({"security": SECURITY(selinux_options=pb.SELinuxOption(level="s0"))}, "seLinuxOptions"),
        ({"security": SECURITY(seccomp=LOCALHOST)}, "seccompProfile (p.json)"),
        ({"security": SECURITY(seccomp_profile_path="localhost/q")}, "seccompProfile (localhost/q)"),
        ({"security": SECURITY(apparmor=LOCALHOST)}, "appArmorProfile (p.json)"),
        ({"security": SECURITY(apparmor_profile="localhost/q")}, "appArmorProfile (localhost/q)"),
        ({"security": SECURITY(namespace_options=OWN_USERS)}, "hostUsers: false"),
        ({"security": SECURITY(run_as_group=pb.Int64Value(value=1))}, "runAsGroup is set without runAsUser"),
        ({"resources": pb.LinuxContainerResources(cpuset_cpus="0")}, "cpuset"),
        ({"resources": pb.LinuxContainerResources(hugepage_limits=[HUGE])}, "hugepages-2Mi"),
        ({"resources": pb.LinuxContainerResources(unified={"memory.high": "1"})}, "memory.high"),
        ({"resources": pb.LinuxContainerResources(memory_swap_limit_in_bytes=5, memory_limit_in_bytes=4)}, "swap"),
    ],
)
def test_what_a_container_cannot_have_is_refused_with_its_name(config: dict[str, Any], named: str) -> None:
    linux = {"security_context": config.pop("security", None), "resources": config.pop("resources", None)}
    with pytest.raises(Refused) as error:
        unsupported.check_container(pb, pb.ContainerConfig(**config, linux=pb.LinuxContainerConfig(**linux)))
    assert error.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert named in error.value.text


def sandbox_config(network: int = 0, ipc: int = 0, sysctls: dict[str, str] | None = None, **fields: Any) -> Message:
    options = pb.NamespaceOption(network=network, ipc=ipc)
    security = pb.LinuxSandboxSecurityContext(namespace_options=options)
    linux = pb.LinuxPodSandboxConfig(security_context=security, sysctls=sysctls)
    return pb.PodSandboxConfig(linux=linux, **fields)


PORT = pb.PortMapping(container_port=80, host_port=8080)


@pytest.mark.parametrize(
    ("config", "handler", "named"),
    [
        (sandbox_config(), "gvisor", "runtimeClassName (handler gvisor)"),
        (sandbox_config(port_mappings=[PORT]), "", "hostPort (container port 80 → host port 8080)"),
        (sandbox_config(windows=pb.WindowsPodSandboxConfig()), "", "Windows"),
        (sandbox_config(sysctls={"vm.overcommit_memory": "1"}), "", "vm.overcommit_memory"),
        (sandbox_config(sysctls={"kernel/panic": "1"}), "", "kernel.panic"),
        (sandbox_config(network=pb.NODE, sysctls={"net.ipv4.ip_forward": "0"}), "", "hostNetwork"),
        (sandbox_config(ipc=pb.NODE, sysctls={"kernel.msgmax": "0"}), "", "hostIPC"),
    ],
)
def test_what_a_pod_cannot_have_is_refused_with_its_name(config: Message, handler: str, named: str) -> None:
    with pytest.raises(Refused) as error:
        unsupported.check_sandbox(pb, config, handler)
    assert named in error.value.text


def test_what_kubelets_always_send_is_accepted() -> None:
    default = pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)
    unconfined = pb.SecurityProfile(profile_type=pb.SecurityProfile.Unconfined)
    ports = [pb.PortMapping(container_port=80)]
    sysctls = {"net.ipv4.tcp_syncookies": "1", "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "9"}
    config = sandbox_config(port_mappings=ports, sysctls=sysctls)
    config.linux.security_context.seccomp.CopyFrom(default)
    unsupported.check_sandbox(pb, config, "")
    unsupported.check_sandbox(pb, sandbox_config(network=pb.NODE, port_mappings=[PORT]), "")
    security = SECURITY(
        seccomp=unconfined,
        capabilities=pb.Capability(drop_capabilities=["ALL"]),
        namespace_options=pb.NamespaceOption(pid=pb.CONTAINER, userns_options=pb.UserNamespace(mode=pb.NODE)),
        run_as_user=pb.Int64Value(value=0),
    )
    resources = pb.LinuxContainerResources(
        cpu_period=100000, cpu_quota=5000, cpu_shares=2, hugepage_limits=[pb.HugepageLimit(page_size="2Mi")]
    )
    linux = pb.LinuxContainerConfig(security_context=security, resources=resources)
    unsupported.check_container(pb, pb.ContainerConfig(linux=linux))


# ---- state


def test_sandboxes_and_containers_come_back_as_they_were(tmp_path: Path) -> None:
    store = Store(tmp_path)
    objects = Objects(pb, store, tmp_path / "files")
    metadata = pb.PodSandboxMetadata(name="n", uid="u", namespace="d", attempt=1)
    config = pb.PodSandboxConfig(metadata=metadata, labels={"a": "b"}, log_directory="/logs")
    sandbox = Sandbox("s1", config, ready=True, ip="10.88.0.2")
    envs = [pb.KeyValue(key="k", value=b"\xff")]
    container_config = pb.ContainerConfig(metadata=pb.ContainerMetadata(name="c"), envs=envs, log_path="c.log")
    container = Container("c1", sandbox, container_config, "sha256:1", "name", "digest", [1, 2, [3]])
    objects.save_sandbox(sandbox)
    objects.save_container(container)
    container.update(
        {"state": "exited", "started_ns": 5, "code": 137, "oom_killed": True, "reason": "", "finished_ns": 9}
    )
    objects.save_container(container)
    again = Objects(pb, store, tmp_path / "files")
    again.load()
    assert str(again.sandbox_status(again.sandboxes["s1"])) == str(objects.sandbox_status(sandbox))
    found = again.containers["c1"]
    assert str(again.container_status(found)) == str(objects.container_status(container))
    assert found.config.envs[0].value == b"\xff"
    assert found.ended.is_set()
    assert (found.reason, str(found.log)) == ("OOMKilled", "/logs/c.log")


def test_a_damaged_sandbox_is_not_ready_and_a_damaged_container_is_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for kind in ("sandboxes", "containers"):
        store.save(kind, "x", {"config": {"nonsense": 1}})
    objects = Objects(pb, store, tmp_path / "files")
    objects.load()
    status = objects.sandbox_status(objects.sandboxes["x"])
    assert (status.state, status.metadata.name) == (pb.SANDBOX_NOTREADY, "damaged")
    assert not objects.containers
    assert store.ids("containers") == []


def test_what_is_available_is_said_only_under_a_limit() -> None:
    usage = {"memory_bytes": 60, "working_set_bytes": 50, "rss_bytes": 40}
    assert memory_message(pb, 1, usage, 80).available_bytes.value == 30
    assert memory_message(pb, 1, usage, 20).available_bytes.value == 0
    assert not memory_message(pb, 1, usage, 0).HasField("available_bytes")

"""What of the embedded cluster needs no namespaces: command lines, files of machines, back-off, status, sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import re
import select
import socket
import stat
import threading
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from helpers.cluster.embedded import (
    boot,
    cluster,
    control,
    controlplane,
    forwarder,
    machines,
    namespaces,
    pki,
    supervisor,
)
from helpers.cluster.embedded.cluster import EmbeddedCluster
from helpers.cluster.embedded.layout import DEFAULT_MACHINES, Layout, Machine
from helpers.cluster.embedded.runtime import rootfs
from helpers.cluster.embedded.runtime.backoff import Backoff
from helpers.cluster.embedded.status import Component, Status, age
from helpers.errors import CourseError
from helpers.state import course_root


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "a place" / "embedded")
    made.configs.mkdir(parents=True)
    return made


@pytest.fixture
def keys(layout: Layout) -> pki.Pki:
    return pki.Pki(layout.pki)


def binary(name: str) -> Path:
    return Path("/bin of ours") / name


# ---- command lines ---------------------------------------------------------------------------------------------------


@pytest.fixture
def components(layout: Layout, keys: pki.Pki) -> dict[str, boot.Component]:
    made = controlplane.components(layout, keys, binary, ("python", "-m"), 7)
    return {component.name: component for component in made}


def options(component: boot.Component) -> dict[str, str]:
    return dict(word.removeprefix("--").partition("=")[::2] for word in component.argv[1:])


def test_components_start_in_this_order(components):
    assert {name: component.after for name, component in components.items()} == {
        "etcd": (),
        "kube-apiserver": ("etcd",),
        "kube-controller-manager": ("kube-apiserver",),
        "kube-scheduler": ("kube-apiserver",),
        "coredns": ("kube-apiserver",),
        "kube-proxy": ("kube-apiserver",),
        "forwarder": (),
    }


def test_every_file_that_is_named_is_one_that_is_made(components, layout, keys):
    """A misspelt certificate would show at the first start only."""
    made = {keys.service_accounts_public, keys.key(pki.SERVICE_ACCOUNTS), controlplane.corefile(layout), layout.etcd}
    for name in [*pki.AUTHORITIES, *(certificate.name for certificate in pki.CERTIFICATES)]:
        made |= {keys.certificate(name), keys.key(name)}
    made |= {controlplane.kubeconfig(layout, user) for user in controlplane.USERS}
    words = [word.rpartition("=")[2] for component in components.values() for word in component.argv]
    named = {Path(word) for word in words if word.startswith(str(layout.root))}
    assert len(named) > 20
    assert named <= made


def test_each_kubeconfig_has_its_certificate():
    assert set(controlplane.USERS) <= {certificate.name for certificate in pki.CERTIFICATES}


def test_nothing_of_etcd_answers_without_a_certificate_but_its_health(components):
    etcd = options(components["etcd"])
    urls = {key: value for key, value in etcd.items() if key.endswith("urls")}
    assert {key for key, value in urls.items() if value.startswith("http://")} == {"listen-metrics-urls"}
    assert {"client-cert-auth", "peer-client-cert-auth"} <= set(etcd)


def test_api_server_and_controllers_agree(components):
    api, controllers = options(components["kube-apiserver"]), options(components["kube-controller-manager"])
    assert api["service-cluster-ip-range"] == controllers["service-cluster-ip-range"]
    assert api["service-account-signing-key-file"] == controllers["service-account-private-key-file"]
    assert api["authorization-mode"] == "Node,RBAC"
    assert not [name for name in api | controllers if name == "feature-gates"]  # as everywhere else


def test_kube_proxy_leaves_the_kernels_settings_alone(components):
    conntrack = {key: value for key, value in options(components["kube-proxy"]).items() if key.startswith("conntrack")}
    assert set(conntrack.values()) == {"0", "0s"} and len(conntrack) == 4


def test_kube_proxy_is_named_after_a_machine_that_runs(components):
    assert {name for name, component in components.items() if component.needs_machine} == {"kube-proxy"}


def test_coredns_may_read_what_it_serves_and_nothing_else():
    roles = {thing["metadata"]["name"]: thing for _, thing in controlplane.objects() if thing["kind"] == "ClusterRole"}
    resources = {name for rule in roles["system:coredns"]["rules"] for name in rule["resources"]}
    assert resources == {"services", "pods", "namespaces", "endpointslices"}
    assert {verb for rule in roles["system:coredns"]["rules"] for verb in rule["verbs"]} == {"list", "watch"}


def test_the_corefile_takes_a_path_with_a_space(layout):
    assert f'kubeconfig "{layout.configs}/coredns.kubeconfig"' in controlplane.corefile_text(layout)


def test_what_the_supervisor_is_told_survives_the_file(components, layout):
    machine = boot.DeclaredMachine("cpu-a", IPv4Address("10.88.255.11"), layout.machine("cpu-a").spec)
    told = boot.Boot(
        root=layout.root, env={"PATH": "/bin"}, nft="/sbin/nft",
        components=tuple(components.values()), init=("python", "-m", "init"),
        machines_after="kube-apiserver", machines=(machine,),
    )  # fmt: skip
    assert boot.Boot.from_text(told.as_text()) == told


# ---- machines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def writer(layout: Layout) -> machines.Writer:
    return machines.Writer(layout, binary, ("python", "-m"), {"PATH": "/bin"})


def test_a_machine_keeps_its_address(layout):
    addresses = [str(machines.declare(layout, machine).address) for machine in DEFAULT_MACHINES]
    assert addresses == ["10.88.255.11", "10.88.255.12", "10.88.255.13"]
    machines.forget(layout, "cpu-a")
    assert str(machines.declare(layout, Machine("later")).address) == "10.88.255.11"
    assert str(machines.declare(layout, DEFAULT_MACHINES[1]).address) == "10.88.255.12"


def test_what_is_declared_is_read_back(layout):
    for machine in DEFAULT_MACHINES:
        machines.declare(layout, machine)
    assert tuple(declaration.machine for declaration in machines.declared(layout).values()) == DEFAULT_MACHINES


def test_a_machine_does_not_change_its_shape(layout):
    machines.declare(layout, Machine("cpu-a", cpu=8))
    with pytest.raises(CourseError, match="of another shape already"):
        machines.declare(layout, Machine("cpu-a", cpu=16))


def test_addresses_end(layout, monkeypatch):
    monkeypatch.setattr(machines, "LAST_MACHINE", machines.FIRST_MACHINE + 1)
    for name in "ab":
        machines.declare(layout, Machine(name))
    with pytest.raises(CourseError, match="There are 2 machines, and no address is left"):
        machines.declare(layout, Machine("c"))


def on_the_host(layout: Layout, inside: Path | str) -> Path:
    return layout.root / Path(inside).relative_to(layout.inside.root)


def test_the_files_of_a_machine_agree(layout, keys, writer):
    declaration = machines.declare(layout, DEFAULT_MACHINES[2])
    keys.ensure(machines.certificates([declaration]))
    made, place = writer.write(declaration), layout.machine("gpu-a")
    init, runtime, kubelet = (
        json.loads(path.read_text()) for path in (place.spec, place.runtime_config, place.kubelet_spec)
    )
    assert on_the_host(layout, made.spec) == place.spec
    assert init["socket"] == runtime["init_socket"]
    assert init["services"][1]["after"] == runtime["socket"] == kubelet["cri_socket"]
    assert init["disk"] == runtime["disk"]
    assert init["cgroup"] == kubelet["cgroup"]
    assert all(on_the_host(layout, kubelet[name]).is_file() for name in ("tls_cert", "tls_key", "client_ca"))
    assert kubelet["extended"] == {"nvidia.com/gpu": 4}
    assert kubelet["memory_bytes"] == 128 * 2**30 and runtime["machine"] == kubelet["name"]
    # the kubelet makes sockets below its root, of up to 60 bytes more; a Unix address has 107 bytes at most
    assert max(len(path) for path in (init["socket"], runtime["socket"], kubelet["root"])) < 47
    private = [place.spec, place.runtime_config, place.kubelet_spec, place.kubeconfig]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_the_kubelets_spec_is_what_the_go_program_reads(layout, writer):
    declaration = machines.declare(layout, DEFAULT_MACHINES[0])
    writer.write(declaration)
    source = (course_root() / "tools" / "kubelet" / "spec.go").read_text()
    fields = re.findall(r'^\t\w+ .*`json:"(\w+)"`', source, re.MULTILINE)
    assert sorted(json.loads(layout.machine("cpu-a").kubelet_spec.read_text())) == sorted(fields)


def test_the_kubelets_configuration(layout, writer):
    writer.write_shared()
    config = yaml.safe_load((layout.configs / "kubelet.yaml").read_text())
    assert config["authentication"] == {"anonymous": {"enabled": False}, "webhook": {"enabled": True}}
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["clusterDNS"] == ["10.96.0.10"]
    assert set(config["evictionHard"].values()) == {"0%"}


def test_no_container_sees_keys_homes_or_answers(layout, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    hidden = machines.hidden(layout)
    for place in (tmp_path, layout.root, course_root()):
        assert any(place.resolve().is_relative_to(one) for one in hidden)
    assert "/" not in hidden


def test_a_home_that_is_the_root_hides_nothing_of_the_system(layout, monkeypatch):
    monkeypatch.setenv("HOME", "/")
    assert "/" not in machines.hidden(layout)


# ---- back-off --------------------------------------------------------------------------------------------------------


def test_waits_double_up_to_a_limit():
    backoff = Backoff()
    assert [backoff.after(1) for _ in range(8)] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])


def test_who_ran_long_begins_anew():
    backoff = Backoff()
    for _ in range(5):
        backoff.after(1)
    assert backoff.after(61) == 0.2
    assert backoff.after(59) == 0.4


# ---- the status ------------------------------------------------------------------------------------------------------

UP = Status(
    (
        Component("etcd", "ready", "3.6.16", 4711, 44 * 2**20, 0, 200),
        Component("kube-proxy", "backing off", "1.36.3", restarts=3),
        Component("cpu-a", "lost"),
    ),
    Path("/state/<kubeconfig>"),
    "https://127.0.0.1:26443",
    ("The cluster ran already.",),
)


def test_the_table_as_text():
    lines = str(UP).splitlines()
    assert lines[0] == "The embedded cluster is up at https://127.0.0.1:26443: 3 processes, 44 MiB."
    assert re.split(r"  +", lines[1]) == ["component", "state", "version", "pid", "memory", "restarts", "age"]
    assert re.split(r"  +", lines[2]) == ["etcd", "✔ ready", "3.6.16", "4711", "44 MiB", "0", "3m20s"]
    assert re.split(r"  +", lines[3]) == ["kube-proxy", "✘ backing off", "1.36.3", "–", "–", "3", "–"]
    assert "KUBECONFIG=/state/<kubeconfig>" in lines
    assert "The cluster ran already." in lines
    assert any("PVC" in line and "CPU limits" in line for line in lines)


def test_the_table_as_html():
    text = UP._repr_html_()
    assert '<th scope="row">etcd</th>' in text and "&lt;kubeconfig&gt;" in text


def test_the_table_in_a_terminal():
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as shown:
        console.print(UP)
    text = shown.get()
    assert "✔ ready" in text and "/state/<kubeconfig>" in text


def test_a_cluster_that_is_down_is_one_sentence():
    down = Status((), Path("/nowhere"))
    assert str(down) == "The embedded cluster is down. `course up` starts it."
    assert not down.is_up and not down.is_ready


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (7.9, "7s"), (200, "3m20s"), (7500, "2h5m"), (3600, "1h"), (273600, "3d4h")]
)
def test_ages_are_written_as_kubectl_does(seconds, text):
    assert age(seconds) == text


def test_logs_of_nothing(layout):
    with pytest.raises(CourseError, match="There is no log of etcd. Run `course up` first."):
        EmbeddedCluster(layout).logs("etcd")


def test_logs_that_are_put_aside_are_followed(layout):
    layout.logs.mkdir()
    log = layout.logs / "etcd.log"
    log.write_text("one\n")
    lines = EmbeddedCluster(layout).logs("etcd", follow=True)
    assert next(lines) == "one"
    log.rename(layout.logs / "etcd.log.1")
    log.write_text("two\n")
    assert next(lines) == "two"
    lines.close()


# ---- what stands in the way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "value", "said"),
    [
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns is 1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces is 0"),
        ("user/max_net_namespaces", "0", "user.max_net_namespaces is 0"),
    ],
)
def test_the_setting_that_forbids_namespaces_is_named(tmp_path, monkeypatch, file, value, said):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(value + "\n")
    assert said in namespaces._refused(tmp_path).what
    assert "sysctl -w" in namespaces._refused(tmp_path).fix


def test_users_further_ids_are_found_by_name_or_number(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(namespaces.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="ann"))
    file = tmp_path / "subuid"
    file.write_text("bob:100000:65536\nann:165536:65536\n")
    assert namespaces._sub_range(str(file)) == (165536, 65535)
    file.write_text("4242:300000:1000\n")
    assert namespaces._sub_range(str(file)) == (300000, 1000)
    file.write_text("bob:100000:65536\n")
    assert namespaces._sub_range(str(file)) is None
    assert namespaces._sub_range(str(tmp_path / "none")) is None


def refusal(call) -> str:
    with pytest.raises(CourseError) as caught:
        call()
    assert caught.value.what.endswith((".", "!")) and caught.value.fix.endswith(".")
    return str(caught.value)


def test_not_linux(layout, monkeypatch):
    monkeypatch.setattr(cluster.sys, "platform", "darwin")
    assert "needs Linux" in refusal(EmbeddedCluster(layout).up)


def test_no_nft(layout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(cluster, "SYSTEM_PATH", "")
    assert "apt-get install -y nftables" in refusal(EmbeddedCluster(layout).up)


def test_no_space(layout, monkeypatch):
    monkeypatch.setattr(cluster.shutil, "disk_usage", lambda place: SimpleNamespace(free=5 * 2**20))
    assert "5 MiB are free" in refusal(EmbeddedCluster(layout).up)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal(EmbeddedCluster(Layout(tmp_path / "file" / "embedded")).up)


def test_below_run():
    assert "below /run" in refusal(EmbeddedCluster(Layout(Path("/run/user/0/embedded"))).up)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENODEV, "This kernel has no overlay file system.*`sudo modprobe overlay"),
        (errno.EINVAL, "The file system of /the/disk cannot hold .*: Invalid argument. Set XDG_STATE_HOME"),
    ],
)
def test_an_overlay_that_is_refused(tmp_path, monkeypatch, number, said):
    def refuse(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(supervisor.linux, "mount", refuse)
    assert re.search(said, refusal(lambda: supervisor._check_overlay(tmp_path, Path("/the/disk"))))
    assert not list(tmp_path.iterdir())  # the trial leaves nothing


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENODEV, "this kernel has no overlay file system"), (errno.EINVAL, "through an overlay (Invalid argument)")],
)
def test_a_container_without_an_overlay_says_why(tmp_path, number, said):
    assert said in rootfs._no_overlay(str(tmp_path), OSError(number, os.strerror(number)))


def test_programs_that_are_not_built(layout, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{cluster.SYSTEM_PATH}")  # nft, and nothing that was installed
    assert "is not built yet. Run `course tools build`" in refusal(EmbeddedCluster(layout).up)


def test_a_cluster_that_is_down(layout):
    down = EmbeddedCluster(layout)
    assert not down.status().is_up
    assert down.down() is False
    assert "Run `course up` first" in refusal(lambda: down.add_machine(Machine("cpu-a")))
    assert not layout.machines.exists()  # nothing was declared by the way
    assert "The machines are: none." in refusal(lambda: down.remove_machine("cpu-a"))


# ---- the control socket ----------------------------------------------------------------------------------------------


def test_the_control_socket_works_below_a_long_path(tmp_path):
    root = tmp_path / ("a long name with spaces " * 5) / ("and more " * 10)
    root.mkdir(parents=True)
    with control.listen(root) as listener:
        assert stat.S_IMODE((root / control.NAME).stat().st_mode) == 0o600

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                stream.write(json.dumps({"asked": json.loads(stream.readline())}).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with control.connect(root, 5) as connection:
            assert control.supervisor_pid(connection) == os.getpid()
            assert control.ask(connection, op="status") == {"asked": {"op": "status"}}
        thread.join()
    with pytest.raises(OSError):
        control.connect(root, 5)


# ---- the forwarder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def through() -> Iterator[SimpleNamespace]:
    """A forwarder that runs; `server` is a listening socket behind it, `connect` a connection through it."""
    server = socket.create_server(("127.0.0.1", 0))
    front = socket.create_server(("127.0.0.1", 0))
    address, behind = front.getsockname(), server.getsockname()
    stop, running = [], threading.Event()

    async def serve() -> None:
        task = asyncio.ensure_future(forwarder.forward(front, behind))
        stop.append(functools.partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel))
        running.set()
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=[serve()])  # which ends open connections too
    thread.start()
    running.wait()
    yield SimpleNamespace(server=server, connect=lambda: socket.create_connection(address, timeout=10))
    stop[0]()
    thread.join()
    server.close()


def test_a_side_that_has_said_all_still_hears(through):
    with through.connect() as client, through.server.accept()[0] as behind:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        assert behind.makefile("rb").read() == b"question"
        behind.sendall(b"answer")
        behind.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read() == b"answer"


def test_who_does_not_read_is_not_read_from_for_ever(through):
    with through.connect() as client, through.server.accept()[0] as behind:
        client.setblocking(False)
        sent = 0
        with pytest.raises(BlockingIOError):
            while sent < 1 << 30:
                sent += send_or_wait(client)
        behind.settimeout(10)
        received = 0
        while received < sent:
            received += len(behind.recv(1 << 20))
    assert received == sent


def send_or_wait(client: socket.socket) -> int:
    """Send a piece; raises BlockingIOError when nothing could be sent for a second."""
    if not select.select([], [client], [], 1)[1]:
        raise BlockingIOError
    return client.send(b"x" * 65536)


def test_nobody_behind_closes_the_connection_and_the_next_one_is_served(through):
    port = through.server.getsockname()[1]
    through.server.close()
    with through.connect() as client:
        assert client.recv(1) == b""
    with socket.create_server(("127.0.0.1", port)) as back, through.connect() as client, back.accept()[0] as behind:
        client.sendall(b"again")
        assert behind.recv(5) == b"again"


def test_a_broken_connection_breaks_the_other_side_too(through):
    with through.connect() as client, through.server.accept()[0] as behind:
        client.sendall(b"x")
        assert behind.recv(1) == b"x"
        behind.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close by a reset
        behind.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""

"""The pure parts of a machine's init: its messages, names, mounts, look-ups."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.cluster.embedded.runtime import child, container, messages, rootfs
from helpers.cluster.embedded.runtime.messages import BadMessage
from helpers.cluster.embedded.runtime.sandbox import BadSandbox, Sandbox
from helpers.state import course_root

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only, as the runtime is")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        one.settimeout(10)
        other.settimeout(10)
        yield one, other


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [0, 1000, messages.IN_SOCKET, 1_000_000])
def test_messages_of_any_size(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    before = open_files()
    reader, writer = os.pipe()
    messages.send(pair[0], {"text": "ä" * size}, (writer,))
    message, fds = messages.receive(pair[1])
    assert message == {"text": "ä" * size} and len(fds) == 1
    os.write(fds[0], b"through")
    assert os.read(reader, 100) == b"through"
    assert not os.get_inheritable(fds[0])
    messages.close([reader, writer, *fds])
    assert open_files() == before


def test_the_end_of_a_conversation(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    assert messages.receive(pair[1]) is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x", "neither d nor f"),
        (b"f", "neither d nor f"),
        (b"d", "not JSON"),
        (b"d\xff\xfe", "not JSON"),
        (b"d3", "not a JSON object"),
        (b"d" + b"[" * 60_000, "not JSON"),
        (b"d" + b" " * messages.IN_SOCKET + b"{}", "too large"),
    ],
)
def test_bad_messages(pair: tuple[socket.socket, socket.socket], data: bytes, why: str) -> None:
    pair[0].send(data)
    with pytest.raises(BadMessage, match=why):
        messages.receive(pair[1])
    messages.send(pair[0], {"next": 1})
    assert messages.receive(pair[1]) == ({"next": 1}, [])


def send_file(sock: socket.socket, file: int) -> None:
    sock.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])


def test_a_file_that_is_none(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    before = open_files()
    reader, writer = os.pipe()
    send_file(pair[0], reader)  # it would never end
    with pytest.raises(BadMessage):
        messages.receive(pair[1])
    with open(tmp_path / "large", "wb") as file:
        file.truncate(messages.IN_FILE + 1)
        send_file(pair[0], file.fileno())
    with pytest.raises(BadMessage, match="too large"):
        messages.receive(pair[1])
    messages.close([reader, writer])
    assert open_files() == before


def test_lines_of_mountinfo() -> None:
    line = r"28 27 0:25 / /mnt/with\040space\134 ro,nosuid shared:1 master:2 - tmpfs none ro,size=4k"
    assert rootfs.parse_mount(line) == ("/mnt/with space\\", "tmpfs")


@pytest.mark.parametrize(
    ("path", "directories", "is_it"),
    [
        ("/usr", ["/usr"], True),
        ("/usr/lib", ["/usr"], True),
        ("/usrlib", ["/usr"], False),
        ("/usr", ["/usr/lib"], False),
        ("/x", ["/"], True),
        ("/x", [], False),
    ],
)
def test_below(path: str, directories: list[str], is_it: bool) -> None:
    assert rootfs.is_below(path, directories) is is_it


def test_file_system_of_a_path() -> None:
    assert rootfs.filesystem_of("/proc/self/status") == "proc"


def test_programs_are_found_as_a_shell_finds_them(tmp_path: Path) -> None:
    for directory, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "tool").touch()
        (tmp_path / directory / "tool").chmod(mode)
    path = f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second"
    assert child.find_program("tool", path) == f"{tmp_path}/second/tool"
    assert child.find_program(f"{tmp_path}/second/tool", "") == f"{tmp_path}/second/tool"
    (tmp_path / "first" / "dir").mkdir()
    for name, why in (
        ("dir", "executable file not found in $PATH"),
        (f"{tmp_path}/first", "is a directory"),
        (f"{tmp_path}/first/tool", "permission denied"),
        (f"{tmp_path}/x", f"stat {tmp_path}/x: no such file or directory"),
        (f"{tmp_path}/second/tool/x", f"stat {tmp_path}/second/tool/x: not a directory"),
    ):
        with pytest.raises(child.CannotRun) as caught:
            child.find_program(name, path)
        assert str(caught.value) == f'exec: "{name}": {why}'


def test_what_a_sandbox_has_for_itself() -> None:
    assert Sandbox("/s", {}).own == ["net", "ipc", "uts"]
    assert Sandbox("/s", {"namespaces": {"net": "host"}}).own == ["ipc"]
    shared = Sandbox("/s", {"namespaces": {"ipc": "host"}})
    assert (shared.own, shared.shm) == (["net", "uts"], "/dev/shm")
    assert Sandbox("/s", {}).shm == "/s/shm"


@pytest.mark.parametrize(
    ("namespaces", "sysctl"),
    [
        ({}, "vm.swappiness"),
        ({"net": "host"}, "net.ipv4.ip_forward"),
        ({"ipc": "host"}, "kernel.shmmax"),
        ({}, "kernel.x"),
    ],
)
def test_sysctls_of_the_machine_are_refused(namespaces: dict, sysctl: str) -> None:
    with pytest.raises(BadSandbox, match=f'sysctl "{sysctl}" is not of a namespace that the sandbox has for itself'):
        Sandbox("/s", {"namespaces": namespaces, "sysctls": {sysctl: "1"}})


def test_a_container_that_never_ran(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("{}")
    assert container.read_record(str(tmp_path)) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"state": "running", "pid": 7, "started_ns": 5}'])
def test_what_ran_when_the_machine_was_lost(tmp_path: Path, content: str) -> None:
    (tmp_path / "record.json").write_text(content)
    record = container.read_record(str(tmp_path))
    assert (record["state"], record["code"], record["reason"]) == ("exited", 255, "Unknown")
    assert record["started_ns"] < record["finished_ns"]
    assert container.read_record(str(tmp_path)) == record  # it does not end anew at each boot


def test_what_had_ended_before(tmp_path: Path) -> None:
    ended = container.EMPTY_RECORD | {"state": "exited", "code": 3, "finished_ns": 9}
    (tmp_path / "record.json").write_text(json.dumps(ended))
    assert container.read_record(str(tmp_path)) == ended


def test_the_init_stays_small() -> None:
    """It is there once for each machine: what costs memory is not loaded, whoever imports it."""
    code = "import sys, helpers.cluster.embedded.runtime.init; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=course_root(), capture_output=True, text=True, check=True)
    heavy = {"asyncio", "grpc", "google.protobuf", "inspect", "logging", "pathlib", "shutil", "subprocess", "threading"}
    assert not heavy & set(loaded.stdout.split())

"""The parts of the process runtime that need no machine, and not the messages of the CRI either."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.cluster.embedded.runtime import netlink
from helpers.cluster.embedded.runtime.__main__ import read_config
from helpers.cluster.embedded.runtime.cri import Messages, Refused, snake
from helpers.cluster.embedded.runtime.images import default_images, parse, read_table
from helpers.cluster.embedded.runtime.network import HAIRPIN, Addresses, NetworkError, read_usage, veth
from helpers.cluster.embedded.runtime.objects import EXITED, RUNNING, Container, Sandbox
from helpers.cluster.embedded.runtime.state import Store
from helpers.cluster.embedded.runtime.stats import Cores, Disk, walk
from helpers.errors import CourseError


@pytest.mark.parametrize("content", [None, b"\xff\xff\xff", b""])
def test_a_descriptor_that_is_none_says_how_to_get_one(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "cri.pb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CourseError, match="course tools build"):
        Messages(path)


def test_methods_are_called_as_python_calls_them() -> None:
    names = {"RunPodSandbox": "run_pod_sandbox", "Version": "version", "ImageFsInfo": "image_fs_info"}
    assert {name: snake(name) for name in names} == names


def test_a_configuration_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "runtime.json").write_text('{"socket": "/x"}')
    with pytest.raises(CourseError, match="init_socket"):
        read_config(tmp_path / "runtime.json")


# ---- images


LATEST = "latest"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("busybox", f"docker.io/library/busybox:{LATEST}"),
        ("rayproject/ray:2.60.0-py311", "docker.io/rayproject/ray:2.60.0-py311"),
        ("index.docker.io/library/redis:7", "docker.io/library/redis:7"),
        ("registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9"),
        ("localhost/a", f"localhost/a:{LATEST}"),
        ("host:5000/a/b", f"host:5000/a/b:{LATEST}"),
        (f"busybox@sha256:{'a' * 64}", f"docker.io/library/busybox@sha256:{'a' * 64}"),
        (f"busybox:1@sha256:{'a' * 64}", f"docker.io/library/busybox:1@sha256:{'a' * 64}"),
    ],
)
def test_names_of_images_are_made_full_as_docker_does(name: str, full: str) -> None:
    assert str(parse(name)) == full
    assert str(parse(full)) == full


@pytest.mark.parametrize("name", ["", "Busybox", "a:b:c", "a@sha256:12", "../x", "a b", ":tag", "a/"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="invalid reference format"):
        parse(name)


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        full = str(parse(text))
    except Refused:
        return
    assert str(parse(full)) == full


@pytest.mark.parametrize("line", [{"name": "a:*", "nedds": []}, {"name": "registry.k8s.io/a"}])
def test_a_wrong_line_of_the_table_is_named(line: dict[str, Any]) -> None:
    with pytest.raises(CourseError, match="table of images"):
        read_table([line])


def test_the_courses_own_table() -> None:
    table = read_table(default_images(Path("/prefix")))
    ray = next(entry for entry in table if entry.fits(parse("rayproject/ray:2.60.0-py311")))
    assert ray.environment["PATH"].startswith("/prefix/bin:")
    assert (ray.cwd, ray.environment["HOME"]) == ("/home/ray", "/home/ray")
    assert ray.environment["GRPC_ENABLE_FORK_SUPPORT"] == "0"  # else Ray Client fails now and then: ray#63202
    assert not [entry for entry in table if entry.fits(parse("evil/ray:1")) or entry.fits(parse("ray:1"))]
    assert len({entry.id for entry in table}) == len(table)
    for name in ("busybox", "nginx:1.27", "redis:7", "python:3.11-slim", "registry.k8s.io/pause:3.10"):
        assert any(entry.fits(parse(name)) for entry in table), name


# ---- specs


def test_the_store_replaces_whole_files_and_passes_over_damaged_ones(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.save("pods", "a", {"x": 1})
    store.save("pods", "a", {"x": 2})
    assert Store(tmp_path / "s").load("pods", "a") == {"x": 2}
    assert (tmp_path / "s").stat().st_mode & 0o77 == 0
    for damaged in ('{"x":', "[]", "\0"):
        (tmp_path / "s" / "pods" / "b.json").write_text(damaged)
        assert store.load("pods", "b") is None
    (tmp_path / "s" / "pods" / "c.new").write_text("{}")  # of somebody who was killed while writing
    assert store.ids("pods") == ["a", "b"]
    store.remove("pods", "b")
    store.remove("pods", "b")
    assert store.ids("pods") == ["a"]
    assert store.load("nothing", "a") is None


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"code": 0}, "Completed"),
        ({"code": 3}, "Error"),
        ({"code": 137, "oom_killed": True}, "OOMKilled"),
        ({"code": 255, "reason": "Unknown"}, "Unknown"),
    ],
)
def test_reasons_are_those_of_container_runtimes(record: dict[str, Any], reason: str) -> None:
    whole = {"state": "exited", "started_ns": 1, "finished_ns": 2, "oom_killed": False, "reason": ""} | record
    container = Container("c", Sandbox("s", None), None, "", "", "", [0, 0, []])
    container.update(whole | {"state": "running"})
    assert container.state == RUNNING
    container.update(whole)
    assert (container.state, container.reason, container.code) == (EXITED, reason, record["code"])


# ---- network


def test_addresses_go_round_so_that_a_freed_one_rests() -> None:
    addresses = Addresses(IPv4Network("10.1.2.0/29"))
    first = [addresses.take(set()) for _ in range(5)]
    assert first == [f"10.1.2.{last}" for last in range(2, 7)]
    assert addresses.take({first[0]}) == first[1]
    again = Addresses(IPv4Network("10.1.2.0/29"), addresses.following)  # after a restart
    assert again.take(set()) == first[2]
    with pytest.raises(NetworkError, match="all 5 addresses of 10.1.2.0/29 are in use"):
        addresses.take(set(first))
    with pytest.raises(NetworkError):
        Addresses(IPv4Network("10.1.2.0/31")).take(set())


def test_hairpins_are_read_from_what_nft_says() -> None:
    elements = "10.88.0.2 . 10.88.0.2,\n 10.88.0.30 . 10.88.0.30, 1.1.1.1 . 1.1.1.10"
    text = f"type ipv4_addr . ipv4_addr\n elements = {{ {elements} }}"
    assert HAIRPIN.findall(text) == ["10.88.0.2", "10.88.0.30"]


def test_what_the_machine_sent_is_what_the_pod_received() -> None:
    text = (
        "Inter-| Receive | Transmit\n face |...\n" + "vabc: 10 1 2 0 0 0 0 0 30 3 4 0 0 0 0 0\n lo: " + "0 " * 16 + "\n"
    )
    assert read_usage(text) == {"vabc": (30, 4, 10, 2), "lo": (0, 0, 0, 0)}
    assert len(veth("f" * 64)) <= 15


def test_the_connections_of_an_address_are_found_in_what_the_kernel_says() -> None:
    def entry(source: str, target: str, reply: str) -> bytes:
        def half(kind: int, one: str, other: str) -> bytes:
            ends = netlink.attribute(1, socket.inet_aton(one)) + netlink.attribute(2, socket.inet_aton(other))
            return netlink.attribute(kind | netlink.NESTED, netlink.attribute(1 | netlink.NESTED, ends))

        return half(1, source, target) + half(2, reply, source)

    for address, hit in (("10.0.0.1", True), ("10.0.0.2", True), ("10.0.0.3", True), ("10.0.0.4", False)):
        wanted = [netlink.attribute(kind, socket.inet_aton(address)) for kind in (1, 2)]
        found = netlink.matching(entry("10.0.0.1", "10.0.0.2", "10.0.0.3"), wanted)
        assert (found is not None) == hit, address
    assert netlink.matching(b"", []) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_netlink_or_nothing(data: bytes) -> None:
    for _, content in netlink.messages(data):
        list(netlink.attributes(content))
    netlink.matching(data, [b"12345678"])


def test_what_the_kernel_refuses_is_an_error() -> None:
    netlink.fail(struct.pack("=i", 0))
    with pytest.raises(FileExistsError):
        netlink.fail(struct.pack("=i", -errno.EEXIST))
    with netlink.Netlink(netlink.ROUTE) as kernel, pytest.raises(OSError):
        netlink.delete_link(kernel, "no-such-link")


# ---- what is used


def test_a_directory_is_counted_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 10_000)
    (tmp_path / "link").symlink_to("/usr")
    used, entries = walk(tmp_path)
    assert entries == 4
    assert 10_000 <= used < 100_000
    assert walk(tmp_path / "nowhere") == (0, 0)


def test_a_directory_is_not_counted_again_at_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path)

    async def twice() -> list[int]:
        first = await disk.usage(tmp_path)
        (tmp_path / "new").touch()
        second = await disk.usage(tmp_path)
        disk.forget(tmp_path)
        return [usage.inodes for usage in (first, second, await disk.usage(tmp_path))]

    assert asyncio.run(twice()) == [0, 0, 1]


def test_cores_are_the_difference_between_two_samples() -> None:
    cores = Cores()
    assert cores.update("a", 10**9, 5 * 10**9) == 0
    assert cores.update("a", 3 * 10**9, 6 * 10**9) == 500_000_000
    assert cores.update("a", 3 * 10**9, 6 * 10**9) == 0
    cores.forget("a")
    assert cores.update("a", 9 * 10**9, 10**9) == 0

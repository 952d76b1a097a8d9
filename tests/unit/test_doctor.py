"""`course doctor`: each gap is provoked, and must be seen, priced and given a command."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import doctor, state
from helpers.doctor import Report, Row


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A PATH with only the commands that the test writes, each a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(**scripts: str) -> None:
        for name, text in scripts.items():
            file = folder / name.replace("_", "-")
            file.write_text(f"#!/bin/sh\n{text}\n")
            file.chmod(0o755)

    return write


def assert_gap(row: Row, found: str, fix: str) -> None:
    assert not row.ok and row.cost
    assert re.search(found, row.found), row.found
    assert re.search(fix, row.fix), row.fix


def test_this_machine_is_looked_at_whole() -> None:
    report = doctor.report()
    assert set(report.rows) == set(doctor.PROBES)
    for row in report.rows.values():
        assert row.found and (row.ok or (row.cost and row.fix)), row


def test_a_wrong_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements.txt").write_text("# pins\nray[default]==1.0\nno-such-package==2.0\n")
    monkeypatch.setattr(state, "course_root", lambda: tmp_path)
    assert_gap(doctor.python(), r"ray \d.*, not 1\.0, no-such-package missing, not 2\.0", "make clean")


def test_a_wrong_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "python_version_tuple", lambda: ("3", "12", "1"))
    assert not doctor.python().ok


def test_too_little_of_something(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = 10**18
    monkeypatch.setattr(doctor, "DISK_BYTES", huge)
    monkeypatch.setattr(doctor.lessons, "lessons", lambda: [SimpleNamespace(id="01", memory_gib=huge)])
    assert_gap(doctor.disk(), "GiB", ".")
    assert_gap(doctor.memory(), "GiB", ".")
    assert "lesson 01" in doctor.memory().cost


def test_too_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: SimpleNamespace(free=64 * 1024**2))
    assert_gap(doctor.shm(), r"0\.1 GiB free", "--shm-size")


def test_a_full_disk_is_a_gap_even_if_much_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    usage = SimpleNamespace(free=100 * doctor.GIB, percent=96.2)
    monkeypatch.setattr(psutil, "disk_usage", lambda place: usage)
    assert_gap(doctor.disk(), "96 % full", "free some space")


def test_the_memory_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_cgroup_memory_left", lambda: [5])
    assert doctor.memory_available_bytes() == 5


def test_without_unshare(tools: Callable[..., None]) -> None:
    assert_gap(doctor.util_linux(), "no unshare and no nsenter", "util-linux|only Linux")
    assert_gap(doctor.namespaces(), "cannot be tried", "row before")


def test_namespaces_that_are_refused(tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor, "_why_refused", lambda is_root: ("", "start it with `--privileged`"))
    tools(unshare="echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1")
    assert_gap(doctor.namespaces(), "Operation not permitted", "--privileged")
    assert "shifted ports" in doctor.namespaces().cost


@pytest.mark.parametrize("uid, said", [(0, "as root"), (1000, "without root")])
def test_namespaces_are_tried_as_whom_they_are_used(
    tools: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, said: str
) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor.os, "geteuid", lambda: uid)
    tools(unshare=f'echo "$@" > "{tmp_path}/args"')
    assert said in doctor.namespaces().found
    assert ("--user --map-root-user" in (tmp_path / "args").read_text()) == (uid != 0)


@pytest.mark.parametrize(
    "file, value, command",
    [
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces="),
    ],
)
def test_the_setting_that_forbids_namespaces_is_named(tmp_path: Path, file: str, value: str, command: str) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(value + "\n")
    why, fix = doctor._why_refused(False, tmp_path)
    assert file.replace("/", ".") in why and command in fix
    (tmp_path / file).write_text("7\n")
    assert doctor._why_refused(False, tmp_path)[0] == ""


def test_what_the_embedded_cluster_lacks_is_priced(
    tools: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path="": None)
    assert_gap(doctor.nft(), "none", "apt-get install -y nftables")
    assert_gap(doctor.tools(), "not built: kube-apiserver, .*ray-operator", "course tools build")
    assert "critest" not in doctor.tools().found  # only tests need it
    assert_gap(doctor.overlay(), "cannot be tried", "rows before")
    assert doctor.go().found == "none" and "fetches its own" in doctor.go().cost


def test_an_overlay_that_is_refused(tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    tools(unshare="echo 'mount: unknown filesystem type overlay.' >&2; exit 32")
    assert_gap(doctor.overlay(), "unknown filesystem type", "modprobe overlay")
    tools(unshare="exit 0")
    assert doctor.overlay().ok


def test_a_go_that_is_too_old_is_named(
    tools: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tools(go="echo go1.22.1")
    assert doctor.go().found == "1.22.1 on PATH, which is too old"
    tools(go="echo go1.99.0")
    assert doctor.go().found.startswith("1.99.0, ") and not doctor.go().cost


def test_a_build_at_work_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.cluster.embedded.tools import store

    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with store.lock():
        assert doctor.tools().ok and "being built: it has just begun" in doctor.tools().found


def test_an_engine_that_hangs_is_not_waited_for(tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_S", 0.3)
    tools(docker="exec /bin/sleep 60", podman="exit 0")
    start = time.monotonic()
    assert doctor.engine().found == "podman answers"
    assert time.monotonic() - start < 30
    tools(podman="exit 1")
    assert doctor.engine().found == "docker is there, but does not answer, podman is there, but does not answer"


def test_gpus_are_counted(tools: Callable[..., None]) -> None:
    assert doctor.gpus().found == "none"
    tools(nvidia_smi="echo 'GPU 0: A'; echo 'GPU 1: B'")
    assert doctor.gpus().found == "2 by nvidia-smi"


def test_only_authors_miss_a_browser(tools: Callable[..., None]) -> None:
    row = doctor.browser()
    assert_gap(row, "none", "apt-get install -y chromium")
    assert "Chromium" not in Report({"browser": row}).short()
    tools(chromium="exit 0")
    assert doctor.browser().ok


def test_a_python_that_ray_cannot_start_jobs_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "prefix", "/opt/my env")
    assert_gap(doctor.python_folder(), "/opt/my env", "make lab")
    monkeypatch.setattr(doctor.sys, "prefix", "/opt/env")
    assert doctor.python_folder().ok


def test_without_bubblewrap_strangers_are_not_graded(tools: Callable[..., None]) -> None:
    assert_gap(doctor.sandbox(), "none", "apt-get install -y bubblewrap")
    tools(bwrap="exit 0")
    assert doctor.sandbox().ok and not doctor.sandbox().cost


def test_a_state_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # not even root makes a folder in a file
    assert_gap(doctor.state_directory(), "Not a directory", "XDG_STATE_HOME")


def test_a_corrupt_progress_file_is_seen_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = state.progress_path()
    assert doctor.progress().found == "none yet"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 1, "predict')
    assert_gap(doctor.progress(), "cannot be understood", "course reset --progress")
    assert path.read_text() == '{"version": 1, "predict'


def test_the_html_table_is_readable_by_a_screen_reader() -> None:
    rows = {"a": Row("a & b", "<none>", ok=False, cost="much", fix="`x`"), "c": Row("c", "there", ok=True)}
    text = Report(rows)._repr_html_()
    assert text.count("<caption>") == 1 and text.count('<th scope="col">') == 5 and text.count('<th scope="row"') == 2
    assert "a &amp; b" in text and "&lt;none&gt;" in text and "✘ gap" in text and "✔ ok" in text


def test_the_terminal_table_shows_commands_whole() -> None:
    from rich.console import Console

    fix = "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` [sic]"
    console = Console(width=70, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Report({"a": Row("a", "b", ok=False, cost="c", fix=fix)}))
    assert "✘ gap" in console.export_text(clear=False)
    cells = "".join(line.split("│")[-2].strip() for line in console.export_text().splitlines() if line.count("│") > 4)
    assert cells.replace(" ", "") == fix.replace(" ", "")


def test_the_short_form_names_each_gap_of_a_learner() -> None:
    rows = {"a": Row("memory", "1 GiB", ok=False, cost="slow", fix="buy some"), "b": Row("disk", "big", ok=True)}
    first, gap, fix = Report(rows).short().splitlines()
    assert first.startswith("This machine: 1 of 2 checks ok")
    assert gap == "✘ gap  memory: 1 GiB; slow" and fix.strip() == "→ buy some"

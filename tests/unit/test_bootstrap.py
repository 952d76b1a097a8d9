"""bootstrap.py, run for real in small checkouts: spaces in the path, a full or read-only disk, no package index."""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

import bootstrap

ROOT = Path(bootstrap.__file__).parent
UNREACHABLE = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_RETRIES": "1",
    "PIP_NO_CACHE_DIR": "1",
}
FAKE_COURSE = "import sys\n\n\ndef main():\n    print('course got', sys.argv[1:])\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in a folder with spaces, small enough to be installed in seconds."""
    folder = tmp_path / "my courses" / "ray course"
    (folder / "helpers").mkdir(parents=True)
    for name in ("bootstrap.py", "pyproject.toml", "packages.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "helpers" / "__init__.py").write_text("")
    (folder / "helpers" / "cli.py").write_text(FAKE_COURSE)
    pin = f"setuptools=={metadata.version('setuptools')}"
    for name in ("requirements.txt", "requirements-dev.txt"):
        (folder / name).write_text(f"{pin}\n")
    (folder / "requirements.lock").write_text(f"{pin}\n    # via -r requirements.txt\n")
    return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the functions of this process to an empty checkout, cache and state, and to a PATH with nothing on it."""
    for name, place in {"ROOT": ".", "VENV": ".venv", "STAMP": ".venv/course-stamp.json", "BUILD": "build"}.items():
        monkeypatch.setattr(bootstrap, name, tmp_path / place)
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "build" / "bootstrap.log")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def run(folder: Path, *args: str, before: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess:
    surroundings = {**os.environ, "XDG_CACHE_HOME": str(folder.parents[1] / "cache"), **env}
    command = [*before, sys.executable, str(folder / "bootstrap.py"), *args]
    return subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=120)


def said(done: subprocess.CompletedProcess) -> str:
    """The two sentences of a refusal; there must be nothing else, and above all no stack trace."""
    assert done.returncode == 1, done.stdout + done.stderr
    what, fix = done.stderr.rstrip("\n").split("\n")
    assert what.startswith("✘ ") and fix.startswith("  → ")
    return what[2:]


def script(place: Path, text: str) -> str:
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    return str(place)


def wheel_of(name: str, folder: Path) -> None:
    """Pack an installed distribution into a wheel again, so that pip can install it without an index."""
    dist = metadata.distribution(name)
    wheel = folder / f"{name}-{dist.version}-py3-none-any.whl"
    info = f"{name}-{dist.version}.dist-info"
    kept = [file for file in dist.files if ".." not in file.parts and "__pycache__" not in file.parts]
    kept = [file for file in kept if file.name not in ("RECORD", "INSTALLER", "REQUESTED")]
    record = "".join(f"{file},sha256={_sha256(file.read_binary())},\n" for file in kept) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in kept:
            archive.writestr(str(file), file.read_binary())
        if not any(file.name == "WHEEL" for file in kept):  # one that came with the interpreter may lack it
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", record)


def _sha256(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


# ---- it works --------------------------------------------------------------------------------------------------------


def test_installs_reruns_and_survives_a_move_with_spaces_in_the_path(checkout: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel_of("setuptools", wheels)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}

    first = run(checkout, "lab", "--port", "8889", **offline)
    assert first.returncode == 0, first.stderr + (checkout / "build" / "bootstrap.log").read_text()
    assert "course got ['lab', '--port', '8889']" in first.stdout

    home = (checkout / ".venv").resolve()  # Ray's job workers do not start from a Python in a path with a space
    assert " " not in str(home) and (home / "bin" / "course").read_text().startswith(f"#!{home}/bin/python")

    again = run(checkout, "lab", **UNREACHABLE)  # nothing is fetched, and no step is shown
    assert again.stdout == "course got ['lab']\n"

    moved = checkout.rename(checkout.with_name("ray course 2"))
    after = run(moved, "lab", **offline)  # the scripts in .venv named the old place
    assert "course got ['lab']" in after.stdout, after.stderr
    assert json.loads((moved / ".venv" / "course-stamp.json").read_text())["root"] == str(moved)
    assert not home.exists()

    assert run(moved, "clean").returncode == 0
    assert not (moved / ".venv").is_symlink() and not list(home.parent.glob("venv-*"))


def test_no_place_without_a_space(checkout: Path, tmp_path: Path) -> None:
    stopped = run(checkout, "lab", XDG_CACHE_HOME=str(tmp_path / "my cache"))
    assert stopped.returncode == 1 and "Ray does not start from such a place" in stopped.stderr


def test_an_old_python_can_start_it() -> None:
    ast.parse((ROOT / "bootstrap.py").read_text(), feature_version=(3, 8))


def test_an_unfinished_environment_is_made_again(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap.VENV.mkdir()
    bootstrap.write_stamp(None)
    (bootstrap.VENV / "half a package").write_text("")
    monkeypatch.setattr(bootstrap, "install_packages", lambda level: None)
    monkeypatch.setattr(bootstrap, "digest", lambda level: "same")
    monkeypatch.setattr(bootstrap, "make_venv", lambda python: bootstrap.VENV.mkdir())
    bootstrap.make_environment(bootstrap.LEARNER)
    assert not (bootstrap.VENV / "half a package").exists()
    assert bootstrap.read_stamp()["level"] == bootstrap.LEARNER


@pytest.mark.parametrize("content", ["", "[]", "{", '{"level": "requirements.txt"}'])
def test_a_broken_stamp_is_not_believed(places: Path, content: str) -> None:
    bootstrap.VENV.mkdir()
    bootstrap.STAMP.write_text(content)
    (places / "requirements.txt").write_text("")
    (places / "requirements.lock").write_text("")
    (places / "pyproject.toml").write_text("")
    assert not bootstrap.is_ready(bootstrap.LEARNER)


def test_each_file_that_decides_what_is_installed_outdates_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", checkout)
    for name in ("requirements.txt", "requirements-dev.txt", "requirements.lock", "pyproject.toml"):
        before = bootstrap.digest(bootstrap.AUTHOR)
        (checkout / name).write_text((checkout / name).read_text() + "# more\n")
        assert bootstrap.digest(bootstrap.AUTHOR) != before, name


def test_the_lock_tells_how_many_packages_there_will_be() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for level in (bootstrap.LEARNER, bootstrap.AUTHOR):
        assert bootstrap.locked_packages(lock, level) == len(_installed_closure(level)), level


def _installed_closure(level: str) -> set[str]:
    """What the packages of a requirements file need, and what that needs, as installed here."""
    lines = [(ROOT / bootstrap.LEARNER).read_text(), (ROOT / level).read_text()]
    lines = [line for text in lines for line in text.splitlines() if line and line[0] not in "#-"]
    todo, seen = [(r.name, r.extras) for r in map(Requirement, lines)], set()
    while todo:
        name, extras = todo.pop()
        name = re.sub(r"[-_.]+", "-", name).lower()
        if (name, frozenset(extras)) in seen:
            continue
        seen.add((name, frozenset(extras)))
        for need in map(Requirement, metadata.requires(name) or []):
            if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
                todo.append((need.name, need.extras))
    return {name for name, _ in seen}


def test_progress_is_counted_from_what_pip_says(places: Path) -> None:
    events = []
    progress = bootstrap.PipProgress(total=4, installing=lambda: events.append("installing"))
    seen = "Collecting ray[default]==2.60.0\n  Downloading ray-2.60.0-cp311-manylinux.whl.metadata (20 kB)\n"
    assert progress(seen) == (1 / 12, "found 1 of 4 packages")
    seen += "Requirement already satisfied: idna in ./lib\nCollecting rich\n"
    assert progress(seen)[0] == pytest.approx(5 / 12)
    seen += "Downloading ray-2.60.0-cp311-manylinux.whl (75.1 MB)\nUsing cached rich-15.0.0-py3-none-any.whl (240 kB)\n"
    assert progress(seen)[0] == pytest.approx(7 / 12)
    assert progress(seen + "WARNING: Retrying (Retry(total=4)) after …\n")[1].startswith(
        "the package index does not answer"
    )
    assert events == []
    for package in ("rich-15.0.0", "pip-26.0"):  # a new environment comes with pip, which the lock does not count
        (bootstrap.VENV / f"lib/python3.11/site-packages/{package}.dist-info").mkdir(parents=True)
    assert progress(seen + "Installing collected packages: rich, ray\n") == (9 / 12, "unpacked 1 of 4 packages")
    assert events == ["installing"]


def test_clean_removes_what_was_built_and_nothing_of_the_learner(checkout: Path, tmp_path: Path) -> None:
    built = [
        ".venv/bin/python",
        "build/bootstrap.log",
        "helpers/__pycache__/cli.pyc",
        ".ruff_cache/x",
        "a.egg-info/PKG-INFO",
    ]
    theirs = ["lessons/00_start_here.ipynb", "lessons/.ipynb_checkpoints/00-checkpoint.ipynb", "my notes.txt"]
    for name in built + theirs:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("x")
    progress = tmp_path / "state" / "ray-course" / "progress.json"
    progress.parent.mkdir(parents=True)
    progress.write_text("{}")
    done = run(checkout, "clean", XDG_STATE_HOME=str(tmp_path / "state"))
    assert done.returncode == 0, done.stderr
    assert not [name for name in built if (checkout / name).exists()]
    assert all((checkout / name).exists() for name in theirs) and progress.exists()
    assert str(progress.parent) in done.stdout


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [[], ["lba"], ["--help"]])
def test_an_unknown_verb_lists_the_known_ones(checkout: Path, args: list[str]) -> None:
    done = run(checkout, *args)
    said(done)
    assert "lab, test, fast, live, soak, bench, release, grade, clean" in done.stderr
    assert not (checkout / ".venv").exists()


def test_no_network(checkout: Path) -> None:
    notes = checkout / "lessons" / "mine.ipynb"
    notes.parent.mkdir()
    notes.write_text("my answer")
    (checkout / "requirements.txt").write_text("typer==0.29.2\n")
    done = run(checkout, "lab", **UNREACHABLE)
    assert said(done) == "The package index cannot be reached."
    log = checkout / "build" / "bootstrap.log"
    assert str(log) in done.stderr and "127.0.0.1" in log.read_text()
    assert notes.read_text() == "my answer"
    assert json.loads((checkout / ".venv" / "course-stamp.json").read_text())["level"] is None  # so it is made again


def test_no_network_leaves_a_working_environment_alone(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("requirements.txt", "requirements-dev.txt", "requirements.lock", "pyproject.toml"):
        (places / name).write_text("")
    (places / "requirements-dev.txt").write_text("ruff==0.17.6\n")
    monkeypatch.setattr(bootstrap, "LOCK", places / "requirements.lock")
    (bootstrap.VENV / "bin").mkdir(parents=True)
    for name in ("python", "course"):
        script(bootstrap.VENV / "bin" / name, f'exec "{sys.executable}" "$@"')
    bootstrap.write_stamp(bootstrap.LEARNER)
    for name, value in UNREACHABLE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_IGNORE_INSTALLED", "1")
    with pytest.raises(bootstrap.Stop, match="index cannot be reached"):
        bootstrap.prepare(bootstrap.AUTHOR)
    assert bootstrap.is_ready(bootstrap.LEARNER)  # `make lab` goes on working


def test_a_read_only_checkout(checkout: Path) -> None:
    if os.geteuid() != 0:
        checkout.chmod(0o555)
        assert "cannot be written" in said(run(checkout, "lab"))
        checkout.chmod(0o755)
        return
    # nothing stops root but a read-only mount
    bind = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    assert "cannot be written (Read-only file system)" in said(run(checkout, "lab", before=_mounting(bind, checkout)))


def test_too_little_disk(checkout: Path) -> None:
    # the small disk is mounted over the whole checkout's copy, so that the check measures it
    full = 'cp -r "$0" "$0.copy" && mount -t tmpfs -o size=16m none "$0" && cp -r "$0.copy/." "$0" && exec "$@"'
    done = run(checkout, "lab", before=_mounting(full, checkout))
    assert re.fullmatch(
        r"The environment needs about 1\.5 GiB of disk space, and there is only 0\.0 GiB free at .*", said(done)
    )
    assert not (checkout / ".venv").exists()


def _mounting(shell: str, folder: Path) -> tuple[str, ...]:
    """A prefix that runs a command where `shell` has mounted something, seen by that command only."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("capability: mount namespaces are not allowed here")
    return (*unshare, "sh", "-c", shell, str(folder))


def test_a_folder_that_is_not_ours_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").write_text("x")
    done = run(checkout, "lab")
    assert "was not made by this course" in said(done) and "mv .venv .venv-mine" in done.stderr
    assert (checkout / ".venv" / "mine").exists()


def test_no_python_3_11_to_be_had(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "this_python", lambda: None)
    for name, value in UNREACHABLE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(bootstrap.Stop) as stop:
        bootstrap.find_python()
    assert stop.value.what == "The course needs Python 3.11, and none was found or could be fetched."
    assert "install --no-input --target" in bootstrap.LOG.read_text()  # it really tried


def test_windows_is_told_about_wsl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(bootstrap, "os", SimpleNamespace(name="nt"))
    assert bootstrap.main(["lab"]) == 1
    assert "WSL2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "output, sentence",
    [
        ("OSError: [Errno 28] No space left on device", "GiB of disk space"),
        ("SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')", "certificate"),
        ("NewConnectionError: Temporary failure in name resolution", "cannot be reached"),
        (
            "ERROR: No matching distribution found for ray[default]==2.60.0",
            r"no ray\[default\]==2.60.0 for this machine",
        ),
        ("error: something else", "could not be installed"),
    ],
)
def test_what_pip_says_becomes_a_sentence(output: str, sentence: str) -> None:
    what, fix = bootstrap.explain(output)
    assert re.search(sentence, what)
    assert what.endswith(".") and fix.endswith("run the same command again.")


# ---- where Python 3.11 comes from ------------------------------------------------------------------------------------


def test_a_python_that_is_not_3_11_or_does_not_run_is_refused(places: Path) -> None:
    assert bootstrap.is_311(sys.executable)
    assert not bootstrap.is_311(script(places / "bin" / "python3.11", "exit 1"))  # a pyenv shim without that version
    assert not bootstrap.is_311(str(places / "nowhere"))
    assert bootstrap.python_on_path() is None


def test_uv_on_path_is_asked_to_install_it(places: Path) -> None:
    mark = places / "installed"
    found = f'[ -e "{mark}" ] && echo "{sys.executable}"'
    script(places / "bin" / "uv", f'case "$2" in install) : > "{mark}";; find) {found};; esac')
    assert bootstrap.uv_on_path() == sys.executable
    assert mark.exists()


@pytest.mark.parametrize("name", ["conda", "mamba"])
def test_conda_on_path_makes_it_in_the_cache(places: Path, name: str) -> None:
    prefix = places / "cache" / "ray-course" / "conda-python-3.11"
    script(places / "python", f'exec "{sys.executable}" "$@"')
    make = f'PATH=/usr/bin:/bin; mkdir -p "{prefix}/bin" && cp "{places}/python" "{prefix}/bin/python"'
    script(places / "bin" / name, f'echo "$@" > "{places}/args"; {make}')
    assert bootstrap.conda_on_path() == str(prefix / "bin" / "python")
    assert "-c conda-forge python=3.11" in (places / "args").read_text()


def test_a_python_without_ensurepip_names_the_package(places: Path) -> None:
    python = script(places / "python3.11", f'case "$*" in *ensurepip*) exit 1;; esac; exec "{sys.executable}" "$@"')
    with pytest.raises(bootstrap.Stop) as stop:
        bootstrap.ensure_ensurepip(python)
    assert "sudo apt-get install python3.11-venv" in stop.value.fix


# ---- system packages -------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_apt(places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{places}/bin:/usr/bin:/bin")
    script(places / "bin" / "apt-get", f'echo "$DEBIAN_FRONTEND $@" >> "{places}/calls"')
    return places / "calls"


def test_root_installs_system_packages_by_apt(fake_apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)
    assert bootstrap.apt_install(["chromium"])
    assert fake_apt.read_text().splitlines() == [
        "noninteractive -y update",
        "noninteractive -y install --no-install-recommends chromium",
    ]


def test_without_root_and_terminal_the_line_is_printed(
    fake_apt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(bootstrap.sys, "stdin", io.StringIO())  # which is no terminal
    lacking = bootstrap.Package("no-such-browser", ("test",), ("no-such-browser",), "tests drive it")
    monkeypatch.setattr(bootstrap, "system_packages", lambda: [lacking])
    bootstrap.install_system_packages("lab")
    assert capsys.readouterr().out == ""  # only the verb that needs it asks
    bootstrap.install_system_packages("test")
    out = capsys.readouterr().out
    assert "no-such-browser is not installed (tests drive it)" in out
    assert "`sudo apt-get update && sudo apt-get install -y no-such-browser`" in out
    assert not fake_apt.exists()


def test_packages_txt_is_readable_and_names_verbs() -> None:
    for package in bootstrap.system_packages():
        assert package.commands and package.why and set(package.verbs) <= set(bootstrap.VERBS)


def test_each_verb_has_its_make_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = dict(re.findall(r"^(\w+):\n\t@\$\(PYTHON\) bootstrap\.py (\w+)", makefile, re.MULTILINE))
    assert targets == {verb: verb for verb in [*bootstrap.VERBS, "clean"]}

"""What the live tests share: a state directory of their own, programs that die with their labs, another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.rayhost.hosts import Hosts
from tests.live.tools import Program, way_opener

USER = 12345  # no such user is needed: the kernel knows numbers only


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A HOME of its own for the tests of a module; the state directory is below `state` in it."""
    directory = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(directory))
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        yield directory


@pytest.fixture
def make_hosts(home: Path) -> Iterator[Callable[..., Hosts]]:
    """Makes labs' hosts, and ends them with the test."""
    made: list[Hosts] = []

    def make(separate: bool = True) -> Hosts:
        made.append(Hosts(f"01-{os.getpid()}-{id(made)}{len(made)}", log=home / "test.log", separate=separate))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()


@pytest.fixture
def run_program(home: Path) -> Iterator[Callable[..., Program]]:
    """Runs code in another process, which a test may kill."""
    programs: list[Program] = []

    def run(*args: object, **options: object) -> Program:
        programs.append(Program(*args, **options))
        return programs[-1]

    yield run
    for program in programs:
        program.kill()
        for pipe in (program.process.stdin, program.process.stdout, program.process.stderr):
            pipe.close()


@pytest.fixture
def as_user() -> Iterator[list[str]]:
    """The beginning of a command that makes it run as a user other than root, with a HOME of its own."""
    if os.geteuid() != 0:
        pytest.skip("the tests run as a user other than root already, so the others show this")
    directory = Path(tempfile.mkdtemp(prefix="user-", dir="/tmp"))  # pytest's own is closed to other users
    os.chown(directory, USER, USER)
    places = [f"HOME={directory}", f"XDG_STATE_HOME={directory}/state", f"XDG_CACHE_HOME={directory}/cache"]
    drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "env", *places]
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", way_opener(), "sh", *drop]
    tried = subprocess.run([*command, sys.executable, "-c", "import ray"], capture_output=True, text=True)
    try:
        if tried.returncode != 0:
            pytest.skip(f"another user cannot use this Python environment: {tried.stderr.strip().splitlines()[-1:]}")
        yield command
    finally:
        shutil.rmtree(directory, ignore_errors=True)

"""What the live tests share: a state directory of their own, programs that die with their labs, another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.cluster.backend import Backend, make
from helpers.rayhost.hosts import Hosts
from helpers.state import cache_dir
from tests.live.contract import Cluster
from tests.live.tools import Program, way_opener

if TYPE_CHECKING:
    from helpers.cluster.embedded.cluster import EmbeddedCluster

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
    # pytest's own directory is closed to other users, and a test covers /tmp
    directory = Path(tempfile.mkdtemp(prefix="user-", dir="/var/tmp"))
    built, shown = cache_dir() / "tools", directory / "cache" / "ray-course" / "tools"
    shown.mkdir(parents=True)
    for path in (directory, *list(shown.parents)[:2], shown):
        os.chown(path, USER, USER)
    places = [f"HOME={directory}", f"XDG_STATE_HOME={directory}/state", f"XDG_CACHE_HOME={directory}/cache"]
    drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "env", *places]
    way = way_opener({built: shown} if built.is_dir() else {})
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", way, "sh", *drop]
    tried = subprocess.run([*command, sys.executable, "-c", "import ray"], capture_output=True, text=True)
    try:
        if tried.returncode != 0:
            pytest.skip(f"another user cannot use this Python environment: {tried.stderr.strip().splitlines()[-1:]}")
        yield command
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def embedded() -> Iterator[EmbeddedCluster]:
    """An embedded cluster of the tests' own, with the machines that a learner gets; nothing of it is left behind."""
    if sys.platform != "linux":
        pytest.skip("the embedded cluster needs Linux")
    from helpers.cluster.embedded.cluster import EmbeddedCluster  # which cannot be imported elsewhere
    from helpers.cluster.embedded.layout import DEFAULT_MACHINES, Layout

    # not pytest's own temporary directory: containers that run as other users pass through it
    directory = Path(tempfile.mkdtemp(prefix="course-live-"))
    directory.chmod(0o755)
    cluster = EmbeddedCluster(Layout(directory / "embedded"))
    try:
        cluster.up(DEFAULT_MACHINES)
        yield cluster
    finally:
        cluster.down(wipe=True)
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The backend of this run, running: an embedded cluster of the tests' own, or the one that COURSE_BACKEND names.

    One that ran before goes on afterwards; one that did not is gone.
    """
    name = os.environ["COURSE_BACKEND"]
    if name == "embedded":
        yield of_embedded(request.getfixturevalue("embedded"))
        return
    found = make(name)
    ran = found.is_running()
    if not ran:
        found.up()
    yield found
    if not ran:
        found.down(wipe=True)


def of_embedded(cluster: EmbeddedCluster) -> Backend:
    """The backend as it is for a learner whose cluster is this one."""
    found = make("embedded")
    found._cluster = cluster
    return found


@pytest.fixture(scope="session")
def kubernetes(backend: Backend) -> Cluster:
    """The cluster to test against."""
    is_embedded = backend.name == "embedded"
    more = {"uids", "cgroups"} if not is_embedded or os.geteuid() == 0 else set()
    more |= {"gpu_devices"} if is_embedded or "real_gpu" in backend.capabilities() else set()
    return Cluster(backend.kubeconfig, str(backend.kubectl()), can=backend.capabilities() | more)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With another backend, leave away what tests the parts of the embedded cluster.

    The files that share one cluster come last: it takes a quarter of two cores when nothing happens in it.
    """
    if os.environ["COURSE_BACKEND"] != "embedded":
        kept = [item for item in items if item.get_closest_marker("any_backend")]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    sharing = {item.path for item in items if {"embedded", "backend"} & set(item.fixturenames)}
    items.sort(key=lambda item: item.path in sharing)

"""Every lesson top to bottom, unattended, against real Ray; and after all that, nothing is left on the machine.

All runs have one home directory. The first is a kernel that is killed as soon as much of a lesson runs, and one that
finds what it has left. Then comes nbval's, from `lessons/`: each cell is a test. The last has the course's root as its
working directory and looks at what the cells show; the lessons that were killed take minutes each, and have their last
run by `COURSE_SOAK=1` only. tests/browser/ runs them too. A cluster that a lesson has brought up is stopped after each
whole run, so the next finds what that has left.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient

from helpers import lessons
from helpers.rayhost.hosts import SCRATCH_PLACES
from helpers.state import course_root, state_dir
from helpers.wait import wait_until
from tests.isolation import new_home, nothing_runs, orphans_adopted, processes

pytestmark = [pytest.mark.live, pytest.mark.any_backend]

ROOT = course_root()
LESSONS = lessons.paths()
IS_EMBEDDED = os.environ["COURSE_BACKEND"] == "embedded"
# the lessons whose kernel is killed, and what the next run of each then says
KILLED = {
    "01_anatomy": "An earlier run of lesson 01 ended without clean_up",
    "03_raycluster": "An earlier run left the namespace lesson-03",
}
CELL_TIMEOUT_S = 300
LESSON_TIMEOUT_S = 1200
GONE_WITHIN_S = 20

# what a run may leave in a home directory: the course's own two places, and what the libraries under any notebook keep
ALLOWED_AT_HOME = (
    *(".local/state/ray-course/", ".cache/ray-course/"),
    *(".ipython/", ".jupyter/", ".local/share/jupyter/"),
    *(".config/matplotlib/", ".cache/matplotlib/", ".cache/fontconfig/"),
)
# what tests and tools make in the checkout, whether lessons run or not
NOT_OF_LESSONS = {".git", ".venv", "build", "__pycache__", ".pytest_cache", ".hypothesis", ".ruff_cache"}


# ---- what is left of a run -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def home(request: pytest.FixtureRequest) -> Iterator[Path]:
    kept = None
    if not IS_EMBEDDED:  # then all runs share one cluster, and what the course knows of it
        request.getfixturevalue("backend")
        kept = state_dir() / os.environ["COURSE_BACKEND"]
    with new_home("live-home") as home, orphans_adopted():
        if kept:
            shared = home / ".local" / "state" / "ray-course" / kept.name
            shared.parent.mkdir(parents=True)
            shared.symlink_to(kept)
        yield home


@pytest.fixture(scope="module", autouse=True)
def before(home: Path) -> set[str]:
    """What was on this machine before the first run."""
    return traces()


def traces() -> set[str]:
    """What a run could leave outside its home: mounts, network cards, files in shared places and in the checkout.

    A namespace needs no line of its own: it lives only as long as a process or a mount that holds it.
    """
    found = {f"file {path}" for path in _files_of_checkout()}
    for place in (*SCRATCH_PLACES, "/dev/shm"):
        # other programs use these places too
        found |= {f"file {path}" for path in Path(place).glob("*") if re.search("ray|plasma", path.name)}
    if sys.platform == "linux":
        found |= {f"network card {card.name}" for card in Path("/sys/class/net").iterdir()}
        found |= {f"mount on {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return found


def _files_of_checkout() -> Iterator[Path]:
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name not in NOT_OF_LESSONS]
        # a new .py is somebody at work while the tests run
        yield from (Path(folder, name) for name in files if not name.endswith(".py"))


def keep_logs(home: Path, name: str) -> None:
    """Copy the logs of the labs to where they outlive the next run of the tests."""
    kept = ROOT / "build" / "failures" / name
    shutil.rmtree(kept, ignore_errors=True)
    rest = shutil.ignore_patterns("*.lock", "*.sock", "pki", "etcd", "machines")
    shutil.copytree(home / ".local" / "state" / "ray-course", kept, ignore=rest)
    print(f"The logs of the labs are in {kept.relative_to(ROOT)}")


# ---- a kernel that is killed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if lesson.stem in KILLED], ids=lambda path: path.stem)
def test_a_killed_kernel(home: Path, lesson: Path) -> None:
    """All that it has started follows it, and the next kernel says what it found and clears it away."""
    try:
        kill_half_way(lesson)
        client = client_of(lesson)
        start = next(n for n, cell in enumerate(client.nb.cells) if "Lab.start(" in cell.source)
        with client.setup_kernel():
            client.execute_cell(client.nb.cells[start], start)
    except Exception:
        keep_logs(home, f"{lesson.stem}-killed")
        raise
    finally:
        stop_cluster(lesson)
    assert KILLED[lesson.stem] in shown(client.nb)


def kill_half_way(lesson: Path) -> None:
    """Run a lesson until more than one raylet works, and kill its kernel: all that it has started must follow."""
    client = client_of(lesson)
    with client.setup_kernel():
        for position, cell in enumerate(client.nb.cells):
            client.execute_cell(cell, position)
            if len([line for line in processes() if " raylet " in line]) > 1:
                break
        else:
            pytest.fail("too little runs at any time for this test to mean anything")
        os.kill(client.km.provisioner.pid, signal.SIGKILL)
        if not is_on_kubernetes(lesson):  # whose objects outlive whoever applied them
            wait_until(nothing_runs, GONE_WITHIN_S, what="all processes of a killed kernel to end")


# ---- nbval, from lessons/ --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nbval(home: Path) -> Callable[[Path], dict[str, str]]:
    """A function: what nbval says of each cell of a lesson, nothing if the cell ran. It runs each lesson once."""

    @functools.cache
    def run_once(lesson: Path) -> dict[str, str]:
        report = home.with_name(f"nbval-{lesson.stem}.xml")
        report.unlink(missing_ok=True)
        options = ["--nbval-lax", f"--nbval-cell-timeout={CELL_TIMEOUT_S}", "-p", "no:cacheprovider", "--color=no"]
        command = [sys.executable, "-m", "pytest", "-q", *options, f"--junitxml={report}", lesson.name]
        done = subprocess.run(command, cwd=lesson.parent, capture_output=True, text=True, timeout=LESSON_TIMEOUT_S)
        if done.returncode != 0:
            keep_logs(home, f"{lesson.stem}-nbval")
        stop_cluster(lesson)
        assert report.exists(), done.stdout + done.stderr
        return {case.get("name"): _failure(case) for case in ElementTree.parse(report).iter("testcase")}

    return run_once


def _failure(case: ElementTree.Element) -> str:
    return "\n".join(child.text for child in case if child.tag in ("failure", "error", "skipped") and child.text)


def _cells() -> list:
    return [
        pytest.param(lesson, number, id=f"{lesson.stem}-cell-{number}")
        for lesson in LESSONS
        for number in range(len([c for c in nbformat.read(lesson, as_version=4).cells if c.cell_type == "code"]))
    ]


@pytest.mark.parametrize(("lesson", "number"), _cells())
def test_cell(nbval: Callable[[Path], dict[str, str]], lesson: Path, number: int) -> None:
    said = nbval(lesson).get(f"Cell {number}", "nbval did not come to this cell")
    if said:
        pytest.fail(said, pytrace=False)


# ---- a second run, from the root -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_second_run(home: Path, lesson: Path) -> None:
    if lesson.stem in KILLED and not os.environ.get("COURSE_SOAK"):
        pytest.skip("this takes minutes: COURSE_SOAK=1 runs it")
    client = client_of(lesson)
    try:
        client.execute()
    except Exception:
        keep_logs(home, f"{lesson.stem}-second-run")
        raise
    finally:
        stop_cluster(lesson)
    assert not any(said in shown(client.nb) for said in KILLED.values())  # the run before has tidied up
    # nothing may go to standard error: it costs points in nbgrader
    errors = [output["text"] for output in outputs(client.nb) if output.get("name") == "stderr"]
    assert not errors, "".join(errors)


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def shown(notebook: nbformat.NotebookNode) -> str:
    """What the cells of a notebook show, as text."""
    found = outputs(notebook)
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in found)


def is_on_kubernetes(lesson: Path) -> bool:
    return "kubernetes" in lessons.lesson(lesson.stem[:2]).capabilities


def stop_cluster(lesson: Path) -> None:
    if is_on_kubernetes(lesson) and IS_EMBEDDED:
        from helpers.cluster.embedded.cluster import EmbeddedCluster

        assert EmbeddedCluster().down()


def client_of(lesson: Path) -> NotebookClient:
    at_root = {"metadata": {"path": str(ROOT)}}
    return NotebookClient(nbformat.read(lesson, as_version=4), timeout=CELL_TIMEOUT_S, resources=at_root)


# ---- after all runs --------------------------------------------------------------------------------------------------


def test_nothing_is_left(home: Path, before: set[str]) -> None:
    assert not processes()
    left = traces() - before
    assert not left, "\n".join(sorted(left))
    files = [path.relative_to(home).as_posix() for path in home.rglob("*") if not path.is_dir()]
    strange = [file for file in files if not file.startswith(ALLOWED_AT_HOME)]
    assert not strange, "\n".join(sorted(strange))
    assert any(file.startswith(ALLOWED_AT_HOME[0]) for file in files)  # else this looked at the wrong home

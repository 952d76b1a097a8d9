"""The command `course`, run as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
import typer

from helpers import cli, jupyter
from helpers.errors import CourseError
from helpers.grading import batch, own, sandbox
from helpers.rayhost import shape
from helpers.state import course_root
from tests import grading_submissions as trial
from tests.isolation import no_build_begun

COURSE = [sys.executable, "-m", "helpers.cli"]
ROOT = course_root()


def course(*args: str, **env: str) -> subprocess.CompletedProcess:
    surroundings = {**os.environ, **env}
    return subprocess.run([*COURSE, *args], cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=60)


def said(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    what, fix = done.stderr.rstrip("\n").split("\n")  # two sentences, and no stack trace
    assert what.startswith("✘ ") and fix.startswith("  → ")
    return what[2:]


def test_help_is_quick_because_it_loads_nothing_heavy() -> None:
    code = "import sys, helpers.cli; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "typer" in loaded
    assert not loaded & {
        "ray",
        "IPython",
        "ipywidgets",
        "matplotlib",
        "jupyterlab",
        "jupyter_core",
        "psutil",
        "nbformat",
        "nbgrader",
    }


def test_each_verb_of_bootstrap_is_a_verb_of_course() -> None:
    import bootstrap

    names = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    assert set(bootstrap.VERBS) <= names


def test_doctor_prints_its_table() -> None:
    done = course("doctor", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "network namespaces" in done.stdout and re.search("✔ ok|✘ gap", done.stdout)


def test_reset_alone_resets_nothing(tmp_path: Path) -> None:
    assert "resets nothing" in said(course("reset", XDG_STATE_HOME=str(tmp_path)))


def test_reset_keeps_a_copy_and_says_where(tmp_path: Path) -> None:
    progress = tmp_path / "ray-course" / "progress.json"
    assert "no answers" in course("reset", "--progress", XDG_STATE_HOME=str(tmp_path)).stdout
    progress.parent.mkdir(parents=True, exist_ok=True)
    progress.write_text('{"version": 1}')
    done = course("reset", "--progress", XDG_STATE_HOME=str(tmp_path))
    kept = Path(done.stdout.rpartition("kept in ")[2].strip())
    assert kept.read_text() == '{"version": 1}' and not progress.exists()


def test_notebooks_takes_one_option_at_a_time() -> None:
    assert "cannot be used together" in said(course("notebooks", "--check", "--from", "x.ipynb"))


# ---- exercises -------------------------------------------------------------------------------------------------------

EX = trial.EXERCISE
RELEASED = f"exercises/{EX}/{EX}.ipynb"


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with one small exercise, which is not released yet."""
    trial.write_course(tmp_path)
    for module in (cli, own):
        monkeypatch.setattr(module, "course_root", lambda: tmp_path)
    with trial.made_up_course(tmp_path):
        yield tmp_path


def lines(capsys: pytest.CaptureFixture) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("verb", [cli.check, cli.grade, cli.release, cli.reset])
def test_an_exercise_that_does_not_exist(made_up: Path, verb: Callable) -> None:
    with pytest.raises(CourseError, match="There is no exercise 'ex77'"):
        verb("ex77")


def test_an_exercise_that_does_not_exist_is_one_sentence() -> None:
    assert said(course("grade", "ex77")) == "There is no exercise 'ex77'."


def test_release_says_what_it_wrote_and_what_it_kept(made_up: Path, capsys: pytest.CaptureFixture) -> None:
    cli.release()
    assert lines(capsys) == [f"✔ written: {RELEASED}"]
    cli.release(EX)
    assert lines(capsys) == [f"✔ {EX} is up to date"]
    (made_up / RELEASED).write_text("my work")
    cli.release(EX)
    written, kept = lines(capsys)
    assert written == f"✔ written: {RELEASED}"
    assert (made_up / kept.removeprefix("  what was there is kept in ")).read_text() == "my work"


def test_reset_puts_the_exercise_back_and_says_where_the_work_is(made_up: Path, capsys: pytest.CaptureFixture) -> None:
    cli.reset(EX)
    assert lines(capsys)[0] == f"✔ {EX} begins again: {RELEASED}"
    cli.reset(EX)
    assert lines(capsys) == [f"exercises/{EX} is as it was released: there was nothing to reset."]
    (made_up / RELEASED).write_text("my work")
    cli.reset(EX)
    _, kept, reload = lines(capsys)
    assert (made_up / kept.removeprefix("  what was there is kept in ")).read_text() == "my work"
    assert "Reload Notebook from Disk" in reload


def test_check_fails_only_if_nothing_could_be_graded(
    made_up: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    cli.release(EX)
    monkeypatch.setattr(batch, "grade_notebook", lambda *args, **kwargs: (batch.Row("you", 0.0, 7.0), "q1: 0/2"))
    cli.check(EX)
    assert lines(capsys)[-1] == f"{EX}: 0 of 7 points"
    monkeypatch.setattr(batch, "grade_notebook", lambda *args, **kwargs: (batch.Row("you", None, 7.0, remark="?"), ""))
    with pytest.raises(typer.Exit):
        cli.check(EX)
    assert lines(capsys)[-1] == f"✘ {EX} could not be graded. ?"


def test_grade_without_submissions(made_up: Path, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="grading/submitted does not exist"):
        cli.grade(EX)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CourseError, match="There is no submission in .*empty"):
        cli.grade(EX, tmp_path / "empty")
    with pytest.raises(CourseError, match="The roster names cannot be read"):
        cli.grade(EX, tmp_path / "empty", roster=Path("names"))


def test_grade_refuses_where_there_is_no_sandbox(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made_up / "grading" / "submitted" / "anna").mkdir(parents=True)
    monkeypatch.setattr(sandbox, "missing", lambda: "bwrap is not installed")
    with pytest.raises(CourseError, match=r"cannot be sandboxed here \(bwrap is not installed\).*--trust"):
        cli.grade(EX)


def test_grade_shows_the_table_and_where_all_is(
    made_up: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: "")
    for name in ("anna", "bob"):  # neither handed in a notebook, so no kernel is started
        (made_up / "grading" / "submitted" / name).mkdir(parents=True)
    (made_up / "names").write_text("carl\n")
    cli.grade(EX, roster=made_up / "names", live=True)
    done = lines(capsys)
    assert done[0] == f"– No question of {EX} is about a running cluster: --live changes nothing."
    assert [line.split() for line in done[2:5]] == [
        [f"{number}/3", name, "✘", "not", "graded"] for number, name in enumerate(("anna", "bob", "carl"), 1)
    ]
    assert [line.split()[0] for line in done if "No ex99.ipynb was handed in." in line] == ["anna", "bob", "carl"]
    assert done[-2] == "0 of 3 graded"
    assert (made_up / done[-1].removeprefix("✔ the table: ")).read_text().startswith("student,exercise,score")


def test_live_grading_needs_memory_and_says_so_first(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "is_live", lambda exercise: True)
    monkeypatch.setattr(batch, "grade", None)
    monkeypatch.setattr(shape, "MEMORY_GIB", 10**6)
    for verb in (cli.grade, cli.check):
        with pytest.raises(CourseError, match="needs 1e[+]06 GiB of free memory, and there are .*Close other programs"):
            verb(EX, live=True)


def test_live_grading_starts_answers_on_hosts_of_its_own(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch.is_live("ex01") and not batch.is_live(EX)
    asked = []
    monkeypatch.setattr(batch, "is_live", lambda exercise: True)
    monkeypatch.setattr(shape, "require_memory", lambda: None)
    monkeypatch.setattr(batch, "grade", lambda *args, live, **rest: asked.append(live) or batch.Result(EX, ()))
    cli.grade(EX, live=True)
    checked = own.Checked(Path(f"{EX}.ipynb"), datetime.now(), batch.Row("you", 4.0, 7.0), "", "")
    monkeypatch.setattr(own, "check", lambda exercise, live: asked.append(live) or checked)
    cli.check(EX, live=True)
    assert asked == [shape.run_apart] * 2


def test_grade_says_where_the_feedback_is(
    made_up: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    rows = (batch.Row("anna", 4.0, 7.0, True), batch.Row("bob", None, 7.0))
    asked = []

    def graded(*args: object, **options: object) -> batch.Result:
        asked.append((args, options))
        return batch.Result(EX, rows)

    monkeypatch.setattr(batch, "grade", graded)
    cli.grade(EX, trust=True)
    options = {"roster": None, "trust": True, "live": None, "on_row": cli._show_row}
    assert asked == [((EX, made_up / "grading" / "submitted"), options)]
    table, feedback = lines(capsys)[-2:]
    assert table == f"✔ the table: grading/{EX}.csv"
    assert feedback == f"✔ feedback:  grading/feedback/STUDENT/{EX}/{EX}.html"


# ---- course lab ------------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_built(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`course lab` would begin to build the cluster's programs, and its tests do not wait for them."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with no_build_begun(cache):
        yield


@pytest.fixture
def taken_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.usefixtures("nothing_built")
def test_a_port_in_use_is_one_sentence(taken_port: int, tmp_path: Path) -> None:
    done = course("lab", "--no-browser", "--port", str(taken_port), XDG_STATE_HOME=str(tmp_path))
    assert said(done) == f"Port {taken_port} is in use or not allowed."


def test_without_a_port_the_next_free_one_is_taken_and_said(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert f"--ServerApp.port_retries={jupyter.OTHER_PORTS}" in jupyter.command(None, False)
    assert "--ServerApp.port_retries=0" in jupyter.command(9000, False)
    jupyter.show({"port": 8890, "token": "t", "url": "http://localhost:8890/"}, None, False, tmp_path)
    assert "Port 8888 is in use; JupyterLab took 8890." in capsys.readouterr().out


@pytest.mark.usefixtures("nothing_built")
def test_a_log_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = course("lab", "--no-browser", XDG_STATE_HOME=str(tmp_path / "file"))
    assert "cannot be written" in said(done)


def test_a_copy_without_lessons_says_how_to_make_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jupyter, "course_root", lambda: tmp_path)
    with pytest.raises(CourseError, match="course notebooks"):
        jupyter.open_lab(None, browser=False)


@pytest.mark.usefixtures("nothing_built")
def test_lab_serves_the_first_lesson_and_stops(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    out = tmp_path / "out"
    with open(out, "w") as file:
        lab = subprocess.Popen([*COURSE, "lab", "--no-browser"], cwd=tmp_path, env=env, stdout=file, stderr=file)
    try:
        url = _wait_for(out, rf"http://\S+/lab/tree/{re.escape(jupyter.START)}\?token=\w+", lab)
        with urllib.request.urlopen(url, timeout=20) as page:
            assert '"news": {"disabled": true}' in page.read().decode()
        base, _, token = url.partition("lab/tree/")[0], "", url.rpartition("=")[2]
        with urllib.request.urlopen(
            f"{base}api/contents/{jupyter.START}?content=0&token={token}", timeout=20
        ) as answer:
            assert answer.status == 200
    finally:
        lab.send_signal(signal.SIGTERM)
        assert lab.wait(30) == 143
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=5)
    assert (tmp_path / "ray-course" / "logs").stat() and not list((tmp_path / "runtime").glob("jpserver-*.json"))


def _wait_for(out: Path, pattern: str, process: subprocess.Popen) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(pattern, out.read_text()):
            return found[0]
        time.sleep(0.05)
    raise AssertionError(out.read_text())


def test_the_log_is_private_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "ray-course" / "logs"
    folder.mkdir(parents=True)
    for day in range(10, 30):
        (folder / f"jupyterlab-202601{day}-000000-1.log").touch()
    log = jupyter.new_log()
    assert log.stat().st_mode & 0o077 == 0  # the token stands in it
    assert len(list(folder.iterdir())) == jupyter.KEPT_LOGS and log.exists()


# ---- course test -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cli, "course_root", lambda: tmp_path)
    monkeypatch.setattr(cli, "_wait_for_tools", lambda: None)  # made-up tests need none
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they cost a second each time
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path / "tests"


def stage(tests: Path, name: str, text: str) -> None:
    (tests / name).mkdir(parents=True)
    (tests / name / f"test_{name}.py").write_text(f"import pytest\n\n{text}")


def last_line(capfd: pytest.CaptureFixture) -> str:
    return capfd.readouterr().out.splitlines()[-1]


def test_all_stages_run_and_the_last_line_counts(tests: Path, capfd: pytest.CaptureFixture) -> None:
    stage(tests, "unit", "def test_a():\n    assert 0\n\ndef test_b():\n    pass\n")
    stage(
        tests, "live", "def test_c():\n    pytest.skip('capability: none')\n\n@pytest.fixture\ndef f():\n    1 / 0\n\n"
    )
    with open(tests / "live" / "test_live.py", "a") as file:
        file.write("def test_d(f):\n    pass\n")
    with pytest.raises(typer.Exit):
        cli.run_stages(list(cli.STAGES))
    out = capfd.readouterr().out
    assert out.splitlines()[-1] == "1 passed, 2 failed, 1 skipped"
    assert "browser: there are no such tests" in out and "tests.unit.test_unit::test_b" in out


def test_green_is_exit_code_0(tests: Path, capfd: pytest.CaptureFixture) -> None:
    stage(tests, "unit", "def test_a():\n    pass\n")
    cli.run_stages(["unit"])
    assert last_line(capfd) == "1 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("text", ["", "import no_such_module\n"])
def test_a_stage_that_collects_nothing_is_a_failure(tests: Path, capfd: pytest.CaptureFixture, text: str) -> None:
    stage(tests, "unit", text)
    with pytest.raises(typer.Exit):
        cli.run_stages(["unit"])
    assert last_line(capfd) == "0 passed, 1 failed, 0 skipped"


def test_no_stage_at_all_is_not_green(tests: Path) -> None:
    with pytest.raises(typer.Exit):
        cli.run_stages(["live"])


def test_bench_names_what_was_not_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "course_root", lambda: tmp_path)
    with pytest.raises(CourseError, match="nothing in bench/"):
        cli.bench()
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "good.py").write_text("")
    cli.bench()
    (tmp_path / "bench" / "slow.py").write_text("raise SystemExit(1)")
    with pytest.raises(CourseError, match=r"Not met: slow\.py\."):
        cli.bench()


# ---- the embedded cluster's programs ---------------------------------------------------------------------------------


def test_tools_are_listed_with_their_versions(tmp_path: Path) -> None:
    done = course("tools", "list", XDG_CACHE_HOME=str(tmp_path), PATH="/nonexistent")
    assert done.returncode == 0 and re.search(r"– kubectl +1\.36\.\d+ +not built", done.stdout), done.stdout
    assert "for tests only" in done.stdout


def test_tools_that_cannot_be_unpacked_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("no archive")
    said_there = said(course("tools", "unpack", str(tmp_path / "a.tar"), XDG_CACHE_HOME=str(tmp_path)))
    assert said_there == f"{tmp_path / 'a.tar'} is no whole archive of `course tools pack`."


def test_lab_builds_only_where_lessons_get_the_embedded_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from helpers import doctor
    from helpers.cluster import backend
    from helpers.cluster.embedded.tools import build

    begun = []
    monkeypatch.setattr(jupyter, "open_lab", lambda *_: None)
    monkeypatch.setattr(build, "running", lambda: "")
    monkeypatch.setattr(build, "start_in_background", lambda **how: begun.append(how) or object())
    monkeypatch.setattr(doctor, "report", lambda: doctor.Report({}))
    for other in (backend.Here("linux", "docker", "", "", ""), backend.Here("darwin", "", "", "", "")):
        monkeypatch.setattr(backend, "here", lambda other=other: other)
        cli.lab(None, browser=False)
        assert not begun
    monkeypatch.setattr(backend, "here", lambda: backend.Here("linux", "", "", "", ""))
    cli.lab(None, browser=False)
    assert begun == [{"apart": True}] and "lessons 00 and 01 need none" in capsys.readouterr().out
    monkeypatch.setattr(build, "running", lambda: "50%, etcd")  # never two
    cli.lab(None, browser=False)
    assert len(begun) == 1 and "course tools list" in capsys.readouterr().out


def test_tests_begin_the_build_first_and_wait_for_it_only_before_the_live_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from helpers.cluster.embedded.tools import build

    order = []

    def broken(tests: bool) -> None:
        order.append("wait")
        raise CourseError("No network.", "Find one.")

    monkeypatch.setattr(cli.sys, "platform", "linux")
    monkeypatch.setattr(build, "start_in_background", lambda tests: order.append("begin"))
    monkeypatch.setattr(build, "build", broken)
    monkeypatch.setattr(cli, "run_stage", lambda stage: order.append(stage) or cli.Outcome(passed=1))
    cli.test()
    assert order == ["begin", "unit", "contract", "wait", "live", "browser"]
    assert "✘ No network.\n  → Find one." in capsys.readouterr().out


# ---- the cluster -----------------------------------------------------------------------------------------------------


class Stand:
    """A backend that notes what it is asked, and what the environment says then."""

    name = "stand"

    def __init__(self) -> None:
        self.asked: list[object] = []

    def up(self) -> str:
        self.asked.append(("up", os.environ.get("COURSE_KIND_IMAGE"), os.environ.get("COURSE_OPERATOR")))
        return "it is up"

    def status(self) -> str:
        return "a status"

    def logs(self, component: str, follow: bool) -> list[str]:
        return [f"{component} {follow}"]

    def down(self, wipe: bool) -> str:
        return f"down, wiped: {wipe}"


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    from helpers.cluster import backend

    made = Stand()
    monkeypatch.setattr(backend, "choose", lambda capabilities: backend.Choice(made, "the test says so"))
    for name in ("COURSE_BACKEND", "COURSE_KIND_IMAGE", "COURSE_OPERATOR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return made


def test_the_backend_that_is_taken_is_said_with_its_reason(stand, capsys):
    cli.up("kind", "mirror.example/node:1", "manifests")
    assert os.environ["COURSE_BACKEND"] == "kind" and stand.asked == [("up", "mirror.example/node:1", "manifests")]
    assert capsys.readouterr().out == "The backend is stand, because the test says so.\nit is up\n"


def test_an_operator_that_comes_by_neither_way(stand):
    with pytest.raises(CourseError, match='KubeRay cannot come by "olm". Use `--operator helm` or'):
        cli.up("", "", "olm")
    assert not stand.asked


def test_the_verbs_of_a_cluster_are_those_of_its_backend(stand, capsys):
    cli.status("")
    cli.logs("etcd", False, "")
    cli.down(True, "")
    assert capsys.readouterr().out == "a status\netcd False\ndown, wiped: True\n"

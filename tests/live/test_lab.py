"""`Lab` with real hosts; Ray itself is started in `test_rayhost`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import lab as lab_module
from helpers.errors import CourseError
from helpers.lab import Lab
from helpers.state import course_root, state_dir
from helpers.wait import wait_until
from tests.live.tools import fake_command, processes_of, sleeping

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def notebook(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new kernel in a directory of its own: nothing of an earlier one is known or left running."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lab_module, "_running", {})
    monkeypatch.setattr(lab_module, "_started_in", [])
    yield tmp_path
    lab_module._close_all()


def test_five_lines(capsys, notebook):
    lab = Lab.start("00")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["Lesson", "Backend", "Machine", "Creates", "Log"]
    assert "token auth on" in lines[1] and ("separate hosts" in lines[1]) == lab.separate
    assert "GiB memory free, this lesson asks for" in lines[2]
    assert Path.cwd() == course_root() and str(course_root()) in lines[4]
    lab.hosts("head")
    lab.hosts("head")[0].run("echo something")
    assert "head $ echo something\nsomething" in (state_dir() / "logs" / "lesson-00.log").read_text()


def test_here_is_the_notebook_also_after_a_second_start(notebook):
    assert Lab.start("00").here("a.py") == notebook / "a.py"
    assert Lab.start("00").here("a.py") == notebook / "a.py"


def test_a_second_start_ends_the_first(capsys):
    first = Lab.start("00")
    (host,) = first.hosts("head")
    host.run("sleep 4721 &")
    capsys.readouterr()
    Lab.start("00")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "This notebook's earlier run of lesson 00: ✔ ended 1 process on 1 host (head)"
    assert not sleeping(4721)
    with pytest.raises(
        CourseError, match=r"^This lab has been cleaned up.* Run the notebook again from its first cell"
    ):
        host.run("true")


def test_clean_up_twice_and_what_comes_after(capsys):
    lab = Lab.start("00")
    (host,) = lab.hosts("head")
    lab.clean_up()
    lab.clean_up()
    said = capsys.readouterr()
    assert said.out.count("ended 0 processes on 1 host (head)") == 1 and "nothing is left to clean up" in said.out
    assert "00.c1 not answered yet" in said.out and not said.err
    for call in (lambda: lab.hosts("head"), lambda: lab.driver(host), host.processes, host.listeners):
        with pytest.raises(CourseError, match="This lab has been cleaned up"):
            call()


def test_nothing_was_started(capsys):
    Lab.start("00").clean_up()
    assert "✔ nothing was started" in capsys.readouterr().out


def test_a_kernel_that_was_killed(run_program, capsys):
    program = run_program("""
from helpers import Lab
lab = Lab.start("01")
(host,) = lab.hosts("head")
host.run("sleep 4722 &")
tell(session=lab._hosts.session)
input()
""")
    session = program.facts()["session"]
    wait_until(lambda: sleeping(4722), 5, what="the command to begin")
    program.kill()
    Lab.start("00")  # at once: it may meet the keeper at its work
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("An earlier run of lesson 01 ended without clean_up, with its notebook: ")
    assert not processes_of(session) and not sleeping(4722) and not (state_dir() / "labs" / session).exists()


def test_a_kernel_that_ends_and_says_nothing_on_stderr(run_program):
    program = run_program("""
from helpers import Lab
lab = Lab.start("00")
(host,) = lab.hosts("head")
host.run("echo complaint >&2; sleep 4723 &")
tell(session=lab._hosts.session)
input()
""")
    session = program.facts()["session"]
    assert program.end() == ""
    assert not processes_of(session) and not sleeping(4723)


def test_a_lab_in_a_thread(capsys):
    outputs = []

    def work():
        lab = Lab.start("00")
        outputs.append(lab.hosts("head")[0].run("echo done").output)
        lab.clean_up()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert outputs == ["done"]


def test_traffic():
    lab = Lab.start("00")
    if not lab.separate:
        pytest.skip("hosts share this machine's network, where nothing can be told apart")
    head, worker = lab.hosts("head", "worker-1")
    send = (
        "import socket as s; u = s.socket(type=s.SOCK_DGRAM); [u.sendto(bytes(1000), ('head', 9)) for _ in range(2000)]"
    )
    with lab.traffic(head, worker) as moved:
        assert moved == {}
        worker.run(f'python -c "{send}"')
    assert 2 < moved["worker-1"]["sent"] < 2.3 and 2 < moved["head"]["received"] < 2.3 and moved["head"]["sent"] < 1


def test_where_hosts_cannot_be_separate(capsys, tmp_path, monkeypatch):
    fake_command(tmp_path, monkeypatch, "unshare", 'echo "unshare: Operation not permitted" >&2; exit 1')
    lab = Lab.start("00")
    backend = capsys.readouterr().out.splitlines()[1]
    assert backend.endswith("hosts share this machine, on shifted ports, because unshare: Operation not permitted")
    (head,) = lab.hosts("head")
    with lab.traffic(head) as moved:
        pass
    assert moved == {} and head.ports["gcs"] != 6379


def test_no_such_lesson():
    with pytest.raises(CourseError, match=r"There is no lesson '77'\. Use one of: 00"):
        Lab.start("77")


def test_a_state_directory_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(CourseError, match="cannot be made"):
        Lab.start("00")
    assert os.getcwd() == str(tmp_path) and not lab_module._running

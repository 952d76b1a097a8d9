"""What of `helpers.rayhost` needs no Ray and no namespaces."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from helpers.errors import CourseError
from helpers.rayhost import driver, hosts, members, ports, processes, records
from helpers.rayhost.hosts import Host
from helpers.rayhost.ports import joined, shift_ports
from helpers.wait import wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the labs' records."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "ray-course" / "labs").mkdir(parents=True)
    return tmp_path / "ray-course" / "labs"


@pytest.fixture
def sleeper() -> Iterator:
    """Starts processes that only sleep, and ends them."""
    started: list[subprocess.Popen] = []

    def start(code: str = "import time; time.sleep(60)", **options) -> subprocess.Popen:
        started.append(subprocess.Popen([sys.executable, "-c", code], **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


# ---- ports ----------------------------------------------------------------------------------------------------------

HEAD = Host("head", "127.77.0.11", None, 1, "/tmp/x/0", ports={"gcs": 1, "dashboard": 2, "client": 3, "agent": 4})
WORKER = Host("worker-1", "127.77.0.12", None, 1, "/tmp/x/1", ports={"gcs": 5, "dashboard": 6, "client": 7, "agent": 8})
NAMES = {"head": HEAD, "worker-1": WORKER}
OF_HEAD = (
    "--node-ip-address=127.77.0.11 --temp-dir=/tmp/x/0/ray --dashboard-agent-listen-port=4"
    " --min-worker-port=0 --max-worker-port=0 --port=1 --dashboard-port=2 --ray-client-server-port=3"
)
OF_WORKER = (
    "--node-ip-address=127.77.0.12 --temp-dir=/tmp/x/1/ray --dashboard-agent-listen-port=8"
    " --min-worker-port=0 --max-worker-port=0"
)


@pytest.mark.parametrize(
    ("host", "command", "run"),
    [
        (HEAD, "ray start --head", f"ray start {OF_HEAD} --head"),
        (HEAD, "ray  start --head --num-cpus=0", f"ray start {OF_HEAD} --head --num-cpus=0"),
        (HEAD, "ray start --head --port=6379", f"ray start {OF_HEAD} --head"),
        (HEAD, "ray start --port 6379 --head --dashboard-port 1", f"ray start {OF_HEAD} --head"),
        (HEAD, "A=b C=d ray start --head", f"A=b C=d ray start {OF_HEAD} --head"),
        (HEAD, 'sleep 1 && ray start --head | grep "x y"', f'sleep 1 && ray start {OF_HEAD} --head | grep "x y"'),
        (
            WORKER,
            "ray start --address=head:6379 --resources='{\"fast\": 1}'",
            f"ray start {OF_WORKER} --address=127.77.0.11:1 --resources='{{\"fast\": 1}}'",
        ),
        (WORKER, "ray start --address head:6379", f"ray start {OF_WORKER} --address 127.77.0.11:1"),
        (WORKER, "ray start --address='head:1'", f"ray start {OF_WORKER} --address='127.77.0.11:1'"),
        (WORKER, "ray start --address=far.org:6379", f"ray start {OF_WORKER} --address=far.org:6379"),
    ],
)
def test_ports_are_shifted(host, command, run):
    assert shift_ports(command, host, NAMES) == run


@pytest.mark.parametrize("command", ["ray status", "echo $HOME '--port=1'", "ray job list --address=head:1", "ls | wc"])
def test_other_commands_stay_as_they_are(command):
    assert shift_ports(command, HEAD, NAMES) == command


def test_a_port_in_use_is_stepped_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < ports.next_free(port) < port + 100


def test_each_lab_has_a_number_of_its_own(tmp_path):
    first = records.first_free_lock(tmp_path)
    second = records.first_free_lock(tmp_path)
    assert (first[0], second[0]) == (0, 1)
    first[1].close()
    assert records.first_free_lock(tmp_path)[0] == 0


# ---- what a command says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("\x1b[1m\x1b[32mRay runtime started.\x1b[39m\x1b[0m", "Ray runtime started."),
        ("2026-11-29 19:32:05,723\tINFO scripts.py:1218 -- Did not find any active Ray", "Did not find any active Ray"),
        ("a\n2026-11-29 19:32:05,723\tWARNING x.py:1 -- b", "a\nb"),
        ("2026-11-29 was a day", "2026-11-29 was a day"),
    ],
)
def test_plain(raw, plain):
    assert hosts._plain(raw) == plain


def test_only_the_end_of_a_very_long_output_is_kept(monkeypatch):
    monkeypatch.setattr(hosts, "KEPT_BYTES", 5)
    assert hosts._text(io.BytesIO(b"0123456789\n")) == "6789"
    assert hosts._text(io.BytesIO(b"")) == ""


def test_a_long_output_is_shown_in_part():
    lines = [f"line {number}" for number in range(1000)]
    shown = hosts._shortened("\n".join(lines), Path("the.log")).splitlines()
    assert shown[0] == "line 0" and shown[-1] == "line 999" and "800 lines left out: see the.log" in shown[100]
    assert hosts._shortened("short", Path("the.log")) == "short"


@pytest.mark.parametrize(("output", "line"), [("a\n b. \n\n", ": b"), ("", ""), ("\n", "")])
def test_last_line(output, line):
    assert hosts._last_line(output) == line


# ---- where hosts can be ---------------------------------------------------------------------------------------------


def test_the_scratch_place_hides_nothing_that_is_needed(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    (tmp_path / "link").symlink_to(one)
    monkeypatch.setattr(hosts, "SCRATCH_PLACES", (str(tmp_path / "none"), str(one), str(two)))
    assert hosts._scratch_place() == str(one)
    monkeypatch.setenv("XDG_STATE_HOME", str(one / "state"))
    assert hosts._scratch_place() == str(two)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "link" / "state"))
    assert hosts._scratch_place() == str(two)
    monkeypatch.setattr(hosts.sys, "prefix", str(two / "venv"))
    assert hosts._scratch_place() == ""


@pytest.mark.parametrize(
    ("platform", "why"),
    [
        ("darwin", "separate ones need Linux; Ray calls several Ray nodes on macOS unsupported"),
        ("freebsd", "need Linux"),
    ],
)
def test_no_linux(labs, monkeypatch, platform, why):
    monkeypatch.setattr(hosts.sys, "platform", platform)
    made = hosts.Hosts("01-test", log=labs / "log")
    try:
        assert not made.separate and why in made.why_shared
        environment = made._environment(made.add("head"))
        assert ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" in environment) == (platform == "darwin")
        assert made.by_name["head"].address == ("127.0.0.1" if platform == "darwin" else "127.77.0.11")
    finally:
        made.close()


def test_without_util_linux(labs, monkeypatch):
    monkeypatch.setattr(hosts.sys, "platform", "linux")
    monkeypatch.setattr(hosts.shutil, "which", lambda tool: None)
    made = hosts.Hosts("01-test", log=labs / "log")
    made.close()
    assert made.why_shared == "`unshare` is missing"


def test_the_environment_of_a_host(labs, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    made = hosts.Hosts("01-test", log=labs / "log", separate=False)
    try:
        host = made.add("head")
        environment = made._environment(host)
        assert not {"RAY_ADDRESS", "PYTHONPATH"} & set(environment)
        assert environment["RAY_AUTH_MODE"] == "token" and environment["RAY_USAGE_STATS_ENABLED"] == "0"
        assert environment["GRPC_ENABLE_FORK_SUPPORT"] == "0"  # else Ray Client fails now and then: ray#63202
        assert "RAY_API_SERVER_ADDRESS" not in environment  # nothing was started yet
        secret = Path(environment["HOME"], ".ray", "auth_token")
        assert secret.read_text() == made.token and secret.stat().st_mode & 0o777 == 0o600
        # Ray puts sockets below RAY_TMPDIR, and a socket's path may have 103 characters
        path = f"{environment['RAY_TMPDIR']}/ray/session_2026-11-29_19-32-05_723979_4194304/sockets/plasma_store"
        assert len(path) <= 103
    finally:
        made.close()
    assert not Path(made.scratch).exists() and not made.directory.exists()


def test_a_full_disk(labs, monkeypatch):
    made = hosts.Hosts("01-test", log=labs / "log", separate=False)
    made.log = labs  # a directory cannot be written
    try:
        with pytest.raises(CourseError, match=r"The log .* cannot be written \(Is a directory\)\. Free some space"):
            made.note("hello")
    finally:
        made.close()


# ---- records of labs ------------------------------------------------------------------------------------------------


def test_a_lab_whose_notebook_is_there_is_left_alone(labs):
    made = hosts.Hosts("01-test", log=labs / "log", separate=False)
    try:
        assert records.end_leftovers() == [] and made.keeper.poll() is None
    finally:
        made.close()


def test_a_lab_whose_notebook_is_gone(labs, sleeper):
    directory = labs / "01-7-7"
    directory.mkdir()
    scratch = Path(tempfile.mkdtemp(prefix=records.SCRATCH_PREFIX, dir="/tmp"))
    left = sleeper(env={**os.environ, members.MARK: "01-7-7/head"})
    other = sleeper(env={**os.environ, members.MARK: "01-7-77/head"})
    (directory / records.LOCK).touch()
    # the pid is a later process's now: it must not be taken for the keeper
    record = {"keeper_pid": other.pid, "scratch": str(scratch)}
    (directory / records.RECORD).write_text(json.dumps(record))
    wait_until(lambda: members.of_mark("01-7-7"), 5, what="the process to begin")
    said = records.end_leftovers()
    assert said == ["An earlier run of lesson 01 ended without clean_up, with its notebook: "
                    "processes of it that were ended now: 1."]  # fmt: skip
    assert left.wait(5) == -9 and other.poll() is None
    assert not directory.exists() and not scratch.exists()
    assert records.end_leftovers() == []


@pytest.mark.parametrize("record", [None, "", "[]", "{}", '{"scratch": "/etc"}'])
def test_a_record_that_says_little_or_something_wrong(labs, record, capsys):
    directory = labs / "01-7-7"
    directory.mkdir()
    (directory / records.LOCK).touch()
    if record is not None:
        (directory / records.RECORD).write_text(record)
    assert len(records.end_leftovers()) == 1
    assert not directory.exists() and os.path.isdir("/etc")


def test_two_that_clean_at_once(labs):
    directory = labs / "01-7-7"
    directory.mkdir()
    with (directory / records.LOCK).open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert records.end_leftovers() == [] and directory.exists()


# ---- members --------------------------------------------------------------------------------------------------------


def test_members_by_mark(sleeper):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'], env={})"
    head = sleeper(code, env={**os.environ, members.MARK: "s/head"})
    second = sleeper(env={**os.environ, members.MARK: "s/head-2"})
    sleeper(env={**os.environ, members.MARK: "s2/head"})
    wait_until(lambda: members.children(head.pid), 5, what="a child")
    (child,) = members.children(head.pid)  # it has no mark of its own
    try:
        assert {p.pid for p in members.of_mark("s", "head")} == {head.pid, child}
        assert {p.pid for p in members.of_mark("s")} == {head.pid, child, second.pid}
    finally:
        assert members.kill_session("s") == 3
    assert members.of_mark("s") == []


def test_members_of_a_session(sleeper):
    code = (
        "import subprocess, sys; a = [sys.executable, '-c', 'import time; time.sleep(60)']; "
        "subprocess.Popen(a); subprocess.run(a, start_new_session=True)"
    )
    leader = sleeper(code, start_new_session=True)
    wait_until(lambda: len(members.children(leader.pid)) == 2, 5, what="two children")
    found = members.of_session(leader.pid)
    assert {p.pid for p in found} == {leader.pid, *members.children(leader.pid)}
    members.kill(found)
    psutil.wait_procs(found, 5)
    assert members.of_session(2**22 + 1) == [] and members.children(2**22 + 1) == []


def test_to_kill_what_is_gone_already(sleeper):
    process = sleeper("pass")
    seen = psutil.Process(process.pid)
    process.wait()
    assert members.kill([seen]) == []


@linux
def test_namespaces_and_pids():
    assert members.namespace(os.getpid()) == members.namespace(os.getppid())
    assert members.namespace(2**22 + 1) is None
    assert members.pid_inside(2**22 + 1) == 2**22 + 1
    assert members.of_namespace(1, 1) == []


# ---- processes ------------------------------------------------------------------------------------------------------


def fake(pid: int, line: str, **overrides) -> SimpleNamespace:
    memory = SimpleNamespace(pss=3 * 2**20, rss=3 * 2**20)
    process = {
        "pid": pid, "cmdline": line.split, "status": lambda: psutil.STATUS_RUNNING,
        "memory_full_info": lambda: memory, "memory_info": lambda: memory,
    }  # fmt: skip
    return SimpleNamespace(**{**process, **overrides})


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp", "gcs_server"),
        ("/x/python -u /x/ray/autoscaler/_private/monitor.py --logs-dir=/tmp", "monitor"),
        ("/x/python -m ray.util.client.server --address=10.77.0.11:6379", "client server"),
        ("/x/python /x/ray/dashboard/dashboard.py --host=127.0.0.1", "dashboard"),
        ("ray-dashboard-JobHead-0 (/x/python -c", "dashboard"),
        (
            "/x/python -c from multiprocessing.forkserver import main; main(['ray.dashboard.subprocesses'])",
            "dashboard",
        ),
        ("/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/x", "raylet"),
        ("/x/python -u /x/ray/_private/log_monitor.py --session-dir=/tmp", "log_monitor"),
        ("ray::DashboardAgent", "dashboard agent"),
        ("/x/python -u /x/ray/dashboard/agent.py --node-ip-address=1", "dashboard agent"),
        ("ray::RuntimeEnvAgent", "runtime_env agent"),
        ("/x/python -u /x/ray/_private/runtime_env/agent/main.py", "runtime_env agent"),
        ("ray::IDLE", "worker"),
        ("ray::where()", "worker"),
        ("/x/python /x/ray/_private/workers/default_worker.py --node-ip-address=1", "worker"),
        ("/x/python -m helpers.rayhost.driver 64", "driver"),
    ],
)
def test_the_part_of_a_process(line, part):
    (row,) = processes.table_of("head", [fake(7, line)]).rows
    assert (row.pid, row.part, row.mib) == (7, part, 3) and row.does


def test_a_table():
    def gone():
        raise psutil.NoSuchProcess(9)

    table = processes.table_of(
        "<head>",
        [
            fake(5, "ray::IDLE"),
            fake(4, "ray::work()"),
            fake(3, "/x/raylet/raylet"),
            fake(6, "bash"),
            fake(8, "ray::IDLE", status=lambda: psutil.STATUS_ZOMBIE),
            fake(9, "ray::IDLE", cmdline=gone),
        ],
    )
    assert table.parts == {"raylet", "worker"} and table.pids("worker") == [4, 5] and table.pids("driver") == []
    lines = str(table).splitlines()
    assert re.split(r"  +", lines[1])[:1] == ["raylet"] and re.search(r"worker +2 .* 6 MiB", lines[2])
    page = table._repr_html_()
    assert "<caption>Ray processes on &lt;head&gt;</caption>" in page and "<td>6</td>" in page
    assert page.count("scope='col'") == 4 and page.count("scope='row'") == 2


def test_listening_ports():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        found = processes.listening_ports(os.getpid())
        assert {server.getsockname()[1], six.getsockname()[1]} <= found
    assert processes.listening_ports(2**22 + 1) == set()


# ---- drivers --------------------------------------------------------------------------------------------------------


def test_printed_lines_are_sent_whole():
    sent = []
    printed = driver._Printed(lambda kind, text: sent.append(text))
    print("a", "b", end="", file=printed)
    assert sent == []
    print(" c\nd\ne", end="", file=printed)
    assert sent == ["a b c\nd\n"]
    printed.finish()
    printed.finish()
    assert sent == ["a b c\nd\n", "e\n"]


def test_what_other_threads_print_stays_out():
    import threading

    sent = []
    printed = driver._Printed(lambda kind, text: sent.append(text))
    thread = threading.Thread(target=printed.write, args=("noise\n",))
    thread.start()
    thread.join()
    assert sent == []


def test_kept_arrives_as_the_dict_of_that_process():
    import pickle

    assert pickle.loads(pickle.dumps(driver.Driver.kept)) is driver._kept


def test_a_wait_for_a_process(sleeper, capsys):
    assert hosts._wait(sleeper("pass"), 10)
    start = time.monotonic()
    assert not hosts._wait(sleeper(), 0.3) and 0.3 <= time.monotonic() - start < 2
    assert capsys.readouterr().out == ""


def test_a_host_knows_the_head_of_the_cluster_that_it_joins():
    worker = NAMES["worker-1"]
    assert joined("X=1 ray start --head --num-cpus=0", HEAD, NAMES) is HEAD
    assert joined("ray start --address=head:6379", worker, NAMES) is HEAD
    assert joined("ray start --address='head:6379' --num-cpus=1", worker, NAMES) is HEAD
    assert joined("ray start --address=elsewhere:6379", worker, NAMES) is None
    assert joined("ray status --address=head:6379", worker, NAMES) is None

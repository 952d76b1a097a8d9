"""Hosts and drivers with real Ray processes: separate hosts, another user, crashes, hosts that share the machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from helpers.errors import CourseError
from helpers.rayhost import members
from helpers.rayhost.driver import Driver
from helpers.rayhost.hosts import Hosts
from helpers.rayhost.records import end_leftovers
from helpers.state import course_root, state_dir
from helpers.wait import WaitTimeout, wait_until
from tests.isolation import orphans_adopted
from tests.live.tools import fake_command, interrupted_after, machine, namespaces, processes_of, sleeping

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="separate hosts need Linux"),
]
START = "ray start --object-store-memory=80000000"


def wait_gone(look: Callable[[], list], timeout_s: float = 15) -> None:
    def gone() -> bool:
        left = look()
        assert not left, f"still there: {left}"
        return True

    wait_until(gone, timeout_s, what="the processes to end")


# ---- separate hosts -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[SimpleNamespace]:
    """A head and a worker as separate hosts, one Ray cluster, a driver on the head."""
    before = machine()
    hosts = Hosts(f"01-{os.getpid()}-cluster", log=home / "cluster.log")
    try:
        if not hosts.separate:
            pytest.skip(f"no separate hosts here: {hosts.why_shared}")
        head, worker = hosts.add("head"), hosts.add("worker-1")
        head.run(f"{START} --head --num-cpus=0", quiet=True)
        worker.run(f"{START} --address=head:6379 --num-cpus=1", quiet=True)
        yield SimpleNamespace(hosts=hosts, head=head, worker=worker, driver=Driver(head), before=before)
    finally:
        hosts.close()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("hostname", "worker-1"),
        ("getent hosts head worker-1 localhost | awk '{print $1}'", "10.77.0.11\n10.77.0.12\n127.0.0.1"),
        ("cat /sys/class/net/eth0/operstate 2>/dev/null || echo up", "up"),
        ("tr '\\0' ' ' < /proc/1/cmdline | grep -o 'hostinit worker-1'", "hostinit worker-1"),
        ("ls /proc | grep -cx $PPID", "0"),  # nsenter, which started the shell, is in another process table
        ("ls /dev/shm | grep -c only-the-head; true", "0"),
        ("ls ~ -A; ls $RAY_TMPDIR", ".ray\nhome\nray\nresolv.conf"),
        ("env | grep -c '^RAY_ADDRESS\\|^RAY_NAMESPACE\\|^PYTHON'", "0"),
    ],
)
def test_a_host_is_its_own(cluster, command, said, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://elsewhere:10001")
    monkeypatch.setenv("RAY_NAMESPACE", "elsewhere")
    cluster.head.run("touch /dev/shm/only-the-head $RAY_TMPDIR/only-the-head")
    assert cluster.worker.run(f"{command}; true").output == said


def test_nothing_shows_outside(cluster):
    assert machine() == cluster.before
    assert not os.path.exists("/dev/shm/only-the-head")
    assert not os.path.exists(f"{cluster.head.directory}/only-the-head")


def test_files_stay_in_the_state_directory(cluster, home):
    assert {path.name for path in home.iterdir()} <= {"state", "cache", "cluster.log", "test.log"}


def test_what_runs_where(cluster):
    on_head, on_worker = cluster.head.processes().parts, cluster.worker.processes().parts
    assert on_head - on_worker - {"driver", "worker"} == {"gcs_server", "monitor", "client server", "dashboard"}
    assert on_worker - {"worker"} == {"raylet", "log_monitor", "dashboard agent", "runtime_env agent"}
    assert cluster.head.listeners()[6379] == "gcs_server"


def test_each_driver_is_on_its_own_host(cluster):
    def host():
        return os.environ["HOSTNAME"]

    second = Driver(cluster.worker)
    assert (cluster.driver.run(host), second.run(host)) == ("head", "worker-1")
    assert cluster.driver.node_id != second.node_id
    second.close()
    wait_until(lambda: "driver" not in cluster.worker.processes().parts, 10, what="the driver to end")
    with pytest.raises(CourseError, match="The driver on worker-1 has ended"):
        second.run(host)


def test_token(cluster):
    ask = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8265/api/jobs/"
    if not shutil.which("curl"):
        ask = (
            'python -c "import sys, urllib.request as u, urllib.error as e; '
            "h = dict(x.split(': ') for x in sys.argv[2::2]); "
            "r = u.Request('http://127.0.0.1:8265/api/jobs/', headers=h)\ntry: print(u.urlopen(r).status, end='')\n"
            "except e.HTTPError as no: print(no.code, end='')\""
        )
    assert cluster.head.run(ask).output == "401"
    assert cluster.head.run(f'{ask} -H "Authorization: Bearer wrong"').output in ("401", "403")
    assert cluster.head.run(f'{ask} -H "Authorization: Bearer $(cat ~/.ray/auth_token)"').output == "200"
    join = "python -c \"import ray; ray.init(address='auto', logging_level='ERROR'); print('joined')\""
    assert cluster.worker.run(join).output.endswith("joined")
    with pytest.raises(CourseError, match="(?i)auth|token"):
        cluster.worker.run(f"RAY_AUTH_TOKEN={'0' * 32} {join}", timeout_s=30)


# ---- commands -------------------------------------------------------------------------------------------------------


def test_a_command_that_fails(cluster, capsys):
    with pytest.raises(CourseError, match=r"`echo one; echo two; exit 3` on head ended with status 3: two\. Read"):
        cluster.head.run("echo one; echo two; exit 3", quiet=True)
    assert "one\ntwo\n" in capsys.readouterr().out
    assert cluster.hosts.log.read_text().rstrip().endswith("one\ntwo")


def test_a_command_that_does_not_end(cluster):
    with pytest.raises(CourseError, match=r"took longer than 0\.5 s and was ended: begun"):
        cluster.head.run("echo begun; setsid sleep 4711 & sleep 4711; sleep 4711", timeout_s=0.5)
    wait_gone(lambda: sleeping(4711), 5)


def test_a_command_that_was_ended_is_collected(cluster):
    """By the process that it hangs on: else its host could not end where the first process of all collects nobody."""
    with orphans_adopted():
        before = uncollected()
        with pytest.raises(CourseError, match="took longer than"):
            cluster.head.run("sleep 4717", timeout_s=0.5)
        assert uncollected() <= before


def uncollected() -> set[str]:
    """Children of the tests that have ended, of other tests too."""
    children = psutil.Process().children()
    return {f"{child.pid} {child.name()}" for child in children if child.status() == psutil.STATUS_ZOMBIE}


def test_a_command_that_is_interrupted(cluster):
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.5):
        cluster.head.run("sleep 4712; sleep 4712")
    wait_gone(lambda: sleeping(4712), 5)
    assert cluster.head.run("echo fine").output == "fine"


def test_what_a_command_leaves_running_does_not_hold_it_up(cluster):
    start = time.monotonic()
    assert cluster.head.run("sleep 4713 & echo done").output == "done"
    assert time.monotonic() - start < 5
    (left,) = wait_until(lambda: sleeping(4713), 5, what="the command to begin")
    psutil.Process(left).kill()


def test_output_of_any_size_and_kind(cluster, capsys):
    result = cluster.head.run("seq 100000; printf '\\377\\376 not text'")
    assert result.output.splitlines()[99999] == "100000" and result.output.endswith("\ufffd\ufffd not text")
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < 250 and any("99801 lines left out" in line for line in shown)


@pytest.mark.parametrize("name", ["", "Head", "head 2", "a/b", "localhost", "x" * 40])
def test_no_name_for_a_host(cluster, name):
    with pytest.raises(CourseError, match="cannot be the name of a host"):
        cluster.hosts.add(name)


def test_a_host_that_is_there_stays(cluster):
    assert cluster.hosts.add("head") is cluster.head


# ---- drivers --------------------------------------------------------------------------------------------------------


def test_a_function_and_what_it_prints(cluster, capsys):
    def halve(number, by=2):
        print("one", "line", end="")
        print(" and", number)
        print("the last", end="")
        return number / by

    assert cluster.driver.run(halve, 7) == 3.5
    shown = capsys.readouterr()
    assert [line.split("\x1b[K")[-1] for line in shown.out.split("\n")][:2] == ["one line and 7", "the last"]
    assert not shown.err


def test_tasks_run_on_the_worker(cluster):
    def where():
        import ray

        @ray.remote(num_cpus=1)
        def host():
            return os.environ["HOSTNAME"]

        return ray.get(host.remote())

    assert cluster.driver.run(where) == "worker-1"


def test_a_function_that_raises(cluster):
    class Unsuitable(ValueError):
        pass

    def fail():
        raise Unsuitable("not this")

    with pytest.raises(Unsuitable) as caught:
        cluster.driver.run(fail)
    assert str(caught.value) == "not this" and "in fail" in caught.value.__notes__[0]


def test_a_task_that_raises(cluster):
    def fail():
        import ray

        @ray.remote
        def task():
            return 1 / 0

        return ray.get(task.remote())

    with pytest.raises(ZeroDivisionError):
        cluster.driver.run(fail)


@pytest.mark.parametrize("what", ["reference", "actor", "lock", "error", "exit"])
def test_what_cannot_leave_the_driver(cluster, what):
    def leave(what):
        import sys
        import threading

        import ray

        @ray.remote(num_cpus=0)
        class Nothing:
            pass

        class Odd(Exception):
            def __reduce__(self):
                raise TypeError("no")

        if what == "error":
            raise Odd("too odd")
        if what == "exit":
            sys.exit(3)
        return {"reference": ray.put, "actor": lambda _: Nothing.remote(), "lock": lambda _: threading.Lock()}[what](1)

    expected = "was ended by SystemExit" if what == "exit" else "cannot leave its driver"
    with pytest.raises(CourseError, match=f"`leave` .*{expected}"):
        cluster.driver.run(leave, what)
    assert cluster.driver.run(len, "fine") == 4


def test_what_cannot_be_sent(cluster):
    with pytest.raises(CourseError, match="uses something that cannot be sent to the driver"):
        cluster.driver.run(lambda: cluster.hosts.keeper)


def test_a_call_at_a_time(cluster):
    call = cluster.driver.start(time.sleep, 1.5)
    with pytest.raises(CourseError, match="still busy with `sleep`"):
        cluster.driver.start(len, "")
    with pytest.raises(WaitTimeout, match=r"`sleep` on head"):
        call.result(0.1)
    assert not call.done_within(0.1) and call.done_within(5)
    assert call.result() is None and call.result() is None


def test_much_printed_before_anybody_asks(cluster, capsys):
    def talk():
        for _ in range(2000):
            print("x" * 1000)
        return "said"

    call = cluster.driver.start(talk)
    time.sleep(0.5)
    assert call.result(20) == "said"
    assert capsys.readouterr().out.count("x" * 1000) == 2000


def test_a_call_that_is_interrupted(cluster):
    def endless():
        import ray

        @ray.remote
        def task():
            time.sleep(600)

        return ray.get(task.remote())

    with pytest.raises(KeyboardInterrupt), interrupted_after(1.5):
        cluster.driver.run(endless)
    assert cluster.driver.run(len, "fine") == 4


def test_a_part_that_does_not_run(cluster):
    with pytest.raises(CourseError, match=r"No gcs_server runs on worker-1\. worker-1\.processes\(\) shows"):
        cluster.worker.kill("gcs_server")


def test_freeze_and_thaw(cluster, capsys):
    cluster.head.freeze("gcs_server")
    (pid,) = cluster.head.processes().pids("gcs_server")
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    cluster.head.thaw("gcs_server")
    assert psutil.Process(pid).status() != psutil.STATUS_STOPPED
    inside = cluster.head.run("pgrep gcs_server").output
    assert f"head $ kill -STOP {inside} " in capsys.readouterr().out and inside != str(pid)


def test_a_killed_raylet_and_a_new_one(cluster):
    cluster.worker.kill("raylet")
    wait_until(lambda: "raylet" not in cluster.worker.processes().parts, 10, what="the raylet to end")
    with pytest.raises(CourseError, match="worker-1 runs no Ray yet"):
        Driver(cluster.worker)


def test_a_driver_whose_cluster_is_gone(cluster):  # the last one of this cluster
    cluster.head.kill("raylet")
    wait_until(lambda: cluster.driver.process.poll() is not None, 30, what="the driver to end")
    with pytest.raises(CourseError, match="The driver on head has ended: Ray ends a driver whose raylet"):
        cluster.driver.run(len, "")


def test_before_any_ray(make_hosts):
    hosts = make_hosts()
    with pytest.raises(CourseError, match="head runs no Ray yet"):
        Driver(hosts.add("head"))


def test_nothing_is_left(make_hosts):
    before = machine()
    hosts = make_hosts()
    host = hosts.add("head")
    host.run("sleep 4714 &")
    table = str(host.namespace)
    assert not hosts.separate or table in namespaces()
    hosts.close()
    hosts.close()
    assert not processes_of(hosts.session) and table not in namespaces()
    assert machine() == before and not hosts.directory.exists()
    for call in (lambda: host.run("true"), host.processes, lambda: host.kill("raylet"), lambda: hosts.add("head")):
        with pytest.raises(CourseError, match="This lab has been cleaned up"):
            call()


def test_a_host_that_has_ended(make_hosts):
    hosts = make_hosts()
    if not hosts.separate:
        pytest.skip(f"no separate hosts here: {hosts.why_shared}")
    host = hosts.add("head")
    psutil.Process(host.init_pid).kill()
    wait_until(lambda: host.namespace != members.namespace(host.init_pid), 5, what="the host to end")
    with pytest.raises(CourseError, match="head has ended"):
        host.run("true")
    assert host.members() == []


# ---- another user ---------------------------------------------------------------------------------------------------


def test_without_root(run_program, as_user):
    before = machine()
    program = run_program(
        """
hosts = new_hosts()
if not hosts.separate:
    tell(why=hosts.why_shared)
    sys.exit()
head, worker = hosts.add("head"), hosts.add("worker-1")
facts = {"names": [host.run("hostname").output for host in (head, worker)]}
facts["address"] = worker.run("getent hosts head").output.split()
facts["first"] = head.run("tr '\\\\0' ' ' < /proc/1/cmdline").output
head.run("ray start --head --num-cpus=1 --object-store-memory=80000000", quiet=True)
driver = Driver(head)
facts["where"] = driver.run(lambda: os.environ["HOSTNAME"])
facts["parts"] = sorted(head.processes().parts)
facts["listener"] = head.listeners()[6379]
head.run("sleep 4715 & true")
try:
    head.run("sleep 4716; true", timeout_s=0.5)
except Exception as error:
    facts["error"] = str(error)
head.freeze("gcs_server"), head.thaw("gcs_server")
head.kill("raylet")
tell(uid=os.geteuid(), session=hosts.session, namespace=str(head.namespace), **facts)
input()
hosts.close()
""",
        as_user,
    )
    facts = program.facts()
    if "why" in facts:
        pytest.skip(f"no separate hosts without root here: {facts['why']}")
    assert facts["uid"] != 0 and facts["names"] == ["head", "worker-1"] and facts["address"] == ["10.77.0.11", "head"]
    assert "hostinit head" in facts["first"] and facts["where"] == "head" and facts["listener"] == "gcs_server"
    assert {"raylet", "gcs_server", "driver", "dashboard agent"} <= set(facts["parts"])
    assert "took longer than 0.5 s" in facts["error"] and not sleeping(4716)
    assert facts["namespace"] in namespaces() and machine() == before
    assert program.end() == ""
    assert not processes_of(facts["session"]) and facts["namespace"] not in namespaces() and machine() == before


# ---- crashes --------------------------------------------------------------------------------------------------------

HOLD = """
hosts = new_hosts(separate={separate})
head = hosts.add("head")
head.run("sleep 4717 & sleep 4717 &")
tell(separate=hosts.separate, session=hosts.session, keeper=hosts.keeper.pid, namespace=str(head.namespace),
     scratch=hosts.scratch)
input()
try:
    head.run("true")
except Exception as error:
    tell(error=str(error))
input()
"""


@pytest.mark.parametrize("separate", [True, False])
def test_a_notebook_that_is_killed(run_program, separate):
    program = run_program(HOLD.format(separate=separate))
    facts = program.facts()
    assert facts["separate"] == separate
    wait_until(lambda: len(sleeping(4717)) == 2, 5, what="the commands to begin")
    program.kill()
    wait_gone(lambda: processes_of(facts["session"]))
    assert facts["namespace"] not in namespaces()
    assert separate or not os.path.exists(facts["scratch"])
    (said,) = end_leftovers()
    assert said == (
        "An earlier run of lesson 01 ended without clean_up, with its notebook: nothing of it was running any more."
    )
    assert not (state_dir() / "labs" / facts["session"]).exists() and not end_leftovers()


@pytest.mark.parametrize("separate", [True, False])
def test_a_keeper_that_is_killed(run_program, separate):
    program = run_program(HOLD.format(separate=separate))
    facts = program.facts()
    keeper = psutil.Process(facts["keeper"])
    keeper.kill()
    wait_until(lambda: keeper.status() == psutil.STATUS_ZOMBIE, 5, what="the keeper to end")
    if separate:
        wait_gone(lambda: sleeping(4717), 5)
        assert facts["namespace"] not in namespaces()
    program.go_on()
    assert program.facts(20)["error"].startswith("The process that holds the hosts of this lab was ended")
    assert not end_leftovers()  # the notebook is still there, so this is none
    program.kill()
    (said,) = end_leftovers()
    assert ("nothing of it" if separate else "processes of it that were ended now: 2") in said
    assert not processes_of(facts["session"])
    assert separate or not os.path.exists(facts["scratch"])


def test_two_labs_at_once(run_program):
    code = """
hosts = new_hosts(separate={separate})
end_leftovers()
head = hosts.add("head")
tell(pid=os.getpid(), ports=head.ports)
input()
end_leftovers()
tell(output=head.run("hostname").output)
input()
hosts.close()
"""
    for separate in (True, False):
        first, second = run_program(code.format(separate=separate)), run_program(code.format(separate=separate))
        ports = [set(program.facts()["ports"].values()) for program in (first, second)]
        assert separate or not ports[0] & ports[1]
        assert first.end() == ""
        second.go_on()
        assert second.facts()["output"]
        assert second.end() == ""


# ---- hosts that share the machine, beside another Ray ---------------------------------------------------------------


@pytest.fixture(scope="module")
def foreign() -> Iterator[str]:
    """A Ray that somebody has started on this machine, on the usual ports; a name to find its processes by."""
    mark, place = f"foreign{os.getpid()}", tempfile.mkdtemp(prefix="foreign-", dir="/tmp")
    environment = {**os.environ, "RAY_TMPDIR": place, "HOME": place, members.MARK: f"{mark}/it"}
    command = f"{Path(sys.executable).parent / 'ray'} start --head --num-cpus=0 --object-store-memory=80000000"
    try:
        subprocess.run(command.split(), env=environment, cwd="/", check=True, capture_output=True, timeout=100)
        yield mark
    finally:
        members.kill_session(mark)
        shutil.rmtree(place, ignore_errors=True)


def alive(mark: str) -> set[int]:
    return {p.pid for p in members.of_mark(mark) if p.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture(scope="module")
def sharing(home: Path, foreign: str) -> Iterator[SimpleNamespace]:
    before = alive(foreign)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
        hosts = Hosts(f"01-{os.getpid()}-sharing", log=home / "cluster.log", separate=False)
        try:
            head, worker = hosts.add("head"), hosts.add("worker-1")
            head.run(f"{START} --head --num-cpus=0", quiet=True)
            worker.run(f"{START} --address=head:6379 --num-cpus=1", quiet=True)
            yield SimpleNamespace(hosts=hosts, head=head, worker=worker, foreign=foreign, before=before)
        finally:
            hosts.close()


def test_hosts_that_share_the_machine_are_one_cluster(sharing):
    def look():
        import ray

        @ray.remote(num_cpus=1)
        def host():
            return os.environ["HOSTNAME"]

        return len(ray.nodes()), ray.get(host.remote())

    drivers = Driver(sharing.head), Driver(sharing.worker)
    assert [driver.run(look) for driver in drivers] == [(2, "worker-1")] * 2
    assert drivers[0].node_id != drivers[1].node_id
    assert sharing.head.listeners()[sharing.head.ports["gcs"]] == "gcs_server"


def test_ray_stop_would_end_all(sharing):
    with pytest.raises(CourseError, match="`ray stop` ends every Ray on this machine"):
        sharing.head.run("echo bye; ray  stop --force")


def test_another_ray_is_left_alone(sharing):
    sharing.worker.kill("raylet")
    wait_until(lambda: "raylet" not in sharing.worker.processes().parts, 10, what="the raylet to end")
    assert "gcs_server" in sharing.head.processes().parts
    sharing.hosts.close()
    assert not processes_of(sharing.hosts.session) and not os.path.exists(sharing.hosts.scratch)
    assert sharing.before <= alive(sharing.foreign), "processes of the other Ray are gone"
    with socket.create_connection(("127.0.0.1", 8265), 5):
        pass


def test_ports_in_use_are_stepped_over(make_hosts):
    first = make_hosts(separate=False).add("head")
    usual = first.ports["gcs"]
    first.hosts.close()
    with socket.create_server(("127.0.0.1", usual)):
        assert make_hosts(separate=False).add("head").ports["gcs"] == usual + 1


# ---- where it cannot be had -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        'echo "unshare: unshare failed: Operation not permitted" >&2; exit 1',
        # the keeper comes up, and then no host does, as in a container that may not mount /proc
        f'case "$*" in *--mount-proc*) echo "unshare: mount /proc failed: Operation not permitted" >&2; exit 1;; esac;'
        f' exec {shutil.which("unshare")} "$@"',
    ],
)
def test_without_namespaces_hosts_share_the_machine(make_hosts, tmp_path, monkeypatch, script):
    fake_command(tmp_path, monkeypatch, "unshare", script)
    hosts = make_hosts()
    assert not hosts.separate and hosts.why_shared.endswith("Operation not permitted")
    assert hosts.add("head").run("echo $HOSTNAME").output == "head"


def test_a_state_directory_that_cannot_be_made(make_hosts, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(CourseError, match=r"cannot be made \(Not a directory\), and a lab keeps its records there"):
        make_hosts()


def test_spaces_in_every_path(run_program, tmp_path, monkeypatch):
    course, python = tmp_path / "my course", tmp_path / "my python"
    shutil.copytree(course_root() / "helpers", course / "helpers")
    python.symlink_to(sys.prefix)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    code = """
hosts = new_hosts()
head = hosts.add("head")
where = head.run("pwd; which ray; ray --version").output.splitlines()
tell(where=where, file=__import__("helpers").__file__)
hosts.close()
"""
    facts = run_program(code, course=course, python=str(python / "bin" / "python")).facts()
    assert facts["file"].startswith(str(course))
    assert facts["where"][:2] == [str(course), str(python / "bin" / "ray")] and facts["where"][2].startswith("ray, ")

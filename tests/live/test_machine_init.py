"""A machine's init and the containers that it makes, as root and in a user namespace: nothing here is played."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path

import psutil
import pytest

from helpers.cluster.embedded.runtime import messages
from helpers.cluster.embedded.runtime.init_client import Init, InitError, InitGone, NotFound, StartError
from helpers.state import course_root
from helpers.wait import wait_until

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"),
]
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "GREETING": "hello"}
SECRET = "do not read this"
POD = {"hostname": "pod-1", "namespaces": {"net": "pod", "ipc": "pod", "pid": "container"}, "sysctls": {}}
MIB = 1024 * 1024
PATIENCE_S = 600  # a bound for what hangs, on a machine that is busy with other things
USER_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")


def together(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine, with an end to its patience."""

    @wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), PATIENCE_S))

    return run


class Box:
    """A container of a test."""

    def __init__(self, init: Init, id: str, log: Path):
        self.init, self.id, self.log, self.pid = init, id, log, 0
        self.ended: asyncio.Future[dict] = asyncio.get_running_loop().create_future()
        init.on_exit(lambda name, record: self.ended.set_result(record) if name == id else None)

    def lines(self, stream: str = "stdout") -> str:
        """What it wrote, without what the log's form adds."""
        text = self.log.read_bytes().decode()  # as it is: `read_text` would change \r\n
        found = re.findall(rf"^\S+ {stream} ([FP]) (.*\n)", text, re.MULTILINE)
        return "".join(text if tag == "F" else text[:-1] for tag, text in found)

    async def says(self, text: str) -> str:
        """Its output, as soon as a text is in it."""
        while text not in self.lines():
            assert not self.ended.done(), self.log.read_text()
            await asyncio.sleep(0.02)
        return self.lines()

    async def run(self, command: str, **spec: object) -> tuple[int, str]:
        """Exit code and output of a further process in it."""
        out, theirs = os.pipe()
        null = os.open("/dev/null", os.O_RDWR)
        try:
            run = await self.init.exec(self.id, {"argv": ["sh", "-c", command], **spec}, (null, theirs, theirs))
        finally:
            os.close(null)
            os.close(theirs)
        code = await run.wait()
        with open(out) as stream:
            return code, stream.read()


class Machine:
    """A machine of the tests: its init, started as the cluster starts it."""

    def __init__(self, directory: Path, before: tuple[str, ...] = (), cgroup: str | None = None):
        self.directory, self.before, self.cgroup = directory, before, cgroup
        # whoever writes paths into options of mount(2) fails here
        self.disk, self.run = directory / "disk, of: tests", directory / "run"
        self.socket = self.run / "init.sock"
        self.home = directory / "home"
        (self.home / "seen").mkdir(parents=True)
        (self.home / "key").write_text(SECRET)
        (self.home / "seen" / "tool").write_text("a tool")
        self.spec = {
            "name": "cpu-a",
            "hostname": "cpu-a",
            "run": str(self.run),
            "disk": str(self.disk),
            "socket": str(self.socket),
            "cgroup": cgroup,
            "services": [
                {
                    "name": "steady",
                    "argv": ["sh", "-c", "echo begins; exec sleep 1000"],
                    "env": ENV,
                    "log": str(directory / "steady.log"),
                },
                {
                    "name": "later",
                    "argv": ["sleep", "1000"],
                    "env": ENV,
                    "log": str(directory / "later.log"),
                    "after": str(self.run / "go"),
                },
            ],
            "view": {"hidden": [str(self.home)], "visible": [str(self.home / "seen")]},
        }
        self.process: subprocess.Popen | None = None
        self.boots = 0
        self.log = directory / "init.log"

    def start(self) -> None:
        (self.directory / "machine.json").write_text(json.dumps(self.spec))
        command = [sys.executable, "-m", "helpers.cluster.embedded.runtime.init", str(self.directory / "machine.json")]
        self.boots += 1
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.before, *command], cwd=course_root(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(lambda: self._up(), 20, what="the machine to be up")

    def _up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text().count("is up") == self.boots

    @property
    def init(self) -> psutil.Process:
        """PID 1 of the machine, seen from outside."""
        return psutil.Process(self.process.pid).children()[0]

    def off(self) -> int:
        """Switches it off; returns its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Init]:
        init = await Init.connect(self.socket)
        try:
            yield init
        finally:
            init.close()

    @asynccontextmanager
    async def sandbox(self, spec: dict = POD) -> AsyncIterator[tuple[Init, Callable[..., Awaitable[Box]]]]:
        """A sandbox, and a function that starts containers in it; in the end nothing of them is there."""
        boxes: list[Box] = []
        async with self.connected() as init:
            sandbox = f"s{time.time_ns()}"
            await init.make_sandbox(sandbox, spec)

            async def start(command: str | list[str], **more: object) -> Box:
                argv = ["sh", "-c", command] if isinstance(command, str) else command
                box = Box(init, f"c{time.time_ns()}", self.directory / "logs" / f"{time.time_ns()}.log")
                whole = {"sandbox": sandbox, "argv": argv, "env": ENV, "log": str(box.log), **more}
                box.pid = (await init.start(box.id, whole)).pid
                boxes.append(box)
                return box

            try:
                yield init, start
            finally:
                for box in boxes:
                    await init.signal(box.id, signal.SIGKILL)
                    await box.ended
                    await init.forget(box.id)
                await init.remove_sandbox(sandbox)


def make_machine(directory: Path, kind: str) -> Machine:
    if kind == "root":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        return Machine(directory, cgroup=f"ray-course-tests/{os.getpid()}-{time.time_ns()}/cpu-a")
    if subprocess.run([*USER_NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespaces here")
    return Machine(directory, before=USER_NAMESPACE)


@pytest.fixture(scope="module", params=["root", "user namespace"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = make_machine(tmp_path_factory.mktemp("machine"), request.param)
    machine.start()
    yield machine
    assert machine.off() == 0
    assert "went wrong" not in machine.log.read_text()


@pytest.fixture(params=["root", "user namespace"])
def own_machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """A machine that the test may end."""
    machine = make_machine(tmp_path, request.param)
    machine.start()
    yield machine
    machine.off()


def as_root(machine: Machine) -> None:
    if machine.before:
        pytest.skip("a user namespace of one user cannot do this")


# ---- programs and how they end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 0", 0), ("exit 3", 3), ("sh -c 'kill -9 $$'", 137), ("sh -c 'kill -15 $$'; exit $?", 143)],
)
@together
async def test_exit_codes_are_true(machine: Machine, command: str, code: int) -> None:
    async with machine.sandbox() as (init, start):
        record = await (await start(command)).ended
        assert (record["state"], record["code"], record["oom_killed"]) == ("exited", code, False)
        assert 0 < record["started_ns"] <= record["finished_ns"] <= time.time_ns()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGTERM, 7)])
@together
async def test_signals(machine: Machine, number: int, code: int) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
        await box.says("ready")
        await init.signal(box.id, number)
        assert (await box.ended)["code"] == code
        await init.signal(box.id, number)  # it is no more: nothing happens


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-such-program"], 'exec: "no-such-program": executable file not found in $PATH'),
        (["/no/such"], 'exec: "/no/such": stat /no/such: no such file or directory'),
        (["/etc/passwd"], 'exec: "/etc/passwd": permission denied'),
        (["/etc"], 'exec: "/etc": is a directory'),
        (["/tmp-of-mine/script"], 'exec: "/tmp-of-mine/script": exec format error'),
    ],
)
@together
async def test_what_cannot_be_started(machine: Machine, argv: list[str], message: str) -> None:
    script = machine.directory / "tmp-of-mine" / "script"
    script.parent.mkdir(exist_ok=True)
    script.write_text("no program")
    script.chmod(0o755)
    mount = {"source": str(script.parent), "target": "/tmp-of-mine", "read_only": True}
    async with machine.sandbox() as (init, start):
        before = await init.containers()
        with pytest.raises(StartError) as caught:
            await start(argv, mounts=[mount])
        assert str(caught.value) == message
        assert await init.containers() == before
        assert os.listdir(machine.disk / "containers") == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"cwd": "/etc/passwd"}, 'chdir to cwd ("/etc/passwd") failed: not a directory'),
        ({"mounts": [{"source": "/no/such", "target": "/x"}]}, 'the mount source "/no/such" does not exist'),
        ({"mounts": [{"source": "/etc", "target": "/proc/x"}]}, 'cannot mount at "/proc/x": No such file or directory'),
        ({"devices": ["/dev/no-such"]}, '"/dev/no-such" is no device'),
        ({"devices": ["/etc/passwd"]}, '"/etc/passwd" is no device'),
        ({"rlimits": {"dreams": [1, 1]}}, '"dreams" is no resource limit'),
        ({"argv": []}, "the command and its environment must be texts, and there must be a command"),
        ({"env": {"A": "b\0c"}}, "the command and its environment must be texts, and there must be a command"),
    ],
)
@together
async def test_what_a_container_cannot_have(machine: Machine, spec: dict, message: str) -> None:
    async with machine.sandbox() as (_, start):
        with pytest.raises(StartError) as caught:
            await start(**{"command": "true", **spec})
        assert str(caught.value) == message


@together
async def test_settings(machine: Machine) -> None:
    async with machine.sandbox() as (_, start):
        box = await start(
            "pwd; umask; ulimit -n; grep NoNewPrivs /proc/self/status; echo $GREETING; touch /x; cat; tty",
            cwd="/not/yet/there",
            no_new_privs=True,
            read_only_root=True,
            rlimits={"nofile": [100, 200]},
        )
        await box.ended
        assert box.lines().splitlines() == ["/not/yet/there", "0022", "100", "NoNewPrivs:\t1", "hello", "not a tty"]
        assert "Read-only file system" in box.lines("stderr")


@together
async def test_read_only_root_has_writable_volumes(machine: Machine) -> None:
    volume = machine.directory / "volume"
    volume.mkdir(exist_ok=True)
    async with machine.sandbox() as (_, start):
        box = await start(
            "for d in / /tmp /usr /run /var/tmp; do touch $d/x 2>/dev/null && echo $d; done;"
            " touch /tmp/in/x && echo ok",
            read_only_root=True,
            mounts=[{"source": str(volume), "target": "/tmp/in"}],
        )
        await box.ended
        assert box.lines() == "ok\n"
        assert (volume / "x").exists()


@together
async def test_user(machine: Machine) -> None:
    async with machine.sandbox() as (_, start):
        if machine.before:
            with pytest.raises(StartError, match="uid 1234 does not exist in this user namespace"):
                await start("id", uid=1234)
            return
        box = await start("id -u; id -g; id -G; cat /etc/shadow; touch /x", uid=1234, gid=4321, groups=[5, 6])
        await box.ended
        assert box.lines() == "1234\n4321\n4321 5 6\n"
        assert box.lines("stderr").count("ermission denied") == 2


@together
async def test_rights_of_root(machine: Machine) -> None:
    async with machine.sandbox() as (_, start):
        box = await start(
            "mount -t tmpfs none /mnt; mknod /disk b 254 0; hostname other; umount /etc/hosts /root /proc/sys;"
            " echo 1 > /proc/sys/vm/drop_caches; chmod 600 /dev/null; echo b > /proc/sysrq-trigger;"
            " chown 0 /tmp && echo fine; grep CapEff /proc/self/status"
        )
        await box.ended
        assert box.lines() == "fine\nCapEff:\t00000000a00425fb\n"
        mine = await box.init.containers()
        assert mine[box.id]["code"] == 0
        loose = await start("grep CapEff /proc/self/status; mount -t tmpfs none /mnt && echo mounted", privileged=True)
        await loose.ended
        assert "mounted" in loose.lines()
        sleeper = await start("sleep 1000")
        assert (await sleeper.run("grep -h CapEff /proc/1/status /proc/self/status | sort -u"))[1].count("\n") == 1


# ---- files ----------------------------------------------------------------------------------------------------------


@together
async def test_what_a_container_sees(machine: Machine) -> None:
    async with machine.sandbox() as (_, start):
        neighbour = await start(f"echo {SECRET} > /tmp/mine; echo {SECRET} > /dev/shm/ours; echo done; sleep 1000")
        await neighbour.says("done")
        home = machine.home
        box = await start(
            f"ls {home}; cat {home}/seen/tool; echo; touch {home}/seen/x || touch {home}/y && echo own;"
            f" ls -A /tmp /run /var/log; cat /dev/shm/ours; ls -d {machine.disk.parent}/disk* {machine.run};"
            " ls /old /.old; tail -c 1 /etc/shadow"
        )
        await box.ended
        seen = box.lines()
        tmp = rf"({Path(os.path.relpath(home, '/tmp')).parts[0]}\n)?"  # the way to what is visible
        assert re.fullmatch(rf"seen\na tool\nown\n/run:\n\n/tmp:\n{tmp}\n/var/log:\n{SECRET}\n", seen)
        assert not (home / "y").exists()
        # wherever root of a container looks on the file systems that it has, the secrets are in none of their files
        first = "/proc/1/root"  # the root directory of the machine's first process
        searcher = await start(
            f"grep -rlsI --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev '{SECRET}' /tmp /run /var /mnt;"
            f" cat {home}/key {machine.disk}/containers/*/tmp/mine '{machine.disk}'/containers/*/tmp/mine;"
            f" cat {first}{home}/key /proc/*/root{home}/key; ls {first}/..; echo end"
        )
        await searcher.ended
        assert SECRET not in searcher.log.read_text()
        assert str(machine.disk) not in searcher.lines()
        assert "end" in searcher.lines()


@together
async def test_what_a_container_writes_stays_its_own(machine: Machine) -> None:
    marker = f"x{time.time_ns()}"
    async with machine.sandbox() as (_, start):
        box = await start(
            f"touch /usr/{marker} /etc/{marker} /{marker} /tmp/{marker} && rm -r /usr/share/doc; echo did"
        )
        await box.ended
        other = await start(f"ls -d /usr/{marker} /etc/{marker} /{marker} /tmp/{marker} /usr/bin")
        await other.ended
        assert (box.lines(), other.lines()) == ("did\n", "/usr/bin\n")
        assert not any(Path(place, marker).exists() for place in ("/usr", "/etc", "/", "/tmp"))


@together
async def test_mounts(machine: Machine) -> None:
    volume = machine.directory / "volumes"
    for name in ("one", "two", "three", "two/in"):
        (volume / name).mkdir(parents=True, exist_ok=True)
        (volume / name / "name").write_text(Path(name).name)
    (volume / "link").unlink(missing_ok=True)
    (volume / "link").symlink_to("/../../../../target-of-link")

    def mount(source: str, target: str, **more: object) -> dict:
        return {"source": str(volume / source), "target": target, **more}

    async with machine.sandbox() as (_, start):
        box = await start(
            "cat /run/secrets/name /inner/in/name /run/file /target-of-link/name; touch /inner/x || echo read-only;"
            " touch /inner/in/x && echo writable; ls /dev/termination-log",
            mounts=[
                mount("one", "/var/run/secrets", read_only=True),  # /var/run is a link to /run
                mount("two", "/inner", read_only=True),
                mount("three", "/inner/in"),
                mount("one/name", "/var/run/file"),
                mount("one", "/dev/termination-log"),
                mount("", "/all"),
                mount("two", "/all/link"),  # a link that leads out, were it not for the new root
            ],
        )
        await box.ended
        assert box.lines() == "onethreeonetworead-only\nwritable\nname\n", box.log.read_text()
        assert not Path("/target-of-link").exists()


@together
async def test_propagation(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        volume = machine.directory / "shared"
        volume.mkdir(exist_ok=True)

        async def listens(kind: str) -> Box:
            mount = {"source": str(volume), "target": "/shared", "propagation": kind}
            box = await start("echo ready; sleep 1000", mounts=[mount], privileged=True)
            await box.says("ready")
            return box

        private, slave, shared = [await listens(k) for k in ("private", "host_to_container", "bidirectional")]
        await shared.run("mkdir -p /shared/sub; mount -t tmpfs none /shared/sub; touch /shared/sub/inside")
        looks = [(await box.run("ls /shared/sub"))[1] for box in (private, slave, shared)]
        assert looks == ["", "inside\n", "inside\n"]
        assert (await shared.run("umount /shared/sub"))[0] == 0
        assert list((volume / "sub").iterdir()) == []
        with pytest.raises(StartError, match='"wild" is no mount propagation'):
            await listens("wild")


@together
async def test_devices(machine: Machine) -> None:
    async with machine.sandbox() as (_, start):
        box = await start(
            "echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; ls -A /dev; df /dev/shm",
            devices=["/dev/fuse", {"source": "/dev/zero", "target": "/dev/mine"}]
            if os.path.exists("/dev/fuse")
            else [],
        )
        await box.ended
        names = set(box.lines().split())
        expected = {"null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "mqueue", "fd", "stdin"}
        assert names >= expected and box.lines().startswith("4\n4\n") and "65536" in names
        assert not {"vda", "mem", "kmsg"} & names


# ---- namespaces -----------------------------------------------------------------------------------------------------


@together
async def test_containers_of_a_sandbox_share(machine: Machine) -> None:
    async with machine.sandbox(
        POD | {"sysctls": {"net.ipv4.ip_unprivileged_port_start": "7", "kernel.shmmni": "9"}}
    ) as (
        _,
        start,
    ):
        look = "readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/uts"
        first = await start(f"{look}; hostname; sleep 1000")
        second = await start(
            f"{look}; hostname; cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shmmni"
        )
        await second.ended
        names = second.lines().splitlines()
        assert (await first.says("pod-1")).splitlines() == names[:4]
        assert names[3:] == ["pod-1", "7", "9"]
        assert not set(names[:3]) & {os.readlink(f"/proc/self/ns/{name}") for name in ("net", "ipc", "uts")}
        shown = await start("ip -o link; ps -e -o comm=")
        await shown.ended
        assert re.fullmatch(r"1: lo: <LOOPBACK,UP,LOWER_UP>.*\nsh\nps\n", shown.lines())


@together
async def test_shared_processes(machine: Machine) -> None:
    async with machine.sandbox(POD | {"namespaces": {"net": "pod", "ipc": "pod", "pid": "pod"}}) as (_, start):
        first = await start("setsid sleep 4321 & setsid sh -c 'sleep 4322 & exit'; echo ready; exec sleep 4323")
        await first.says("ready")
        second = await start("echo ready; exec sleep 4324")
        await second.says("ready")
        sleepers = re.findall(r"sleep (\d+)", (await second.run("ps -e -o args="))[1])
        assert sorted(sleepers) == ["4321", "4322", "4323", "4324"]
        code, text = await second.run(f"cat /proc/*/root{machine.home}/key; cat /proc/1/environ /proc/1/mem; exit 0")
        assert SECRET not in text and text.lower().count("permission denied") >= 2
        await first.init.signal(first.id, signal.SIGKILL)
        await first.ended
        assert re.findall(r"sleep (\d+)", (await second.run("ps -e -o args="))[1]) == ["4324"]
        assert not second.ended.done()


@together
async def test_processes_of_another_container(machine: Machine) -> None:
    async with machine.sandbox() as (_, start):
        target = await start("echo ready; exec sleep 4321")
        await target.says("ready")
        debugger = await start("ps -e -o args=; sleep 1000", pid_target=target.id)
        assert "sleep 4321" in await debugger.says("ps")
        await target.init.signal(target.id, signal.SIGKILL)
        assert (await debugger.ended)["code"] == 137
        with pytest.raises(InitError, match="is not running"):
            await start("true", pid_target=target.id)
        with pytest.raises(NotFound, match='no container "nobody"'):
            await start("true", pid_target="nobody")


@together
async def test_namespaces_of_the_machine(machine: Machine) -> None:
    spaces = {"net": "host", "ipc": "host", "pid": "host"}
    async with machine.sandbox({"hostname": "ignored", "namespaces": spaces}) as (_, start):
        box = await start("readlink /proc/self/ns/net; hostname; ps -e -o args=; setsid sleep 4325 & sleep 1000")
        text = await box.says("ps")
        assert text.splitlines()[:2] == [os.readlink(f"/proc/{machine.init.pid}/ns/net"), "cpu-a"]
        assert "helpers.cluster.embedded.runtime.init" in text
        code, text = await box.run(f"cat /proc/*/root{machine.home}/key; kill -9 1; echo $?")
        assert SECRET not in text
        await box.init.signal(box.id, signal.SIGKILL)
        await box.ended
        other = await start("ps -e -o args=")
        await other.ended
        assert "sleep 4325" not in other.lines()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"sysctls": {"vm.swappiness": "1"}}, 'sysctl "vm.swappiness" is not of a namespace'),
        ({"sysctls": {"net.no.such": "1"}}, 'sysctl "net.no.such" cannot be set to "1": No such file'),
        ({"sysctls": {"net./../../../../x": "1"}}, "is no sysctl|cannot be set"),
        ({"namespaces": {"pid": "mine"}}, '"mine" is no way to share processes'),
    ],
)
@together
async def test_sandboxes_that_cannot_be(machine: Machine, spec: dict, message: str) -> None:
    async with machine.connected() as init:
        with pytest.raises(InitError, match=message):
            await init.make_sandbox("bad", POD | spec)
        assert os.listdir(machine.disk / "sandboxes") == []


@together
async def test_sandbox_in_use(machine: Machine) -> None:
    async with machine.connected() as init:
        await init.make_sandbox("used", POD)
        with pytest.raises(InitError, match='"used" exists already'):
            await init.make_sandbox("used", POD)
        assert await init.sandboxes() == ["used"]
        await init.start("user", {"sandbox": "used", "argv": ["sleep", "1000"], "env": ENV})
        with pytest.raises(InitError, match='still has the running container "user"'):
            await init.remove_sandbox("used")
        with pytest.raises(InitError, match='container "user" is still running'):
            await init.forget("user")
        with pytest.raises(InitError, match='"user" exists already'):
            await init.start("user", {"sandbox": "used", "argv": ["true"], "env": ENV})
        await init.signal("user", signal.SIGKILL)
        while (await init.containers())["user"]["state"] == "running":
            await asyncio.sleep(0.02)
        await init.forget("user")
        await init.forget("user")
        await init.remove_sandbox("used")
        await init.remove_sandbox("used")
        assert await init.sandboxes() == []


# ---- memory ---------------------------------------------------------------------------------------------------------

EATER = "python3 -c 'x = bytearray(300 << 20); import time; time.sleep(1000)'"


@together
async def test_too_much_memory(machine: Machine) -> None:
    async with machine.sandbox() as (_, start):
        box = await start(f"exec {EATER}", memory_bytes=100 * MIB)
        record = await box.ended
        assert (record["code"], record["oom_killed"]) == (137, True)
        shy = await start(f"{EATER}; sleep 1000", memory_bytes=100 * MIB)  # not the first process: all the same
        record = await shy.ended
        assert (record["code"], record["oom_killed"]) == (137, True)


@together
async def test_limit_that_changes(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("sleep 1000", memory_bytes=100 * MIB)
        shown = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null"
        assert (await box.run(shown))[1] == f"{100 * MIB}\n"
        await init.resize(box.id, 600 * MIB)
        assert (await box.run(shown))[1] == f"{600 * MIB}\n"
        eater = asyncio.create_task(box.run(EATER))
        usage = dict.fromkeys(("memory_bytes", "working_set_bytes", "rss_bytes"), 0)
        while min(usage[name] for name in ("memory_bytes", "working_set_bytes", "rss_bytes")) < 300 * MIB:
            await asyncio.sleep(0.05)
            usage = (await init.usage([box.id, "nobody"]))[box.id]
        assert usage["memory_bytes"] >= usage["working_set_bytes"]
        assert usage["pids"] >= 2 and usage["cpu_ns"] > 0
        if machine.cgroup:
            with pytest.raises(InitError, match="Device or resource busy"):
                await init.resize(box.id, 10 * MIB)
        await init.resize(box.id, None)
        eater.cancel()


@together
async def test_usage_is_shown_in_the_container(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start(f"exec {EATER}", memory_bytes=600 * MIB)
        shown = "cat /sys/fs/cgroup/memory.current /sys/fs/cgroup/memory/memory.usage_in_bytes 2>/dev/null"
        while int((await box.run(shown))[1]) < 300 * MIB:
            await asyncio.sleep(0.05)
        assert (await box.run("echo 1 > /sys/fs/cgroup/x"))[0] != 0


# ---- output ---------------------------------------------------------------------------------------------------------


@together
async def test_log(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("echo out; echo err >&2; head -c 40000 /dev/zero | tr '\\0' x; echo; printf unfinished")
        await box.ended
        lines = box.log.read_text().splitlines()
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z std(out|err) [FP] .*", line) for line in lines)
        stdout = [line.split(" ", 3)[2:] for line in lines if " stdout " in line]
        assert [(tag, len(text)) for tag, text in stdout] == [
            ("F", 3),
            ("P", 16384),
            ("P", 16384),
            ("F", 7232),
            ("F", 10),
        ]
        assert box.lines("stderr") == "err\n"


@together
async def test_log_that_is_rotated(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("echo one; read x; echo two; read x", stdin=True)
        await box.says("one")
        old = box.log.rename(box.log.with_suffix(".old"))
        await init.reopen_log(box.id)
        attached = await init.attach(box.id, stdin=True)
        os.write(attached.stdin, b"\n")
        await box.says("two")
        assert "two" not in old.read_text()
        attached.close()
        await init.signal(box.id, signal.SIGKILL)
        await box.ended
        with pytest.raises(InitError, match="is not running"):
            await init.reopen_log(box.id)


@together
async def test_attach(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("while read x; do echo got $x; done; echo end >&2; exit 4", stdin=True, stdin_once=True)
        watcher, writer = await init.attach(box.id, stdin=False), await init.attach(box.id, stdin=True)
        assert watcher.stdin is None and not writer.tty
        for word in ("one", "two"):
            os.write(writer.stdin, f"{word}\n".encode())
            assert await asyncio.to_thread(os.read, writer.stdout, 100) == f"got {word}\n".encode()
        assert (await init.attach(box.id, stdin=True)).stdin is None  # it is given away once only
        writer.close()
        assert (await box.ended)["code"] == 4
        assert await asyncio.to_thread(os.read, watcher.stdout, 100) == b"got one\ngot two\n"
        assert await asyncio.to_thread(os.read, watcher.stdout, 100) == b""
        assert await asyncio.to_thread(os.read, watcher.stderr, 100) == b"end\n"
        watcher.close()


@together
async def test_input_that_stays_open(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("while read x; do echo got $x; done", stdin=True)
        for word in ("one", "two"):
            attached = await init.attach(box.id, stdin=True)
            os.write(attached.stdin, f"{word}\n".encode())
            attached.close()
            await box.says(f"got {word}")


@together
async def test_attached_and_asleep(machine: Machine) -> None:
    """Somebody attached who does not read holds up neither the container nor its log; he hears that he missed some."""
    async with machine.sandbox() as (init, start):
        box = await start(
            "read x; i=0; while [ $i -lt 100000 ]; do echo line $i of many, many lines; i=$((i+1)); done;"
            " echo over; read x; echo last",
            stdin=True,
        )
        asleep, writer = await init.attach(box.id, stdin=False), await init.attach(box.id, stdin=True)
        os.close(writer.stdout)
        writer.stdout = None
        os.write(writer.stdin, b"\n")
        text = await box.says("over\n")
        assert text.count("\n") == 100001
        got = b""
        while b"are left out here" not in got:
            os.set_blocking(asleep.stdout, False)
            try:
                got += os.read(asleep.stdout, 65536)
            except BlockingIOError:
                os.write(writer.stdin, b"\n")
                await asyncio.sleep(0.05)
        lost = int(re.search(rb"\[(\d+) bytes are left out here", got)[1])
        assert lost > 0 and got.startswith(b"line 0 of many")
        asleep.close()
        writer.close()


@together
async def test_terminal(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("tty; stty size; read x; echo got $x; exit 5", tty=True, stdin=True)
        await box.says("/dev/pts/0")
        attached = await init.attach(box.id, stdin=True)
        assert attached.tty and attached.stderr is None
        os.write(attached.stdin, b"it\n")
        assert (await box.ended)["code"] == 5
        assert "got it\r\n" in box.lines()
        attached.close()


# ---- further processes in a container -------------------------------------------------------------------------------


@together
async def test_exec(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("cd /; exec sleep 1000", cwd="/usr", memory_bytes=100 * MIB)
        code, text = await box.run(
            "pwd; hostname; echo $GREETING $MORE; ps -e -o args= | head -1; exit 9", env={"MORE": "x"}
        )
        assert (code, text) == (9, "/usr\npod-1\nhello x\nsleep 1000\n")
        assert (await box.run("mount -t tmpfs none /mnt"))[0] != 0
        assert (await box.run("kill -9 $$"))[0] == 137
        with pytest.raises(StartError, match='exec: "nothing": executable file not found in \\$PATH'):
            await init.exec(box.id, {"argv": ["nothing"]}, (0, 1, 2))
        with pytest.raises(InitError, match="stdin, stdout and stderr are needed"):
            await init.exec(box.id, {"argv": ["true"]})
        with pytest.raises(NotFound):
            await init.exec("nobody", {"argv": ["true"]}, (0, 1, 2))
        if machine.cgroup:
            assert "/cpu-a/" in (await box.run("cat /proc/self/cgroup"))[1]
            assert (await box.run("id -u", uid=1234))[1] == "1234\n"
        await init.signal(box.id, signal.SIGKILL)
        await box.ended
        with pytest.raises(InitError, match="is not running"):
            await init.exec(box.id, {"argv": ["true"]}, (0, 1, 2))


@together
async def test_many_at_once(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("sleep 1000")
        results = await asyncio.gather(*[box.run(f"cat; echo {n}; exit {n}") for n in range(50)])
        assert results == [(n, f"{n}\n") for n in range(50)]


@together
async def test_exec_with_a_terminal(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("sleep 1000")
        run = await init.exec(box.id, {"argv": ["sh", "-c", "tty; read x; echo got $x; exit 6"], "tty": True})
        os.write(run.tty, b"it\n")
        assert await run.wait() == 6
        assert b"/dev/pts/0" in (text := os.read(run.tty, 1000)) and b"got it" in text
        os.close(run.tty)


@together
async def test_exec_ends_with_its_client(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("sleep 1000")
        command = {"argv": ["sh", "-c", "sleep 4321; true"]}
        run = await init.exec(box.id, command, (0, 1, 2))
        await run.kill()
        assert await run.wait() == 137
        async with machine.connected() as other:
            await other.exec(box.id, command, (0, 1, 2))
            assert "sleep 4321" in (await box.run("ps -e -o args="))[1]
        while "sleep 4321" in (await box.run("ps -e -o args="))[1]:
            await asyncio.sleep(0.02)
        assert not box.ended.done()


# ---- clients --------------------------------------------------------------------------------------------------------


@together
async def test_a_client_that_comes_back_is_told_the_truth(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        ended, runs = await start("exit 3"), await start("sleep 1000")
        await ended.ended
        async with machine.connected() as other:
            told = await other.containers()
        assert (told[ended.id]["state"], told[ended.id]["code"]) == ("exited", 3)
        assert (told[runs.id]["state"], told[runs.id]["pid"]) == ("running", runs.pid)
        on_disk = json.loads((machine.disk / "containers" / ended.id / "record.json").read_text())
        assert on_disk == told[ended.id]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"d",
        b"dnot JSON",
        b"d[]",
        b"dnull",
        b"d" + b"[" * 60000,
        b"f",
        b"d{}",
        b'd{"op": 7}',
        b'd{"op": "__init__"}',
        b'd{"op": "start"}',
        b'd{"op": "start", "name": "x", "spec": 1}',
        b'd{"op": "start", "name": "../x", "spec": {"argv": ["true"]}}',
        b'd{"op": "start", "name": "x", "spec": {"argv": [1]}}',
        b'd{"op": "make_sandbox", "name": "x", "spec": {"namespaces": 3}}',
        b'd{"op": "exec", "name": "x"}',
        b'd{"op": "exec_kill", "exec": []}',
        b'd{"op": "usage", "names": 4}',
        b'd{"op": "signal", "name": "x", "signal": "KILL"}',
        b'd{"op": "forget", "name": ".."}',
    ],
)
@together
async def test_nonsense(machine: Machine, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(machine.socket))
        sock.settimeout(20)
        sock.send(data)
        if data:  # an empty message is how a client hangs up
            reply, _ = messages.receive(sock)
            assert reply["error"]["message"]
    async with machine.connected() as init:
        assert await init.containers() == {}


@together
async def test_clients_that_do_not_listen(machine: Machine) -> None:
    """Neither one that never reads, nor one that leaves descriptors behind, holds up the others."""
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deaf.connect(str(machine.socket))
    deaf.setblocking(False)
    fds = machine.init.num_fds()
    with pytest.raises(OSError):
        for number in range(100_000):
            messages.send(deaf, {"id": number, "op": "containers"}, (0, 1, 2))
    async with machine.sandbox() as (init, start):
        box = await start("exit 3")
        assert (await box.ended)["code"] == 3
    deaf.close()
    wait_until(lambda: machine.init.num_fds() <= fds, 20, what="the descriptors of a deaf client to be closed")


@together
async def test_large_messages(machine: Machine) -> None:
    async with machine.sandbox() as (_, start):
        box = await start("echo ${#BIG1} ${#BIG2}", env=ENV | {"BIG1": "x" * 100_000, "BIG2": "y" * 120_000})
        await box.ended
        assert box.lines() == "100000 120000\n"


@together
async def test_an_exec_that_is_cancelled(machine: Machine) -> None:
    async with machine.sandbox() as (init, start):
        box = await start("sleep 1000")
        fds = psutil.Process().num_fds()
        for _ in range(20):
            task = asyncio.create_task(init.exec(box.id, {"argv": ["cat"], "tty": True}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await init.containers()  # everything before it is answered
        assert psutil.Process().num_fds() <= fds + 1


# ---- the machine ----------------------------------------------------------------------------------------------------


def service(machine: Machine, name: str) -> dict:
    async def ask() -> dict:
        async with machine.connected() as init:
            return next(entry for entry in await init.services() if entry["name"] == name)

    return asyncio.run(ask())


def test_services(own_machine: Machine) -> None:
    machine = own_machine
    asyncio.run(test_service_killed(machine))
    assert service(machine, "later") == {"name": "later", "pid": 0, "started_ns": 0, "restarts": -1}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(machine.run / "go"))  # as one who was killed leaves it behind
        assert not any(service(machine, "later")["pid"] for _ in range(20))
        server.listen()
        wait_until(lambda: service(machine, "later")["pid"] > 0, 10, what="the service to start when it may")


async def test_service_killed(machine: Machine) -> None:
    """Called above: a service that dies is started again, with growing pauses, and containers live on."""
    async with machine.sandbox() as (init, start):
        box = await start("echo ready; sleep 1000")
        await box.says("ready")
        for times in range(1, 4):
            victim = next(child for child in machine.init.children() if child.cmdline() == ["sleep", "1000"])
            victim.kill()
            while (await init.services())[0]["restarts"] < times or not (await init.services())[0]["pid"]:
                await asyncio.sleep(0.02)
        assert not box.ended.done()
    assert (machine.directory / "steady.log").read_text().startswith("begins\nbegins\nbegins\n")
    pauses = re.findall(r"service steady ended with code 137; it starts again in (\S+) s", machine.log.read_text())
    assert pauses == ["0.1", "0.2", "0.4"]


test_service_killed.__test__ = False


@pytest.mark.parametrize("victim", ["init", "its parent"])
def test_a_machine_that_is_lost(own_machine: Machine, victim: str) -> None:
    machine = own_machine

    async def populate() -> tuple[str, str]:
        async with machine.connected() as init:
            await init.make_sandbox("s", POD)
            for name, argv in (("runs", ["sleep", "1000"]), ("ended", ["sh", "-c", "exit 3"])):
                await init.start(name, {"sandbox": "s", "argv": argv, "env": ENV})
            while (await init.containers())["ended"]["state"] != "exited":
                await asyncio.sleep(0.02)

    asyncio.run(populate())
    family = machine.init.children(recursive=True) + [machine.init]
    assert len(family) >= 3
    (machine.init if victim == "init" else psutil.Process(machine.process.pid)).kill()
    machine.process.wait(20)
    assert psutil.wait_procs(family, timeout=20)[1] == []

    async def after() -> None:
        async with machine.connected() as init:
            told = await init.containers()
            assert (told["runs"]["state"], told["runs"]["code"], told["runs"]["reason"]) == ("exited", 255, "Unknown")
            assert (told["ended"]["code"], told["ended"]["reason"]) == (3, "")
            assert await init.sandboxes() == []
            for name in told:
                await init.forget(name)
            await init.remove_sandbox("s")
            assert await init.containers() == {}

    machine.start()
    asyncio.run(after())
    assert os.listdir(machine.disk / "containers") == os.listdir(machine.disk / "sandboxes") == []


def test_a_machine_that_is_switched_off(own_machine: Machine) -> None:
    machine = own_machine

    async def populate() -> None:
        async with machine.connected() as init:
            await init.make_sandbox("s", POD)
            polite = ["sh", "-c", "trap 'exit 5' TERM; touch /tmp/ready; while :; do sleep 0.05; done"]
            for name, argv in (("polite", polite), ("stubborn", ["sleep", "1000"])):
                await init.start(name, {"sandbox": "s", "argv": argv, "env": ENV})
            while not (machine.disk / "containers" / "polite" / "tmp" / "ready").exists():
                await asyncio.sleep(0.02)
            gone = asyncio.create_task(init.gone())
            machine.process.terminate()
            await gone
            with pytest.raises(InitGone):
                await init.containers()

    asyncio.run(populate())
    assert machine.process.wait(20) == 0
    codes = {
        name: json.loads((machine.disk / "containers" / name / "record.json").read_text())["code"]
        for name in ("polite", "stubborn")
    }
    assert codes == {"polite": 5, "stubborn": 137}
    assert not machine.socket.exists()
    if machine.cgroup:
        top = machine.cgroup.partition("/")[0]
        assert not [path for path in Path("/sys/fs/cgroup").glob(f"*/{top}/*") if path.name in machine.cgroup]


def footprint(machine: Machine) -> dict[str, object]:
    """What a machine has open, mounted, running and made."""
    pid = machine.init.pid
    return {
        "descriptors": machine.init.num_fds(),
        "mounts": Path(f"/proc/{pid}/mountinfo").read_text().count("\n"),
        "processes": len(machine.init.children(recursive=True)),
        "cgroups": sorted(map(str, Path("/sys/fs/cgroup").glob(f"*/{machine.cgroup}/*/"))) if machine.cgroup else [],
        "files": sorted(map(str, machine.disk.rglob("*"))),
    }


@together
async def test_nothing_is_left(machine: Machine) -> None:
    async def cycle(number: int) -> None:
        kind = ("container", "pod")[number % 2]
        async with machine.sandbox(POD | {"namespaces": {"net": "pod", "ipc": "pod", "pid": kind}}) as (init, start):
            box = await start("echo ready; sleep 1000 & read x", stdin=True, memory_bytes=100 * MIB)
            attached = await init.attach(box.id, stdin=True)
            assert (await box.run("exit 1"))[0] == 1
            with pytest.raises(StartError):
                await start(["no-such-program"], tty=number % 3 == 0)
            attached.close()

    await cycle(0)
    before = footprint(machine)
    for number in range(0, 40 if machine.before else 200, 4):
        await asyncio.gather(*[cycle(number + step) for step in range(4)])
    for name, value in footprint(machine).items():
        assert value == before[name], name


def test_memory_of_an_init(machine: Machine) -> None:
    if machine.before:
        pytest.skip("the same program")
    text = Path(f"/proc/{machine.init.pid}/smaps_rollup").read_text()
    assert int(re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[1]) <= 12 * 1024


def test_state_on_a_file_system_that_overlay_refuses(tmp_path: Path) -> None:
    """An overlay itself, as in a container whose state is not on a volume."""
    for name in ("lower", "upper", "work", "disk, of: tests"):
        (tmp_path / name).mkdir()
    script = (
        f"mount -t overlay none '{tmp_path}/disk, of: tests'"
        f' -o lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work && exec "$@"'
    )
    machine = make_machine(tmp_path, "root")
    machine.before = ("unshare", "--mount", "sh", "-c", script, "sh")
    machine.start()

    async def refused() -> None:
        async with machine.sandbox() as (_, start):
            with pytest.raises(
                StartError, match=r"a container's layer cannot be on .*file system \(overlay\) cannot be"
            ):
                await start("true")

    try:
        asyncio.run(refused())
    finally:
        machine.off()

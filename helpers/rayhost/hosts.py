"""Several hosts on one machine, and the commands that a person would type on them.

On Linux, as root or where user namespaces are allowed, a host is *separate*: its own network address, process table,
host name, /dev/shm and scratch directory. Elsewhere the hosts *share* this machine, and `ray start` gets other ports
for each; the command is always printed as it was run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from helpers import versions
from helpers.errors import CourseError
from helpers.rayhost import members
from helpers.rayhost.processes import ProcessTable, table_of
from helpers.state import course_root, read_json, state_dir, update_json

FIRST_ADDRESS = 11  # 10.77.0.11, 10.77.0.12, …: numbers that are easy to tell from the switch's 10.77.0.1
SCRATCH_PREFIX = "ray-course-"
SCRATCH_PLACES = ("/tmp", "/mnt", "/media", "/srv", "/opt")
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")


@dataclass
class CommandResult:
    """What a command on a host printed (stdout and stderr together), and its exit status."""

    command: str
    output: str
    status: int

    def __str__(self) -> str:
        return self.output

    def _repr_html_(self) -> str:
        return ""  # the command and its output have been printed already


@dataclass
class Host:
    """One host of a lab. Made by `Hosts.add`."""

    name: str
    address: str
    hosts: Hosts = field(repr=False)
    init_pid: int = field(repr=False)
    ports: dict[str, int] = field(default_factory=dict, repr=False)

    def run(self, command: str, *, timeout_s: float = 120, quiet: bool = False) -> CommandResult:
        """Run a shell command on this host, as if typed there, and print both the command and what it says.

        Args:
            command: the command line. On hosts with shifted ports `ray start` gets the options that move its ports.
            timeout_s: seconds after which the command is ended.
            quiet: print the command and the seconds it took only, unless it fails.

        Raises:
            CourseError: if it ends with another status than 0 or takes longer, with the last lines that it printed.
        """
        self.hosts.check_open()
        command = self.hosts.as_run(self, command)
        print(f"{self.name} $ {command}", flush=True)
        start = time.monotonic()
        process = self.hosts.spawn(self, ["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise CourseError(
                f"`{command}` on {self.name} took longer than {timeout_s:g} s.",
                "Run the cell again; `course doctor` shows whether this machine is short of memory.",
            ) from None
        output = _plain(output)
        self.hosts.note(f"{self.name} $ {command}\n{output}")
        if process.returncode != 0:
            raise CourseError(
                f"`{command}` on {self.name} ended with status {process.returncode}: {_last_lines(output)}",
                "Read its last lines above, mend the command, and run the cell again.",
            )
        if quiet:
            print(f"✔ after {time.monotonic() - start:.1f} s")
        elif output:
            print(output.rstrip())
        return CommandResult(command, output, process.returncode)

    def processes(self) -> ProcessTable:
        """The Ray processes that run on this host now, by the part that each plays."""
        self.hosts.check_open()
        return table_of(self.name, self.members())

    def members(self) -> list[psutil.Process]:
        """All processes that run on this host now, Ray's and others."""
        return self.hosts.members(self)

    def network_bytes(self) -> dict[str, int]:
        """Bytes that have crossed the network card of this separate host since it came up: "sent" and "received"."""
        for line in Path(f"/proc/{self.init_pid}/net/dev").read_text().splitlines():
            card, _, counters = line.partition(":")
            if card.strip() == "eth0":
                numbers = counters.split()
                return {"sent": int(numbers[8]), "received": int(numbers[0])}
        raise CourseError(f"{self.name} has no network card.", "Run the notebook again from its first cell.")

    def freeze(self, part: str) -> None:
        """Stop `part` in its tracks, as `kill -STOP` does; `thaw` lets it go on.

        Raises:
            CourseError: if no such process runs on this host.
        """
        self._signal(part, "STOP")

    def thaw(self, part: str) -> None:
        """Let `part` go on after `freeze`."""
        self._signal(part, "CONT")

    def kill(self, part: str) -> None:
        """End `part` ("raylet", "gcs_server", …) at once, as `kill -9` does.

        Raises:
            CourseError: if no such process runs on this host.
        """
        self._signal(part, "KILL")

    def _signal(self, part: str, name: str) -> None:
        self.hosts.check_open()
        pids = self.processes().pids(part)
        if not pids:
            raise CourseError(
                f"No {part} runs on {self.name}.",
                f"{self.name}.processes() shows what does; start Ray there if need be.",
            )
        command = f"kill -{name} {' '.join(map(str, pids))}   # {part}"
        print(f"{self.name} $ {command}", flush=True)
        self.hosts.note(f"{self.name} $ {command}")
        for pid in pids:
            os.kill(pid, signal.Signals[f"SIG{name}"])


class Hosts:
    """The hosts of one lab, and the keeper process that ends them when this process ends.

    Args:
        session: a name for this lab, used in file names; unique on the machine.
        log: a file that all commands and what they print are added to.
        separate: False to use shifted ports although separate hosts are possible. Separate hosts are tried first
            otherwise, and `why_shared` says why they were not to be had.
    """

    def __init__(self, session: str, *, log: Path, separate: bool = True):
        self.directory, self.log = state_dir() / "labs" / session, log
        _make_directories(log.parent, self.directory)
        self.session, self.by_name, self.token = session, {}, secrets.token_hex(16)
        self.scratch, self.rootless, self.why_shared, self.closed = "", os.geteuid() != 0, "", False
        self.keeper = self._start_keeper(separate)
        self.separate = not self.why_shared
        if not self.separate:
            # sockets live here, and their path may have 107 characters at most, so not below the state directory
            self.scratch = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir="/tmp")
        self._write_record()

    def add(self, name: str) -> Host:
        """Bring up a host called `name`; the one that is there already, if it is.

        Raises:
            CourseError: if it does not come up.
        """
        self.check_open()
        if name in self.by_name:
            return self.by_name[name]
        number = len(self.by_name)
        address = f"10.77.0.{FIRST_ADDRESS + number}" if self.separate else "127.0.0.1"
        answer = self._ask(name=name, address=address, scratch=self.scratch)
        host = Host(name, address, self, answer["pid"])
        if not self.separate:
            host.ports = _free_ports(number)
            self._home(host).joinpath(".ray").mkdir(parents=True)
            _write_secret(self._home(host) / ".ray" / "auth_token", self.token)
        self.by_name[name] = host
        return host

    def spawn(self, host: Host, argv: list[str], **popen) -> subprocess.Popen:
        """Start `argv` on `host` in the course's root directory, with a clean environment."""
        environment = self._environment(host)
        if self.separate:
            enter = ["nsenter", "--target", str(host.init_pid), *NAMESPACES]
            enter += ["--user", "--preserve-credentials"] if self.rootless else []
            argv = [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(course_root()), *argv]
        popen.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(argv, env=environment, cwd=course_root(), text=True, start_new_session=True, **popen)

    def members(self, host: Host) -> list[psutil.Process]:
        if self.separate:
            return members.of_namespace(host.init_pid)
        return members.of_mark(f"{self.session}/{host.name}")

    def as_run(self, host: Host, command: str) -> str:
        return command if self.separate else _shift_ports(command, host, self.by_name)

    def check_open(self) -> None:
        if self.closed or self.keeper.poll() is not None:
            raise CourseError("The hosts of this lab have been stopped.", "Run the notebook again from its first cell.")

    def close(self) -> None:
        """End every process of every host, by pid, and remove what they left. May be called twice."""
        if self.closed:
            return
        self.closed = True
        self.keeper.stdin.close()
        try:
            self.keeper.wait(30)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
        self.keeper.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def note(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")

    def _write_record(self) -> None:
        """Leave word for the next `Lab.start`, in case this process ends without `close`."""
        me, keeper = psutil.Process(), psutil.Process(self.keeper.pid)
        record = {
            "pid": me.pid,
            "started": me.create_time(),
            "keeper_pid": keeper.pid,
            "keeper_started": keeper.create_time(),
            "scratch": "" if self.separate else self.scratch,
        }
        update_json(self.directory / "record.json", lambda data: data.update(record))

    def _start_keeper(self, separate: bool) -> subprocess.Popen:
        if separate:
            self.why_shared = self._why_not_separate()
            if not self.why_shared:
                user = ["--user", "--map-root-user"] if self.rootless else []
                keeper = self._keeper_process("separate", ["unshare", "--net", *user])
                self.why_shared = self._greeting(keeper)
                if not self.why_shared:
                    return keeper
        else:
            self.why_shared = "asked for"
        keeper = self._keeper_process("shared", [])
        problem = self._greeting(keeper)
        if problem:
            raise CourseError(
                f"The process that looks after the hosts did not start: {problem}.", "Run `course doctor`."
            )
        return keeper

    def _why_not_separate(self) -> str:
        if sys.platform != "linux":
            return "this is not Linux"
        needed = [course_root(), Path(sys.prefix), Path(sys.base_prefix), state_dir()]
        paths = [p.absolute() for p in needed] + [p.resolve() for p in needed]
        free = [p for p in SCRATCH_PLACES if os.path.isdir(p) and not any(path.is_relative_to(p) for path in paths)]
        if not free:
            return f"the course and its Python lie below all of {', '.join(SCRATCH_PLACES)}"
        self.scratch = free[0]
        return ""

    def _keeper_process(self, mode: str, prefix: list[str]) -> subprocess.Popen:
        argv = [*prefix, sys.executable, "-m", "helpers.rayhost.keeper", mode, str(self.directory)]
        environment = {**os.environ, "COURSE_RAY_TOKEN": self.token, "PYTHONPATH": str(course_root())}
        with (self.directory / "keeper.log").open("a") as log:
            return subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                cwd="/", start_new_session=True,
            )  # fmt: skip

    def _greeting(self, keeper: subprocess.Popen) -> str:
        """Empty if the keeper is ready, else why it is not."""
        line = keeper.stdout.readline()
        if not line:
            keeper.wait()
            return _last_lines((self.directory / "keeper.log").read_text()) or f"exit status {keeper.returncode}"
        return json.loads(line).get("error", "")

    def _ask(self, **request) -> dict:
        print(json.dumps(request), file=self.keeper.stdin, flush=True)
        answer = json.loads(self.keeper.stdout.readline() or '{"error": "the keeper process ended"}')
        if "error" in answer:
            raise CourseError(
                f"Host {request['name']} did not come up: {answer['error']}.",
                "Run the notebook again from its first cell; `course doctor` shows what this machine allows.",
            )
        return answer

    def _home(self, host: Host) -> Path:
        return Path(self.scratch) / ("home" if self.separate else f"home-{host.name}")

    def _environment(self, host: Host) -> dict[str, str]:
        """What a login on the host would see: no variable of the notebook's that could steer Ray leaks in."""
        environment = {
            "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._home(host)),
            "HOSTNAME": host.name,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": self.scratch,  # what is Ray's default anyway, /tmp, on most machines
            members.MARK: f"{self.session}/{host.name}",
        }
        if sys.platform == "darwin":
            environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"  # Ray calls several Ray nodes on macOS unsupported
        return environment


def _shift_ports(command: str, host: Host, by_name: dict[str, Host]) -> str:
    """`ray start …` with the options that keep it off the ports of other hosts and other Rays on this machine."""
    words = shlex.split(command)
    settings = list(itertools.takewhile(lambda word: re.match(r"\w+=", word), words))
    words = words[len(settings) :]
    if words[:2] != ["ray", "start"]:
        return command
    words = [w for w in words if not w.startswith(("--port=", "--dashboard-port=", "--ray-client-server-port="))]
    words = [_known_address(w, by_name) for w in words] + ["--node-ip-address=127.0.0.1"]
    words.append(f"--dashboard-agent-listen-port={host.ports['agent']}")
    if "--head" in words:
        words += [f"--port={host.ports['gcs']}", f"--dashboard-port={host.ports['dashboard']}"]
        words.append(f"--ray-client-server-port={host.ports['client']}")
    return shlex.join(settings + words)


def _known_address(word: str, by_name: dict[str, Host]) -> str:
    name = word.removeprefix("--address=").partition(":")[0]
    if word.startswith("--address=") and name in by_name:
        return f"--address=127.0.0.1:{by_name[name].ports['gcs']}"
    return word


def _free_ports(number: int) -> dict[str, int]:
    """Ports as near to the usual ones as are free: shifted by 100 for each host, then by 1 until free."""
    usual = {
        "gcs": versions.PORT_GCS,
        "dashboard": versions.PORT_DASHBOARD,
        "client": versions.PORT_CLIENT,
        "agent": versions.PORT_AGENT,
    }
    return {name: _next_free(port + 100 * (number + 1)) for name, port in usual.items()}


def _next_free(port: int) -> int:
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                port += 1


def _write_secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _plain(output: str) -> str:
    """Without colours, and without the time and place that Ray's commands put before each line."""
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)
    return re.sub(r"^\d{4}-\d\d-\d\d [\d:,]+\t?\s*[A-Z]+ \S+:\d+ -- ", "", output, flags=re.MULTILINE)


def _last_lines(output: str, count: int = 5) -> str:
    return " / ".join(line.strip() for line in output.strip().splitlines()[-count:] if line.strip())


def end_leftovers(record_path: Path) -> list[str]:
    """End what the lab of this record left, if the process that had started it is gone; returns sentences on it."""
    record = read_json(record_path)
    session = record_path.parent.name
    if not record or _is_running(record["pid"], record["started"]):
        return []
    ended = 0
    if _is_running(record["keeper_pid"], record["keeper_started"]):
        # separate hosts end with their keeper; it closes by itself as its notebook is gone, so this is rarely needed
        members.kill([psutil.Process(record["keeper_pid"])])
        ended += 1
    ended += members.kill_session(session)
    if os.path.basename(record["scratch"]).startswith(SCRATCH_PREFIX):
        shutil.rmtree(record["scratch"], ignore_errors=True)
    shutil.rmtree(record_path.parent, ignore_errors=True)
    left = f"{ended} processes that it had left were ended now" if ended else "nothing of it was running any more"
    return [
        f"A run of lesson {session[:2]} had ended without clean_up (its notebook stopped or was restarted): {left}."
    ]


def _is_running(pid: int, started: float) -> bool:
    """Whether the process with this pid is the one that began then (seconds since the epoch), and no later one."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _make_directories(*directories: Path) -> None:
    try:
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CourseError(
            f"{error.filename} cannot be made ({error.strerror}), and a lab keeps its records there.",
            "Make that directory writable, or set XDG_STATE_HOME to one that is.",
        ) from None

"""Several hosts on one machine, and the commands that a person would type on them.

On Linux, as root or where user namespaces are allowed, a host is *separate*: its own network address, process table,
host name, /dev/shm and scratch directory. Elsewhere the hosts *share* this machine, and `ray start` gets other ports
for each; the command is always printed as it was run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import psutil

from helpers.errors import CourseError
from helpers.rayhost import keeper, members
from helpers.rayhost.ports import USUAL_PORTS, joined, next_free, shift_ports
from helpers.rayhost.processes import ProcessTable, listening_ports, table_of
from helpers.rayhost.records import RECORD, SCRATCH_PREFIX, first_free_lock, owners_lock
from helpers.state import course_root, state_dir, update_json
from helpers.wait import QUIET_S, say

FIRST_ADDRESS = 11  # 10.77.0.11, 10.77.0.12, …: numbers that are easy to tell from the switch's 10.77.0.1
SCRATCH_PLACES = ("/tmp", "/mnt", "/media", "/srv", "/opt")
SHOWN_LINES = 200  # of a command's output; a notebook with a million lines cannot be opened again
KEPT_BYTES = 10**7  # of a command's output
END_S = 5.0  # how long a command's own leader may take to end after all that it leads
CLOSE_S = 30.0  # how long the keeper may take to end its hosts
AGAIN = "Run the notebook again from its first cell."
MACOS = "; Ray calls several Ray nodes on macOS unsupported, so expect rough edges"
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
    directory: str = field(repr=False)  # where its Ray and its HOME keep their files, as seen from the host
    namespace: int | None = field(default=None, repr=False)  # of a separate host: the number of its process table
    ports: dict[str, int] = field(default_factory=lambda: dict(USUAL_PORTS), repr=False)
    head: Host | None = field(default=None, repr=False)  # of the cluster that `ray start` last put this host into

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
        # a file and no pipe: what the command leaves running may hold its output open for as long as it likes
        with tempfile.TemporaryFile(dir=self.hosts.directory) as file:
            process = self.hosts.spawn(self, ["sh", "-c", command], stdout=file, stderr=subprocess.STDOUT)
            try:
                in_time = _wait(process, timeout_s)
            finally:  # too late, or interrupted
                if process.returncode is None:
                    self._end(process)
            output = _text(file)
        self.hosts.note(f"{self.name} $ {command}\n{output}")
        status = process.returncode
        if output and (status != 0 or not quiet):
            print(_shortened(output, self.hosts.log))
        if not in_time:
            raise CourseError(
                f"`{command}` on {self.name} took longer than {timeout_s:g} s and was ended{_last_line(output)}.",
                "Run the cell again; `course doctor` shows whether this machine is short of memory.",
            )
        if status != 0:
            raise CourseError(
                f"`{command}` on {self.name} ended with status {status}{_last_line(output)}.",
                "Read above what it said, mend the command, and run the cell again.",
            )
        if quiet:
            print(f"✔ after {time.monotonic() - start:.1f} s")
        return CommandResult(command, output, status)

    def _end(self, process: subprocess.Popen) -> None:
        """End a command, and all that runs in its session."""
        # On a separate host nsenter leads it, and ends after what it has started there. Were it killed first, nobody
        # might ever collect that one, and a host cannot end before all of its processes are collected.
        deadline = time.monotonic() + (END_S if self.hosts.separate else 0)
        while process.returncode is None:
            last_try = time.monotonic() >= deadline
            members.kill(one for one in members.of_session(process.pid) if last_try or one.pid != process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)

    def processes(self) -> ProcessTable:
        """The Ray processes that run on this host now, by the part that each plays."""
        self.hosts.check_open()
        return table_of(self.name, self.members())

    @property
    def scratch(self) -> Path:
        """The host's scratch directory, where Ray keeps its logs, as this process can reach it."""
        root = f"/proc/{self.init_pid}/root" if self.hosts.separate else ""
        return Path(root + self.directory)

    def listeners(self) -> dict[int, str]:
        """TCP port → the part that listens on it, for all ports that Ray has open on this host."""
        self.hosts.check_open()
        return {port: row.part for row in self.processes().rows for port in listening_ports(row.pid)}

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

    def switch_off(self) -> None:
        """End everything that runs on this host, as a power cut does. Ray may be started on it again."""
        self.hosts.check_open()
        ended = members.kill(self.members())
        print(f"{self.name} is switched off: {len(ended)} processes ended with it", flush=True)
        self.hosts.note(f"{self.name} is switched off")

    def _signal(self, part: str, name: str) -> None:
        self.hosts.check_open()
        pids = self.processes().pids(part)
        if not pids:
            raise CourseError(
                f"No {part} runs on {self.name}.",
                f"{self.name}.processes() shows what does; start Ray there if need be.",
            )
        command = f"kill -{name} {' '.join(str(members.pid_inside(pid)) for pid in pids)}   # {part}"
        print(f"{self.name} $ {command}", flush=True)
        self.hosts.note(f"{self.name} $ {command}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ended on its own just now
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
        self.session, self.by_name, self.token = session, {}, secrets.token_hex(16)
        self.rootless, self.closed = os.geteuid() != 0, False
        _make_directories(log.parent, self.directory)
        self.lock = owners_lock(self.directory)
        self.why_shared = self._start_separate() if separate else "that was asked for"
        self.separate = not self.why_shared
        if not self.separate:
            self._start_sharing()

    def add(self, name: str) -> Host:
        """Bring up a host called `name`; the one that is there already, if it is.

        Raises:
            CourseError: if it does not come up, or its name is no host name.
        """
        self.check_open()
        if name in self.by_name:
            return self.by_name[name]
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", name) or name == "localhost":
            raise CourseError(
                f"{name!r} cannot be the name of a host.", "Use lower-case letters, digits and hyphens, as in worker-1."
            )
        number = len(self.by_name)
        # all of 127.0.0.0/8 is this machine on Linux; 127.0.0.1 Ray would turn into an address that others can reach
        address = f"{'10' if self.separate else '127'}.77.0.{FIRST_ADDRESS + number}"
        if sys.platform == "darwin":
            address = "127.0.0.1"  # the only one there
        answer = self._ask(name=name, address=address)
        # named by number: Ray's sockets lie in it, and their paths must be short
        directory = self.scratch if self.separate else f"{self.scratch}/{number}"
        host = Host(name, address, self, answer["pid"], directory, answer["namespace"])
        self.by_name[name] = host
        if not self.separate:
            shift = 1000 * self.slot + 100 * (number + 1)
            host.ports = {use: next_free(port + shift) for use, port in USUAL_PORTS.items()}
            token = Path(self._environment(host)["HOME"]) / ".ray" / "auth_token"
            token.parent.mkdir(parents=True)
            token.touch(mode=0o600)
            token.write_text(self.token)
        return host

    def spawn(self, host: Host, argv: list[str], **popen) -> subprocess.Popen:
        """Start `argv` on `host` in the course's root directory, with a clean environment."""
        environment = self._environment(host)
        if self.separate:
            if members.namespace(host.init_pid) != host.namespace:
                raise CourseError(f"{host.name} has ended.", AGAIN)
            enter = ["nsenter", "--target", str(host.init_pid), *NAMESPACES]
            enter += ["--user", "--preserve-credentials"] if self.rootless else []
            argv = [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(course_root()), *argv]
        popen.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(argv, env=environment, cwd=course_root(), text=True, start_new_session=True, **popen)

    def members(self, host: Host) -> list[psutil.Process]:
        if self.separate:
            return members.of_namespace(host.namespace, host.init_pid)
        return members.of_mark(self.session, host.name)

    def as_run(self, host: Host, command: str) -> str:
        if self.separate:
            return command
        if re.search(r"\bray\s+stop\b", command):
            raise CourseError(
                "`ray stop` ends every Ray on this machine, and here the hosts share it, perhaps with a Ray of yours.",
                f'Use {host.name}.kill("raylet") for one Ray node, or lab.clean_up() for all.',
            )
        host.head = joined(command, host, self.by_name) or host.head
        return shift_ports(command, host, self.by_name)

    def check_open(self) -> None:
        if self.closed:
            raise CourseError("This lab has been cleaned up, and its hosts are gone.", AGAIN)
        if self.keeper.poll() is not None:
            raise CourseError("The process that holds the hosts of this lab was ended, and they with it.", AGAIN)

    def close(self) -> None:
        """End every process of every host, by pid, and remove what they left. May be called twice."""
        if self.closed:
            return
        self.closed = True
        _end_keeper(self.keeper)
        if not self.separate:  # a keeper that was killed could not do it
            members.kill_session(self.session)
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.slot_lock.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.lock.close()

    def note(self, text: str) -> None:
        """Add `text` to the log."""
        try:
            with self.log.open("a") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")
        except OSError as error:
            raise CourseError(
                f"The log {self.log} cannot be written ({error.strerror}).",
                "Free some space there, or set XDG_STATE_HOME to another directory, and run the cell again.",
            ) from None

    def _start_separate(self) -> str:
        """Start a keeper of separate hosts; returns an empty text, or why there can be none."""
        if sys.platform != "linux":
            return "separate ones need Linux" + (MACOS if sys.platform == "darwin" else "")
        self.scratch = _scratch_place()
        if not self.scratch:
            return f"the course and its Python lie below all of {', '.join(SCRATCH_PLACES)}"
        missing = [tool for tool in ("unshare", "nsenter") if not shutil.which(tool)]
        if missing:
            return f"`{missing[0]}` is missing"
        user = ["--user", "--map-root-user"] if self.rootless else []
        return self._start_keeper("separate", ["unshare", "--net", *user])

    def _start_sharing(self) -> None:
        # sockets live here, and their path may have 103 characters at most, so not below the state directory
        self.scratch = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir="/tmp")
        self.slot, self.slot_lock = first_free_lock(self.directory.parent)
        problem = self._start_keeper("shared", [])
        if problem:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise CourseError(
                f"The process that looks after the hosts did not start: {problem}.", "Run `course doctor`."
            )

    def _start_keeper(self, mode: str, prefix: list[str]) -> str:
        """Start the keeper process; returns an empty text, or why it did not start."""
        self.keeper = self._keeper_process(mode, prefix)
        record = {"keeper_pid": self.keeper.pid, "scratch": self.scratch if mode == "shared" else ""}
        update_json(self.directory / RECORD, lambda data: data.update(record))
        problem = self._greeting()
        if problem:
            _end_keeper(self.keeper)
        return problem

    def _keeper_process(self, mode: str, prefix: list[str]) -> subprocess.Popen:
        argv = [*prefix, sys.executable, "-m", "helpers.rayhost.keeper", mode, str(self.directory), self.scratch]
        environment = {**os.environ, "COURSE_RAY_TOKEN": self.token, "PYTHONPATH": str(course_root())}
        with (self.directory / keeper.LOG).open("a") as log:
            return subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                cwd="/", start_new_session=True,
            )  # fmt: skip

    def _greeting(self) -> str:
        """Empty if the keeper is ready, else why it is not."""
        line = self.keeper.stdout.readline()
        if line:
            return json.loads(line).get("error", "")
        self.keeper.wait()
        said = (self.directory / keeper.LOG).read_text().strip().splitlines()
        return said[-1] if said else f"exit status {self.keeper.returncode}"

    def _ask(self, **request: str) -> dict:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.keeper.stdin, flush=True)
        answer = {}
        while answer.get("name") != request["name"]:  # one that an interrupt kept from being read may come first
            line = self.keeper.stdout.readline()
            if not line:
                self.keeper.wait()
                self.check_open()
            answer = json.loads(line)
        if "error" in answer:
            raise CourseError(
                f"Host {request['name']} did not come up: {answer['error']}.",
                f"{AGAIN[:-1]}; `course doctor` shows what this machine allows.",
            )
        return answer

    def _environment(self, host: Host) -> dict[str, str]:
        """What a login on the host would see: no variable of the notebook's that could steer Ray leaks in."""
        environment = {
            "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": f"{host.directory}/home",
            "HOSTNAME": host.name,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": host.directory,  # what is Ray's default anyway, /tmp, on most machines
            "GRPC_ENABLE_FORK_SUPPORT": "0",  # else Ray's servers start programs that die: ray-project/ray#63202
            members.MARK: f"{self.session}/{host.name}",
        }
        if host.head:  # `ray job` would talk to port 8265, which may be another Ray's; this beats even its --address
            environment["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{host.head.ports['dashboard']}"
        if sys.platform == "darwin":
            environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"  # see MACOS
        return environment


def _plain(output: str) -> str:
    """Without colours, and without the time and place that Ray's commands put before each line."""
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)
    return re.sub(r"^\d{4}-\d\d-\d\d [\d:,]+\t?\s*[A-Z]+ \S+:\d+ -- ", "", output, flags=re.MULTILINE)


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return f": {lines[-1].strip().rstrip('.')}" if lines else ""


def _shortened(output: str, log: Path) -> str:
    lines = output.splitlines()
    if len(lines) <= SHOWN_LINES:
        return output
    half = SHOWN_LINES // 2
    return "\n".join([*lines[:half], f"… {len(lines) - 2 * half} lines left out: see {log} …", *lines[-half:]])


def _wait(process: subprocess.Popen, timeout_s: float) -> bool:
    """Wait for a process, and show for how long; returns whether it ended in time."""
    start, shown = time.monotonic(), False
    while process.poll() is None:
        elapsed = time.monotonic() - start
        if elapsed >= timeout_s:
            break
        if elapsed >= QUIET_S:
            shown = True
            say(f"… {elapsed:.0f} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(QUIET_S, timeout_s - elapsed))
    if shown:
        say("")
    return process.returncode is not None


def _text(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - KEPT_BYTES))
    return _plain(file.read().decode(errors="replace")).rstrip()


def _end_keeper(process: subprocess.Popen) -> None:
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()  # the end of its input is its sign to close
    try:
        process.wait(CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _scratch_place() -> str:
    """A directory of this machine that separate hosts can cover with their own: nothing that they need is in it."""
    needed = [course_root(), Path(sys.prefix), Path(sys.base_prefix), state_dir()]
    paths = [p.absolute() for p in needed] + [p.resolve() for p in needed]
    free = [p for p in SCRATCH_PLACES if os.path.isdir(p) and not any(path.is_relative_to(p) for path in paths)]
    return free[0] if free else ""


def _make_directories(*directories: Path) -> None:
    try:
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CourseError(
            f"{error.filename} cannot be made ({error.strerror}), and a lab keeps its records there.",
            "Make that directory writable, or set XDG_STATE_HOME to one that is.",
        ) from None

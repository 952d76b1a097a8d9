"""Where a submission's kernel runs: a bubblewrap sandbox that shares nothing with this machine but the programs.

What is in it: the system's programs and the course's Python environment, read-only; `helpers/` without the questions;
a copy of what was handed in, in a home directory that exists in memory only. What is not: the network, this machine's
processes, solutions, the gradebook, other submissions, other people's homes. No directory of this machine can be
written, so nothing is left when the kernel ends, and all of its processes end with it.

The grader reaches the kernel through Unix sockets that lie inside the sandbox, by way of `/proc/PID/root`: with a
network of its own the kernel has no TCP port to reach, and a shared directory would be one that could be filled.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import AsyncKernelManager
from traitlets import Instance, Unicode

from helpers.errors import CourseError
from helpers.grading.check import IN_SANDBOX
from helpers.state import course_root

GIB = 1 << 30
HOME = "/home/jovyan"  # what `~` and the working directory are inside
SOCKETS = "/run/kernel"
START_TIMEOUT_S = 20.0
WATCH_EVERY_S = 0.25
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
OF_THE_COURSE = ("helpers", "manifests", "jobs")  # what code in a notebook may use
QUESTIONS = "helpers/grading/suites"
# user ids that systemd's table of ids leaves free, and that no account has
FIRST_SPARE_UID, SPARE_UIDS = 60578, 128


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Attributes:
        memory_bytes: of all its processes together, and what one process may allocate is half of it.
        processes: processes and threads; after `ray.init()` there are 440 of them on two CPUs, more on more.
        cpu_s: CPU seconds of one process.
        disk_bytes: each of the home directory, /tmp and /dev/shm, which are in memory.
    """

    memory_bytes: int = 4 * GIB
    processes: int = field(default_factory=lambda: 600 + 100 * (os.cpu_count() or 1))
    cpu_s: int = 300
    disk_bytes: int = GIB // 2


class Refused(CourseError):
    """This machine cannot hold a submission in."""


def missing() -> str:
    """Why no sandbox can be made on this machine, as a clause; empty if one can."""
    if sys.platform != "linux":
        return "sandboxes need Linux"
    absent = [program for program in ("bwrap", "prlimit", "setpriv") if not shutil.which(program)]
    if absent:
        return f"{' and '.join(absent)} is not installed" if len(absent) == 1 else f"{', '.join(absent)} are missing"
    return _trial()


def require() -> None:
    """Refuse to run what others wrote where it cannot be held in.

    Raises:
        Refused: it says what is not guaranteed.
    """
    why = missing()
    if why:
        raise Refused(
            f"Submissions cannot be sandboxed here ({why}): their code could read solutions and other submissions, use "
            "the network, change files and fill this machine.",
            "Install bubblewrap (`sudo apt-get install bubblewrap`), or add --trust if you trust all who wrote them.",
        )


@cache
def _trial() -> str:
    with tempfile.TemporaryDirectory(prefix="ray-course-") as scratch:
        Path(scratch, "files").mkdir()
        Path(scratch, "connection.json").touch()
        command = wrap([sys.executable, "-c", ""], Path(scratch), Limits())
        try:
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "bubblewrap does not come to an end"
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return "" if done.returncode == 0 else f"bubblewrap fails with `{said}`"


# ---- the command line ------------------------------------------------------------------------------------------------


def wrap(command: list[str], scratch: Path, limits: Limits) -> list[str]:
    """The command that runs `command` in a sandbox.

    Args:
        command: what to run; its working directory is a copy of `scratch/files`.
        scratch: holds `files/` and `connection.json`.
        limits: what it may use.
    """
    uid = _spare_uid()
    return [
        *("nice", "-n5"),  # the grader itself, and who else works on this machine, come first
        *("bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--hostname", "grader"),
        # a kernel watches the process of this number and ends when it is gone; inside, the number is somebody else's
        *("--unsetenv", "JPY_PARENT_PID"),
        # an ordinary user gets the right to all this from a user namespace; root does not need one, and without it can
        # become a user whose processes are counted (the kernel never counts root's)
        *(("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if uid else ("--unshare-user",)),
        *_mounts(scratch, limits),
        *("--chdir", HOME, "--"),
        *(("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all") if uid else ()),
        *("prlimit", f"--data={limits.memory_bytes // 2}", f"--nproc={limits.processes}", f"--cpu={limits.cpu_s}"),
        *("--core=0", "--", "sh", "-c", 'cp -R /submission/. . && exec "$@"', "sh", *command),
    ]


def _mounts(scratch: Path, limits: Limits) -> list[str]:
    root = course_root()
    mounts = []
    for place in SYSTEM:
        if os.path.islink(place):  # /bin is a link into /usr on most systems
            mounts += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            mounts += ["--ro-bind", place, place]
    mounts += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", *_memory("/dev/shm", limits)]
    mounts += [*_memory("/tmp", limits), *_memory(HOME, limits), *_memory(SOCKETS, limits, 1 << 20)]
    # after the empty ones: an environment may lie below /tmp or /home
    shown = [*map(Path, dict.fromkeys((sys.base_prefix, sys.prefix))), *(root / name for name in OF_THE_COURSE)]
    for path in shown:
        if path.is_dir() and not path.is_relative_to("/usr"):
            mounts += [*_parents(path), "--ro-bind", f"{path}", f"{path}"]
    mounts += ["--tmpfs", f"{root / QUESTIONS}", "--remount-ro", f"{root / QUESTIONS}"]
    mounts += ["--ro-bind", f"{scratch / 'files'}", "/submission"]
    mounts += ["--ro-bind", f"{scratch / 'connection.json'}", "/run/connection.json"]
    return [*mounts, "--remount-ro", "/"]


def _parents(path: Path) -> list[str]:
    """The directories above a mount, which bubblewrap alone would close to all but their owner."""
    above = [parent for parent in reversed(path.parents) if parent != Path("/")]
    return [word for parent in above for word in ("--perms", "0755", "--dir", f"{parent}")]


def _memory(place: str, limits: Limits, size: int = 0) -> list[str]:
    """An empty directory in memory that anybody inside can write to."""
    return ["--perms", "1777", *_sized(size or limits.disk_bytes), "--tmpfs", place]


@cache
def _knows_size() -> bool:
    return "--size" in subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout


def _sized(size: int) -> list[str]:
    return ["--size", f"{size}"] if _knows_size() else []  # bubblewrap before 0.7 cannot limit it


def _spare_uid() -> int | None:
    """A user id that nobody has, if this process can become it: each grader has its own, so that each counts alone."""
    if os.geteuid() != 0:
        return None
    uid = FIRST_SPARE_UID + os.getpid() % SPARE_UIDS
    ranges = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return uid if any(first <= uid < first + length for first, _, length in ranges) else None


def environment() -> dict[str, str]:
    """The environment inside: nothing of the grader's own, which may hold secrets and the address of a Ray cluster."""
    graded = os.environ.get("NBGRADER_EXECUTION")
    return {
        "PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": HOME,
        "USER": "learner",
        "LOGNAME": "learner",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(course_root()),  # the environment may have been installed from another copy of the course
        "RAY_USAGE_STATS_ENABLED": "0",
        IN_SANDBOX: "1",
        **({"NBGRADER_EXECUTION": graded} if graded else {}),
    }


# ---- the kernel ------------------------------------------------------------------------------------------------------


class SandboxedKernel(AsyncKernelManager):
    """Jupyter's kernel manager, for a kernel in a sandbox.

    Attributes:
        files: the folder whose files the kernel finds in its working directory; its notebooks are left out.
        limits: what it may use.
        ended: why the grader ended it, as a clause; empty if it did not.
    """

    files = Instance(Path)
    limits = Instance(Limits, ())
    ended = Unicode()

    def __init__(self, **kwargs: Any):
        super().__init__(kernel_name="python3", transport="ipc", ip=f"{SOCKETS}/k", **kwargs)
        # beside the files, where the next batch clears away what a killed one has left
        self._scratch = Path(tempfile.mkdtemp(prefix=".sandbox-", dir=self.files.parent))
        self._watch: threading.Thread | None = None
        self._stop = threading.Event()
        self.connection_file = str(self._scratch / "manager.json")

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        copy_files(self.files, self._scratch / "files")
        shown = self._scratch / "connection.json"
        shown.write_text(Path(self.connection_file).read_text())
        shown.chmod(0o644)  # the directory that holds it is closed to all others; inside, the kernel is somebody else
        python = [sys.executable, "-m", "ipykernel_launcher", "-f", "/run/connection.json"]
        return wrap([*python, *(extra_arguments or [])], self._scratch, self.limits)

    async def _async_launch_kernel(self, kernel_cmd: list[str], **kwargs: Any) -> None:
        kwargs.update(env=environment(), cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await super()._async_launch_kernel(kernel_cmd, **kwargs)
        self.ip = f"/proc/{self._inner().pid}/root{SOCKETS}/k"
        self._watch = threading.Thread(target=self._keep_in_bounds, daemon=True)
        self._watch.start()

    def _inner(self) -> psutil.Process:
        """The kernel's own process: the only child of the sandbox's first process, which is bwrap's only child."""
        outer = psutil.Process(self.provisioner.pid)

        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and outer.is_running() and outer.status() != psutil.STATUS_ZOMBIE:
            inner = [grandchild for child in outer.children() for grandchild in child.children()]
            if inner:
                return inner[0]
            time.sleep(0.005)
        raise CourseError("No sandbox has come up.", "Run `course doctor`, which says what this machine lacks.")

    async def _async_interrupt_kernel(self) -> None:
        # the signal of the ordinary manager would go to bubblewrap as well, and end it
        try:
            self._inner().send_signal(signal.SIGINT)
        except (psutil.Error, CourseError):
            self.log.info("The kernel has ended before it could be interrupted")

    interrupt_kernel = _async_interrupt_kernel

    async def _async_cleanup_resources(self, restart: bool = False) -> None:
        self._stop.set()
        if self._watch:
            self._watch.join()
        await super()._async_cleanup_resources(restart)
        shutil.rmtree(self._scratch, ignore_errors=True)

    cleanup_resources = _async_cleanup_resources

    def end(self, why: str) -> None:
        """Kill everything in the sandbox."""
        self.ended = self.ended or why
        with suppress(ProcessLookupError):
            # the group holds bubblewrap, and the first process of the sandbox, whose end is the end of all others in it
            os.killpg(self.provisioner.pgid, signal.SIGKILL)

    def _keep_in_bounds(self) -> None:
        try:
            outer = psutil.Process(self.provisioner.pid)
            while not self._stop.wait(WATCH_EVERY_S):
                if memory_above(outer, self.limits.memory_bytes):
                    self.end(f"it used more than {self.limits.memory_bytes / GIB:g} GiB of memory")
                    return
        except psutil.Error:
            return  # it has ended by itself


def memory_above(process: psutil.Process, limit_bytes: int) -> bool:
    """Whether all that a process has started holds more memory than this, apart from files."""
    inner = process.children(recursive=True)
    # forked processes share most pages: counted once for each they are an upper bound, and cheap to read
    if sum(_bytes(one, lambda one: one.memory_info().rss - one.memory_info().shared) for one in inner) <= limit_bytes:
        return False
    return sum(_bytes(one, _own_share) for one in inner) > limit_bytes


def _own_share(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))


def _bytes(process: psutil.Process, read: Callable[[psutil.Process], int]) -> int:
    try:
        return read(process)
    except (psutil.Error, OSError):
        return 0  # it ended meanwhile


def copy_files(source: Path, target: Path) -> None:
    """Copy plain files so that anybody can read them. Notebooks stay behind, since tests may be hidden in them."""
    target.mkdir(mode=0o755)
    for folder, names, files in os.walk(source):
        below = target / Path(folder).relative_to(source)
        for name in names:
            (below / name).mkdir(mode=0o755)
        for name in files:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink() and path.suffix != ".ipynb":
                shutil.copyfile(path, below / name)
                (below / name).chmod(0o644)

#!/usr/bin/env python3
"""Makes the course's environment in .venv, then runs `course VERB` in it.

Usage: `python3 bootstrap.py VERB [ARGS]`; the Makefile has a target for each verb. Only the standard library is used,
and any Python from 3.8 on can start it: it finds or fetches the Python 3.11 that the course runs on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "course-stamp.json"  # its presence says that we made .venv; its content says what is in it
BUILD = ROOT / "build"
LOG = BUILD / "bootstrap.log"
LOCK = ROOT / "requirements.lock"

LEARNER, AUTHOR = "requirements.txt", "requirements-dev.txt"
VERBS = {
    "lab": LEARNER,
    "test": AUTHOR,
    "fast": AUTHOR,
    "live": AUTHOR,
    "soak": AUTHOR,
    "bench": AUTHOR,
    "release": LEARNER,
    "grade": LEARNER,
}  # and `clean`, which needs none
DISK_NEED_BYTES = 1536 * 1024**2  # .venv with all packages, measured: 1.3 GiB
INSTALL_LINES = {
    "apt-get": "sudo apt-get update && sudo apt-get install -y",
    "dnf": "sudo dnf install",
    "pacman": "sudo pacman -S",
    "brew": "brew install --cask",
}
PROBE = "import sys; raise SystemExit(sys.version_info[:2] != (3, 11) or sys.version_info.releaselevel != 'final')"


class Stop(Exception):
    """Something that the user can mend: one sentence what is wrong, one what to do."""

    def __init__(self, what: str, fix: str):
        super().__init__(what, fix)
        self.what, self.fix = what, fix


def main(argv: list[str]) -> int:
    """Run one verb. Returns the exit code; for a verb of `course` it does not return."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # an old locale must not turn ✘ into a traceback
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a pip that runs for us is ended too
    try:
        run(argv)
    except Stop as stop:
        print(f"✘ {stop.what}\n  → {stop.fix}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


def run(argv: list[str]) -> None:
    if os.name == "nt":
        raise Stop(
            "Ray clusters of several Ray nodes do not run on Windows itself.",
            "Install WSL2 (`wsl --install` in PowerShell as administrator), and run the same command inside it.",
        )
    verb = argv[0] if argv else ""
    if verb == "clean":
        clean()
    elif verb in VERBS:
        prepare(VERBS[verb])
        install_system_packages(verb)
        start_course(verb, argv[1:])
    else:
        said = f"`{verb}` is not a verb of this course." if verb else "No verb was given."
        raise Stop(said, f"Use one of: {', '.join([*VERBS, 'clean'])}.")


def start_course(verb: str, args: list[str]) -> NoReturn:
    sys.stdout.flush()
    course = str(venv_home() / "bin" / "course")
    os.execv(course, [course, verb, *args])


def clean() -> None:
    """Remove what was built in this checkout; saved notebooks and the learner's progress stay."""
    caches = [ROOT / name for name in (".pytest_cache", ".ruff_cache", ".hypothesis")]
    below = [
        path
        for top in ROOT.iterdir()
        if top.is_dir() and top.name not in (".git", ".venv", "build")
        for path in [top, *top.rglob("*")]
        if path.name == "__pycache__" or path.name.endswith(".egg-info")
    ]
    remove_venv()
    for path in [BUILD, *caches, ROOT / "__pycache__", *below]:
        remove_tree(path)
    print("Removed .venv, build/ and the caches of this checkout.")
    print(f"Kept: your notebooks, and your progress in {state_dir()}.")


# ---- the environment -------------------------------------------------------------------------------------------------


def prepare(level: str) -> None:
    """See to it that .venv holds `level` (the name of a requirements file) and the course itself."""
    if is_ready(level):
        return
    check_writable()
    with only_one():
        if not is_ready(level):  # another run may have made it while this one waited
            make_environment(level)


def is_ready(level: str) -> bool:
    stamp = read_stamp() or {}
    has = stamp.get("level")
    whole = has in (level, AUTHOR) and stamp.get("digest") == digest(has)
    return whole and stamp.get("root") == str(ROOT) and runs_here()


def venv_home() -> Path:
    """Where the environment really is: .venv, or the course's cache if the checkout has a space in its path.

    Ray 2.60 starts workers that have a runtime environment (those of `ray job submit`, for one) by a shell line that
    does not quote the path of its Python: with a space in it they never come up. Its client server does not either.
    """
    if not re.search(r"\s", str(ROOT)):
        return VENV
    home = cache_dir() / f"venv-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"
    if re.search(r"\s", str(home)):
        raise Stop(
            f"Both the course's folder, {ROOT}, and your cache, {cache_dir()}, have a space in their path, "
            "and Ray does not start from such a place.",
            "Move the course to a folder without one, and run the same command there.",
        )
    return home


def remove_venv() -> None:
    """Remove .venv, and what it stands for if that is in the course's cache."""
    home = Path(os.path.realpath(VENV))
    if VENV.is_symlink() and os.path.realpath(cache_dir()) in map(str, home.parents):
        remove_tree(home)
    remove_tree(VENV)


def runs_here() -> bool:
    return all(
        os.access(venv_home() / "bin" / name, os.X_OK) for name in ("python", "course")
    )  # follows links: a removed Python shows


def make_environment(level: str) -> None:
    stamp = read_stamp()
    if stamp is None and VENV.exists() and any(VENV.iterdir()):
        raise Stop(
            f"The folder {VENV} was not made by this course.",
            "Move it away (`mv .venv .venv-mine`), and run the same command again.",
        )
    begin_log()
    # a moved checkout leaves scripts that name the old place; an unfinished install may lack files anywhere
    if stamp is None or stamp.get("level") is None or stamp.get("root") != str(ROOT) or not runs_here():
        remove_venv()
        check_disk()
        make_venv(find_python())
    install_packages(level)
    write_stamp(level)


def digest(level: str) -> str:
    """A hash of everything that decides what is in .venv."""
    names = [LEARNER, LOCK.name, "pyproject.toml"] + ([AUTHOR] if level == AUTHOR else [])
    return hashlib.sha256(b"\0".join((ROOT / name).read_bytes() for name in names)).hexdigest()


def read_stamp() -> dict | None:
    """What .venv holds; None if it is not ours or not there; without a `level` while it is unfinished."""
    try:
        return dict(json.loads(STAMP.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return {}


def write_stamp(level: str | None) -> None:
    """Note in .venv that it holds `level`, whole; or, with None, that it is unfinished."""
    stamp = {"root": str(ROOT), "level": level, "digest": digest(level) if level else None}
    fresh = STAMP.with_suffix(".new")
    fresh.write_text(json.dumps(stamp))
    os.replace(fresh, STAMP)


def make_venv(python: str) -> None:
    ensure_ensurepip(python)
    home = venv_home()
    remove_tree(home)
    home.mkdir(parents=True)
    if home != VENV:
        VENV.symlink_to(home)
    write_stamp(None)
    run_logged([python, "-m", "venv", str(home)], Bar("Making .venv"))


def install_packages(level: str) -> None:
    def installing() -> None:
        write_stamp(None)  # from here on files of .venv change; a failure before leaves the old environment usable

    pip = [str(venv_home() / "bin" / "python"), "-m", "pip", "install", "--no-input", "--progress-bar=off"]
    bar = Bar("Installing packages")
    progress = PipProgress(locked_packages(LOCK.read_text(), level), installing)
    run_logged([*pip, "-r", str(ROOT / level), "-c", str(LOCK)], bar, progress)
    # without isolation: setuptools is in the environment already (nbgrader depends on it), so nothing is fetched
    itself = ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    run_logged([*pip, *itself], Bar("Installing the course"))


def locked_packages(lock: str, level: str) -> int:
    """How many packages `level` installs on this platform, by the lock file's `via` notes."""
    parents: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=\S)", lock):
        head, *notes = block.split("\n")
        if head.startswith("#") or not head.strip() or is_for_other_platform(head):
            continue
        via = {note.replace("#", "").replace(" via ", "").strip() for note in notes}
        parents.setdefault(head.split("==")[0], set()).update(via)
    wanted = {f"-r {name}" for name in ((LEARNER,) if level == LEARNER else (LEARNER, AUTHOR))}
    while True:
        more = {name for name, via in parents.items() if via & wanted} - wanted
        if not more:
            return len(wanted & parents.keys())
        wanted |= more


def is_for_other_platform(requirement: str) -> bool:
    others = {"win32", "nt", "darwin"} - {sys.platform}
    return any(f"== '{other}'" in requirement for other in others)


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock of this checkout, so that two terminals do not fill one .venv."""
    import fcntl  # not on Windows, where this is never reached

    with open(BUILD / "bootstrap.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another run is installing into this checkout; waiting for it …", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def check_writable() -> None:
    """Try to write; asking for permissions would not see a read-only mount.

    Raises:
        Stop: when the checkout cannot be written.
    """
    probe = BUILD / ".can-write"
    try:
        BUILD.mkdir(exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise Stop(
            f"The course's folder {ROOT} cannot be written ({error.strerror}).",
            'Copy it to a place that is yours (`cp -r . "$HOME/ray-course"`), and run the same command there.',
        ) from None


def check_disk() -> None:
    free = shutil.disk_usage(ROOT).free
    if free < DISK_NEED_BYTES:
        raise no_space(f"only {free / 1024**3:.1f} GiB free at {ROOT}")


def no_space(seen: str) -> Stop:
    return Stop(
        f"The environment needs about {DISK_NEED_BYTES / 1024**3:.1f} GiB of disk space, and there is {seen}.",
        "Free some space, or move the course's folder to a larger disk; then run the same command again.",
    )


def remove_tree(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


# ---- Python 3.11 -----------------------------------------------------------------------------------------------------


def find_python() -> str:
    """The path of a Python 3.11: this one, one that is there, or one fetched into the course's cache.

    Raises:
        Stop: when none is to be had.
    """
    for source in (this_python, python_on_path, uv_on_path, conda_on_path, python_from_apt, python_from_own_uv):
        python = source()
        if python:
            return python
    raise Stop(
        "The course needs Python 3.11, and none was found or could be fetched.",
        "Install it (`sudo apt-get install python3.11 python3.11-venv`, `brew install python@3.11`, or conda), "
        f"and run the same command again. What was tried: {LOG}",
    )


def this_python() -> str | None:
    return sys.executable if is_311(sys.executable) else None


def python_on_path() -> str | None:
    found = shutil.which("python3.11")
    return found if found and is_311(found) else None


def uv_on_path() -> str | None:
    uv = shutil.which("uv")
    return python_by_uv(uv) if uv else None


def python_by_uv(uv: str, **env: str) -> str | None:
    """The Python 3.11 that `uv` finds, or else installs."""
    find = [uv, "python", "find", "--system", "3.11"]
    python = output_of(find, **env)
    if not python:
        try_logged([uv, "python", "install", "3.11"], Bar("Fetching Python 3.11 with uv"), **env)
        python = output_of(find, **env)
    return python if python and is_311(python) else None


def conda_on_path() -> str | None:
    conda = shutil.which("conda") or shutil.which("mamba")
    if not conda:
        return None
    prefix = cache_dir() / "conda-python-3.11"
    python = str(prefix / "bin" / "python")
    if not is_311(python):
        create = [conda, "create", "--yes", "--prefix", str(prefix), "--override-channels", "-c", "conda-forge"]
        try_logged([*create, "python=3.11"], Bar("Fetching Python 3.11 with conda"))
    return python if is_311(python) else None


def python_from_apt() -> str | None:
    if os.geteuid() != 0 or not apt_install(["python3.11", "python3.11-venv"]):
        return None
    return python_on_path()


def python_from_own_uv() -> str | None:
    """Install uv into the course's cache with whatever pip there is, and let it fetch Python 3.11."""
    home = cache_dir() / "uv"
    uv = home / "bin" / "uv"
    if not uv.exists():
        bar = Bar("Fetching uv")
        if output_of([sys.executable, "-m", "pip", "--version"]):
            try_logged([sys.executable, "-m", "pip", "install", "--no-input", "--target", str(home), "uv"], bar)
        elif try_logged([sys.executable, "-m", "venv", str(home)], bar):
            try_logged([str(home / "bin" / "python"), "-m", "pip", "install", "--no-input", "uv"], bar)
    return python_by_uv(str(uv), UV_PYTHON_INSTALL_DIR=str(cache_dir() / "python")) if uv.exists() else None


def is_311(python: str) -> bool:
    """Whether `python` runs and is a release of 3.11 (Ubuntu 22.04 packages a release candidate)."""
    try:
        return subprocess.run([python, "-c", PROBE], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


def ensure_ensurepip(python: str) -> None:
    """Debian splits `ensurepip` off its Python; without it no environment has pip."""
    probe = [python, "-c", "import ensurepip, venv; ensurepip.version()"]
    if subprocess.run(probe, capture_output=True).returncode == 0:
        return
    apt_install(["python3.11-venv"])
    if subprocess.run(probe, capture_output=True).returncode != 0:
        raise Stop(
            f"The Python 3.11 at {python} cannot make environments: its module `ensurepip` is missing.",
            "Run `sudo apt-get install python3.11-venv`, and then the same command again.",
        )


# ---- system packages -------------------------------------------------------------------------------------------------


class Package(NamedTuple):
    """A line of packages.txt."""

    name: str
    verbs: tuple[str, ...]
    commands: tuple[str, ...]  # any of these on PATH shows that it is there
    why: str


def system_packages() -> list[Package]:
    lines = (ROOT / "packages.txt").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.strip() and not line.startswith("#")]
    return [Package(name, tuple(verbs.split()), tuple(commands.split()), why) for name, verbs, commands, why in cells]


def install_system_packages(verb: str) -> None:
    """Install what `verb` wants from the system; where that cannot be, say what is missing and go on."""
    missing = [p for p in system_packages() if verb in p.verbs and not any(map(shutil.which, p.commands))]
    if missing and not apt_install([package.name for package in missing]):
        for package in missing:
            print(f"– {package.name} is not installed ({package.why}); what needs it is skipped.")
        print(f"  → {install_line([package.name for package in missing])}", flush=True)


def install_line(names: list[str]) -> str:
    for tool, line in INSTALL_LINES.items():
        if shutil.which(tool):
            return f"Run `{line} {' '.join(names)}`."
    return f"Install {', '.join(names)} with this system's package manager."


def apt_install(names: list[str]) -> bool:
    """Install Debian packages, as root or by asking once for sudo. Returns whether that worked."""
    is_root = os.geteuid() == 0
    if not shutil.which("apt-get") or not (is_root or sudo_granted(names)):
        return False
    check_writable()
    apt = [*([] if is_root else ["sudo", "-n"]), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y"]
    install = [*apt, "install", "--no-install-recommends", *names]
    return try_logged([*apt, "update"], Bar("Reading the list of system packages")) and try_logged(
        install, Bar(f"Installing {', '.join(names)}"), apt_progress
    )


def sudo_granted(names: list[str]) -> bool:
    """Ask for sudo where somebody can answer: before the progress bar starts, which would hide the question."""
    if not (shutil.which("sudo") and sys.stdin.isatty()):
        return False
    print(f"To install {', '.join(names)}, sudo may ask for your password.", flush=True)
    return subprocess.run(["sudo", "-v"]).returncode == 0


# ---- running things, with progress -----------------------------------------------------------------------------------


class Bar:
    """One line that is redrawn on a terminal; elsewhere a plain line now and then."""

    WIDTH, PLAIN_EVERY_S = 20, 10.0

    def __init__(self, label: str):
        self.label, self.start, self.tty = label, time.monotonic(), sys.stdout.isatty()
        self.last_plain = self.start

    def show(self, share: float, note: str) -> None:
        """Show `share` (0 to 1; below 0 when it cannot be known) and what is going on."""
        elapsed = time.monotonic() - self.start
        if self.tty:
            columns = shutil.get_terminal_size().columns - 1
            sys.stdout.write(f"\r\x1b[K{self._line(share, note, elapsed)[:columns]}")
        elif time.monotonic() - self.last_plain >= self.PLAIN_EVERY_S:
            self.last_plain = time.monotonic()
            sys.stdout.write(self._line(share, note, elapsed) + "\n")
        sys.stdout.flush()

    def end(self, well: bool) -> None:
        elapsed = time.monotonic() - self.start
        sys.stdout.write(("\r\x1b[K" if self.tty else "") + f"{'✔' if well else '✘'} {self.label}: {elapsed:.0f} s\n")
        sys.stdout.flush()

    def _line(self, share: float, note: str, elapsed: float) -> str:
        if share < 0:
            return f"… {self.label} · {elapsed:.0f} s · {note}"
        full = int(min(share, 1) * self.WIDTH)
        return f"{self.label} [{'█' * full}{'·' * (self.WIDTH - full)}] {share:4.0%} · {elapsed:.0f} s · {note}"


Progress = Callable[[str], "tuple[float, str]"]  # from all of the output so far to a share of the work, and a note


def no_progress(output: str) -> tuple[float, str]:
    return -1.0, last_line(output)


def last_line(output: str) -> str:
    return output.rstrip().rsplit("\n", 1)[-1].strip()


class PipProgress:
    """How far pip is: packages resolved, fetched and unpacked, each against the number in the lock file."""

    def __init__(self, total: int, installing: Callable[[], None]):
        self.total, self.installing, self.began = max(total, 1), installing, False

    def __call__(self, output: str) -> tuple[float, str]:
        if not self.began and "Installing collected packages" in output:
            self.began = True
            self.installing()
        there = names_in(r"^Requirement already satisfied: ([\w.-]+)", output)
        resolved = names_in(r"^Collecting ([\w.-]+)", output) + there
        fetched = names_in(r"^ *(?:Downloading|Using cached|Processing) (\S+\.whl)(?!\.metadata)\b", output) + there
        unpacked = unpacked_packages() if self.began else 0
        done = self.total * 2 + unpacked if self.began else resolved + fetched + there
        return min(done / (3 * self.total), 0.99), self._note(output, resolved, unpacked)

    def _note(self, output: str, resolved: int, unpacked: int) -> str:
        if "Retrying" in last_line(output):
            return "the package index does not answer, trying again"
        if self.began:
            return f"unpacked {unpacked} of {self.total} packages"
        return f"found {resolved} of {self.total} packages"


def unpacked_packages() -> int:
    """How many packages are in .venv, beside pip, which came with it."""
    found = VENV.glob("lib/python3.11/site-packages/*.dist-info")
    return sum(not path.name.startswith("pip-") for path in found)


def names_in(pattern: str, output: str) -> int:
    return len(set(re.findall(pattern, output, re.MULTILINE)))


def apt_progress(output: str) -> tuple[float, str]:
    total = re.search(r"(\d+) upgraded, (\d+) newly installed", output)
    if not total:
        return no_progress(output)
    steps = len(re.findall(r"^(?:Get:|Unpacking |Setting up )", output, re.M))
    return min(steps / (3 * max(sum(map(int, total.groups())), 1)), 0.99), last_line(output)


def run_logged(command: list[str], bar: Bar, progress: Progress = no_progress) -> None:
    """Run a command with its output in the log file, and redraw `bar` meanwhile.

    Raises:
        Stop: when it does not exit with 0.
    """
    code, output = watch(command, bar, progress)
    if code != 0:
        what, fix = explain(output)
        raise Stop(what, f"{fix} The whole output: {LOG}")


def try_logged(command: list[str], bar: Bar, progress: Progress = no_progress, **env: str) -> bool:
    """The same for a command that may fail: returns whether it did not."""
    return watch(command, bar, progress, **env)[0] == 0


def begin_log() -> None:
    BUILD.mkdir(exist_ok=True)
    LOG.write_text("")


def watch(command: list[str], bar: Bar, progress: Progress, **env: str) -> tuple[int, str]:
    BUILD.mkdir(exist_ok=True)
    # `user = true` in someone's pip.conf is meant for the system's Python, and cannot work inside an environment
    surroundings = {**os.environ, "PIP_USER": "0", "PYTHONUNBUFFERED": "1", **env}
    with open(LOG, "ab") as log:
        log.write(f"\n$ {shlex.join(command)}\n".encode())
        log.flush()
        begin = log.tell()
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=surroundings)
        except OSError as error:
            bar.end(False)
            return 127, str(error)
        try:
            while wait_a_little(process) is None:
                bar.show(*progress(log_since(begin)))
        finally:
            if process.poll() is None:  # Ctrl-C, or this process is being ended
                process.terminate()
                process.wait()
    bar.end(process.returncode == 0)
    return process.returncode, log_since(begin)


def wait_a_little(process: subprocess.Popen) -> int | None:
    try:
        return process.wait(timeout=0.25)
    except subprocess.TimeoutExpired:
        return None


def log_since(begin: int) -> str:
    with open(LOG, "rb") as log:
        log.seek(begin)
        return log.read().decode(errors="replace")


def output_of(command: list[str], **env: str) -> str:
    """What a quick command prints; empty when it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **env}
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|Connection(Reset|Refused)Error|"
    r"Failed to establish a new connection|name resolution"
)


def explain(output: str) -> tuple[str, str]:
    """What a failed `python -m venv` or pip means, and what to do, each as a sentence."""
    again = "and run the same command again."
    if "No space left on device" in output:
        stop = no_space("none left, here or in the folder for temporary files")
        return stop.what, stop.fix
    if "CERTIFICATE_VERIFY_FAILED" in output:
        return (
            "The certificate of the package index is not trusted on this machine.",
            f"Name your organization's certificate to pip (`export PIP_CERT=/path/to/ca.pem`), {again}",
        )
    if NO_NETWORK.search(output):
        return (
            "The package index cannot be reached.",
            f"Check the network, and pip's proxy and mirror (`python3 -m pip config list`), {again}",
        )
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing and "(from versions: none)" in output:  # all that pip says of a dead index when it does not retry
        return (
            f"The package index cannot be reached, or does not have {missing[1]}.",
            f"Check the network, and pip's proxy and mirror (`python3 -m pip config list`), {again}",
        )
    if missing:
        return (
            f"The package index has no {missing[1]} for this machine ({sys.platform}, {os.uname().machine}).",
            f"Use 64-bit Linux with glibc or a Mac, and an index that has everything, {again}",
        )
    return "The environment could not be installed.", f"Mend what the end of the output says, {again}"


# ---- places: the same as in helpers/state.py, which an older Python could not import ---------------------------------


def cache_dir() -> Path:
    return xdg("XDG_CACHE_HOME", "~/.cache") / "ray-course"


def state_dir() -> Path:
    return xdg("XDG_STATE_HOME", "~/.local/state") / "ray-course"


def xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    return Path(value) if os.path.isabs(value) else Path(default).expanduser()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

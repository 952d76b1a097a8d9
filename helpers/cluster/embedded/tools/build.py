"""`course tools build`: fetch the modules, compile, and put a whole family in place at once.

An interrupted build goes on where it was: Go keeps every compiled package in its cache, and the programs that are
finished already lie in the folder `FAMILY-KEY.part`, from which nothing is ever run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from helpers.cluster.embedded.tools import golang, store, table
from helpers.cluster.embedded.tools.golang import Go
from helpers.cluster.embedded.tools.table import Family, Program
from helpers.errors import CourseError
from helpers.state import now, state_dir, try_lock
from helpers.wait import say

GIB = 1024**3
SPACE_BYTES = 10 * GIB  # Go's caches after a build of all, measured: 8.5 GiB; the programs: 0.7
ONE_BYTES = GIB  # for a family that is built on request; all are small
LINK_WEIGHT = 40  # linking a program takes as long as compiling so many packages, about
STALE = '{{if and .Stale (ne .Name "main")}}{{.ImportPath}}{{end}}'  # what `go build` will compile; it also links
LOOK_EVERY_S = 0.25
PLAIN_EVERY_S = 15.0  # between two lines of progress where they cannot be drawn over each other
END_TIMEOUT_S = 20.0  # for Go to remove its temporary files when it is interrupted


def build(tests: bool = False) -> list[str]:
    """Build what is not built, one build at a time; a second one waits for the first.

    Args:
        tests: also what only tests need.

    Returns:
        The names of the families that were built now.

    Raises:
        CourseError: without Go, network, or space, or if Go fails.
    """
    return _build(lambda: _missing(tests), SPACE_BYTES)


def build_one(name: str) -> list[str]:
    """Build one family, which may be one that is built on request, unless it is built.

    Args:
        name: of the family.

    Returns:
        Its name if it was built now.

    Raises:
        CourseError: as `build` does.
    """
    return _build(lambda: [one for one in table.FAMILIES if one.name == name and store.lacking(one)], ONE_BYTES)


def _build(ask: Callable[[], list[Family]], space_bytes: int) -> list[str]:
    """Build the families that `ask` says are missing, as soon as no other build is at work."""
    table.this_platform()
    if not ask():
        return []
    with _alone() as lock:
        missing = ask()  # the build that this one waited for may have made some
        if not missing:
            return []
        go = golang.find()
        store.remove_unfinished()
        _check_space(go, space_bytes)
        log = log_file()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        try:
            with Line() as line:
                _build_all([Job(family, store.not_on_path(family), go, log, lock) for family in missing], line)
        finally:
            _told().unlink(missing_ok=True)
        return [family.name for family in missing]


def log_file() -> Path:
    """Where the whole output of the latest build is."""
    return state_dir() / "logs" / "tools-build.log"


def running() -> str:
    """What the build that is at work says of itself; empty if none is."""
    if not store.is_locked():
        return ""
    try:
        told = json.loads(_told().read_bytes())
        return f"{told['share']:.0%}, {told['doing']} (since {told['since'][11:16]})"
    except (OSError, ValueError, KeyError, TypeError):
        return "it has just begun"


def start_in_background(tests: bool = False, *, apart: bool = False) -> subprocess.Popen | None:
    """Begin a build of low priority in a process of its own, unless all is built or a build is at work.

    Args:
        tests: also what only tests need.
        apart: whether it goes on when this terminal is closed or Ctrl-C is pressed in it.

    Returns:
        The process; it writes to `log_file()`.
    """
    if not _missing(tests) or store.is_locked():
        return None
    course = str(Path(sys.executable).with_name("course"))
    command = [course, "tools", "build", *(["--tests"] if tests else [])]
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    output = log_file().with_name("tools-build.out")
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "w") as file:
        return subprocess.Popen(
            [*nice, *command], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=apart
        )


def _missing(tests: bool) -> list[Family]:
    return [family for family in table.families(tests) if store.lacking(family)]


def _check_space(go: Go, space_bytes: int) -> None:
    place = next(p for p in (store.root(), *store.root().parents) if p.exists())
    free = shutil.disk_usage(place).free
    # after an interrupted or an earlier build much of it is used up already
    if free < space_bytes and free + sum(_size_at_most(cache, space_bytes) for cache in go.caches()) < space_bytes:
        raise CourseError(
            f"Building the cluster's programs takes about {space_bytes / GIB:.0f} GiB of disk space, "
            f"and {free / GIB:.1f} GiB are free at {place}.",
            "Free some space, or set XDG_CACHE_HOME and, for a Go of your own, GOMODCACHE to a larger disk.",
        )


def _size_at_most(folder: Path, limit: int) -> int:
    """The bytes below a folder, counted no further than `limit`."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
        if total >= limit:
            break
    return total


# ---- one at a time, and how far it is --------------------------------------------------------------------------------


@contextmanager
def _alone() -> Iterator[IO]:
    """Wait until no other build is at work."""
    with store.lock() as file:
        if file:
            yield file
            return
    with open(store.root() / "lock", "a") as file, Line() as line:
        while not try_lock(file):
            line.show(f"another `course tools build` is at work: {running()}")
            time.sleep(LOOK_EVERY_S)
        line.end("the other build has ended")
        yield file


def _told() -> Path:
    return store.root() / "progress.json"


class Line:
    """One line that is drawn again and again in a terminal; elsewhere a plain line now and then."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.is_terminal = sys.stdout.isatty()
        self.shown, self.since = float("-inf"), now()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_terminal:
            say("\n")

    def share(self, share: float, doing: str) -> None:
        """Show how much is done, from 0 to 1, and tell it to who looks from outside."""
        fresh = _told().with_name("progress.new")
        fresh.write_text(json.dumps({"share": share, "doing": doing, "since": self.since}))
        os.replace(fresh, _told())
        self.show(f"{share:4.0%}  {doing}")

    def show(self, text: str) -> None:
        seconds = time.monotonic() - self.begin
        line = f"… {seconds // 60:.0f}:{seconds % 60:02.0f}  {text}"
        if self.is_terminal:
            say(line[: shutil.get_terminal_size().columns - 1])
        elif time.monotonic() - self.shown >= PLAIN_EVERY_S:
            self.shown = time.monotonic()
            print(line, flush=True)

    def end(self, text: str) -> None:
        seconds = time.monotonic() - self.begin
        line = f"✔ {text}: {seconds // 60:.0f}:{seconds % 60:02.0f}"
        say(f"{line}\n") if self.is_terminal else print(line, flush=True)


# ---- fetching and compiling ------------------------------------------------------------------------------------------


@dataclass
class Job:
    """One family to build, and how much of it there is to do."""

    family: Family
    programs: list[Program]
    go: Go
    log: Path
    lock: IO
    packages: frozenset[str] = frozenset()  # that have to be compiled

    @property
    def part(self) -> Path:
        home = store.home(self.family)
        return home.with_name(f"{home.name}.part")

    @property
    def work(self) -> int:
        return len(self.packages) + LINK_WEIGHT * len(self.programs)

    def fetch(self, show: Callable[[str], None]) -> None:
        """Fetch the modules that are not there, and find out what has to be compiled."""
        # go.sum has a line for the content of each module that may be fetched, beside one for its go.mod
        total = len(re.findall(r"^\S+ v\S+(?<!/go\.mod) h1:", (self.family.folder / "go.sum").read_text(), re.M))

        def seen(output: str) -> None:
            fetched = output.count("go: downloading ")
            show(f"{self.family.name}: fetching modules" + (f", {fetched} of at most {total}" if fetched else ""))

        deps = ["-test", "-deps"] if self.family.for_tests else ["-deps"]
        stale = ["list", *self.family.flags, *deps, "-f", STALE, *self._sources()]
        self.packages = frozenset(self._run(stale, seen).split())

    def compile(self, show: Callable[[int, str], None]) -> None:
        """Compile and link; `show` gets how much of `work` is done."""
        programs, packages = self.programs, len(self.packages)

        def seen(output: str) -> None:
            done = len(self.packages.intersection(output.split("\n")))
            linked = sum((self.part / program.name).exists() for program in programs) if done >= packages else 0
            what = f"package {done} of {packages}" if done < packages else f"linking, {linked} of {len(programs)} done"
            show(done + LINK_WEIGHT * linked, f"{self.family.name}: {what}")

        target = f"{self.part}/" if len(programs) > 1 else str(self.part / programs[0].name)
        # a suite of tests is compiled by `go test`, which does not name the packages that it compiles
        verb = ["test", "-c", "-vet=off"] if self.family.for_tests else ["build", "-v"]
        self._run([*verb, *self.family.flags, "-o", target, *self._sources()], seen)
        if self.family.descriptor:
            subprocess.run([self.part / "kubelet", "--cri-descriptor", self.part / table.DESCRIPTOR], check=True)
        if self.family.manifests:
            module = Path(self._run(["list", "-m", "-f", "{{.Dir}}", self.family.module], seen).strip())
            for path in self.family.manifests:
                shutil.copyfile(module / path, self.part / Path(path).name)
        store.put_in_place(self.part, self.family, self.go.version)

    def _sources(self) -> list[str]:
        return [program.package for program in self.programs]

    def _run(self, arguments: list[str], seen: Callable[[str], None]) -> str:
        """Run Go in the family's folder; `seen` gets what it has said on stderr so far. Returns its stdout."""
        self.part.mkdir(parents=True, exist_ok=True)
        temporary = self.part.with_name("temporary")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        answer = temporary / "answer"
        with open(self.log, "ab") as log, open(answer, "wb") as output:
            log.write(f"\n$ cd {self.family.folder}; go {' '.join(arguments)}\n".encode())
            log.flush()
            begin = log.tell()
            process = subprocess.Popen(
                [self.go.command, *arguments],
                cwd=self.family.folder,
                env=self.go.environment(temporary),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                # should this process be killed, the lock is held until Go has ended too
                pass_fds=[self.lock.fileno()],
            )
            try:
                while _is_running(process):
                    seen(_since(self.log, begin))
            finally:
                _end(process)
        if process.returncode != 0:
            raise explain(_since(self.log, begin), self.family, self.log)
        said = answer.read_text()
        shutil.rmtree(temporary, ignore_errors=True)
        return said


def _build_all(jobs: list[Job], line: Line) -> None:
    for number, job in enumerate(jobs):
        job.fetch(lambda doing, number=number: line.share(0, f"{doing} (family {number + 1} of {len(jobs)})"))
    total, before = sum(job.work for job in jobs), 0
    for job in jobs:
        work = job.work
        job.compile(lambda done, doing, before=before: line.share(min((before + done) / total, 0.99), doing))
        before += work
        line.end(f"{job.family.name} {job.family.version}")


def _is_running(process: subprocess.Popen) -> bool:
    try:
        process.wait(LOOK_EVERY_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _end(process: subprocess.Popen) -> None:
    """What Ctrl-C does: Go then ends its compilers, and removes its temporary files."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _since(log: Path, begin: int) -> str:
    with open(log, "rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")


# what Go says, and what that means
_NETWORK = (
    r"dial tcp|no such host|i/o timeout|connection (refused|reset)|proxyconnect|network is unreachable|"
    r"server misbehaving|TLS handshake timeout|module lookup disabled by GOPROXY=off|unexpected EOF"
)
_AGAIN = "then run `course tools build` again: it goes on where it stopped."
_CAUSES = (
    (r"no space left on device", "the disk is full", f"Free some space, {_AGAIN}"),
    (r"x509: |certificate ", "the certificate of the module proxy is not trusted here",
     f"Let SSL_CERT_FILE name your organization's certificates, {_AGAIN}"),
    (_NETWORK, "the Go module proxy cannot be reached",
     f"Check the network and GOPROXY (`go env GOPROXY`), {_AGAIN} `course tools unpack` needs no network."),
    (r"checksum mismatch|SECURITY ERROR", "a module is not the one that go.sum names",
     f"Remove it from Go's cache (`go clean -modcache`), {_AGAIN}"),
    (r"missing go\.sum entry|updates to go\.mod needed", "its go.mod and go.sum do not fit together",
     "Run `course tools check`, which says what is wrong."),
    (r"signal: killed|cannot allocate memory", "a compiler was ended, most likely because memory ran out",
     f"Close other programs, {_AGAIN}"),
)  # fmt: skip


def explain(output: str, family: Family, log: Path) -> CourseError:
    """What a failed Go means."""
    for pattern, why, fix in _CAUSES:
        if re.search(pattern, output):
            return CourseError(f"The programs of {family.name} could not be built: {why}.", fix)
    last = (output.strip().splitlines() or ["no reason given"])[-1]
    return CourseError(f"The programs of {family.name} could not be built: {last}.", f"The whole output is in {log}.")

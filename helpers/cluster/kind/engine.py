"""The programs that a kind cluster takes: the container engine, kind, kubectl, helm. All are run from here.

None of them reads from this terminal, none goes on after an interrupt, and what a failed one said is in one log.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import CourseError
from helpers.state import now, state_dir

CLUSTER = "course"
LABEL = f"io.x-k8s.kind.cluster={CLUSTER}"  # of every container that kind makes for it
ASK_S = 30.0
STOP_S = 60.0
GRACE_S = 30  # for the systemd of a Kubernetes node to stop what runs in it
IMAGE_S = 1800.0  # to save or load gigabytes, on a slow disk
DIGEST = re.compile(r"(:[\w.-]+)?@sha256:")
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}  # as engines say it: as Go does


# ---- any program -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """What came of a program.

    Attributes:
        code: its exit status; 127 if it cannot be run, 124 if it took too long.
        out: what it wrote to standard output.
        said: what it wrote to standard error.
    """

    code: int
    out: str
    said: str

    @property
    def why(self) -> str:
        """The line that says why it failed: the first that calls itself an error, else the last."""
        lines = [line.strip() for line in (self.said.strip() or self.out).splitlines() if line.strip()]
        if not lines:
            return "it does not say why"
        told = next((line for line in lines if line.lower().startswith("error")), lines[-1])
        return re.sub(r"^(error|ERROR|Error): ", "", told)[:300].rstrip(".?! ")


def run(argv: Sequence[str | Path], timeout_s: float, **variables: str) -> Done:
    """Run a program to its end.

    Args:
        argv: the program and its arguments.
        timeout_s: seconds after which it is ended.
        variables: of its environment, beside those of this process.

    Example:
        >>> run(["echo", "hello"], 5).out
        'hello\\n'
    """
    words = [str(word) for word in argv]
    try:
        # in a session of its own: Ctrl-C is for this process, which then ends the program and all that it started
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", env=os.environ | variables, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return _logged(words, Done(127, "", f"{words[0]} cannot be run ({error.strerror})"))
    with process:
        try:
            out, said = process.communicate(timeout=timeout_s)
            done = Done(process.returncode, out, said)
        except subprocess.TimeoutExpired:
            done = Done(124, "", f"{Path(words[0]).name} has not ended within {timeout_s:g} s")
        finally:
            _end(process)
    return _logged(words, done)


def must(argv: Sequence[str | Path], timeout_s: float, what: str, fix: str, **variables: str) -> str:
    """Run a program that must succeed, and return what it wrote to standard output.

    Args:
        argv: the program and its arguments.
        timeout_s: seconds after which it is ended.
        what: what is so if it fails, without a full stop.
        fix: what to do then.
        variables: of its environment, beside those of this process.

    Raises:
        CourseError: if it fails, with what it said.
    """
    done = run(argv, timeout_s, **variables)
    if done.code:
        raise CourseError(f"{what}: {done.why}.", fix)
    return done.out


def lines(argv: Sequence[str | Path], what: str, fix: str, **variables: str) -> Iterator[str]:
    """The lines that a program writes, as they come; it ends when the caller stops.

    Raises:
        CourseError: if it fails, with the last line.
    """
    process = subprocess.Popen(
        list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env=os.environ | variables, start_new_session=True,
    )  # fmt: skip
    last = "it does not say why"
    with process:
        try:
            for line in process.stdout:
                last = line.rstrip("\n")
                yield last
            process.wait()
        finally:
            _end(process)
    if process.returncode:
        raise CourseError(f"{what}: {last.rstrip('.')}.", fix)


def show(argv: Sequence[str | Path]) -> None:
    """Print a command as it could be typed."""
    print(f"$ {shlex.join(map(str, argv))}", flush=True)


def log_file() -> Path:
    """Where all that failed programs have said is."""
    return state_dir() / "logs" / "kind.log"


def _end(process: subprocess.Popen) -> None:
    """End a program that runs still, with all that it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _logged(words: Sequence[str], done: Done) -> Done:
    if done.code:
        with contextlib.suppress(OSError):
            log_file().parent.mkdir(parents=True, exist_ok=True)
            with open(log_file(), "a") as log:
                log.write(f"\n{now()} $ {shlex.join(words)}\n{done.out}{done.said}\n(status {done.code})\n")
    return done


# ---- the container engine --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Info:
    """What a container engine says of where it runs.

    Attributes:
        host: the name of its machine.
        machine: its processor, as Go calls it: "amd64" or "arm64".
        memory_bytes: all that it has.
        root: where it keeps images and containers, on its own machine.
        runtime: by which it runs containers unless told otherwise.
        keeps_platforms: whether it keeps an image with the list of all its platforms, but only one of them.
    """

    host: str
    machine: str
    memory_bytes: int
    root: Path
    runtime: str = ""
    keeps_platforms: bool = False

    @property
    def is_here(self) -> bool:
        """Whether its machine is this one, and not a virtual one or another."""
        return sys.platform == "linux" and self.host == platform.node()


@dataclass(frozen=True)
class Engine:
    """A container engine.

    Attributes:
        name: "docker" or "podman".

    Every call raises `CourseError` if the engine does not answer.
    """

    name: str

    @property
    def provider(self) -> dict[str, str]:
        """The variables by which kind takes this engine and no other."""
        return {"KIND_EXPERIMENTAL_PROVIDER": self.name}

    def info(self) -> Info:
        """What it says of where it runs."""
        told = json.loads(self._ask("info", "--format", "{{json .}}"))
        return _podman(told) if self.name == "podman" else _docker(told)

    def containers(self, timeout_s: float = ASK_S) -> dict[str, str]:
        """The cluster's Kubernetes nodes by their names, and the state of each, such as "running" or "exited"."""
        words = ["ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}} {{.State}}"]
        told = self._ask(*words, timeout_s=timeout_s)
        return dict(sorted(line.strip().partition(" ")[::2] for line in told.splitlines() if line.strip()))

    def start(self, names: Sequence[str]) -> None:
        """Start containers, one after the other in this order."""
        fix = "Run `course down --wipe` and then `course up`, which makes the cluster anew."
        must([self.name, "start", *names], STOP_S, "A Kubernetes node of the kind cluster does not start again", fix)

    def stop(self, names: Sequence[str]) -> None:
        """Stop containers; what is in them stays."""
        fix = "Run `course down` again."
        stop = [self.name, "stop", "-t", str(GRACE_S), *names]
        must(stop, STOP_S + GRACE_S * len(names), "The Kubernetes nodes of the kind cluster do not stop", fix)

    def inside(self, node: str, *argv: str) -> list[str]:
        """The command that runs `argv` in a Kubernetes node."""
        return [self.name, "exec", node, *argv]

    # ---- images

    def reference(self, image: str) -> str:
        """An image as this engine has to be asked for it: podman wants a registry, and not a tag and a digest."""
        if self.name != "podman":
            return image
        first, slash, _ = image.partition("/")
        has_registry = slash and (first == "localhost" or re.search(r"[.:]", first))
        return DIGEST.sub("@sha256:", image if has_registry else f"docker.io/{image}")

    def has_image(self, image: str) -> bool:
        """Whether it has the image."""
        return run([self.name, "image", "inspect", self.reference(image)], ASK_S).code == 0

    def pull(self, image: str, timeout_s: float) -> Done:
        """Try to pull an image."""
        return run([self.name, "pull", self.reference(image)], timeout_s)

    def tag(self, image: str, name: str) -> None:
        """Give an image one more name."""
        self._ask("tag", self.reference(image), self.reference(name))

    def save(self, images: Sequence[str], archive: Path, info: Info) -> None:
        """Write images into an archive.

        Args:
            images: their names.
            archive: the file.
            info: of this engine.
        """
        # without a platform, the list of all would be written beside one, and containerd would look for the others
        words = ["--platform", f"linux/{info.machine}"] if info.keeps_platforms else []
        words += ["--multi-image-archive"] if self.name == "podman" else []
        must(
            [self.name, "save", *words, "--output", archive, *map(self.reference, images)], IMAGE_S,
            f"{self.name} cannot save the images {' and '.join(images)}", "Free some disk space, and try again.",
        )  # fmt: skip

    def load(self, archive: Path) -> str:
        """Take up the images of an archive, and return the name of the first."""
        fix = f"Give a file that `{self.name} save --output FILE IMAGE` wrote."
        told = must([self.name, "load", "--input", archive], IMAGE_S, f"{self.name} cannot load {archive}", fix)
        found = re.search(r"^Loaded image(?:s|\(s\))?(?: ID)?: ([^\s,]+)", told, re.MULTILINE)
        if not found:
            raise CourseError(f"There is no image in {archive}.", fix)
        return found[1]

    def _ask(self, *words: str, timeout_s: float = ASK_S) -> str:
        what = f"{self.name} does not answer `{self.name} {words[0]}`"
        return must(
            [self.name, *words], timeout_s, what, f"Start it, so that `{self.name} info` answers; then try again."
        )


def _docker(told: dict) -> Info:
    # with containerd's store of images, which docker names among the facts of its storage driver
    keeps = any("containerd.snapshotter" in str(value) for _, value in told.get("DriverStatus") or ())
    return Info(
        told.get("Name", ""), _machine(told.get("Architecture", "")), told.get("MemTotal", 0),
        Path(told.get("DockerRootDir") or "/"), told.get("DefaultRuntime", ""), keeps,
    )  # fmt: skip


def _podman(told: dict) -> Info:
    host = told["host"]
    return Info(
        host.get("hostname", ""),
        _machine(host.get("arch", "")),
        host.get("memTotal", 0),
        Path(told["store"]["graphRoot"]),
    )


def _machine(name: str) -> str:
    return MACHINES.get(name, name)

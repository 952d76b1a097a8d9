"""A course whose only program is `hello`: what the tests of building, finding and packing programs are tried on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.cluster.embedded.tools import golang, store, table
from helpers.cluster.embedded.tools.table import Family, Program

MAIN = 'package main\n\nvar version string\n\nfunc main() { print("hello ", version) }\n'
HELLO = Family(
    "hello", "example.com/hello", "1.2.3", (Program("hello", ".", ("--version",), "hello "),), ("main.version=1.2.3",)
)
needs_go = pytest.mark.skipif(not shutil.which("go") or not golang.at_hand(), reason="no Go that is new enough on PATH")
# what another process does to be in the same course, whose folder is its argument
IN_ANOTHER = """
import sys
from pathlib import Path
from helpers.cluster.embedded.tools import build, table
from tests.hello import HELLO
root = Path(sys.argv[1])
table.FAMILIES, table.course_root = (HELLO,), lambda: root
"""


def make_course(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    """Make the course in a folder, and a cache and a state directory of its own; the cache has a space in its path."""
    source = folder / "tools" / "hello"
    source.mkdir(parents=True)
    (source / "main.go").write_text(MAIN)
    (source / "go.mod").write_text("module example.com/hello\n\ngo 1.26.0\n")
    (source / "go.sum").write_text("")
    monkeypatch.setenv("GOCACHE", _go_cache())  # or Go would begin with its own library
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "my cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setattr(table, "FAMILIES", (HELLO,))
    monkeypatch.setattr(table, "course_root", lambda: folder)
    store._version_said.cache_clear()
    return HELLO


def _go_cache() -> str:
    go = shutil.which("go")
    return subprocess.check_output([go, "env", "GOCACHE"], text=True).strip() if go else "/nonexistent"


def runs(path: Path) -> str:
    """What a program says."""
    done = subprocess.run([path], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> Path:
    """Put a shell script before everything on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    if str(folder) not in os.environ["PATH"].split(":"):
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / name

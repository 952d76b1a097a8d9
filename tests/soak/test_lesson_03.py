"""Lesson 03 as a user other than root, with 8 GiB of memory for all: the kernel, the cluster, its Pods."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.state import course_root
from tests.live.conftest import as_user  # noqa: F401 - a fixture

MEMORY = Path("/sys/fs/cgroup/memory/course-soak")  # without root a cluster makes no cgroups, and stays in this one
GIB = 2**30
WITHIN_S = 1500
RUN = """
import sys, nbformat
from nbclient import NotebookClient
from helpers.cluster.embedded.cluster import EmbeddedCluster
notebook = nbformat.read(sys.argv[1], as_version=4)
try:
    NotebookClient(notebook, timeout=600).execute()
finally:
    EmbeddedCluster().down(wipe=True)
errors = [o["text"] for cell in notebook.cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]
sys.exit("".join(errors) or 0)
"""


@pytest.fixture
def in_8_gib() -> Iterator[list[str]]:
    """The beginning of a command that makes it, and all that comes of it, share 8 GiB."""
    if os.geteuid() != 0 or not (MEMORY.parent / "memory.limit_in_bytes").exists():
        pytest.skip("needs root, and the memory controller of cgroup version 1")
    MEMORY.mkdir()
    (MEMORY / "memory.limit_in_bytes").write_text(str(8 * GIB))
    yield ["sh", "-c", f'echo $$ > {MEMORY}/cgroup.procs && exec "$@"', "sh"]
    MEMORY.rmdir()


def test_lesson_03_without_root_in_8_gib(in_8_gib: list[str], as_user: list[str]) -> None:  # noqa: F811
    lesson = course_root() / "lessons" / "03_raycluster.ipynb"
    command = [*in_8_gib, *as_user, sys.executable, "-c", RUN, str(lesson)]
    done = subprocess.run(command, cwd=course_root(), capture_output=True, text=True, timeout=WITHIN_S)
    most = int((MEMORY / "memory.max_usage_in_bytes").read_text())
    print(f"at most {most / GIB:.1f} GiB, with what the kernel keeps of files")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "oom_kill 0" in (MEMORY / "memory.oom_control").read_text()
    assert not (MEMORY / "cgroup.procs").read_text(), "something still runs"

"""The tests of the embedded cluster again, live and at length, as a user other than root."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.state import course_root
from tests.live.conftest import as_user  # noqa: F401 - a fixture

FILES = [f"live/test_{name}.py" for name in ("cluster", "node_contract", "host_untouched")] + ["soak/test_embedded.py"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.skipif(os.geteuid() != 0, reason="all tests of this run are those of a user other than root")
def test_the_cluster_without_root(as_user, file):  # noqa: F811
    command = [*as_user, sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{file}"]
    done = subprocess.run(command, cwd=course_root(), capture_output=True, text=True)
    print(done.stdout[-8000:])
    assert done.returncode == 0, done.stderr[-2000:]

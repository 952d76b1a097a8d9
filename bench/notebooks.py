"""`course notebooks`, a full rebuild: at most 5 s. It runs in a copy of the course that has no notebooks yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from _figure import bare_python, finish, report, seconds

from helpers.state import course_root

BOUND_S = 5.0


def rebuild() -> float:
    """Seconds that one rebuild takes."""
    with tempfile.TemporaryDirectory() as copy:
        for folder in ("helpers", "authoring"):
            shutil.copytree(course_root() / folder, Path(copy) / folder)
        command = [sys.executable, "-m", "helpers.cli", "notebooks"]
        environment = {**os.environ, "PYTHONPATH": copy}
        took = seconds(lambda: subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True))
        made, sources = (set(Path(copy).glob(found)) for found in ("[ls]*/**/*.ipynb", "authoring/*.py"))
        assert len(made) == len(sources), f"{len(made)} notebooks from {len(sources)} sources"
    return took


pairs = [(rebuild(), seconds(bare_python)) for _ in range(3)]
figure, beside = (median(column) for column in zip(*pairs, strict=True))
finish(report("course notebooks", figure, BOUND_S, f"Python alone: {beside:.3g} s"))

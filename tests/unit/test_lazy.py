"""What a bare import costs: nothing heavy is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.state import course_root

HEAVY = {"ray", "IPython", "ipywidgets", "matplotlib", "numpy", "psutil", "nbformat", "kubernetes", "yaml", "rich"}


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"],
        cwd=course_root(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "may"),
    [
        ("import helpers", set()),
        ("import helpers; dir(helpers); helpers.versions; helpers.CourseError; helpers.wait_until", set()),
        ("import helpers.state, helpers.lessons", set()),
        ("from helpers import Lab", {"psutil"}),
    ],
)
def test_nothing_heavy(code, may):
    assert loaded_by(code) & HEAVY <= may


def test_the_test_would_notice():
    assert {"psutil", "yaml"} <= loaded_by("import psutil, yaml")


def test_a_name_that_is_not_there():
    import helpers

    assert not hasattr(helpers, "Cluster") and "Lab" in dir(helpers)

"""The pins stand in several files, each read by another tool: they must be the same, and what is installed too."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement

from helpers import versions
from helpers.state import course_root

ROOT = course_root()
VERSIONS = {"ray": "RAY", "jupyterlab": "JUPYTERLAB", "nbgrader": "NBGRADER", "nbval": "NBVAL"}


def read(text: str) -> dict[str, Requirement]:
    """The requirements of a file by canonical name, without comments, includes, and lines for other platforms."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    found = [Requirement(line) for line in lines if line and not line.startswith("-")]
    return {canonical(r.name): r for r in found if not r.marker or r.marker.evaluate()}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


LEARNER = read((ROOT / "requirements.txt").read_text())
AUTHOR = read((ROOT / "requirements-dev.txt").read_text())
LOCK = read((ROOT / "requirements.lock").read_text())
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def test_conda_brings_python_and_pip_and_the_same_pins() -> None:
    *conda, pip = CONDA
    assert conda == [f"python={versions.PYTHON}", "pip"]
    assert {name: str(r) for name, r in read("\n".join(pip["pip"])).items()} == {n: str(r) for n, r in LEARNER.items()}


@pytest.mark.parametrize("name, pin", VERSIONS.items())
def test_versions_py_has_the_same_pins(name: str, pin: str) -> None:
    assert str(LEARNER[name].specifier) == f"=={getattr(versions, pin)}"


def test_python_is_the_same_everywhere() -> None:
    following = f"3.{int(versions.PYTHON.split('.')[1]) + 1}"
    assert f'requires-python = ">={versions.PYTHON},<{following}"' in (ROOT / "pyproject.toml").read_text()
    assert f"--python-version {versions.PYTHON} " in (ROOT / "requirements.lock").read_text()


@pytest.mark.parametrize("name", [*LEARNER, *AUTHOR])
def test_each_pin_is_exact_locked_and_installed(name: str) -> None:
    specifier = str((LEARNER | AUTHOR)[name].specifier)
    assert re.fullmatch(r"==\d[\w.]*", specifier)
    assert str(LOCK[name].specifier) == specifier
    assert metadata.version(name) == specifier.removeprefix("==")


def test_all_that_is_installed_of_the_lock_is_as_locked() -> None:
    wrong = {name: there for name, r in LOCK.items() if (there := installed(name)) and there not in r.specifier}
    assert not wrong, "run `make clean`, then the same command again"


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def test_the_lock_names_no_index_and_fits_as_constraints() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"https?://|--index|--find-links|--hash|@", text)
    assert not any(r.extras for r in LOCK.values())  # pip refuses extras in constraints


def test_ci_is_exactly_make_test() -> None:
    ci = ROOT / ".ci" / "run"
    commands = [line for line in ci.read_text().splitlines() if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test"]
    assert subprocess.run(["bash", "-n", str(ci)]).returncode == 0

"""What runs on public runners and in the development container names only what there is. They are not run here."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from helpers import versions
from helpers.cli import app
from helpers.cluster.backend import CLASSES
from helpers.state import course_root

ROOT = course_root()
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
VERBS = {command.name or command.callback.__name__ for command in app.registered_commands}


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(workflow: dict) -> str:
    return "\n".join(step["run"] for step in steps(workflow) if "run" in step)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_commands_that_it_runs_are_there(name):
    said = commands(WORKFLOWS[name])
    made = set(re.findall(r"\bmake ([a-z]+)", said))
    assert made <= TARGETS, made - TARGETS
    typed = set(re.findall(r"^course ([a-z]+)", said, re.M))
    assert typed <= VERBS, typed - VERBS
    assert set(re.findall(r"BACKEND=([a-z]+)", said)) <= set(CLASSES)
    assert made or typed
    for pin in re.findall(r"\bpin ([A-Z_]+)", said):
        assert hasattr(versions, pin), pin


@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_python_is_the_courses(name):
    takes = [step for step in steps(WORKFLOWS[name]) if "setup-python" in step.get("uses", "")]
    given = [step["with"]["python-version"] for step in takes]
    assert given and set(given) == {versions.PYTHON}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_action_is_taken_as_it_is_today(name):
    for step in steps(WORKFLOWS[name]):
        assert re.search(r"@v\d+$", step.get("uses", "@v1")), step


@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_files_that_it_names_are_there(name):
    text = (ROOT / ".github" / "workflows" / name).read_text()
    for path in re.findall(r"\b(?:tools|helpers|lessons|manifests|tests)/[\w./]+|\benvironment\.yml", text):
        assert (ROOT / path.rstrip("*/")).exists(), path


def test_the_readmes_command_and_condas_environment_are_tried():
    assert re.search(r"^make test$", commands(WORKFLOWS["ci.yml"]), re.M)
    conda = [step for step in steps(WORKFLOWS["ci.yml"]) if "micromamba" in step.get("uses", "")]
    assert [step["with"]["environment-file"] for step in conda] == ["environment.yml"]
    assert "pip install --no-deps --no-build-isolation -e ." in commands(WORKFLOWS["ci.yml"])
    assert "BACKEND=kind" in commands(WORKFLOWS["live.yml"])


def test_the_development_container():
    home = ROOT / ".devcontainer"
    told = json.loads(re.sub(r"^\s*//.*$", "", (home / "devcontainer.json").read_text(), flags=re.M))
    assert "--privileged" in told["runArgs"] and told["containerEnv"]["COURSE_BACKEND"] in CLASSES
    assert any("docker-in-docker" in feature for feature in told["features"])
    made = (home / told["build"]["dockerfile"]).read_text()
    assert f"FROM python:{versions.PYTHON}-" in made and "COPY packages.txt" in made
    assert (home / told["build"]["context"] / "packages.txt").exists()

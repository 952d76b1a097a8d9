"""No notebook and no room beside `cluster` knows a backend by name: what differs between them is asked of the door."""

from __future__ import annotations

import ast
import re

import nbformat
import pytest

from helpers import lessons
from helpers.cluster.backend import CLASSES
from helpers.state import course_root
from tests.contract.test_imports import helpers_imported, modules

BEHIND = tuple(f"cluster.{name}" for name in CLASSES)
# what a program for its own parts has to name: `course tools`, and the table of what a machine lacks
MAY = {"helpers.cli": "cluster.embedded.tools", "helpers.doctor": "cluster.embedded"}
NAMED = re.compile(r"COURSE_(BACKEND|CONTEXT)|helpers\.cluster|backend(\.name)? (==|!=|in)|\bembedded\b")


def known(module: str, tree: ast.AST, is_package: bool = False) -> list[str]:
    """The modules behind the door that a module outside knows."""
    if module.startswith("helpers.cluster"):
        return []
    may = MAY.get(module, "nothing")
    found = (target for target in helpers_imported(module, tree, is_package) if target.startswith(BEHIND))
    return [target for target in found if not target.startswith(may)]


def test_no_module_outside_knows_a_backend():
    assert {name: found for name, tree, is_package in modules() if (found := known(name, tree, is_package))} == {}


@pytest.mark.parametrize(
    "line",
    ["from helpers.cluster.kind import Kind", "import helpers.cluster.existing", "import helpers.cluster.embedded.pki"],
)
def test_a_module_that_knows_one(line):
    assert known("helpers.lab", ast.parse(line)) and known("helpers.cli", ast.parse(line))


def test_no_notebook_knows_a_backend():
    exercises = sorted((course_root() / "exercises").glob("*/*.ipynb"))
    for path in [*lessons.paths(), *exercises]:
        for cell in nbformat.read(path, as_version=4).cells:
            assert not NAMED.search(cell.source), f"{path.name}: {cell.source}"


def test_a_notebook_that_knows_one():
    assert NAMED.search('if lab.backend == "kind":') and NAMED.search("%env COURSE_BACKEND=embedded")
    assert not NAMED.search('"kind": "RayCluster"') and not NAMED.search("see *Backend* above")

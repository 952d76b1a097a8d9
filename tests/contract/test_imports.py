"""Who may import whom among the helpers: what is low knows nothing of what is high, and `import helpers` is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import helpers
from helpers.state import course_root

ANYBODY_MAY = {"errors", "versions", "state", "text", "reading", "notebook", "proc"}
ANYTHING = None
# room: the other rooms that it may import, beside those that anybody may. A room is a module or package of helpers/.
TABLE: dict[str, set[str] | None] = {
    "wait": set(),
    "model": set(),
    "kube": {"wait"},
    "rayhost": {"wait"},
    "cluster": {"kube", "wait"},
    "observe": {"kube", "model", "wait"},
    "widgets": {"model", "observe"},
    "drills": {"kube", "cluster", "observe"},
    "grading": {"kube", "model", "observe"},
    "interview": {"model", "drills", "grading"},
    # what the command line consists of
    "authoring": {"wait"},
    "lessons": set(),
    "jupyter": {"wait"},
    "doctor": {"lessons", "wait", "rayhost", "kube", "cluster"},
    "lab": ANYTHING,
    "cli": ANYTHING,
}
# these may import less than anybody: the lowest, `helpers` itself (it loads a name when it is used), and the process
# runtime, which is run as a process of its own
STRICT = {
    "": set(),
    "errors": set(),
    "versions": set(),
    "text": set(),
    "reading": {"errors"},
    "notebook": set(),
    "proc": set(),
    "state": {"errors"},
    "cluster.embedded.runtime": {"errors"},
}
NOBODY_MAY = {"lab", "cli"}
PRIVATE = r"ray\.(autoscaler|core|_private)\b.*"  # what Ray may change in any release
NAME = r"helpers(\.[a-z_]\w*)+"  # a module named in a string


def forbidden(module: str, tree: ast.AST, is_package: bool = False) -> list[str]:
    """The imports of a module, named as `helpers.a.b`, that break the table."""
    inner = module.removeprefix("helpers").removeprefix(".")
    strict = next((name for name in STRICT if inner == name or (name and inner.startswith(f"{name}."))), None)
    own = strict if strict is not None else inner.partition(".")[0]
    if strict is None and own not in TABLE:
        return [f"helpers.{own} is not in the table of tests/contract/test_imports.py: say there what it may import"]
    may = STRICT[own] if strict is not None else TABLE[own]
    wrong = []
    for target in helpers_imported(module, tree, is_package):
        room = target.partition(".")[0]
        at_home = own and (target == own or target.startswith(f"{own}."))
        allowed = room in (may if strict is not None else (may or set()) | ANYBODY_MAY) or (may is ANYTHING)
        if not at_home and (not allowed or room in NOBODY_MAY):
            wrong.append(f"{module} imports helpers.{target}")
    return wrong


def helpers_imported(module: str, tree: ast.AST, is_package: bool) -> Iterator[str]:
    """Each module of helpers that is imported, without `helpers.`; also by name, as `import_module("helpers.x")`."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name[8:] for alias in node.names if alias.name.startswith("helpers."))
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            full = ".".join(filter(None, [base, node.module or ""]))
            if full == "helpers":
                # `from helpers import Lab` is an import of helpers.lab, though it does not look like one
                yield from (helpers._HOME_OF.get(alias.name, f"helpers.{alias.name}")[8:] for alias in node.names)
            elif full.startswith("helpers."):
                yield full[8:]
        elif module != "helpers" and isinstance(node, ast.Constant) and re.fullmatch(NAME, str(node.value)):
            yield node.value[8:]


def all_imported(tree: ast.AST) -> Iterator[str]:
    """Each module that is imported, whoever's it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> Iterator[tuple[str, ast.AST, bool]]:
    root = course_root()
    for path in sorted((root / "helpers").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        yield name, ast.parse(path.read_text()), path.name == "__init__.py"


def test_every_module_keeps_the_table():
    wrong = [line for name, tree, is_package in modules() for line in forbidden(name, tree, is_package)]
    assert not wrong, "\n".join(wrong)


def test_what_is_private_to_ray_is_used_in_one_place():
    assert {name for name, tree, _ in modules() if any(re.fullmatch(PRIVATE, full) for full in all_imported(tree))} == {
        "helpers.model.planner.decision"
    }


def test_importing_helpers_loads_nothing():
    code = "import sys; before = set(sys.modules); import helpers; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=course_root(), capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    assert loaded == ["helpers"]


@pytest.mark.parametrize(
    ("module", "source", "target"),
    [
        ("helpers.errors", "import helpers.versions", "versions"),
        ("helpers.versions", "from helpers.errors import CourseError", "errors"),
        ("helpers.state", "from helpers import versions", "versions"),
        ("helpers.wait", "from helpers.kube import read", "kube"),
        ("helpers.model.idle", "from helpers.observe import timeline", "observe"),
        ("helpers.model.idle", "def f():\n    from helpers import wait_until", "wait"),
        ("helpers.kube", "from . import observe", "observe"),
        ("helpers.rayhost.hosts", "from ..kube import read", "kube"),
        ("helpers.widgets.quiz", "from helpers.grading.check import check", "grading.check"),
        ("helpers.widgets.quiz", "from helpers import check", "grading.check"),
        ("helpers.grading.check", "import helpers.widgets.theme as theme", "widgets.theme"),
        ("helpers.observe.why", "import importlib\nimportlib.import_module('helpers.lab')", "lab"),
        ("helpers.cli", "from helpers.lab import Lab", "lab"),
        ("helpers.cli", "from helpers import Lab", "lab"),
        ("helpers.authoring", "from helpers import rayhost", "rayhost"),
        ("helpers.doctor", "from helpers import grading", "grading"),
        ("helpers.cluster.embedded.runtime.cri", "from helpers.wait import wait_until", "wait"),
        ("helpers.cluster.embedded.runtime.cri", "from helpers.cluster import backend", "cluster"),
    ],
)
def test_a_module_that_breaks_the_table(module, source, target):
    assert forbidden(module, ast.parse(source)) == [f"{module} imports helpers.{target}"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("helpers.kube", "from helpers import errors, state, versions\nfrom helpers.wait import wait_until"),
        ("helpers.state", "from helpers.errors import CourseError"),
        ("helpers.rayhost.hosts", "from helpers.rayhost import ports\nfrom .ports import PORTS\nimport os, ray"),
        ("helpers.lab", "from helpers import rayhost, wait\nfrom helpers.widgets import theme"),
        ("helpers.cluster.embedded.runtime.cri", "from . import mounts\nfrom helpers.errors import CourseError"),
    ],
)
def test_a_module_that_keeps_the_table(module, source):
    assert forbidden(module, ast.parse(source)) == []


def test_helpers_itself_loads_nothing_of_ours():
    assert forbidden("helpers", ast.parse("from helpers import wait"), is_package=True) == [
        "helpers imports helpers.wait"
    ]
    assert forbidden("helpers", ast.parse("from .lab import Lab"), is_package=True) == ["helpers imports helpers.lab"]


def test_a_room_that_nobody_decided_about():
    assert "helpers.attic is not in the table" in forbidden("helpers.attic", ast.parse(""))[0]

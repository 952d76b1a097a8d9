"""The helpers draw and ask as the lessons must: every figure is told, every control is labelled."""

from __future__ import annotations

import ast

import pytest

from helpers.state import course_root
from tests.contract import rules

ROOT = course_root()
MODULES = sorted((ROOT / "helpers").rglob("*.py"))
THEME = ROOT / "helpers" / "widgets" / "theme.py"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_and_controls(path):
    tree = ast.parse(path.read_text())
    wrong = rules.untold_figures(tree) + rules.unlabelled_controls(tree)
    if path != THEME:
        wrong += rules.own_figures(tree)
    assert not wrong, "\n".join(wrong)

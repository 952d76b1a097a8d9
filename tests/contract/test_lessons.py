"""Every lesson keeps every rule, and every notebook is what its source says."""

from __future__ import annotations

import nbformat
import pytest

from helpers.authoring import build_all
from helpers.state import course_root
from tests.contract.rules import RULES

LESSONS = sorted(course_root().glob("lessons/[0-9][0-9]_*.ipynb"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson(path, rule):
    wrong = rule(nbformat.read(path, as_version=4), path)
    assert not wrong, "\n".join([f"lessons/{path.name}:", *wrong])


def test_notebooks_are_in_step_with_their_sources():
    build_all(check=True)

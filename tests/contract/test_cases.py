"""Bug reports from the field: each case of tests/cases is answered as it should be.

One adapter for each form turns a case into a question to the helpers: cases_manifest, cases_plan, cases_dump and
cases_behaviour. What is right in notebooks is tried by tests/live/test_notebook_cases.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from helpers.state import course_root
from tests.contract import cases_behaviour, cases_dump, cases_manifest, cases_plan

ADAPTERS = {"manifest": cases_manifest, "plan": cases_plan, "dump": cases_dump, "behaviour": cases_behaviour}


def cases() -> list[Any]:
    found = []
    for form in ADAPTERS:
        text = (course_root() / "tests" / "cases" / f"{form}.yaml").read_text()
        for case in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["cases"]:
            found.append(pytest.param(form, case["input"], case["expected"], id=f"{form}-{case['id']}"))
    return found


@pytest.mark.parametrize(("form", "given", "expected"), cases())
def test_case(form: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert ADAPTERS[form].wrong(given, expected) == []

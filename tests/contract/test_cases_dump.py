"""Dumps from the field: the cause that is named first."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from helpers.state import course_root
from tests.contract import cases_dump


def cases() -> list[Any]:
    text = (course_root() / "tests" / "cases" / "dump.yaml").read_text()
    found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["cases"]
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in found]


@pytest.mark.parametrize(("given", "expected"), cases())
def test_the_cause_of_a_dump(given, expected):
    assert not cases_dump.wrong(given, expected)

"""In each case of the form `manifest` is found what should be, and nothing that should not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from helpers.state import course_root
from tests.contract import cases_manifest


def cases() -> list[Any]:
    text = (course_root() / "tests" / "cases" / "manifest.yaml").read_text()
    return [
        pytest.param(case["input"], case["expected"], id=case["id"])
        for case in yaml.load(text, yaml.CSafeLoader)["cases"]
    ]


@pytest.mark.parametrize(("given", "expected"), cases())
def test_what_is_found(given, expected):
    assert cases_manifest.wrong(given, expected) == []

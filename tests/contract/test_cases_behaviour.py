"""Each case of the form `behaviour` is answered as it should be."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from helpers.state import course_root
from tests.contract import cases_behaviour

# questions that are answered elsewhere
ELSEWHERE = {"launch_waves", "manual_scale_down"}


def cases() -> list[Any]:
    text = (course_root() / "tests" / "cases" / "behaviour.yaml").read_text()
    return [
        pytest.param(case["input"], case["expected"], id=case["id"])
        for case in yaml.load(text, yaml.CSafeLoader)["cases"]
        if case["input"]["question"] not in ELSEWHERE
    ]


@pytest.mark.parametrize(("given", "expected"), cases())
def test_the_answer_is_the_expected_one(given, expected):
    assert cases_behaviour.wrong(given, expected) == []

"""Cases from the field, form `plan`, and the two questions of `behaviour` that the planner's room answers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from helpers.state import course_root
from tests.contract import cases_plan

BEHAVIOUR = {
    "launch_waves": cases_plan.launch_waves_answer,
    "manual_scale_down": cases_plan.manual_scale_down_answer,
}


def cases(form: str) -> list[Any]:
    text = (course_root() / "tests" / "cases" / f"{form}.yaml").read_text()
    return [
        pytest.param(case["input"], case["expected"], id=case["id"])
        for case in yaml.load(text, yaml.CSafeLoader)["cases"]
        if form == "plan" or case["input"]["question"] in BEHAVIOUR
    ]


@pytest.mark.parametrize(("given", "expected"), cases("plan"))
def test_plan(given, expected):
    assert cases_plan.wrong(cases_plan.answer(given), expected) == []


@pytest.mark.parametrize(("given", "expected"), cases("behaviour"))
def test_behaviour(given, expected):
    told = BEHAVIOUR[given["question"]](given)
    assert {key: told[key] for key in expected["answer"]} == expected["answer"]

"""What holds for the suite of every exercise: right answers, wrong ones, points, hidden variations.

Each module has `RIGHT` and `MUTANTS`, answers by question; a mutant comes with the case that alone rejects it. `HIDDEN`
is the question with hidden variations, `VARIED` those of its mutants that the variations tell apart too, and
`hard_coded` knows the examples of its cases by heart.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
from types import ModuleType
from typing import Any

import pytest

from helpers.grading.check import Suite, find_suite, run
from helpers.state import course_root
from tests.unit import test_ex01, test_ex03

EXERCISES = {"ex01": test_ex01, "ex03": test_ex03}
SEEDS = 200


def suite(exercise: str, question: str) -> Suite:
    return find_suite(f"{exercise}.{question}")


def questions() -> list:
    """Exercise and question."""
    return [(exercise, question) for exercise, module in EXERCISES.items() for question in module.QUESTIONS]


def right_answers() -> list:
    return [
        pytest.param(exercise, question, answer, id=f"{exercise}-{question}-{number}")
        for exercise, question in questions()
        for number, answer in enumerate(EXERCISES[exercise].RIGHT[question])
    ]


def mutants() -> list:
    return [
        pytest.param(exercise, question, position, answer, id=f"{exercise}-{question}-{number}")
        for exercise, question in questions()
        for number, (position, answer) in enumerate(EXERCISES[exercise].MUTANTS[question])
    ]


# ---- right answers and wrong ones


@pytest.mark.parametrize(("exercise", "question", "answer"), right_answers())
def test_right_answers_are_full(exercise, question, answer):
    report = run(suite(exercise, question), answer)
    assert report.is_full, str(report)


@pytest.mark.parametrize(("exercise", "question"), questions())
def test_each_question_has_two_different_right_answers(exercise, question):
    assert len(EXERCISES[exercise].RIGHT[question]) >= 2


@pytest.mark.parametrize(("exercise", "question", "position", "answer"), mutants())
def test_each_mutant_is_rejected_by_its_case_only(exercise, question, position, answer):
    report = run(suite(exercise, question), answer)
    assert [number for number, row in enumerate(report.rows) if row.state != "pass"] == [position], str(report)
    assert report.rows[position].message


@pytest.mark.parametrize(("exercise", "question"), questions())
def test_every_case_has_a_mutant_and_every_question_three(exercise, question):
    answers = EXERCISES[exercise].MUTANTS[question]
    assert {position for position, _ in answers} == set(range(len(suite(exercise, question).cases)))
    assert len(answers) >= 3


@pytest.mark.parametrize("exercise", EXERCISES)
def test_points_in_the_text_and_in_the_suite(exercise):
    module = EXERCISES[exercise]
    for question in (*module.QUESTIONS, module.LIVE):
        assert f"({suite(exercise, question).points:g} points)" in module.cell(f"ask-{question}")


# ---- hidden variations


@pytest.fixture(scope="module", params=EXERCISES)
def exercise(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def module(exercise: str) -> ModuleType:
    return EXERCISES[exercise]


@pytest.fixture(scope="module")
def variations(exercise: str, module: ModuleType) -> dict[str, Any]:
    """The variations of the question that has them, by case."""
    spec = importlib.util.spec_from_file_location("hidden", course_root() / "solutions" / exercise / "hidden.py")
    hidden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hidden)
    assert hidden.VARIATIONS.keys() == {module.HIDDEN}
    return hidden.VARIATIONS[module.HIDDEN]


def holds(variation: Any, answer: Any, seed: int) -> bool:
    try:
        variation(answer, random.Random(seed))
    except Exception:
        return False
    return True


def test_each_variation_is_of_a_case(exercise, module, variations):
    assert list(variations) == [case.name for case in suite(exercise, module.HIDDEN).cases]


def test_variations_accept_right_answers(module, variations):
    for answer, variation, seed in itertools.product(module.RIGHT[module.HIDDEN], variations.values(), range(SEEDS)):
        variation(answer, random.Random(seed))


def test_variations_reject_what_is_written_for_the_examples(exercise, module, variations):
    assert run(suite(exercise, module.HIDDEN), module.hard_coded).is_full
    for name, variation in variations.items():
        assert not any(holds(variation, module.hard_coded, seed) for seed in range(SEEDS)), name


def test_variations_take_no_second_point(module, variations):
    for position, answer in module.VARIED:
        for number, (name, variation) in enumerate(variations.items()):
            held = [holds(variation, answer, seed) for seed in range(SEEDS)]
            if number != position:
                assert all(held), f"{answer} by {name}: seed {held.index(False)}"
            else:
                assert not all(held), f"{answer} by {name}"


def test_same_seed_same_inputs(module, variations):
    right = module.RIGHT[module.HIDDEN][0]
    for variation in variations.values():
        seen = []

        def spy(*given, seen=seen):
            seen.append(given)
            return right(*given)

        for seed in (3, 3, 4, 5, 6, 7):
            variation(spy, random.Random(seed))
        assert seen[0] == seen[1]
        assert any(inputs != seen[0] for inputs in seen[2:])

import json
import os
import subprocess
import sys

import pytest

from helpers import state
from helpers.errors import CourseError
from helpers.grading import check as module
from helpers.grading.check import CheckFailed, Suite, all_suites, check, find_suite, hint, number, run

FLAGS = ("head num-cpus", "worker num-cpus", "worker memory", "worker address")
RIGHT = {
    "00.c1": [8265, 8265.0],
    "01.c1": [
        {"gcs_server", "dashboard", "monitor", "ray_client_server"},
        ["Ray Client Server", "GCS", "autoscaler", "Dashboard", "gcs-server"],
        ("client server", "monitor", "gcs", "dashboard"),
    ],
    "01.c2": [
        {"task": "retried", "actor": "lost", "object": "rebuilt"},
        {"object": " Reconstructed ", "actor": "DEAD", "task": "rerun"},
    ],
    "01.c3": ["worker-2 raylet", "Raylet of worker-2", "worker_2 RAYLET"],
    "03.c1": [
        {
            "head num-cpus": "rayStartParams",
            "worker num-cpus": "limits",
            "worker memory": "limits",
            "worker address": "KubeRay",
        },
        {
            "worker address": "Operator",
            "worker memory": "limit",
            "worker num-cpus": "resources.limits",
            "head num-cpus": "params",
        },
    ],
    "03.c2": [16, 16.0],
}
HEAD = {"gcs_server", "dashboard", "monitor", "ray_client_server"}
FATE = {"task": "retried", "actor": "lost", "object": "rebuilt"}
FROM = RIGHT["03.c1"][0]
# per question, (position of the only case that rejects it, the answer)
MUTANTS = {
    "00.c1": [(0, 6379), (0, 10001), (0, 8000), (0, 8080)],
    "01.c1": [
        (0, HEAD - {"gcs_server"}),
        (1, HEAD - {"dashboard"}),
        (1, HEAD - {"ray_client_server"}),
        (2, HEAD - {"monitor"}),
        (3, HEAD | {"raylet"}),
        (3, HEAD | {"object_store"}),
        (4, HEAD | {"dashboard_agent"}),
        (4, HEAD | {"runtime_env_agent"}),
        (4, HEAD | {"log_monitor"}),
    ],
    "01.c2": [
        (0, FATE | {"task": "lost"}),
        (0, FATE | {"task": "rebuilt"}),
        (1, FATE | {"actor": "retried"}),
        (1, FATE | {"actor": "rebuilt"}),
        (2, FATE | {"object": "lost"}),
        (2, FATE | {"object": "retried"}),
    ],
    "01.c3": [(0, "gcs"), (0, "head raylet"), (0, "driver")],
    "03.c1": [
        (case, FROM | {flag: word})
        for case, flag in enumerate(FLAGS)
        for word in ("rayStartParams", "limits", "requests", "KubeRay")
        if word != FROM[flag]
    ],
    "03.c2": [(0, 8), (0, 4), (0, 2), (0, 1), (0, 12)],
}
UNANSWERED = [None, ..., "", "  \n", "...", "…", "?", [], {}, set(), ("",), {"task": ..., "actor": ""}]
# a suite has a file of its own, by which its lines are told from the learner's
DOUBLE = """
suite = Suite(read=lambda answer: answer, hints=("one", "two", "three"), explanation="twice is x + x")

@suite.case("of one", points=1, wrong={lambda f: f(1) == 1: "you gave the number back"})
def _(f):
    assert f(1) == 2, f"f(1) returned {f(1)!r}"

@suite.case("of a negative number", points=2)
def _(f):
    assert f(-3) == -6, f"f(-3) returned {f(-3)!r}"
"""
STUBS = ("def f(x): ...", "def f(x): pass", "def f(x):\n 'Says what it does.'", "def f(x): raise NotImplementedError")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)


@pytest.fixture(autouse=True)
def nothing_on_stderr(capfd):
    yield
    assert capfd.readouterr().err == ""


@pytest.fixture
def exercise(monkeypatch):
    """A question of an exercise: a function that doubles."""
    space = {"Suite": Suite}
    exec(compile(DOUBLE, "ex01.py", "exec"), space)
    suite = space["suite"]
    monkeypatch.setattr(module, "_suites_of", lambda name: {"q1": suite} if name == "ex01" else {})
    return suite


def states(report):
    return [row.state for row in report.rows]


# the questions themselves


def test_every_question_is_tested_here():
    assert set(all_suites()) >= {"00.c1", "01.c1", "01.c2", "01.c3", "03.c1", "03.c2"}
    lessons = {id for id in all_suites() if not id.startswith("ex")}
    assert lessons == set(RIGHT) == set(MUTANTS)


@pytest.mark.parametrize(("id", "answer"), [(id, answer) for id, answers in RIGHT.items() for answer in answers])
def test_right_answers_score_full(id, answer):
    report = check(id, answer)
    assert report.is_full and report == report.points > 0
    assert find_suite(id).explanation in str(report)


@pytest.mark.parametrize(
    ("id", "case", "answer"), [(id, *mutant) for id, mutants in MUTANTS.items() for mutant in mutants]
)
def test_each_mutant_is_rejected_by_its_case_only(id, case, answer):
    report = check(id, answer)
    assert [place for place, row in enumerate(report.rows) if row.state != "pass"] == [case]
    assert report.rows[case].message, "a wrong answer gets a reason"
    assert f'hint("{id}")' in str(report)


@pytest.mark.parametrize("id", MUTANTS)
def test_every_case_has_a_mutant_and_every_question_three(id):
    assert {case for case, _ in MUTANTS[id]} == set(range(len(find_suite(id).cases)))
    assert len(MUTANTS[id]) >= 3


@pytest.mark.parametrize(
    ("id", "secret"),
    [
        ("00.c1", ["8265"]),
        ("01.c1", ["gcs", "dashboard", "client", "autoscaler"]),
        ("01.c2", ["retried", "rebuilt"]),
        ("01.c3", ["worker-2", "worker 2"]),
        ("03.c1", ["raystartparams"]),
        ("03.c2", ["16", "sixteen"]),
    ],
)
def test_messages_and_hints_do_not_give_the_answer_away(id, secret):
    suite = find_suite(id)
    said = [row.message for _, answer in MUTANTS[id] for row in check(id, answer).rows]
    shown = " ".join([*said, *suite.hints, *(case.name for case in suite.cases)]).lower()
    shown = shown.replace("dashboard_agent", "")
    assert [word for word in secret if word in shown] == []


@pytest.mark.parametrize("id", RIGHT)
def test_a_suite_is_complete(id):
    suite = find_suite(id)
    assert len(suite.hints) == 3 and all(suite.hints) and suite.explanation
    assert suite.points == sum(case.points for case in suite.cases) > 0


@pytest.mark.parametrize("id", RIGHT)
@pytest.mark.parametrize("answer", UNANSWERED, ids=repr)
def test_unanswered_scores_nothing_and_is_no_try(id, answer):
    report = check(id, answer)
    assert report == 0 and not report.is_answered
    assert "not answered yet" in str(report) and set(states(report)) == {"not answered yet"}
    assert state.read_progress()["checks"] == {}


@pytest.mark.parametrize("id", RIGHT)
@pytest.mark.parametrize("answer", [True, 5 + 2j, object(), b"8265", {"x": 1}, [[]] * 2 + [[1]], len, "no such word"])
def test_a_wrong_type_is_said_not_raised(id, answer):
    report = check(id, answer)
    assert report == 0 and set(states(report)) == {"not yet"}
    assert report.rows[0].message


@pytest.mark.parametrize("id", RIGHT)
@pytest.mark.parametrize("kind", [dict, list])
def test_what_holds_itself_is_a_wrong_type_too(id, kind):
    answer = kind()
    answer.update(x=answer) if kind is dict else answer.append(answer)
    report = check(id, answer)
    assert report == 0 and set(states(report)) <= {"not yet", "not answered yet"} and report.rows[0].message


def test_wrong_type_in_words():
    assert "this wants a number, you gave a str" in str(check("00.c1", "8265"))
    assert "this wants a list or a set of names, you gave an int" in str(check("01.c1", 4))
    assert "'gcss' is not among the possible answers: gcs_server, raylet" in str(check("01.c1", ["gcss"]))
    assert "'nodes' is not among the keys: task, actor, object" in str(check("01.c2", {"nodes": "lost"}))


def test_a_dict_filled_in_part():
    report = check("01.c2", {"task": ..., "actor": "lost"})
    assert states(report) == ["not answered yet", "pass", "not answered yet"] and report == 1


# how any suite is run


@pytest.mark.parametrize("stub", STUBS)
def test_a_stub_is_not_an_answer(exercise, stub):
    space = {}
    exec(stub, space)
    report = check("ex01.q1", space["f"])
    assert report == 0 and not report.is_answered


def test_a_function_that_returns_nothing_but_does_something_is_an_answer(exercise):
    assert check("ex01.q1", lambda x: print(x)).is_answered


def test_partial_credit_and_wrong_path(exercise):
    assert float(check("ex01.q1", lambda x: abs(2 * x))) == 1
    assert "of one: you gave the number back" in str(check("ex01.q1", lambda x: x))
    assert "of one: f(1) returned 3" in str(check("ex01.q1", lambda x: 3 * x))


def test_an_exception_names_the_learners_line(exercise):
    def bad(x):
        y = x - 1
        return 2 / y if x > 0 else 2 * x

    report = check("ex01.q1", bad)
    assert "ZeroDivisionError: division by zero (your line" in report.rows[0].message
    assert "return 2 / y if x > 0 else 2 * x" in report.rows[0].message
    assert states(report) == ["not yet", "pass"]


def test_an_exception_inside_a_library_names_the_learners_line(exercise):
    def reads(x):
        return json.loads("{")

    assert check("ex01.q1", reads).rows[0].message.endswith('return json.loads("{"))')


class BadText(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize("error", [SystemExit(3), RecursionError(), AssertionError("mine"), BadText(), MemoryError()])
def test_whatever_the_learners_code_raises_is_a_message(exercise, error):
    def bad(x):
        raise error

    report = check("ex01.q1", bad)
    assert states(report) == ["not yet", "not yet"]
    assert type(error).__name__ in report.rows[0].message and "your line" in report.rows[0].message


def test_an_interrupt_is_the_learners_own_wish(exercise):
    def stopped(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("ex01.q1", stopped)


def test_all_that_it_prints_goes_to_stdout(exercise, capfd):
    def noisy(x):
        print("hello")
        print("careful", file=sys.stderr)
        return 2 * x

    assert check("ex01.q1", noisy).is_full
    said = capfd.readouterr()
    assert "hello" in said.out and "careful" in said.out and said.err == ""


def test_a_score_is_never_above_its_points_by_rounding():
    suite = Suite(number, ("", "", ""), "")
    for points in (0.1, 0.2, 0.3):
        suite.case("any", points)(lambda answer: None)
    assert float(run(suite, 1)) == run(suite, 1).points == 0.6


# what is shown


def test_html_has_words_beside_symbols_and_escapes(exercise):
    shown = check("ex01.q1", lambda x: "<b>")._repr_html_()
    assert 'role="status"' in shown and "✘ not yet" in shown and "&lt;b&gt;" in shown and "<b>" not in shown
    assert "✔ pass" in check("ex01.q1", lambda x: 2 * x)._repr_html_()


def test_one_line_for_each_case():
    lines = str(check("01.c2", FATE | {"actor": "retried"})).splitlines()
    assert lines[0] == "01.c2: 2/3 points" and len(lines) == 5
    assert [line[0] for line in lines[1:4]] == ["✔", "✘", "✔"]


# nbgrader


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(("answer", "score"), [(lambda x: 2 * x, 3), (lambda x: abs(2 * x), 1), (None, 0)])
def test_autograde_reads_the_plain_number(exercise, monkeypatch, shell, answer, score):
    from nbformat.v4 import new_code_cell, new_output
    from nbgrader.utils import determine_grade

    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    data, _ = shell.display_formatter.format(check("ex01.q1", answer))
    grader = {"grade": True, "solution": False, "points": 3, "grade_id": "q1", "schema_version": 3}
    cell = new_code_cell(outputs=[new_output("execute_result", data)], metadata={"nbgrader": grader})
    assert determine_grade(cell) == (score, 3)
    assert "points" in data["text/html"]
    assert not state.progress_path().exists()


def test_interactively_a_front_end_without_html_shows_the_report(shell):
    data, _ = shell.display_formatter.format(check("00.c1", 6379))
    assert "✘ not yet" in data["text/plain"] and "✘ not yet" in data["text/html"]


def test_validate_fails_a_wrong_exercise_with_the_report_alone(exercise, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    for answer in (None, lambda x: x):
        with pytest.raises(CheckFailed) as failed:
            check("ex01.q1", answer)
        assert failed.value._render_traceback_()[0].startswith("ex01.q1: ")
    assert "you gave the number back" in str(failed.value)
    assert check("ex01.q1", lambda x: 2 * x) == 3


def test_a_lesson_never_raises_even_under_validate(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    assert check("00.c1", 6379) == 0
    assert not state.progress_path().exists()


@pytest.mark.parametrize("mode", ["validate", "autograde"])
def test_under_nbgrader_an_unknown_question_is_no_free_points(monkeypatch, mode):
    monkeypatch.setenv("NBGRADER_EXECUTION", mode)
    with pytest.raises(CourseError):
        check("ex99.q1", 1)


# progress and hints


def test_best_latest_and_tries_are_kept():
    for answer in (FATE | {"task": "lost"}, FATE, FATE | {"task": "lost", "actor": "retried"}, None):
        check("01.c2", answer)
    kept = state.read_progress()["checks"]["01.c2"]
    assert (kept["score"], kept["latest"], kept["points"], kept["tries"]) == (3, 1, 3, 3)


def test_a_score_that_cannot_be_kept_is_still_shown(monkeypatch, tmp_path, capfd):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert check("00.c1", 8265).is_full
    assert "This score was not kept." in capfd.readouterr().out
    hint("00.c1")
    assert all(sentence in (capfd.readouterr().out) for sentence in find_suite("00.c1").hints[:1])


def test_hints_come_one_at_a_time_and_stay(capfd):
    hints = find_suite("01.c1").hints
    for place, sentence in enumerate(hints, 1):
        hint("01.c1")
        assert capfd.readouterr().out == f"Hint {place} of 3: {sentence}\n"
    for _ in range(2):
        hint("01.c1")
        said = capfd.readouterr().out
        assert said.startswith("These are all 3 hints:") and all(sentence in said for sentence in hints)


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("01.c11", "Did you mean 01.c1"),
        ("1.c1", "Did you mean"),
        ("nonsense", "The questions are 00.c1, 01.c1"),
        ("01.Suite", "There is no question"),
        ("ex42.q1", "There is no question 'ex42.q1'"),
        ("../01.c1", "There is no question"),
        (7, "There is no question 7"),
    ],
)
def test_an_unknown_id_is_said_not_raised(id, said, capfd):
    assert check(id, 1) is None and hint(id) is None
    assert capfd.readouterr().out.count(said) == 2
    with pytest.raises(CourseError):
        find_suite(id)


def test_import_is_cheap():
    # what check() loads beyond Python's own library is only ours; timing itself is in bench/
    heavy = ("ray", "IPython", "yaml", "matplotlib")
    code = f"import sys, helpers.grading.check; print([name for name in {heavy} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(state.course_root())}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "[]\n"

"""Every exercise: its release is in step and gives nothing away, asks what its suite judges, and begins at 0 points."""

from __future__ import annotations

import ast
import copy
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from helpers.grading import evidence
from helpers.grading.batch import make_release
from helpers.grading.check import CheckFailed, Report, Suite, all_suites
from helpers.grading.skipped import SkippedLab
from helpers.lab import Lab
from helpers.state import course_root
from tests.contract import rules

ROOT = course_root()
EXERCISES = sorted(path.stem for path in ROOT.glob("authoring/ex[0-9][0-9].py"))
CHECK = re.compile(r'check\("(ex\d\d)\.(\w+)", (\w+)\)')
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
NEVER_RELEASED = ("BEGIN SOLUTION", "END SOLUTION", "MARK SCHEME", "Mark scheme", "HIDDEN", "VARIATIONS", "hidden")
KEPT = ("kernelspec", "language_info", "course")  # of the metadata of the notebook

# from the solution and the release of an exercise to what is wrong with them, one sentence for each
Rule = Callable[[NotebookNode, NotebookNode, str], list[str]]


def solution_of(exercise: str) -> NotebookNode:
    return nbformat.read(ROOT / "solutions" / exercise / f"{exercise}.ipynb", as_version=4)


def release_of(exercise: str) -> NotebookNode:
    return nbformat.read(ROOT / "exercises" / exercise / f"{exercise}.ipynb", as_version=4)


def graded(nb: NotebookNode, **flags: bool) -> Iterator[NotebookNode]:
    """The cells whose nbgrader flags are these."""
    for cell in nb.cells:
        has = cell.metadata.get("nbgrader", {})
        if has and all(has.get(flag, False) == value for flag, value in flags.items()):
            yield cell


def checks_in(nb: NotebookNode) -> Iterator[NotebookNode]:
    return graded(nb, grade=True, solution=False)


def suites_of(exercise: str) -> dict[str, Suite]:
    suites = {id.partition("."): suite for id, suite in all_suites().items()}
    return {name: suite for (prefix, _, name), suite in suites.items() if prefix == exercise}


def without_solution(source: str) -> list[str]:
    """The lines of a cell that are released."""
    return re.sub(rf"^ *{BEGIN}$.*?^ *{END}$", "", source, flags=re.S | re.M).splitlines()


# ---- the rules


def each_check_is_one_line(solution: NotebookNode, release: NotebookNode, exercise: str) -> list[str]:
    wrong, suites = [], suites_of(exercise)
    for cell in checks_in(solution):
        match = CHECK.fullmatch(cell.source)
        if not match or match[1] != exercise or match[2] not in suites:
            wrong.append(f"a test is not one check of a question of {exercise}: {cell.source}")
        elif cell.metadata.nbgrader.points != suites[match[2]].points:
            wrong.append(f"{match[2]} is worth {suites[match[2]].points:g}, its test says otherwise")
        elif not cell.metadata.nbgrader.locked:
            wrong.append(f"the test of {match[2]} can be edited")
    return wrong


def every_question_is_asked_once(solution: NotebookNode, release: NotebookNode, exercise: str) -> list[str]:
    asked = [match[2] for cell in checks_in(solution) if (match := CHECK.fullmatch(cell.source))]
    known = list(suites_of(exercise))
    return [] if asked == known else [f"asked are {asked}, the suite has {known}"]


def every_question_is_text_answer_test(solution: NotebookNode, release: NotebookNode, exercise: str) -> list[str]:
    """Before each test stands its answer, which gives the tested name a value, and before that the question.

    In place of an answer a live question has the cell that starts the answer to an earlier one.
    """
    wrong, named, suites = [], set(), suites_of(exercise)
    for place, cell in enumerate(release.cells):
        match = CHECK.fullmatch(cell.source)
        if not match:
            continue
        text, answer = release.cells[place - 2 : place]
        flags = answer.metadata.get("nbgrader", {})
        named |= assigned(answer.source) if flags.get("solution") else set()
        if match[2] in suites and suites[match[2]].live:
            started = f'lab.try_out("{exercise}.{match[2]}", {match[3]})'
            if not flags.get("locked") or started not in answer.source or match[3] not in named:
                wrong.append(f"the cell before {cell.source} is not a locked one with {started}")
        elif not flags.get("solution") or match[3] not in assigned(answer.source):
            wrong.append(f"the cell before {cell.source} does not give {match[3]} a value")
        is_locked = text.metadata.get("nbgrader", {}).get("locked")
        if text.cell_type != "markdown" or not is_locked or f"`{match[3]}" not in text.source:
            wrong.append(f"no locked text asks for `{match[3]}`")
        if f"({cell.metadata.nbgrader.points:g} points)" not in text.source:
            wrong.append(f"the text of {match[2]} does not say what it is worth")
    return wrong


def assigned(source: str) -> set[str]:
    """The names that a cell defines, whatever is answered."""
    names = set()
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.FunctionDef(name):
                names.add(name)
    return names


def answers_are_marked(solution: NotebookNode, release: NotebookNode, exercise: str) -> list[str]:
    """Each answer in code is a region of its cell, so that the rest of the cell is released."""
    cells = graded(solution, grade=False, solution=True)
    return [f"no solution is marked in: {cell.source}" for cell in cells if cell.source.count(BEGIN) != 1]


def rest_is_locked(solution: NotebookNode, release: NotebookNode, exercise: str) -> list[str]:
    loose = [cell.source for cell in solution.cells if not cell.metadata.get("nbgrader")]
    return [f"this cell is neither locked nor an answer: {source}" for source in loose]


def release_is_clean(solution: NotebookNode, release: NotebookNode, exercise: str) -> list[str]:
    wrong = [f"the notebook says {key}" for key in release.metadata if key not in KEPT]
    for cell in release.cells:
        if cell.get("outputs") or cell.get("execution_count"):
            wrong.append(f"a cell was run: {cell.source}")
    return wrong


def nothing_is_given_away(solution: NotebookNode, release: NotebookNode, exercise: str) -> list[str]:
    text = nbformat.writes(release)
    wrong = [f"the release says {word!r}" for word in NEVER_RELEASED if word in text]
    code = "\n".join(cell.source for cell in release.cells if cell.cell_type == "code")
    wrong += [
        f"the release names {name} of hidden.py" for name in hidden_names(exercise) if re.search(rf"\b{name}\b", code)
    ]
    shown = {line.strip() for cell in release.cells for line in cell.source.splitlines()}
    return wrong + [f"the release shows: {line}" for line in sorted(secret_lines(solution) & shown)]


def hidden_names(exercise: str) -> set[str]:
    path = ROOT / "solutions" / exercise / "hidden.py"
    tree = ast.parse(path.read_text() if path.is_file() else "")
    return {statement.name for statement in tree.body if isinstance(statement, ast.FunctionDef)}


def secret_lines(solution: NotebookNode) -> set[str]:
    """The lines of a solution that are for those who grade."""
    secret = set()
    for cell in graded(solution, solution=True):
        released = without_solution(cell.source) if cell.cell_type == "code" else []
        secret |= {line.strip() for line in cell.source.splitlines()} - {line.strip() for line in released}
    return {line for line in secret if re.search(r"\w", line)}


RULES: list[Rule] = [
    each_check_is_one_line,
    every_question_is_asked_once,
    every_question_is_text_answer_test,
    answers_are_marked,
    rest_is_locked,
    release_is_clean,
    nothing_is_given_away,
    lambda solution, release, exercise: rules.cells_are_sound(solution, Path(f"{exercise}.ipynb")),
    lambda solution, release, exercise: rules.no_bare_node(solution, Path(f"{exercise}.ipynb")),
    lambda solution, release, exercise: rules.images_have_alt_text(solution, Path(f"{exercise}.ipynb")),
    lambda solution, release, exercise: rules.waits_with_a_reason(solution, Path(f"{exercise}.ipynb")),
]


@pytest.mark.parametrize("exercise", EXERCISES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_exercise(exercise, rule):
    wrong = rule(solution_of(exercise), release_of(exercise), exercise)
    assert not wrong, "\n".join(wrong)


# ---- each of these rules can fail


def at(nb: NotebookNode, grade_id: str) -> NotebookNode:
    return next(cell for cell in graded(nb) if cell.metadata.nbgrader.grade_id == grade_id)


def spoil(rule: Rule) -> Callable[[Callable], tuple]:
    return lambda change: (rule, change)


@spoil(each_check_is_one_line)
def two_lines(solution, release):
    at(solution, "test-q1").source += "\nprint(1)"


@spoil(each_check_is_one_line)
def other_points(solution, release):
    at(solution, "test-q1").metadata.nbgrader.points = 100


@spoil(each_check_is_one_line)
def no_such_question(solution, release):
    at(solution, "test-q1").source = 'check("ex01.q77", shape)'


@spoil(each_check_is_one_line)
def open_test(solution, release):
    at(solution, "test-q1").metadata.nbgrader.locked = False


@spoil(every_question_is_asked_once)
def left_out(solution, release):
    solution.cells.remove(at(solution, "test-q2"))


@spoil(every_question_is_asked_once)
def asked_twice(solution, release):
    solution.cells.append(at(solution, "test-q2"))


@spoil(every_question_is_text_answer_test)
def name_without_value(solution, release):
    at(release, "q1").source = "# YOUR CODE HERE"


@spoil(every_question_is_text_answer_test)
def nothing_is_started(solution, release):
    at(release, "run-q1").source = at(release, "run-q1").source.replace("lab.try_out", "print")


@spoil(every_question_is_text_answer_test)
def started_in_a_cell_that_can_be_edited(solution, release):
    at(release, "run-q1").metadata.nbgrader.locked = False


@spoil(every_question_is_text_answer_test)
def name_not_asked_for(solution, release):
    at(release, "ask-q1").source = "Give a shape (7 points)."


@spoil(every_question_is_text_answer_test)
def worth_not_said(solution, release):
    at(release, "ask-q1").source = "Assign to `shape`."


@spoil(answers_are_marked)
def not_marked(solution, release):
    at(solution, "q2").source = "places = {}"


@spoil(rest_is_locked)
def loose_cell(solution, release):
    solution.cells.append(nbformat.v4.new_code_cell("1 + 1"))


@spoil(release_is_clean)
def built_from(solution, release):
    release.metadata.authoring = {"built_from": "x"}


@spoil(release_is_clean)
def was_run(solution, release):
    at(release, "test-q1").outputs = [nbformat.v4.new_output("stream", text="7")]


@spoil(nothing_is_given_away)
def whole_solution(solution, release):
    release.cells = solution.cells


@spoil(nothing_is_given_away)
def one_line_of_an_answer(solution, release):
    at(release, "q3").source += '\n    "table": "rebuilt",'


@spoil(nothing_is_given_away)
def a_variation(solution, release):
    at(release, "q4").source += "\n    tenths(max_parallel)"


@spoil(nothing_is_given_away)
def the_mark_scheme(solution, release):
    release.cells[-1].source += "\nMARK SCHEME"


@spoil(nothing_is_given_away)
def one_line_of_the_open_answer(solution, release):
    release.cells[-1].source += "\n" + at(solution, "q5").source.splitlines()[0]


SPOILT = [value for value in list(globals().values()) if isinstance(value, tuple) and value and value[0] in RULES]


@pytest.mark.parametrize(("rule", "change"), SPOILT, ids=lambda value: getattr(value, "__name__", ""))
def test_a_rule_that_is_broken_says_so(rule, change):
    solution, release = copy.deepcopy(solution_of("ex01")), copy.deepcopy(release_of("ex01"))
    assert rule(solution, release, "ex01") == []
    change(solution, release)
    assert rule(solution, release, "ex01") != []


def test_each_rule_of_this_file_is_broken_once():
    assert {rule for rule, _ in SPOILT} == {rule for rule in RULES if rule.__name__ != "<lambda>"}


# ---- the release


@pytest.mark.parametrize("exercise", EXERCISES)
def test_release_is_in_step(exercise, tmp_path):
    released, committed = tmp_path / "released", ROOT / "exercises" / exercise
    released.mkdir()
    make_release(exercise, released)
    assert names_in(released) == names_in(committed) == [f"{exercise}.ipynb"]
    same = (released / f"{exercise}.ipynb").read_bytes() == (committed / f"{exercise}.ipynb").read_bytes()
    assert same, f"exercises/{exercise} is not what solutions/{exercise} says: run `course release {exercise}`."


def names_in(folder: Path) -> list[str]:
    """What is released, without what JupyterLab, `course reset` and a learner's own runs have left there."""
    names = (path.name for path in folder.iterdir())
    left = (".ipynb_checkpoints", evidence.NAME)
    return sorted(name for name in names if name not in left and ".kept-" not in name)


# ---- run


def run_all(nb: NotebookNode) -> dict[str, Report]:
    """Run all cells in this process; returns what each test cell showed. No cluster is started: see tests/live."""
    names: dict = {"__name__": "__main__"}
    reports = {}
    for cell in nb.cells:
        if CHECK.fullmatch(cell.source):
            reports[cell.metadata.nbgrader.grade_id] = eval(cell.source, names)
        elif cell.cell_type == "code":
            exec(compile(cell.source, "<cell>", "exec"), names)
    return reports


@pytest.fixture
def learner(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.setattr(Lab, "start", lambda id: SkippedLab("lab"))
    monkeypatch.setattr("builtins.display", print, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_untouched_release_has_no_points_and_no_errors(exercise, learner):
    reports = run_all(release_of(exercise))
    assert len(reports) == len(suites_of(exercise))
    for report in reports.values():
        assert report == 0 and {row.state for row in report.rows} == {"not answered yet"}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_solution_is_full(exercise, learner):
    reports = run_all(solution_of(exercise))
    assert len(reports) == len(suites_of(exercise))
    for report in reports.values():
        is_live = suites_of(exercise)[report.id.partition(".")[2]].live
        assert report.is_full or (is_live and {row.state for row in report.rows} == {"not run yet"}), str(report)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_validate_passes_no_test_of_the_release(exercise, learner, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    nb = release_of(exercise)
    for cell in list(checks_in(nb)):
        with pytest.raises(CheckFailed, match="not answered yet"):
            run_all(
                NotebookNode(cells=[other for other in nb.cells if other is cell or other not in list(checks_in(nb))])
            )


@pytest.mark.parametrize("exercise", EXERCISES)
def test_kernels_see_what_this_process_sees(exercise, learner, tmp_path):
    """`nbgrader validate --invert` on the release, and the solution as autograde runs it, each in a kernel."""
    from nbclient import NotebookClient
    from nbgrader import utils
    from nbgrader.validator import Validator

    copied = tmp_path / f"{exercise}.ipynb"
    nbformat.write(release_of(exercise), copied)
    results = Validator(invert=True).validate(str(copied))
    assert "passed" not in results and "error" not in results, results

    solution = solution_of(exercise)
    client = NotebookClient(solution, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=os.environ | {"NBGRADER_EXECUTION": "autograde"})
    for cell in checks_in(solution):
        score, full = utils.determine_grade(cell)
        was_run = not suites_of(exercise)[CHECK.fullmatch(cell.source)[2]].live
        assert full == cell.metadata.nbgrader.points and score == (full if was_run else 0)

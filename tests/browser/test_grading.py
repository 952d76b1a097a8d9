"""An exercise in a real browser: a learner solves it and hands it in, an instructor marks it and returns feedback.

What the browser shows at the main points is in build/screenshots/.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import FrameLocator, Locator, expect

from helpers.grading import sandbox
from helpers.wait import wait_until
from tests.browser.session import CHROMIUM, ROOT, SHOTS, Session

EXERCISE = "ex01"
VALIDATED_WITHIN_S = 90
STARTED_WITHIN_S = 400
GRADED_WITHIN_S = 120
SAVED_WITHIN_S = 20
MARK, REMARK = 3, "Which process would you look at first?"
# all right but for one case: 3 // 0.1 is 29
ALMOST = """def max_parallel(hosts, demand):
    asked = {name: amount for name, amount in demand.items() if amount}
    return sum(min(offers.get(name, 0) // amount for name, amount in asked.items()) for offers in hosts.values())"""
ESSAY = "Every Ray node has a raylet of its own, and that one places tasks. I would look at what runs on the head."

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make test` installs it, as packages.txt says"),
]
needs_sandbox = pytest.mark.skipif(sandbox.missing() != "", reason=f"no sandbox here: {sandbox.missing()}")


def solution(name: str) -> str:
    """The instructor's answer to a question, as a learner would write it."""
    cells = nbformat.read(ROOT / "solutions" / EXERCISE / f"{EXERCISE}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if c.metadata.get("nbgrader", {}).get("grade_id") == name)
    return "\n".join(line for line in source.splitlines() if " SOLUTION" not in line)


def write(learner: Session, cell: Locator, text: str) -> None:
    """Replace what stands in a cell, by keyboard."""
    editor = cell.locator(".cm-content")
    editor.click()
    expect(editor).to_be_focused()
    learner.page.keyboard.press("Control+A")
    learner.page.keyboard.insert_text(text)


@pytest.fixture(scope="module")
def exercise(learner: Session) -> Session:
    learner.visit(f"exercises/{EXERCISE}/{EXERCISE}.ipynb")
    learner.run("from helpers import check")
    return learner


def test_a_wrong_answer_gets_its_ticks_and_a_hint(exercise: Session) -> None:
    write(exercise, exercise.cell("def max_parallel"), ALMOST)
    exercise.run("def max_parallel")
    told = exercise.run('check("ex01.q4"').locator(".jp-OutputArea")
    rows = told.get_by_role("listitem")
    expect(rows.filter(has_text="✘")).to_have_count(1)
    expect(rows.filter(has_text="✘")).to_contain_text("returned 29")
    assert rows.filter(has_text="✔").count() == rows.count() - 1 > 3
    expect(told).to_contain_text('hint("ex01.q4")')
    exercise.shoot("ex01-wrong", told)
    exercise.page.keyboard.press("Escape")
    exercise.page.keyboard.press("b")
    exercise.page.keyboard.press("Enter")
    exercise.page.keyboard.insert_text('hint("ex01.q4")')
    hinted = exercise.run('hint("ex01.q4")').last
    exercise.shoot("ex01-hint", hinted)


def test_mended_it_is_full(exercise: Session) -> None:
    write(exercise, exercise.cell("def max_parallel"), solution("q4"))
    exercise.run("def max_parallel")
    told = exercise.run('check("ex01.q4"').locator(".jp-OutputArea")
    expect(told.get_by_role("listitem").filter(has_text="✘")).to_have_count(0)
    expect(told).to_contain_text("7/7 points")
    exercise.shoot("ex01-mended", told)


def test_validate_says_what_is_not_full_and_then_that_all_is_well(exercise: Session) -> None:
    said = press_validate(exercise)
    expect(said).to_contain_text("You did not provide a response.", timeout=VALIDATED_WITHIN_S * 1000)
    expect(said.get_by_text("The following cell failed:")).to_have_count(5)  # all but the open answer and q4
    expect(said).to_contain_text("ex01.q1: not answered yet (0/7 points)")
    close(exercise, "ex01-validate-failed")
    for name, place in (("q1", "shape = {"), ("q2", "places = {"), ("q3", "fates = {")):
        write(exercise, exercise.cell(place), solution(name))
    started(exercise)
    essay = exercise.notebook.locator(".jp-MarkdownCell").filter(has_text="YOUR ANSWER HERE")
    essay.dblclick()
    write(exercise, essay, ESSAY)
    said = press_validate(exercise)
    expect(said).to_contain_text("Success! Your notebook passes all the tests.", timeout=VALIDATED_WITHIN_S * 1000)
    close(exercise, "ex01-validate-passed")


def started(learner: Session) -> None:
    """Start the shape of question 1, and see that what it did counts."""
    learner.run("shape = {")
    table = learner.run("lab.try_out(", within_s=STARTED_WITHIN_S).locator(".jp-OutputArea table")
    expect(table.get_by_role("row").filter(has_text="decode")).to_contain_text("4 on disk-1")
    learner.shoot("ex01-started", table)
    told = learner.run('check("ex01.q1_run"').locator(".jp-OutputArea")
    expect(told).to_contain_text("ex01.q1_run: 4/4 points")
    expect(told.get_by_role("listitem").filter(has_text="self-reported")).to_have_count(4)


def press_validate(learner: Session) -> Locator:
    """Save and press the button; returns the dialog that says what came of it."""
    learner.page.keyboard.press("Control+s")
    expect(learner.page.locator("#jp-main-dock-panel .lm-mod-current.jp-mod-dirty")).to_have_count(0)
    learner.page.locator(".jp-NotebookPanel-toolbar").get_by_text("Validate", exact=True).click()
    return learner.page.locator(".jp-Dialog-content")


def close(learner: Session, picture: str) -> None:
    learner.page.screenshot(path=SHOTS / f"{picture}.png")
    learner.page.locator(".jp-Dialog-content").get_by_role("button", name="Ok").click()


def test_the_console_has_no_error(exercise: Session) -> None:
    assert not exercise.errors


# ---- the instructor --------------------------------------------------------------------------------------------------

GRADE = """
from helpers.grading import batch
from helpers.state import course_root
print(batch.grade("ex01", course_root() / "grading" / "submitted"))
"""


@pytest.fixture(scope="module")
def course(learner: Session) -> Path:
    """The course, with two graded submissions: ann's is what the tests above wrote, ben's is wrong."""
    course = learner.home / "course"
    released = nbformat.read(ROOT / "exercises" / EXERCISE / f"{EXERCISE}.ipynb", as_version=4)
    for cell in released.cells:
        if cell.metadata.nbgrader.grade_id == "q4":
            cell.source = "def max_parallel(hosts, demand):\n    return 4"
        if cell.metadata.nbgrader.grade_id == "q5":
            cell.source = "Add CPUs."
    for student, notebook in (("ann", None), ("ben", released)):
        folder = course / "grading" / "submitted" / student / EXERCISE
        folder.mkdir(parents=True)
        name = f"{EXERCISE}.ipynb"
        if notebook:
            nbformat.write(notebook, folder / name)
        else:
            for file in (name, "evidence.jsonl"):
                shutil.copy(course / "exercises" / EXERCISE / file, folder)
    command = [sys.executable, "-c", GRADE]
    table = subprocess.run(command, cwd=course, capture_output=True, text=True, timeout=GRADED_WITHIN_S)
    assert table.returncode == 0, table.stderr
    print(table.stdout)
    return course


@pytest.fixture(scope="module")
def formgrader(learner: Session, course: Path) -> FrameLocator:
    learner.page.get_by_role("menuitem", name="Nbgrader", exact=True).click()
    learner.page.get_by_role("menuitem", name="Formgrader", exact=True).click()
    return learner.page.frame_locator("#formgrader-iframe iframe")


@needs_sandbox
def test_an_open_answer_is_marked_by_hand(learner: Session, course: Path, formgrader: FrameLocator) -> None:
    formgrader.get_by_role("link", name="Manual Grading").click()
    formgrader.locator("tbody").get_by_role("link", name=EXERCISE).click()
    expect(formgrader.locator(".breadcrumb .active")).to_have_text(EXERCISE)
    formgrader.locator("tbody").get_by_role("link", name=EXERCISE).click()
    anns = formgrader.get_by_role("row").filter(has_text="33 / 37")
    expect(anns.locator(".glyphicon-ok")).to_have_count(1)  # needs a manual grade, and no test failed
    anns.get_by_role("link").click()
    essay = formgrader.locator(".nbgrader_cell").filter(has_text=ESSAY)
    expect(essay).to_be_visible()
    learner.shoot("formgrader-answer", essay)
    essay.locator("input.score").fill(str(MARK))
    essay.locator("textarea.comment").fill(REMARK)
    essay.locator("input.extra-credit").focus()  # what is left is saved
    wait_until(lambda: marked(course) == [("ann", MARK, REMARK)], SAVED_WITHIN_S, what="formgrader to save the mark")
    learner.shoot("formgrader-marked", essay)


def marked(course: Path) -> list[tuple[str, float, str]]:
    """The marks made by hand, as the gradebook has them: student, points, comment."""
    from nbgrader.api import Gradebook

    found = []
    with Gradebook(f"sqlite:///{course / 'grading' / 'gradebook.db'}") as book:
        for submission in book.assignment_submissions(EXERCISE):
            names = ("q5", EXERCISE, EXERCISE, submission.student.id)
            grade, comment = book.find_grade(*names), book.find_comment(*names)
            if grade.manual_score is not None:
                assert not grade.needs_manual_grade
                found.append((submission.student.id, grade.manual_score, comment.comment))
    return found


@needs_sandbox
def test_feedback_shows_the_mark_and_nothing_that_is_hidden(
    learner: Session, course: Path, formgrader: FrameLocator
) -> None:
    formgrader.get_by_role("link", name="Manual Grading").click()
    formgrader.get_by_role("link", name="Manage Assignments").click()
    formgrader.locator("tbody .generate-feedback a").click()
    made = formgrader.get_by_text(f"Successfully generated feedback of '{EXERCISE}'")
    expect(made).to_be_visible(timeout=GRADED_WITHIN_S * 1000)
    learner.shoot("formgrader-feedback-made", made)
    ann, ben = (shown(learner, student) for student in ("ann", "ben"))
    assert REMARK in ann and f"Score: {33 + MARK}.0 / 37.0" in ann and "pass (self-reported)" in ann
    assert "Traceback" not in ann, "her notebook ran as it did at home, with `helpers` in the sandbox"
    assert "ex01.q1: not answered yet" in ben and "Score: 0.0 / 37.0" in ben
    assert set(lines_of(solution("q2"))) <= set(lines_of(ann)), "what ann wrote is there to be found"
    for line in secrets():
        assert line not in ben and (line in ann) == (line in written_by_ann()), line


def shown(learner: Session, student: str) -> str:
    """The text of a student's feedback, as a browser shows it."""
    page = learner.home / "course" / "grading" / "feedback" / student / EXERCISE / f"{EXERCISE}.html"
    learner.page.goto(page.as_uri())
    learner.page.screenshot(path=SHOTS / f"feedback-{student}.png", full_page=True)
    return learner.page.locator("body").inner_text()


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def written_by_ann() -> str:
    return "\n".join(solution(name) for name in ("q1", "q2", "q3", "q4"))


def secrets() -> set[str]:
    """Each line of solutions, mark scheme and hidden variations that the released exercise has not."""
    folder, name = ROOT / "solutions" / EXERCISE, f"{EXERCISE}.ipynb"
    cells = nbformat.read(folder / name, as_version=4).cells
    released = nbformat.read(ROOT / "exercises" / EXERCISE / name, as_version=4).cells
    known = {line for cell in released for line in lines_of(cell.source)}
    lines = {line for cell in cells for line in lines_of(cell.source)} | set(
        lines_of((folder / "hidden.py").read_text())
    )
    # a bracket or a single word would be found anywhere
    return {line for line in lines - known if len(line) > 12}

"""A learner's way through lesson 03 in a real browser, on the embedded cluster that the lesson brings up.

What the browser shows of each cell is in build/screenshots/. It runs the lesson's first two sections, with all kinds of
output that it has; `COURSE_SOAK=1` before the command runs the rest too, which tests/live/test_lessons.py always does.
"""

from __future__ import annotations

import os
import re
import sys

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.session import CHROMIUM, ROOT, Session

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make test` installs it, as packages.txt says"),
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux"),
]
START_S = 180
END, THIRD_SECTION = "lab.clean_up()", "print(lines.replace("
ALL = bool(os.environ.get("COURSE_SOAK"))


@pytest.fixture(scope="module")
def lesson(learner: Session) -> Session:
    """Lesson 03 after a prediction, and then its cells."""
    learner.open("03_raycluster")
    learner.run("Lab.start", START_S)
    asked = learner.run('"03.p1"')
    asked.get_by_label("when the head is ready", exact=True).click()
    asked.get_by_role("button", name="Commit").click()
    expect(asked.get_by_role("status")).to_contain_text("You predicted when the head is ready")
    if ALL:
        learner.run_all(END)
    else:
        learner.run_above(THIRD_SECTION, last="with-ingress.yaml")
        learner.run(END)
    return learner


def test_the_cells_run(lesson: Session) -> None:
    expect(lesson.output(END)).to_contain_text("✔ deleted the namespace lesson-03")
    notebook = nbformat.read(ROOT / "lessons" / "03_raycluster.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    if not ALL:
        third = next(number for number, source in enumerate(sources) if THIRD_SECTION in source)
        sources = [*sources[:third], sources[-1]]
    for number, source in enumerate(sources):
        output = lesson.output(max(source.splitlines(), key=len).strip())
        expect(output.get_by_text(re.compile("Traceback|Error:"))).to_have_count(0)
        expect(output.locator("[data-mime-type='application/vnd.jupyter.stderr']")).to_have_count(0)
        lesson.shoot(f"03-{number:02}", output)


def test_the_reveal_names_the_prediction(lesson: Session) -> None:
    revealed = lesson.output("start.stepper()").get_by_role("status").last
    expect(revealed).to_have_text("✘ you predicted: when the head is ready. It was: with the head Pod")


def test_the_steps_by_keyboard_and_by_mouse(lesson: Session) -> None:
    walk = lesson.output("start.stepper()")
    said = walk.get_by_role("status").first
    expect(said).to_contain_text("Step 1 of ")
    walk.get_by_role("button", name="Next").click()
    expect(said).to_contain_text("Step 2 of ")
    walk.get_by_role("slider").first.focus()
    lesson.page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("Step 3 of ")
    expect(walk.get_by_role("row")).to_have_count(1 + 3)  # with the heads of the columns
    lesson.shoot("03-steps", said)


def test_the_console_has_no_error(lesson: Session) -> None:
    assert not lesson.errors

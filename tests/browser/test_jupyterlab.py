"""A learner's way through lesson 01 in a real browser: JupyterLab as `course lab` starts it, and Chromium.

What the browser shows at the main points is in build/screenshots/.
"""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from playwright.sync_api import Page, expect

from tests.browser.session import CHROMIUM, ROOT, Session

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make test` installs it, as packages.txt says"),
]


def lesson_01_cells() -> list[nbformat.NotebookNode]:
    return nbformat.read(ROOT / "lessons" / "01_anatomy.ipynb", as_version=4).cells


@pytest.fixture(scope="module")
def lesson_01(learner: Session) -> Session:
    """Lesson 01 after a prediction, made with the mouse, and then all cells."""
    learner.open("01_anatomy")
    learner.run("Lab.start")
    asked = learner.run('"01.p1"')
    learner.shoot("01-predict", asked.get_by_role("button", name="Commit"))
    asked.get_by_label("2", exact=True).click()
    asked.get_by_role("button", name="Commit").click()
    expect(asked.get_by_role("status")).to_contain_text("You predicted 2")
    learner.shoot("01-committed", asked.get_by_role("status"))

    learner.run_all("lab.clean_up()")
    return learner


# ---- what the learner does and sees ----------------------------------------------------------------------------------


def test_a_wrong_check_shows_what_is_wrong_and_where_the_hint_is(learner: Session) -> None:
    learner.open("00_start_here")
    learner.run("Lab.start")
    told = learner.run('check("00.c1"').locator(".jp-OutputArea")
    expect(told).to_contain_text("00.c1: 0/1 points")
    expect(told.get_by_role("listitem")).to_contain_text(["✘ not yet"])
    expect(told).to_contain_text('hint("00.c1")')
    hinted = learner.run('hint("00.c1")').locator(".jp-OutputArea")
    expect(hinted).to_contain_text("Hint 1 of 3")
    expect(learner.page.locator(".Toastify__toast")).to_have_count(0)  # nothing pops up over the lesson
    learner.shoot("00-check", hinted)


def test_all_cells_of_lesson_01_run(lesson_01: Session) -> None:
    ended = lesson_01.output("lab.clean_up()")
    expect(ended).to_contain_text(re.compile(r"✔ ended \d+ processes on 5 hosts"))
    lesson_01.shoot("01-end", ended)


def test_the_reveal_names_the_prediction(lesson_01: Session) -> None:
    revealed = lesson_01.output('predict("01.p1").reveal')
    expect(revealed.get_by_role("status")).to_have_text("✘ you predicted: 2. It was: 4")
    lesson_01.shoot("01-reveal", revealed.get_by_role("status"))


def test_a_wait_leaves_one_tidy_line(lesson_01: Session) -> None:
    waited = lesson_01.output("the raylets to give up waiting for the GCS").locator(".jp-RenderedText").first
    expect(waited).to_have_text(re.compile(r"^head \$ kill .*\n✔ the raylets to give up [\w ]+: after \d+ s\s*$"))
    lesson_01.shoot("01-wait", waited)


def test_every_plot_is_seen_and_told(lesson_01: Session) -> None:
    drawn = [cell.source.partition("lab.bars(")[2][:40] for cell in lesson_01_cells() if "lab.bars(" in cell.source]
    assert drawn
    for number, call in enumerate(drawn):
        picture = lesson_01.output(f"lab.bars({call}").get_by_role("img")
        expect(picture).to_be_visible()
        assert picture.get_attribute("alt").startswith("Bar chart. ")
        assert picture.evaluate("image => image.naturalWidth") > 0
        lesson_01.shoot(f"01-plot-{number}", picture)


def test_the_quiz_by_keyboard_alone(lesson_01: Session) -> None:
    keyboard, active = lesson_01.page.keyboard, lesson_01.notebook.locator(".jp-Cell.jp-mod-active")
    lesson_01.notebook.focus()
    expect(active).to_have_count(1)
    for _ in lesson_01_cells():
        if 'quiz("01.q1"' in active.inner_text():
            break
        keyboard.press("ArrowUp")
        expect(active).to_be_focused()  # JupyterLab may have to draw it first
    expect(active.get_by_role("radio").first).to_be_visible()
    press_tab_until(lesson_01.page, "a")
    keyboard.press("Space")
    press_tab_until(lesson_01.page, "Answer")
    keyboard.press("Space")
    said = active.get_by_role("status").first
    expect(said).to_contain_text("✘ a: not yet")
    press_tab_until(lesson_01.page, "b", backwards=True)
    keyboard.press("Space")
    press_tab_until(lesson_01.page, "Answer")
    keyboard.press("Space")
    expect(said).to_contain_text("✔ b is right")
    lesson_01.shoot("01-quiz", said)
    progress = json.loads((lesson_01.home / ".local/state/ray-course/progress.json").read_text())
    kept = progress["quizzes"]["01.q1"]
    assert (kept["answer"], kept["right"], kept["tries"]) == ("a", True, 2)


def press_tab_until(page: Page, label: str, backwards: bool = False) -> None:
    """Move the focus by Tab to the next control with this label."""
    for _ in range(15):
        page.keyboard.press("Shift+Tab" if backwards else "Tab")
        here = page.evaluate("(document.activeElement.closest('label') || document.activeElement).textContent")
        if here.strip() == label:
            return
    raise AssertionError(f"Tab does not come to {label!r}")


def test_the_console_has_no_error(lesson_01: Session) -> None:
    assert not lesson_01.errors

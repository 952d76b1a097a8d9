"""The planner's sliders in a real browser, in a notebook that holds nothing else; no cluster is needed.

What the browser shows is in build/screenshots/.
"""

from __future__ import annotations

import re

import nbformat
import pytest
from playwright.sync_api import Locator, expect

from helpers.notebook import KERNEL
from tests.browser.session import CHROMIUM, Session

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make test` installs it, as packages.txt says"),
]
CELLS = (
    'from helpers import Lab\nlab = Lab.start("00")',
    'lab.planner("manifests/03-raycluster/demo.yaml", ["{CPU:1}", "{GPU:1}"])',
)
SHOWN_WITHIN_MS = 20_000  # the first plan imports Ray


@pytest.fixture(scope="module")
def planner(learner: Session) -> Locator:
    """The cell with the sliders, run."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=KERNEL)
    nbformat.write(notebook, learner.home / "course" / "planner.ipynb")
    learner.visit("planner.ipynb")
    learner.run("Lab.start")
    shown = learner.run("lab.planner").locator(".jp-OutputArea")
    expect(shown.get_by_role("img")).to_be_visible(timeout=SHOWN_WITHIN_MS)
    return shown


def test_the_picture_is_seen_and_told(learner: Session, planner: Locator) -> None:
    picture = planner.get_by_role("img")
    expect(picture).to_have_attribute("alt", re.compile("gpu-group new 1, new: takes 1×"))
    assert picture.evaluate("image => image.naturalWidth") > 0
    expect(planner.get_by_role("status")).to_contain_text("launch: 1 Pod of cpu-group, 1 Pod of gpu-group")
    learner.shoot("planner-begin", picture)


def test_a_slider_moved_by_keyboard(learner: Session, planner: Locator) -> None:
    keyboard, picture, said = learner.page.keyboard, planner.get_by_role("img"), planner.get_by_role("status")
    cpus, gpus = planner.get_by_role("slider").all()
    gpus.focus()
    for _ in range(5):
        keyboard.press("ArrowRight")
    expect(said).to_contain_text("✘ 2 boxes have no place")
    expect(said).to_contain_text("unmet: 2×{GPU: 1}: max-replicas: a group that fits is at its maxReplicas")
    expect(picture).to_have_attribute("alt", re.compile("Outside: 2×.*max-replicas"))
    expect(gpus).to_be_focused()
    learner.shoot("planner-unmet", said)

    cpus.focus()
    keyboard.press("ArrowLeft")
    expect(said).to_contain_text("0 in Ray nodes that are there, 4 in new ones (5 Pods)")
    learner.shoot("planner-picture", picture)


def test_the_same_as_a_table(learner: Session, planner: Locator) -> None:
    planner.get_by_label("The same as a table").check()
    expect(planner.get_by_role("cell", name="4 × gpu-group")).to_be_visible()
    learner.shoot("planner-table", planner.get_by_role("table"))


def test_the_other_autoscaler_and_a_placement_group(learner: Session, planner: Locator) -> None:
    said = planner.get_by_role("status")
    planner.get_by_label("Autoscaler").select_option("v1")
    expect(said).to_contain_text("v1 keeps no account of which Ray node takes what.")
    planner.get_by_label("Autoscaler").select_option("v2")
    planner.get_by_label("Asked for as").select_option("one placement group, STRICT_PACK")
    expect(said).to_contain_text("pack-too-big-for-one-node")
    learner.shoot("planner-group", said)


def test_the_console_has_no_error(learner: Session, planner: Locator) -> None:
    assert not learner.errors

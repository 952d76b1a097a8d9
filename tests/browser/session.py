"""A browser page in JupyterLab as `course lab` starts it, and what a learner does in it."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from helpers.state import course_root
from helpers.wait import wait_until

ROOT = course_root()
SHOTS = ROOT / "build" / "screenshots"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# the last four keep it from looking for servers on the Internet
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
START_S, RUN_S, STOP_S = 120, 480, 30
NOTEBOOK = ".jp-NotebookPanel:not(.lm-mod-hidden)"


@dataclass
class Session:
    """A browser page that is logged in to a running JupyterLab.

    Attributes:
        home: the home directory of the learner.
        base: the address of the server.
        page: the page.
        errors: what went wrong in the page by its own account.
    """

    home: Path
    base: str
    page: Page
    errors: list[str] = field(default_factory=list)

    def open(self, lesson: str) -> None:
        """Open a lesson from the list of files, and wait until its kernel is there: what is run before is lost."""
        self.page.locator(".jp-DirListing-item", has_text=lesson).dblclick(timeout=START_S * 1000)
        self.wait_for(lesson)

    def visit(self, path: str) -> None:
        """Open a notebook by its address, as a link in a lesson does."""
        self.page.goto(f"{self.base}/lab/tree/{path}")
        self.wait_for(Path(path).stem)

    def wait_for(self, lesson: str) -> None:
        """Wait until a notebook is in front and its kernel is there."""
        tab = self.page.locator("#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current")
        expect(tab).to_contain_text(lesson, timeout=START_S * 1000)
        wait_until(lambda: self.is_connected(lesson), START_S, what=f"the kernel of {lesson}")
        idle = self.page.locator(f"{NOTEBOOK} .jp-Notebook-ExecutionIndicator[data-status=idle]")
        expect(idle).to_be_visible(timeout=START_S * 1000)

    def is_connected(self, lesson: str) -> bool:
        """Whether the page has a connection to the kernel of this lesson, by the server's account."""
        sessions = self.page.request.get(f"{self.base}/api/sessions").json()
        mine = [session["kernel"] for session in sessions if session["path"].endswith(f"{lesson}.ipynb")]
        return any(kernel["connections"] > 0 and kernel["execution_state"] == "idle" for kernel in mine)

    @property
    def notebook(self) -> Locator:
        return self.page.locator(f"{NOTEBOOK} .jp-Notebook")

    def cell(self, source: str) -> Locator:
        """The code cell with this text, brought into view: JupyterLab draws only what is near the window."""
        found = self.notebook.locator(".jp-CodeCell").filter(
            has=self.page.locator(".jp-InputArea-editor", has_text=source)
        )
        scroller = self.page.locator(f"{NOTEBOOK} .jp-WindowedPanel-outer")
        scroller.evaluate("outer => outer.scrollTo(0, 0)")
        for _ in range(200):
            if found.count():
                found.first.scroll_into_view_if_needed()
                return found.first
            scroller.evaluate("outer => outer.scrollBy(0, 300)")
            self.page.wait_for_timeout(50)
        raise AssertionError(f"no cell with {source!r}")

    def run(self, source: str, within_s: float = 60) -> Locator:
        """Run one cell as a learner does; returns it when its number is there."""
        cell = self.cell(source)
        cell.locator(".cm-content").click()
        expect(cell.locator(".cm-content")).to_be_focused()
        self.page.keyboard.press("Control+Enter")
        expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"), timeout=within_s * 1000)
        return cell

    def run_all(self, last: str) -> None:
        """Run all cells by the menu, and wait for the cell with the text `last`."""
        self._run_by_menu("Run All Cells", last)

    def run_above(self, first_not: str, last: str) -> None:
        """Run all cells above the one with the text `first_not` by the menu, and wait for the one with `last`."""
        self.cell(first_not).locator(".cm-content").click()
        self._run_by_menu("Run All Above Selected Cell", last)

    def _run_by_menu(self, what: str, last: str) -> None:
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name=what, exact=True).click()
        prompt = self.cell(last).locator(".jp-InputPrompt")
        expect(prompt).to_have_text("[*]:")
        # an error in any cell ends the waiting too: the cells after it lose their star
        expect(prompt).not_to_have_text("[*]:", timeout=RUN_S * 1000)

    def output(self, source: str) -> Locator:
        return self.cell(source).locator(".jp-OutputArea")

    def shoot(self, name: str, shown: Locator) -> None:
        shown.scroll_into_view_if_needed()
        self.page.screenshot(path=SHOTS / f"{name}.png")

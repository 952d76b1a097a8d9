"""What the browser tests share: a running JupyterLab of a new learner, and a browser page in it."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import ConsoleMessage, sync_playwright

from helpers.wait import wait_until
from tests.browser.session import CHROMIUM, FLAGS, ROOT, SHOTS, STOP_S, Session
from tests.isolation import new_home, no_build_begun, nothing_runs, orphans_adopted


@pytest.fixture(scope="session")
def shots() -> Path:
    """The empty folder for this run's screenshots."""
    shutil.rmtree(SHOTS, ignore_errors=True)
    SHOTS.mkdir(parents=True)
    return SHOTS


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Path, str]]:
    """The home directory of a new learner, and the address that `course lab` prints for them.

    The learner has a copy of the course, since JupyterLab saves what is open, with its outputs.
    """
    with (
        new_home("browser-home") as home,
        no_build_begun(home / ".cache"),
        orphans_adopted(),
        pytest.MonkeyPatch.context() as patch,
    ):
        course_copy = home / "course"
        shutil.copytree(
            ROOT, course_copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "evidence.jsonl")
        )
        shutil.rmtree(course_copy / "grading", ignore_errors=True)  # another class's
        patch.setenv("PYTHONPATH", str(course_copy))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "helpers.cli", "lab", "--no-browser", "--port", str(port)]
        course = subprocess.Popen(command, cwd=course_copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said = []
            for line in course.stdout:
                said.append(line)
                if address := re.search(r"http://\S+", line):
                    break
            else:
                pytest.fail("".join(said))
            yield home, address[0]
        finally:
            course.terminate()
            course.communicate(timeout=STOP_S)
            if sys.platform == "linux":  # a lesson may have brought a cluster up
                down = [sys.executable, "-m", "helpers.cli", "down"]
                subprocess.run(down, cwd=course_copy, check=True, timeout=STOP_S)
        wait_until(nothing_runs, STOP_S, what="JupyterLab, its kernels and their hosts to end")


@pytest.fixture(scope="module")
def learner(server: tuple[Path, str], shots: Path) -> Iterator[Session]:
    home, address = server
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        session = Session(home, address.partition("/lab/")[0], page)
        page.on("pageerror", lambda error: session.errors.append(str(error)))
        page.on("console", lambda said: session.errors.append(told(said)) if said.type == "error" else None)
        page.goto(address)  # with the token: from here on the browser is logged in
        yield session
        browser.close()


def told(said: ConsoleMessage) -> str:
    """What the console says, with the address that it is about."""
    return f"{said.text} ({said.location.get('url', '')})"

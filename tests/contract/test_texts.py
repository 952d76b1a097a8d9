"""Every file of the repository: nothing in it moves, and nothing tells of the machine that it was written on."""

from __future__ import annotations

import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from helpers.state import course_root
from tests.contract import rules

ROOT = course_root()
OF_TESTS = {"tests/contract/rules.py", "tests/contract/test_rules_bite.py", "tests/contract/test_texts.py"}

pytestmark = pytest.mark.skipif(
    not shutil.which("git") or not (ROOT / ".git").exists(), reason="git lists the files, and this is not a checkout"
)


def files() -> list[Path]:
    """Every file that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return [ROOT / name for name in sorted(set(listed)) if name and (ROOT / name).is_file()]


def texts() -> list[tuple[str, str]]:
    """The name and text of every text file, but for those that hold the made-up bad ones."""
    found = []
    for path in files():
        name, data = str(path.relative_to(ROOT)), path.read_bytes()
        if name not in OF_TESTS and b"\0" not in data:
            found.append((name, data.decode(errors="replace")))
    return found


def test_there_are_files():
    names = [name for name, _ in texts()]
    assert {"helpers/errors.py", "tests/contract/samples.py"} <= set(names)


def is_broken_on_purpose(name: str) -> bool:
    """Whether it is a manifest that a lesson applies as one finds it elsewhere, to show what comes of it."""
    return fnmatch(name, "manifests/*/broken-*.yaml")


def is_quoted(name: str) -> bool:
    """Whether it holds what programs print, links and all, such as those of KubeRay's init container."""
    return fnmatch(name, "tests/cases/*.yaml")


def test_nothing_refers_to_what_moves():
    sound = [(name, text) for name, text in texts() if not is_broken_on_purpose(name) and not is_quoted(name)]
    wrong = [f"{name}: {what}" for name, text in sound for what in rules.moving_references(text)]
    assert not wrong, "\n".join(wrong)


def test_what_is_broken_on_purpose_says_so():
    broken = {name: text for name, text in texts() if is_broken_on_purpose(name)}
    assert len(broken) == 3
    assert all(text.startswith("# Broken, and applied as it is") for text in broken.values())
    assert all(rules.moving_references(text) for text in broken.values())


def test_every_image_of_a_manifest_has_a_tag():
    manifests = [(name, text) for name, text in texts() if name.startswith("manifests/")]
    wrong = [f"{name}: {what}" for name, text in manifests for what in rules.untagged_images(text)]
    assert not wrong, "\n".join(wrong)


def test_no_file_tells_of_the_machine_it_was_written_on():
    wrong = [f"{name}: {what}" for name, text in texts() for what in rules.machine_traces(text, str(ROOT))]
    assert not wrong, "\n".join(wrong)

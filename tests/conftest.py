"""What all tests share."""

from __future__ import annotations

import os

# whatever engine runs on the computer; `make live BACKEND=kind` names another
os.environ.setdefault("COURSE_BACKEND", "embedded")


def pytest_report_header() -> str:
    """Say which lessons the tests of lessons cannot see yet, so that nobody takes them for tested."""
    from helpers.state import course_root
    from tests.contract.test_rows import PLAN

    missing = [stem for stem in PLAN if not (course_root() / "lessons" / f"{stem}.ipynb").is_file()]
    return f"lessons not yet written: {', '.join(missing) or 'none'}"

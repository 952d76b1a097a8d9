"""The cases of the form `dump`: the cause that is named first."""

from __future__ import annotations

from typing import Any

from helpers.observe.diagnose import why
from helpers.observe.snapshot import from_mapping


def answer(given: dict[str, Any]) -> str:
    """The cause that is named first."""
    return why(from_mapping(given)).cause


def wrong(given: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What is not as expected, a sentence each."""
    cause = answer(given)
    if cause in expected.get("ruled_out", ()):
        return [f"{cause} is named, and must not be; it is {expected['cause']}"]
    if cause not in (expected["cause"], *expected.get("also_ok", ())):
        return [f"{cause} is named, and it is {expected['cause']}"]
    return []

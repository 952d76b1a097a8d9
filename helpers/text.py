"""Text as HTML."""

from __future__ import annotations

import html
import re


def as_html(text: str) -> str:
    """HTML of a text in which `commands` stand between backticks; everything else is shown as it is."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))

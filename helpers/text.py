"""Text as HTML, rows of text as a table of either, numbers with their nouns."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence


def as_html(text: str) -> str:
    """HTML of a text in which `commands` stand between backticks; everything else is shown as it is."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as plain text, a line each, with their columns below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def html_table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same rows as HTML, under headings; nothing in a cell is taken for HTML."""

    def tr(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(tr(row, "td") for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption>{tr(headings, 'th')}{body}</table>"


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun.

    Example:
        >>> count(1, "Pod"), count(2, "Pod")
        ('1 Pod', '2 Pods')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"

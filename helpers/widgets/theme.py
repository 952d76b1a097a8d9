"""Every figure of the course: told apart without colour, with its alt text and the same numbers as a table."""

from __future__ import annotations

import base64
import html
import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helpers.errors import CourseError
from helpers.text import columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 160  # pixels in the file; shown at half of that, so that the text is sharp on a fine screen

# Okabe and Ito's colours (jfly.uni-koeln.de/color), safe for colour-blind readers, the darkest first. Their yellow is
# left out, since on white it can hardly be seen, and their black is a grey, on which a hatch can.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#777777", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "+++")
LOOKS = len(_COLORS)  # so many can be told apart
_LINES = ("-", "--", ":", "-.", (0, (6, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3)))


@dataclass(frozen=True)
class Drawing:
    """A drawn figure: what it shows in words, its numbers as a table, and its picture.

    Attributes:
        alt: the sentence that stands for the picture.
        headers: the names of the table's columns.
        rows: the table's rows, as text.
        png: the picture.
        width: the width at which it is shown, in CSS pixels.
    """

    alt: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    png: bytes
    width: int

    def __str__(self) -> str:
        return f"{self.alt}\n{columns([self.headers, *self.rows])}"

    __repr__ = __str__  # the text that a front end without HTML shows

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode()
        return (
            f'<figure style="margin: 0"><img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}"'
            f' width="{self.width}" style="max-width: 100%; height: auto">'
            f"<details><summary>The same as a table</summary>{_html_table(self.headers, self.rows)}</details></figure>"
        )


@contextmanager
def figure(
    alt: str, table: tuple[Sequence[str], Iterable[Sequence[Any]]], size: tuple[float, float] = (7, 3)
) -> Iterator[Figure]:
    """Draw inside the `with` block; at its end the figure is shown, with its alt text and the table behind it.

    Args:
        alt: one sentence that says what the picture shows, for those who do not see it.
        table: the headers, and the rows with the numbers that the picture is made from.
        size: width and height in inches, at 80 CSS pixels an inch.

    Raises:
        CourseError: if the alt text or the table is empty, or a row does not have as many values as there are headers.

    Example:
        >>> with figure("CPUs by Ray node", (["Ray node", "CPUs"], [["head", 0], ["worker-1", 2]])) as fig:
        ...     _ = fig.subplots().bar(["head", "worker-1"], [0, 2])
    """
    headers, rows = _as_text(alt, table)
    # what it says about fonts and caches at its first start would otherwise land in the notebook as an error stream
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from IPython.display import display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_style()):
        drawn = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(drawn)
        yield drawn
        display(Drawing(alt, headers, rows, _png(drawn), round(size[0] * DOTS_PER_INCH / 2)))


def series(index: int) -> dict[str, Any]:
    """The look of the series with this index: `color`, `marker`, `hatch` and `linestyle`, no two the same.

    Lines take `color`, `marker` and `linestyle` from it (and get them by themselves, in order, from `Axes.plot`); bars
    and areas take `color` and `hatch`.

    Raises:
        CourseError: beyond the seventh.
    """
    if not 0 <= index < LOOKS:
        raise CourseError(
            f"There is no series {index}: {LOOKS} looks can be told apart, numbered from 0.",
            "Draw several figures, or put the smallest series together.",
        )
    return {
        "color": _COLORS[index],
        "marker": _MARKERS[index],
        "hatch": _HATCHES[index],
        "linestyle": _LINES[index],
    }


def _style() -> dict[str, Any]:
    from matplotlib import cycler

    return {
        # an opaque white ground and dark ink: legible on JupyterLab's light and dark themes alike
        "figure.facecolor": "white",
        "axes.facecolor": "white",
        "savefig.facecolor": "white",
        "text.color": "#111111",
        "axes.labelcolor": "#111111",
        "font.size": 11,
        "legend.fontsize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": "#DDDDDD",
        "lines.linewidth": 2,
        "hatch.linewidth": 0.8,
        "axes.prop_cycle": cycler(color=_COLORS) + cycler(marker=_MARKERS) + cycler(linestyle=_LINES),
    }


def _png(drawn: Figure) -> bytes:
    file = io.BytesIO()
    # level 1 writes in a fraction of the time of the default, for a few KB more
    drawn.savefig(file, format="png", dpi=DOTS_PER_INCH, pil_kwargs={"compress_level": 1})
    return file.getvalue()


def _as_text(alt: str, table: tuple) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    headers, rows = tuple(map(str, table[0])), tuple(tuple(map(_cell, row)) for row in table[1])
    if not alt.strip():
        raise CourseError("A figure has no alt text.", "Say in one sentence what it shows: figure(alt=…).")
    if not headers or not rows:
        raise CourseError(f"The figure {alt!r} has an empty table.", "Give the numbers it shows: figure(table=…).")
    uneven = next((row for row in rows if len(row) != len(headers)), None)
    if uneven:
        raise CourseError(
            f"The figure {alt!r} has {len(headers)} headers and a row of {len(uneven)} values ({', '.join(uneven)}).",
            "Give each row of the table one value for each header.",
        )
    return headers, rows


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _html_table(headers: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in headers)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

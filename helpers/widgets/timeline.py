"""A timeline that can be drawn: one small chart below the other, with one clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from helpers.observe.timeline import Series, Timeline, peak
from helpers.text import html_table
from helpers.widgets import theme
from helpers.widgets.stepper import Stepper

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = {"demand": "wanted", "replicas": "replicas", "pods": "worker Pods", "machines": "Kubernetes nodes"}


class Drawn(Timeline):
    """A timeline in a notebook: it is shown as a table, and `plot` draws it."""

    def plot(self, *rows: str) -> None:
        """Draw rows over time, each in a chart of its own: demand, replicas, pods, Ray nodes, machines.

        Args:
            rows: which; left away, all in which anything happened.

        Raises:
            CourseError: there is no such row. A row in which nothing happened is said, and not drawn.
        """
        found = {name: self.row(name) for name in rows} if rows else self.rows()
        drawn = {name: series for name, series in found.items() if any(_moves(one) for one in series.values())}
        for name in found.keys() - drawn.keys() if rows else ():
            print(f"· {name}: nothing happened, so there is nothing to draw")
        if not drawn:
            return
        end = self.until() - self.start
        alt = f"Step charts over {end:.0f} seconds, {self.target}. {'; '.join(_told(*item) for item in drawn.items())}."
        table, height = (["Second", "Row", "Series", "Value"], _changes(drawn)), 0.6 + 1.5 * len(drawn)
        with theme.figure(alt=alt, table=table, size=(7, height)) as fig:
            charts = fig.subplots(len(drawn), sharex=True, squeeze=False)[:, 0]
            for chart, (name, series) in zip(charts, drawn.items(), strict=True):
                _draw(chart, name, series, end)
            charts[-1].set_xlabel("seconds")

    def stepper(self) -> Stepper:
        """The steps of its newest RayCluster, to walk through: each with what it changed, and how far each Pod was.

        Raises:
            CourseError: there is no RayCluster of it in the record.
        """
        return Stepper(self.steps())

    def _repr_html_(self) -> str:
        return html_table(str(self), ("When", "What", "Change"), self.lines())


def _told(row: str, series: dict[str, Series]) -> str:
    highest = peak(row, series)
    return f"{row}: at most {highest.value:g}, first after {highest.at_s:.0f} s"


def _draw(chart: Axes, name: str, series: dict[str, Series], end: float) -> None:
    from matplotlib.ticker import MaxNLocator

    for number, (label, points) in enumerate(item for item in series.items() if _moves(item[1])):
        look = theme.series(number)
        line = [*points, (max(end, points[-1][0]), points[-1][1])]
        chart.step(
            *zip(*line, strict=True), where="post", label=label, color=look["color"], linestyle=look["linestyle"],
            marker=look["marker"], markersize=4, markevery=slice(0, -1),
        )  # fmt: skip
    chart.set_ylim(bottom=0)
    chart.set_xlim(0, end)
    chart.set_ylabel(UNITS.get(name, name))
    chart.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    chart.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _moves(series: Series) -> bool:
    return any(value for _, value in series)


def _changes(drawn: dict[str, dict[str, Series]]) -> Iterable[tuple[str, str, str, str]]:
    lines = [
        (at_s, name, label, value)
        for name, series in drawn.items()
        for label, points in series.items()
        if _moves(points)
        for at_s, value in points
    ]
    return [(f"{at_s:.1f}", name, label, f"{value:g}") for at_s, name, label, value in sorted(lines)]

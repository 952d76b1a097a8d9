"""A bar chart that says the same in its picture, its sentence and its table."""

from __future__ import annotations

from collections.abc import Mapping

from helpers.widgets import theme


def bars(values: Mapping[str, float | Mapping[str, float]], *, title: str, unit: str) -> None:
    """Draw a bar for each name, or a group of bars where a value is itself a mapping of series to numbers.

    Args:
        values: name → number, or name → {series: number}.
        title: what is counted.
        unit: of the numbers, such as "MB".

    Nothing is drawn of no values: a line says so.
    """
    if not values:
        print(f"· {title}: nothing was counted here, so there is nothing to draw")
        return
    groups = {name: value if isinstance(value, Mapping) else {unit: value} for name, value in values.items()}
    names = list(dict.fromkeys(series for group in groups.values() for series in group))
    told = "; ".join(f"{name}: {_told(group, unit)}" for name, group in groups.items())
    table = (["", *names], [[name, *(f"{group.get(s, 0):.3g}" for s in names)] for name, group in groups.items()])
    with theme.figure(
        alt=f"Bar chart. {title}. {told}.", table=table, size=(7, 0.8 + 0.5 * len(groups) * len(names))
    ) as fig:
        axes = fig.subplots()
        height = 0.8 / len(names)
        for number, series in enumerate(names):
            look = theme.series(number)
            at = [row + number * height for row in range(len(groups))]
            numbers = [group.get(series, 0) for group in groups.values()]
            drawn = axes.barh(at, numbers, height * 0.9, color=look["color"], hatch=look["hatch"], label=series)
            axes.bar_label(drawn, fmt="%.3g", padding=3)
        axes.set_yticks([row + 0.4 - height / 2 for row in range(len(groups))], list(groups))
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set(title=title, xlabel=unit)
        if len(names) > 1:
            axes.legend()


def _told(group: Mapping[str, float], unit: str) -> str:
    if list(group) == [unit]:
        return f"{group[unit]:.3g} {unit}"
    return ", ".join(f"{series} {value:.3g} {unit}" for series, value in group.items())

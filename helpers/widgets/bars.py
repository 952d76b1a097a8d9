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
    all_whole = all(isinstance(number, int) for group in groups.values() for number in group.values())
    names = list(dict.fromkeys(series for group in groups.values() for series in group))
    told = "; ".join(f"{name}: {_told(group, unit)}" for name, group in groups.items())
    table = (["", *names], [[name, *(f"{_short(group.get(s, 0))}" for s in names)] for name, group in groups.items()])
    with theme.figure(
        alt=f"Bar chart. {title}. {told}.", table=table, size=(7, 1.2 + 0.3 * len(groups) * len(names))
    ) as fig:
        from matplotlib.ticker import MaxNLocator

        axes = fig.subplots()
        height = 0.8 / len(names)
        for number, series in enumerate(names):
            look = theme.series(number)
            at = [row + number * height for row in range(len(groups))]
            numbers = [group.get(series, 0) for group in groups.values()]
            drawn = axes.barh(at, numbers, height * 0.9, color=look["color"], hatch=look["hatch"], label=series)
            axes.bar_label(drawn, fmt=_short, padding=3)
        axes.set_yticks([row + 0.4 - height / 2 for row in range(len(groups))], list(groups))
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=all_whole))
        axes.set(title=title, xlabel=unit)
        if len(names) > 1:
            axes.legend()


def _told(group: Mapping[str, float], unit: str) -> str:
    if list(group) == [unit]:
        return f"{_short(group[unit])} {unit}"
    return ", ".join(f"{series} {_short(value)} {unit}" for series, value in group.items())


def _short(value: float) -> str:
    """Three figures that count, and never an exponent for what people count: 0.0135, 32.1, 1234."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"

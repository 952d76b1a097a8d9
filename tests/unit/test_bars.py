"""The bar chart: picture, sentence and table must say the same."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from helpers.widgets import bars as bars_module
from helpers.widgets.bars import bars


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What was drawn last: the figure, its alt text and its table."""
    seen = {}

    @contextmanager
    def figure(*, alt, table, size):
        seen.update(alt=alt, table=table, figure=Figure(figsize=size))
        yield seen["figure"]

    monkeypatch.setattr(bars_module.theme, "figure", figure)
    return seen


def lengths(figure: Figure) -> list[list[float]]:
    return [
        [bar.get_width() for bar in group] for group in figure.axes[0].containers if isinstance(group, BarContainer)
    ]


def test_a_bar_for_each_name(drawn):
    bars({"head": 0, "worker-1": 6}, title="Tasks", unit="tasks")
    assert drawn["alt"] == "Bar chart. Tasks. head: 0 tasks; worker-1: 6 tasks."
    assert drawn["table"] == (["", "tasks"], [["head", "0"], ["worker-1", "6"]])
    assert lengths(drawn["figure"]) == [[0, 6]]
    axes = drawn["figure"].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["head", "worker-1"]
    assert axes.get_title() == "Tasks" and axes.get_xlabel() == "tasks" and axes.get_legend() is None


def test_a_group_for_each_name(drawn):
    bars({"a": {"sent": 32.5, "received": 0.1}, "b": {"received": 33}}, title="Bytes", unit="MB")
    assert drawn["alt"] == "Bar chart. Bytes. a: sent 32.5 MB, received 0.1 MB; b: received 33 MB."
    assert drawn["table"] == (["", "sent", "received"], [["a", "32.5", "0.1"], ["b", "0", "33"]])
    assert lengths(drawn["figure"]) == [[32.5, 0], [0.1, 33]]
    assert [text.get_text() for text in drawn["figure"].axes[0].get_legend().get_texts()] == ["sent", "received"]
    hatches = {group[0].get_hatch() for group in drawn["figure"].axes[0].containers}
    assert len(hatches) == 2, "colour alone tells the series apart"


def test_nothing_to_draw(drawn, capsys):
    bars({}, title="Bytes", unit="MB")
    assert not drawn and "Bytes: nothing was counted here" in capsys.readouterr().out


def test_it_is_shown_by_the_real_theme():
    bars({"a": 1}, title="One", unit="thing")

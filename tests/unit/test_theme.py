import base64
import io
import os
import re
import subprocess
import sys

import matplotlib
import pytest

from helpers import state
from helpers.errors import CourseError
from helpers.widgets.theme import figure, series

TABLE = (["Ray node", "CPUs <logical>"], [["head", 0], ["worker-1", 2.123456]])


@pytest.fixture
def shown(monkeypatch):
    """What was displayed."""
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    return shown


def draw(**more):
    with figure(**{"alt": 'CPUs of "each" <Ray node>', "table": TABLE, **more}) as fig:
        fig.subplots().bar(["head", "worker-1"], [0, 2])


def test_one_display_with_picture_alt_text_and_table(shown):
    draw(size=(6, 2))
    [drawing] = shown
    html = drawing._repr_html_()
    assert 'alt="CPUs of &quot;each&quot; &lt;Ray node&gt;"' in html
    assert '<th scope="col">CPUs &lt;logical&gt;</th>' in html and "<td>2.123</td>" in html
    assert "<summary>The same as a table</summary>" in html
    assert html.count("<figure") == html.count("<img") == html.count("<details>") == 1
    picture = base64.b64decode(re.search(r"base64,([^\"]+)", html)[1])
    assert picture == drawing.png and picture.startswith(b"\x89PNG")
    assert 'width="480"' in html


def test_the_picture_is_opaque_and_fine(shown):
    from PIL import Image

    draw(size=(6, 2))
    image = Image.open(io.BytesIO(shown[0].png))
    assert image.size == (960, 320)
    assert image.convert("RGBA").getextrema()[3] == (255, 255)
    assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_the_text_has_the_same_numbers(shown):
    draw()
    lines = str(shown[0]).splitlines()
    assert lines[0] == 'CPUs of "each" <Ray node>'
    assert lines[1:] == ["Ray node  CPUs <logical>", "head      0", "worker-1  2.123"]
    assert repr(shown[0]) == str(shown[0])


def test_no_global_state(shown):
    before = dict(matplotlib.rcParams)
    draw()
    assert dict(matplotlib.rcParams) == before
    code = "import sys, helpers.widgets.theme as t\nwith t.figure('a', (['x'], [[1]])) as f: f.subplots()\n"
    code += "print('matplotlib.pyplot' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(state.course_root())}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.endswith("False\n") and done.stderr == ""


def test_a_drawing_that_fails_shows_nothing_and_restores(shown):
    before = dict(matplotlib.rcParams)
    with pytest.raises(ZeroDivisionError), figure("a", TABLE):
        raise ZeroDivisionError
    assert shown == [] and dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"alt": "  "}, "has no alt text"),
        ({"table": ([], [])}, "has an empty table"),
        ({"table": (["a"], [])}, "has an empty table"),
        ({"table": (["a", "b"], [[1, 2], [3]])}, "2 headers and a row of 1 values"),
    ],
)
def test_what_is_missing_is_said(shown, more, said):
    with pytest.raises(CourseError, match=said):
        draw(**more)
    assert shown == []


def test_rows_may_come_from_a_generator(shown):
    draw(table=(("x",), ([n] for n in range(3))))
    assert shown[0].rows == (("0",), ("1",), ("2",))


def test_no_two_series_look_the_same_in_any_way():
    looks = [series(index) for index in range(7)]
    for what in ("color", "marker", "hatch", "linestyle"):
        assert len({look[what] for look in looks}) == 7
    for beyond in (7, -1):
        with pytest.raises(CourseError, match=f"There is no series {beyond}"):
            series(beyond)


def test_lines_take_the_series_by_themselves(shown):
    with figure("a", TABLE) as fig:
        axes = fig.subplots()
        lines = [axes.plot([0, 1], [n, n])[0] for n in range(3)]
    assert [line.get_color() for line in lines] == [series(n)["color"] for n in range(3)]
    assert [line.get_marker() for line in lines] == [series(n)["marker"] for n in range(3)]


def test_series_fit_lines_and_bars(shown):
    look = series(2)
    with figure("a", TABLE) as fig:
        axes = fig.subplots()
        axes.bar([1], [1], color=look["color"], hatch=look["hatch"])
        axes.plot([1, 2], [1, 2], color=look["color"], marker=look["marker"], linestyle=look["linestyle"])
    assert len(shown) == 1

"""`wait_until`: it says what it waits for and for how long, and why it gave up."""

from __future__ import annotations

import itertools

import pytest

from helpers import wait
from helpers.errors import CourseError
from helpers.wait import WaitTimeout, wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass only when somebody sleeps."""
    now = [0.0]
    monkeypatch.setattr(wait.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(wait.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def shown(capsys: pytest.CaptureFixture) -> list[str]:
    """The lines that a terminal would have shown, one after the other."""
    return [line.strip() for line in capsys.readouterr().out.split("\r\x1b[K") if line.strip()]


def test_the_value_is_returned_and_a_short_wait_says_nothing(clock, capsys):
    values = iter([None, 0, "", "here"])
    assert wait_until(lambda: next(values), 5, what="a value") == "here"
    assert clock[0] == pytest.approx(0.3) and not shown(capsys)


def test_a_long_wait_says_what_and_why(clock, capsys):
    def ready():
        assert clock[0] >= 3, "the kettle is cold\nand more"
        return True

    assert wait_until(ready, 5, what="tea", every_s=0.5)
    assert shown(capsys) == [
        "… 1 s, waiting for tea: the kettle is cold",
        "… 2 s, waiting for tea: the kettle is cold",
        "✔ tea: after 3 s",
    ]


def test_the_last_reason_is_in_the_error(clock, capsys):
    reasons = (f"{number} of 9" for number in itertools.count())

    def never():
        raise AssertionError(next(reasons))

    with pytest.raises(WaitTimeout) as caught:
        wait_until(never, 2, what="nine cups", fix="Buy cups.", every_s=1)
    assert str(caught.value) == "Waited 2 s for nine cups, and it did not happen: 2 of 9. Buy cups."
    assert caught.value.reason == "2 of 9" and isinstance(caught.value, CourseError)
    assert shown(capsys)[-1] == "✘ nine cups: gave up after 2 s"


@pytest.mark.parametrize("nothing", [False, None, AssertionError()])
def test_without_a_reason(clock, nothing):
    def predicate():
        if isinstance(nothing, Exception):
            raise nothing
        return nothing

    with pytest.raises(WaitTimeout, match="and it did not happen: not yet"):
        wait_until(predicate, 0.2, what="it")


def test_it_asks_at_least_once(clock):
    assert wait_until(lambda: "at once", 0, what="it") == "at once"


def test_another_error_passes_through(clock):
    def broken():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        wait_until(broken, 5, what="it")
    assert clock[0] == 0

"""A shape that a grader starts gets a second try, and no third."""

from __future__ import annotations

import pytest

from helpers.rayhost import shape


@pytest.mark.parametrize(("fails", "tries"), [(0, 1), (1, 2)])
def test_ray_that_gave_up_once_is_asked_again(monkeypatch, fails, tries):
    asked = []

    def run(plan):
        asked.append(plan)
        assert len(asked) > fails, "this shape was started, and did not come up"
        return {"ray": "2.60.0"}

    monkeypatch.setattr(shape, "_run_apart", run)
    assert shape.run_apart({"hosts": {}}) == {"ray": "2.60.0"} and len(asked) == tries


def test_what_is_wrong_twice_is_wrong(monkeypatch):
    def run(plan):
        raise AssertionError("this shape was started, and did not come up")

    monkeypatch.setattr(shape, "_run_apart", run)
    with pytest.raises(AssertionError, match="did not come up"):
        shape.run_apart({"hosts": {}})

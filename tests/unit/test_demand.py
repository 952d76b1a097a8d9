"""How a demand is written, and what is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import CourseError
from helpers.model.demand import Demand, demands, parse

NAMES = st.sampled_from(["CPU", "GPU", "memory", "tag", "node:10.0.0.1", "TPU-v4-8-head"])
AMOUNTS = st.one_of(st.integers(0, 2**40), st.sampled_from([0.5, 0.25, 1.5]))


@pytest.mark.parametrize(
    ("text", "count", "resources"),
    [
        ("8×{GPU:1}", 8, {"GPU": 1}),
        ("8x{GPU: 1}", 8, {"GPU": 1}),
        ("8 X {GPU:1}", 8, {"GPU": 1}),
        (" 8*{ GPU : 1 } ", 8, {"GPU": 1}),
        ("{CPU:1}", 1, {"CPU": 1}),
        ("{CPU:0.5,memory:4Gi}", 1, {"CPU": 0.5, "memory": 4 * 2**30}),
        ("{'CPU': 1.0, \"GPU\": 500m}", 1, {"CPU": 1, "GPU": 0.5}),
        ("2×{node:10.0.0.1:0.01}", 2, {"node:10.0.0.1": 0.01}),
        ("{memory:17179869184}", 1, {"memory": 2**34}),
        ("{TPU-v4-16-head:1}", 1, {"TPU-v4-16-head": 1}),
    ],
)
def test_what_is_read(text, count, resources):
    read = parse(text)
    assert (read.count, dict(read.resources)) == (count, resources)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no demand"),
        ("8", "'8' is no demand"),
        ("8×GPU:1", "is no demand"),
        ("8{GPU:1}", "is no demand"),
        ("8×{GPU:1", "is no demand"),
        ("8×{GPU:1}}", "is no demand"),
        ("8×{{GPU:1}}", "is no demand"),
        ("-8×{GPU:1}", "is no demand"),
        ("1.5×{GPU:1}", "is no demand"),
        ("0×{GPU:1}", "has the count 0"),
        ("99999×{GPU:1}", "has the count 99999"),
        ("8×{}", "stands nothing"),
        ("{GPU}", "stands the part 'GPU'"),
        ("{GPU:1,}", "stands nothing"),
        ("{:1}", "stands the part ':1'"),
        ("{GPU:one}", "'one' is no amount of GPU"),
        ("{GPU:-1}", "'-1' is no amount of GPU"),
        ("{GPU:}", "'' is no amount of GPU"),
        ("{GPU:1e999}", "'1e999' is no amount of GPU"),
        ("{GPU:1, GPU:2}", "names GPU twice"),
        ("{my gpu:1}", "stands the part 'my gpu:1'"),
        (None, "None is no demand"),
    ],
)
def test_what_is_not_read(text, said):
    with pytest.raises(CourseError) as caught:
        parse(text)
    assert said in caught.value.what and "8×{GPU:1}" in caught.value.fix


@given(st.dictionaries(NAMES, AMOUNTS, min_size=1), st.integers(1, 10_000))
def test_what_is_written_is_read(resources, count):
    read = parse(str(Demand(resources, count)))
    assert read.count == count and dict(read.resources) == resources


@given(st.text(max_size=40))
def test_any_text_is_a_demand_or_one_sentence(text):
    try:
        parse(text)
    except CourseError as error:
        assert error.what.endswith(".") and "\n" not in error.what


def test_equal_ones_come_together():
    assert demands(["2×{CPU:1}", "{GPU:1}", "3×{CPU:1.0}"]) == [Demand({"CPU": 1}, 5), Demand({"GPU": 1})]
    assert demands("{CPU:1}") == demands(Demand({"CPU": 1})) == [Demand({"CPU": 1})]
    assert len(demands([Demand({"CPU": 1}), Demand({"CPU": 1}, 1, {"zone": "a"})])) == 2
    assert demands([Demand({"CPU": 1}, 0)]) == []


@pytest.mark.parametrize(
    ("selector", "labels", "allowed"),
    [
        ("west", {"zone": "west"}, True),
        ("west", {"zone": "east"}, False),
        ("west", {}, False),
        ("!west", {}, True),
        ("!west", {"zone": "west"}, False),
        ("in(west,east)", {"zone": "east"}, True),
        ("in(west, east)", {"zone": "north"}, False),
        ("!in(west, east)", {"zone": "north"}, True),
        ("", {"zone": ""}, True),
        ("", {"zone": "west"}, False),
        ("", {}, False),
    ],
)
def test_labels(selector, labels, allowed):
    assert Demand({"CPU": 1}, 1, {"zone": selector}).allows(labels) is allowed


@pytest.mark.parametrize(
    ("resources", "more"),
    [
        ({"CPU": -1}, {}),
        ({"CPU": "1"}, {}),
        ({"CPU": True}, {}),
        ({"CPU": math.nan}, {}),
        ({"CPU": math.inf}, {}),
        ({1: 1}, {}),
        (["CPU"], {}),
        ({"CPU": 1}, {"count": -1}),
        ({"CPU": 1}, {"count": 1.0}),
        ({"CPU": 1}, {"labels": {"zone": "!"}}),
        ({"CPU": 1}, {"labels": {"zone": "in()"}}),
        ({"CPU": 1}, {"labels": {"zone": "!!a"}}),
        ({"CPU": 1}, {"labels": {"zone": 3}}),
        ({"CPU": 1}, {"labels": ["zone"]}),
    ],
)
def test_what_is_no_demand(resources, more):
    with pytest.raises(CourseError):
        Demand(resources, **more)

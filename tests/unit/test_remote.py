"""The exporter and the proxies, with the kernel's side run in this process: what it is sent, and what it sends back."""

from __future__ import annotations

import collections
import enum
import fractions
import json
import math
import random
import types

import IPython
import IPython.display
import pytest

from helpers.grading import remote
from helpers.grading.check import VARIED, Suite, judge, run
from helpers.grading.remote import Gone, RemoteFunction, Unsupported, check_line, decode, encode, fetch


@pytest.fixture
def kernel(monkeypatch):
    """A kernel whose names are those of `kernel.space`."""
    space, sent = {}, []
    monkeypatch.setattr(IPython, "get_ipython", lambda: types.SimpleNamespace(user_ns=space))
    monkeypatch.setattr(IPython.display, "publish_display_data", lambda data, metadata: sent.append((data, metadata)))

    def ask(code, key):
        sent.clear()
        exec(code, {})
        [(data, metadata)] = sent
        assert metadata == {"answer": key}
        return data["text/plain"]

    ask.space = space
    return ask


def define(kernel, source):
    """Run a cell of the learner."""
    exec(compile(source, "/tmp/ipykernel_7/1.py", "exec"), kernel.space)


class Port(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Colour(enum.StrEnum):
    RED = "red"


PLAIN = [
    *(None, True, False, 0, -7, 10**50, 1.5, -0.0, math.inf, "", "é\ud800\n", [], (), set(), {}, frozenset({1})),
    *([1, [2.0, ("a", {"b"})]], {"a": {1: [None]}, (1, 2): "tuple", None: 3, 2.5: True}, [True, 1, 1.0]),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_arrives_as_it_is(kernel, value):
    kernel.space["x"] = value
    assert repr(fetch("x", kernel)) == repr(value)
    assert repr(decode(json.loads(json.dumps(encode(value))))) == repr(value)


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (Port(7), 7),
        (Colour.RED, "red"),
        (fractions.Fraction(1, 4), 0.25),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.namedtuple("Point", "x y")(1, 2), (1, 2)),
    ],
    ids=repr,
)
def test_a_subclass_arrives_as_what_it_is_underneath(kernel, value, arrives):
    kernel.space["x"] = value
    got = fetch("x", kernel)
    assert type(got) is type(arrives) and got == arrives


def test_numbers_of_numpy_are_numbers(kernel):
    numpy = pytest.importorskip("numpy")
    kernel.space["x"] = [numpy.int64(3), numpy.float64(2.5)]
    assert repr(fetch("x", kernel)) == "[3, 2.5]"


@pytest.mark.parametrize("value", [object(), range(3), b"x", 1j, types, iter([])], ids=repr)
def test_other_values_are_named_by_their_type(kernel, value):
    kernel.space["x"] = {"a": value}
    [got] = fetch("x", kernel).values()
    assert isinstance(got, Unsupported) and type(got).__name__ == type(value).__name__


def test_what_is_too_big_or_endless_does_not_arrive(kernel):
    endless = []
    endless.append(endless)
    for value in (endless, [0] * 200_000, "x" * 3_000_000, 10**5000):
        kernel.space["x"] = value
        assert isinstance(fetch("x", kernel), Unsupported)


@pytest.mark.parametrize("source", ["", "x = ...", "x = lambda: None", "def x(a):\n    'Says.'", "def x(): pass"])
def test_no_answer_yet(kernel, source):
    define(kernel, source)
    assert fetch("x", kernel) is ...


def test_names_that_hide_built_in_ones_do_not_matter(kernel):
    define(kernel, "list = dict = len = str = isinstance = json = 7\nx = [1, {'a': (2,)}]")
    assert fetch("x", kernel) == [1, {"a": (2,)}]


# ---- functions


def test_a_function_is_called_where_it_is(kernel):
    define(
        kernel, "total = 0\ndef f(a, *more, times=1):\n    global total\n    total += 1\n    return [a, more, times]"
    )
    f = fetch("f", kernel)
    assert callable(f) and f([1], {2}, times=3) == [[1], ({2},), 3]
    assert kernel.space["total"] == 1


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("return 1 / n", ZeroDivisionError, "division by zero"),
        ("return {}['k']", KeyError, "'k'"),
        ("raise OSError(2, 'gone')", OSError, "[Errno 2] gone"),
        ("raise NotImplementedError", NotImplementedError, ""),
        (
            "b'\\xff'.decode()",
            UnicodeDecodeError,
            "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        ("class Mine(ValueError): pass\n    raise Mine('so')", ValueError, "so"),
        ("eval('(')", Exception, "'(' was never closed (<string>, line 1)"),
        ("raise ExceptionGroup('two', [KeyError(1)])", Exception, "two (1 sub-exception)"),
        ("raise SystemExit(3)", Exception, "3"),
        ("raise KeyboardInterrupt", Exception, ""),
        ("class Odd(Exception):\n        __str__ = None\n    raise Odd", Exception, ""),
    ],
)
def test_an_exception_is_caught_as_what_it_is(kernel, body, kind, text):
    define(kernel, f"def f(n):\n    {body}")
    with pytest.raises(kind) as caught:
        fetch("f", kernel)(0)
    assert str(caught.value) == text
    assert isinstance(caught.value, Exception), "one that is none would end the grader"


def test_a_function_that_asks_the_user_is_an_answer(kernel):
    define(
        kernel,
        "class StdinNotImplementedError(NotImplementedError): pass\ndef f():\n    raise StdinNotImplementedError('no')",
    )
    with pytest.raises(Exception, match="no") as caught:
        fetch("f", kernel)()
    assert not isinstance(caught.value, NotImplementedError)


def suite_of(test, points=2):
    suite = Suite(lambda answer: answer, ("one", "two", "three"), "why")
    suite.case("a case", points)(test)
    return suite


def test_a_report_names_the_learners_line(kernel):
    def test(f):
        assert f(0) == 1

    define(kernel, "import linecache\ndef f(n):\n    m = n\n    return 1 / m\n")
    [row] = run(suite_of(test), fetch("f", kernel)).rows
    assert row.message == "it raised ZeroDivisionError: division by zero (your line 4)"


def test_a_stub_that_raises_is_not_answered_yet(kernel):
    define(kernel, "def f(n):\n    raise NotImplementedError()")
    report = run(suite_of(lambda f: f(1)), fetch("f", kernel))
    assert not report.is_answered and report == 0


def test_a_kernel_that_gives_nothing_is_a_message(kernel):
    def test(f):
        assert f(1) == 1

    for sent in (None, "", "{", "[" * 100_000, "x" * 3_000_000, "7", '{"raised": 1}', '{"raised": {"types": []}}'):
        [row] = run(suite_of(test), RemoteFunction("f", lambda code, key, sent=sent: sent)).rows
        assert row.state == "not yet" and row.message.startswith("the notebook "), (sent, row)


@pytest.mark.parametrize(
    "data",
    [
        {"list": 1},
        {"dict": [[1]]},
        {"dict": [[{"list": []}, 1]]},
        {"set": [{"list": []}]},
        {"list": [], "tuple": []},
        {"__class__": "Report"},
        {},
        [],
        {"unsupported": 1},
        {"eval": ["1"]},
    ],
    ids=repr,
)
def test_what_no_exporter_sends_is_no_answer(data):
    assert isinstance(decode(data), Unsupported)


def test_a_name_from_the_kernel_cannot_carry_more_than_a_name():
    got = decode({"unsupported": "a\n<b>\x1b[31m" + "x" * 1000})
    assert len(type(got).__name__) <= 80 and "\n" not in type(got).__name__ and "\x1b" not in type(got).__name__


def test_only_plain_data_can_be_passed(kernel):
    define(kernel, "def f(n):\n    return n")
    f = fetch("f", kernel)
    for value in (object(), f, len):
        with pytest.raises(TypeError, match="plain data"):
            f(value)


# ---- the line that asks


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('check("ex01.q1", shape)', ("ex01.q1", "shape")),
        ("# It was added back.\n\ncheck('ex01.q2', f)  # please", ("ex01.q2", "f")),
        *(
            (source, None)
            for source in ("", "check(", "check('a')", "check('a', b, c)", "check('a', b.c)", "check(a, b)")
        ),
        *(
            (source, None)
            for source in ("x = check('a', b)", "check('a', b)\nprint()", "c.check('a', b)", "check('a', answer=b)")
        ),
        ("check('a', b" + "(" * 100_000, None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_check_line(source, line):
    found = check_line(source)
    assert (found and (found.id, found.name)) == line


# ---- variations


def test_a_case_passes_only_if_its_variation_does():
    def double(f):
        assert f(2) == 4

    def vary(f):
        for n in random.Random(1).sample(range(100), 5):
            assert f(n) == 2 * n, f"secret {n}"

    suite = suite_of(double)
    assert run(suite, lambda n: 2 * n, {"a case": vary}) == 2
    report = run(suite, lambda n: 4, {"a case": vary})
    assert report == 0 and report.rows[0].message == VARIED
    assert run(suite, lambda n: 4) == 2, "a learner does not run them"
    assert "secret" not in str(run(suite, lambda n: 5, {"a case": vary})), "the visible case speaks first"


def test_judge_is_what_a_learner_sees():
    assert str(judge("01.c3", "gcs")).startswith("01.c3: 0/")
    assert Gone("late").learners_line == ""
    assert remote.RemoteFunction.__name__ == "function"

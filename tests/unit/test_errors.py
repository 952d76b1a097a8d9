"""The one kind of error that a user sees, and how it looks."""

from __future__ import annotations

import pickle

import pytest

from helpers.errors import CourseError


def test_text():
    error = CourseError("Port 8888 is in use.", "Run `make lab PORT=8889`.")
    assert str(error) == "Port 8888 is in use. Run `make lab PORT=8889`."
    assert (error.what, error.fix) == ("Port 8888 is in use.", "Run `make lab PORT=8889`.")


def test_it_survives_pickling():  # it may come out of a driver
    copy = pickle.loads(pickle.dumps(CourseError("This.", "That.")))
    assert (copy.what, copy.fix) == ("This.", "That.")


def test_a_notebook_shows_two_lines(capsys):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_cell('from helpers import CourseError\nraise CourseError("This is wrong.", "Do that.")')
    shown = capsys.readouterr()
    assert "✘ This is wrong.\n  → Do that." in shown.out
    assert "Traceback" not in shown.out and not shown.err
    InteractiveShell.clear_instance()


def test_both_sentences_are_needed():
    with pytest.raises(TypeError):
        CourseError("This is wrong.")

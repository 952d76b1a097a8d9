"""What a batch says of bad input, and what its result looks like. No kernel is started."""

from __future__ import annotations

import csv
import errno
import os
import sqlite3
import stat
from datetime import UTC, datetime, timedelta

import pytest

from helpers.errors import CourseError
from helpers.grading import batch, hidden, sandbox
from helpers.grading.batch import HandedIn, Result, Row, read_roster
from tests import grading_submissions as trial


@pytest.fixture
def root(tmp_path):
    trial.write_course(tmp_path)
    with trial.made_up_course(tmp_path):
        yield tmp_path


def test_release_has_no_answer_and_the_same_bytes_each_time(root):
    files = batch.release(trial.EXERCISE)
    [path] = files
    first = path.read_bytes()
    assert path == root / "exercises" / trial.EXERCISE / f"{trial.EXERCISE}.ipynb"
    for secret in ("BEGIN", "math.ceil", "hosts", trial.WHY, "rounds_up"):
        assert secret not in first.decode()
    assert "# YOUR CODE HERE" in first.decode() and "NotImplementedError" not in first.decode()
    assert batch.release(trial.EXERCISE) == [], "the bytes are the same, so nothing was written"
    assert not list((root / "exercises" / trial.EXERCISE).glob("hidden*"))


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("test-q1", "assert shape", "is not one line `check"),
        ("test-q1", f'x = check("{trial.EXERCISE}.q1", shape)', "is not one line `check"),
        ("test-q1", 'check("ex01.q1", shape)', "is not one line `check"),
        ("test-q1", f'check("{trial.EXERCISE}.q9", shape)', "no question"),
        ("test-q2", f'check("{trial.EXERCISE}.q1", shape)', "has 3 points"),
    ],
)
def test_a_test_that_could_be_forged_is_not_released(root, name, source, says):
    import nbformat

    path = root / "solutions" / trial.EXERCISE / f"{trial.EXERCISE}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    trial.find(notebook, name).source = source
    nbformat.write(notebook, path)
    with pytest.raises(CourseError, match=says):
        batch.release(trial.EXERCISE)


def test_a_variation_of_no_case_is_refused(root):
    path = root / "solutions" / trial.EXERCISE / "hidden.py"
    path.write_text(path.read_text().replace('"rounds up"', '"rounds upp"'))
    with pytest.raises(CourseError, match="'rounds upp'.*has not.*rounds up"):
        batch.release(trial.EXERCISE)


@pytest.mark.parametrize("exercise", ["ex98", "../ex99", "", "ex99/"])
def test_an_exercise_that_does_not_exist(root, exercise):
    with pytest.raises(CourseError, match="The exercises are: ex99"):
        batch.grade(exercise, root)


@pytest.mark.parametrize("name", ["../x", "..", ".x", "a b", "a/b", "", "x" * 101, "a\nb", "*"])
def test_a_name_that_cannot_be_one(tmp_path, name):
    with pytest.raises(CourseError, match="cannot be a name|has"):
        batch._checked(["anna", name, name], "The roster")


def test_rosters(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("\ufeffstudent,mail\nanna,a@x\n# bob left\n\ncarl\n")
    assert read_roster(path) == ["anna", "carl"]
    for text, says in [
        ("anna\nAnna\n", "'Anna' and 'anna'"),
        ("../x\n", "'../x'"),
        ("anna\nanna\n", "'anna' and 'anna'"),
    ]:
        path.write_text(text)
        with pytest.raises(CourseError, match=says):
            read_roster(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CourseError, match="cannot be read"):
        read_roster(path)
    with pytest.raises(CourseError, match="cannot be read"):
        read_roster(tmp_path / "none")


def test_no_submissions(root, tmp_path):
    with pytest.raises(CourseError, match="does not exist"):
        batch.grade(trial.EXERCISE, tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CourseError, match="no submission"):
        batch.grade(trial.EXERCISE, tmp_path / "empty")


def test_strangers_work_is_not_run_without_a_sandbox(root, monkeypatch):
    (root / "in" / "anna" / trial.EXERCISE).mkdir(parents=True)
    monkeypatch.setattr(sandbox, "missing", lambda: "bwrap is not installed")
    with pytest.raises(sandbox.Refused, match="bwrap is not installed"):
        batch.grade(trial.EXERCISE, root / "in")
    assert not (root / "grading").exists()


@pytest.fixture
def handed_in(root):
    """A class where nobody has handed in a notebook, so that no kernel starts."""
    (root / "in" / "anna" / trial.EXERCISE).mkdir(parents=True)
    return root / "in"


def test_who_handed_in_nothing_is_in_the_table(root, handed_in):
    (root / "roster.txt").write_text("anna\nbob\n")
    result = batch.grade(trial.EXERCISE, handed_in, roster=root / "roster.txt", trust=True)
    assert [(row.student, row.score, row.remark) for row in result.rows] == [
        ("anna", None, "No ex99.ipynb was handed in."),
        ("bob", None, "No ex99.ipynb was handed in."),
    ]


@pytest.mark.parametrize("content", [b"not a database at all, though long enough to look like one" * 20, b""])
def test_a_file_that_is_no_gradebook_is_left_alone(root, handed_in, content):
    path = root / "grading" / "gradebook.db"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CourseError, match="gradebook"):
        batch.grade(trial.EXERCISE, handed_in, trust=True)
    assert path.read_bytes() == content


def test_a_gradebook_of_another_version(root, handed_in):
    batch.grade(trial.EXERCISE, handed_in, trust=True)
    with sqlite3.connect(root / "grading" / "gradebook.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'older'")
    with pytest.raises(CourseError, match="another version of nbgrader"):
        batch.grade(trial.EXERCISE, handed_in, trust=True)


def test_a_full_disk_leaves_the_old_gradebook(root, handed_in, monkeypatch):
    batch.grade(trial.EXERCISE, handed_in, trust=True)
    before = (root / "grading" / "gradebook.db").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(batch, "_take_in", full)
    with pytest.raises(CourseError, match="No space left"):
        batch.grade(trial.EXERCISE, handed_in, trust=True)
    assert (root / "grading" / "gradebook.db").read_bytes() == before
    assert not list((root / "grading").glob(".run-*"))


def test_a_disk_that_fills_up_inside_nbgrader_is_told_from_a_bad_submission(root, monkeypatch):
    from nbgrader.converters import Autograde

    folder = root / "in" / "anna" / trial.EXERCISE
    folder.mkdir(parents=True)
    trial.answers()(trial.released(root), folder)

    def breaks(error):
        def convert(*_):
            raise error

        monkeypatch.setattr(Autograde, "convert_single_notebook", convert)
        return batch.grade(trial.EXERCISE, root / "in", trust=True)

    [row] = breaks(KeyError("odd")).rows
    assert row.score is None and "could not be graded: KeyError: 'odd'" in row.remark
    for error in (OSError(errno.ENOSPC, "x"), RuntimeError("(sqlite3.OperationalError) database or disk is full")):
        with pytest.raises(CourseError, match="No space left"):
            breaks(error)
    with pytest.raises(CourseError, match="no question"):
        breaks(CourseError("There is no question 'x'.", "Look."))


def test_a_gradebook_that_changes_meanwhile_is_kept(root, handed_in, monkeypatch):
    batch.grade(trial.EXERCISE, handed_in, trust=True)
    book = root / "grading" / "gradebook.db"

    def marks_meanwhile(*_, **__):
        with sqlite3.connect(book) as database:
            database.execute("CREATE TABLE mark (score)")
        return Row("anna", None, 7)

    monkeypatch.setattr(batch, "_grade_one", marks_meanwhile)
    with pytest.raises(CourseError, match="was changed while"):
        batch.grade(trial.EXERCISE, handed_in, trust=True)
    with sqlite3.connect(book) as database:
        assert database.execute("SELECT count(*) FROM mark").fetchone() == (0,)


def test_a_folder_that_is_a_link_is_not_followed(root, handed_in):
    (handed_in / "bob").mkdir()
    (handed_in / "bob" / trial.EXERCISE).symlink_to(root / "solutions" / trial.EXERCISE)
    rows = {row.student: row.remark for row in batch.grade(trial.EXERCISE, handed_in, trust=True).rows}
    assert rows["bob"] == "Its folder is a link, which is not followed."


def test_two_graders_at_once(root, handed_in):
    with batch._alone(root / "grading"), pytest.raises(CourseError, match="Another `course grade`"):
        batch.grade(trial.EXERCISE, handed_in, trust=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2026-02-02 15:58:23.948203 UTC", ""),
        (f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d %H:%M:%S} UTC", "still to come"),
        ("yesterday, I think", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_the_date_of_a_submission(tmp_path, text, says):
    stamp, took = tmp_path / "timestamp.txt", HandedIn()
    stamp.write_text(text)
    batch._check_time(stamp, took)
    assert says in " ".join(took.remarks) and stamp.exists() == (not says)


def test_results_as_text_html_and_csv(tmp_path):
    rows = (Row("anna", 5, 7, True), Row("bob", None, 7, remark='=HYPERLINK("x") <b>'))
    result = Result("ex99", rows)
    assert str(result).splitlines() == [
        "ex99",
        "student  score  of  by hand  remark",
        "anna     5      7   to mark",
        'bob      –      7            =HYPERLINK("x") <b>',
    ]
    assert "<b>" not in result._repr_html_() and "&lt;b&gt;" in result._repr_html_()
    result.write_csv(tmp_path / "x.csv")
    with open(tmp_path / "x.csv", newline="") as file:
        lines = list(csv.reader(file))
    assert lines[1:] == [
        ["anna", "ex99", "5", "7", "True", ""],
        ["bob", "ex99", "", "7", "False", '\'=HYPERLINK("x") <b>'],
    ]


def test_the_secret_is_made_once_and_for_its_owner_only(root):
    assert hidden.secret() == hidden.secret() and len(hidden.secret()) == 64
    path = root / "state" / "ray-course" / "grading-secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["grading-secret"]


def test_inputs_differ_by_student_and_repeat_in_a_rerun(root):
    seen = []
    tests = {"q2": {"rounds up": lambda answer, rng: seen.append(rng.random())}}

    def inputs(student):
        seen.clear()
        hidden.variations(tests, trial.EXERCISE, "q2", student)["rounds up"](None)
        return tuple(seen)

    assert inputs("anna") == inputs("anna") != inputs("bob")
    assert len(set(inputs("anna"))) == hidden.ROUNDS

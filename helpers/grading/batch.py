"""Grading a class, or one notebook: what `course grade` and `course check` do.

nbgrader's converters run in this process, one submission at a time, so that its imports are paid for once and one bad
submission cannot stop the others. All work is done aside, in `grading/.run-PID/`, on a copy of the gradebook from which
the scores of these submissions are gone: a score left by an earlier run would be taken for this run's when a
submission fails. Manual marks are carried over. Only when all is done do the results take their places, each in
one step: killed at any moment, a run leaves the old gradebook or the new one.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import html
import json
import logging
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.grading import evidence, nbgrader_ext, sandbox
from helpers.grading.check import all_suites
from helpers.state import course_root
from helpers.text import columns, html_table

EXERCISE = re.compile(r"ex\d\d")
STUDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
MAX_NOTEBOOK = 20_000_000  # bytes; a notebook of text and plots has a hundredth of that
MAX_FILES, MAX_BYTES = 200, 50_000_000  # of one submission, beside its notebook
PREVIOUS = "gradebook.previous.db"  # what the gradebook was before the last run
ALONE = "you"  # the student's name when one notebook is graded by itself


@dataclass(frozen=True)
class Row:
    """What became of one submission.

    Attributes:
        score: points; None if it could not be graded.
        needs_manual: whether an open answer waits to be marked by hand.
        remark: what the instructor should know, in sentences; empty if there is nothing.
    """

    student: str
    score: float | None
    max_score: float
    needs_manual: bool = False
    remark: str = ""


@dataclass(frozen=True)
class Result:
    """A graded class."""

    exercise: str
    rows: tuple[Row, ...]

    HEADINGS = ("student", "score", "of", "by hand", "remark")

    def cells(self) -> list[tuple[str, ...]]:
        return [
            (
                row.student,
                "–" if row.score is None else f"{row.score:g}",
                f"{row.max_score:g}",
                "to mark" if row.needs_manual else "",
                row.remark,
            )
            for row in self.rows
        ]

    def __str__(self) -> str:
        return f"{self.exercise}\n{columns([self.HEADINGS, *self.cells()])}"

    def _repr_html_(self) -> str:
        return html_table(self.exercise, self.HEADINGS, self.cells())

    def write_csv(self, path: Path) -> None:
        """One line a student, with headings; an empty score is one that could not be graded."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("student", "exercise", "score", "max_score", "needs_manual", "remark"))
            for row in self.rows:
                score = "" if row.score is None else row.score
                # a spreadsheet would run a cell that begins so
                remark = f"'{row.remark}" if row.remark.startswith(("=", "+", "-", "@")) else row.remark
                writer.writerow((row.student, self.exercise, score, row.max_score, row.needs_manual, remark))


# ---- the three verbs -------------------------------------------------------------------------------------------------


def release(exercise: str) -> list[Path]:
    """Make `exercises/exNN/` from `solutions/exNN/`.

    Returns:
        The files that were written; one whose bytes would not change is left.

    Raises:
        CourseError: there is no such exercise, or a test of it could be forged.
    """
    target = course_root() / "exercises" / exercise
    with tempfile.TemporaryDirectory(prefix="ray-course-release-") as folder:
        made = make_release(exercise, Path(folder))
        return [path for name in made if (path := _replaced(Path(folder, name), target / name))]


def make_release(exercise: str, folder: Path) -> list[Path]:
    """Make the released form of an exercise in a folder; returns the files, relative to it."""
    source = _source_of(exercise)
    nbgrader_ext.require_strict(_read_notebook(source), exercise)
    nbgrader_ext.hidden.load(exercise)
    with _workdir(folder) as work:
        _generate(_config(work), exercise, database=False)
        shutil.copytree(work / "release" / exercise, folder, dirs_exist_ok=True)
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


Live = Callable[[evidence.Plan], Mapping[str, Any]]


def grade(
    exercise: str,
    submissions: Path,
    *,
    roster: Path | None = None,
    trust: bool = False,
    live: Live | None = None,
    on_row: Callable[[Row, int, int], None] = lambda row, number, count: None,
) -> Result:
    """Grade every submission of an exercise, and write gradebook, graded notebooks and feedback below `grading/`.

    Args:
        exercise: such as "ex01".
        submissions: one folder a student, in it `exNN/exNN.ipynb` and what else was handed in.
        roster: a text file with one student a line, so that who handed in nothing is in the table too.
        trust: run submissions without a sandbox.
        live: starts the answer to a live question on hosts of the grader's own, and says what it saw. It raises
            AssertionError if the answer does not come up. Without it, what learners report of their own runs counts.
        on_row: called after each submission, with its row, its number from 1, and how many there are.

    Raises:
        CourseError: nothing was graded; it says why.
        Refused: there is no sandbox on this machine, and no `trust`.
    """
    _source_of(exercise)
    students = sorted({*_students_in(submissions), *(read_roster(roster) if roster else ())})
    if not students:
        raise CourseError(
            f"There is no submission in {submissions}.",
            f"Put each at {submissions}/STUDENT/{exercise}/{exercise}.ipynb.",
        )
    if not trust:
        sandbox.require()
    grading = course_root() / "grading"
    with _disk_errors(), _alone(grading), _workdir(grading) as work:
        before = _stamp(grading / "gradebook.db")
        _copy_gradebook(grading / "gradebook.db", work / "gradebook.db")
        config = _config(work, trust=trust, live=live)
        marks = _take_out(work, exercise, students, grading / "autograded")
        _generate(config, exercise)
        rows = []
        for number, student in enumerate(students, 1):
            source = submissions / student / exercise
            rows.append(_grade_one(config, work, exercise, student, source, marks.get(student, {})))
            on_row(rows[-1], number, len(students))
        result = Result(exercise, tuple(rows))
        result.write_csv(work / f"{exercise}.csv")
        _take_places(work, grading, exercise, students, before)
    return result


def is_live(exercise: str) -> bool:
    """Whether an exercise has a question that is judged on a run."""
    return bool(runs_on(exercise))


def runs_on(exercise: str) -> str:
    """What the runs of an exercise's live questions need: `check.HOSTS` or `check.KUBERNETES`; empty if it has none."""
    needs = {suite.runs_on for id, suite in all_suites().items() if suite.live and id.startswith(f"{exercise}.")}
    return " ".join(needs)  # an exercise needs one of the two


def grade_notebook(notebook: Path, exercise: str, *, trust: bool = False, live: Live | None = None) -> tuple[Row, str]:
    """Grade one notebook as an instructor would; nothing of it is kept. The arguments are as in `grade`.

    Returns:
        The row, and the feedback as text: what each test said.

    Raises:
        CourseError, Refused: as in `grade`.
    """
    _source_of(exercise)
    if not notebook.is_file():
        raise CourseError(f"{notebook} does not exist.", "Give the path of your notebook.")
    if not trust:
        sandbox.require()
    with _disk_errors(), tempfile.TemporaryDirectory(prefix="ray-course-check-") as folder:
        work = Path(folder)
        _new_gradebook(work / "gradebook.db")
        config = _config(work, trust=trust, live=live)
        _generate(config, exercise)
        row = _grade_one(config, work, exercise, ALONE, notebook.parent, {}, notebook)
        graded = work / "autograded" / ALONE / exercise / f"{exercise}.ipynb"
        return row, _feedback_text(graded) if graded.is_file() else ""


def read_roster(path: Path) -> list[str]:
    """The students of a class: one a line, or the first column of a CSV file; `#` begins a comment.

    Raises:
        CourseError: a name is there twice, or cannot be a folder's name.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CourseError(
            f"The roster {path} cannot be read: {error}.", "Give a text file with one student a line."
        ) from None
    names = [line.partition(",")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
    return _checked(names[1:] if names[:1] == ["student"] else names, f"The roster {path}")


# ---- what is handed in -----------------------------------------------------------------------------------------------


def _students_in(submissions: Path) -> list[str]:
    if not submissions.is_dir():
        raise CourseError(
            f"The folder {submissions} does not exist.", "Name the folder that holds one folder a student."
        )
    return _checked(
        sorted(path.name for path in submissions.iterdir() if path.is_dir() and path.name[0] != "."), submissions
    )


def _checked(names: list[str], where: Any) -> list[str]:
    seen: dict[str, str] = {}
    for name in names:
        if not STUDENT.fullmatch(name):
            raise CourseError(
                f"{where} has a student called {name!r}, which cannot be a name here.",
                "A name has letters, digits and `_ . @ -`, and begins with a letter or a digit.",
            )
        if name.lower() in seen:
            raise CourseError(f"{where} has {name!r} and {seen[name.lower()]!r}.", "Leave one of them.")
        seen[name.lower()] = name
    return names


@dataclass
class HandedIn:
    """A submission as it is copied for grading."""

    notebook: Path | None = None
    remarks: list[str] = field(default_factory=list)


def _take_in(source: Path, target: Path, exercise: str, notebook: Path | None) -> HandedIn:
    """Copy what was handed in, if it can be graded. Links are not followed: they could lead to anybody's files."""
    took = HandedIn()
    chosen = notebook or _choose(source, exercise, took)
    if chosen is None or not _is_readable(chosen, took):
        return took
    target.mkdir(parents=True)
    took.notebook = target / f"{exercise}.ipynb"
    _copy_files(source, target, took)
    shutil.copyfile(chosen, took.notebook)
    _check_time(target / "timestamp.txt", took)
    return took


def _choose(source: Path, exercise: str, took: HandedIn) -> Path | None:
    wanted = source / f"{exercise}.ipynb"
    if source.is_symlink():
        took.remarks.append("Its folder is a link, which is not followed.")
        return None
    if wanted.is_file() and not wanted.is_symlink():
        return wanted
    others = [path for path in sorted(source.glob("*.ipynb")) if path.is_file() and not path.is_symlink()]
    if len(others) == 1:
        took.remarks.append(f"{others[0].name} was taken, since there is no {wanted.name}.")
        return others[0]
    names = f"; there are {', '.join(path.name for path in others)}" if others else ""
    took.remarks.append(f"No {wanted.name} was handed in{names}.")
    return None


def _is_readable(notebook: Path, took: HandedIn) -> bool:
    size = notebook.stat().st_size
    if size > MAX_NOTEBOOK:
        took.remarks.append(
            f"The notebook has {size / 1e6:.0f} MB, more than the {MAX_NOTEBOOK / 1e6:.0f} MB that are read: clear its "
            "outputs and hand it in again."
        )
        return False
    try:
        _read_notebook(notebook)
    except CourseError as error:
        took.remarks.append(f"The notebook cannot be read: {error.what}")
        return False
    return True


def _read_notebook(path: Path) -> Any:
    import nbformat

    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise CourseError(f"{path.name} is not JSON.", "Save it from JupyterLab.") from None
    cells = data.get("cells") if isinstance(data, dict) and data.get("nbformat") == 4 else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise CourseError(f"{path.name} is not a notebook of format 4.", "Save it from JupyterLab.")
    return nbformat.v4.rwbase.rejoin_lines(nbformat.from_dict(data))


def _copy_files(source: Path, target: Path, took: HandedIn) -> None:
    count = size = 0
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in (".ipynb_checkpoints", "__pycache__")]
        for name in sorted(files):
            path = Path(folder, name)
            if path.suffix == ".ipynb" or path.is_symlink() or not path.is_file():
                continue
            count, size = count + 1, size + path.stat().st_size
            if count > MAX_FILES or size > MAX_BYTES:
                took.remarks.append(f"Of its files only {count - 1} were taken; the rest is too much.")
                return
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def _check_time(stamp: Path, took: HandedIn) -> None:
    from nbgrader.utils import parse_utc

    if not stamp.is_file():
        return
    try:
        when = parse_utc(stamp.read_text()[:100].strip())
    except (ValueError, OverflowError, TypeError):
        took.remarks.append("Its timestamp cannot be read, and was left out.")
    else:
        if when <= datetime.now(UTC).replace(tzinfo=None) + timedelta(minutes=5):
            return
        took.remarks.append(f"It is dated {when:%Y-%m-%d %H:%M} UTC, which is still to come; the date was left out.")
    stamp.unlink()


# ---- one submission --------------------------------------------------------------------------------------------------


def _grade_one(
    config: Any, work: Path, exercise: str, student: str, source: Path, marks: dict, notebook: Path | None = None
) -> Row:
    try:
        took = _take_in(source, work / "submitted" / student / exercise, exercise, notebook)
        if took.notebook is None:
            return _row(work, exercise, student, took.remarks + _lost(marks))
        _convert("Autograde", config, exercise, student)
        _put_back(work, exercise, student, marks)
        _convert("GenerateFeedback", config, exercise, student)
        graded = work / "autograded" / student / exercise / f"{exercise}.ipynb"
        return _row(work, exercise, student, took.remarks + _said_by(graded), graded=True)
    except CourseError:
        raise  # a fault of the exercise or the machine, which every submission has
    except Exception as error:  # whatever this submission does to nbgrader, the others are graded
        if _is_of_disk(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        return _failed(work, exercise, student, error, marks)


def _failed(work: Path, exercise: str, student: str, error: Exception, marks: dict) -> Row:
    with _gradebook(work) as gradebook, suppress(Exception):
        gradebook.remove_submission(exercise, student)
    said = f"It could not be graded: {type(error).__name__}: {str(error)[:200]}."
    return _row(work, exercise, student, [said, *_lost(marks)])


def _lost(marks: dict) -> list[str]:
    return [f"Its marks made by hand are in {PREVIOUS}."] if marks else []


def _is_of_disk(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT)
    return "disk is full" in str(error)  # SQLite's word for it, inside an error of SQLAlchemy


def _row(work: Path, exercise: str, student: str, remarks: list[str], graded: bool = False) -> Row:
    with _gradebook(work) as gradebook:
        full = gradebook.find_assignment(exercise).max_score
        if not graded:
            return Row(student, None, full, remark=" ".join(remarks))
        submission = gradebook.find_submission(exercise, student)
        return Row(student, submission.score, full, submission.needs_manual_grade, " ".join(remarks))


def _said_by(graded: Path) -> list[str]:
    """Why a notebook stopped, if it did; how many of its points nobody else has seen; why it did not come up."""
    grading = _read_notebook(graded).metadata["grading"]
    said = [f"It did not run to its end: {grading['ended']}."] if grading["ended"] else []
    if grading["self_reported"]:
        said.append(f"Self-reported: {grading['self_reported']:g} points.")
    if grading["not_up"]:
        said.append(f"Live: {grading['not_up']}")
    return said


def _feedback_text(graded: Path) -> str:
    """What the tests of a graded notebook said."""
    from nbgrader.utils import is_grade

    parts = []
    for cell in _read_notebook(graded).cells:
        if cell.cell_type == "code" and is_grade(cell):
            parts += [text for output in cell.outputs if (text := _text_of(output))]
    return "\n\n".join(parts)


def _text_of(output: Any) -> str:
    if output.output_type == "error":
        return f"✘ {output.evalue}"
    shown = output.get("data", {}).get("text/html", "")
    lines = re.sub(r"</?(?:li|p|strong|ul)[^>]*>", "\n", shown)
    return "\n".join(line for line in html.unescape(re.sub(r"<[^>]+>", "", lines)).splitlines() if line.strip())


# ---- nbgrader --------------------------------------------------------------------------------------------------------


class _Log(logging.Logger):
    """Keeps nbgrader's log off the screen, and what it says while it handles an exception: that exception."""

    caught: BaseException | None = None

    def __init__(self) -> None:
        super().__init__("nbgrader of the course", logging.WARNING)

    def handle(self, record: logging.LogRecord) -> None:
        self.caught = sys.exc_info()[1] or self.caught


def _config(work: Path, trust: bool = False, live: Live | None = None) -> Any:
    """nbgrader_config.py, with all places inside the working folder."""
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(Path(nbgrader_ext.__file__).parents[2])).load_config()
    config.CourseDirectory.root = str(work)
    config.CourseDirectory.source_directory = str(course_root() / "solutions")
    for step in ("release", "submitted", "autograded", "feedback"):
        config.CourseDirectory[f"{step}_directory"] = str(work / step)
    config.CourseDirectory.db_url = f"sqlite:///{work / 'gradebook.db'}"
    config.RobustExecute.trust, config.RobustExecute.live = trust, live
    return config


def _generate(config: Any, exercise: str, database: bool = True) -> None:
    config.GenerateAssignment.no_database, config.SaveCells.enabled = not database, database
    _convert("GenerateAssignment", config, exercise, ".")


def _convert(name: str, config: Any, exercise: str, student: str) -> None:
    from nbgrader import converters
    from nbgrader.coursedir import CourseDirectory
    from sqlalchemy.exc import SAWarning

    log = _Log()
    place = CourseDirectory(config=config, assignment_id=exercise, student_id=student)
    converter = getattr(converters, name)(coursedir=place, config=config, log=log, force=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # nbgrader's way with its database, which works
            converter.start()
    except converters.base.NbGraderException as error:
        raise log.caught or error from None


@contextmanager
def _gradebook(work: Path) -> Iterator[Any]:
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{work / 'gradebook.db'}") as gradebook:
        yield gradebook


# ---- the gradebook of earlier runs -----------------------------------------------------------------------------------


def _copy_gradebook(old: Path, new: Path) -> None:
    """Copy an earlier gradebook, or begin an empty one."""
    if not old.exists():
        _new_gradebook(new)
        return
    fix = f"Move {old} away, and grade again; or open it with the nbgrader that made it."
    try:
        with closing(sqlite3.connect(old)) as source, closing(sqlite3.connect(new)) as copy:
            source.backup(copy)
            made_by = copy.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise CourseError(f"{old} is not a gradebook: {error}.", fix) from None
    if made_by != (_version(),):
        raise CourseError(f"{old} was made by another version of nbgrader.", fix)


def _new_gradebook(path: Path) -> None:
    # with this table nbgrader takes the file for a gradebook, and does not start `alembic`, which takes seconds
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES (?)", (_version(),))


def _version() -> str:
    """The version of the gradebooks that this nbgrader makes."""
    import nbgrader
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(Path(nbgrader.__file__).parent / "alembic")).get_current_head()


Mark = dict[str, Any]


def _take_out(work: Path, exercise: str, students: list[str], autograded: Path) -> dict[str, dict[str, Mark]]:
    """Remove what an earlier run said of these submissions, and return what was marked by hand."""
    from nbgrader.api import MissingEntry

    marks: dict[str, dict[str, Mark]] = {}
    with _gradebook(work) as gradebook:
        for student in students:
            try:
                submission = gradebook.find_submission(exercise, student)
            except MissingEntry:
                continue
            texts = _answers(autograded / student / exercise / f"{exercise}.ipynb")
            marks[student] = {
                name: {**mark, "text": texts.get(name)}
                for notebook in submission.notebooks
                for name, mark in _marks_of(notebook).items()
            }
            gradebook.remove_submission(exercise, student)
    return marks


def _marks_of(notebook: Any) -> dict[str, Mark]:
    marks: dict[str, Mark] = {}
    for grade in notebook.grades:
        if grade.manual_score is not None or grade.extra_credit:
            waits = bool(grade.needs_manual_grade)  # it was for an older answer, and nobody has looked since
            marks[grade.name] = {"score": grade.manual_score, "extra": grade.extra_credit, "waits": waits}
    for comment in notebook.comments:
        if comment.manual_comment:
            marks.setdefault(comment.name, {})["comment"] = comment.manual_comment
    return marks


def _put_back(work: Path, exercise: str, student: str, marks: dict[str, Mark]) -> None:
    """Give a graded submission its manual marks again; an answer that has changed since is to be looked at again."""
    from nbgrader.api import MissingEntry

    texts = _answers(work / "autograded" / student / exercise / f"{exercise}.ipynb")
    with _gradebook(work) as gradebook:
        for name, mark in marks.items():
            same = mark["text"] is not None and texts.get(name) == mark["text"]
            with suppress(MissingEntry):  # the question is no more
                if "score" in mark:
                    grade = gradebook.find_grade(name, exercise, exercise, student)
                    grade.manual_score, grade.extra_credit = mark["score"], mark["extra"]
                    grade.needs_manual_grade = mark["waits"] or not same
                if "comment" in mark:
                    gradebook.find_comment(name, exercise, exercise, student).manual_comment = mark["comment"]
        gradebook.db.commit()


def _answers(graded: Path) -> dict[str, str]:
    if not graded.is_file():
        return {}
    cells = _read_notebook(graded).cells
    return {cell.metadata.nbgrader.grade_id: cell.source for cell in cells if "nbgrader" in cell.metadata}


# ---- files -----------------------------------------------------------------------------------------------------------


def _source_of(exercise: str) -> Path:
    solutions = course_root() / "solutions"
    path = solutions / exercise / f"{exercise}.ipynb"
    if not EXERCISE.fullmatch(exercise) or not path.is_file():
        known = ", ".join(sorted(path.parent.name for path in solutions.glob("ex*/ex*.ipynb"))) or "none"
        raise CourseError(f"There is no exercise {exercise!r}.", f"The exercises are: {known}.")
    return path


@contextmanager
def _workdir(parent: Path) -> Iterator[Path]:
    """A folder for one run; those that killed runs have left go first, and what they had just taken away comes back."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(".run-*"):
        for old in left.glob("replaced/*/*/*"):
            place = parent / old.relative_to(left / "replaced")
            if not place.exists():
                os.replace(old, place)
        shutil.rmtree(left, ignore_errors=True)
    work = parent / f".run-{os.getpid()}"
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _alone(grading: Path) -> Iterator[None]:
    grading.mkdir(parents=True, exist_ok=True)
    with open(grading / ".lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CourseError(
                "Another `course grade` is at work on this gradebook.", "Wait for its end, then run this again."
            ) from None
        yield


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CourseError(
            f"The results cannot be written: {error.strerror or error}.",
            "Free some space or make the folder writable, then run this again; the old gradebook is as it was.",
        ) from None


def _take_places(work: Path, grading: Path, exercise: str, students: list[str], before: tuple | None) -> None:
    """Put results where they belong, the gradebook first: marks in it are compared with the older answers then."""
    book = grading / "gradebook.db"
    if _stamp(book) != before:
        raise CourseError(
            "The gradebook was changed while submissions were graded, perhaps in formgrader.",
            "Run this again while nobody marks; the changes are kept.",
        )
    if before:
        shutil.copyfile(book, work / PREVIOUS)
        os.replace(work / PREVIOUS, grading / PREVIOUS)
    os.replace(work / "gradebook.db", book)
    for step in ("autograded", "feedback"):
        for student in students:
            _move(work / step / student / exercise, grading / step / student / exercise, work)
    os.replace(work / f"{exercise}.csv", grading / f"{exercise}.csv")


def _stamp(path: Path) -> tuple | None:
    """Tells whether a file is still as it was; None for one that is not there."""
    return (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_ino) if path.exists() else None


def _move(new: Path, place: Path, work: Path) -> None:
    if place.exists():
        old = work / "replaced" / place.relative_to(place.parents[2])
        old.parent.mkdir(parents=True, exist_ok=True)
        os.replace(place, old)
    if new.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(new, place)


def _replaced(new: Path, place: Path) -> Path | None:
    if place.is_file() and place.read_bytes() == new.read_bytes():
        return None
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    shutil.copyfile(new, part)
    os.replace(part, place)
    return place

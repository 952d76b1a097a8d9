"""What happened to other people's notebooks, with the right outcome: the cases of tests/cases/notebook.yaml.

Each case was verified with nbgrader and nbval as they come, so they run here as they come: a change of theirs that this
course relies on shows at once. Then the same submissions are graded with the settings of this course.
"""

from __future__ import annotations

import copy
import io
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
import yaml
from nbformat import NotebookNode, v4
from traitlets.config import Config, PyFileConfigLoader

from helpers.authoring import GRADE_FLAGS, KERNEL
from helpers.grading import sandbox
from helpers.state import course_root
from tests.isolation import new_home

CASES = {
    case["id"]: case for case in yaml.safe_load((course_root() / "tests/cases/notebook.yaml").read_text())["cases"]
}
NBGRADER = [name for name, case in CASES.items() if case["input"]["tool"] == "nbgrader"]
NBVAL = [name for name, case in CASES.items() if case["input"]["tool"] == "nbval"]
# where the settings of this course come to another outcome than nbgrader's own, and why; the renamed notebook of N10 is
# not among them, since `course grade` gives it its name before nbgrader sees it (tests/live/test_grading.py)
OURS = {
    "N01.2": {"autograde": "graded", "score": [2, 2]},  # the copy loses its grading; the original counts
    "N04.1": {"autograde": "graded", "score": [2, 2]},  # the lost test cell comes back, and the answer is right
    "N08": {"autograde": "graded", "score": [0, 2]},  # a kernel that has ended is 0 points, and feedback says so
}
PROBLEM, STUDENT = "p", "s"
ROLES = {"answer": "solution", "tests": "test", "readonly": "locked"}
NBVAL_TIMEOUT_S = 30

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")]


# ---- the form of a case ----------------------------------------------------------------------------------------------


def source_of(case: dict[str, Any]) -> NotebookNode:
    """The instructor's notebook."""
    return v4.new_notebook(cells=[_cell(**told) for told in case["source"]], metadata=KERNEL)


def _cell(text: str, role: str, id: str = "", points: float | None = None) -> NotebookNode:
    cell = v4.new_code_cell(text)
    if role != "plain":
        cell.metadata["nbgrader"] = {**GRADE_FLAGS[ROLES[role]], "grade_id": id, "schema_version": 3}
    if points is not None:
        cell.metadata["nbgrader"]["points"] = points
    return cell


def find(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == name)


def change(notebook: NotebookNode, step: dict[str, str]) -> None:
    """Do to a released notebook what a student did."""
    text = step.get("text")
    verb, name = next((verb, name) for verb, name in step.items() if verb != "text")
    cell = find(notebook, name)
    match verb:
        case "edit":
            cell.source = text
        case "delete":
            notebook.cells.remove(cell)
        case "copy":  # JupyterLab copies the metadata too, and gives the copy a new cell id
            twin = copy.deepcopy(cell)
            twin.id += "-copy"
            notebook.cells.insert(notebook.cells.index(cell) + 1, twin)
        case "markdown":
            cell.cell_type = "markdown"
            del cell["outputs"], cell["execution_count"]
        case _:
            raise ValueError(f"a case says {verb!r}, which this adapter does not know")


# ---- nbgrader --------------------------------------------------------------------------------------------------------


@dataclass
class Course:
    """A course folder with one problem, and nbgrader at work on it.

    Attributes:
        settings: nbgrader's settings; its folders are set here.
    """

    root: Path
    settings: Config

    def __post_init__(self) -> None:
        self.settings = copy.deepcopy(self.settings)
        self.settings.CourseDirectory.root = str(self.root)
        for step in ("source", "release", "submitted", "autograded", "feedback"):
            self.settings.CourseDirectory[f"{step}_directory"] = step
        self.database = f"sqlite:///{self.root / 'gradebook.db'}"
        self.settings.CourseDirectory.db_url = self.database

    def folder(self, step: str, student: str = ".") -> Path:
        folder = self.root / step / student / PROBLEM
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def generate(self, case: dict[str, Any]) -> str:
        nbformat.write(source_of(case), self.folder("source") / f"{PROBLEM}.ipynb")
        write_files(self.folder("source"), case.get("files", {}))
        return refusal(self.convert("GenerateAssignment", ".")) or "ok"

    def released(self) -> NotebookNode:
        return nbformat.read(self.folder("release") / f"{PROBLEM}.ipynb", as_version=4)

    def hand_in(self, case: dict[str, Any]) -> Path:
        """The released notebook, changed and saved as the case says; returns where."""
        notebook, folder = self.released(), self.folder("submitted", STUDENT)
        for step in case["student"]:
            change(notebook, step)
        write_files(folder, {**case.get("files", {}), **case.get("submitted_files", {})})
        path = folder / case.get("save_as", f"{PROBLEM}.ipynb")
        nbformat.write(notebook, path)
        return path

    def validate(self, notebook: Path) -> str:
        """What `nbgrader validate` says, which is what the Validate button shows."""
        from nbgrader.validator import Validator

        validator = Validator(config=self.settings)
        validator.stream = said = io.StringIO()
        try:
            validator.validate_and_print(str(notebook))
        except Exception:
            return "error"
        words = {"HAVE CHANGED": "changed", "FAILED ON": "failed", "Success!": "success"}
        return next(outcome for word, outcome in words.items() if word in " ".join(said.getvalue().split()))

    def autograde(self) -> str:
        return refusal(self.convert("Autograde", STUDENT)) or ("needs-manual" if self.needs_manual() else "graded")

    def convert(self, name: str, student: str) -> BaseException | None:
        """Run one of nbgrader's converters; returns what stopped it."""
        from nbgrader import converters
        from nbgrader.coursedir import CourseDirectory

        place = CourseDirectory(config=self.settings, assignment_id=PROBLEM, student_id=student)
        log = Listener()
        try:
            getattr(converters, name)(coursedir=place, config=self.settings, log=log).start()
        except converters.base.NbGraderException as error:
            return log.caught or error
        return None

    def needs_manual(self) -> bool:
        with self.gradebook() as book:
            return book.find_submission(PROBLEM, STUDENT).needs_manual_grade

    def score(self) -> list[float]:
        """Points got, and points that could be got."""
        with self.gradebook() as book:
            submission = book.find_submission(PROBLEM, STUDENT)
            return [submission.score, submission.max_score]

    def tests(self) -> dict[str, float]:
        with self.gradebook() as book:
            grades = book.find_submission_notebook(PROBLEM, PROBLEM, STUDENT).grades
            return {grade.name: grade.score for grade in grades}

    @contextmanager
    def gradebook(self) -> Iterator[Any]:
        from nbgrader.api import Gradebook

        with Gradebook(self.database) as book:
            yield book


class Listener(logging.Logger):
    """Keeps nbgrader's log off the screen, and the first exception that it tells of."""

    caught: BaseException | None = None

    def __init__(self) -> None:
        super().__init__("nbgrader of a case", logging.WARNING)

    def handle(self, record: logging.LogRecord) -> None:
        self.caught = self.caught or sys.exc_info()[1]


# what stopped nbgrader, by the exception's name and a word of it -> the outcome id
REFUSALS = {
    ("ValidationError", "Duplicate grade id"): "duplicate-id",
    ("SchemaTooOldError", ""): "duplicate-id",  # the copies have lost their metadata on the way
    ("RuntimeError", "solution"): "bad-markers",
    ("DeadKernelError", ""): "kernel-died",
    ("MissingEntry", "No such notebook"): "unknown-notebook",
}


def refusal(error: BaseException | None) -> str | None:
    """The outcome id of what stopped nbgrader; None if nothing did."""
    if error is None:
        return None
    for (name, word), outcome in REFUSALS.items():
        if type(error).__name__ == name and word.lower() in str(error).lower():
            return outcome
    raise AssertionError("nbgrader stopped for a reason that is no outcome of these cases") from error


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home("notebook-cases") as home, pytest.MonkeyPatch.context() as patch:
        # nbgrader calls `alembic`
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield home


@pytest.fixture(scope="module")
def empty_gradebook(home: Path) -> Path:
    """One that nbgrader has made; it takes seconds, since it starts another program."""
    from nbgrader.api import Gradebook

    path = home / "empty.db"
    Gradebook(f"sqlite:///{path}").close()
    return path


def check_case(course: Course, case: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Take one case through nbgrader's stages, as far as it says what should come of them."""
    assert course.generate(case) == wanted["generate"]
    for name, text in wanted.get("released", {}).items():
        assert find(course.released(), name).source == text
    if wanted["generate"] != "ok":
        return
    notebook = course.hand_in(case)
    if "validate" in wanted:
        assert course.validate(notebook) == wanted["validate"]
    if "autograde" not in wanted:
        return
    assert course.autograde() == wanted["autograde"]
    if wanted["score"] is None:
        assert not course.folder("autograded", STUDENT).joinpath(f"{PROBLEM}.ipynb").exists()
    else:
        assert course.score() == wanted["score"]
        assert wanted.get("tests", {}).items() <= course.tests().items()


@pytest.mark.parametrize("name", NBGRADER)
def test_nbgrader_as_it_comes(name: str, tmp_path: Path, empty_gradebook: Path) -> None:
    case = CASES[name]
    shutil.copyfile(empty_gradebook, tmp_path / "gradebook.db")
    settings = Config()
    if "cell_timeout_s" in case["input"]:
        settings.Execute.timeout = case["input"]["cell_timeout_s"]
    check_case(Course(tmp_path, settings), case["input"], case["expected"])


GRADED = [name for name in NBGRADER if "autograde" in CASES[name]["expected"]]


@pytest.mark.skipif(sandbox.missing() != "", reason=f"no sandbox here: {sandbox.missing()}")
@pytest.mark.parametrize("name", GRADED)
def test_the_settings_of_this_course(name: str, tmp_path: Path, empty_gradebook: Path) -> None:
    case = CASES[name]
    shutil.copyfile(empty_gradebook, tmp_path / "gradebook.db")
    settings = PyFileConfigLoader("nbgrader_config.py", path=str(course_root())).load_config()
    if "cell_timeout_s" in case["input"]:
        settings.RobustExecute.timeout = case["input"]["cell_timeout_s"]
    wanted = {**case["expected"], **OURS.get(name, {})}
    wanted.pop("validate", None)  # the Validator has no such settings: the other test has seen what it says
    check_case(Course(tmp_path, settings), case["input"], wanted)


# ---- nbval -----------------------------------------------------------------------------------------------------------


def saved_notebook(case: dict[str, Any]) -> NotebookNode:
    """A notebook with the outputs of an earlier run."""
    notebook = v4.new_notebook(metadata=KERNEL)
    for number, told in enumerate(case["cells"], start=1):
        outputs = [_saved(output) for output in told["saved"]]
        cell = v4.new_code_cell(told["text"], outputs=outputs, execution_count=number)
        cell.metadata["tags"] = told.get("tags", [])
        notebook.cells.append(cell)
    return notebook


def _saved(output: dict[str, Any]) -> NotebookNode:
    match output:
        case {"stream": name, "text": text}:
            return v4.new_output("stream", name=name, text=text)
        case {"error": name, "value": text}:
            return v4.new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])
        case {"result": text}:
            data = {"text/plain": text}
            if output.get("widget"):
                data["application/vnd.jupyter.widget-view+json"] = {"model_id": "0" * 32, "version_major": 2}
            return v4.new_output("execute_result", data=data, execution_count=1)
    raise ValueError(f"a case has the output {output}, which this adapter does not know")


@pytest.fixture(scope="module", params=["strict", "lax"])
def nbval(request: pytest.FixtureRequest, home: Path) -> tuple[str, dict[str, list[str]]]:
    """How the cells of all cases ended, by case."""
    folder = home / request.param
    folder.mkdir()
    for name in NBVAL:
        nbformat.write(saved_notebook(CASES[name]["input"]), folder / f"{name.replace('.', '_')}.ipynb")
    option = {"strict": "--nbval", "lax": "--nbval-lax"}[request.param]
    command = [sys.executable, "-m", "pytest", "-q", option, f"--nbval-cell-timeout={NBVAL_TIMEOUT_S}"]
    command += ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir=.", "--junitxml=report.xml", "."]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    ended: dict[str, list[str]] = {name: [] for name in NBVAL}
    for test in ElementTree.parse(folder / "report.xml").iter("testcase"):
        name = next(name for name in NBVAL if name.replace(".", "_") in test.get("classname") + test.get("name"))
        ended[name].append("fail" if any(child.tag in ("failure", "error") for child in test) else "pass")
    return request.param, ended


@pytest.mark.parametrize("name", NBVAL)
def test_nbval(name: str, nbval: tuple[str, dict[str, list[str]]]) -> None:
    mode, ended = nbval
    wanted, got = CASES[name]["expected"][mode], ended[name]
    assert len(got) == len(wanted)
    either = [outcome for outcome, allowed in zip(got, wanted, strict=True) if allowed == "either"]
    assert not either or either.count("fail") == 1, "exactly one of these cells fails"
    rest = [(outcome, allowed) for outcome, allowed in zip(got, wanted, strict=True) if allowed != "either"]
    assert [outcome for outcome, _ in rest] == [allowed for _, allowed in rest]

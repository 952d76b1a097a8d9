"""A small exercise that is made up, and submissions of it: the honest ones, and all that goes wrong or is tried.

It has four questions: plain data (2 points), a function (3 points), an open answer (2 points), and a test cell of the
kind that other courses have (1 point), which runs in the learner's own process.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode, v4

EXERCISE = "ex99"
FULL = 5  # points that need no hand
OPEN = 2

SUITE = """
from helpers.grading.check import Suite, kind_of

SECRET_ANSWER = {"cpu": 4, "hosts": ["a", "b"]}

def data(answer):
    assert isinstance(answer, dict), f"this wants a dict, you gave {kind_of(answer)}"
    return answer

def function(answer):
    assert callable(answer), f"this wants a function, you gave {kind_of(answer)}"
    return answer

q1 = Suite(data, ("one", "two", "three"), "a shape is a promise")

@q1.case("the processors")
def _(answer):
    assert answer.get("cpu") == SECRET_ANSWER["cpu"], f"cpu is {answer.get('cpu')!r}"

@q1.case("the hosts")
def _(answer):
    assert answer.get("hosts") == SECRET_ANSWER["hosts"], f"hosts is {answer.get('hosts')!r}"

q2 = Suite(function, ("one", "two", "three"), "the last one is not full")

@q2.case("rounds up")
def _(pods):
    assert pods(9, 4, 10) == 3, f"pods(9, 4, 10) returned {pods(9, 4, 10)!r}"

@q2.case("never above the limit", points=2)
def _(pods):
    assert pods(100, 4, 10) == 10, f"pods(100, 4, 10) returned {pods(100, 4, 10)!r}"
"""
HIDDEN = """
import math

def rounds_up(pods, rng):
    tasks, slots = rng.randint(11, 99), rng.randint(2, 9)
    assert pods(tasks, slots, 1000) == math.ceil(tasks / slots)

VARIATIONS = {"q2": {"rounds up": rounds_up}}
"""
RIGHT_DATA = 'shape = {"cpu": 4, "hosts": ["a", "b"]}'
RIGHT = "import math\ndef pods(tasks, slots, limit):\n    return min(limit, math.ceil(tasks / slots))"
WHY = "Because the last worker is not full."


def _cell(kind: str, source: str, name: str = "", points: float | None = None) -> NotebookNode:
    from helpers.authoring import GRADE_FLAGS

    is_text = kind in ("essay", "text")
    cell = (v4.new_markdown_cell if is_text else v4.new_code_cell)(source)
    if name:
        cell.id = name
        cell.metadata["nbgrader"] = {**GRADE_FLAGS[kind], "grade_id": name, "schema_version": 3}
        if points is not None:
            cell.metadata["nbgrader"]["points"] = points
    return cell


def source_notebook() -> NotebookNode:
    from helpers.authoring import KERNEL

    answer = "### BEGIN SOLUTION\n{}\n### END SOLUTION"
    function = "def pods(tasks, slots, limit):\n    ### BEGIN SOLUTION\n    {}\n    ### END SOLUTION"
    body = "import math\n    return min(limit, math.ceil(tasks / slots))"
    cells = [
        _cell("locked", "from helpers import check", "setup"),
        _cell("solution", answer.format(RIGHT_DATA), "q1"),
        _cell("test", f'check("{EXERCISE}.q1", shape)', "test-q1", 2),
        _cell("solution", function.format(body), "q2"),
        _cell("test", f'check("{EXERCISE}.q2", pods)', "test-q2", 3),
        _cell("essay", f"### BEGIN SOLUTION\n{WHY}\n### END SOLUTION", "q3", OPEN),
    ]
    return v4.new_notebook(cells=cells, metadata=KERNEL)


def write_course(root: Path) -> None:
    """Write the parts of a course that has this exercise only."""
    solution = root / "solutions" / EXERCISE
    solution.mkdir(parents=True)
    nbformat.write(source_notebook(), solution / f"{EXERCISE}.ipynb")
    (solution / "hidden.py").write_text(HIDDEN)
    (root / "suites").mkdir()
    (root / "suites" / f"{EXERCISE}.py").write_text(SUITE)


@contextmanager
def made_up_course(root: Path, cell_s: int = 10, notebook_s: int = 60) -> Iterator[None]:
    """Meanwhile the course is the one at `root`; its programs are the real course's."""
    from helpers.grading import batch, hidden, suites

    real = batch._config

    def short(*args: Any, **kwargs: Any) -> Any:
        config = real(*args, **kwargs)
        config.RobustExecute.timeout, config.RobustExecute.notebook_timeout = cell_s, notebook_s
        return config

    with pytest.MonkeyPatch.context() as patch:
        for module in (batch, hidden):
            patch.setattr(module, "course_root", lambda: root)
        patch.setattr(batch, "_config", short)
        patch.setattr(suites, "__path__", [*suites.__path__, str(root / "suites")])
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        yield
        sys.modules.pop(f"helpers.grading.suites.{EXERCISE}", None)


def released(root: Path) -> NotebookNode:
    """The exercise as a learner gets it. Only inside `made_up_course`."""
    from helpers.grading import batch

    batch.make_release(EXERCISE, root / "exercises" / EXERCISE)
    return nbformat.read(root / "exercises" / EXERCISE / f"{EXERCISE}.ipynb", as_version=4)


# ---- submissions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submission:
    """One that is tried, and its right column.

    Attributes:
        make: writes it into its folder, given the released notebook.
        score: what it is worth; None if it cannot be graded.
        remark: what the instructor is told, as part of it; None where that depends on timing.
        by_hand: whether its open answer waits to be marked.
    """

    make: Callable[[NotebookNode, Path], None]
    score: float | None
    remark: str | None = ""
    by_hand: bool = True


def find(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == name)


def _write(notebook: NotebookNode, folder: Path, name: str = EXERCISE) -> None:
    nbformat.write(notebook, folder / f"{name}.ipynb")


def answers(data: str = RIGHT_DATA, function: str = RIGHT, change: Callable[[NotebookNode], None] = lambda nb: None):
    """A submission with these answers, changed in some way."""

    def make(notebook: NotebookNode, folder: Path) -> None:
        find(notebook, "q1").source, find(notebook, "q2").source = data, function
        find(notebook, "q3").source = WHY
        change(notebook)
        _write(notebook, folder)

    return make


def body(*lines: str) -> str:
    """A right function with lines before its return."""
    indented = "".join(f"    {line}\n" for line in lines)
    return f"import math\ndef pods(tasks, slots, limit):\n{indented}    return min(limit, math.ceil(tasks / slots))"


def code(source: str, place: int = 1) -> Callable[[NotebookNode], None]:
    """Adds a cell of the learner's own."""
    return lambda notebook: notebook.cells.insert(place, v4.new_code_cell(source))


def _spy(notebook: NotebookNode, folder: Path) -> None:
    wrong(code(SPY.replace("@ROOT@", str(folder.parents[3]))))(notebook, folder)


def last(source: str) -> Callable[[NotebookNode], None]:
    """Adds a cell before the tests of the function."""
    return lambda notebook: notebook.cells.insert(
        notebook.cells.index(find(notebook, "test-q1")), v4.new_code_cell(source)
    )


WRONG_DATA, WRONG = 'shape = {"cpu": 1}', "def pods(tasks, slots, limit):\n    return 0"


def wrong(change: Callable[[NotebookNode], None]):
    """Wrong answers, with something that is to make them count."""
    return answers(WRONG_DATA, WRONG, change)


def _edit(name: str, source: str) -> Callable[[NotebookNode], None]:
    return lambda notebook: find(notebook, name).update(source=source)


def _points(notebook: NotebookNode) -> None:
    for name in ("test-q1", "test-q2"):
        find(notebook, name).metadata.nbgrader.points = 100


def _unflagged(notebook: NotebookNode) -> None:
    find(notebook, "test-q1").metadata.nbgrader.update(grade=False, locked=False)
    find(notebook, "test-q2").metadata.nbgrader = "nonsense"


def _delete(name: str) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.cells.remove(find(notebook, name))


def _copied(notebook: NotebookNode) -> None:
    for name in ("test-q2", "q2", "q3"):
        twin = copy.deepcopy(find(notebook, name))
        twin.id = f"{name}-copy"
        twin.source = twin.source if name != "q3" else "The copy, which nobody marks."
        notebook.cells.append(twin)


def _stripped(notebook: NotebookNode) -> None:
    del find(notebook, "test-q1").metadata["nbgrader"]
    del find(notebook, "q3").metadata["nbgrader"]


def _type(name: str, kind: str) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        cell = find(notebook, name)
        cell.cell_type = kind
        cell.pop("outputs", None)
        cell.pop("execution_count", None)

    return change


def _kernel(notebook: NotebookNode) -> None:
    notebook.metadata.kernelspec = {"name": "ir", "display_name": "R", "language": "R"}
    notebook.metadata.language_info = {"name": "R"}


def _renamed(notebook: NotebookNode, folder: Path) -> None:
    answers()(notebook, folder)
    (folder / f"{EXERCISE}.ipynb").rename(folder / "final version (2).ipynb")


def _fifty_megabytes(notebook: NotebookNode, folder: Path) -> None:
    answers(change=lambda nb: nb.cells.append(v4.new_markdown_cell("x" * 50_000_000)))(notebook, folder)


def _not_json(notebook: NotebookNode, folder: Path) -> None:
    (folder / f"{EXERCISE}.ipynb").write_text("<<<<<<< HEAD\n{")


def _evidence(notebook: NotebookNode, folder: Path) -> None:
    answers(WRONG_DATA, WRONG)(notebook, folder)
    for name in ("evidence.jsonl", "report.json"):
        (folder / name).write_text(json.dumps({"id": f"{EXERCISE}.q2", "score": 99, "points": 3}) + "\n")


def _link(notebook: NotebookNode, folder: Path) -> None:
    answers(WRONG_DATA, WRONG)(notebook, folder)
    (folder / "solution.ipynb").symlink_to(folder.parents[2] / "solutions" / EXERCISE / f"{EXERCISE}.ipynb")
    (folder / "shadow").symlink_to("/etc/shadow")
    (folder / "others").symlink_to(folder.parents[1])


# walks all that it can reach, and looks for what only solutions, suites and other submissions hold
SPY = """
import os, sys
from pathlib import Path
marks = [a + b for a, b in ((b"SECRET_", b"ANSWER"), (b"rounds", b"_up"), (b"BEGIN ", b"SOLUTION"), (b"grade", b"_id"))]
dull = ("/proc", "/sys", "/usr", "/etc", sys.prefix, sys.base_prefix)
tops = ["/", "@ROOT@", *(f"/proc/{pid}/{name}/@ROOT@" for pid in (1, "self") for name in ("root", "cwd"))]
for top in tops:
    for folder, names, files in os.walk(top):
        names[:] = [name for name in names if not os.path.join(folder, name).startswith(dull)]
        for path in (Path(folder, file) for file in files):
            try:
                text = path.read_bytes() if path.is_file() else b""
            except OSError:
                continue
            if any(mark in text for mark in marks) and "/helpers/" not in str(path):
                print("SEEN", path)
print("looked around")
"""
STEAL = """
from helpers.grading import check as c
found = []
try:
    import helpers.grading.suites.ex99 as suite
    shape = suite.SECRET_ANSWER
    found.append("suite")
except ImportError:
    pass
print("STOLEN", found, list(c.all_suites()))
"""
OUTSIDE = """
import os
from pathlib import Path
for place in ("/", "/etc", "/usr", "/var", "/var/tmp", os.path.dirname(os.path.dirname(__import__("helpers").__file__)),
              __import__("sys").prefix, "/submission", "/proc/sys/kernel"):
    try:
        Path(place, "ray-course-was-here").write_text("x")
        print("WROTE", place)
    except OSError:
        pass
for place in ("/tmp", Path.home(), "/dev/shm"):
    Path(place, "ray-course-was-here").write_text("x")
print("done")
"""
NETWORK = """
import socket
for address in (("127.0.0.1", 22), ("1.1.1.1", 53), ("10.0.0.1", 80)):
    try:
        socket.create_connection(address, 2)
        print("REACHED", address)
    except OSError as error:
        print(error)
"""
FORGED = """
class Report(float):
    rows, points, id, footer = (), 99, "x", ""
    is_full = is_answered = True
    def _repr_html_(self): return "<b>99/99</b>"
def check(*args): return Report(99)
"""
PATCHED = """
import helpers, helpers.grading.check as c
helpers.check = c.check = c.run = c.judge = lambda *a, **k: 99.0
c.Suite.points = 99
import builtins
builtins.check = c.check
from helpers import check
"""
REPLACED = """
import sys, types
fake = types.ModuleType("helpers")
fake.check = lambda *a: 99.0
sys.modules["helpers"] = sys.modules["helpers.grading"] = sys.modules["helpers.grading.check"] = fake
from helpers import check
"""
EQUAL = """
class Equal(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
    def __ne__(self, other): return False
class Anything(dict):
    def get(self, key, default=None): return Equal()
    def __eq__(self, other): return True
shape = Anything()
def pods(*args): return Equal(7)
"""
# answers the exporter itself: it may lie about its own answer, and must not do more
LIAR = """
import IPython.display, IPython.core.displaypub, json
def publish(data, metadata=None, **rest):
    forged = json.dumps({"__class__": "Report", "value": {"cpu": 99}, "score": 99})
    real({"text/plain": forged, "text/html": "<script>1</script>"}, metadata=metadata)
real = IPython.display.publish_display_data
IPython.display.publish_display_data = publish
"""
SCRIPT = """Look: <script>steal(document.cookie)</script> <img src=x onerror=steal()>
<a href="javascript:steal()">here</a> or [here](javascript:steal()) `a < b`

<iframe srcdoc="<script>steal()</script>"></iframe>
"""
BOMB = """
import os, time
def pods(*args):
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
"""
STUBBORN = """
import signal
def pods(*args):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True: pass
"""

SUBMISSIONS: dict[str, Submission] = {
    # the 23 of the first trials
    "correct": Submission(answers(), 5),
    "half-right": Submission(answers(function="def pods(t, s, m):\n    return -(-t // s)"), 3),
    "untouched": Submission(lambda nb, folder: _write(nb, folder), 0, by_hand=False),
    "tests-edited": Submission(wrong(_edit("test-q2", "assert True")), 0),
    "points-edited": Submission(wrong(_points), 0),
    "endless-loop": Submission(answers(function=body("while True: pass")), 2),
    "test-deleted": Submission(answers(change=_delete("test-q2")), 5),
    "kernel-killed": Submission(answers(function=body("import os", "os.kill(os.getpid(), 9)")), 2, "has ended"),
    "huge-output": Submission(answers(function=body('print(("x" * 100 + "\\n") * 200000)')), 5),
    "reads-files": Submission(_spy, 0),
    "stderr": Submission(answers(function=body("import sys", 'print("careful", file=sys.stderr)')), 5),
    "sys-exit": Submission(answers(function=body("import sys", "sys.exit(0)")), 2),
    "input": Submission(answers(function=body("input('how many? ')")), 2),
    "syntax-error": Submission(answers(function="def pods(t, s, m)\n    return 1"), 2),
    "always-equal": Submission(wrong(last(EQUAL)), 0),
    "cells-copied": Submission(answers(change=_copied), 5),
    "metadata-stripped": Submission(answers(change=_stripped), 5),
    "memory-hog": Submission(answers(function=body("x = [bytearray(1 << 28) for _ in range(24)]")), 2),
    "background-process": Submission(
        answers(function=body("import subprocess", 'subprocess.Popen(["sleep", "600"], start_new_session=True)')), 5
    ),
    "ignores-sigint": Submission(answers(function=STUBBORN), 2, "could not be interrupted"),
    "type-changed": Submission(answers(change=_type("q3", "raw")), 5),
    "written-for-example": Submission(
        answers(function="def pods(t, s, m):\n    return {(9, 4, 10): 3, (100, 4, 10): 10}.get((t, s, m), 0)"), 4
    ),
    "print-flood": Submission(answers(function=body("for i in range(300): print(i, flush=True)")), 5),
    # what is tried for a score that is not earned
    "check-rebound": Submission(wrong(code("def check(*args): return 99.0")), 0),
    "check-patched": Submission(wrong(code(PATCHED)), 0),
    "helpers-replaced": Submission(wrong(code(REPLACED)), 0),
    "suite-imported": Submission(wrong(last(STEAL)), 0),
    "report-forged": Submission(wrong(code(FORGED)), 0),
    "evidence-forged": Submission(_evidence, 0),
    "flags-removed": Submission(wrong(_unflagged), 0),
    "publishes-itself": Submission(wrong(code(LIAR)), 0),
    "script-in-answer": Submission(wrong(_edit("q3", SCRIPT)), 0),
    "links-followed": Submission(_link, 0),
    # files
    "fifty-megabytes": Submission(_fifty_megabytes, None, "50 MB, more than the 20 MB", by_hand=False),
    "not-json": Submission(_not_json, None, "not JSON", by_hand=False),
    "other-kernel": Submission(answers(change=_kernel), 5),
    "renamed": Submission(_renamed, 5, "final version (2).ipynb was taken"),
    "missing": Submission(lambda nb, folder: None, None, "No ex99.ipynb was handed in", by_hand=False),
    # against the machine
    "fork-bomb": Submission(answers(function=BOMB), 2, None),
    "writes-outside": Submission(answers(change=code(OUTSIDE)), 5),
    "tries-network": Submission(answers(change=code(NETWORK)), 5),
}


def hand_in(released: NotebookNode, submissions: Path, names: list[str] | None = None) -> None:
    for name in names or SUBMISSIONS:
        folder = submissions / name / EXERCISE
        folder.mkdir(parents=True)
        SUBMISSIONS[name].make(copy.deepcopy(released), folder)

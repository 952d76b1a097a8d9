"""What the course adds to nbgrader. `nbgrader_config.py` puts it in place, for the command line and for formgrader.

nbgrader's own ways lose points or whole batches: a copied cell aborts the batch, one line on stderr is zero points, a
dead kernel leaves no feedback, and the score is what the submission's own process says it is.
"""

from __future__ import annotations

import hashlib
import html
import re
import time
from pathlib import Path
from typing import Any

from jinja2 import pass_context
from nbclient.exceptions import CellExecutionComplete, CellTimeoutError, DeadKernelError
from nbconvert.exporters.exporter import ResourcesDict
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import v4
from nbformat.notebooknode import NotebookNode
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets import Any as Any_
from traitlets import Bool, Instance, Integer, List

from helpers.errors import CourseError
from helpers.grading import evidence, hidden, remote, sandbox
from helpers.grading.check import Report, find_suite, judge
from helpers.notebook import GRADE_FLAGS, KERNEL

Result = tuple[NotebookNode, ResourcesDict]

OURS = re.compile(r"(ex\d\d)\.(\w+)")  # the ids of this course; another course may have a `check` of its own
MAX_OUTPUT = 100_000  # characters that are kept of what one cell shows
CUT = "\n… the rest is cut: one cell may show {:,} characters\n"
PICTURES = ("image/png", "image/jpeg")
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
ANSWERS_WITHIN_S = 3  # a kernel that was interrupted is asked whether it still lives, and waited for so long


class NormalizeNotebook(NbGraderPreprocessor):
    """The same bytes whoever saved the source last: no times, no Python version, cell ids that stay."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> Result:
        # `Lab.start` reads what the exercise says of itself, and a learner's copy of the course has no solutions
        header = {"course": nb.metadata["course"]} if "course" in nb.metadata else {}
        nb.metadata = v4.new_notebook(metadata=KERNEL | header).metadata
        nb.nbformat, nb.nbformat_minor = 4, 5
        for index, cell in enumerate(nb.cells):
            name = cell.metadata.get("nbgrader", {}).get("grade_id")
            cell.id = name or hashlib.sha256(f"{index}\n{cell.source}".encode()).hexdigest()[:8]
            cell.metadata = {key: cell.metadata[key] for key in ("nbgrader", "tags") if key in cell.metadata}
        return nb, resources


class MendCells(NbGraderPreprocessor):
    """Makes a submission's cells what the exercise says they are; only what was written in them is the learner's.

    A copied cell keeps its text and loses its grading. A graded or locked cell that is gone comes back, in its place.
    Points, flags and types are set anew, and whatever else a submission carries in its metadata is dropped.
    """

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> Result:
        where = resources["nbgrader"]
        with Gradebook(where["db_url"]) as gradebook:
            source = gradebook.find_notebook(where["notebook"], where["assignment"])
            points = {cell.name: cell.max_score for cell in source.grade_cells}
            answers = {cell.name for cell in source.solution_cells}
            wanted = {
                cell.name: _blank(cell, points.get(cell.name), cell.name in answers) for cell in source.source_cells
            }
        nb.metadata = v4.new_notebook().metadata
        owners = _owners(nb.cells, wanted)
        nb.cells = [_mended(cell, wanted.get(owners.get(index, ""))) for index, cell in enumerate(nb.cells)]
        _add_lost(nb.cells, wanted)
        return nb, resources


def _blank(source: Any, points: float | None, is_answer: bool) -> NotebookNode:
    """A cell as the exercise has it."""
    kind = {(True, True): "essay", (True, False): "test", (False, True): "solution", (False, False): "locked"}
    flags = {**GRADE_FLAGS[kind[points is not None, is_answer]], "grade_id": source.name, "schema_version": 3}
    if points is not None:
        flags["points"] = points
    cell = _new_cell(source.cell_type, source.source)
    cell.metadata["nbgrader"] = NotebookNode(flags, cell_type=source.cell_type, checksum=source.checksum)
    return cell


def _owners(cells: list[NotebookNode], wanted: dict[str, NotebookNode]) -> dict[int, str]:
    """Which cell of a submission stands for which of the exercise."""
    claims: dict[str, list[int]] = {}
    for index, cell in enumerate(cells):
        flags = cell.metadata.get("nbgrader")
        name = flags.get("grade_id") if isinstance(flags, dict) else None
        name = name if isinstance(name, str) and name in wanted else cell.get("id")
        if name in wanted:
            claims.setdefault(name, []).append(index)
    # JupyterLab gives a copy a new id, and the original keeps its own, which the exercise has made its name
    return {next((i for i in found if cells[i].get("id") == name), found[0]): name for name, found in claims.items()}


def _mended(cell: NotebookNode, wanted: NotebookNode | None) -> NotebookNode:
    source = cell.get("source", "")
    source = source if isinstance(source, str) else ""
    new = _new_cell(wanted.cell_type if wanted else cell.get("cell_type"), source)
    if new.cell_type == "markdown":
        new.attachments = _pictures(cell.get("attachments"))
    if wanted:
        new.metadata["nbgrader"] = wanted.metadata["nbgrader"]
        new.source = wanted.source if utils.is_locked(wanted) else source
    return new


def _pictures(attachments: Any) -> dict[str, dict[str, str]]:
    """The pictures that were pasted into a text cell."""
    named = attachments.items() if isinstance(attachments, dict) else ()
    kept = {
        str(name): {mime: text for mime, text in data.items() if mime in PICTURES and _is_safe(mime, text)}
        for name, data in named
        if isinstance(data, dict)
    }
    return {name: data for name, data in kept.items() if data}


def _new_cell(kind: Any, source: str) -> NotebookNode:
    make = {"code": v4.new_code_cell, "markdown": v4.new_markdown_cell}.get(kind, v4.new_raw_cell)
    return make(source)


def _add_lost(cells: list[NotebookNode], wanted: dict[str, NotebookNode]) -> None:
    place = 0
    names = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in cells]
    for name, cell in wanted.items():
        if name in names:
            place = names.index(name) + 1
        elif utils.is_grade(cell) or utils.is_locked(cell):
            # not a lost answer cell: its text would be the empty answer, and might undo what stands elsewhere
            cells.insert(place, cell)
            names.insert(place, name)
            place += 1


class StderrIsNotFailure(NbGraderPreprocessor):
    """What a test cell writes to stderr costs no points: Ray and Kubernetes clients log there.

    Nor is a value that it shows a score: nbgrader would take any number for one.
    """

    def preprocess_cell(self, cell: NotebookNode, resources: ResourcesDict, index: int) -> Result:
        if cell.cell_type == "code" and utils.is_grade(cell) and not is_ours(cell):
            for output in cell.outputs:
                if output.output_type == "stream":
                    output.name = "stdout"
                elif output.output_type == "execute_result":
                    output.output_type = "display_data"
                    del output["execution_count"]
        return cell, resources


class RedactHidden(NbGraderPreprocessor):
    """For feedback: of a failed hidden test its message is shown, and not its code."""

    def preprocess_cell(self, cell: NotebookNode, resources: ResourcesDict, index: int) -> Result:
        if cell.cell_type == "code" and "BEGIN HIDDEN TESTS" in cell.source:
            for output in cell.outputs:
                if output.output_type == "error":
                    output.traceback = [f"{output.ename}: {output.evalue or 'a hidden test failed'}"]
        return cell, resources


@pass_context
def safe_markdown(context: Any, source: str) -> str:
    """Markdown as HTML, for nbconvert: HTML in it is shown and does not act, and no link runs a script.

    What learners write is opened in an instructor's browser, beside formgrader's own pages.
    """
    pictures = context.get("cell", {}).get("attachments", {})
    renderer = IPythonRenderer(escape=True, allow_harmful_protocols=False, attachments=pictures)
    try:
        return MarkdownWithMath(renderer=renderer).render(source)
    except Exception:  # a picture that is not there, a text that breaks the reader: it is shown as it was written
        return f"<pre>{html.escape(source)}</pre>"


def is_ours(cell: NotebookNode) -> bool:
    """Whether a cell is a test that the grader runs itself."""
    return asked_by(cell) is not None


def asked_by(cell: NotebookNode) -> remote.CheckLine | None:
    """What a test cell of the course asks for; None for any other cell."""
    if cell.cell_type != "code" or not utils.is_grade(cell) or utils.is_solution(cell):
        return None
    line = remote.check_line(cell.source)
    return line if line and OURS.fullmatch(line.id) else None


class RobustExecute(Execute):
    """Runs a submission in a sandbox, and its tests here.

    However a notebook goes wrong, each of its cells gets an output that says so: there is a score, and feedback.
    """

    timeout = Integer(60, allow_none=True, help="seconds for one cell").tag(config=True)
    notebook_timeout = Integer(300, help="seconds for all cells of a notebook").tag(config=True)
    iopub_timeout = Integer(4).tag(config=True)
    raise_on_iopub_timeout = Bool(False).tag(config=True)  # a flood of output is late, and no reason to stop
    trust = Bool(False, help="run without a sandbox").tag(config=True)
    live = Any_(None, allow_none=True, help="starts a plan on hosts of the grader's own, and says what it saw").tag(
        config=True
    )
    limits = Instance(sandbox.Limits, ())
    extra_arguments = List(["--HistoryManager.enabled=False"]).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict | None = None, km: Any = None) -> Result:
        where = resources["nbgrader"]
        self._student, self._exercise = where["student"], where["assignment"]
        self._hidden = hidden.load(self._exercise) if any(map(is_ours, nb.cells)) else {}
        self._ended = ""
        self._deadline = time.monotonic() + self.notebook_timeout
        self._shown, self._self_reported, self._not_up = 0, 0.0, ""
        self.shutdown_kernel = "immediate"
        nb, resources = super().preprocess(nb, resources, km)
        nb.metadata["grading"] = {
            "ended": self._ended,
            "self_reported": self._self_reported,
            "not_up": self._not_up,
        }
        return nb, resources

    def create_kernel_manager(self) -> Any:
        if self.trust:
            return super().create_kernel_manager()
        sandbox.require()
        return sandbox.SandboxedKernel(files=Path(self.resources["metadata"]["path"]), limits=self.limits)

    def preprocess_cell(self, cell: NotebookNode, resources: ResourcesDict, index: int) -> Result:
        if cell.cell_type != "code":
            return cell, resources
        asked = asked_by(cell)
        if not self._ended and self._left() <= 0:
            self._ended = f"the notebook used up its {self.notebook_timeout} s"
        if self._ended:
            cell.outputs = [error("NotRun", self._ended)]
        elif asked:
            self._judge(cell, asked, index)
        else:
            self._run(cell, index, min(self.timeout, self._left()))
        return cell, resources

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    # -- one cell in the kernel

    def _run(self, cell: NotebookNode, index: int, seconds: float) -> bool:
        """Run a cell in the kernel; whatever goes wrong becomes an output of it.

        Returns:
            Whether it came to its end in time.
        """
        kept, self.timeout = self.timeout, max(1, round(seconds))
        self._shown = 0
        try:
            self.execute_cell(cell, index, store_history=False)
            late = any(output.get("ename") == "CellTimeoutError" for output in cell.outputs)
            if late and not self._answers():
                self._give_up("a cell took too long and could not be interrupted")
        except DeadKernelError:
            why = getattr(self.km, "ended", "") or "it crashed, called os._exit, or ran out of memory"
            self._give_up(f"the kernel has ended: {why}")
        except CellTimeoutError:
            self._give_up("a cell took too long and could not be interrupted")
        except Exception as broken:  # what the kernel sends is made by a submission, and nbclient trusts it
            self._give_up(f"the kernel sent something that cannot be read ({type(broken).__name__})")
        finally:
            self.timeout = kept
        if self._ended:
            cell.outputs.append(error("Stopped", self._ended))
        return not self._ended and not late

    def _give_up(self, why: str) -> None:
        self._ended = why
        if isinstance(self.km, sandbox.SandboxedKernel):
            self.km.end(why)

    def _answers(self) -> bool:
        """Whether the kernel takes another request, after it was interrupted."""
        kept, self.timeout = self.timeout, ANSWERS_WITHIN_S
        interrupting, self.interrupt_on_timeout = self.interrupt_on_timeout, False
        probe = v4.new_code_cell("pass")
        try:
            self.execute_cell(probe, 0, store_history=False)
            return True
        except (CellTimeoutError, DeadKernelError):
            return False
        finally:
            self.timeout, self.interrupt_on_timeout = kept, interrupting

    def execute_cell(self, cell: NotebookNode, index: int, **kwargs: Any) -> NotebookNode:
        there = self.nb.cells[index]
        try:
            return super().execute_cell(cell, index, **kwargs)
        finally:
            self.nb.cells[index] = there  # nbclient puts the cell that it ran there, and not all that run are its cells

    # -- a test, which runs here

    def _judge(self, cell: NotebookNode, asked: remote.CheckLine, index: int) -> None:
        deadline = time.monotonic() + min(self.timeout, self._left())

        def kernel(code: str, key: str) -> str | None:
            return self._ask(code, key, index, deadline)

        try:
            answer = remote.fetch(asked.name, kernel)
            question = asked.id.partition(".")[2]
            tests = hidden.variations(self._hidden, self._exercise, question, self._student)
            report = judge(asked.id, answer, tests, self._witness())
        except remote.Gone as gone:
            cell.outputs = [error("NoAnswer", str(gone))]
            return
        self._self_reported += report.self_reported
        cell.outputs = [_output_of(report)]

    def _witness(self) -> evidence.Witness:
        """Who says what a live question's answer does: the learner's file, or hosts of the grader's own."""
        if self.live is None:
            return evidence.in_file(Path(self.resources["metadata"]["path"]) / evidence.NAME)

        def run(plan: evidence.Plan) -> Any:
            start = time.monotonic()
            try:
                return self.live(plan)
            except AssertionError as why:
                self._not_up = str(why)
                raise
            finally:
                self._deadline += time.monotonic() - start  # it is not the notebook that takes so long

        return evidence.by_running(run)

    def _ask(self, code: str, key: str, index: int, deadline: float) -> str | None:
        """Run the exporter in the kernel; returns the text that it published under the key."""
        left = deadline - time.monotonic()
        if self._ended or left <= 0:
            raise remote.Gone(self._ended or f"it took more than {self.timeout} s")
        probe = v4.new_code_cell(code)
        if not self._run(probe, index, left):
            raise remote.Gone(self._ended or f"it took more than {self.timeout} s")
        answers = (output for output in probe.outputs if output.get("metadata", {}).get("answer") == key)
        return next((output.data.get("text/plain") for output in answers), None)

    # -- what the kernel sends

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """Keep text and pictures, up to a size. Widgets, HTML and scripts have no place in what a grader opens."""
        content = msg.get("content")
        if not isinstance(content, dict):
            return None
        if msg.get("msg_type") == "status" and content.get("execution_state") == "idle":
            raise CellExecutionComplete()
        output = _safe_output(msg.get("msg_type"), content)
        if output is None:
            return None
        if "answer" in output.get("metadata", {}) and not cell.metadata.get("answered"):
            cell.metadata["answered"] = True  # one, however many are sent; remote.py limits its size
            cell.outputs.append(output)
            return output
        if self._shown > MAX_OUTPUT:
            return None
        self._shown += _cut(output, MAX_OUTPUT - self._shown)
        last = cell.outputs[-1] if cell.outputs else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
            return last
        cell.outputs.append(output)
        return output


def _safe_output(kind: Any, content: dict[str, Any]) -> NotebookNode | None:
    """An output with nothing in it but text of the right type, and pictures; None for any other message."""
    match kind, content:
        case "stream", {"name": "stdout" | "stderr" as name, "text": str(text)}:
            return v4.new_output("stream", name=name, text=text)
        case "error", {"ename": str(ename), "evalue": str(evalue), "traceback": list(lines)}:
            return v4.new_output("error", ename=ename, evalue=evalue, traceback=list(map(str, lines)))
        case "display_data" | "execute_result", {"data": dict(data)}:
            output = v4.new_output(kind, data={mime: text for mime, text in data.items() if _is_safe(mime, text)})
            metadata = content.get("metadata")
            if isinstance(metadata, dict) and isinstance(metadata.get("answer"), str):
                output.metadata["answer"] = metadata["answer"]
            return output
    return None


def _is_safe(mime: Any, text: Any) -> bool:
    if not isinstance(text, str):
        return False
    return mime == "text/plain" or (mime in PICTURES and bool(BASE64.fullmatch(text)))


def _cut(output: NotebookNode, left: int) -> int:
    """Shorten an output so that it fits; returns the characters that it asked for."""
    note = CUT.format(MAX_OUTPUT)
    if output.output_type == "stream":
        size = len(output.text)
        output.text = output.text if size <= left else output.text[:left] + note
    elif output.output_type == "error":
        size = sum(map(len, output.traceback)) + len(output.evalue)
        if size > left:
            output.evalue, output.traceback = output.evalue[:left], [note]
    else:
        size = sum(map(len, output.data.values()))
        if size > 20 * left:  # a picture is larger than text, and as quickly looked at
            output.data = {"text/plain": note}
        elif len(output.data.get("text/plain", "")) > left:
            output.data["text/plain"] = output.data["text/plain"][:left] + note
        size = len(output.data.get("text/plain", ""))
    return size


def _output_of(report: Report) -> NotebookNode:
    # nbgrader reads the number from text/plain, feedback and formgrader show the list from text/html
    data = {"text/plain": repr(float(report)), "text/html": report._repr_html_()}
    return v4.new_output("execute_result", data=data, execution_count=None)


def error(name: str, text: str) -> NotebookNode:
    """An output that is zero points, and says why."""
    return v4.new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])


def require_strict(nb: NotebookNode, exercise: str) -> None:
    """Hold an exercise to what the grader relies on: each test is one check line, worth what its question is worth.

    Raises:
        CourseError: with the first cell that is not so.
    """
    for cell in nb.cells:
        if cell.cell_type != "code" or not utils.is_grade(cell) or utils.is_solution(cell):
            continue
        name, line = cell.metadata.nbgrader.grade_id, asked_by(cell)
        if line is None or not line.id.startswith(f"{exercise}."):
            raise CourseError(
                f'The test `{name}` of {exercise} is not one line `check("{exercise}.ID", NAME)`.',
                "Write it so: any other cell would run in the learner's own process, where its score can be forged.",
            )
        points, worth = cell.metadata.nbgrader.points, find_suite(line.id).points
        if points != worth:
            raise CourseError(
                f"The test `{name}` of {exercise} has {points:g} points, and the cases of {line.id} have {worth:g}.",
                "Give both the same number.",
            )

"""Sources and notebooks: `authoring/*.py` to `lessons/*.ipynb` and `solutions/exNN/exNN.ipynb`, and back.

How a source is written stands in authoring/README.md. Two things hold the two forms together:

- The id of a cell is a hash of its content, or its grade id. It stays with the cell while somebody edits it in
  JupyterLab, so that an edit finds its way back to the right place of the source.
- A notebook carries a digest of the cells that it was built from. From it follows which side was edited since, and
  no edit is ever overwritten by the other side.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers.errors import CourseError
from helpers.notebook import GRADE_FLAGS, KERNEL
from helpers.state import course_root

LESSON = re.compile(r"\d\d_[a-z0-9_]+")
EXERCISE = re.compile(r"ex\d\d")
BUILD = "course notebooks"

WITH_POINTS = ("test", "essay")
GRADE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # also the form of a cell id in nbformat 4.5

MARKER = re.compile(r"# %%(\s|$)")
PERCENT = {"extension": ".py", "format_name": "percent"}
ESCAPED = re.compile(r"\s*([!%?#]|[A-Za-z_]\w*\s*=\s*[!%])")  # what a line may be that the reader uncommented


@dataclass(frozen=True)
class Cell:
    """What a cell says, in the one form that a source and a notebook can be compared in.

    White space at its end says nothing and is taken off; `tags` are the short ones, sorted.
    """

    kind: str
    source: str
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, source: str, tags: Iterable[str]) -> Cell:
        return cls(kind, source.rstrip(), tuple(sorted(_canonical(tag) for tag in tags)))

    @property
    def grade_tags(self) -> list[str]:
        return [tag for tag in self.tags if tag.partition(":")[0] in GRADE_FLAGS]


@dataclass(frozen=True)
class Piece:
    """A cell as it stands in a source: its lines, marker first, the count of empty lines after, its line number."""

    cell: Cell
    lines: tuple[str, ...]
    blanks: int
    line: int


@dataclass(frozen=True)
class Source:
    """One parsed file of authoring/: its header as written, what the header says, and its cells."""

    path: Path
    header: tuple[str, ...]
    course: dict[str, Any]
    pieces: tuple[Piece, ...]

    @cached_property
    def cells(self) -> list[Cell]:
        return [piece.cell for piece in self.pieces]

    @cached_property
    def digest(self) -> str:
        return _digest(self.course, self.cells)

    @cached_property
    def notebook(self) -> str:
        """The text of its notebook: the same bytes for the same source."""
        return _render(self)


def build_all(check: bool = False) -> list[Path]:
    """Bring every notebook in step with its source.

    Args:
        check: write nothing, only look.

    Returns:
        The notebooks that were written, each replaced in one step; a notebook whose bytes would not change is left.
        With `check`, all notebooks that there are.

    Raises:
        CourseError: a source is wrong; a notebook has no source, or has edits that are not in its source yet (all
            others are written first); with `check`, every notebook that is not what its source says.
    """
    built = {_target(path): read_source(path) for path in _source_paths()}
    verdicts = {target: _verdict(target, source) for target, source in built.items()}
    verdicts.update({orphan: f"no {_shown(_source_path(orphan))}" for orphan in _orphans(built)})
    wrong = {target: verdict for target, verdict in verdicts.items() if verdict}
    written = []
    if not check:
        written = [target for target in wrong if target in built and wrong[target] not in EDITED]
        for target in written:
            _write(target, built[target].notebook)
            del wrong[target]
    if wrong:
        raise _out_of_step(wrong)
    return list(built) if check else written


def write_back(ipynb: Path) -> Path:
    """Take edits made in JupyterLab into the source, and build the notebook from it again.

    Only the cells that were edited change in the source; outputs, execution counts and view settings are not edits.
    JupyterLab should then reload the notebook from disk.

    Returns:
        The source, written only if something in the notebook was edited.

    Raises:
        CourseError: the file is no notebook of this course; the source was edited as well; or a cell holds what a
            source cannot (a pasted image, a line that reads as the start of a cell).
    """
    target = Path(ipynb).resolve()
    path = _source_path(target)
    if path is None or not path.is_file():
        raise CourseError(
            f"{_shown(target)} is not a notebook of this course.",
            "Name one in lessons/ or solutions/ that has its source in authoring/.",
        )
    notebook, source = _read_notebook(target), read_source(path)
    verdict = _verdict(target, source)
    if verdict == BOTH_EDITED:
        raise _out_of_step({target: verdict})
    if verdict == NOTEBOOK_EDITED:
        text = _merged(source, notebook, _shown(target))
        _write(path, text)
        source = read_source(path)
    _write(target, source.notebook)
    return path


# ---- source files


def read_source(path: Path) -> Source:
    """Read one file of authoring/.

    Raises:
        CourseError: with the file, and the cell and line where there is one.
    """
    name = _shown(path)
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise CourseError(f"{name} is not UTF-8: {error.reason} at byte {error.start}.", "Save it as UTF-8.") from None
    return _parse(text, path)


def _parse(text: str, path: Path) -> Source:
    name, lines = _shown(path), text.splitlines()
    if text != "".join(f"{line}\n" for line in lines):
        raise CourseError(
            f"{name} has a line that does not end with a plain line feed.",
            "Save it with Unix line ends, a newline at its end, and no form feed or Unicode line separator.",
        )
    start = next((i for i, line in enumerate(lines) if MARKER.match(line)), None)
    if start is None:
        raise CourseError(f"{name} has no cell.", "Begin each cell with a line `# %%` or `# %% [markdown]`.")
    course = _course(lines[:start], name)
    if not course and LESSON.fullmatch(path.stem):
        raise CourseError(f"{name} has no course header.", "Copy the header that authoring/README.md shows.")
    pieces = _pieces(lines[start:], start + 1, name)
    _check_tags(pieces, name, graded=bool(EXERCISE.fullmatch(path.stem)))
    return Source(path, tuple(lines[:start]), course, pieces)


def _course(header: list[str], name: str) -> dict[str, Any]:
    import yaml

    kept = [line for line in header if line.strip()]
    if not kept:
        return {}
    if len(kept) < 2 or kept[0] != "# ---" or kept[-1] != "# ---" or not all(line.startswith("#") for line in kept):
        raise CourseError(
            f"{name} has text before its first cell that is not a header.",
            "Put the header between two lines `# ---`, and all else into cells.",
        )
    try:
        data = yaml.safe_load("\n".join(line[2:] for line in kept[1:-1]))
    except yaml.YAMLError as error:
        raise CourseError(
            f"The header of {name} is not YAML: {_one_line(error)}.", "Copy the header that authoring/README.md shows."
        ) from None
    match data:
        case {"jupyter": {"course": dict(course), **more}, **others} if not more and not others:
            return course
    raise CourseError(
        f"The header of {name} must hold `jupyter: course:` with its fields, and nothing else.",
        "Copy the header that authoring/README.md shows.",
    )


def _pieces(lines: list[str], first_line: int, name: str) -> tuple[Piece, ...]:
    pieces = []
    for number, (node, own) in enumerate(_read_cells(lines), 1):
        where = f"{name}, cell {number} (line {first_line})"
        blanks = next(i for i, line in enumerate(reversed(own)) if line)
        kept = tuple(own[: len(own) - blanks])
        _check_uncommented(kept, node, where)
        cell = Cell.of(node.cell_type, _source_text(node, kept), _tags_of(node, where))
        pieces.append(Piece(cell, kept, blanks, first_line))
        first_line += len(own)
    return tuple(pieces)


def _read_cells(lines: list[str]) -> list[tuple[Any, list[str]]]:
    """Each cell as jupytext reads it, with the lines that it was read from."""
    jupytext = _jupytext()
    nodes = jupytext.reads("\n".join(lines) + "\n", fmt=dict(PERCENT)).cells
    spans, rest = [], lines
    while rest:
        reader = jupytext.cell_reader.DoublePercentScriptCellReader(dict(PERCENT), "python")
        used = reader.read(rest)[1]
        spans.append(rest[:used])
        rest = rest[used:]
    return list(zip(nodes, spans, strict=True))


def _source_text(node: Any, lines: tuple[str, ...]) -> str:
    # in a text cell jupytext takes a line such as `# # copy` for a command, and one `#` too many off it
    if node.cell_type == "code" or "cell_marker" in node.metadata:
        return node.source
    return "\n".join(_jupytext().cell_reader.uncomment(lines[1:]))


def _tags_of(node: Any, where: str) -> list[str]:
    unknown = set(node.metadata) - {"tags", "lines_to_next_cell", "cell_marker"}
    tags = node.metadata.get("tags", [])
    if unknown or not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        what = f"the option {sorted(unknown)[0]!r}" if unknown else f"tags={tags!r}"
        raise CourseError(f"{where} has {what}.", 'A cell takes tags only, as in `# %% tags=["plumbing"]`.')
    return tags


def _check_uncommented(lines: tuple[str, ...], node: Any, where: str) -> None:
    # jupytext reads `# copy the file` and `# why?` as a shell command and a help request, and uncomments them
    if node.cell_type != "code" or "language=" in lines[0]:
        return
    going_on = False
    for written, read in zip(lines[1:], node.source.splitlines(), strict=False):
        changed = written != read
        if changed and not going_on and not ESCAPED.match(read):
            raise CourseError(
                f"{where}: the comment `{written.strip()}` would become the command `{read.strip()}`.",
                "Begin the comment with another word.",
            )
        going_on = changed and read.rstrip().endswith("\\")


def _check_tags(pieces: tuple[Piece, ...], name: str, graded: bool) -> None:
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        where = f"{name}, cell {number} (line {piece.line})"
        tags = [tag for tag in piece.cell.tags if tag in piece.cell.grade_tags or (graded and ":" in tag)]
        if tags and not graded:
            raise CourseError(f"{where} has the tag `{tags[0]}`.", "Only a cell of an exercise (exNN.py) is graded.")
        if len(tags) > 1:
            raise CourseError(f"{where} has {len(tags)} grading tags: {', '.join(tags)}.", "Leave one of them.")
        for tag in tags:
            grade_id = _checked_grade_id(tag, piece.cell.kind, where)
            if grade_id in seen:
                raise CourseError(
                    f"{where} has the id `{grade_id}`, which cell {seen[grade_id]} has already.", "Give it another id."
                )
            seen[grade_id] = number


def _checked_grade_id(tag: str, kind: str, where: str) -> str:
    word, *rest = tag.split(":")
    if word not in GRADE_FLAGS:
        raise CourseError(
            f"{where} has the unknown tag `{tag}`.", f"A grading tag begins with {', '.join(GRADE_FLAGS)}."
        )
    form = f"{word}:ID:POINTS" if word in WITH_POINTS else f"{word}:ID"
    if len(rest) != form.count(":") or not GRADE_ID.fullmatch(rest[0]):
        raise CourseError(f"{where} has the tag `{tag}`.", f"Write `{form}`; an id has letters, digits, `_` and `-`.")
    if word in WITH_POINTS and not re.fullmatch(r"\d+(\.\d+)?", rest[1]):
        raise CourseError(f"{where} gives `{rest[1]}` points.", "Give a number, 0 or more.")
    if kind == "raw" or (kind == "markdown" and word in ("test", "solution")):
        raise CourseError(f"{where} is a {kind} cell with the tag `{tag}`.", "nbgrader takes that on a code cell only.")
    return rest[0]


def _canonical(tag: str) -> str:
    word, _, rest = tag.partition(":")
    grade_id, _, points = rest.partition(":")
    if word in WITH_POINTS and re.fullmatch(r"\d+(\.\d+)?", points):
        return f"{word}:{grade_id}:{float(points):g}"
    return tag


# ---- notebooks


def _render(source: Source) -> str:
    import nbformat

    cells = [_cell_json(cell, cell_id) for cell, cell_id in zip(source.cells, _ids(source.cells), strict=True)]
    metadata = {**KERNEL, "authoring": {"built_from": source.digest}}
    if source.course:
        metadata["course"] = source.course
    notebook = nbformat.from_dict({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def _cell_json(cell: Cell, cell_id: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for tag in cell.grade_tags:
        word, grade_id, *points = tag.split(":")
        metadata["nbgrader"] = {**GRADE_FLAGS[word], "grade_id": grade_id, "schema_version": 3}
        for number in points:
            metadata["nbgrader"]["points"] = int(number) if number.isdigit() else float(number)
    plain = [tag for tag in cell.tags if tag not in cell.grade_tags]
    if plain:
        metadata["tags"] = plain
    code = {"execution_count": None, "outputs": []} if cell.kind == "code" else {}
    return {"cell_type": cell.kind, "id": cell_id, "metadata": metadata, "source": cell.source, **code}


def _ids(cells: list[Cell]) -> list[str]:
    seen: Counter[str] = Counter()
    ids = []
    for cell in cells:
        base = hashlib.sha256(f"{cell.kind}\n{cell.source}".encode()).hexdigest()[:8]
        seen[base] += 1
        plain = base if seen[base] == 1 else f"{base}-{seen[base]}"
        ids.append(next((tag.split(":")[1] for tag in cell.grade_tags), plain))
    return ids


def _digest(course: Any, cells: list[Cell]) -> str:
    said = [course or {}, [[cell.kind, cell.source, cell.tags] for cell in cells]]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read_notebook(path: Path) -> Any:
    import nbformat

    name = _shown(path)
    fix = f"Delete it and run `{BUILD}`, which builds it again from authoring/."
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CourseError(f"{name} does not exist.", "Give the path of a notebook.") from None
    except ValueError:  # not JSON, or not UTF-8
        raise CourseError(f"{name} is not a notebook: it is not JSON.", fix) from None
    if not isinstance(data, dict) or data.get("nbformat") != 4 or not isinstance(data.get("cells"), list):
        raise CourseError(f"{name} is not a notebook of format 4.", fix)
    try:
        notebook = nbformat.from_dict(data)
        nbformat.validate(notebook)
        return nbformat.v4.rwbase.rejoin_lines(notebook)
    except nbformat.ValidationError as error:
        raise CourseError(f"{name} is not a valid notebook: {_one_line(error)}.", fix) from None


def _notebook_cells(notebook: Any) -> list[Cell]:
    return [
        Cell.of(node.cell_type, node.source, [*node.metadata.get("tags", []), *_short_tag(node.metadata)])
        for node in notebook.cells
    ]


def _short_tag(metadata: Any) -> list[str]:
    graded = metadata.get("nbgrader") or {}
    flags = {key: bool(graded.get(key)) for key in GRADE_FLAGS["test"]}
    if not any(flags.values()):
        return []
    word = next((word for word, known in GRADE_FLAGS.items() if known == flags), "task")  # a task has no short tag
    points = [str(graded.get("points", ""))] if flags["grade"] else []
    return [":".join([word, str(graded.get("grade_id", "")), *points])]


# ---- which side was edited

MISSING, UNREADABLE, BEHIND = "missing", "not a notebook", "not what its source says"
RUN = "holds outputs or settings of a run"
NOTEBOOK_EDITED, BOTH_EDITED = "edited in JupyterLab", "edited in JupyterLab, and its source too"
EDITED = (NOTEBOOK_EDITED, BOTH_EDITED)


def _verdict(target: Path, source: Source) -> str:
    """What is wrong with a notebook; empty if its bytes are what the source says."""
    if not target.is_file():
        return MISSING
    if target.read_bytes() == source.notebook.encode():
        return ""
    try:
        notebook = _read_notebook(target)
    except CourseError:
        return UNREADABLE
    built_from = (notebook.metadata.get("authoring") or {}).get("built_from")
    now = _digest(notebook.metadata.get("course"), _notebook_cells(notebook))
    if now == source.digest:
        return RUN
    if now == built_from:
        return BEHIND
    return NOTEBOOK_EDITED if source.digest == built_from else BOTH_EDITED


def _out_of_step(wrong: dict[Path, str]) -> CourseError:
    named = ", ".join(f"{_shown(path)} ({verdict})" for path, verdict in sorted(wrong.items()))
    fixes = []
    for path, verdict in sorted(wrong.items()):
        name = _shown(path)
        if verdict == NOTEBOOK_EDITED:
            fixes.append(f"run `{BUILD} --from {name}` to keep the edits of the notebook, or delete it to drop them")
        elif verdict == BOTH_EDITED:
            fixes.append(
                f"undo the edits in one of {name} and {_shown(_source_path(path))}, and make them in the other"
            )
        elif verdict.startswith("no "):
            fixes.append(f"delete {name}, or give it a source")
    fixes.append(f"run `{BUILD}`")
    fix = "; then ".join(fixes)
    return CourseError(f"Not in step with authoring/: {named}.", f"{fix[0].upper()}{fix[1:]}.")


# ---- back into a source


def _merged(source: Source, notebook: Any, name: str) -> str:
    if (notebook.metadata.get("course") or {}) != source.course:
        raise CourseError(
            f"The course metadata of {name} was edited.", f"Edit it in the header of {_shown(source.path)} instead."
        )
    for number, node in enumerate(notebook.cells, 1):
        if node.get("attachments"):
            raise CourseError(
                f"{name}, cell {number} has a pasted image, which a source cannot hold.",
                "Save the image as a file, and refer to that.",
            )
    cells = _notebook_cells(notebook)
    old = _matched([node.get("id") for node in notebook.cells], cells, source)
    pieces = [_updated(cell, piece, piece is source.pieces[-1]) for cell, piece in zip(cells, old, strict=True)]
    text = _composed(source.header, pieces)
    _check_reads_back(text, source.path, pieces, name)
    return text


def _matched(ids: list[str | None], cells: list[Cell], source: Source) -> list[Piece | None]:
    """For each cell of the notebook the piece it came from: by its id, else by what it says."""
    free = dict(zip(_ids(source.cells), source.pieces, strict=True))
    found = [free.pop(cell_id, None) for cell_id in ids]
    left = list(free.values())
    for i, cell in enumerate(cells):
        same = next((piece for piece in left if found[i] is None and piece.cell == cell), None)
        if same:
            found[i] = same
            left.remove(same)
    return found


def _updated(cell: Cell, old: Piece | None, was_last: bool) -> Piece:
    blanks = 1 if old is None or was_last else old.blanks
    if old is None or old.cell != cell:
        return Piece(cell, _cell_lines(cell, old), blanks, 0)
    return Piece(cell, old.lines, blanks, 0)


def _cell_lines(cell: Cell, old: Piece | None) -> tuple[str, ...]:
    import nbformat

    metadata = {"tags": list(cell.tags)} if cell.tags else {}
    node = nbformat.from_dict({"cell_type": cell.kind, "source": cell.source, "metadata": metadata})
    lines = _jupytext().cell_to_text.DoublePercentCellExporter(node, "python", dict(PERCENT)).cell_to_text()
    if old:  # the marker stays as its author wrote it, if it still says the same
        kept = [old.lines[0], *lines[1:]]
        if _reads_back(Piece(cell, tuple(kept), 0, 0)):
            return tuple(kept)
    return tuple(lines)


def _composed(header: Iterable[str], pieces: list[Piece]) -> str:
    lines = list(header)
    for piece in pieces:
        lines += [*piece.lines, *[""] * piece.blanks]
    return "\n".join(lines).rstrip("\n") + "\n"


def _check_reads_back(text: str, path: Path, pieces: list[Piece], name: str) -> None:
    cells, read = [piece.cell for piece in pieces], []
    with suppress(CourseError):
        read = _parse(text, path).cells
    if read == cells:
        return
    alone = (i for i, piece in enumerate(pieces, 1) if not _reads_back(piece))
    first = (i for i, (a, b) in enumerate(zip_longest(read, cells), 1) if a != b)
    raise CourseError(
        f"{name}, cell {next(alone, None) or next(first)} cannot be written to {_shown(path)} so that it reads back.",
        "Change it: no line may begin with `# %%`, a command begins with `!`, `%` or `?`, and a code fence is closed.",
    )


def _reads_back(piece: Piece) -> bool:
    with suppress(CourseError):
        return [read.cell for read in _pieces(list(piece.lines), 1, "")] == [piece.cell]
    return False


# ---- files


def _source_paths() -> list[Path]:
    folder = course_root() / "authoring"
    if not folder.is_dir():
        raise CourseError("The folder authoring/ is missing.", "Restore it: `git checkout -- authoring`.")
    paths = sorted(folder.glob("*.py"))
    for path in paths:
        if not (LESSON.fullmatch(path.stem) or EXERCISE.fullmatch(path.stem)):
            raise CourseError(
                f"authoring/{path.name} is neither a lesson nor an exercise by its name.",
                "Call it NN_name.py (a lesson) or exNN.py (an exercise).",
            )
    return paths


def _target(source: Path) -> Path:
    root, stem = course_root(), source.stem
    if EXERCISE.fullmatch(stem):
        return root / "solutions" / stem / f"{stem}.ipynb"
    return root / "lessons" / f"{stem}.ipynb"


def _source_path(target: Path) -> Path | None:
    """Where the source of a notebook is, there or not; None for a file that is not where ours are."""
    path = course_root() / "authoring" / f"{target.stem}.py"
    named = LESSON.fullmatch(target.stem) or EXERCISE.fullmatch(target.stem)
    return path if named and _target(path) == target else None


def _orphans(built: dict[Path, Source]) -> list[Path]:
    root = course_root()
    there = [*root.glob("lessons/*.ipynb"), *root.glob("solutions/*/*.ipynb")]
    return [path for path in there if path not in built and _source_path(path)]


def _write(path: Path, text: str) -> None:
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise CourseError(
            f"{_shown(path)} cannot be written: {error.strerror}.", "Make the folder writable, then run it again."
        ) from None


def _shown(path: Path | None) -> str:
    root = course_root()
    return str(path.relative_to(root)) if path and path.is_relative_to(root) else str(path)


def _jupytext() -> ModuleType:
    try:
        import jupytext.cell_reader
        import jupytext.cell_to_text
    except ImportError:
        raise CourseError(
            "jupytext is not installed: the learner's environment goes without it.",
            "Run `make fast`, which installs what authors and tests need.",
        ) from None
    return jupytext


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")

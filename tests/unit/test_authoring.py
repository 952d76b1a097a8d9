"""Sources to notebooks and back: nothing changes that nobody edited, and nothing that somebody edited is lost."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import authoring
from helpers.authoring import build_all, write_back
from helpers.errors import CourseError

HEADER = """\
# ---
# jupyter:
#   course:
#     id: "01"
#     title: "Anatomy: a cluster by hand"   # a comment that must survive
#     rows: ["0.4", "0.20"]
# ---

"""

# layout that a formatter or a writer could lose: two blanks, no blank, doubled markers, lines with trailing blanks
NASTY = HEADER + dedent('''\
    # %% [markdown]
    # # 1 · Anatomy ✔
    #
    # - one
    #     - nested  \n\
    #   two blanks end the line above
    #
    # ```python
    # # copy this line with its mark
    #
    # # %% not a cell: it stands in a fence
    # ```

    # %%
    # plain comment
    !kubectl apply -f manifests/a.yaml


    # %% tags=["plumbing", "predict"]
    # plumbing: both tags
    # !kubectl apply -f a.yaml \\
    #   --server-side
    # %env A=1
    # out = !ray status
    text = """
    # %% this is a string
    """
    # %%
    # %% [raw]
    # raw ✘ text
    # %% language="bash"
    # kubectl get pods
    # echo "# %% still bash"

    # %% tags=["plumbing"]

    def f():

        return "done"   \n\


    # %%
    ""

    # %% [markdown]
    """
    Text in quotes, as some write it.
    """

    # %%
    ""
    # %% [markdown]
    # The end.
    ''')


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty course, in which `authoring/01_anatomy.py` can be written and built."""
    (tmp_path / "authoring").mkdir()
    monkeypatch.setattr(authoring, "course_root", lambda: tmp_path.resolve())
    return tmp_path.resolve()


def lesson(course: Path, text: str = NASTY, name: str = "01_anatomy") -> tuple[Path, Path]:
    """Write a source and build it: the source and its notebook."""
    source = course / "authoring" / f"{name}.py"
    source.write_text(text)
    build_all()
    return source, course / "lessons" / f"{name}.ipynb"


def saved_by_jupyterlab(path: Path) -> None:
    """Change a notebook in every way that running and saving it does."""
    notebook = json.loads(path.read_text())
    notebook["metadata"]["kernelspec"] = {"display_name": "Mine", "language": "python", "name": "mine"}
    notebook["metadata"]["language_info"] = {"name": "python", "version": "3.11.7", "file_extension": ".py"}
    notebook["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    for count, cell in enumerate(notebook["cells"], 1):
        cell["metadata"] |= {"collapsed": True, "jupyter": {"source_hidden": True}, "editable": True}
        if cell["cell_type"] == "code":
            cell["execution_count"] = count
            cell["metadata"]["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": ["7\n"]}]
    path.write_text(json.dumps(notebook, indent=1) + "\n")


def edit(path: Path, change) -> None:
    """Let `change` edit the notebook's JSON, sources as one string each, and save it as JupyterLab would."""
    notebook = nbformat.read(path, as_version=4)
    change(notebook.cells)
    path.write_text(nbformat.writes(notebook) + "\n")


def sources(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in nbformat.read(path, as_version=4).cells]


# ---- building


def test_a_notebook_says_what_its_source_says(course):
    _, notebook = lesson(course)
    cells = sources(notebook)
    assert [kind for kind, _ in cells] == [
        *("markdown", "code", "code", "code", "raw", "code", "code", "code", "markdown", "code", "markdown")
    ]
    assert cells[0][1].startswith("# 1 · Anatomy ✔\n\n- one\n    - nested  \n  two blanks")
    assert cells[0][1].endswith("# copy this line with its mark\n\n# %% not a cell: it stands in a fence\n```")
    assert cells[1][1] == "# plain comment\n!kubectl apply -f manifests/a.yaml"
    assert cells[2][1] == (
        "# plumbing: both tags\n!kubectl apply -f a.yaml \\\n  --server-side\n%env A=1\nout = !ray status\n"
        'text = """\n# %% this is a string\n"""'
    )
    assert cells[3:6] == [
        ("code", ""),
        ("raw", "raw ✘ text"),
        ("code", '%%bash\nkubectl get pods\necho "# %% still bash"'),
    ]
    assert cells[6][1] == '\ndef f():\n\n    return "done"'
    assert cells[8] == ("markdown", "Text in quotes, as some write it.")


def test_a_notebook_is_bare_and_valid(course):
    _, path = lesson(course)
    text = path.read_text()
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert text.endswith("}\n") and (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.display_name == "Python 3 (ipykernel)"
    assert notebook.metadata.language_info == {"name": "python"}
    assert notebook.metadata.course == {"id": "01", "title": "Anatomy: a cluster by hand", "rows": ["0.4", "0.20"]}
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")
    assert notebook.cells[2].metadata == {"tags": ["plumbing", "predict"]}


def test_the_example_of_the_readme_builds(course):
    readme = (Path(__file__).parents[2] / "authoring" / "README.md").read_text()
    _, path = lesson(course, re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1])
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.course.rows == ["0.4", "0.20", "1.3", "1.4", "2.9"]
    assert notebook.cells[1].source == '!ray status\nlab.run_on_head("nproc")'


def test_only_changed_notebooks_are_written(course):
    _, first = lesson(course)
    _, second = lesson(course, name="02_three_ways")
    before = first.stat().st_mtime_ns
    source = course / "authoring" / "02_three_ways.py"
    source.write_text(source.read_text() + "\n# %%\nx = 2\n")
    assert build_all() == [second]
    assert build_all() == [] and first.stat().st_mtime_ns == before
    assert [path.name for path in course.rglob("*.part")] == []


def test_a_new_cell_leaves_the_ids_of_the_others(course):
    source, path = lesson(course)
    before = [cell.id for cell in nbformat.read(path, as_version=4).cells]
    source.write_text(source.read_text().replace("# %%\n# plain", "# %%\nnew = 1\n\n# %%\n# plain"))
    build_all()
    after = [cell.id for cell in nbformat.read(path, as_version=4).cells]
    assert after[:1] + after[2:] == before and len(set(after)) == len(after)


def test_an_exercise_goes_to_solutions_with_nbgrader_metadata(course):
    (course / "authoring" / "ex01.py").write_text(
        '# %% [markdown] tags=["locked:intro"]\n# Do this.\n\n# %% tags=["solution:shape"]\nshape = 1\n\n'
        '# %% tags=["plumbing", "test:check_shape:4"]\n# plumbing: x\ncheck(shape)\n\n'
        '# %% [markdown] tags=["essay:why:2.5"]\n# Because.\n'
    )
    path = course / "solutions" / "ex01" / "ex01.ipynb"
    assert build_all() == [path]
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.id for cell in cells] == ["intro", "shape", "check_shape", "why"]
    flags = {"grade": False, "locked": False, "solution": False, "task": False, "schema_version": 3}
    assert [cell.metadata.nbgrader for cell in cells] == [
        flags | {"locked": True, "grade_id": "intro"},
        flags | {"solution": True, "grade_id": "shape"},
        flags | {"grade": True, "locked": True, "grade_id": "check_shape", "points": 4},
        flags | {"grade": True, "solution": True, "grade_id": "why", "points": 2.5},
    ]
    assert cells[2].metadata.tags == ["plumbing"]
    from nbgrader.nbgraderformat import MetadataValidator

    MetadataValidator().validate_nb(nbformat.read(path, as_version=4))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("01_a.py", "# %%\nx = 1\n", "authoring/01_a.py has no course header"),
        ("01_a.py", HEADER, "authoring/01_a.py has no cell"),
        ("01_a.py", "", "authoring/01_a.py has no cell"),
        ("01_a.py", "import ray\n# %%\n", "text before its first cell"),
        ("01_a.py", HEADER.replace('id: "01"', 'id: "01" x') + "# %%\n", "header of authoring/01_a.py is not YAML"),
        ("01_a.py", HEADER.replace("course:", "other:") + "# %%\n", "must hold `jupyter: course:`"),
        ("01_a.py", HEADER + "# %%\nx = 1\r\n", "does not end with a plain line feed"),
        ("01_a.py", HEADER + "# %%\nx = 1", "does not end with a plain line feed"),
        ("01_a.py", HEADER + "# %%\nx = '\u2028'\n", "does not end with a plain line feed"),
        ("01_a.py", HEADER + "# %% A title\nx = 1\n", "cell 1 (line 9) has the option 'title'"),
        ("01_a.py", HEADER + "# %%\nx\n\n# %%\n# copy the file\n", "cell 2 (line 12): the comment `# copy the file`"),
        ("01_a.py", HEADER + "# %%\n# why?\n", "would become the command `why?`"),
        ("01_a.py", HEADER + '# %% tags=["test:a:1"]\n', "Only a cell of an exercise"),
        ("anatomy.py", HEADER + "# %%\n", "authoring/anatomy.py is neither a lesson nor an exercise"),
        ("ex01.py", '# %% tags=["test:a"]\n', "cell 1 (line 1) has the tag `test:a`"),
        ("ex01.py", '# %% tags=["test::3"]\n', "has the tag `test::3`"),
        ("ex01.py", '# %% tags=["solution"]\n', "has the tag `solution`"),
        ("ex01.py", '# %% tags=["solution:a:3"]\n', "has the tag `solution:a:3`"),
        ("ex01.py", '# %% tags=["test:a.b:3"]\n', "has the tag `test:a.b:3`"),
        ("ex01.py", '# %% tags=["test:a:many"]\n', "gives `many` points"),
        ("ex01.py", '# %% tags=["tset:a:1"]\n', "unknown tag `tset:a:1`"),
        ("ex01.py", '# %% [markdown] tags=["test:a:1"]\n# x\n', "is a markdown cell"),
        ("ex01.py", '# %% tags=["test:a:1", "locked:b"]\n', "2 grading tags"),
        ("ex01.py", '# %% tags=["test:a:1"]\nx\n\n# %% tags=["solution:a"]\n', "cell 2 (line 4) has the id `a`"),
    ],
)
def test_a_wrong_source_is_named_with_its_cell(course, name, text, says):
    (course / "authoring" / name).write_bytes(text.encode())
    with pytest.raises(CourseError, match=re.escape(says)):
        build_all()
    assert not list(course.rglob("*.ipynb"))


def test_a_source_that_is_not_utf8(course):
    (course / "authoring" / "01_a.py").write_bytes(HEADER.encode() + b"# %%\nx = '\xff'\n")
    with pytest.raises(CourseError, match="not UTF-8"):
        build_all()


def test_without_sources(course):
    assert build_all() == [] == build_all(check=True)
    (course / "authoring").rmdir()
    with pytest.raises(CourseError, match="authoring/ is missing"):
        build_all()


def test_a_folder_that_cannot_be_written(course):
    source, path = lesson(course)
    before = path.read_bytes()
    source.write_text(source.read_text() + "\n# %%\nx = 2\n")
    # root may write anywhere, so a folder in the way stands in for a file system that is read-only
    (course / "lessons" / f".{path.name}.{os.getpid()}.part").mkdir()
    with pytest.raises(CourseError, match=r"lessons/01_anatomy.ipynb cannot be written"):
        build_all()
    assert path.read_bytes() == before


def test_without_jupytext(course, monkeypatch):
    source = course / "authoring" / "01_anatomy.py"
    source.write_text(NASTY)
    monkeypatch.setitem(sys.modules, "jupytext", None)
    monkeypatch.setitem(sys.modules, "jupytext.cell_reader", None)
    with pytest.raises(CourseError, match="make fast"):
        build_all()


# ---- checking


def fails(course: Path) -> str:
    """What `course notebooks --check` says; it must leave every file alone."""
    before = {path: path.read_bytes() for path in course.rglob("*") if path.is_file()}
    with pytest.raises(CourseError) as caught:
        build_all(check=True)
    assert before == {path: path.read_bytes() for path in course.rglob("*") if path.is_file()}
    return str(caught.value)


def test_check_names_each_notebook_and_what_to_run(course):
    source, first = lesson(course)
    _, second = lesson(course, name="02_three_ways")
    assert build_all(check=True) == [first, second]
    second.unlink()
    source.write_text(source.read_text() + "\n# %%\nx = 2\n")
    said = fails(course)
    assert "lessons/01_anatomy.ipynb (not what its source says), lessons/02_three_ways.ipynb (missing)" in said
    assert said.endswith("Run `course notebooks`.")
    assert build_all() == [first, second] and build_all(check=True) == [first, second]


def test_check_tells_a_run_from_an_edit(course):
    _, path = lesson(course)
    saved_by_jupyterlab(path)
    assert "lessons/01_anatomy.ipynb (holds outputs or settings of a run)" in fails(course)
    edit(path, lambda cells: cells[1].update(source="changed = 1"))
    said = fails(course)
    assert "(edited in JupyterLab)" in said and "`course notebooks --from lessons/01_anatomy.ipynb`" in said


def test_a_build_takes_outputs_off_but_never_overwrites_an_edit(course):
    _, path = lesson(course)
    clean = path.read_bytes()
    saved_by_jupyterlab(path)
    assert build_all() == [path] and path.read_bytes() == clean
    edit(path, lambda cells: cells.pop(3))
    edited = path.read_bytes()
    with pytest.raises(CourseError, match="--from lessons/01_anatomy.ipynb"):
        build_all()
    assert path.read_bytes() == edited


def test_an_orphan_is_named_and_a_copy_of_the_learner_is_not(course):
    _, path = lesson(course)
    for name in ("99_gone.ipynb", "01_anatomy-Copy1.ipynb", "Untitled.ipynb"):
        (course / "lessons" / name).write_bytes(path.read_bytes())
    said = fails(course)
    assert "lessons/99_gone.ipynb (no authoring/99_gone.py)" in said and "delete lessons/99_gone.ipynb" in said.lower()
    assert "Copy1" not in said and "Untitled" not in said


def test_a_broken_notebook_is_built_again(course):
    _, path = lesson(course)
    clean = path.read_bytes()
    path.write_text("<<<<<<< ours\n{}\n")
    assert "(not a notebook)" in fails(course)
    assert build_all() == [path] and path.read_bytes() == clean


# ---- back into the source


def test_a_round_trip_changes_nothing(course):
    source, path = lesson(course)
    built = path.read_bytes()
    assert write_back(path) == source
    assert source.read_text() == NASTY and path.read_bytes() == built


def test_a_round_trip_after_a_run_changes_nothing(course):
    source, path = lesson(course)
    built = path.read_bytes()
    saved_by_jupyterlab(path)
    write_back(path)
    assert source.read_text() == NASTY and path.read_bytes() == built


@pytest.mark.parametrize("index", range(11))
def test_an_edit_changes_only_its_cell(course, index):
    source, path = lesson(course)
    spans = [piece.lines for piece in authoring.read_source(source).pieces]
    saved_by_jupyterlab(path)
    edit(path, lambda cells: cells[index].update(source=cells[index].source + "\n# edited ✔\n!ls\n"))
    edited = sources(path)
    write_back(path)
    pieces = authoring.read_source(source).pieces
    assert [i for i, piece in enumerate(pieces) if piece.lines != spans[i]] == [index]
    assert pieces[index].lines[0] == spans[index][0], "the marker stays as written"
    assert source.read_text().startswith(HEADER)
    assert [(kind, text.rstrip()) for kind, text in edited] == sources(path)
    assert build_all(check=True) == [path]


def test_cells_added_removed_and_moved(course):
    source, path = lesson(course)
    spans = [piece.lines for piece in authoring.read_source(source).pieces]

    def change(cells):
        cells.append(cells.pop(0))  # the first goes last
        cells[0] = nbformat.v4.new_markdown_cell("New: `!ls`")  # the second is replaced
        cells.insert(3, nbformat.v4.new_code_cell("!ray status\n# copy that"))

    edit(path, change)
    edited = sources(path)
    write_back(path)
    assert sources(path) == edited and build_all(check=True)
    pieces = authoring.read_source(source).pieces
    assert [piece.lines for piece in pieces[4:]] == [*spans[4:], spans[0]]
    assert pieces[3].lines == ("# %%", "# !ray status", "# # copy that")
    assert [piece.lines for piece in pieces[1:3]] == spans[2:4]


def test_ids_that_are_gone_do_not_matter(course):
    source, path = lesson(course)
    notebook = json.loads(path.read_text())
    for i, cell in enumerate(notebook["cells"]):
        cell["id"] = f"new-{i}"
    notebook["cells"][1]["source"] = ["changed = 1"]
    path.write_text(json.dumps(notebook))
    write_back(path)
    changed = NASTY.replace("# plain comment\n!kubectl apply -f manifests/a.yaml\n\n\n", "changed = 1\n\n")
    assert source.read_text() == changed


def test_tags_and_points_come_back(course):
    source = course / "authoring" / "ex01.py"
    source.write_text(
        '# %% tags=["test:a:4"]\ncheck(1)\n\n# %% [markdown] tags=["essay:b:2.5"]\n# Why.\n\n# %%\nx = 1\n'
    )
    build_all()
    path = course / "solutions" / "ex01" / "ex01.ipynb"

    def change(cells):
        cells[0].metadata.nbgrader.points = 6.0
        cells[2].metadata.nbgrader = {**cells[0].metadata.nbgrader, "grade_id": "c", "solution": True, "grade": False}
        cells[2].metadata.nbgrader["locked"] = False
        cells[2].metadata.tags = ["plumbing"]

    edit(path, change)
    write_back(path)
    assert source.read_text() == (
        '# %% tags=["test:a:6"]\ncheck(1)\n\n# %% [markdown] tags=["essay:b:2.5"]\n# Why.\n\n'
        '# %% tags=["plumbing", "solution:c"]\nx = 1\n'
    )


def test_edits_on_both_sides_are_kept_on_both(course):
    source, path = lesson(course)
    edit(path, lambda cells: cells[1].update(source="mine = 1"))
    source.write_text(source.read_text() + "\n# %%\nx = 2\n")
    before = source.read_bytes(), path.read_bytes()
    for run in (lambda: write_back(path), build_all):
        with pytest.raises(CourseError, match="and its source too"):
            run()
        assert (source.read_bytes(), path.read_bytes()) == before


def test_a_notebook_that_is_only_behind_takes_nothing_back(course):
    source, path = lesson(course)
    newer = source.read_text() + "\n# %%\nx = 2\n"
    source.write_text(newer)
    write_back(path)
    assert source.read_text() == newer and build_all(check=True)


def test_two_edits_one_after_the_other(course):
    source, path = lesson(course)
    for text in ("a = 1", "a = 2"):
        edit(path, lambda cells, text=text: cells[1].update(source=text))
        write_back(path)
        assert f"# %%\n{text}\n" in source.read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda cells: cells[0].update(source="%% x\ntext"), "cell 1 cannot be written"),
        (lambda cells: cells[1].update(source="x = 1\n# %%\ny = 2"), "cell 2 cannot be written"),
        (lambda cells: cells[1].update(source="if x:\n    # In[3]:\n    y = 2"), "cell 2 cannot be written"),
        (
            lambda cells: cells[0].update(
                attachments={"a.png": {"image/png": "aGk="}}, source="![a](attachment:a.png)"
            ),
            "pasted",
        ),
    ],
)
def test_what_a_source_cannot_hold_is_refused(course, change, says):
    source, path = lesson(course)
    edit(path, change)
    before = path.read_bytes()
    with pytest.raises(CourseError, match=says):
        write_back(path)
    assert source.read_text() == NASTY and path.read_bytes() == before


def test_course_metadata_is_edited_in_the_header(course):
    source, path = lesson(course)
    notebook = json.loads(path.read_text())
    notebook["metadata"]["course"]["title"] = "Other"
    path.write_text(json.dumps(notebook))
    with pytest.raises(CourseError, match=r"header of authoring/01_anatomy.py"):
        write_back(path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("lessons/02_other.ipynb", "{}", "lessons/02_other.ipynb is not a notebook of this course"),
        ("elsewhere/01_anatomy.ipynb", "{}", "elsewhere/01_anatomy.ipynb is not a notebook of this course"),
        ("README.md", "# hello", "README.md is not a notebook of this course"),
        ("lessons/01_anatomy.ipynb", "{", "it is not JSON"),
        ("lessons/01_anatomy.ipynb", "[]", "not a notebook of format 4"),
        ("lessons/01_anatomy.ipynb", '{"nbformat": 3, "cells": []}', "not a notebook of format 4"),
        ("lessons/01_anatomy.ipynb", '{"nbformat": 4, "cells": [7]}', "not a valid notebook"),
        ("lessons/01_anatomy.ipynb", None, "does not exist"),
    ],
)
def test_files_that_are_no_notebooks_of_ours(course, name, text, says):
    lesson(course)
    path = course / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    with pytest.raises(CourseError, match=re.escape(says)):
        write_back(path)


# ---- any cell at all

LINES = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                "  ",
                "x = 1",
                "x = 1  ",
                "# comment",
                "## two",
                "# %% like a cell",
                "# %%",
                "%%bash",
                "%matplotlib inline",
            ),
            *(
                "!kubectl get pods",
                "!a \\",
                "  -b",
                "out = !ls",
                '"""',
                "'''",
                'text = """',
                "ray?",
                "?ray",
                "# ls",
                "cd x",
            ),
            *(
                "- item",
                "> quote",
                "```",
                "~~~",
                "---",
                "| a | b |",
                "✔ done",
                "\ttab",
                "    # %% indented",
                "# In[1]:",
            ),
            *(
                "# !echo",
                "# # !echo",
                "%%time",
                "$x^2$",
                "<b>",
                "def f():",
                "    return 1",
                "# +",
                "# -",
                "%%",
                "\\",
                "'",
            ),
        ]
    ),
    st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12),
)
CELLS = st.lists(
    st.tuples(st.sampled_from(["code", "markdown", "raw"]), st.lists(LINES, max_size=5).map("\n".join)), max_size=6
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=CELLS)
def test_any_cells_come_back_or_are_refused(course, cells):
    source = course / "authoring" / "01_anatomy.py"
    path = course / "lessons" / "01_anatomy.ipynb"
    path.unlink(missing_ok=True)
    source.write_text(HEADER + "# %%\nfirst = 1\n\n# %% [markdown]\n# last\n")
    build_all()
    make = {
        "code": nbformat.v4.new_code_cell,
        "markdown": nbformat.v4.new_markdown_cell,
        "raw": nbformat.v4.new_raw_cell,
    }
    edit(path, lambda old: old.__setitem__(slice(1, 1), [make[kind](text) for kind, text in cells]))
    wanted, before = [(kind, text.rstrip()) for kind, text in sources(path)], path.read_bytes()
    try:
        write_back(path)
    except CourseError:
        assert path.read_bytes() == before and "first = 1" in source.read_text()
        return
    assert sources(path) == wanted
    assert build_all(check=True) == [path]

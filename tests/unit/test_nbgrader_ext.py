"""What nbgrader is given in place of its own parts; kernels and gradebooks are in tests/live/test_grading.py."""

from __future__ import annotations

import base64

import pytest
from nbclient.exceptions import CellExecutionComplete
from nbformat import NotebookNode, v4

from helpers import authoring
from helpers.grading import nbgrader_ext as ext
from helpers.grading.check import check, hint
from tests.grading_submissions import find, source_notebook

PNG = base64.b64encode(b"\x89PNG").decode()


@pytest.mark.parametrize(
    ("text", "shown", "hidden"),
    [
        ("**so** `a < b`", "<strong>so</strong> <code>a &lt; b</code>", None),
        ("<script>steal()</script>", "&lt;script&gt;", "<script"),
        ("a <img src=x onerror=steal()>", "&lt;img", "<img"),
        ("[here](javascript:steal())", "here", "javascript:"),
        ("![gone](attachment:gone.png) <b>", "<pre>![gone](attachment:gone.png) &lt;b&gt;</pre>", None),
        ("$x<y$", "$x&lt;y$", None),
    ],
)
def test_what_a_learner_writes_does_not_act_in_a_browser(text, shown, hidden):
    html = ext.safe_markdown({"cell": {}}, text)
    assert shown in html
    assert hidden is None or hidden not in html


def test_a_pasted_picture_is_shown():
    pictures = {"a.png": {"image/png": PNG, "text/html": "<script>"}, "b": {"image/svg+xml": "<svg>"}, "c": 7}
    kept = ext._pictures(pictures)
    assert kept == {"a.png": {"image/png": PNG}}
    assert PNG in ext.safe_markdown({"cell": {"attachments": kept}}, "![a](attachment:a.png)")
    assert ext._pictures("nonsense") == {}


@pytest.mark.parametrize(
    ("kind", "content", "kept"),
    [
        ("stream", {"name": "stdout", "text": "a"}, True),
        ("stream", {"name": "stdin", "text": "a"}, False),
        ("stream", {"name": "stdout", "text": ["a"]}, False),
        ("error", {"ename": "E", "evalue": "e", "traceback": [1]}, True),
        ("display_data", {"data": {"text/plain": "a"}}, True),
        ("display_data", {"data": "a"}, False),
        ("comm_open", {"comm_id": "1", "target_name": "jupyter.widget", "data": {}}, False),
        ("update_display_data", {"data": {}, "transient": {"display_id": "1"}}, False),
        (None, {}, False),
    ],
)
def test_only_well_formed_outputs_are_kept(kind, content, kept):
    assert (ext._safe_output(kind, content) is not None) == kept


def test_html_and_scripts_of_a_kernel_are_dropped():
    data = {"text/plain": "a", "text/html": "<script>", "application/javascript": "steal()", "image/png": PNG}
    assert ext._safe_output("display_data", {"data": data}).data == {"text/plain": "a", "image/png": PNG}
    quoted = {"image/png": '"><script>steal()</script>'}
    assert ext._safe_output("display_data", {"data": quoted}).data == {}


@pytest.fixture
def execute():
    execute = ext.RobustExecute()
    execute._shown = 0
    return execute


def message(kind, **content):
    return {"msg_type": kind, "content": content}


def test_a_flood_is_cut_and_an_answer_is_not(execute):
    cell = v4.new_code_cell("")
    for _ in range(300):
        execute.process_message(message("stream", name="stdout", text="x" * 1000), cell, 0)
    execute.process_message(
        message("display_data", data={"text/plain": "7" * 500_000}, metadata={"answer": "k"}), cell, 0
    )
    execute.process_message(
        message("display_data", data={"text/plain": "8" * 500_000}, metadata={"answer": "k"}), cell, 0
    )
    stream, answer = cell.outputs
    assert ext.MAX_OUTPUT < len(stream.text) < ext.MAX_OUTPUT + 1200 and "the rest is cut" in stream.text
    assert answer.data["text/plain"] == "7" * 500_000


def test_the_end_of_a_cell_is_seen_and_nonsense_is_not(execute):
    cell = v4.new_code_cell("")
    for msg in ({}, {"msg_type": "status"}, message("status"), message(["stream"]), message("stream", name=1)):
        assert execute.process_message(msg, cell, 0) is None
    with pytest.raises(CellExecutionComplete):
        execute.process_message(message("status", execution_state="idle"), cell, 0)


def test_ours_are_the_tests_that_ask_for_a_question_of_an_exercise():
    notebook = source_notebook()
    assert [cell.id for cell in notebook.cells if ext.is_ours(cell)] == ["test-q1", "test-q2"]
    find(notebook, "test-q1").source = 'check("week1.a", shape)'
    assert [cell.id for cell in notebook.cells if ext.is_ours(cell)] == ["test-q2"], "another course has its own check"


def test_flags_are_those_that_sources_are_built_with():
    assert (ext.GRADE_FLAGS, ext.KERNEL) == (authoring.GRADE_FLAGS, authoring.KERNEL)


def test_normal_form_does_not_depend_on_who_saved_it():
    plain, saved = source_notebook(), source_notebook()
    saved.metadata = NotebookNode({"kernelspec": {"name": "x"}, "widgets": {}})
    for cell in saved.cells:
        cell.id = f"other-{cell.id}"
        cell.metadata.update(execution={"iopub.status.idle": "now"}, collapsed=True)
    assert ext.NormalizeNotebook().preprocess(plain, {})[0] == ext.NormalizeNotebook().preprocess(saved, {})[0]


def test_stderr_and_numbers_of_other_courses_tests_are_no_scores():
    cell = v4.new_code_cell("assert True", metadata={"nbgrader": {"grade": True}})
    cell.outputs = [
        v4.new_output("stream", name="stderr", text="careful"),
        v4.new_output("execute_result", data={"text/plain": "99"}, execution_count=1),
    ]
    ext.StderrIsNotFailure().preprocess_cell(cell, {}, 0)
    assert [output.output_type for output in cell.outputs] == ["stream", "display_data"]
    assert cell.outputs[0].name == "stdout"


def test_where_a_submission_runs_check_and_hint_say_that_the_grader_does_it(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_SANDBOX", "1")
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert check("ex99.q1", 7) is None and hint("ex99.q1") is None
    assert "the grader runs it" in capsys.readouterr().out

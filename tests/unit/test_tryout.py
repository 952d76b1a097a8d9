"""A manifest that is tried out: how it is shown, who applies it, what a failure is worth. The rest is in tests/live."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import psutil
import pytest

from helpers import cli, lab
from helpers.cluster import session as rooms
from helpers.cluster import tryout
from helpers.errors import CourseError
from helpers.grading import batch, evidence
from helpers.grading.check import HOSTS, KUBERNETES, find_suite
from helpers.rayhost import shape
from tests.unit.test_ex03 import ATLAS, ex03, run_of

PLAN = find_suite("ex03.q1_run").read(ATLAS)


def test_what_came_of_it_as_a_table():
    shown = tryout.Seen(PLAN, run_of(PLAN))
    assert [" ".join(line.split()) for line in str(shown).splitlines()] == [
        "Pod group Kubernetes node ready what Ray counts on it",
        "headgroup-0 headgroup cpu-a yes CPU 0, memory 2 GiB",
        "cpu-0 cpu cpu-a yes CPU 2, fast_disk 1, memory 2 GiB",
        "gpu-0 gpu gpu-a yes CPU 2, GPU 1, memory 2 GiB",
    ]
    assert "<td>CPU 2, fast_disk 1, memory 2 GiB</td>" in shown._repr_html_()


@pytest.fixture
def exercise(tmp_path, monkeypatch):
    """A lab of exercise 03 without a cluster; what it would apply is in `applied`."""
    made = lab.Lab.__new__(lab.Lab)
    made.applied, made._session = [], "the session"
    monkeypatch.setattr(tryout, "try_out", lambda session, plan: made.applied.append((session, plan)) or run_of(plan))
    monkeypatch.setattr(evidence, "_folder", [])
    evidence.keep_in(tmp_path)
    return made


def test_a_manifest_is_applied_and_what_came_of_it_is_kept(exercise, tmp_path):
    shown = exercise.try_out("ex03.q1_run", ATLAS)
    assert isinstance(shown, tryout.Seen) and exercise.applied == [("the session", PLAN)]
    [record] = evidence.read(tmp_path / "evidence.jsonl").records
    assert record.plan == PLAN and record.seen == run_of(PLAN) and not record.fault


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("\n", "· not answered yet: nothing is started"),
        ("kind: Pod", "✘ nothing is started: It has apiVersion None and kind 'Pod'"),
    ],
)
def test_nothing_to_apply(exercise, tmp_path, capsys, answer, said):
    assert exercise.try_out("ex03.q1_run", answer) is None
    assert capsys.readouterr().out.startswith(said)
    assert not exercise.applied and not list(tmp_path.glob("evidence*"))


def test_a_cluster_that_does_not_settle_is_said_and_not_kept(exercise, tmp_path, monkeypatch, capsys):
    def refused(session, plan):
        raise CourseError("It did not settle.", "Look.")

    monkeypatch.setattr(tryout, "try_out", refused)
    assert exercise.try_out("ex03.q1_run", ATLAS) is None
    assert capsys.readouterr().out == "✘ It did not settle. Look.\n" and not list(tmp_path.glob("evidence*"))


# ---- graders


class Session:
    """Stands for a namespace of a cluster that answers, or does not."""

    made: list[Session] = []

    def __init__(self, name, capabilities):
        assert name.startswith("ex-live-") and set(capabilities) >= {"kubernetes"}
        self.kube, self.closed = self, False
        Session.made.append(self)

    def version(self):
        return "1.36.3"

    def close(self):
        self.closed = True


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr(tryout, "Session", Session)
    monkeypatch.setattr(tryout, "require_memory", lambda: None)
    Session.made.clear()


def fail(*args):
    raise CourseError("Waited 300 s.", "Look.")


def test_a_manifest_that_comes_to_nothing_is_the_answers_fault(session, monkeypatch, capsys):
    monkeypatch.setattr(tryout, "try_out", fail)
    with pytest.raises(AssertionError, match=r"^this manifest was applied, and did not settle: Waited 300 s\.$"):
        tryout.run_apart(PLAN)
    assert [one.closed for one in Session.made] == [True] and not capsys.readouterr().out


def test_a_cluster_that_is_gone_is_not(session, monkeypatch):
    monkeypatch.setattr(tryout, "try_out", fail)
    monkeypatch.setattr(Session, "version", lambda self: fail())
    with pytest.raises(CourseError, match="Waited"):
        tryout.run_apart(PLAN)
    assert [one.closed for one in Session.made] == [True]


def test_nothing_is_printed_for_a_grader(session, monkeypatch, capsys):
    monkeypatch.setattr(tryout, "try_out", lambda session, plan: print("progress") or run_of(plan))
    assert tryout.run_apart(PLAN) == run_of(PLAN) and not capsys.readouterr().out


def test_memory_is_looked_at_first(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**30})())
    with pytest.raises(CourseError, match="needs 3 GiB of free memory, and there are 1.0"):
        tryout.run_apart(PLAN)


def test_each_exercise_gets_what_its_questions_need(monkeypatch):
    assert batch.runs_on("ex01") == HOSTS and batch.runs_on("ex03") == KUBERNETES and batch.runs_on("ex77") == ""
    monkeypatch.setattr(shape, "require_memory", lambda: None)
    monkeypatch.setattr(tryout, "require_memory", lambda: None)
    assert cli._live("ex01") is shape.run_apart and cli._live("ex03") is tryout.run_apart
    assert ex03.q1_run.runs_on == KUBERNETES


@pytest.mark.parametrize(("module", "name"), [(tryout, "session"), (lab, "self._kubernetes")])
def test_a_session_has_what_is_asked_of_it(module: ModuleType, name: str) -> None:
    """A session runs in live tests only; that its methods are there is seen here already."""
    made = ast.parse(inspect.getsource(rooms.Session))
    attributes = [node for node in ast.walk(made) if isinstance(node, ast.Attribute)]
    set_there = {one.attr for one in attributes if isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self"}
    there = set_there | set(dir(rooms.Session))
    asked = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name
    }
    assert asked and asked <= there

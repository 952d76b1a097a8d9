"""While a notebook is graded no cluster is touched, and its cells run on all the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from helpers import lab
from helpers.grading.skipped import Skipped
from helpers.lab import Lab
from helpers.rayhost.hosts import Hosts

NOTEBOOK = """
lab = Lab.start("ex01")
head, worker = hosts = lab.hosts("head", "worker-1")
head.run("ray start --head --num-cpus=0", quiet=True)
worker.run(f"ray start --address=head:{head.ports['gcs']}", quiet=True)
driver = lab.driver(head)
with lab.traffic(head, worker) as moved, lab.lease_requests(head) as asked:
    where = driver.run(len, [1, 2], num_cpus=1)
print(f"{moved['head']['sent']:.1f} MB, {asked['head'] + 1}, {where}")
slow = [host for host in hosts if moved[host.name]["sent"] / 2 > 1]
for process in head.processes():
    process.kill()
head.kill("raylet")
head.freeze("gcs_server")
head.thaw("gcs_server")
for host in hosts:
    host.switch_off()
lab.bars(moved, title="t", unit="MB")
lab.apply("manifests/03-raycluster/demo.yaml", replace=True)
lab.wait("raycluster/demo", timeout_s=300)
for row in lab.pods("raycluster/demo"):
    print(row.name)
print(f"{lab.namespace} {lab.get('raycluster/demo')['spec']['rayVersion']}", len(lab.events("raycluster/demo")))
grown = lab.run_on_head("demo", len, [1, 2])["cpus"] + 1 > 2
job = lab.submit("demo", "python jobs/where.py")
print(job.wait(), job.status, job.logs())
with lab.forward("svc/demo-head-svc", 8265) as dashboard:
    print(dashboard.url, dashboard.port)
with lab.timeline("raycluster/demo") as seen:
    lab.wait("raycluster/demo")
print(seen.stages(), seen.peak("pods"))
seen.plot("pods")
seen.steps(), seen.stepper()
lab.delete("raycluster/demo")
lab.machine()
lab.clean_up()
"""


@pytest.fixture
def nothing_may_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an error for whoever starts a process or makes hosts."""

    def refused(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"{args} was started")

    monkeypatch.setattr(subprocess, "Popen", refused)
    monkeypatch.setattr(os, "kill", refused)
    monkeypatch.setattr(Hosts, "__init__", refused)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", ["autograde", "validate"])
def test_a_notebook_runs_and_touches_nothing(nothing_may_start, monkeypatch, capsys, mode):
    monkeypatch.setenv("NBGRADER_EXECUTION", mode)
    exec(NOTEBOOK, {"Lab": Lab})
    assert not list(nothing_may_start.iterdir()) and Path.cwd() == nothing_may_start
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "– Lab.start(…) is skipped while a notebook is graded"
    assert "– lab.driver.run(…) is skipped while a notebook is graded" in lines
    assert "skipped MB, nan, skipped" in lines and "skipped skipped 0" in lines
    assert "– lab.run_on_head(…) is skipped while a notebook is graded" in lines
    assert all(line.startswith(("– ", "skipped")) for line in lines) and not printed.err


def test_outside_of_grading_it_starts(nothing_may_start, monkeypatch):
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.setattr(lab, "end_leftovers", list)
    with pytest.raises(AssertionError, match="was started"):
        exec(NOTEBOOK.replace("ex01", "01"), {"Lab": Lab})


def test_a_path_stays_a_path(nothing_may_start, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert Lab.start("01").here("answer.yaml") == nothing_may_start / "answer.yaml"


def test_it_is_shown_as_what_it_is():
    skipped = Skipped("head")
    assert (repr(skipped), f"{skipped:.2f}", list(skipped), len(skipped)) == ("skipped", "skipped", [], 0)
    assert not hasattr(skipped, "_repr_html_")


def test_it_is_no_answer():
    from helpers.grading.check import find_suite, run

    assert run(find_suite("01.c1"), Skipped("head")) == 0

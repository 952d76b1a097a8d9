"""The plan of the course: names of the lessons, their run time, and the rows of the drift table that each one shows.

A row is something that is often said about Ray on Kubernetes and is wrong or dated; a run of one lesson shows what is
so. When a lesson is written, its metadata must agree with this plan.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from helpers.state import course_root

# stem: (run_minutes, rows)
PLAN = {
    "00_start_here": (1, ""),
    "01_anatomy": (3, "0.4 0.20 1.3 1.4 2.9"),
    "02_three_ways": (4, "0.12"),
    "03_raycluster": (3, "0.1 0.2 0.3 0.5 0.6 0.13 1.1 1.2 1.5 1.6 1.7 1.21 2.1 2.2 2.3 2.4 2.5 2.6"),
    "04_rayjob": (4, "1.8 1.9 1.10 1.11 1.12"),
    "05_rayservice": (4, "0.22 1.13 1.14 1.16"),
    "06_demand": (5, "0.7 0.8 0.9 0.10 0.14 0.19 1.17 1.18 2.7"),
    "07_two_levels": (4, "0.15 0.16 1.19"),
    "08_latency_budget": (4, "0.17 2.8"),
    "09_idle_timeout": (4, "0.11 0.18 1.20"),
    "10_failure_drills": (6, "0.21 2.15 2.16"),
    "11_scale": (4, "1.15 2.10 2.11 2.12 2.13"),
    "12_cost": (1, "2.14"),
    "13_observability": (3, "1.22 1.23 1.24 1.25 1.26 1.27"),
    "14_capstone": (5, ""),
}
ALL_ROWS = [f"{seed}.{row}" for seed, last in ((0, 22), (1, 27), (2, 16)) for row in range(1, last + 1)]
WRITTEN = sorted(course_root().glob("lessons/[0-9][0-9]_*.ipynb"))


def disagreements(path: Path, course: dict) -> list[str]:
    """What of a lesson's metadata is not as planned."""
    if path.stem not in PLAN:
        return [f"{path.stem} is not planned"]
    run_minutes, rows = PLAN[path.stem]
    wrong = []
    if sorted(course.get("rows", [])) != sorted(rows.split()):
        wrong.append(f"it shows the rows {course.get('rows')}, planned are {rows.split()}")
    if course.get("run_minutes") != run_minutes:
        wrong.append(f"it runs {course.get('run_minutes')} minutes, planned are {run_minutes}")
    return wrong


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_lesson_is_as_planned(path):
    assert disagreements(path, nbformat.read(path, as_version=4).metadata.get("course", {})) == []


def test_each_row_has_its_lesson():
    planned = [row for _, rows in PLAN.values() for row in rows.split()]
    assert sorted(planned) == sorted(ALL_ROWS)


def test_the_plan_bites():
    path = Path("lessons/02_three_ways.ipynb")
    assert disagreements(path, {"rows": ["0.12"], "run_minutes": 4}) == []
    assert "it shows the rows []" in disagreements(path, {"rows": [], "run_minutes": 4})[0]
    assert "it shows" in disagreements(path, {"rows": ["0.12", "0.12"], "run_minutes": 4})[0]
    assert "it runs 9 minutes" in disagreements(path, {"rows": ["0.12"], "run_minutes": 9})[0]
    assert disagreements(Path("lessons/15_more.ipynb"), {}) == ["15_more is not planned"]

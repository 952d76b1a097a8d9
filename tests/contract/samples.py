"""A made-up lesson that keeps every rule, to be broken one rule at a time."""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PATH = Path("lessons/01_anatomy.ipynb")
CHECKS, CARDS = {"01.c1"}, {"01.q1"}

CODE = [
    "from helpers import Lab, check, hint, predict, quiz\nfrom helpers.widgets import theme",
    'lab = Lab.start("01")',
    'predict("01.p1", "How many processes will a worker have?", choices=[1, 2, 5], answer=None)',
    "!ray status",
    "# plumbing: counts what is there\ncount = len([1, 2])",
    'predict("01.p1").reveal(count)',
    "import ray\n\n\n@ray.remote\ndef slow():\n    import time\n\n    time.sleep(1)",
    'rows = [["head", count]]\nwith theme.figure(alt=f"{count} CPUs", table=(["Ray node", "CPUs"], rows)) as fig:\n'
    "    ax = fig.subplots()",
    'check("01.c1", answer=None)',
    'hint("01.c1")',
    'quiz("01.q1", answer="")',
    "%env RAY_COLOR_PREFIX=0",
    "assert count == 2",
    "lab.clean_up()",
]
TEXT = [
    "# 1 · Anatomy",
    "A Ray node is not a Kubernetes node. See [the docs](https://docs.ray.io/en/releases-2.60.0/index.html).",
    "`ray.nodes()` lists each **Ray node**; the node autoscaler adds machines. ![two boxes](boxes.png)",
    "```\nkubectl get nodes\n```",
]


def good_lesson() -> NotebookNode:
    text = TEXT + [f"Text {i}." for i in range(20 - len(TEXT))]
    nb = new_notebook(cells=[*map(new_markdown_cell, text), *map(new_code_cell, CODE)])
    code_cell(nb, "# plumbing").metadata.tags = ["plumbing"]
    nb.metadata.course = {
        "id": "01",
        "title": "Anatomy",
        "minutes": 30,
        "run_minutes": 3,
        "capabilities": [],
        "rows": ["0.4", "0.20"],
        "memory_gib": 3,
        "creates": "three hosts",
    }
    return nb


def code_cell(nb: NotebookNode, start: str) -> NotebookNode:
    """The code cell whose source begins so."""
    return next(cell for cell in nb.cells if cell.cell_type == "code" and cell.source.startswith(start))

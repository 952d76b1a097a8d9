"""Each rule passes the made-up good lesson, and each fails on a bad one made from it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from tests.contract import rules
from tests.contract.samples import CARDS, CHECKS, PATH, code_cell, good_lesson

Change = Callable[[NotebookNode], object]


def course(**fields: object) -> Change:
    return lambda nb: nb.metadata.course.update(fields)


def without(field: str) -> Change:
    return lambda nb: nb.metadata.course.pop(field)


def code(start: str, source: str) -> Change:
    """Replace the source of the code cell that begins so."""
    return lambda nb: code_cell(nb, start).update(source=source)


def text(source: str) -> Change:
    """Replace the source of a text cell."""
    return lambda nb: nb.cells[5].update(source=source)


def tags(start: str, *names: str) -> Change:
    return lambda nb: code_cell(nb, start).metadata.update(tags=list(names))


LONG_LINK = "[word](https://example.org/a-b-c/d-e-f) " * 75

BAD: list[tuple[rules.Rule, Change, str]] = [
    (rules.metadata, lambda nb: nb.metadata.pop("course"), "it has no title"),
    (rules.metadata, course(id="02"), "its id is '02'"),
    (rules.metadata, course(id=1), "its id is 1"),
    (rules.metadata, without("title"), "it has no title"),
    (rules.metadata, course(title=" "), "it has no title"),
    (rules.metadata, without("minutes"), "minutes is None"),
    (rules.metadata, course(minutes=90), "minutes is 90"),
    (rules.metadata, course(run_minutes="3"), "run_minutes is '3'"),
    (rules.metadata, course(run_minutes=True), "run_minutes is True"),
    (rules.metadata, without("memory_gib"), "memory_gib is None"),
    (rules.metadata, course(memory_gib=64), "memory_gib is 64"),
    (rules.metadata, course(creates=""), "does not say what it creates"),
    (rules.metadata, without("rows"), "rows is None"),
    (rules.metadata, course(rows=[0.20]), "rows is [0.2]"),
    (rules.metadata, without("capabilities"), "capabilities is None"),
    (rules.metadata, course(capabilities=["gpu"]), "'gpu' is not a capability"),
    (rules.metadata, course(minute=3), "unknown field 'minute'"),
    (rules.cells_are_sound, code("assert", "assert count ="), "is not Python"),
    (rules.cells_are_sound, text(" "), "is empty"),
    (rules.figures_are_told, code("rows =", 'theme.figure(table=(["a"], [[1]]))'), "without alt"),
    (rules.figures_are_told, code("rows =", 'figure(alt=" ", table=(["a"], [[1]]))'), "without alt"),
    (rules.figures_are_told, code("rows =", 'theme.figure(alt="x")'), "without table"),
    (rules.figures_are_told, code("rows =", 'theme.figure(alt="x", table=([], []))'), "without table"),
    (rules.figures_are_told, code("rows =", "import matplotlib.pyplot as plt"), "pyplot"),
    (rules.figures_are_told, code("rows =", "from matplotlib import pyplot"), "pyplot"),
    (rules.figures_are_told, code("rows =", "from matplotlib.figure import Figure"), "not with matplotlib itself"),
    (rules.figures_are_told, code("rows =", "%matplotlib inline"), "a magic that sets up pyplot"),
    (rules.figures_are_told, code("rows =", "from IPython.display import Image"), "has no table"),
    (rules.images_have_alt_text, text("![](boxes.png)"), "an image without alt text"),
    (rules.images_have_alt_text, text('<img src="boxes.png">'), "an image without alt text"),
    (rules.images_have_alt_text, text('<img src="boxes.png" alt="">'), "an image without alt text"),
    (
        rules.widgets_have_twins,
        code('predict("01.p1", ', 'predict("01.p1", "How many?", choices=[1])'),
        "predict('01.p1')",
    ),
    (rules.widgets_have_twins, code("quiz", 'quiz("01.q1")'), "quiz('01.q1') has no answer"),
    (rules.widgets_have_twins, code("check", 'check("01.c1")'), "check('01.c1') has no answer"),
    (rules.widgets_have_twins, code("assert", "import ipywidgets as w"), "uses widgets from helpers only"),
    (rules.widgets_have_twins, code("assert", "from ipywidgets import Button"), "uses widgets from helpers only"),
    (rules.code_is_short, code("assert", "x = 1\n" * 21), "has 21 lines"),
    (rules.text_is_short, text("word " * 76), "has 76 words"),
    (rules.text_is_short, text(f"{LONG_LINK} one"), "has 76 words"),
    (rules.has_its_size, lambda nb: nb.cells.pop(5), "it has 19 markdown cells"),
    (rules.has_its_size, lambda nb: nb.cells.extend(new_markdown_cell("x") for _ in range(9)), "29 markdown"),
    (rules.has_its_size, lambda nb: nb.cells.pop(), "it has 13 code cells"),
    (rules.has_its_size, lambda nb: nb.cells.extend(new_code_cell("x") for _ in range(7)), "21 code"),
    (rules.holds_no_run, lambda nb: nb.cells[-1].update(execution_count=1), "what a run left"),
    (rules.holds_no_run, lambda nb: nb.cells[-1].outputs.append(new_output("stream", text="7")), "what a run left"),
    (rules.refers_to_nothing_that_moves, text("https://docs.ray.io/en/latest/index.html"), "latest"),
    (rules.refers_to_nothing_that_moves, text("https://github.com/ray-project/ray/blob/master/a.py"), "master"),
    (rules.refers_to_nothing_that_moves, code("!ray", "!kubectl apply -f https://x.io/a?ref=main"), "main"),
    (rules.refers_to_nothing_that_moves, code("!ray", "!docker run rayproject/ray:latest"), "rayproject/ray:latest"),
    (rules.waits_with_a_reason, code("assert", "import time\ntime.sleep(3)"), "sleeps"),
    (rules.waits_with_a_reason, code("assert", "from time import sleep\nfor _ in range(3):\n    sleep(1)"), "sleeps"),
    (rules.waits_with_a_reason, code("!ray", "!ray status && sleep 5"), "sleeps"),
    (rules.begins_and_ends, code("from helpers", "import ray"), "does not import from helpers"),
    (rules.begins_and_ends, code("lab = ", 'lab = Lab.start("02")'), "do not call Lab.start('01')"),
    (rules.begins_and_ends, lambda nb: nb.cells.append(new_code_cell("count")), "is not `lab.clean_up()`"),
    (rules.begins_and_ends, code("lab.clean", "lab.clean_up"), "is not `lab.clean_up()`"),
    (rules.plumbing_is_marked, code("# plumbing", "count = 2"), "does not begin with"),
    (rules.plumbing_is_marked, tags("# plumbing"), "has not the tag"),
    (rules.questions_are_known, code("quiz", 'quiz("02.q1", answer="")'), "not one of lesson 01"),
    (rules.questions_are_known, code("assert", 'check("01.c1", answer=3)'), "check('01.c1') is asked 2 times"),
    (rules.questions_are_known, code("assert", 'check("01.c9", answer=3)'), "check('01.c9') asks what is not there"),
    (rules.questions_are_known, code("assert", 'quiz("01.q9", answer="")'), "quiz('01.q9') asks what is not there"),
    (rules.questions_are_known, code("check", "count"), "check '01.c1' is there, but"),
    (rules.questions_are_known, code("quiz", "count"), "quiz '01.q1' is there, but"),
    (rules.predictions_are_revealed, code('predict("01.p1").', "count"), "no later cell calls"),
    (rules.predictions_are_revealed, code("assert", 'predict("01.p9").reveal(2)'), "which was not asked"),
    (rules.no_bare_node, text("Each node has a raylet."), "not `Each node has"),
    (rules.no_bare_node, text("The Ray head\nstarts; other **nodes** follow."), "other nodes"),
    (rules.no_bare_node, text("Worker nodes join."), "Worker nodes"),
]


@pytest.fixture(autouse=True)
def questions(monkeypatch):
    monkeypatch.setattr(rules, "checks_of", lambda lesson: CHECKS)
    monkeypatch.setattr(rules, "cards_of", lambda lesson: CARDS)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_good_lesson_keeps(rule):
    assert rule(good_lesson(), PATH) == []


@pytest.mark.parametrize(("rule", "change", "says"), BAD, ids=[f"{rule.__name__}-{says}" for rule, _, says in BAD])
def test_a_bad_lesson_breaks(rule, change, says):
    lesson = good_lesson()
    change(lesson)
    assert says in "\n".join(rule(lesson, PATH))


def test_every_rule_has_a_bad_lesson():
    assert {rule for rule, _, _ in BAD} == set(rules.RULES)


def test_the_introduction_may_be_shorter_but_not_longer():
    lesson, path = good_lesson(), Path("lessons/00_start_here.ipynb")
    assert rules.has_its_size(lesson, path) == []
    lesson.cells = [cell for i, cell in enumerate(lesson.cells) if i < 8 or i >= 29]
    assert rules.has_its_size(lesson, path) == []
    lesson.cells = lesson.cells[1:-1]
    assert rules.has_its_size(lesson, path) == [
        "it has 7 markdown cells, not 8 to 28",
        "it has 4 code cells, not 5 to 20",
    ]


@pytest.mark.parametrize(
    ("markdown", "count"),
    [
        ("## 2 · A *busy* cluster", 4),
        ("- one\n- two\n\n> three", 3),
        ("| a | b |\n|---|---|\n| c | d |", 4),
        ("[the docs](https://docs.ray.io/a-b/c) and ![two boxes](a.png)", 5),
        ("<!-- not seen --><b>seen</b> `ray start --head`", 4),
    ],
)
def test_words_are_those_a_reader_sees(markdown, count):
    assert rules.words(markdown) == count


@pytest.mark.parametrize(
    "markdown",
    [
        *("a Ray node and two Kubernetes nodes", "the **Ray node**", "a Ray\nnode", "`kubectl get nodes`, `node`"),
        *(
            "the node autoscaler",
            "a node group",
            "node pools",
            "multi-node",
            "Ray worker nodes",
            "the [page](a/node.html)",
        ),
        *("```\nnode\n```\nafter", "~~~\nnode", "Karpenter's NodeClaim"),
    ],
)
def test_words_that_only_look_like_a_bare_node(markdown):
    assert rules.bare_nodes(markdown) == []


# ---- the rules of sources and of texts


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("import ipywidgets\nipywidgets.Button()", "Button without"),
        ("import ipywidgets as W\nW.IntSlider(min=0, description='')", "IntSlider without"),
        ("def f():\n    from ipywidgets import Text as T\n    return T(value='x', **more)", "Text without"),
        ("import ipywidgets\nipywidgets.Dropdown(options=[1], description=' ')", "Dropdown without"),
    ],
)
def test_a_control_without_a_label(module, says):
    assert says in "\n".join(rules.unlabelled_controls(ast.parse(module)))


@pytest.mark.parametrize(
    "module",
    [
        "import ipywidgets\nipywidgets.Button(description='Go')\nipywidgets.Button(tooltip='Go')\nipywidgets.HTML('x')",
        "from rich.text import Text\nText('x')",
        "import ipywidgets\nipywidgets.IntSlider(description=name)",
    ],
)
def test_controls_with_labels(module):
    assert rules.unlabelled_controls(ast.parse(module)) == []


def test_a_figure_around_the_theme():
    assert rules.own_figures(ast.parse("import matplotlib.figure as f\nf.Figure(figsize=(1, 1))"))
    assert rules.untold_figures(ast.parse("import matplotlib.pyplot as plt\nplt.figure()"))
    assert not rules.own_figures(ast.parse("from matplotlib.figure import Figure\ndef f(fig: Figure): ..."))


@pytest.mark.parametrize(
    "text",
    [
        "https://raw.githubusercontent.com/ray-project/kuberay/master/a.yaml",
        "https://github.com/ray-project/ray/tree/main",
        "https://github.com/ray-project/ray/blob/HEAD/README.md",
        "(https://docs.ray.io/en/master/).",
        "https://kind.sigs.k8s.io/docs@main",
        'image: "redis:latest"',
        "image: rayproject/ray-ml:2.9.0-gpu",
        "image: rayproject/ray-ml",
    ],
)
def test_a_reference_that_moves(text):
    assert rules.moving_references(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/ray-project/ray/blob/ray-2.60.0/python/ray/main/a.py".replace("/main/", "/core/"),
        "https://docs.ray.io/en/releases-2.60.0/ and https://github.com/ray-project/kuberay",
        "never use the tag `:latest`; the ray-ml images are no longer built",
        "the latest of https://example.org/a, in the main text",
    ],
)
def test_a_reference_that_stays(text):
    assert rules.moving_references(text) == []


def test_an_image_without_a_tag():
    assert rules.untagged_images("- image: redis\n") == ["image redis has no tag"]
    assert rules.untagged_images("  image: localhost:5000/redis # x\n") == ["image localhost:5000/redis has no tag"]
    assert rules.untagged_images("image: redis:7.4\nimage: 'a/b@sha256:00'\n# image: x\n") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("see /home/" + "somebody/notes.txt", "the path /home/somebody/notes.txt"),
        ("in /root" + "/course", "the path /root" + "/course"),
        ("/srv/checkout/README.md", "the path /srv/checkout/README.md"),
        ("--index-url https://mirror.corp.example/simple", "the registry mirror.corp.example"),
        ("GOPROXY=https://go.corp.example", "the registry go.corp.example"),
    ],
)
def test_a_trace_of_a_machine(text, says):
    assert says in rules.machine_traces(text, "/srv/checkout")


def test_what_is_no_trace_of_a_machine():
    fine = "/home/ray/anaconda3 ~/.cache /srv/checkout-2 --index-url http://127.0.0.1:9/ GOPROXY=off the root / home"
    assert rules.machine_traces(fine, "/srv/checkout") == []

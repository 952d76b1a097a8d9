"""The rules of a lesson, each a function from a notebook to what breaks it, and the rules of sources and texts.

A rule of a lesson is `rule(notebook, path) -> list[str]`, one sentence for each violation; `RULES` lists them all.
test_lessons.py applies them to every lesson, test_rules_bite.py shows that each one fails on a made-up bad lesson.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from helpers.cluster.backend import CAPABILITIES
from helpers.grading.check import all_suites
from helpers.widgets.quiz import bank_dir, load_items

Rule = Callable[[NotebookNode, Path], list[str]]

MAX_CODE_LINES, MAX_WORDS = 20, 75
TEXT_CELLS, CODE_CELLS = (20, 28), (14, 20)
INTRO = "00"  # the introduction shows no system at length, so it may be shorter than a lesson, not longer
INTRO_TEXT_CELLS, INTRO_CODE_CELLS = (8, 28), (5, 20)

CONTROLS = {
    *("Button", "ToggleButton", "ToggleButtons", "Checkbox", "Valid", "Dropdown", "RadioButtons", "Select", "Combobox"),
    *("SelectMultiple", "SelectionSlider", "SelectionRangeSlider", "IntSlider", "FloatSlider", "FloatLogSlider"),
    *("IntRangeSlider", "FloatRangeSlider", "BoundedIntText", "BoundedFloatText", "IntText", "FloatText", "Text"),
    *("Textarea", "Password", "DatePicker", "TimePicker", "ColorPicker", "FileUpload", "Play", "TagsInput"),
}


# ---- what the rules read


def cells(nb: NotebookNode, kind: str) -> Iterator[tuple[int, NotebookNode]]:
    """The cells of a kind ("code" or "markdown"), each with its number in the notebook, from 1."""
    return ((number, cell) for number, cell in enumerate(nb.cells, 1) if cell.cell_type == kind)


def parse(source: str) -> ast.Module | None:
    """A cell's code with its magics turned into calls, as IPython runs it; None if it is not Python."""
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return None


def trees(nb: NotebookNode) -> Iterator[tuple[int, ast.Module]]:
    return ((number, tree) for number, cell in cells(nb, "code") if (tree := parse(cell.source)))


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Each call with the dotted name of what is called, such as `theme.figure`; a method of a result is `().reveal`."""
    return ((dotted(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "()"


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((kw.value for kw in call.keywords if kw.arg == name), None)


def says_nothing(node: ast.expr | None) -> bool:
    """Whether an argument is missing, or written out as something empty."""
    if isinstance(node, ast.Constant):
        return node.value is ... or not (node.value.strip() if isinstance(node.value, str) else node.value)
    if isinstance(node, ast.JoinedStr):
        return not node.values
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return all(map(says_nothing, node.elts))
    return node is None or (isinstance(node, ast.Dict) and not node.keys)


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, and for `from a import b` also `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def asked(nb: NotebookNode) -> Iterator[tuple[int, str, str, ast.Call]]:
    """Every question of a lesson: cell, kind (predict, check or quiz), id, call. Taking one up again is not asking."""
    for number, tree in trees(nb):
        for name, call in calls(tree):
            again = name == "predict" and len(call.args) < 2 and not keyword(call, "question")
            if name in ("predict", "check", "quiz") and not again:
                yield number, name, id_of(call), call


def id_of(call: ast.Call) -> str:
    first = call.args[0] if call.args else keyword(call, "id")
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def number_of(path: Path) -> str:
    return path.stem[:2]


# ---- the rules of a lesson


def metadata(nb: NotebookNode, path: Path) -> list[str]:
    course = nb.metadata.get("course") or {}
    minutes, run, rows, caps = (course.get(key) for key in ("minutes", "run_minutes", "rows", "capabilities"))
    title, memory, creates = (course.get(key) for key in ("title", "memory_gib", "creates"))
    low = 5 if number_of(path) == INTRO else 20
    demands = {
        f"its id is {course.get('id')!r}, the file's is {number_of(path)!r}": course.get("id") == number_of(path),
        "it has no title": isinstance(title, str) and bool(title.strip()),
        f"minutes is {minutes!r}, not a number from {low} to 35": is_number(minutes) and low <= minutes <= 35,
        f"run_minutes is {run!r}, not a number above 0, up to 6": is_number(run) and 0 < run <= 6,
        f"memory_gib is {memory!r}, not a number above 0, up to 8": is_number(memory) and 0 < memory <= 8,
        "it does not say what it creates": isinstance(creates, str) and bool(creates.strip()),
        f"rows is {rows!r}, not a list of strings such as '0.20'": is_list_of(rows, r"\d\.\d+"),
        f"capabilities is {caps!r}, not a list": is_list_of(caps, r"\w+"),
    }
    wrong = [what for what, holds in demands.items() if not holds]
    if is_list_of(caps, r"\w+"):
        wrong += [f"{name!r} is not a capability" for name in caps if name not in CAPABILITIES]
    known = {"id", "title", "minutes", "run_minutes", "rows", "capabilities", "memory_gib", "creates"}
    wrong += [f"it has the unknown field {key!r}" for key in course if key not in known]
    return [f"course metadata: {what}" for what in wrong]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list_of(value: Any, pattern: str) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and re.fullmatch(pattern, item) for item in value)


def cells_are_sound(nb: NotebookNode, path: Path) -> list[str]:
    wrong = [f"cell {number} is not Python" for number, cell in cells(nb, "code") if not parse(cell.source)]
    return wrong + [f"cell {number} is empty" for number, cell in enumerate(nb.cells, 1) if not cell.source.strip()]


def figures_are_told(nb: NotebookNode, path: Path) -> list[str]:
    wrong = [f"cell {number}: {what}" for number, tree in trees(nb) for what in untold_figures(tree)]
    for number, tree in trees(nb):
        names = set(imported(tree))
        if any(name.partition(".")[0] in ("matplotlib", "pylab") for name in names):
            wrong.append(f"cell {number}: a lesson draws through `theme.figure`, not with matplotlib itself")
        if names & {f"IPython.display.{name}" for name in ("Image", "SVG", "Video")}:
            wrong.append(f"cell {number}: a picture that is not drawn by `theme.figure` has no table")
    return wrong


def images_have_alt_text(nb: NotebookNode, path: Path) -> list[str]:
    wrong = []
    for number, cell in cells(nb, "markdown"):
        text = without_code(cell.source)
        bare = re.findall(r"!\[\s*\][(\[]", text)
        tags = [tag for tag in re.findall(r"<img\b[^>]*>", text) if not re.search(r"\balt\s*=\s*([\"'])\s*\w", tag)]
        wrong += [f"cell {number}: an image without alt text" for _ in [*bare, *tags]]
    return wrong


def widgets_have_twins(nb: NotebookNode, path: Path) -> list[str]:
    wrong = []
    for number, name, id, call in asked(nb):
        plain = keyword(call, "answer") or (name == "check" and len(call.args) > 1)
        if not plain:
            wrong.append(f"cell {number}: {name}({id!r}) has no answer=…, so it cannot be answered without a widget")
    for number, tree in trees(nb):
        if any(name.partition(".")[0] in ("ipywidgets", "anywidget") for name in imported(tree)):
            wrong.append(f"cell {number}: a lesson uses widgets from helpers only, which have labels and plain twins")
    return wrong


def code_is_short(nb: NotebookNode, path: Path) -> list[str]:
    lengths = {number: len(cell.source.splitlines()) for number, cell in cells(nb, "code")}
    return [
        f"cell {number} has {n} lines of code, more than {MAX_CODE_LINES}"
        for number, n in lengths.items()
        if n > MAX_CODE_LINES
    ]


def text_is_short(nb: NotebookNode, path: Path) -> list[str]:
    counts = {number: words(cell.source) for number, cell in cells(nb, "markdown")}
    return [f"cell {number} has {n} words, more than {MAX_WORDS}" for number, n in counts.items() if n > MAX_WORDS]


def words(markdown: str) -> int:
    """Words that a reader sees: a link counts by its text, an image by its alt text, markup not at all."""
    text = re.sub(r"<!--.*?-->", " ", markdown, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"</?[A-Za-z][^>\n]*>|\|", " ", text)
    return sum(1 for token in text.split() if re.search(r"\w", token))


def has_its_size(nb: NotebookNode, path: Path) -> list[str]:
    intro = number_of(path) == INTRO
    bounds = {
        "markdown": INTRO_TEXT_CELLS if intro else TEXT_CELLS,
        "code": INTRO_CODE_CELLS if intro else CODE_CELLS,
    }
    counts = Counter(cell.cell_type for cell in nb.cells)
    return [
        f"it has {counts[kind]} {kind} cells, not {low} to {high}"
        for kind, (low, high) in bounds.items()
        if not low <= counts[kind] <= high
    ]


def holds_no_run(nb: NotebookNode, path: Path) -> list[str]:
    return [
        f"cell {number} was committed with what a run left in it"
        for number, cell in cells(nb, "code")
        if cell.get("outputs") or cell.get("execution_count") is not None
    ]


def refers_to_nothing_that_moves(nb: NotebookNode, path: Path) -> list[str]:
    return [f"cell {n}: {what}" for n, cell in enumerate(nb.cells, 1) for what in moving_references(cell.source)]


def waits_with_a_reason(nb: NotebookNode, path: Path) -> list[str]:
    wrong = []
    for number, cell in cells(nb, "code"):
        tree = parse(cell.source)
        sleeps = tree and any(name.split(".")[-1] == "sleep" for name, _ in calls(run_in_cell(tree)))
        if sleeps or re.search(r"^\s*[!%].*(?<![\w-])sleep\s+[\d.$]", cell.source, re.MULTILINE):
            wrong.append(f"cell {number} sleeps; wait for what you need with lab.wait or wait_until")
    return wrong


def run_in_cell(tree: ast.Module) -> ast.Module:
    """What of a cell runs when the cell runs: all but the bodies of functions, which may run elsewhere."""

    class Emptied(ast.NodeTransformer):
        def visit_FunctionDef(self, node: Any) -> None:
            return None

        visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef

    copy = ast.parse(ast.unparse(tree))
    return ast.Module([kept for node in copy.body if (kept := Emptied().visit(node))], [])


def begins_and_ends(nb: NotebookNode, path: Path) -> list[str]:
    code = [cell.source for _, cell in cells(nb, "code")]
    wanted = f"Lab.start('{number_of(path)}')"
    first = parse(code[0]) if code else None
    last = parse(code[-1]) if code else None
    wrong = []
    if not first or not any(name.partition(".")[0] == "helpers" for name in imported(first)):
        wrong.append("its first code cell does not import from helpers")
    if not any(wanted in ast.unparse(tree) for tree in map(parse, code[:2]) if tree):
        wrong.append(f"its first two code cells do not call {wanted}")
    if not last or ast.unparse(last) != "lab.clean_up()":
        wrong.append("its last code cell is not `lab.clean_up()`")
    return wrong


def plumbing_is_marked(nb: NotebookNode, path: Path) -> list[str]:
    wrong = []
    for number, cell in cells(nb, "code"):
        tagged, said = "plumbing" in cell.metadata.get("tags", []), re.match(r"# plumbing: \S", cell.source)
        if tagged and not said:
            wrong.append(f"cell {number} has the tag plumbing, but does not begin with `# plumbing: …`")
        if said and not tagged:
            wrong.append(f"cell {number} begins with `# plumbing: …`, but has not the tag")
    return wrong


def questions_are_known(nb: NotebookNode, path: Path) -> list[str]:
    lesson, questions = number_of(path), list(asked(nb))
    ids = {kind: {id for _, name, id, _ in questions if name == kind} for kind in ("predict", "check", "quiz")}
    wrong = [
        f"cell {n}: {kind} has the id {id!r}, not one of lesson {lesson}"
        for n, kind, id, _ in questions
        if not id.startswith(f"{lesson}.")
    ]
    twice = Counter((kind, id) for _, kind, id, _ in questions)
    wrong += [f"{kind}({id!r}) is asked {count} times" for (kind, id), count in twice.items() if count > 1]
    for kind, there in (("check", checks_of(lesson)), ("quiz", cards_of(lesson))):
        wrong += [f"{kind}({id!r}) asks what is not there" for id in sorted(ids[kind] - there)]
        wrong += [f"{kind} {id!r} is there, but the lesson does not ask it" for id in sorted(there - ids[kind])]
    return wrong


def predictions_are_revealed(nb: NotebookNode, path: Path) -> list[str]:
    revealed: dict[str, int] = {}
    for number, tree in trees(nb):
        for name, call in calls(tree):
            if (
                name == "().reveal"
                and isinstance(call.func.value, ast.Call)
                and dotted(call.func.value.func) == "predict"
            ):
                revealed.setdefault(id_of(call.func.value), number)
    wanted = {id: number for number, kind, id, _ in asked(nb) if kind == "predict"}
    wrong = [
        f'cell {n} asks {id!r}; no later cell calls predict("{id}").reveal(…)'
        for id, n in wanted.items()
        if revealed.get(id, 0) <= n
    ]
    return wrong + [f"cell {n} reveals {id!r}, which was not asked" for id, n in revealed.items() if id not in wanted]


def checks_of(lesson: str) -> set[str]:
    return {id for id in all_suites() if id.startswith(f"{lesson}.")}


def cards_of(lesson: str) -> set[str]:
    path = bank_dir() / f"{lesson}.yaml"
    return set(load_items(path)) if path.exists() else set()


def no_bare_node(nb: NotebookNode, path: Path) -> list[str]:
    return [
        f"cell {number}: say Ray node, Kubernetes node or machine, not `{found}`"
        for number, cell in cells(nb, "markdown")
        for found in bare_nodes(cell.source)
    ]


def bare_nodes(markdown: str) -> list[str]:
    """Each bare "node" with the words around it. Code is left out, and names such as "node autoscaler" pass."""
    text = re.sub(r"\]\([^)]*\)|https?://\S+|[*_]", " ", without_code(markdown))
    text = " ".join(text.split())
    whose = r"(?:Ray|Kubernetes)(?: head| worker| GPU| CPU)?"
    # "node autoscaler" is the name of a thing, "multi-node" of a kind; the rest needs its owner
    bare = r"(?<!-)\b(?i:node)s?\b(?! (?:auto-?scal|group|pool|selector|affinity))"
    return [
        text[max(0, match.start() - 20) : match.end() + 10].strip()
        for match in re.finditer(bare, text)
        if not re.search(rf"\b{whose} $", text[: match.start()])
    ]


def without_code(markdown: str) -> str:
    text = re.sub(r"^( {0,3})(```+|~~~+).*?(^ {0,3}\2|\Z)", " ", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+).+?\1", " code ", text, flags=re.DOTALL)


RULES: list[Rule] = [
    metadata,
    cells_are_sound,
    figures_are_told,
    images_have_alt_text,
    widgets_have_twins,
    code_is_short,
    text_is_short,
    has_its_size,
    holds_no_run,
    refers_to_nothing_that_moves,
    waits_with_a_reason,
    begins_and_ends,
    plumbing_is_marked,
    questions_are_known,
    predictions_are_revealed,
    no_bare_node,
]


# ---- rules of sources and of texts


def untold_figures(tree: ast.AST) -> list[str]:
    """Figures without alt text or table, and drawing around `theme.figure`, in a cell or a module."""
    wrong = []
    for name, call in calls(tree):
        if name.split(".")[-1] == "figure":
            missing = [key for key in ("alt", "table") if says_nothing(keyword(call, key))]
            wrong += [f"line {call.lineno}: figure(…) without {key}=…" for key in missing]
        if re.search(r"(matplotlib|pylab)\b", " ".join(magic_words(name, call))):
            wrong.append(f"line {call.lineno}: a magic that sets up pyplot")
    if any(re.match(r"matplotlib\.pyplot\b|pylab\b|matplotlib\.pylab\b", name) for name in imported(tree)):
        wrong.append("it imports pyplot, whose figures have no alt text and no table")
    return wrong


def magic_words(name: str, call: ast.Call) -> list[str]:
    if not name.endswith("run_line_magic"):
        return []
    return [str(arg.value) for arg in call.args[:1] if isinstance(arg, ast.Constant)]


def own_figures(tree: ast.AST) -> list[str]:
    """Figures that are made without `theme.figure`; only theme.py itself may."""
    return [
        f"line {call.lineno}: {name}(…) goes around theme.figure"
        for name, call in calls(tree)
        if name.split(".")[-1] in ("Figure", "FigureCanvasAgg")
    ]


def unlabelled_controls(tree: ast.AST) -> list[str]:
    """Controls of ipywidgets that nobody who hears the page can tell apart."""
    modules, names = {"ipywidgets"}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name for alias in node.names if alias.name == "ipywidgets"}
        elif isinstance(node, ast.ImportFrom) and node.module == "ipywidgets":
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
    wrong = []
    for name, call in calls(tree):
        module, _, last = name.rpartition(".")
        control = last if module in modules else names.get(name)
        labels = [keyword(call, key) for key in ("description", "tooltip")]
        if control in CONTROLS and all(map(says_nothing, labels)):
            wrong.append(f"line {call.lineno}: {control} without description=… or tooltip=…")
    return wrong


URL = re.compile(r"https?://[^\s)\]>\"'`\\]+")
MOVING = {"master", "main", "head", "latest", "stable", "nightly", "trunk", "develop"}


def moving_references(text: str) -> list[str]:
    """URLs and images whose content changes under the same name."""
    wrong = []
    for url in URL.findall(text):
        path = url.partition("://")[2].partition("/")[2].rstrip(".,;:")
        named = set(re.split(r"[/?&#=@]", path.lower())) & MOVING
        wrong += [f"{url} is not pinned ({name})" for name in sorted(named)]
    wrong += [f"{image} is not pinned" for image in re.findall(r"[\w./-]*\w:latest\b", text)]
    return wrong + [
        f"{image}: the ray-ml images are gone" for image in re.findall(r"\S*ray-ml[:@]\S+|image:\s*\S*ray-ml\b", text)
    ]


def untagged_images(yaml_text: str) -> list[str]:
    """Images in a manifest that name no tag, which means `latest`."""
    images = re.findall(r"^\s*(?:-\s+)?image:\s*[\"']?([^\s\"'#]+)", yaml_text, re.MULTILINE)
    return [f"image {name} has no tag" for name in images if not re.search(r":[^/]+$|@sha256:", name)]


LOOPBACK = "127.0.0.1"  # whose machine it is does not show
# the home that images of Ray have, and of Jupyter's, is nobody's machine
HOMES = re.compile(r"/(?:root)/\w[\w./-]*|/(?:home|Users)/(?!ray\b|jovyan\b)\w[\w./-]*|[A-Z]:\\Users\\\w+")
INDEX = re.compile(
    r"(?i)(?:index-url|find-links|trusted-host|goproxy|index_url|find_links)\S*[\s=\"':]+(?:https?://)?([\w.-]+\.\w+)"
)


def machine_traces(text: str, checkout: str) -> list[str]:
    """Paths of the machine that a text was written on, and the address of any package registry: pip knows its own."""
    wrong = [f"the path {found}" for found in HOMES.findall(text)]
    wrong += [f"the path {found}" for found in re.findall(rf"{re.escape(checkout)}(?![\w-])\S*", text)]
    return wrong + [f"the registry {host}" for host in INDEX.findall(text) if host != LOOPBACK]

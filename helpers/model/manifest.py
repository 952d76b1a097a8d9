"""A manifest, read from YAML text or from a dict: plain data, and nothing that would not arrive at an API server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import yaml

from helpers.errors import CourseError
from helpers.reading import MAX_DEPTH, Careful

MAX_TEXT = 200_000  # characters of a manifest, with what aliases repeat
MAX_LONG = 30_000_000  # of what nobody wrote by hand
MAX_PATH = 1000  # characters
AGAIN = "Mend that, then try again."
RENDER = "Render it first, as with `helm template`, and take what comes out."
BUILD = "Build it first, as with `kubectl kustomize`, and take what comes out."
GROUP = "ray.io"
LISTS = re.compile(r"(\w*)List")
# what a template of Helm has between braces: a value, a function or a keyword of Go's templates
_TEMPLATE = re.compile(r"\{\{-?\s*(\.|\$|/\*|(if|else|end|range|with|define|template|block|include|tpl|toYaml)\b)")
_HALF = re.compile("[\ud800-\udfff]")  # what `"\\ud800"` makes: half a character, which cannot be written anywhere

Trail = tuple[str | int, ...]  # keys and numbers that lead to a part of a document


class _AsKubernetes(Careful):
    """YAML as Kubernetes takes it: a key that is there twice is an error, and a date is a text."""

    yaml_implicit_resolvers = {
        letter: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if not hasattr(node, "own_keys"):  # later, what is merged into it stands among them
            node.own_keys = self._keys(node)
        super().flatten_mapping(node)

    def _keys(self, node: yaml.MappingNode) -> set[Hashable]:
        seen: set[Hashable] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if not isinstance(name, Hashable):
                said = f"a key is a string, and this one is {_kind(name)}"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            if name in seen:
                said = f"the key {key.value!r:.60} is there twice"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            seen.add(name)
        return seen


class _Loader(_AsKubernetes, yaml.SafeLoader):
    """For manifests: its errors say most."""

    most = MAX_TEXT


class _FastLoader(_AsKubernetes, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """For dumps, which are long: in C where PyYAML has it, ten times as fast."""

    most = MAX_LONG


@dataclass(frozen=True)
class Document:
    """A document of a manifest, with where its parts stand in the text.

    Attributes:
        data: plain data.
        line: where it begins, from 1.
        lines: the line of each path in it, such as "spec.workerGroupSpecs[0].groupName".
    """

    data: dict[str, Any]
    line: int = 1
    lines: Mapping[str, int] = field(default_factory=dict)

    def line_of(self, path: str) -> int:
        """Where a path stands; of one that is not there, where the next thing above it does."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, self.line)


def read(source: str | Mapping[str, Any]) -> list[Document]:
    """The documents of a text, and the items of each list in it, in their order, each with its lines.

    Args:
        source: YAML text, or one document as a dict, of which there are no lines.

    Raises:
        CourseError: it cannot be read, holds what no manifest can, or is not the manifest itself, but a template or a
            patch of one; the line is in it.
    """
    if isinstance(source, Mapping):
        written = [Document(*documents(source))]
    else:
        written = [_document(data, node) for data, node in _composed(source, _Loader)]
    found = [part for one in written for part in _unfolded(one)]
    for one in found:
        _refuse_patch(one)
        if is_of_ray(one.data):
            template = next((path for path, value in _texts(one.data) if _TEMPLATE.search(value)), None)
            if template is not None:
                raise _helm(one.line_of(template))
    return found


def _document(data: Any, node: yaml.Node) -> Document:
    begin = node.start_mark.line + 1
    if isinstance(data, list) and data and all(isinstance(one, Mapping) and {"op", "path"} <= {*one} for one in data):
        raise CourseError(f"From line {begin} on this is a patch of Kustomize, not a manifest.", BUILD)
    if not isinstance(data, Mapping):
        raise CourseError(f"A manifest is a mapping, and from line {begin} on this is {_kind(data)}.", AGAIN)
    return Document(_plain(data, (), partial(_line, node)), begin, dict(_lines(node)))


def _unfolded(one: Document) -> list[Document]:
    return _items(one) if LISTS.fullmatch(str(one.data.get("kind"))) and "items" in one.data else [one]


def is_of_ray(data: Mapping[str, Any]) -> bool:
    """Whether a document is of KubeRay's API group, in whatever version."""
    return str(data.get("apiVersion")).partition("/")[0] == GROUP


def _refuse_patch(document: Document) -> None:
    data, group = document.data, str(document.data.get("apiVersion")).partition("/")[0]
    marked = next((path for path in document.lines if path.rpartition(".")[2] in ("$patch", "$retainKeys")), None)
    if marked is not None:
        said = f"Line {document.line_of(marked)} has a word of Kustomize: this is a patch, not a manifest."
        raise CourseError(said, BUILD)
    is_kustomization = group == "kustomize.config.k8s.io" or ("kind" not in data and {"resources", "patches"} & {*data})
    if is_kustomization:
        raise CourseError(f"From line {document.line} on this is what Kustomize reads, not a manifest.", BUILD)


def _items(listed: Document) -> list[Document]:
    """The items of a list, as `kubectl get -o yaml` prints it, each with its paths from its own root."""
    items = listed.data["items"]
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise CourseError(f"The items of the list of line {listed.line} are no documents.", AGAIN)
    below: dict[str, dict[str, int]] = {}
    for path, line in listed.lines.items():
        root, _, rest = path.partition("].")
        below.setdefault(f"{root}]", {})[rest] = line
    roots = [f"items[{number}]" for number in range(len(items))]
    return [
        Document(item, listed.lines.get(root, listed.line), below.get(root, {}))
        for root, item in zip(roots, items, strict=True)
    ]


def _composed(text: Any, loader_type: type[_AsKubernetes]) -> Iterator[tuple[Any, yaml.Node]]:
    """What each document that is not empty holds, and its node."""
    if not isinstance(text, str):
        raise CourseError(f"A manifest is YAML text or a dict, and this is {_kind(text)}.", AGAIN)
    if len(text) > loader_type.most:
        said = f"A text of {len(text)} characters is too long to be read here: it may have {loader_type.most}."
        raise CourseError(said, "Give the objects of KubeRay alone.")
    loader = None
    while True:
        try:
            loader = loader or loader_type(text)  # which reads the first characters
            if not loader.check_node():
                return
            node = loader.get_node()
            data = loader.construct_document(node)
        except yaml.YAMLError as error:
            raise _no_yaml(text, error) from None
        if data is not None:
            yield data, node


def _template_line(text: str) -> int | None:
    """The line of the first thing that Helm would replace; comments aside."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#") and _TEMPLATE.search(line):
            return number
    return None


def _helm(line: int) -> CourseError:
    return CourseError(f"Line {line} has {{{{ … }}}} in it: this is a template of Helm, not a manifest.", RENDER)


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each text in plain data, with its path."""
    match value:
        case str():
            yield path, value
        case dict():
            for key, item in value.items():
                yield from _texts(item, f"{path}.{key}".lstrip("."))
        case list():
            for number, item in enumerate(value):
                yield from _texts(item, f"{path}[{number}]")


def _lines(node: yaml.Node, path: str = "") -> Iterator[tuple[str, int]]:
    if len(path) > MAX_PATH:  # of what is below, the line of this one is told
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{path}.{key.value}".lstrip(".")
            yield below, key.start_mark.line + 1
            yield from _lines(value, below)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            below = f"{path}[{number}]"
            yield below, value.start_mark.line + 1
            yield from _lines(value, below)


def _line(node: yaml.Node, trail: Trail) -> int:
    """The line of what a trail leads to, or of the last thing on the way that stands there."""
    line = node.start_mark.line + 1
    for step in trail:
        pairs = []
        if isinstance(node, yaml.MappingNode):  # what is merged into it comes first, and its own last
            pairs = [(key, value) for key, value in node.value if key.value == step]
        elif isinstance(node, yaml.SequenceNode):
            pairs = [(node.value[step], node.value[step])]
        if not pairs:
            break
        key, node = pairs[-1]
        line = key.start_mark.line + 1
    return line


def documents(source: str | Mapping[str, Any]) -> list[dict[str, Any]]:
    """The documents of a manifest, in their order; empty ones are left out.

    Args:
        source: YAML text, or one document as a dict.

    Raises:
        CourseError: it cannot be read, or holds what no manifest can.
    """
    if isinstance(source, Mapping):
        return [_plain(source, (), lambda _: None)]
    plain = [_plain(data, (), partial(_line, node)) for data, node in _composed(source, _Loader)]
    for one in plain:
        if not isinstance(one, dict):
            raise CourseError(f"A manifest is a mapping that begins with apiVersion, and this is {_kind(one)}.", AGAIN)
    return plain


def document(source: str | Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The one document of a manifest that holds no other.

    Args:
        kind: what it shall be, such as "RayCluster".

    Raises:
        CourseError: it cannot be read, or is another kind, or there are several or none.
    """
    found = documents(source)
    if len(found) != 1:
        raise CourseError(f"There are {len(found)} documents in it, and it should be one {kind}.", AGAIN)
    [one] = found
    if one.get("kind") != kind or one.get("apiVersion") != "ray.io/v1":
        said = f"apiVersion {one.get('apiVersion')!r:.60} and kind {one.get('kind')!r:.60}"
        raise CourseError(f"It has {said}, and a {kind} has apiVersion 'ray.io/v1' and kind '{kind}'.", AGAIN)
    return one


def long_documents(text: str) -> list[Any]:
    """The documents of a long text, YAML or JSON, that nobody wrote by hand, as plain data; empty ones are left out.

    Raises:
        CourseError: it cannot be read, with the line; or it is longer than `MAX_LONG`.
    """
    if len(text) <= MAX_LONG and (found := _json(text)):
        return [_plain(one, (), partial(line_of, text, 0)) for one in found]
    return [_plain(data, (), partial(_line, node)) for data, node in _composed(text, _FastLoader)]


def line_of(text: str, number: int, trail: Trail) -> int | None:
    """The line of a part of a text that `long_documents` has read; None if there are no lines.

    Args:
        number: of the document, among those that are not empty, from 0.
        trail: keys and numbers that lead to the part.
    """
    try:
        nodes = [node for node in yaml.compose_all(text, _FastLoader) if node.tag != "tag:yaml.org,2002:null"]
    except yaml.YAMLError:  # JSON, of which a little is no YAML
        return None
    return _line(nodes[number], trail)


def _json(text: str) -> list[Any]:
    """What a text in JSON holds, as `kubectl -o json` prints it; empty if it is none, which YAML says better."""
    try:
        return [json.loads(text)] if text.lstrip().startswith(("{", "[")) else []
    except (ValueError, RecursionError):
        return []


def _no_yaml(text: str, error: yaml.YAMLError) -> CourseError:
    if template := _template_line(text):
        return _helm(template)
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return CourseError(f"This is no text: line {line} has a character that YAML does not allow.", AGAIN)
    where = error.problem_mark or error.context_mark
    return CourseError(f"This is no YAML: line {where.line + 1}, column {where.column + 1}: {error.problem}.", AGAIN)


def _plain(value: Any, trail: Trail, line_of: Callable[[Trail], int | None]) -> Any:
    """A copy of plain data; numbers that are whole stay whole.

    Args:
        trail: what leads to it.
        line_of: says where something stands; None of what stands nowhere.
    """

    def unfit(said: str) -> CourseError:
        line = line_of(trail)
        return CourseError(f"{_path(trail) or 'The manifest':.200}{f' (line {line})' if line else ''} {said}.", AGAIN)

    if len(trail) > MAX_DEPTH:
        raise unfit("is nested too deeply to be read here")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or _HALF.search(key):
                raise unfit(f"has the key {key!r:.60}, and a key is a string")
        return {key: _plain(value[key], (*trail, key), line_of) for key in value}
    if isinstance(value, list | tuple):
        return [_plain(item, (*trail, number), line_of) for number, item in enumerate(value)]
    is_number = isinstance(value, int | float) and math.isfinite(value)
    is_text = isinstance(value, str) and (value.isascii() or not _HALF.search(value))
    if value is None or isinstance(value, bool) or is_number or is_text:
        return value
    raise unfit(f"is {_kind(value)}, which no manifest can hold")


def _path(trail: Trail) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in trail)
    return "".join(steps).lstrip(".")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case float() if not math.isfinite(value):
            return "an unusual number"
        case int() | float():
            return "a number"
        case str():
            return "half a character" if _HALF.search(value) else "a text"
        case bytes():
            return "binary data"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"

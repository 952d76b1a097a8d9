"""A manifest, read from YAML text or from a dict: plain data, and nothing that would not arrive at an API server."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from helpers.errors import CourseError

MAX_TEXT = 200_000  # characters
MAX_ITEMS = 50_000  # with what aliases repeat
MAX_DEPTH = 60
AGAIN = "Mend that, then try again."
RENDER = "Render it first, as with `helm template`, and take what comes out."
BUILD = "Build it first, as with `kubectl kustomize`, and take what comes out."
GROUP = "ray.io"
LISTS = re.compile(r"(\w*)List")
# what a template of Helm has between braces: a value, a function or a keyword of Go's templates
_TEMPLATE = re.compile(r"\{\{-?\s*(\.|\$|/\*|(if|else|end|range|with|define|template|block|include|tpl|toYaml)\b)")


class _AsKubernetes:
    """YAML as Kubernetes takes it: a key that is there twice is an error, and a date is a text."""

    yaml_implicit_resolvers = {
        letter: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if not isinstance(name, Hashable) or name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r:.60} is there twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


class _Loader(_AsKubernetes, yaml.SafeLoader):
    """For manifests: its errors say most."""


class _FastLoader(_AsKubernetes, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """For dumps, which are long: in C where PyYAML has it, ten times as fast."""


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


def read(text: str) -> list[Document]:
    """The documents of a text, and the items of each list in it, in their order, each with its lines.

    Raises:
        CourseError: it cannot be read, holds what no manifest can, or is not the manifest itself, but a template or a
            patch of one; the line is in it.
    """
    found = []
    for data, node in _composed(text):
        begin, where = node.start_mark.line + 1, f"line {node.start_mark.line + 1}"
        if isinstance(data, list) and all(isinstance(one, Mapping) and {"op", "path"} <= {*one} for one in data):
            raise CourseError(f"From {where} on this is a patch of Kustomize, not a manifest.", BUILD)
        if not isinstance(data, Mapping):
            raise CourseError(f"A manifest is a mapping, and from {where} on this is {_kind(data)}.", AGAIN)
        one = Document(_plain(data, "", 0, [0]), begin, dict(_lines(node)))
        found += _items(one) if LISTS.fullmatch(str(data.get("kind"))) and "items" in data else [one]
    for one in found:
        _refuse_patch(one)
        if is_of_ray(one.data):
            template = next((path for path, value in _texts(one.data) if _TEMPLATE.search(value)), None)
            if template is not None:
                raise _helm(one.line_of(template))
    return found


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
    found = []
    for number, item in enumerate(items):
        root = f"items[{number}]"
        lines = {path[len(root) + 1 :]: line for path, line in listed.lines.items() if path.startswith(f"{root}.")}
        found.append(Document(item, listed.lines.get(root, listed.line), lines))
    return found


def _composed(text: str) -> Iterator[tuple[Any, yaml.Node]]:
    """What each document that is not empty holds, and its node."""
    if len(text) > MAX_TEXT:
        raise CourseError(f"A manifest of {len(text)} characters is too long to be read here.", AGAIN)
    loader = None
    while True:
        try:
            loader = loader or _Loader(text)  # which reads the first characters
            if not loader.check_node():
                return
            node = loader.get_node()
            data = loader.construct_document(node)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            line = _template_line(text)
            raise (_helm(line) if line else _no_yaml(text, error)) from None
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


def _lines(node: yaml.Node, path: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    if depth > MAX_DEPTH:
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{path}.{key.value}".lstrip(".")
            yield below, key.start_mark.line + 1
            yield from _lines(value, below, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            below = f"{path}[{number}]"
            yield below, value.start_mark.line + 1
            yield from _lines(value, below, depth + 1)


def documents(source: str | Mapping[str, Any]) -> list[dict[str, Any]]:
    """The documents of a manifest, in their order; empty ones are left out.

    Args:
        source: YAML text, or one document as a dict.

    Raises:
        CourseError: it cannot be read, or holds what no manifest can.
    """
    found = [source] if isinstance(source, Mapping) else _parsed(source)
    count = [0]
    plain = [_plain(one, "", 0, count) for one in found if one is not None]
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


def long_documents(text: str, max_text: int) -> list[Any]:
    """The documents of a long YAML text that nobody wrote by hand, as plain data; empty ones are left out.

    Args:
        max_text: how many characters it may have. It may hold as many values, with what aliases repeat.

    Raises:
        CourseError: it cannot be read, with the line; or is longer.
    """
    if len(text) > max_text:
        raise CourseError(f"A text of {len(text)} characters is too long to be read here.", "Save less in it.")
    count = [-len(text)]
    return [_plain(one, "", 0, count) for one in _loaded(text, _FastLoader) if one is not None]


def _parsed(text: Any) -> list[Any]:
    if not isinstance(text, str):
        raise CourseError(f"A manifest is YAML text or a dict, and this is {_kind(text)}.", AGAIN)
    if len(text) > MAX_TEXT:
        raise CourseError(f"A manifest of {len(text)} characters is too long to be read here.", AGAIN)
    return _loaded(text, _Loader)


def _loaded(text: str, loader: type) -> list[Any]:
    try:
        return list(yaml.load_all(text, loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _no_yaml(text, error) from None


def _no_yaml(text: str, error: Exception) -> CourseError:
    if isinstance(error, yaml.MarkedYAMLError):
        where = error.problem_mark or error.context_mark
        place = f"line {where.line + 1}, column {where.column + 1}: " if where else ""
        return CourseError(f"This is no YAML: {place}{error.problem or error.context}.", AGAIN)
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        return CourseError(f"This is no text: line {line} has a character that YAML does not allow.", AGAIN)
    if isinstance(error, RecursionError):
        return CourseError("This manifest is nested too deeply to be read here.", AGAIN)
    return CourseError(f"This is no YAML: {str(error).splitlines()[0]:.200}.", AGAIN)


def _plain(value: Any, path: str, depth: int, count: list[int]) -> Any:
    """A copy of plain data; numbers that are whole stay whole."""
    count[0] += 1
    if count[0] > MAX_ITEMS or depth > MAX_DEPTH:
        raise CourseError("This manifest is too big, or nested too deeply, to be read here.", AGAIN)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise CourseError(f"{path or 'The manifest'} has the key {key!r:.60}, and a key is a string.", AGAIN)
        return {key: _plain(value[key], f"{path}.{key}".lstrip("."), depth + 1, count) for key in value}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{number}]", depth + 1, count) for number, item in enumerate(value)]
    is_number = isinstance(value, int | float) and math.isfinite(value)
    if value is None or isinstance(value, bool | str) or is_number:
        return value
    raise CourseError(f"{path or 'The manifest'} is {_kind(value)}, which no manifest can hold.", AGAIN)


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing", float: "an unusual number"}
    name = type(value).__name__
    return names.get(type(value), f"an {name}" if name[0].lower() in "aeiou" else f"a {name}")

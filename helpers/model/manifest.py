"""A manifest, read from YAML text or from a dict: plain data, and nothing that would not arrive at an API server."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from helpers.errors import CourseError

MAX_TEXT = 200_000  # characters
MAX_ITEMS = 50_000  # with what aliases repeat
MAX_DEPTH = 60
AGAIN = "Mend that, then try again."


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
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark or error.context_mark
        place = f"line {where.line + 1}, column {where.column + 1}: " if where else ""
        raise CourseError(f"This is no YAML: {place}{error.problem or error.context}.", AGAIN) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CourseError(f"This is no YAML: {str(error).splitlines()[0]:.200}.", AGAIN) from None


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

"""Files and YAML that somebody wrote: read with care, so that whatever is in them ends in data or in a sentence."""

from __future__ import annotations

import codecs
import math
import sys
from pathlib import Path
from typing import Any

import yaml

from helpers.errors import CourseError

MAX_BYTES = 100_000_000  # of a file; a dump of a large cluster has a tenth of it
MAX_DEPTH = 60  # of mappings and lists in each other
SMALLER = "Give a smaller part of it."
AS_UTF8 = "Save it as text in UTF-8, then try again."


def is_yaml(source: str) -> bool:
    """Whether this is YAML itself, and no path: paths have no line break, and no colon before a blank."""
    return "\n" in source or ": " in source or source.lstrip().startswith("{")


def read_file(path: str | Path, name: str) -> str:
    """The text of a file, or of standard input, which is called "-".

    It is UTF-8, or UTF-16 with the mark that PowerShell writes before what it saves by `>`.

    Args:
        name: what it is to the user, such as "The manifest a.yaml".

    Raises:
        CourseError: it cannot be read, is too long, or is no text, with the line.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a character that no path has
        said = f"{name} cannot be read: {getattr(error, 'strerror', None) or error}."
        fix = f"Paths are relative to {Path.cwd()}; in an exercise, `lab.here(…)` names your own files."
        raise CourseError(said, fix) from None
    if len(data) > MAX_BYTES:
        raise CourseError(f"{name} has more than {MAX_BYTES // 10**6} MB, which is too long to be read here.", SMALLER)
    is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if is_wide else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].decode(encoding, "replace").count("\n") + 1
        raise CourseError(f"{name} is no text: line {line} has bytes that are none in UTF-8.", AS_UTF8) from None


class Careful:
    """What PyYAML's loaders lack: an end to what is nested or repeated, and the line of a value that is none.

    It stands before a loader in a class's bases.

    Attributes:
        most: how many characters a text may have, with what is repeated.
    """

    most: float = 10_000_000
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        _check_depth(self._depth, self.peek_event())
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_document(self, node: yaml.Node) -> Any:
        self.most -= _size(node, self.most, {}, 0)
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # 5000 digits, `!!bool maybe`, `!!timestamp soon`
            said = f"{node.value!r:.40} cannot be read as {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from None


def _size(node: yaml.Node, most: float, known: dict[int, float], depth: int) -> float:
    """How many characters a node stands for, at least 1 for each value; never more than a text without aliases has.

    Raises:
        CourseError: there are too many, or they are nested too deeply.
    """
    if id(node) in known:
        return known[id(node)]
    _check_depth(depth, node)  # the loader in C composes by itself
    known[id(node)] = math.inf  # one that holds itself has no end
    is_scalar = isinstance(node, yaml.ScalarNode)
    size, parts = (max(1, len(node.value)), ()) if is_scalar else (1, node.value)
    for part in parts:
        for one in part if isinstance(part, tuple) else (part,):  # a key and its value
            size += _size(one, most, known, depth + 1)
    if size > most:
        said = f"Line {node.start_mark.line + 1}: with what is repeated by aliases, this is too big to be read here."
        raise CourseError(said, SMALLER)
    known[id(node)] = size
    return size


def _check_depth(depth: int, part: yaml.Node | yaml.Event) -> None:
    if depth > MAX_DEPTH:
        raise CourseError(f"Line {part.start_mark.line + 1} is nested too deeply to be read here.", SMALLER)

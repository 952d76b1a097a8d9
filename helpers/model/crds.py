"""What the API server says to a manifest of KubeRay: its CRDs in a dense form, and a document against them.

`crds.json` is made from the CRDs of the pinned KubeRay by

    python -m helpers.model.crds DIRECTORY   # config/crd/bases of KubeRay's Go module

and holds of each kind what is looked at here: names, types, what is required, defaults, lists of values. Descriptions,
status and most rules in CEL are left out; what stands there more than once stands in it once. A live test compares it
with what the API server has.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from helpers import versions
from helpers.errors import CourseError
from helpers.model import quantity
from helpers.model.findings import ERROR, UNREADABLE, Finding
from helpers.model.manifest import GROUP, Document, is_of_ray

FILE = Path(__file__).with_name("crds.json")
VERSION = "v1"
WANTED = "Give a file with a RayCluster, RayJob, RayService or RayCronJob of ray.io/v1."
_KEPT = ("type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_KEPT += ("required", "default", "nullable", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
_KEPT += ("x-kubernetes-list-map-keys",)
_RANGES = {"int32": 2**31, "int64": 2**63}
_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}

_ONE_OF = re.compile(r"self in \[('[^']*'(?:, '[^']*')*)\]")
# the fields of an ObjectMeta that a manifest may have (Kubernetes API reference, meta/v1)
_METADATA = {"name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "uid"}
_METADATA |= {"resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "managedFields", "selfLink"}
_METADATA |= {"deletionGracePeriodSeconds"}
_METADATA_TYPES = {"namespace": str, "generateName": str, "uid": str, "resourceVersion": str, "generation": int}
_METADATA_TYPES |= {"finalizers": list, "ownerReferences": list, "managedFields": list}
_WORDS = {str: "a string", int: "a whole number", list: "a list"}
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Schema = Mapping[str, Any]


def kinds() -> frozenset[str]:
    """The kinds that KubeRay defines, such as "RayCluster"."""
    return frozenset(_dense()["kinds"])


def known(documents: Sequence[Document]) -> tuple[list[Document], list[str]]:
    """The documents of KubeRay that can be checked, and why each other one of its group cannot, a sentence each.

    Raises:
        CourseError: there is none that can, with the line.
    """
    ours = [one for one in documents if is_of_ray(one.data)]
    checked = [one for one in ours if not _why_not(one)]
    left = [said for one in ours if (said := _why_not(one))]
    if checked:
        return checked, left
    if left:
        raise CourseError(f"Nothing could be checked: {left[0]}", WANTED)
    if not documents:
        raise CourseError("Nothing could be checked: there is no document in it.", WANTED)
    begun = ", ".join(f"line {one.line} begins {_named(one.data)}" for one in documents[:3])
    raise CourseError(f"Nothing here is of KubeRay: {begun}.", WANTED)


def _named(data: Mapping[str, Any]) -> str:
    kind, api = data.get("kind"), data.get("apiVersion")
    if not isinstance(kind, str):
        return "something without a kind"
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    # of a kind of KubeRay's it is the group that is wrong
    return f"{article} {kind:.60}" + ("" if kind not in kinds() else f" with the apiVersion {api!r:.60}")


def _why_not(document: Document) -> str:
    kind, api = document.data.get("kind"), document.data.get("apiVersion")
    if api == f"{GROUP}/v1alpha1":
        where = document.line_of("apiVersion")
        return f"line {where} has {api}, which is out of use; write {GROUP}/{VERSION}, and look at it again."
    if api != f"{GROUP}/{VERSION}":
        return f"line {document.line_of('apiVersion')} has {api!r:.60}, and KubeRay has {GROUP}/{VERSION}."
    if not isinstance(kind, str) or kind not in kinds():
        there = ", ".join(sorted(kinds()))
        return f"line {document.line_of('kind')} has the kind {kind!r:.60}, and KubeRay has {there}."
    return ""


def faults(document: Mapping[str, Any]) -> list[Finding]:
    """What the API server refuses a document for, if unknown fields are errors to it, as they are to `kubectl apply`.

    Args:
        document: plain data of one of `kinds()`.

    Returns:
        Findings of the rules unknown-field, missing-field, wrong-type, bad-enum, negative-bound, duplicate-entry and
        bad-name, all errors.
    """
    found = list(_check(document, _dense()["kinds"][document["kind"]], ""))
    return found + list(_metadata(document.get("metadata")))


@cache
def _dense() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def schema(kind: str, field: str) -> Schema:
    """The schema of a field at the top of a kind, such as "spec"."""
    return resolved(resolved(_dense()["kinds"][kind])["properties"][field])


def resolved(schema: Schema | str) -> Schema:
    """A schema that may stand elsewhere, under a name."""
    return _dense()["shared"][schema] if isinstance(schema, str) else schema


def _metadata(metadata: Any) -> Iterator[Finding]:
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, Mapping):
        return  # the schema has said so
    for name in metadata:
        wanted = _METADATA_TYPES.get(name)
        if name not in _METADATA:
            yield Finding("unknown-field", f"metadata.{name}", ERROR, "there is no such field")
        elif wanted and not isinstance(metadata[name], wanted | None):
            yield _wrong_type(f"metadata.{name}", _WORDS[wanted], metadata[name])
    for field in ("labels", "annotations"):
        words = metadata.get(field) or {}
        if not isinstance(words, Mapping):
            yield _wrong_type(f"metadata.{field}", "a mapping", words)
        for key in words if isinstance(words, Mapping) else ():
            if not isinstance(words[key], str):
                yield _wrong_type(f"metadata.{field}.{key}", "a string", words[key])
    name, begin = metadata.get("name"), metadata.get("generateName")
    if not name and isinstance(begin, str) and begin:
        name = f"{begin}xxxxx"  # five letters are put behind it
    if not name:
        yield Finding("missing-field", "metadata.name", ERROR, "a name is required")
    elif not isinstance(name, str):
        yield _wrong_type("metadata.name", "a string", name)
    elif len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        said = "a name has small letters, digits, '-' and '.' in it, and begins and ends with a letter or a digit"
        yield Finding("bad-name", "metadata.name", ERROR, said)


def _check(value: Any, schema: Schema | str, path: str) -> Iterator[Finding]:
    schema = resolved(schema)
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        yield from _check_int_or_string(value, schema, path)
        return
    wrong = _type_fault(value, schema)
    if wrong:
        yield _wrong_type(path, wrong, value)
        return
    match value:
        case dict():
            yield from _check_object(value, schema, path)
        case list():
            if len(value) < schema.get("minItems", 0):
                yield Finding("wrong-type", path, ERROR, f"it has {len(value)} entries, and needs more")
            for number, item in enumerate(value):
                yield from _check(item, schema["items"], f"{path}[{number}]")
            yield from _check_keys(value, schema, path)
        case _:
            yield from _check_scalar(value, schema, path)


def _type_fault(value: Any, schema: Schema) -> str:
    """What this should be, if it is not that; with its article."""
    wanted = schema.get("type", "")
    if wanted in ("integer", "number"):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        is_number = not isinstance(value, bool) and (whole or (wanted == "number" and isinstance(value, float)))
        limit = _RANGES.get(schema.get("format", ""), 2**63)
        if is_number and -limit <= value < limit:
            return ""
        return "a whole number" if wanted == "integer" else "a number"
    if wanted not in _TYPES or isinstance(value, _TYPES[wanted]):
        return ""
    return {"object": "a mapping", "array": "a list", "string": "a string", "boolean": "true or false"}[wanted]


def _check_object(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[Finding]:
    fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        # a null for what has a default is dropped, and the default comes in its place
        if name not in value and "default" not in resolved(fields[name]):
            yield Finding("missing-field", _join(path, name), ERROR, "it is required")
    free = not fields and rest is None  # metadata, and whatever else the schema says nothing of
    for name, item in value.items():
        below = _join(path, name)
        if name in fields:
            if item is not None or "default" not in resolved(fields[name]):
                yield from _check(item, fields[name], below)
        elif rest is not None:
            yield from _check(item, rest, below)
        elif not free and not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield Finding("unknown-field", below, ERROR, "there is no such field")


def _check_keys(entries: list, schema: Schema, path: str) -> Iterator[Finding]:
    """Where entries are told apart by some of their fields, such as containers by their name."""
    keys, seen = schema.get("x-kubernetes-list-map-keys"), set()
    for number, entry in enumerate(entries if keys else ()):
        own = tuple(str(entry.get(key)) for key in keys) if isinstance(entry, dict) else number
        if own in seen:
            said = f"there is an entry of the same {' and '.join(keys)} before it"
            yield Finding("duplicate-entry", f"{path}[{number}]", ERROR, said)
        seen.add(own)


def _check_int_or_string(value: Any, schema: Schema, path: str) -> Iterator[Finding]:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if not is_whole and not isinstance(value, str):
        yield _wrong_type(path, "a whole number or a string", value)
    elif not re.search(schema.get("pattern", ""), str(value)):
        yield Finding("wrong-type", path, ERROR, f"{value!r:.60} is no quantity, such as 2, 500m or 16Gi")
    elif "pattern" in schema and not quantity.is_one(value):  # such as 1e1.5 and 1e400, which the pattern allows
        yield Finding(UNREADABLE, path, ERROR, f"{value!r:.60} is no quantity to reckon with, though it may be stored")


def _check_scalar(value: Any, schema: Schema, path: str) -> Iterator[Finding]:
    if "enum" in schema and value not in schema["enum"]:
        yield Finding("bad-enum", path, ERROR, f"{value!r:.60} is not one of {', '.join(map(str, schema['enum']))}")
    if isinstance(value, str):
        fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", sys.maxsize)
        if not fits or not re.search(schema.get("pattern", ""), value):
            yield Finding("wrong-type", path, ERROR, f"{value!r:.60} has not the form that is wanted")
    elif "minimum" in schema and value < schema["minimum"]:
        yield Finding("negative-bound", path, ERROR, f"it is {value}, and must not be below {schema['minimum']:g}")


def _wrong_type(path: str, wanted: str, value: Any) -> Finding:
    return Finding("wrong-type", path, ERROR, f"it should be {wanted}, and is {_said(value)}")


def _said(value: Any) -> str:
    match value:
        case None:
            return "empty"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return f"the string {value!r:.60}"
        case bool():
            return str(value).lower()
    return f"the number {value!s:.40}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")


# ---- how crds.json is made


def dense(crds: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What `crds.json` holds, from CustomResourceDefinitions as KubeRay ships them, or as an API server has them."""
    schemas = {}
    for crd in sorted(crds, key=lambda one: one["spec"]["names"]["kind"]):
        [version] = [one for one in crd["spec"]["versions"] if one["name"] == VERSION]
        schema = _pruned(version["schema"]["openAPIV3Schema"])
        schema["properties"]["status"] = {"type": "object"}  # nobody looks at it
        schemas[crd["spec"]["names"]["kind"]] = schema
    counts: Counter[str] = Counter()
    for schema in schemas.values():
        _count(schema, counts)
    shared: dict[str, Any] = {}
    names: dict[str, str] = {}
    return {
        "kuberay": versions.KUBERAY,
        "kinds": {kind: _shared(schema, counts, names, shared) for kind, schema in schemas.items()},
        "shared": shared,
    }


def _pruned(schema: Schema) -> dict[str, Any]:
    kept = {key: schema[key] for key in _KEPT if key in schema}
    for key, inner in _inner(schema):
        kept[key] = inner(_pruned)
    for rule in schema.get("x-kubernetes-validations", ()):
        if words := _ONE_OF.fullmatch(rule["rule"]):
            kept["enum"] = re.findall(r"'([^']*)'", words[1])
    return kept


def _inner(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The parts that are schemas themselves: each with its key, and what applies a function to them."""
    if "properties" in schema:
        fields = schema["properties"]
        yield "properties", lambda change: {name: change(fields[name]) for name in sorted(fields)}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield key, lambda change, below=schema[key]: change(below)


def _text(schema: Schema) -> str:
    return json.dumps(schema, sort_keys=True)


def _count(schema: Schema, counts: Counter[str]) -> None:
    counts[_text(schema)] += 1
    if counts[_text(schema)] == 1:
        for _, inner in _inner(schema):
            inner(lambda below: _count(below, counts))


def _shared(schema: Schema, counts: Counter[str], names: dict[str, str], shared: dict[str, Any]) -> Any:
    """The schema; or the name under which it stands in `shared`, if it is big enough and there more than once."""
    text = _text(schema)
    if text in names:
        return names[text]
    body = dict(schema)
    for key, inner in _inner(schema):
        body[key] = inner(lambda below: _shared(below, counts, names, shared))
    if counts[text] == 1 or len(text) < 60:
        return body
    names[text] = str(len(shared))
    shared[names[text]] = body
    return names[text]


def main() -> None:
    """Write crds.json from the CRDs in a directory."""
    import yaml

    paths = sorted(Path(sys.argv[1]).glob("ray.io_*.yaml"))
    made = dense(yaml.load(path.read_text(), yaml.CSafeLoader) for path in paths)
    lines = [f'"kuberay": {json.dumps(made["kuberay"])}']
    for part in ("kinds", "shared"):
        rows = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in made[part].items()]
        lines.append(f'"{part}": {{\n' + ",\n".join(rows) + "\n}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

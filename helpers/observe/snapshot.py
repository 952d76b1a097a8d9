"""What is known of a cluster at one moment: its objects, and texts that its programs printed.

It comes from a dump that somebody saved, or from a running cluster (`helpers.observe.live`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.model import manifest
from helpers.reading import read_file

Object = Mapping[str, Any]
ROOTS = ("RayService", "RayJob", "RayCluster")
RAY_KINDS = (*ROOTS, "RayCronJob")
TEXTS = ("ray_status", "ray_memory", "ray_list_actors", "top")
NAMED_TEXTS = ("logs", "exec")
VERSIONS = ("ray_version", "kuberay_version")
LISTS = (
    "conditions", "containers", "initContainers", "containerStatuses", "initContainerStatuses", "ownerReferences",
    "workerGroupSpecs", "managedFields", "schedulingGates", "taints",
)  # fmt: skip
MAPPINGS = (
    "metadata", "labels", "annotations", "lastState", "waiting", "running", "terminated", "limits", "requests",
    "involvedObject", "template", "headGroupSpec", "autoscalerOptions", "scaleStrategy", "rayStartParams",
)  # fmt: skip
WORDS = ("name", "kind", "type", "reason", "message", "image", "phase")  # are texts
SAVE = "Save one by `kubectl get rayclusters,rayjobs,rayservices,pods,events,jobs,resourcequotas -o yaml > dump.yaml`."


@dataclass(frozen=True)
class Snapshot:
    """What is known of a cluster at one moment.

    Attributes:
        objects: as the API server has them.
        now: the moment.
        texts: what was printed, by command: `ray_status` (`ray status`, with or without -v), `ray_memory`,
            `ray_list_actors`, `top` (`kubectl top pod --containers`).
        logs: by `pod/container`; with " (previous)" at the end, of the run before the last restart.
        exec: what commands printed.
        ray_version, kuberay_version: empty if they are not known.
        unread: what could not be read, a sentence each.
    """

    objects: tuple[Object, ...]
    now: datetime
    texts: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    exec: Mapping[str, str] = field(default_factory=dict)
    ray_version: str = ""
    kuberay_version: str = ""
    unread: tuple[str, ...] = ()

    def of_kind(self, kind: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def roots(self) -> list[Object]:
        """What somebody applied: RayServices, RayJobs and RayClusters that no other of them made."""
        there = {(kind, one["metadata"]["name"]) for kind in ROOTS for one in self.of_kind(kind)}
        made = {name for one in (*self.of_kind("RayJob"), *self.of_kind("RayService")) for name in _made_by(one)}
        return [
            one
            for kind in ROOTS
            for one in self.of_kind(kind)
            if not (kind == "RayCluster" and one["metadata"]["name"] in made)
            if not any(
                (ref.get("kind"), ref.get("name")) in there for ref in one["metadata"].get("ownerReferences") or ()
            )
        ]


def _made_by(thing: Object) -> list[str]:
    """The RayClusters that a RayJob or RayService names as its own; not one that it has chosen (clusterSelector)."""
    status = thing.get("status") or {}
    if thing["spec"].get("clusterSelector"):
        return []
    parts = (status, *(status.get(part) or {} for part in ("activeServiceStatus", "pendingServiceStatus")))
    return [part["rayClusterName"] for part in parts if part.get("rayClusterName")]


def time_of(text: Any) -> datetime | None:
    """A moment as Kubernetes writes it; None if it is none."""
    try:
        at = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def from_file(path: Path) -> Snapshot:
    """A snapshot from a saved dump. See `from_text`.

    Raises:
        CourseError: it is not there, is no text, or holds no dump.
    """
    return from_text(read_file(path, f"The dump {path}"))


def from_text(text: str) -> Snapshot:
    """A snapshot from the text of a dump.

    It is a `v1 List`, as `kubectl get … -o yaml` (or `-o json`) prints it, or several of them after each other; or a
    mapping with `objects` (that List, as text or as it is) and what is known beside it: `now`, `ray_version`,
    `kuberay_version`, `ray_status`, `ray_memory`, `ray_list_actors`, `top`, `logs`, `exec` (see `Snapshot`).

    Raises:
        CourseError: it holds no dump, or is cut; the line is named where there is one.
    """
    documents = _documents(text)
    if len(documents) == 1 and isinstance(documents[0], dict) and "objects" in documents[0]:
        return from_mapping(documents[0])
    found = _snapshot(_objects(documents, text), {})
    # kubectl ends its output with a line break
    return (
        found
        if text.endswith("\n")
        else replace(found, unread=("The dump does not end with a line break: was it cut?",))
    )


def from_mapping(given: Mapping[str, Any]) -> Snapshot:
    """A snapshot from `objects` and the texts beside them, as `from_text` describes them.

    Raises:
        CourseError: a part of it is not what it must be.
    """
    unknown = sorted(set(given) - {"objects", "now", *TEXTS, *NAMED_TEXTS, *VERSIONS})
    if unknown:
        known = ", ".join(("objects", "now", *TEXTS, *NAMED_TEXTS, *VERSIONS))
        raise CourseError(f"The dump has {unknown[0]!r:.60}, which nothing reads.", f"It may have: {known}.")
    objects = given.get("objects")
    documents = _documents(objects) if isinstance(objects, str) else [objects]
    return _snapshot(_objects(documents, objects if isinstance(objects, str) else ""), given)


def _documents(text: str) -> list[Any]:
    if not text.strip():
        raise CourseError("The dump is empty.", SAVE)
    try:
        return manifest.long_documents(text)
    except CourseError as error:
        last = text.count("\n") + 1
        raise CourseError(f"{error.what.rstrip('.')} (the dump has {last} lines; was it cut?).", SAVE) from None


def _objects(documents: list[Any], text: str) -> tuple[Object, ...]:
    found: list[Object] = []
    for number, document in enumerate(documents):
        found += _of_document(document, number, text)
    if not found:
        raise CourseError("The dump holds no object.", SAVE)
    if not any(one["kind"] in RAY_KINDS for one in found):
        kinds = ", ".join(sorted({one["kind"] for one in found})[:6])
        raise CourseError(f"The dump holds no RayCluster, RayJob or RayService, only {kinds}.", SAVE)
    if not any(one["kind"] not in RAY_KINDS or one.get("status") for one in found):
        raise CourseError(
            "The dump holds no status, no Pod and no event: it is what was applied, not what became of it.",
            f"`course explain` reads manifests. {SAVE}",
        )
    return tuple(found)


def _of_document(document: Any, number: int, text: str) -> list[Object]:
    if not isinstance(document, dict):
        raise CourseError(f"The dump is no List, which begins with apiVersion{_in_line(text, number)}.", SAVE)
    items, kind = document.get("items"), document.get("kind")
    if "items" not in document:
        return [_object(document, "", lambda: f"The document{_in_line(text, number)}", text)]
    if kind is None:  # kubectl prints `kind: List` after the items
        raise CourseError(f"The dump ends before its end, in line {_lines(text)}: no `kind: List` follows.", SAVE)
    if not isinstance(kind, str) or not kind.endswith("List"):
        raise CourseError(f"The dump is a {kind!r:.40} with items, and no List{_in_line(text, number, 'kind')}.", SAVE)
    if not isinstance(items, list):
        raise CourseError(f"The items of the dump are no list{_in_line(text, number, 'items')}.", SAVE)
    own = kind.removesuffix("List")

    def which(count: int) -> str:
        return f"Item {count + 1} of the dump{_in_line(text, number, 'items', count)}"

    return [_object(one, own, partial(which, count), text) for count, one in enumerate(items)]


def _in_line(text: str, number: int, *trail: str | int) -> str:
    """Where a part of the dump stands, in brackets; empty, if it did not come as a text."""
    line = manifest.line_of(text, number, trail) if text else None
    return f" (line {line})" if line else ""


def _object(thing: Any, kind: str, which: Callable[[], str], text: str) -> Object:
    """An object of a dump; `which` says which it is, where it is none."""

    def error(what: str) -> CourseError:
        return CourseError(f"{which()}{what} (the dump has {_lines(text)} lines; was it cut?).", SAVE)

    if not isinstance(thing, dict) or not isinstance(thing.get("metadata"), dict):
        keys = f": its keys are {_keys(thing)}" if isinstance(thing, dict) else ""
        raise error(f" is no object with metadata{keys}")
    kind, name = thing.get("kind") or kind, thing["metadata"].get("name")  # a PodList does not say it of each
    for word, value in (("kind", kind), ("name", name)):
        if not isinstance(value, str) or not value:
            raise error(f" has no {word}")
    for part in ("spec", "status"):
        if not isinstance(thing.get(part) or {}, dict):
            raise error(f", {kind}/{name}, has a {part} that is no mapping")
    if odd := next(_odd(thing, ""), ""):
        raise error(f", {kind}/{name}, is not as an API server has it: {odd}")
    if kind in RAY_KINDS and not thing.get("spec"):
        raise error(f", {kind}/{name}, has no spec")
    return {**thing, "kind": kind}


def _odd(thing: Any, path: str) -> Iterator[str]:
    """Parts of an object that are lists, mappings or texts in Kubernetes, and something else here."""
    if not isinstance(thing, Mapping):
        return
    for key, value in thing.items():
        where = f"{path}.{key}".lstrip(".")
        if key in LISTS and value is not None:
            if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
                yield f"{where} is no list of mappings"
                return
            for one in value:
                if key.endswith("ontainerStatuses") and not isinstance(one.get("state") or {}, Mapping):
                    yield f"{where}.state is no mapping"  # in a RayCluster it is a text
                yield from _odd(one, where)
        elif key in WORDS and value is not None and not isinstance(value, str):
            yield f"{where} is no text"
        elif key in MAPPINGS and value is not None and not isinstance(value, Mapping):
            yield f"{where} is no mapping"
        else:
            yield from _odd(value, where)


def _keys(document: Mapping[str, Any]) -> str:
    return ", ".join(list(document)[:5]) or "none"


def _lines(text: str) -> int:
    return text.rstrip().count("\n") + 1


def _snapshot(objects: tuple[Object, ...], given: Mapping[str, Any]) -> Snapshot:
    now = time_of(given["now"]) if given.get("now") else max(_moments(objects), default=None)
    if now is None:
        what = f"The dump's `now` is {given['now']!r:.60}" if given.get("now") else "No object of the dump has a time"
        raise CourseError(
            f"{what}, so nobody can say how long anything has waited.", "Write `now: 2026-01-31T12:00:00Z`."
        )
    texts = {name: _text(name, given[name]) for name in TEXTS if given.get(name)}
    named: dict[str, dict[str, str]] = {}
    for name in NAMED_TEXTS:
        part = given.get(name) or {}
        if not isinstance(part, Mapping):
            raise CourseError(
                f"The dump's `{name}` is no mapping of names to texts.", f"Write `{name}:` and a name below."
            )
        named[name] = {str(key): _text(f"{name} of {key}", value or "") for key, value in part.items()}
    versions = {name: str(given.get(name) or "") for name in VERSIONS}
    return Snapshot(objects, now, texts, named["logs"], named["exec"], **versions)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise CourseError(f"The dump's {name} is no text.", f"Write it below `{name}: |`.")
    return value


def _moments(thing: Any) -> Iterator[datetime]:
    """All moments in an object: the newest is not long before the dump."""
    if isinstance(thing, Mapping):
        for value in thing.values():
            yield from _moments(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _moments(value)
    elif isinstance(thing, str) and len(thing) in range(19, 36) and "T" in thing and (at := time_of(thing)):
        yield at

"""What a notebook applies: read, and looked at before the cluster sees it. Nothing here asks the cluster."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from helpers import versions
from helpers.errors import CourseError
from helpers.reading import Careful, is_yaml, read_file

# KubeRay 1.6.2, constant.go:299-305: the names of Pods and Services are made from these, and may have 63 letters
LONGEST = {"RayCluster": 53, "RayJob": 47, "RayService": 47, "RayCronJob": 41}
DNS_NAME = re.compile(
    r"[a-z]([-a-z0-9]*[a-z0-9])?"
)  # RFC 1035, which KubeRay wants as it makes Services of these names
IMAGE = re.compile(r"(?:docker\.io/)?rayproject/ray:(?P<ray>\d+\.\d+\.\d+)[^-]*(?:-py(?P<python>\d+))?")

UNNAMED = re.compile(r"(?:docker\.io/)?rayproject/ray(:[^0-9].*)?")


class _Loader(Careful, yaml.SafeLoader):
    """Dates and keys of all kinds are let through: they are made text."""


def read(what: str | Path | dict) -> list[dict]:
    """The objects of a manifest: of a file, of YAML text, or the one that a dict is.

    Raises:
        CourseError: if there is no such file, or it holds no objects of Kubernetes.
    """
    if isinstance(what, dict):
        things = [copy.deepcopy(what)]
        name = "The dict"
    else:
        is_text = isinstance(what, str) and is_yaml(what)
        name = "The text" if is_text else Path(what).name
        text = what if is_text else read_file(what, f"The manifest {what}")
        try:
            things = [thing for thing in yaml.load_all(text, _Loader) if thing is not None]
        except yaml.YAMLError as error:
            raise CourseError(
                f"{name} is no YAML: {_where(error)}.", "Mend that line, and run the cell again."
            ) from None
    found = [thing for listed in things for thing in _unfolded(listed)]
    for thing in found:
        _check_is_object(thing, name)
    if not found:
        raise CourseError(f"{name} holds no object.", "Write at least apiVersion, kind and metadata.name.")
    return [_plain(thing) for thing in found]


def _where(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _unfolded(thing: object) -> Iterator[object]:
    """The objects of a `kind: List`, as kubectl takes it."""
    if isinstance(thing, dict) and thing.get("kind") == "List":
        yield from thing.get("items") or []
    else:
        yield thing


def _check_is_object(thing: object, name: str) -> None:
    if not isinstance(thing, dict):
        raise CourseError(f"{name} holds {thing!r}, which is no object.", "Write apiVersion, kind and metadata.name.")
    metadata = thing.get("metadata")
    has = {
        "apiVersion": isinstance(thing.get("apiVersion"), str),
        "kind": isinstance(thing.get("kind"), str),
        "metadata.name": isinstance(metadata, dict) and isinstance(metadata.get("name"), str),
    }
    missing = [field for field, there in has.items() if not there]
    if missing:
        told = thing.get("kind") or "an object"
        raise CourseError(f"{name} holds {told} without {' and '.join(missing)}.", "Write it, and run the cell again.")


def _plain(thing: dict) -> dict:
    """As JSON holds it: YAML has dates, and keys that are no text."""
    return json.loads(json.dumps(thing, default=str))


# ---- what is refused or remarked before the cluster is asked ---------------------------------------------------------


def check(thing: dict, namespace: str) -> None:
    """Refuse what lies outside of the lesson's namespace, and names that KubeRay refuses.

    Raises:
        CourseError: with the reason.
    """
    kind, name = thing["kind"], thing["metadata"]["name"]
    other = thing["metadata"].get("namespace", namespace)
    if other != namespace:
        raise CourseError(
            f"{kind.lower()}/{name} names the namespace {other}, and this notebook works in {namespace} only.",
            "Take the line `namespace:` out, so that clean_up finds it.",
        )
    longest = LONGEST.get(kind)
    if longest and len(name) > longest:
        raise CourseError(
            f"{kind.lower()}/{name} has a name of {len(name)} characters, and KubeRay takes at most {longest}: it "
            "makes names of Pods and Services from it, which may have 63.",
            "Give it a shorter name.",
        )
    if longest and not DNS_NAME.fullmatch(name):
        raise CourseError(
            f"{kind.lower()}/{name} has a name that KubeRay refuses: it makes a Service of that name.",
            "Use lower-case letters, digits and hyphens, beginning with a letter.",
        )


def check_ray(thing: dict) -> list[str]:
    """Refuse another Ray or Python than this machine's, where all Ray images stand for this machine's; remarks.

    Raises:
        CourseError: if another is named.
    """
    label = f"{thing['kind'].lower()}/{thing['metadata']['name']}"
    for what, there, ours, where in _others(thing):
        raise CourseError(
            f"{label} wants {what} {there} ({where}), and this cluster has {what} {ours} only: the host is the image.",
            f'Write `rayVersion: "{versions.RAY}"` and `image: {versions.RAY_IMAGE}`.',
        )
    unnamed = sorted({image for spec in ray_specs(thing) for image in images(spec) if UNNAMED.fullmatch(image)})
    return [
        f"the image {image} names no version; here it is Ray {versions.RAY}, as the host has it" for image in unnamed
    ]


def skew(thing: dict) -> list[str]:
    """Remarks on another Ray or Python than this notebook's, where images hold what they say."""
    return [
        f"{where} means {what} {there}, and this notebook has {what} {ours}: it runs, but functions of this notebook "
        "(`lab.run_on_head`, Ray Client) need the same on both ends"
        for what, there, ours, where in _others(thing)
    ]


def _others(thing: dict) -> Iterator[tuple[str, str, str, str]]:
    """What differs from ours: Ray or Python, the version there, ours, and what says so."""
    for spec in ray_specs(thing):
        said = str(spec.get("rayVersion") or versions.RAY)
        if said != versions.RAY:
            yield "Ray", said, versions.RAY, "rayVersion"
        for image in sorted(images(spec)):
            match = IMAGE.fullmatch(image.removesuffix("-gpu"))
            if match and match["ray"] != versions.RAY:
                yield "Ray", match["ray"], versions.RAY, f"the image {image}"
            python = match and match["python"]
            if python and python != versions.PYTHON.replace(".", ""):
                yield "Python", f"{python[0]}.{python[1:]}", versions.PYTHON, f"the image {image}"


def ray_specs(thing: dict) -> list[dict]:
    """The RayClusterSpec in a RayCluster, RayJob, RayService or RayCronJob."""
    spec = thing.get("spec") or {}
    found = {
        "RayCluster": lambda: spec,
        "RayJob": lambda: spec.get("rayClusterSpec"),
        "RayService": lambda: spec.get("rayClusterConfig"),
        "RayCronJob": lambda: (spec.get("jobTemplate") or {}).get("rayClusterSpec"),
    }
    one = found.get(thing["kind"], dict)() if thing["apiVersion"].startswith("ray.io/") else None
    return [one] if isinstance(one, dict) and one else []


def images(spec: object) -> set[str]:
    """All images that a spec names, at any depth."""
    if isinstance(spec, list):
        return set().union(*map(images, spec))
    if not isinstance(spec, dict):
        return set()
    own = {spec["image"]} if isinstance(spec.get("image"), str) else set()
    return own.union(*map(images, spec.values()))


# ---- the autoscaler's own fields -------------------------------------------------------------------------------------


def is_autoscaled(cluster: dict) -> bool:
    return cluster["kind"] == "RayCluster" and bool(cluster["spec"].get("enableInTreeAutoscaling"))


def leave_to_autoscaler(thing: dict, live: dict | None) -> list[str]:
    """Put the live `replicas` and `scaleStrategy` of each group in place of the manifest's; a sentence on each changed.

    The autoscaler writes both all the time; the list of groups is one field to the API server, so that leaving them
    out would set them back.
    """
    if live is None or not is_autoscaled(thing) or not is_autoscaled(live):
        return []
    said = []
    groups = {group["groupName"]: group for group in live["spec"].get("workerGroupSpecs", [])}
    for group in thing["spec"].get("workerGroupSpecs") or []:
        now = groups.get(group.get("groupName"))
        if now is None:
            continue
        if "replicas" in group and group["replicas"] != now.get("replicas", 0):
            said.append(
                f"`replicas` of group {group['groupName']} stays {now.get('replicas', 0)}, not {group['replicas']}: "
                "the autoscaler is on, and that field is its own; change minReplicas or maxReplicas instead"
            )
        for field in ("replicas", "scaleStrategy"):
            group.pop(field, None)
            if field in now:
                group[field] = now[field]
    return said

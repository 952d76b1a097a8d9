"""The reader of the node contract, and that each of its cases is sound."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.live.contract import HOLD, OPTIONS, STEPS, Case, all_cases, at_path, mismatch, same

CASES = {case.name: case for case in all_cases()}
IMAGES = {"busybox:1.36", "python:3.11-slim"}  # what a cluster needs to have; others are there to be missing
POD = {
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "False"}],
        "containerStatuses": [{"name": "a", "restartCount": 0}],
    }
}


@pytest.mark.parametrize(
    ("expected", "wrong"),
    [
        ({"status": {"phase": "Running"}}, ""),
        ({"status": {"phase": "~^Run"}}, ""),
        ({"status": {"phase": "Pending"}}, ".status.phase: 'Running' instead of 'Pending'"),
        ({"status": {"reason": None}}, ""),
        ({"status": {"phase": None}}, ".status.phase: 'Running' instead of nothing"),
        ({"status": {"reason": "~."}}, ".status.reason: None instead of '~.'"),
        ({"status": {"conditions": [{"type": "Initialized", "status": "False"}, {"type": "Ready"}]}}, ""),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "no {'type': 'Ready', 'status': 'False'}"),
        ({"status": {"conditions": []}}, ".status.conditions: "),
        ({"status": {"containerStatuses": [{"restartCount": 1}]}}, ".restartCount: 0 instead of 1"),
        ({"status": {"containerStatuses": [{"restartCount": "~^[1-9]"}]}}, ".restartCount: 0 instead of '~^[1-9]'"),
        ({"spec": {"hostNetwork": True}}, ".spec: None instead of {'hostNetwork': True}"),
    ],
)
def test_what_an_object_holds(expected: dict, wrong: str):
    assert wrong in mismatch(expected, POD)
    assert bool(wrong) == bool(mismatch(expected, POD))


def test_texts_are_the_same_but_for_their_ends():
    assert same("one\ntwo", "one\ntwo\n")
    assert not same("one", "one\ntwo")
    assert not same("", "one")
    assert same("~^t", "two") and not same("~^w", "two")


def test_paths():
    assert at_path(POD, "status.conditions[type=Ready].status") == "True"
    assert at_path(POD, "status.conditions[type=Other].status") is None
    assert at_path(None, "status.phase") is None


# ---- the cases -------------------------------------------------------------------------------------------------------


def test_there_are_about_forty():
    assert len(CASES) >= 38


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_sound(name: str):
    case = CASES[name]
    assert case.unknown == ()
    assert re.fullmatch(r"[A-Z].*\.", case.about) or re.fullmatch(r"\w+ .*\.", case.about)
    assert case.source and all(url.startswith("https://kubernetes.io/docs/") for url in case.source)
    assert case.steps
    for step in case.steps:
        verb = [verb for verb in STEPS if verb in step]
        assert len(verb) == 1, step
        assert set(step) - set(verb) <= OPTIONS[verb[0]], step
    assert case.manifest


@pytest.mark.parametrize("name", CASES)
def test_a_case_asks_for_few_images(name: str):
    images = {container["image"] for spec in pod_specs(CASES[name]) for container in containers(spec)}
    assert {image for image in images if not image.lower().startswith("example")} <= IMAGES


@pytest.mark.parametrize("name", CASES)
def test_a_case_ends_its_pods_quickly(name: str):
    """PID 1 ignores TERM unless it says otherwise, so the usual 30 s of grace would be 30 s of waiting."""
    for spec in pod_specs(CASES[name]):
        lasting = spec.get("restartPolicy") != "Never" and any("3600" in c.get("command", ()) for c in containers(spec))
        assert not lasting or "terminationGracePeriodSeconds" in spec or name in NEVER_RUN
    for thing in CASES[name].manifest:
        assert set(thing["metadata"].get("finalizers", ())) <= {HOLD}


NEVER_RUN = {"host-path"}  # its Pod that does not end never starts


def pod_specs(case: Case) -> Iterator[dict]:
    for thing in case.manifest:
        if thing["kind"] == "Pod":
            yield thing["spec"]
        elif "template" in thing.get("spec", {}):
            yield thing["spec"]["template"]["spec"]


def containers(spec: dict) -> list[dict]:
    return [*spec.get("initContainers", ()), *spec["containers"]]

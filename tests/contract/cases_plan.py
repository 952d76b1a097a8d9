"""The cases of the form `plan`: what the autoscaler launches and stops, and what stays unmet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from helpers.errors import CourseError
from helpers.model.demand import Demand, Gang
from helpers.model.planner import V1, Plan, Running, plan

Given = Mapping[str, Any]


def answer(given: Given) -> dict[str, Any]:
    """What the planner says to a case, in the words of the form."""
    try:
        told = _plan(given, given["version"])
    except CourseError as refused:
        if not refused.what.startswith("The API server refuses"):
            raise
        # it is not stored, so no autoscaler has anything to read, for which the form has one word
        told = Plan(given["version"], {}, error="config-rejected")
    return {
        "launch": dict(told.launch),
        "unmet": [(one.what.shape, one.what.count, one.reason) for one in told.unmet],
        "unmet_groups": [(one.what.strategy, one.what.count, one.reason) for one in told.unmet_groups],
        "unmet_request": told.unmet_request,
        "terminate": dict(told.terminate),
        "error": told.error,
    }


def wrong(given: Given, expected: Given) -> list[str]:
    """What is not as expected; what is omitted there is empty."""
    answered = answer(given)
    wanted = {
        "launch": {group: pods for group, pods in (expected.get("launch") or {}).items() if pods},
        "unmet": _counted((_demand(one).shape, one["count"], one["reason"]) for one in expected.get("unmet") or ()),
        "unmet_groups": _counted(
            (one["strategy"], one["count"], one["reason"]) for one in expected.get("unmet_groups") or ()
        ),
        "unmet_request": expected.get("unmet_request"),
        "terminate": {group: pods for group, pods in (expected.get("terminate") or {}).items() if pods},
        "error": expected.get("error"),
    }
    if expected.get("same_on_v1"):
        wanted["launch_v1"] = wanted["launch"]
        answered["launch_v1"] = answer({**given, "version": V1})["launch"]
    told = {**answered, "unmet": _counted(answered["unmet"]), "unmet_groups": _counted(answered["unmet_groups"])}
    if not any(labels for (_, labels), _ in wanted["unmet"]):
        # the form's rows of what is unmet name resources alone
        told["unmet"] = _counted(((shape, ()), count, reason) for (shape, _), count, reason in answered["unmet"])
    return [f"{key}: {told[key]}, not {wanted[key]}" for key in wanted if told[key] != wanted[key]]


def _plan(given: Given, version: str) -> Plan:
    return plan(
        given["manifest"],
        [_demand(one) for one in given.get("demand") or ()],
        running=[_running(one) for one in given.get("running") or ()],
        pending=given.get("pending") or {},
        request_resources=[_demand(one) for one in given.get("request_resources") or ()],
        placement_groups=[
            Gang(one["strategy"], tuple(map(_demand, one["bundles"])), one.get("count", 1))
            for one in given.get("placement_groups") or ()
        ],
        idle_timeout_s=given.get("idle_timeout_s"),
        version=version,
    )


def _demand(one: Given) -> Demand:
    if "resources" not in one:
        return Demand(one)
    # a selector of labels, under any name
    labels = next((one[key] for key in one if key != "resources" and isinstance(one[key], Mapping)), {})
    return Demand(one["resources"], one.get("count", 1), labels)


def _running(one: Given) -> Running:
    free = one.get("free", "all")
    return Running(one["group"], one.get("count", 1), None if free == "all" else free, one.get("idle_s", 0))


def _counted(rows: Iterable[tuple[Any, int, str]]) -> Counter[tuple[Any, str]]:
    """How many of each thing have each reason, in however many rows they stand."""
    found: Counter[tuple[Any, str]] = Counter()
    for what, count, reason in rows:
        found[what, reason] += count
    return found

"""The cases of the form `manifest`: what is found in a manifest."""

from __future__ import annotations

from typing import Any

from helpers.observe.explain import explain


def answer(given: dict[str, Any]) -> list[dict[str, str]]:
    """What is found, as a list of {rule, path, severity}."""
    said = explain(given["manifest"], ray_version=given["ray_version"], kuberay_version=given["kuberay_version"])
    return [{"rule": one.rule, "path": one.path, "severity": one.severity} for one in said.findings]


def wrong(given: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What is not as expected: what is missing, what should not be there, and errors that nobody expects."""
    found = answer(given)
    wanted = [{key: one[key] for key in ("rule", "path", "severity")} for one in expected["findings"]]
    said = [f"it is not found: {one}" for one in wanted if one not in found]
    said += [f"it should not be found: {one}" for one in found if one["rule"] in expected.get("absent", ())]
    said += [f"it is no error: {one}" for one in found if one["severity"] == "error" and one not in wanted]
    return said

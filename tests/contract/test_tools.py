"""The pins of tools/: go.mod, go.sum and helpers/versions.py say the same, by `course tools check`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.cluster.embedded.tools import check, golang, table
from helpers.cluster.embedded.tools.table import Family
from helpers.state import course_root


@pytest.mark.parametrize("family", table.FAMILIES, ids=lambda family: family.name)
def test_go_mod_has_the_pinned_versions_and_go_sum_knows_them(family: Family) -> None:
    assert check.check_pins(family) == []


def test_every_folder_of_tools_is_a_family() -> None:
    folders = {path.parent.name for path in (course_root() / "tools").glob("*/go.mod")}
    assert folders == {family.name for family in table.FAMILIES}


def test_kubernetes_parts_are_replaced_as_it_asks(tmp_path: Path) -> None:
    go = golang.at_hand()
    if not go:
        pytest.skip("no Go that is new enough")
    family, _ = table.find("kubelet")
    if not Path(_go_mod(family, go.command, go.environment(tmp_path))).is_file():
        pytest.skip("the go.mod of Kubernetes is not in Go's cache, and cannot be fetched")
    assert check.check_replacements(family, go) == []


def test_a_replacement_that_is_missing_or_too_much_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, _ = table.find("kubelet")
    text = (family.folder / "go.mod").read_text()
    found = {old: version for old, _, version in check._REPLACE.findall(text)}
    asked = "".join(f"require {module} v0.0.0\n" for module in found) + "require k8s.io/new v0.0.0\n"
    monkeypatch.setattr(check, "_go_mod_of", lambda family, go: asked.replace("require k8s.io/api v0.0.0\n", ""))
    (line,) = check.check_replacements(family, None)
    assert line.endswith("asks: k8s.io/api, k8s.io/new: run `course tools check --write`.")


def _go_mod(family: Family, go: Path, environment: dict[str, str]) -> str:
    query = ["list", "-m", "-f", "{{.GoMod}}", f"{family.module}@v{family.version}"]
    done = subprocess.run([go, *query], cwd=family.folder, env=environment, capture_output=True, text=True)
    return done.stdout.strip()


ALLOCATION = ("assign.go", "ledger.go", "assign_test.go", "ledger_test.go")  # of GPUs; see assign.go


def test_the_allocation_of_gpus_needs_go_alone() -> None:
    """So its tests, which go through all small cases, compile in seconds, and fetch nothing."""
    family, _ = table.find("kubelet")
    for name in ALLOCATION:
        block = re.search(r"^import \((.*?)^\)", (family.folder / name).read_text(), re.MULTILINE | re.DOTALL)
        imported = re.findall(r'"([^"]+)"', block[1])
        assert imported and not [one for one in imported if "." in one.partition("/")[0]], name


def test_no_gpu_is_ever_given_to_two_pods(tmp_path: Path) -> None:
    go = golang.at_hand()
    if not go:
        pytest.skip("no Go that is new enough")
    family, _ = table.find("kubelet")
    done = subprocess.run(
        [go.command, "test", "-vet=off", "-count=1", "-v", *ALLOCATION],
        cwd=family.folder, env=go.environment(tmp_path), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ran = re.findall(r"^--- PASS: (\w+)", done.stdout, re.MULTILINE)
    assert {"TestEverySmallCase", "TestABrokenAllocatorIsFound", "TestARestartAtAnyMomentChangesNothing"} <= set(ran)


def test_go_files_are_formatted() -> None:
    gofmt = shutil.which("gofmt")
    if not gofmt:
        pytest.skip("no gofmt on PATH")
    done = subprocess.run([gofmt, "-l", course_root() / "tools"], capture_output=True, text=True, check=True)
    assert done.stdout == ""

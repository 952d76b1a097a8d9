"""KubeRay's operator in a kind cluster: by its Helm chart, or by the manifests of its Go module.

Facts: config/default of the module ray-operator. The chart has the same definitions, rights and Deployment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from helpers import versions
from helpers.cluster.embedded.tools import golang, table
from helpers.cluster.kind.engine import Done, run, show
from helpers.cluster.session.tables import condition
from helpers.errors import CourseError
from helpers.kube import Kube, patient
from helpers.wait import wait_until

OPERATOR, NAMESPACE = "kuberay-operator", "default"  # where the module's manifests put it
CHARTS = "https://ray-project.github.io/kuberay-helm/"
WISH = "COURSE_OPERATOR"  # "manifests": not by Helm, even if it is there
APPLY_S = 300.0  # four definitions of a megabyte each, on a busy machine
READY_S = 300.0
FETCH_S = 300.0
# what Helm says if it does not get as far as the cluster
NO_CHART = r"cannot be reached|failed to (fetch|download)|not found in \S+ repository"


def ensure(kube: Kube, kubectl: Path) -> None:
    """See that the operator of the pinned version runs.

    Args:
        kube: the cluster.
        kubectl: the program.

    Raises:
        CourseError: if it cannot be installed, or does not become ready.
    """
    if version(kube) != versions.KUBERAY and not _by_helm(kube.kubeconfig):
        _by_manifests(kube.kubeconfig, kubectl)
    wait_until(
        patient(lambda: _is_available(kube)), READY_S, what="KubeRay's operator", every_s=0.5,
        fix=f"Run `course logs {OPERATOR}` to see what it says.",
    )  # fmt: skip


def version(kube: Kube) -> str:
    """Of the operator that is there, by its image; "" if there is none, or it does not show."""
    thing = _deployment(kube)
    images = [one["image"] for one in thing["spec"]["template"]["spec"]["containers"]] if thing else []
    found = re.search(r":v?(\d+\.\d+\.\d+)", " ".join(images))
    return found[1] if found else ""


def _deployment(kube: Kube) -> dict | None:
    return kube.get(kube.resource("deployments", "apps/v1"), OPERATOR, NAMESPACE)


def _is_available(kube: Kube) -> bool:
    thing = _deployment(kube)
    assert thing, "its Deployment is not there"
    observed = thing.get("status", {}).get("observedGeneration")
    assert observed == thing["metadata"]["generation"], "its Deployment has just been changed"
    available = condition(thing, "Available")
    assert available.get("status") == "True", available.get("message", "its Pod is not ready").rstrip(".")
    return True


def _by_helm(kubeconfig: Path) -> bool:
    """Install it by Helm; False if that is not wanted, or there is no Helm, or no chart to be had."""
    if os.environ.get(WISH) == "manifests" or not shutil.which("helm"):
        return False
    words = ["helm", "upgrade", "--install", OPERATOR, OPERATOR, "--repo", CHARTS, "--version", versions.KUBERAY]
    words += ["--namespace", NAMESPACE]
    show(words)
    done = run(words, APPLY_S, KUBECONFIG=str(kubeconfig))
    if done.code and re.search(NO_CHART, done.said):
        print("… KubeRay's chart cannot be had from here: its own manifests are taken instead", flush=True)
        return False
    _check(done, f"Run `{WISH}=manifests course up`, which does without Helm.")
    return True


def _by_manifests(kubeconfig: Path, kubectl: Path) -> None:
    """Apply what the module's own kustomization makes."""
    # by the API server: what a client-side apply would note on the definitions is larger than an annotation may be
    words = ["apply", "--server-side", "--kustomize", str(_module() / "config" / "default")]
    show(["kubectl", *words])
    _check(run([kubectl, *words], APPLY_S, KUBECONFIG=str(kubeconfig)), "See that the cluster answers, and try again.")


def _check(done: Done, fix: str) -> None:
    if done.code:
        raise CourseError(f"KubeRay cannot be installed: {done.why}.", fix)


def _module() -> Path:
    """KubeRay's Go module, with the checksum that go.sum has; fetched if Go has not got it.

    Raises:
        CourseError: without Go, or if the module cannot be had.
    """
    family, _ = table.find("ray-operator")
    fix = "Install Helm, so that `helm version` answers; or Go, with a network; then try again."
    try:
        go = golang.find()
    except CourseError as error:
        raise CourseError(f"KubeRay's manifests cannot be fetched: {error.what.rstrip('.')}.", fix) from None
    with tempfile.TemporaryDirectory() as temporary:
        fetch = [go.command, "-C", family.folder, "mod", "download", "-json", family.module]
        done = run(fetch, FETCH_S, **go.environment(Path(temporary)))
    told = json.loads(done.out or "{}")
    if "Dir" not in told:
        why = " ".join(told.get("Error", done.why).split())
        raise CourseError(f"KubeRay's manifests cannot be fetched: {why}.", fix)
    return Path(told["Dir"])

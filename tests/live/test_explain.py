"""What `explain` says of manifests from the field is what becomes of them: who refuses them, and what each Pod runs.

No Pod of theirs ever runs: each asks for a Kubernetes node that there is not, so that its command can be read in peace.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from helpers.model import lint, manifest, raycluster
from helpers.observe.explain import explain
from helpers.state import course_root
from tests.live.contract import Cluster, Place, place

pytestmark = [pytest.mark.live, pytest.mark.any_backend]
FORMS, MOST = ("manifest", "plan", "behaviour"), 45
OPERATOR_S = 120.0


def clusters() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, RayCluster) of the cases, each with a name of its own and with Pods that find no Kubernetes node."""
    seen: set[str] = set()
    for form in FORMS:
        text = (course_root() / "tests" / "cases" / f"{form}.yaml").read_text()
        for case in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["cases"]:
            written = case["input"].get("manifest")
            for document in manifest.documents(written) if written else ():
                found = _cluster(document)
                if found and (key := json.dumps(found["spec"], sort_keys=True)) not in seen and len(seen) < MOST:
                    seen.add(key)
                    found["metadata"]["name"] = f"c{len(seen)}"
                    yield found["metadata"]["name"], found


def _cluster(document: dict[str, Any]) -> dict[str, Any] | None:
    """The RayCluster in a document of KubeRay's, small and stuck; None if there is none that can be told so."""
    path = raycluster.SPECS.get(document.get("kind", ""))
    spec = raycluster.part_of(document, path) if path else None
    if not isinstance(spec, dict):
        return None
    spec = copy.deepcopy(spec)
    for group in [spec.get("headGroupSpec"), *(spec.get("workerGroupSpecs") or ())]:
        try:
            pod = group["template"]["spec"]
            pod["nodeSelector"] = {"ray-course/nowhere": "true"}
        except (KeyError, TypeError):
            continue
        pod.pop("serviceAccountName", None)  # and other objects that are not here
        if group is not spec.get("headGroupSpec"):
            group["replicas"] = 1
    kept = {"annotations": document["metadata"]["annotations"]} if document["metadata"].get("annotations") else {}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": kept, "spec": spec}


CLUSTERS = dict(clusters())


@pytest.fixture(scope="module")
def applied(kubernetes: Cluster) -> Iterator[tuple[Place, dict[str, bool]]]:
    """Where they are, and whether the API server took each."""
    with place(kubernetes, "explained") as here:
        words = ("-n", here.namespace, "apply", "--server-side", "-f", "-")
        yield here, {name: kubernetes.ask(*words, stdin=json.dumps(one)).returncode == 0
                     for name, one in CLUSTERS.items()}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
def test_what_becomes_of_it(applied: tuple[Place, dict[str, bool]], name: str) -> None:
    here, taken = applied
    document = CLUSTERS[name] | {"metadata": CLUSTERS[name]["metadata"] | {"namespace": here.namespace}}
    faults, refusals = lint.faults(document), lint.refusals(document)
    assert taken[name] == (not faults), [*map(str, faults)]
    if not taken[name]:
        return
    if refusals:
        here.wait("the operator's word", lambda: _is_refused(here, name), OPERATOR_S)
        return
    [view] = explain(yaml.safe_dump(document)).documents
    for group in view.groups:
        if group.pods and not group.refused:
            pod = here.wait(f"a Pod of {group.name}", lambda group=group: _pod(here, name, group.name), OPERATOR_S)
            container = pod["spec"]["containers"][0]
            assert container.get("args", [None])[0] == group.args, group.name
            assert [one["name"] for one in pod["spec"]["containers"]] == [
                one.name for one in group.containers if one.role != "init"
            ]


def _is_refused(here: Place, name: str) -> bool:
    reasons = [event["reason"] for event in here.events(f"raycluster/{name}")]
    assert any(reason.startswith("InvalidRayCluster") for reason in reasons), f"only {reasons} are said of it"
    return True


def _pod(here: Place, name: str, group: str) -> dict[str, Any] | None:
    selector = f"ray.io/cluster={name},ray.io/group={group}"
    found = here.cluster.get(here.url("pod"), labelSelector=selector)["items"]
    assert found, [event["message"] for event in here.events(f"raycluster/{name}")][-1:]
    return found[0]

"""What `explain` says of manifests from the field is what becomes of them: who refuses them, and what each Pod runs.

The manifests are those of the documents that the course was made from, as lesson 03 applies them, cases, and KubeRay's
own samples. No Pod of theirs ever runs: each asks for a Kubernetes node that there is not, so that it can be read in
peace.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.model import lint, manifest, quantity, raycluster
from helpers.observe.explain import DocumentView, GroupView, explain
from helpers.state import course_root
from tests import kuberay_module
from tests.live.contract import Cluster, Place, place

pytestmark = [pytest.mark.live, pytest.mark.any_backend]
FORMS = {"manifest": 2, "plan": 4, "behaviour": 2}  # every second or fourth of a form, and all that somebody refuses
OPERATOR_S = 120.0
NOWHERE = {"ray-course/nowhere": "true"}
STARTED = "KUBERAY_GEN_RAY_START_CMD"  # the variable in which each Ray container has its `ray start`

# Left away are those that tell nothing new here:
# - other Services, volumes, images and programs than those of one that is in the list (alb, agc, separate-ingress,
#   embed-grafana, gke-bucket, py-spy, uv, verl, modin, image and text models, LLMs), which no command shows;
# - other schedulers (kai, kueue, scheduler-plugins, volcano, yunikorn): an operator that is not told to use them, as
#   here, makes of those manifests what it makes of any;
# - custom-head-svc of a RayJob: its Service has the name of that of the RayCluster in the list;
# - the larger of two TPU slices: 64 Pods of one kind say no more than two;
# - auth-manual: the same as auth, with the variables written out; vllm: it has `$KSA_NAME` for `envsubst` in it.
SAMPLES = (
    "ray-cluster.auth.yaml",
    "ray-cluster.autoscaler-v2.yaml",
    "ray-cluster.autoscaler.yaml",
    "ray-cluster.complete.yaml",
    "ray-cluster.custom-head-service.yaml",
    "ray-cluster.deprecate-gcs-ft.yaml",
    "ray-cluster.external-redis.yaml",
    "ray-cluster.fluentbit.yaml",
    "ray-cluster.head-command.yaml",
    "ray-cluster.kubernetes.auth.yaml",
    "ray-cluster-label-selector.yaml",
    "ray-cluster.overwrite-command.yaml",
    "ray-cluster-resource-isolation-with-overrides.gke.yaml",
    "ray-cluster.tls.yaml",
    "ray-cluster.tpu-v4-multihost.yaml",
    "ray-cronjob.sample.yaml",
    "ray-data-image-resize/ray-data-image-resize-gcsfusecsi-job.yaml",
    "ray-job.deletion-rules.yaml",
    "ray-job.interactive-mode.yaml",
    "ray-job.resources.yaml",
    "ray-job.sidecar-mode.yaml",
    "ray-job.use-existing-raycluster.yaml",
    "ray-service.different-port.yaml",
    "ray-service.high-availability.yaml",
    "ray-service.incremental-upgrade.yaml",
)


# ---- the manifests --------------------------------------------------------------------------------------------------


def _written() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, document) of what this repository has, in its own words."""
    for path in sorted((course_root() / "manifests" / "03-raycluster").glob("broken-*.yaml")):
        for one in manifest.documents(path.read_text()):
            yield path.stem, one
    for form, step in FORMS.items():
        text = (course_root() / "tests" / "cases" / f"{form}.yaml").read_text()
        cases = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["cases"]
        found = [
            (f"{form}-{case['id']}", one)
            for case in cases
            for one in manifest.documents(case["input"].get("manifest") or "")
            if manifest.is_of_ray(one)
        ]
        for number, (name, one) in enumerate(_distinct(found)):
            if number % step == 0 or lint.refusals(one):
                yield name, one


def _distinct(found: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """The first of those with the same spec and annotations, and with the same name, if that is what is wrong."""
    seen = {}
    for name, one in found:
        about = one.get("metadata") or {}
        told = [one["kind"], one.get("spec"), about.get("annotations"), _has_bad_name(one) and about.get("name")]
        seen.setdefault(json.dumps(told, sort_keys=True), (name, one))
    return list(seen.values())


def _has_bad_name(document: Mapping[str, Any]) -> bool:
    return any(one.path == "metadata.name" for one in lint.refusals(document))


def _stuck(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A document of KubeRay's as it is, but small, with Pods that find no Kubernetes node, and with another name."""
    made = copy.deepcopy(dict(document))
    about = made.get("metadata") or {}
    kept = {"annotations": about["annotations"]} if about.get("annotations") else {}
    made["metadata"] = kept | {"name": about.get("name") if _has_bad_name(document) else name}
    spec = raycluster.part_of(made, raycluster.SPECS[made["kind"]])
    if not isinstance(spec, dict):
        return made
    for group in [spec.get("headGroupSpec"), *(spec.get("workerGroupSpecs") or ())]:
        try:
            pod = group["template"]["spec"]
            pod["nodeSelector"] = NOWHERE
        except (KeyError, TypeError):
            continue
        pod.pop("serviceAccountName", None)  # and other objects that are not here
        if group is not spec.get("headGroupSpec") and isinstance(group.get("replicas", 0), int):
            group["replicas"] = 1
    return made


DOCUMENTS = {name: _stuck(one, f"c{number}") for number, (name, one) in enumerate(_written(), 1)}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of KubeRay's samples, in its module."""
    return kuberay_module.sources(tmp_path_factory.mktemp("go")) / "config" / "samples"


def _of_ray(path: Path) -> list[dict[str, Any]]:
    return [one for one in manifest.documents(path.read_text()) if manifest.is_of_ray(one)]


# ---- what becomes of them -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _applied(cluster: Cluster, name: str, documents: Mapping[str, Any]) -> Iterator[tuple[Place, dict[str, bool]]]:
    """Where they are, and whether the API server took each."""
    with place(cluster, name) as here:
        words = ("-n", here.namespace, "apply", "--server-side", "-f", "-")
        taken = {name: cluster.ask(*words, stdin=json.dumps(one)).returncode == 0 for name, one in documents.items()}
        yield here, taken


@pytest.fixture(scope="module")
def applied(kubernetes: Cluster) -> Iterator[tuple[Place, dict[str, bool]]]:
    with _applied(kubernetes, "explained", DOCUMENTS) as found:
        yield found


@pytest.fixture(scope="module")
def sampled(kubernetes: Cluster, samples: Path) -> Iterator[tuple[Place, dict[str, bool], dict[str, dict[str, Any]]]]:
    documents = {}
    for number, name in enumerate(SAMPLES, 1):
        [one] = _of_ray(samples / name)
        documents[name] = _stuck(one, f"s{number}")
    with _applied(kubernetes, "sampled", documents) as (here, taken):
        yield here, taken, documents


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_becomes_of_it(applied: tuple[Place, dict[str, bool]], name: str) -> None:
    here, taken = applied
    _judge(here, DOCUMENTS[name], taken[name])


@pytest.mark.parametrize("name", SAMPLES)
def test_what_becomes_of_a_sample(sampled: tuple[Place, dict[str, bool], dict[str, dict[str, Any]]], name: str) -> None:
    here, taken, documents = sampled
    _judge(here, documents[name], taken[name])


def test_nothing_is_wrong_with_the_samples(samples: Path) -> None:
    """KubeRay takes them all, and they are meant to run: an error in one is an error of a rule."""
    found = {path.relative_to(samples): _of_ray(path) for path in sorted(samples.rglob("*.yaml"))}
    assert {*map(Path, SAMPLES)} <= {path for path, documents in found.items() if documents}
    for path in (path for path, documents in found.items() if documents):
        said = explain((samples / path).read_text())
        assert said.is_right, (path, [str(one) for one in said.findings if one.severity == "error"])
        assert len(said.documents) == len(found[path]) and not said.not_checked, (path, said.not_checked)


def _judge(here: Place, document: dict[str, Any], taken: bool) -> None:
    """See that the API server and the operator do with a document what is said of it."""
    document = document | {"metadata": document["metadata"] | {"namespace": here.namespace}}
    kind, name = document["kind"], document["metadata"]["name"]
    faults, refusals = lint.faults(document), lint.refusals(document)
    assert taken == (not faults), [*map(str, faults)]
    if not taken or kind == "RayCronJob":  # of which the operator only says something with a gate that is closed here
        return
    if refusals:
        here.wait("the operator's word", lambda: _is_refused(here, kind, name), OPERATOR_S)
        return
    here.wait(f"what the operator makes of {name}", lambda: _is_taken(here, kind, name), OPERATOR_S)
    [view] = explain(yaml.safe_dump(document)).documents
    if any(group.pods for group in view.groups):
        cluster = here.wait("the RayCluster", lambda: _cluster(here, kind, name), OPERATOR_S)
        _see_groups(here, view, cluster, document)


def _is_refused(here: Place, kind: str, name: str) -> bool:
    reasons = [event["reason"] for event in here.events(f"{kind.lower()}/{name}")]
    assert any(reason.startswith(f"Invalid{kind}") for reason in reasons), f"only {reasons} are said of it"
    return True


def _is_taken(here: Place, kind: str, name: str) -> bool:
    """Whether the operator has begun with it: it does so after all that it could refuse."""
    events = here.events(f"{kind.lower()}/{name}")
    wrong = [event["message"] for event in events if event["reason"].startswith("Invalid")]
    status = here.get(f"{kind.lower()}/{name}").get("status")
    assert not wrong, wrong
    assert status or events, "nothing is said of it"
    return True


def _cluster(here: Place, kind: str, name: str) -> str:
    """The name of the RayCluster of a document: its own, or that of the one that the operator made for it."""
    if kind == "RayCluster":
        return name
    made = here.cluster.get(here.url("raycluster"), labelSelector=f"ray.io/originated-from-cr-name={name}")["items"]
    assert made, f"no RayCluster is there: {[event['message'] for event in here.events(f'{kind.lower()}/{name}')][-1:]}"
    return made[0]["metadata"]["name"]


def _see_groups(here: Place, view: DocumentView, cluster: str, document: dict[str, Any]) -> None:
    for group in view.groups:
        if group.refused:  # and then the operator makes none of the groups after it
            here.wait("the refusal of a Pod", lambda: _pod_is_refused(here, cluster), OPERATOR_S)
            return
        if group.pods:
            pod = here.wait(f"a Pod of {group.name}", lambda group=group: _pod(here, cluster, group), OPERATOR_S)
            own = raycluster.cluster_of(document).group(group.name).container
            _see_pod(pod["spec"], group, own, lambda text: text.replace(f"{view.name}{raycluster.SUFFIX}", cluster))


def _see_pod(pod: dict[str, Any], group: GroupView, own: Mapping[str, Any], named: Any) -> None:
    """Hold a Pod against what is said of its group.

    Args:
        own: the Ray container, as the manifest has it.
        named: puts the cluster's name into a text, where only its beginning was known.
    """
    ray = pod["containers"][0]
    [started] = [one["value"] for one in ray["env"] if one["name"] == STARTED]
    assert started.split() == named(group.command).split(), group.name
    if group.args is not None:
        assert ray["args"] == [named(group.args)], group.name
    else:
        assert (ray.get("command"), ray.get("args")) == (own.get("command"), own.get("args")), group.name
    there = [*pod.get("initContainers", ()), *pod["containers"]]
    assert [one["name"] for one in there] == [one.name for one in group.containers]
    for one, said in zip(there, group.containers, strict=True):
        assert one["image"] == said.image, one["name"]
        amounts = one.get("resources") or {}
        assert _exact(amounts.get("limits")) == _exact(said.limits), one["name"]
        assert _exact(amounts.get("requests")) == _exact(said.requests), one["name"]


def _exact(amounts: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: quantity.parse(amount) for name, amount in (amounts or {}).items()}


def _pod_is_refused(here: Place, cluster: str) -> bool:
    reasons = [event["reason"] for event in here.events(f"raycluster/{cluster}")]
    assert {"FailedToCreateHeadPod", "FailedToCreateWorkerPod"} & {*reasons}, f"only {reasons} are said of it"
    return True


def _pod(here: Place, cluster: str, group: GroupView) -> dict[str, Any]:
    selector = f"ray.io/cluster={cluster},ray.io/group={group.name}"
    found = here.cluster.get(here.url("pod"), labelSelector=selector)["items"]
    assert found, [event["message"] for event in here.events(f"raycluster/{cluster}")][-1:]
    return found[0]

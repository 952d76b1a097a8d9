"""Which edits make another cluster."""

from __future__ import annotations

import copy

import pytest

from helpers.model import edits
from helpers.model.edits import ClusterEdit
from helpers.model.releases import releases
from tests.unit.test_lint import ABSENT, BOX, HEAD, WORKER, changed, cluster_spec, document

EXTRA = cluster_spec()["workerGroupSpecs"][0] | {"groupName": "extra"}
SAME = [
    {f"{WORKER}.replicas": 3},
    {f"{WORKER}.minReplicas": 2},
    {f"{WORKER}.maxReplicas": 9},
    {f"{WORKER}.scaleStrategy": {"workersToDelete": ["a"]}},
    {f"{WORKER}.template.spec.tolerations": [{"key": "gpu", "operator": "Exists"}]},
    {f"{HEAD}.template.spec.tolerations": [{"key": "gpu", "operator": "Exists"}]},
    {f"{WORKER}.template.spec.schedulingGates": [{"name": "a"}]},
    # what Go reads as the same
    {f"{WORKER}.{BOX}.resources.requests.cpu": "4000m"},
    {f"{WORKER}.{BOX}.resources.requests.cpu": 4},
    {f"{WORKER}.{BOX}.resources.requests.memory": "16384Mi"},
    {f"{WORKER}.{BOX}.env": []},
    {f"{WORKER}.numOfHosts": 1},
    {f"{WORKER}.template.metadata": {}},
    {f"{WORKER}.template.spec.hostNetwork": False},
    {f"{WORKER}.template.spec.nodeSelector": {}},
]
OTHER = [
    {f"{WORKER}.{BOX}.image": "rayproject/ray:2.60.0-gpu"},
    {f"{HEAD}.{BOX}.image": "rayproject/ray:2.60.0"},
    {f"{WORKER}.{BOX}.env": [{"name": "A", "value": "1"}]},
    {f"{WORKER}.{BOX}.resources.limits.cpu": "5"},
    {f"{WORKER}.template.spec.nodeSelector": {"a": "b"}},
    {f"{WORKER}.template.spec.serviceAccountName": "me"},
    {f"{WORKER}.template.metadata": {"labels": {"a": "b"}}},
    {f"{WORKER}.rayStartParams": {"num-cpus": "2"}},
    {f"{WORKER}.groupName": "x"},
    {f"{WORKER}.numOfHosts": 2},
    {f"{WORKER}.idleTimeoutSeconds": 60},
    {f"{WORKER}.labels": {"a": "b"}},
    {"autoscalerOptions.idleTimeoutSeconds": 300},
    {"rayVersion": "2.60.1"},
    {"enableInTreeAutoscaling": False},
    {"gcsFaultToleranceOptions": {"redisAddress": "r:6379"}},
]


def of_service(changes: dict, strategy: dict | None = None, kuberay: str = "1.6.2") -> bool:
    before = document("RayService")
    after = changed(before, {f"spec.rayClusterConfig.{path}": value for path, value in changes.items()})
    if strategy:
        after["spec"]["upgradeStrategy"] = strategy
    return edits.of_rayservice(before, after, releases(kuberay=kuberay))


def of_cluster(changes: dict, strategy: str | None = None, before: dict | None = None) -> ClusterEdit:
    old = changed(document("RayCluster"), before or {})
    if strategy:
        old["spec"]["upgradeStrategy"] = {"type": strategy}
    return edits.of_raycluster(old, changed(old, {f"spec.{path}": value for path, value in changes.items()}))


@pytest.mark.parametrize("changes", SAME)
def test_edits_that_make_no_new_cluster(changes):
    assert not of_service(changes)
    assert not of_cluster(changes, "Recreate").running_pods_replaced


@pytest.mark.parametrize("changes", OTHER)
def test_edits_that_make_a_new_cluster(changes):
    assert of_service(changes)
    assert of_cluster(changes, "Recreate").running_pods_replaced
    assert not of_cluster(changes).running_pods_replaced
    assert not of_cluster(changes, "None").running_pods_replaced


def test_groups_that_are_added_or_taken():
    assert not of_service({"workerGroupSpecs[1]": EXTRA})
    assert of_service({"workerGroupSpecs": [EXTRA, cluster_spec()["workerGroupSpecs"][0]]})
    assert of_service({"workerGroupSpecs[1]": EXTRA, f"{WORKER}.{BOX}.image": "rayproject/ray:2.60.0"})
    assert of_service({"workerGroupSpecs": []})
    assert of_cluster({"workerGroupSpecs[1]": EXTRA}, "Recreate").running_pods_replaced
    assert not of_cluster({"workerGroupSpecs[1]": EXTRA}).bounds_change


def test_no_params_and_empty_ones():
    """The operator fills them in for a RayCluster, but compares a RayService before that."""
    gone = {f"{WORKER}.rayStartParams": ABSENT}
    assert of_service(gone) and not of_cluster(gone, "Recreate").running_pods_replaced


@pytest.mark.parametrize(
    ("strategy", "kuberay", "new"),
    [
        ({"type": "NewCluster"}, "1.6.2", True),
        ({"type": "None"}, "1.6.2", False),
        ({"type": "NewClusterWithIncrementalUpgrade"}, "1.6.2", False),
        ({"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": {
            "gatewayClassName": "g", "stepSizePercent": 5, "intervalSeconds": 5}}, "1.7.0", True),
    ],
)  # fmt: skip
def test_the_strategy_of_a_service(strategy, kuberay, new):
    assert of_service({f"{WORKER}.{BOX}.image": "rayproject/ray:2.60.0"}, strategy, kuberay) == new


def test_a_service_is_suspended_in_place():
    """The cluster that is there gets all of the spec that has it, whatever else is in that."""
    assert not of_service({"suspend": True})
    assert not of_service({"suspend": True, f"{WORKER}.{BOX}.image": "rayproject/ray:2.60.0"})
    assert of_service({"suspend": False, f"{WORKER}.{BOX}.image": "rayproject/ray:2.60.0"})


def test_only_the_applications():
    before = document("RayService")
    after = copy.deepcopy(before) | {"spec": before["spec"] | {"serveConfigV2": "applications: [{}]"}}
    assert not edits.of_rayservice(before, after)


def test_the_bounds():
    for changes in ({f"{WORKER}.minReplicas": 1}, {f"{WORKER}.maxReplicas": ABSENT}):
        assert of_cluster(changes) == ClusterEdit(False, True, True)
    assert of_cluster({f"{WORKER}.replicas": 3}) == ClusterEdit(False, False, True)
    assert of_cluster({f"{WORKER}.minReplicas": ABSENT}).bounds_change is False  # 0 is the default


def test_what_is_refused_changes_nothing():
    nothing = ClusterEdit(False, False, False)
    assert of_cluster({f"{WORKER}.minReplicas": 9}, "Recreate") == nothing
    assert of_cluster({f"{WORKER}.maxWorkers": 9, f"{WORKER}.{BOX}.image": "x"}, "Recreate") == nothing
    assert not of_service({f"{WORKER}.minReplicas": 9, f"{WORKER}.{BOX}.image": "x"})


def test_a_strategy_that_comes_with_the_edit():
    image = {f"{WORKER}.{BOX}.image": "rayproject/ray:2.60.0"}
    assert of_cluster(image | {"upgradeStrategy": {"type": "Recreate"}}).running_pods_replaced
    assert not of_cluster({"upgradeStrategy": {"type": "Recreate"}}).running_pods_replaced

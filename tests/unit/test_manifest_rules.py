"""What a manifest means, by the rules of `helpers.model`: their small parts, and Ray's own reading."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import pytest
import yaml

from helpers.errors import CourseError
from helpers.model import crds, manifest, quantity, raycluster, scheduling
from helpers.model.releases import releases
from helpers.model.scheduling import Machine, Taint
from helpers.state import course_root

CASES = course_root() / "tests" / "cases"


def cases(form: str, question: str = "") -> list[Any]:
    found = yaml.load((CASES / f"{form}.yaml").read_text(), yaml.CSafeLoader)["cases"]
    return [
        pytest.param(case["input"], case["expected"], id=case["id"])
        for case in found
        if question in ("", case["input"].get("question"))
    ]


def _counted(group: raycluster.Group) -> dict | None:
    try:
        return group.counted
    except raycluster.NotCounted:
        return None


def clusters() -> list[Any]:
    """Every cluster of the cases that the API server and the operator take."""
    found = []
    for given, _ in (param.values for param in (*cases("manifest"), *cases("behaviour", "resources_seen"))):
        for document in manifest.documents(given["manifest"]):
            if document["kind"] in crds.kinds() and not crds.faults(document):
                found.append(pytest.param(raycluster.cluster_of(document), id=document["metadata"]["name"][:20]))
    return [one for one in found if one.values[0] is not None]


@pytest.mark.parametrize("cluster", clusters())
def test_the_autoscaler_counts_as_ray_itself_does(cluster):
    """The rule against the code that it stands for: Ray's own reading of each group."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _get_ray_resources_from_group_spec

    for group in cluster.groups:
        try:
            theirs = _get_ray_resources_from_group_spec(dict(group.spec), group.is_head)
        except Exception:
            theirs = None
        assert _counted(group) == theirs


# ---- quantities


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), (2, 2), ("500m", Fraction(1, 2)), ("1.5", Fraction(3, 2)), ("16Gi", 16 * 2**30), ("1G", 10**9),
        ("1e3", 1000), ("1E", 10**18), ("1Ei", 2**60), ("12E2", 1200), ("-1", -1), (".5", Fraction(1, 2)), ("100n",
        Fraction(1, 10**7)), ("0", 0), ("2.", 2),
    ],
)  # fmt: skip
def test_quantities(text, value):
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text", ["", "two", "1 Gi", "1gi", "1KI", "1e", "Gi", "1e999", "--1", "1.5.2", True, 0.5, None]
)
def test_no_quantities(text):
    with pytest.raises(ValueError, match="is no quantity"):
        quantity.parse(text)


@pytest.mark.parametrize(("text", "whole"), [("500m", 1), ("1", 1), ("1001m", 2), ("1.5Ki", 1536), ("0", 0)])
def test_whole_numbers_are_rounded_up(text, whole):
    assert quantity.whole(text) == whole


def test_quantities_as_ray_reads_them():
    from ray.autoscaler._private.kuberay.autoscaling_config import _round_up_k8s_quantity

    for text in ("1", "500m", "2500m", "3Gi", "1.5Gi", "10M", "7Ti", "0"):
        assert quantity.whole(text) == _round_up_k8s_quantity(text)


# ---- reading


def test_what_yaml_makes_of_words():
    read = manifest.documents("a: 2026-01-02\nb: yes\nc: 1.0\nd: ~\n---\n# nothing\n---\ne: {<<: {f: 1}}")
    assert read == [{"a": "2026-01-02", "b": True, "c": 1.0, "d": None}, {"e": {"f": 1}}]


@pytest.mark.parametrize("text", ["a: 1\na: 1", "{a: 1, a: 2}", "x: {y: 1, y: 1}"])
def test_a_key_that_is_there_twice(text):
    with pytest.raises(CourseError, match="is there twice"):
        manifest.documents(text)


def test_an_error_says_where():
    with pytest.raises(CourseError, match=r"^This is no YAML: line 3, column 1: "):
        manifest.documents("a: 1\nb:\n\t- 2\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: [1, .nan]\n", "b[1] (line 2) is an unusual number"),
        ("a:\n  b: .inf\n", "a.b (line 2) is an unusual number"),
        ("a: 1\nb: !!binary aGk=\n", "b (line 2) is binary data"),
        ("a: 1\nb: !!set {c}\n", "b (line 2) is a set"),
        ("a: 1\nb: !!timestamp 2026-01-02\n", "b (line 2) is a date"),
        ("a: 1\nb: {1: c}\n", "b (line 2) has the key 1, and a key is a string"),
        ("a: 1\n2: b\n", "The manifest (line 1) has the key 2"),
        ('a: 1\nb: "\\ud800"\n', "b (line 2) is half a character"),
        ("? [a]\n: b\n", "line 1, column 3: a key is a string, and this one is a list"),
    ],
)
def test_what_no_manifest_can_hold(text, said):
    with pytest.raises(CourseError) as caught:
        manifest.documents(text)
    assert said in caught.value.what


def test_where_the_items_of_a_list_stand():
    text = "kind: List\nitems:\n- kind: A\n  b:\n  - c: 1\n- kind: B\n- kind: C\n  d: [{e: [1,\n   2]}]\n"
    found = manifest.read(text)
    assert [one.line for one in found] == [3, 6, 7]
    assert found[0].line_of("b[0].c") == 5 and found[2].line_of("d[0].e[1]") == 9


def test_lists_of_many_items_are_read_quickly():
    started = time.process_time()
    assert len(manifest.read("kind: List\nitems: [" + "{a: 1}," * 20_000 + "]\n")) == 20_000
    assert time.process_time() - started < 20


# ---- the CRDs


def test_the_crds_are_of_the_pinned_kuberay():
    from helpers import versions

    assert crds._dense()["kuberay"] == versions.KUBERAY
    assert crds.kinds() == {"RayCluster", "RayJob", "RayService", "RayCronJob"}


HEAD = {"template": {"spec": {"containers": [{"name": "ray"}]}}}


def faults_of(spec: dict, **metadata: Any) -> list[str]:
    document = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "a", **metadata}, "spec": spec}
    return [f"{one.rule} {one.path}" for one in crds.faults(document)]


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({"headGroupSpec": HEAD}, []),
        ({}, ["missing-field spec.headGroupSpec"]),
        ({"headGroupSpec": HEAD, "suspend": "yes"}, ["wrong-type spec.suspend"]),
        ({"headGroupSpec": HEAD, "rayVersion": 2.6}, ["wrong-type spec.rayVersion"]),
        ({"headGroupSpec": HEAD | {"rayStartParams": None}}, ["wrong-type spec.headGroupSpec.rayStartParams"]),
        ({"headGroupSpec": HEAD | {"rayStartParams": {"block": True}}}, [
            "wrong-type spec.headGroupSpec.rayStartParams.block"]),
        ({"headGroupSpec": HEAD, "workerGroupSpecs": [{"groupName": "w", "template": {}, "minReplicas": None}]}, []),
        ({"headGroupSpec": HEAD, "workerGroupSpecs": [{"groupName": "w", "template": {}, "replicas": 1.5}]}, [
            "wrong-type spec.workerGroupSpecs[0].replicas"]),
        ({"headGroupSpec": HEAD, "workerGroupSpecs": [{"groupName": "w", "template": {}, "replicas": 2**31}]}, [
            "wrong-type spec.workerGroupSpecs[0].replicas"]),
        ({"headGroupSpec": HEAD, "workerGroupSpecs": {"groupName": "w"}}, ["wrong-type spec.workerGroupSpecs"]),
        ({"headGroupSpec": HEAD, "workerGroupSpecs": [{"template": {}}]}, [
            "missing-field spec.workerGroupSpecs[0].groupName"]),
    ],
)  # fmt: skip
def test_what_the_api_server_refuses(spec, wrong):
    assert faults_of(spec) == wrong


@pytest.mark.parametrize("quantity", ["1e400", "1e-400", "1e1.5", "9" * 60])
def test_quantities_that_are_stored_and_cannot_be_read(quantity):
    head = {"template": {"spec": {"containers": [{"name": "ray", "resources": {"limits": {"memory": quantity}}}]}}}
    path = "spec.headGroupSpec.template.spec.containers[0].resources.limits.memory"
    assert faults_of({"headGroupSpec": head}) == [f"unreadable-quantity {path}"]


@pytest.mark.parametrize(
    ("metadata", "wrong"),
    [
        ({"labels": {"a": 1}}, "wrong-type metadata.labels.a"),
        ({"name": ""}, "missing-field metadata.name"),
        ({"name": 7}, "wrong-type metadata.name"),
        ({"name": "Upper"}, "bad-name metadata.name"),
        ({"nam": "x"}, "unknown-field metadata.nam"),
        ({"namespace": 7}, "wrong-type metadata.namespace"),
        ({"managedFields": {}}, "wrong-type metadata.managedFields"),
    ],
)
def test_metadata(metadata, wrong):
    assert faults_of({"headGroupSpec": HEAD}, **metadata) == [wrong]


def test_two_containers_of_one_name():
    twice = {"template": {"spec": {"containers": [{"name": "ray"}, {"name": "ray"}]}}}
    assert faults_of({"headGroupSpec": twice}) == ["duplicate-entry spec.headGroupSpec.template.spec.containers[1]"]


def test_a_list_of_words_in_a_rule():
    assert faults_of({"headGroupSpec": HEAD, "managedBy": "me"}) == ["bad-enum spec.managedBy"]
    assert faults_of({"headGroupSpec": HEAD, "managedBy": "ray.io/kuberay-operator"}) == []


# ---- `ray start`


SEEDS = {  # kuberay-facts.md, §3.1
    "ray start --head --block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0 --memory=34359738368"
    " --metrics-export-port=8080 --no-monitor --num-cpus=8": (True, True, {"dashboard-host": "0.0.0.0"}, {
        "limits": {"cpu": "8", "memory": "32Gi"}, "requests": {"cpu": "8", "memory": "32Gi"}}),
    "ray start --address=x-head-svc.default.svc.cluster.local:6379 --block --dashboard-agent-listen-port=52365"
    " --memory=85899345920 --metrics-export-port=8080 --num-cpus=12 --num-gpus=1": (False, True, {}, {
        "limits": {"nvidia.com/gpu": 1, "cpu": "12", "memory": "80Gi"}}),
    "ray start --head --block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0"
    " --metrics-export-port=8080 --no-monitor --num-cpus=4 --num-gpus=0": (True, True, {"num-gpus": "0"}, {
        "requests": {"cpu": "4", "memory": "16Gi"}}),
    "ray start --address=x-head-svc.default.svc.cluster.local:6379 --block --dashboard-agent-listen-port=52365"
    " --metrics-export-port=8080 --num-cpus=8 --num-gpus=1": (False, True, {"num-gpus": "1"}, {
        "limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "8", "memory": "32Gi"}}),
    "ray start --head --block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0 --log-color=false"
    " --metrics-export-port=8080 --num-cpus=0": (True, False, {
        "num-cpus": "0", "log-color": "false", "x": "False"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("command", SEEDS)
def test_the_start_command(command):
    is_head, autoscaling, params, resources = SEEDS[command]
    template = {"spec": {"containers": [{"name": "ray", "resources": resources}]}}
    group = raycluster.Group({"groupName": "w", "rayStartParams": params, "template": template}, "", is_head)
    document = {"metadata": {"name": "x"}}
    cluster = raycluster.Cluster(document, {"enableInTreeAutoscaling": autoscaling}, "spec", (group,))
    assert raycluster.start_command(cluster, group) == command


def with_resources(resources: dict, more: dict | None = None) -> raycluster.Group:
    template = {"spec": {"containers": [{"name": "ray", "resources": resources}]}}
    return raycluster.Group({"groupName": "w", "template": template} | (more or {}), "w")


@pytest.mark.parametrize(
    ("resources", "more", "told"),
    [
        ({}, {"resources": {"CPU": "500m", "GPU": "2", "memory": "1Ki", "disk": "1"}}, {
            "num-cpus": "1", "num-gpus": "2", "memory": "1024", "resources": """'{"disk":1}'"""}),
        ({"limits": {"cpu": 1, "google.com/tpu": 4}}, {}, {"num-cpus": "1", "resources": """'{"TPU":4}'"""}),
        ({"limits": {"cpu": 1, "nvidia.com/mig-1g.5gb": 3}}, {}, {"num-cpus": "1", "num-gpus": "3"}),
        ({"limits": {"cpu": 0}, "requests": {"cpu": 3}}, {}, {"num-cpus": "3"}),
        ({}, {"labels": {"b": "2", "a": "1"}}, {"labels": "a=1,b=2"}),
    ],
)  # fmt: skip
def test_what_a_group_tells_ray(resources, more, told):
    assert with_resources(resources, more).start == told


REQUESTED = {"limits": {"memory": "1Ki"}, "requests": {"cpu": "3", "nvidia.com/gpu": "1"}}
LIMITED = {"limits": {"cpu": "2", "memory": "1Ki"}}
OWN = {"rayStartParams": {}, "resources": {"CPU": "5", "disk": "2"}}


@pytest.mark.parametrize(
    ("ray", "resources", "more", "counts"),
    [
        # requests: not looked at up to 2.40
        ("2.40.0", REQUESTED, {"rayStartParams": {}}, None),
        ("2.40.0", REQUESTED, {"rayStartParams": {"num-cpus": "4"}}, {"CPU": 4, "memory": 1024}),
        ("2.41.0", REQUESTED, {"rayStartParams": {}}, {"CPU": 3, "GPU": 1, "memory": 1024}),
        # a group's own resources: not looked at up to 2.49
        ("2.49.2", LIMITED, OWN, {"CPU": 2, "memory": 1024}),
        ("2.52.1", LIMITED, OWN, {"CPU": 5, "disk": 2, "memory": 1024}),
        # no rayStartParams: not before 2.47
        ("2.42.0", LIMITED, {}, None),
        ("2.47.1", LIMITED, {}, {"CPU": 2, "memory": 1024}),
    ],
)
def test_what_an_older_autoscaler_counts(ray, resources, more, counts):
    group, other = with_resources(resources, more), with_resources(LIMITED, {"groupName": "v", "rayStartParams": {}})
    cluster = raycluster.Cluster({"metadata": {"name": "x"}}, {}, "spec", (other, group))
    found = cluster.counted_by(releases(ray))
    assert (found and found["w"]) == counts
    assert found is None or found["v"] == {"CPU": 2, "memory": 1024}


@pytest.mark.parametrize(
    ("bounds", "pods"),
    [((None, 0, 4), 0), ((3, 0, 2), 2), ((1, 2, 4), 2), ((1, 4, 2), 4), ((9, 4, 2), 2), ((9, None, None), 9)],
)
def test_how_many_pods_the_operator_keeps(bounds, pods):
    """The last but one contradict each other: below the least comes first, above the most second."""
    spec = {name: one for name, one in zip(("replicas", "minReplicas", "maxReplicas"), bounds, strict=True) if one}
    assert raycluster.Group({"groupName": "w", **spec, "maxReplicas": bounds[2]}, "").desired_pods == pods
    assert raycluster.Group({"groupName": "w", **spec, "numOfHosts": 3}, "").desired_pods % 3 == 0


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("""'{"a": 1}'""", {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("'{}'", {}),
        ('{"a": 1}', None),
        ("{a: 1}", None),
        ("'[1]'", None),
        ('\'{"a": 1}', None),
    ],
)
def test_custom_resources_after_the_shell(written, read):
    if read is None:
        with pytest.raises(ValueError, match="a shell stands between"):
            raycluster.custom_resources(written)
    else:
        assert raycluster.custom_resources(written) == read


def test_the_shell_is_bash():
    """The reading against the program that does it."""
    import subprocess

    for written in ("""'{"a": 1}'""", '"{\\"a\\": 1}"', '\'{"licence": 2, "b": 0}\''):
        line = f"printf '%s' --resources={written}"
        done = subprocess.run(["bash", "-c", "--", line], capture_output=True, text=True, check=True)
        assert yaml.safe_load(done.stdout.partition("=")[2]) == raycluster.custom_resources(written)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("rayproject/ray:2.60.0-py311", (2, 60, 0)),
        ("registry.example:5000/ray", None),
        ("registry.example:5000/team/ray:2.9.0", (2, 9, 0)),
        ("2.60.0", (2, 60, 0)),
        ("rayproject/ray:nightly", None),
        ("rayproject/ray:2.60", None),
        ("", None),
    ],
)
def test_the_version_in_an_image(image, version):
    assert raycluster.version_in(image) == version


# ---- scheduling

MACHINES = (
    Machine("small", {"cpu": 2, "memory": "4Gi"}),
    Machine("gpu", {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": 1}, (Taint("gpu", "yes"),), {"kind": "a100"}),
    Machine("soft", {"cpu": 8, "memory": "32Gi"}, (Taint("x", effect="PreferNoSchedule"),)),
)


def pod_of(resources: dict, **pod: Any) -> tuple[raycluster.Cluster, raycluster.Group]:
    head = {"template": {"spec": {"containers": [{"name": "r"}]}}}
    group = {"groupName": "w", "template": {"spec": {"containers": [{"name": "r", "resources": resources}], **pod}}}
    spec = {"headGroupSpec": head, "workerGroupSpecs": [group]}
    document = {"kind": "RayCluster", "metadata": {"name": "x"}, "spec": spec}
    cluster = raycluster.cluster_of(document)
    return cluster, cluster.workers[0]


EXISTS = {"operator": "Exists"}


@pytest.mark.parametrize(
    ("resources", "pod", "found"),
    [
        ({}, {}, ["small", "soft"]),
        ({"limits": {"cpu": "3"}}, {}, ["soft"]),
        ({"limits": {"cpu": "3"}, "requests": {"cpu": "1"}}, {}, ["small", "soft"]),
        ({"requests": {"memory": "5Gi"}}, {}, ["soft"]),
        ({"limits": {"nvidia.com/gpu": 1}}, {}, []),
        ({"limits": {"nvidia.com/gpu": 1}}, {"tolerations": [EXISTS]}, ["gpu"]),
        ({"limits": {"nvidia.com/gpu": 1}}, {"tolerations": [EXISTS | {"key": "gpu"}]}, ["gpu"]),
        ({"limits": {"nvidia.com/gpu": 1}}, {"tolerations": [EXISTS | {"key": "gpu", "effect": "NoExecute"}]}, []),
        ({"limits": {"nvidia.com/gpu": 1}}, {"tolerations": [{"key": "gpu", "value": "yes"}]}, ["gpu"]),
        ({"limits": {"nvidia.com/gpu": 1}}, {"tolerations": [{"key": "gpu", "value": "no"}]}, []),
        ({"limits": {"nvidia.com/gpu": 2}}, {"tolerations": [EXISTS]}, []),
        ({}, {"nodeSelector": {"kind": "a100"}}, []),
        ({}, {"nodeSelector": {"kind": "a100"}, "tolerations": [EXISTS]}, ["gpu"]),
        ({"requests": {"cpu": "100m"}}, {"initContainers": [{"name": "i", "resources": {"limits": {"cpu": 4}}}]}, [
            "soft"]),
    ],
)  # fmt: skip
def test_where_a_pod_can_be(resources, pod, found):
    assert scheduling.places(*pod_of(resources, **pod), MACHINES) == found


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ({"key": "kind", "operator": "In", "values": ["a100"]}, ["gpu"]),
        ({"key": "kind", "operator": "NotIn", "values": ["a100"]}, ["small", "soft"]),
        ({"key": "kind", "operator": "Exists"}, ["gpu"]),
        ({"key": "kind", "operator": "DoesNotExist"}, ["small", "soft"]),
    ],
)
def test_node_affinity(expression, found):
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert scheduling.places(*pod_of({}, affinity=affinity, tolerations=[EXISTS]), MACHINES) == found


def test_the_autoscaler_is_in_the_heads_pod():
    cluster, _ = pod_of({})
    spec = dict(cluster.spec) | {"enableInTreeAutoscaling": True}
    grown = raycluster.Cluster(cluster.document, spec, "spec", cluster.groups)
    assert scheduling.needs(grown, grown.head) == {"cpu": Fraction(1, 2), "memory": 2**29}
    assert scheduling.needs(cluster, cluster.head) == {}


def test_room_for_several():
    cluster, _ = pod_of({"limits": {"cpu": "4"}})
    assert scheduling.left_over(cluster, {"w": 2}, MACHINES) == {}
    assert scheduling.left_over(cluster, {"w": 5}, MACHINES) == {"w": 3}


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"limits": {"cpu": 1}, "requests": {"cpu": 2}}, "the request of cpu is above its limit"),
        ({"requests": {"nvidia.com/gpu": 1}}, "nvidia.com/gpu must stand in the limits"),
        ({"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 1}}, "request and limit must be the same"),
        ({"limits": {"nvidia.com/gpu": "500m"}}, "there are only whole ones"),
        ({"limits": {"cpu": "-1"}}, "cpu is -1, below 0"),
    ],
)
def test_pods_that_are_refused(resources, said):
    [found] = scheduling.pod_refusals(pod_of(resources)[1])
    assert said in found


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ({"tolerations": [{"key": "a", "operator": "Exist"}]}, "has the operator 'Exist'"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "has a value, and takes none"),
        ({"tolerations": [{"value": "b"}]}, "needs the operator Exists"),
        ({"tolerations": [{"key": "a", "effect": "No"}]}, "has the effect 'No'"),
        ({"restartPolicy": "Sometimes"}, "the restartPolicy 'Sometimes' is none of"),
    ],
)
def test_pods_that_are_refused_for_more(pod, said):
    [found] = scheduling.pod_refusals(pod_of({}, **pod)[1])
    assert said in found

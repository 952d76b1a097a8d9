"""What `explain` says of a manifest: each group, what it finds with its line, and what it cannot read."""

from __future__ import annotations

import json
import textwrap

import pytest

from helpers import versions
from helpers.cli import app
from helpers.errors import CourseError
from helpers.model import raycluster
from helpers.observe.explain import BY_KUBERAY, explain, text_of
from helpers.state import course_root
from tests.unit.test_lint import cluster_spec, document

GOOD = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: demo, namespace: team}
spec:
  rayVersion: "2.60.0"
  enableInTreeAutoscaling: true
  autoscalerOptions: {version: v2}
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template:
      spec:
        containers:
          - name: ray-head
            image: rayproject/ray:2.60.0
            resources: {limits: {cpu: "2", memory: 4Gi}, requests: {cpu: "2", memory: 4Gi}}
  workerGroupSpecs:
    - groupName: gpu
      minReplicas: 1
      maxReplicas: 4
      rayStartParams: {}
      template:
        spec:
          containers:
            - name: ray-worker
              image: rayproject/ray:2.60.0-gpu
              resources:
                limits: {cpu: "8", memory: 32Gi, nvidia.com/gpu: 1}
                requests: {cpu: "4", memory: 32Gi, nvidia.com/gpu: 1}
"""


def test_a_group():
    [view] = explain(GOOD).documents
    head, gpu = view.groups
    assert (view.kind, view.name, view.line, view.ray, view.kuberay) == ("RayCluster", "demo", 1, "2.60.0", "1.6.2")
    assert [one.name for one in head.containers] == ["ray-head", "autoscaler"]
    assert [(one.name, one.role, one.origin == BY_KUBERAY) for one in gpu.containers] == [
        ("wait-gcs-ready", "init", True),
        ("ray-worker", "Ray", False),
    ]
    assert (gpu.line, gpu.pods, gpu.bounds, head.bounds) == (17, 1, (1, 4), None)
    assert gpu.counts["CPU"].ray == gpu.counts["CPU"].autoscaler == 8 and gpu.counts["CPU"].kubernetes == 4
    assert gpu.counts["GPU"].kubernetes == 1 and gpu.counts["memory"].ray == 32 * 2**30
    assert gpu.disagreements == ("Ray counts 8 of CPU, and Kubernetes keeps 4.",)
    assert gpu.probes == "httpGet /api/healthz on port 52365" and not gpu.refused


def test_where_each_option_comes_from():
    head, gpu = explain(GOOD).documents[0].groups
    box = "spec.workerGroupSpecs[0].template.spec.containers[0].resources.limits"
    origins = {flag.name: flag.origin for flag in gpu.start}
    assert origins["num-cpus"] == f"{box}.cpu" and origins["num-gpus"] == f"{box}.nvidia.com/gpu"
    assert origins["block"] == origins["metrics-export-port"] == raycluster.KUBERAY
    assert {flag.name: flag.origin for flag in head.start}["num-cpus"] == "spec.headGroupSpec.rayStartParams.num-cpus"
    assert {flag.name: flag.origin for flag in head.start}["no-monitor"] == "spec.enableInTreeAutoscaling"
    assert gpu.command == (
        "ray start --address=demo-head-svc.team.svc.cluster.local:6379 --block --dashboard-agent-listen-port=52365"
        " --memory=34359738368 --metrics-export-port=8080 --num-cpus=8 --num-gpus=1"
    )


def made(kind: str = "RayCluster", **changes: object) -> str:
    """A good one, with other fields at the top of its spec, as text."""
    one = document(kind)
    one["spec"] |= changes
    return text_of(one)


def groups_of(spec: dict, kind: str = "RayCluster", **metadata: object) -> list:
    one = {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "x", **metadata}, "spec": spec}
    return list(explain(text_of(one)).documents[0].groups)


def test_what_bash_is_given():
    spec = cluster_spec()
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    generated = (
        "ulimit -n 65536; ray start --head  --block  --dashboard-agent-listen-port=52365  --dashboard-host=0.0.0.0 "
        " --memory=4294967296  --metrics-export-port=8080  --no-monitor  --num-cpus=0 "
    )
    assert groups_of(spec)[0].args == generated
    head |= {"command": ["echo one;"], "args": ["echo two"]}
    assert groups_of(spec)[0].args == f" echo one;  echo two  && {generated}"
    assert groups_of(spec, annotations={"ray.io/overwrite-container-cmd": "true"})[0].args is None
    head["command"] = ["ray start --head"]
    [mine, *_] = groups_of(spec)
    assert mine.args is None and "--block" in mine.command


def test_options_that_the_spec_brings():
    spec = cluster_spec()
    password = {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}}
    spec["gcsFaultToleranceOptions"] = {"redisAddress": "redis:6379", "redisPassword": password}
    spec["headGroupSpec"] |= {"labels": {"zone": "a"}, "headService": {"metadata": {"name": "mine"}}}
    spec["headGroupSpec"]["rayStartParams"] = {"port": "6380", "num-cpus": "0"}
    spec["workerGroupSpecs"][0]["resources"] = {"CPU": "2", "lic": "3"}
    head, worker = groups_of(spec)
    options = {flag.name: (flag.value, flag.origin) for flag in head.start}
    assert options["redis-password"] == ("$REDIS_PASSWORD", "spec.gcsFaultToleranceOptions.redisPassword")
    assert options["labels"] == ("zone=a", "spec.headGroupSpec.labels")
    options = {flag.name: (flag.value, flag.origin) for flag in worker.start}
    assert options["address"][0] == "mine.default.svc.cluster.local:6380"
    assert options["num-cpus"] == ("2", "spec.workerGroupSpecs[0].resources")
    assert options["resources"] == ("""'{"lic":3}'""", "spec.workerGroupSpecs[0].resources")


@pytest.mark.parametrize(
    ("kind", "address"),
    [("RayJob", "demo-xxxxx-head-svc"), ("RayService", "demo-xxxxx-head-svc"), ("RayCronJob", "demo-xxxxx-xxxxx-head")],
)
def test_a_cluster_that_has_no_name_yet(kind, address):
    [_, worker] = explain(made(kind)).documents[0].groups
    assert f"--address={address}" in worker.command


def test_probes():
    spec = cluster_spec()
    spec["rayVersion"] = "2.52.0"
    assert groups_of(spec)[1].probes.startswith("exec wget")
    del spec["rayVersion"]
    assert "rayVersion is not 2.53.0 or newer" in groups_of(spec)[0].probes
    spec["headGroupSpec"]["template"]["spec"]["containers"][0] |= {"livenessProbe": {}, "readinessProbe": {}}
    assert groups_of(spec)[0].probes == "of the manifest"
    assert "Serve's proxy" in explain(made("RayService")).documents[0].groups[1].probes


def test_who_counts_what_where_they_do_not_agree():
    spec = cluster_spec()
    box = spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    box["resources"] = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"nvidia.com/mig-1g.5gb": 1}}
    said = groups_of(spec)[1].disagreements
    assert "`ray start` is not told of memory, and the autoscaler counts 8 GiB." in said
    assert "Ray counts 1 of GPU, and the autoscaler knows of none." in said
    box["resources"] = {}
    assert groups_of(spec)[1].disagreements == (
        "the autoscaler finds no CPU in the group w, and then plans for none at all.",
    )


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("RayCluster", {"suspend": True}),
        ("RayJob", {"suspend": True}),
        ("RayJob", {"rayClusterSpec": cluster_spec() | {"suspend": True}}),
        ("RayService", {"rayClusterConfig": cluster_spec() | {"suspend": True}}),
    ],
)
def test_of_a_suspended_cluster_there_are_no_pods(kind, changes):
    assert [one.pods for one in explain(made(kind)).documents[0].groups] == [1, 0]
    groups = explain(made(kind, **changes)).documents[0].groups
    assert [one.pods for one in groups] == [0, 0] and groups[1].bounds == (0, 4)


def test_the_submitter_in_the_heads_pod():
    [view] = explain(made("RayJob", submissionMode="SidecarMode")).documents
    assert [one.name for one in view.groups[0].containers] == ["ray", "ray-job-submitter", "autoscaler"]
    assert view.groups[0].containers[1].requests["memory"] == "200Mi"


def test_pods_that_the_api_server_will_refuse():
    spec = cluster_spec()
    box = spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    box["resources"]["requests"]["cpu"] = "5"
    said = explain(text_of({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "x"}, "spec": spec}))
    assert said.documents[0].groups[1].refused == ("the request of cpu is above its limit",)
    assert not said.is_right and "refuses these Pods" in str(said)


def test_a_finding_has_its_line():
    wrong = GOOD.replace("minReplicas: 1", "minReplicas: 9").replace("  rayVersion", "  upscaling: 1\n  rayVersion")
    found = {one.rule: one for one in explain(wrong).findings}
    assert (found["unknown-field"].line, found["unknown-field"].path) == (5, "spec.upscaling")
    one = explain(GOOD.replace("minReplicas: 1", "minReplicas: 9")).findings[0]
    assert (one.rule, one.line, one.document) == ("min-above-max", 18, "RayCluster/demo")
    # of a field that is not there, the line of what is above it
    gone = {one.rule: one.line for one in explain(GOOD.replace("      maxReplicas: 4\n", "")).findings}
    assert gone["unbounded-max-replicas"] == 17
    assert explain(GOOD.replace("  headGroupSpec:", "  headgroup:")).findings[0].line in (4, 8)


def test_a_file_of_several_documents():
    quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {limits.cpu: '9'}}\n"
    bare = GOOD.replace('limits: {cpu: "8", ', "limits: {")
    said = explain(f"{quota}---\n{bare}---\n# nothing\n---\n{made('RayJob')}")
    assert [one.kind for one in said.documents] == ["RayCluster", "RayJob"]
    [found] = [one for one in said.findings if one.rule == "quota-needs-limit"]
    assert (found.line, found.document) == (5 + 26, "RayCluster/demo")
    assert "quota-needs-limit" not in {one.rule for one in explain(bare).findings}


def test_a_list_as_kubectl_prints_it():
    listed = f"apiVersion: v1\nkind: List\nitems:\n- {textwrap.indent(GOOD, '  ').lstrip()}"
    said = explain(listed.replace("minReplicas: 1", "minReplicas: 9"))
    one = said.findings[0]
    assert (said.documents[0].line, one.path, one.line) == (4, "spec.workerGroupSpecs[0].minReplicas", 18 + 3)


def test_the_versions():
    old = GOOD.replace("2.60.0", "2.9.3").replace("      rayStartParams: {}\n", "")
    assert explain(old).documents[0].ray == "2.9.3"
    assert explain(old).findings[0].severity == "error"
    assert explain(old, ray_version="2.60.0").is_right
    said = explain(GOOD, kuberay_version="1.7.0")
    assert said.documents[0].kuberay == "1.7.0" and "against KubeRay 1.6.2" in str(said)
    with pytest.raises(CourseError, match="is no version"):
        explain(GOOD, ray_version="latest")
    plain = GOOD.replace("rayproject/ray:2.60.0", "mine:prod").replace('  rayVersion: "2.60.0"\n', "")
    assert explain(plain).documents[0].ray == versions.RAY


def test_how_it_is_shown():
    said = explain(GOOD)
    text, page = str(said), said._repr_html_()
    assert "--num-gpus=1" in text and "← template.spec.containers[0].resources.limits.nvidia.com/gpu" in text
    assert "≠ Ray counts 8 of CPU" in text and "[limits-differ-from-requests]" in text
    assert "<table>" in page and "limits-differ" not in page and "Kubernetes keeps" in page
    data = json.loads(json.dumps(said.as_dict(), default=str))
    assert data["documents"][0]["groups"][1]["command"].startswith("ray start --address=")
    assert {"rule", "path", "line", "severity", "message", "fix"} <= {*data["documents"][0]["findings"][0]}
    assert "nothing found" in str(explain(made())) and "nothing found" in explain(made())._repr_html_()


@pytest.mark.parametrize("path", sorted((course_root() / "manifests" / "03-raycluster").glob("*.yaml")), ids=str)
def test_the_courses_own_manifests(path):
    if path.name != "with-ingress.yaml":  # a part of one, for kubectl patch
        assert explain(path.read_text()).documents


# ---- what cannot be read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no document in it"),
        ("# only words\n---\n", "there is no document in it"),
        ("just words", "from line 1 on this is a text"),
        ("---\n\n- 1\n- 2\n", "from line 3 on this is a list"),
        ("a: [1\nb: 2", "no YAML: line 2"),
        ("spec:\n\tx: 1", "no YAML: line 2"),
        (GOOD.replace("    - groupName", "\t- groupName"), "no YAML: line 17"),
        (GOOD + "kind: RayJob\n", f"line {GOOD.count(chr(10)) + 1}, column 1: the key 'kind' is there twice"),
        ("kind: a\x00b", "line 1 has a character"),
        ("a: 1\nb: \x07", "line 2 has a character"),
        ("apiVersion: v1\nkind: Pod\n", "Nothing here is of KubeRay: line 1 begins a Pod"),
        ("a: 1\n", "line 1 begins something without a kind"),
        (GOOD.replace("ray.io/v1", "ray.io/v1alpha1"), "line 1 has ray.io/v1alpha1, which is out of use"),
        (GOOD.replace("ray.io/v1", "ray.io/v3"), "line 1 has 'ray.io/v3', and KubeRay has ray.io/v1"),
        (GOOD.replace("RayCluster", "Raycluster"), "line 2 has the kind 'Raycluster'"),
        (GOOD.replace("kind: RayCluster\n", ""), "has the kind None"),
        (GOOD.replace("name: demo", "name: {{ .Release.Name }}"), "Line 3 has {{ … }} in it"),
        (GOOD.replace("name: demo", 'name: "{{ .Values.name }}"'), "Line 3 has {{ … }} in it"),
        ("{{- if .Values.on }}\n" + GOOD + "{{- end }}\n", "Line 1 has {{ … }} in it"),
        (
            '- op: replace\n  path: "/spec/rayVersion"\n  value: "2.60.0"\n',
            "From line 1 on this is a patch of Kustomize",
        ),
        (GOOD.replace("  rayVersion", "  $patch: delete\n  rayVersion"), "Line 5 has a word of Kustomize"),
        ("resources: [a.yaml]\npatches: [{path: b.yaml}]\n", "is what Kustomize reads"),
        ("kind: List\napiVersion: v1\nitems: 3\n", "The items of the list of line 1"),
        ("kind: List\napiVersion: v1\nitems: []\n", "there is no document in it"),
        ("a: " + "[" * 3000, "Line 1 is nested too deeply"),
        ("a: 1\n1: 2\n", "a key is a string"),
        ("x: " + "y" * 5_000_000, "5000003 characters is too long"),
    ],
)
def test_what_cannot_be_read(text, said):
    with pytest.raises(CourseError, match=said.replace("{", r"\{").replace("}", r"\}")) as caught:
        explain(text)
    assert caught.value.what.endswith(".") and caught.value.fix.endswith(".")


@pytest.mark.parametrize(
    "spec",
    ["spec: 3", "spec: []", "spec: null", "spec: {}", "spec: {headGroupSpec: 1}", "spec: {headGroupSpec: {}}",
     "spec: {headGroupSpec: {template: {}}}", "spec: {headGroupSpec: {template: {spec: {containers: []}}}}",
     "spec: {workerGroupSpecs: [1]}", "metadata: 3", ""],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "RayService", "RayCronJob"])
def test_a_manifest_that_is_not_finished(kind, spec):
    said = explain(f"apiVersion: ray.io/v1\nkind: {kind}\nmetadata: {{name: x}}\n".replace(
        "metadata: {name: x}\n", "" if spec.startswith("metadata") else "metadata: {name: x}\n") + spec)  # fmt: skip
    assert not said.is_right and str(said) and said._repr_html_() and all(one.line for one in said.findings)


def test_a_part_that_kustomize_would_add_to():
    """A patch without a word of Kustomize's own is a manifest in which much is missing; that is what is said."""
    said = explain("apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: x}\nspec: {rayVersion: '2.60.0'}\n")
    assert [one.path for one in said.findings] == ["spec.headGroupSpec"] and "patch" in str(said)


def test_one_that_cannot_be_checked_beside_one_that_can():
    old = GOOD.replace("ray.io/v1", "ray.io/v1alpha1")
    said = explain(f"{GOOD}---\n{old}")
    assert len(said.documents) == 1 and "Not checked: line 30 has ray.io/v1alpha1" in str(said)


def test_anchors_and_merge_keys():
    spelled = GOOD.replace("      minReplicas: 1\n", "      <<: &bounds {minReplicas: 9}\n")
    [one] = [one for one in explain(spelled).findings if one.severity == "error"]
    assert (one.rule, one.line) == ("min-above-max", 18)
    twice = GOOD.replace("rayproject/ray:2.60.0\n", "&image rayproject/ray:2.52.0\n").replace(
        "rayproject/ray:2.60.0-gpu", "*image")  # fmt: skip
    assert {one.path for one in explain(twice).findings if one.rule == "images-differ"} >= {
        "spec.headGroupSpec.template.spec.containers[0].image",
        "spec.workerGroupSpecs[0].template.spec.containers[0].image",
    }


def test_a_template_elsewhere_does_no_harm():
    rules = 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {text: "{{ $labels.pod }} is down"}\n'
    assert explain(f"{rules}---\n{GOOD}").documents


def test_files(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert explain(text_of(tmp_path / "a.yaml")).documents
    (tmp_path / "b.yaml").write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(CourseError, match="line 2 has bytes"):
        text_of(str(tmp_path / "b.yaml"))
    with pytest.raises(CourseError, match="cannot be read"):
        text_of(tmp_path)


def test_the_command(tmp_path, capsys):
    from typer.testing import CliRunner

    (tmp_path / "a.yaml").write_text(GOOD)
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "a.yaml")])
    assert done.exit_code == 0 and "RayCluster/demo" in done.output
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "a.yaml"), "--json"])
    assert json.loads(done.output)["documents"][0]["name"] == "demo"
    done = CliRunner().invoke(app, ["explain", "-"], input=GOOD.replace("minReplicas: 1", "minReplicas: 9"))
    assert done.exit_code == 1 and "min-above-max" in done.output
    old = ["explain", str(tmp_path / "a.yaml"), "--ray-version", "2.40.0", "--kuberay-version", "1.3.0"]
    assert "for Ray 2.40.0 and KubeRay 1.3.0" in CliRunner().invoke(app, old).output

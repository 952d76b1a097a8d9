"""What of KubeRay in the embedded cluster needs no cluster: its command line, its definitions, what is declared."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from helpers.cluster.embedded import boot, cluster, controlplane, kuberay, pki, supervisor
from helpers.cluster.embedded.api import ApiError
from helpers.cluster.embedded.cluster import EmbeddedCluster
from helpers.cluster.embedded.layout import Layout
from helpers.cluster.embedded.tools import store, table
from helpers.errors import CourseError
from tests.soak import kuberay_e2e

FILE = "apiVersion: apiextensions.k8s.io/v1\nmetadata:\n  annotations:\n    a: b\n  name: x\nspec: {annotations: {}}\n"


class Recorder:
    """Stands at the API server's place: what it was asked to make, and what it says is there."""

    def __init__(self, there: list[dict] = (), served: list[str] = ()):
        self.there, self.served, self.applied = there, served, {}

    def metadata(self, collection: str) -> list[dict]:
        assert collection == kuberay.DEFINITIONS
        return list(self.there)

    def get(self, path: str) -> dict | None:
        assert path == "/apis/ray.io/v1"
        return {"resources": [{"name": name} for name in self.served]} if self.served else None

    def apply_text(self, path: str, text: bytes) -> None:
        self.applied[path.rpartition("/")[2]] = text.decode()

    def apply(self, collection: str, thing: dict) -> None:
        self.applied[f"{collection}/{thing['metadata']['name']}"] = json.dumps(thing)


@pytest.fixture
def manifests(tmp_path: Path) -> dict[str, Path]:
    made = {name: tmp_path / name for name in (*table.CRDS, table.ROLE)}
    for name, path in made.items():
        path.write_text(FILE.replace("x", name))
    return made


def test_the_operator_is_asked_of_the_loopback_only_and_is_a_user_of_its_own(tmp_path):
    operator = kuberay.operator(Layout(tmp_path), lambda name: Path("/bin of ours") / name)
    options = dict(word.removeprefix("--").partition("=")[::2] for word in operator.argv[1:])
    assert operator.after == (controlplane.API,)
    assert options["metrics-addr"].startswith("127.0.0.1:")
    assert options["health-probe-bind-address"].startswith("127.0.0.1:")
    assert operator.ready_url == f"http://{options['health-probe-bind-address']}/readyz"
    assert options["kubeconfig"] == str(controlplane.kubeconfig(Layout(tmp_path), kuberay.OPERATOR))
    assert kuberay.OPERATOR in controlplane.USERS
    [certificate] = [one for one in pki.CERTIFICATES if one.name == kuberay.OPERATOR]
    assert certificate.common_name == kuberay.OPERATOR and not certificate.organization


def test_the_operator_survives_the_way_to_the_supervisor(tmp_path):
    operator = kuberay.operator(Layout(tmp_path), lambda name: Path("/bin of ours") / name)
    assert boot.as_component(cluster._as_json(operator)) == operator


def test_definitions_are_named_after_their_files():
    names = [kuberay.definition_name(file) for file in table.CRDS]
    assert names == ["rayclusters.ray.io", "rayjobs.ray.io", "rayservices.ray.io", "raycronjobs.ray.io"]


def test_a_definition_says_what_it_was_made_from(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(FILE)
    line = f"    {kuberay.DIGEST}: {hashlib.sha256(FILE.encode()).hexdigest()}\n"
    assert kuberay.marked(path).decode() == FILE.replace("  annotations:\n", f"  annotations:\n{line}", 1)


def test_a_new_cluster_gets_all_definitions_and_the_role(manifests):
    api = Recorder()
    assert kuberay.install(api, manifests)
    assert set(map(kuberay.definition_name, table.CRDS)) < set(api.applied)
    assert api.applied[kuberay.OPERATOR] == manifests[table.ROLE].read_text()
    binding = json.loads(api.applied[f"/apis/{controlplane.RBAC}/v1/clusterrolebindings/{kuberay.OPERATOR}"])
    assert binding["roleRef"]["name"] == kuberay.OPERATOR
    assert [subject["kind"] for subject in binding["subjects"]] == ["User"]


def test_only_what_has_changed_is_made_again(manifests):
    there = [
        {"name": kuberay.definition_name(file), "annotations": {kuberay.DIGEST: kuberay._digest(manifests[file])}}
        for file in table.CRDS
    ]
    there[1]["annotations"] = {kuberay.DIGEST: "of another version"}
    del there[2]["annotations"]
    api = Recorder([*there, {"name": "others.example.com"}])
    kuberay.install(api, manifests)
    assert {name for name in api.applied if name.endswith(".ray.io")} == {"rayjobs.ray.io", "rayservices.ray.io"}


def test_kinds_that_are_not_served_yet_are_named():
    with pytest.raises(AssertionError, match="rayclusters, raycronjobs, rayjobs, rayservices"):
        kuberay.is_served(Recorder())
    with pytest.raises(AssertionError, match="not served yet: rayjobs$"):
        kuberay.is_served(Recorder(served=["rayclusters", "raycronjobs", "rayservices", "rayclusters/status"]))
    assert kuberay.is_served(Recorder(served=["rayclusters", "raycronjobs", "rayservices", "rayjobs"]))


def test_a_refusal_passes_through(manifests):
    class Refuses(Recorder):
        def apply_text(self, path: str, text: bytes) -> None:
            raise ApiError("PATCH: 403 no")

    with pytest.raises(ApiError, match="403"):
        kuberay.install(Refuses(), manifests)


def test_whether_kuberay_belongs_to_the_cluster_is_kept(tmp_path):
    made = EmbeddedCluster(Layout(tmp_path))
    assert made._with_kuberay()  # a new one
    for wanted in (False, True):
        made._declare_kuberay(wanted)
        assert EmbeddedCluster(Layout(tmp_path))._with_kuberay() is wanted


def test_components_ask_the_cluster_for_names(tmp_path, monkeypatch):
    """The operator asks for the names of Services."""
    monkeypatch.setattr(supervisor, "RUN", tmp_path / "run" / "course")
    monkeypatch.setattr(supervisor.linux, "mount", lambda *words, **options: None)
    (tmp_path / "run").mkdir()
    supervisor._own_run()
    assert (tmp_path / "run" / "course" / "resolv.conf").read_text() == "nameserver 10.88.255.2\n"


def test_no_limit_makes_the_api_server_do_nothing_but_collect():
    """With KubeRay's definitions it holds more than any limit that would save memory."""
    assert "GOMEMLIMIT" not in controlplane.LEAN[controlplane.API]


def test_manifests_that_are_not_beside_the_operator(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CourseError, match="ray-operator is not built yet"):
        store.kuberay_manifests()
    family, _ = table.find("ray-operator")
    part = store.home(family).with_suffix(".part")
    part.mkdir(parents=True)
    for name in (family.programs[0].name, *family.others[1:]):
        (part / name).write_text("x")
    store.put_in_place(part, family, "1.26.8")
    with pytest.raises(CourseError, match="manifests of KubeRay are not beside its operator"):
        store.kuberay_manifests()
    assert store.lacking(family) == list(family.programs)


# ---- KubeRay's own tests ---------------------------------------------------------------------------------------------

GO_SAID = """\
=== RUN   TestA/one
    a_test.go:1: [2026-11-30T02:00:00Z] Created
--- FAIL: TestA (12.50s)
    --- PASS: TestA/one (2.25s)
    --- FAIL: TestA/two (10.25s)
    --- SKIP: TestA/three (0.00s)
FAIL
"""


def test_what_go_says_of_a_test_and_its_parts_is_read():
    outcomes = {one.name: (one.verdict, one.seconds) for one in kuberay_e2e.read_outcomes("TestA", GO_SAID)}
    assert outcomes["TestA/one"] == ("PASS", 2.25) and outcomes["TestA/three"] == ("SKIP", 0)
    assert outcomes["TestA"] == ("FAIL", 12.5) and outcomes["TestA/two"] == ("FAIL", 10.25)


def test_a_test_that_says_nothing_has_not_passed():
    [part, whole] = kuberay_e2e.read_outcomes("TestB", "    --- PASS: TestB/one (2.00s)\npanic: test timed out\n")
    assert (part.verdict, whole.name, whole.verdict) == ("PASS", "TestB", "NONE")


def test_tests_that_are_left_out_are_not_listed(tmp_path):
    names = [name for name in kuberay_e2e.LEFT_OUT if not name.endswith("*")]
    package, _, test = names[0].partition("/")
    (tmp_path / "a_test.go").write_text(f"func TestOther(t *testing.T) {{\n}}\nfunc {test}(t *testing.T) {{\n}}\n")
    assert kuberay_e2e.Suite(package, tmp_path, tmp_path).tests() == ["TestOther"]

"""An existing cluster: what it has is asked, what is missing is said, and nothing but the course's own is touched.

The existing cluster is an embedded one, of which no more is known here than a kubeconfig says.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers import lab as lab_module
from helpers import versions
from helpers.cluster.backend import choose
from helpers.cluster.existing import EVERYTHING, NEEDED, RAY, Existing, owner
from helpers.errors import CourseError
from helpers.kube import Kube
from helpers.lab import Lab
from helpers.state import cache_dir
from helpers.wait import wait_until
from tests.live.dump import dump, settled
from tests.live.test_kube_lab import sleeper

if TYPE_CHECKING:
    from helpers.cluster.embedded.cluster import EmbeddedCluster

pytestmark = [pytest.mark.live, pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux")]
ALL = frozenset({"kubernetes", "autoscaler", "fake_gpu"})
OURS = versions.KUBERAY
THEIRS = "theirs"  # a namespace of somebody else
OPERATOR = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: kuberay-operator}
spec:
  replicas: 0
  selector: {matchLabels: {app: kuberay}}
  template:
    metadata: {labels: {app: kuberay}}
    spec: {containers: [{name: kuberay-operator, image: "quay.io/kuberay/operator:vVERSION"}]}
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A HOME of its own, and an environment of which nothing stays; the programs of the cluster stay where they are."""
    with tempfile.TemporaryDirectory(prefix="course-live-") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_dir().parent))
        patch.setenv("HOME", directory)
        patch.setenv("XDG_STATE_HOME", f"{directory}/state")
        for name in ("KUBECONFIG", "KUBECACHEDIR", "COURSE_KUBECONFIG", "COURSE_BACKEND", "COURSE_CONTEXT", "PATH"):
            patch.setenv(name, os.environ.get(name, ""))
        patch.setattr(lab_module, "_running", {})
        patch.setattr(lab_module, "_started_in", [])
        yield Path(directory)


class Site:
    """The cluster as those see it who run it: kubectl with all rights, and kubeconfigs for others."""

    def __init__(self, cluster: EmbeddedCluster, home: Path):
        self.cluster, self._home = cluster, home
        self.config = json.loads(cluster.layout.kubeconfig.read_text())
        self.kube = Kube(cluster.layout.kubeconfig)

    def kubectl(self, *words: str, given: str = "") -> str:
        command = [Existing().kubectl(), f"--kubeconfig={self.cluster.layout.kubeconfig}", *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def give(self, user: dict | None = None, server: str = "", context: str = "site") -> Path:
        """A kubeconfig in which another context is the current one, as a user has it."""
        cluster = dict(self.config["clusters"][0]["cluster"])
        cluster["server"] = server or cluster["server"]
        user = self.config["users"][0]["user"] if user is None else user
        text = {
            "apiVersion": "v1", "kind": "Config", "current-context": "production",
            "clusters": [{"name": "c", "cluster": cluster}, {"name": "p", "cluster": {"server": "https://192.0.2.1"}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}},
                         {"name": "production", "context": {"cluster": "p", "user": "u"}}],
        }  # fmt: skip
        path = Path(tempfile.mkdtemp(dir=self._home)) / "config"
        path.write_text(json.dumps(text))
        return path

    def token(self, account: str) -> dict:
        """A ServiceAccount, and a token that stands for it."""
        self.kubectl("create", "serviceaccount", account, "-n", THEIRS)
        return {"token": self.kubectl("create", "token", account, "-n", THEIRS)}


@pytest.fixture(scope="module")
def site(embedded: EmbeddedCluster, home: Path) -> Iterator[Site]:
    found = Site(embedded, home)
    found.kubectl("create", "namespace", THEIRS)
    found.kubectl("create", "configmap", "settings", "--from-literal=a=b", "-n", THEIRS)
    yield found
    found.kubectl("delete", "namespace", THEIRS)


@pytest.fixture
def use(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Existing]:
    """Name a kubeconfig and its context, as a user would, and get what the lessons get."""

    def choose_it(kubeconfig: Path, context: str = "site") -> Existing:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.delenv("COURSE_KUBECONFIG", raising=False)
        monkeypatch.delenv("COURSE_BACKEND", raising=False)
        monkeypatch.setenv("COURSE_CONTEXT", context)
        found = choose(()).backend
        assert isinstance(found, Existing)
        return found

    return choose_it


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(CourseError) as caught:
        call()
    return str(caught.value)


# ---- (a) all rights --------------------------------------------------------------------------------------------------


def test_what_a_cluster_with_all_rights_has(site, use):
    backend = use(site.give())
    assert backend.is_running() and backend.capabilities() == ALL
    facts = backend.facts()
    assert facts.versions == {"Kubernetes": versions.KUBERNETES, "KubeRay": ""} and not facts.host_is_image
    assert facts.owner == owner() and facts.ahead_s == 0
    told = str(backend.status())
    assert "by the context site" in told and "3, with 0 GPUs and 4 fake ones" in told
    assert "all that lessons need" in told and told.endswith("✔ Lessons can run there.")


def test_a_lesson_leaves_all_else_as_it_was(site, use, capsys):
    use(site.give())
    before = settled(site.kube)
    lab = Lab.start("03")
    try:
        assert lab.namespace == f"lesson-03-{owner()}"
        labels = site.kube.get(site.kube.resource("namespaces"), lab.namespace, "")["metadata"]["labels"]
        assert labels["ray-course/owner"] == owner() and labels["app.kubernetes.io/managed-by"] == "ray-course"
        lab.apply(sleeper("one"))
        lab.wait("raycluster/one")
        assert lab.run_on_head("one", "print(6 * 7)") == "42\n"
        during = dump(site.kube)
        assert {path for path in during if path not in before} == {
            path for path in during if lab.namespace in path
        }  # nothing new but there
    finally:
        lab.clean_up()
    after = settled(site.kube)
    assert {path: what for path, what in after.items() if before.get(path) != what} == {}
    assert before.keys() == after.keys()
    out = capsys.readouterr().out
    assert f"Backend  existing: Kubernetes {versions.KUBERNETES}, KubeRay of a version that it does not tell" in out
    assert "taken because COURSE_CONTEXT names site" in out
    assert "This cluster has a KubeRay that does not show its version; the course was written for" in out


def test_up_looks_into_the_ray_image_before_the_first_lesson(site, use, monkeypatch):
    backend = use(site.give())
    before = settled(site.kube)
    assert backend.up().is_ready
    assert settled(site.kube) == before
    monkeypatch.setattr(versions, "RAY_IMAGE", "registry.invalid/ray:2.60.0")
    told = refusal(use(site.give()).up)
    assert "The image registry.invalid/ray:2.60.0 cannot be pulled" in told and "let a mirror serve it" in told
    assert settled(site.kube) == before


def test_down_stops_nothing_and_wipes_ones_own_namespaces_only(site, use):
    backend = use(site.give())
    labels = {"app.kubernetes.io/managed-by": "ray-course", "ray-course/lesson": "03"}
    for name, whose in (("lesson-03-mine", owner()), ("lesson-03-other", "abcdef")):
        metadata = {"name": name, "labels": labels | {"ray-course/owner": whose}}
        site.kube.apply(
            site.kube.resource("namespaces"), {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, ""
        )
    assert "is not the course's: it goes on" in backend.down(wipe=False)
    assert "Your namespaces there are removed: lesson-03-mine." in backend.down(wipe=True)
    left = site.kubectl("get", "namespaces", "-o", "name")
    assert "lesson-03-other" in left and "lesson-03-mine" not in left and THEIRS in left
    site.kubectl("delete", "namespace", "lesson-03-other")
    assert backend.is_running()


def test_the_users_own_context_is_found_again_after_a_lesson_has_set_its_own(site, use):
    use(site.give())
    for _ in range(2):
        Lab.start("03").clean_up()


# ---- (b), (c) fewer rights -------------------------------------------------------------------------------------------


def test_a_user_of_one_namespace(site, use):
    user = site.token("tenant")
    site.kubectl(
        "create", "rolebinding", "tenant", "--clusterrole=admin", f"--serviceaccount={THEIRS}:tenant", "-n", THEIRS
    )
    told = refusal(use(site.give(user)).capabilities)
    assert "you lack permissions that lessons need: create/patch/delete namespaces" in told.replace(
        "get/create", "create"
    )
    assert "Ask whoever runs it" in told
    status = str(use(site.give(user)).status())
    assert "you may not see them" in status and "✘ In the cluster of the context site you lack" in status


def test_a_user_who_may_make_namespaces_and_nothing_in_them(site, use):
    user = site.token("maker")
    site.kubectl("create", "clusterrole", "maker", "--verb=get,create,patch,delete", "--resource=namespaces")
    site.kubectl("create", "clusterrolebinding", "maker", "--clusterrole=maker", f"--serviceaccount={THEIRS}:maker")
    try:
        told = refusal(use(site.give(user)).capabilities)
        assert "namespaces," not in told
        for group, resource, verbs in NEEDED:
            assert f"{'/'.join(verbs)} {resource}{f'.{group}' if group else ''}" in told
    finally:
        site.kubectl("delete", "clusterrolebinding/maker", "clusterrole/maker")


def test_what_the_lessons_need_is_enough(site, use, capsys):
    """A user with exactly the permissions that are asked for runs a lesson's cluster."""
    user = site.token("learner")
    rules = [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "create", "patch", "delete"]}]
    rules += [{"apiGroups": [group], "resources": [what], "verbs": list(verbs)} for group, what, verbs in NEEDED]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "learner"}}
    site.kubectl("apply", "-f", "-", given=json.dumps(role | {"rules": rules}))
    site.kubectl(
        "create", "clusterrolebinding", "learner", "--clusterrole=learner", f"--serviceaccount={THEIRS}:learner"
    )
    try:
        backend = use(site.give(user))
        assert backend.capabilities() == {"kubernetes", "autoscaler"}
        from helpers.cluster.session import Session

        session = Session("03", ["kubernetes", "autoscaler"])
        try:
            assert "its Kubernetes nodes do not show to you" in session.introduction()
            session.apply(sleeper("one"))
            session.wait("raycluster/one", 120)
            assert session.run_on_head("one", "print(6 * 7)") == "42\n"
            assert "one-head" in str(session.pods("raycluster/one")) and session.events("raycluster/one").rows
            session.delete("raycluster/one")
        finally:
            session.close()
    finally:
        site.kubectl("delete", "clusterrolebinding/learner", "clusterrole/learner")


def test_a_user_with_no_rights(site, use):
    user, before = site.token("nobody"), settled(site.kube)
    told = refusal(use(site.give(user)).capabilities)
    assert dump(site.kube) == before
    assert "get/create/patch/delete namespaces" in told
    assert all(f"{'/'.join(EVERYTHING)} {kind}.ray.io" in told for kind in RAY)


# ---- (d), (e) no way in ----------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there(site, use):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    backend = use(site.give(server=f"https://127.0.0.1:{port}"))
    assert not backend.is_running()
    told = refusal(backend.capabilities)
    assert "The cluster of the context site does not answer: " in told and "Connection refused" in told
    assert "kubectl --context=site get --raw=/version" in told
    assert "does not answer" in str(backend.status())


def test_a_certificate_that_has_ended(site, use):
    told = refusal(use(site.give(_ended_certificate(site))).capabilities)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert f"does not know this user: its certificate ended on {yesterday:%Y-%m-%d}. Sign in again" in told


def _ended_certificate(site: Site) -> dict:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    from helpers.cluster.embedded import pki

    keys = pki.Pki(site.cluster.layout.pki)
    authority = x509.load_pem_x509_certificate(keys.certificate(pki.CA).read_bytes())
    signer = serialization.load_pem_private_key(keys.key(pki.CA).read_bytes(), None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "late")]))
        .issuer_name(authority.subject).public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9)).not_valid_after(now - timedelta(days=1))
        .sign(signer, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "client-certificate-data": base64.b64encode(made.public_bytes(pem)).decode(),
        "client-key-data": base64.b64encode(text).decode(),
    }


def test_a_token_that_is_not_valid(site, use):
    told = refusal(use(site.give({"token": "nonsense"})).capabilities)
    assert "does not know this user: its certificate or token is not valid" in told


def test_a_context_that_is_not_there(site, use):
    told = refusal(lambda: use(site.give(), "elsewhere").capabilities())
    assert "COURSE_CONTEXT names elsewhere, and kubectl cannot use that" in told
    assert "are: production, site." in told or "are: site, production." in told


def test_a_kubeconfig_that_is_not_there(use, tmp_path):
    told = refusal(use(tmp_path / "none").capabilities)
    assert f"There is no kubeconfig {tmp_path / 'none'}" in told


# ---- (f), (g) KubeRay ------------------------------------------------------------------------------------------------


def test_no_kuberay(home, use):
    from helpers.cluster.embedded.cluster import EmbeddedCluster
    from helpers.cluster.embedded.layout import Layout

    with tempfile.TemporaryDirectory(prefix="course-live-") as directory:
        bare = EmbeddedCluster(Layout(Path(directory) / "embedded"))
        try:
            bare.up((), kuberay_wanted=False, wait=False)
            told = refusal(use(bare.layout.kubeconfig, "ray-course").capabilities)
        finally:
            bare.down(wipe=True)
    assert "In the cluster of the context ray-course there is no KubeRay. Have it installed: `helm repo add" in told
    assert f"--version {versions.KUBERAY}`" in told


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (OURS, []),
        ("1.4.2", [f"This cluster has KubeRay 1.4.2; the course was written for {OURS}, and shows what it shows."]),
        ("1.3.0", "In the cluster of the context site is KubeRay 1.3.0, which lacks fields that the lessons use."),
    ],
)  # fmt: skip
def test_kuberay_of_another_version(site, use, version, said):
    site.kubectl("apply", "-n", THEIRS, "-f", "-", given=OPERATOR.replace("VERSION", version))
    try:
        backend = use(site.give())
        if isinstance(said, str):
            assert said in refusal(backend.capabilities) and said in str(backend.status())
        else:
            assert backend.capabilities() == ALL and backend.facts().versions["KubeRay"] == version
            assert backend.begin_lesson() == said
    finally:
        site.kubectl("delete", "deployment", "kuberay-operator", "-n", THEIRS)
        wait_until(
            lambda: not site.kubectl("get", "replicasets", "-n", THEIRS, "-o", "name"), 60, what="its end"
        )  # the next test compares all objects

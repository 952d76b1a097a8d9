"""The kind backend, with stand-ins for docker, podman, kind, kubectl, helm, Go and nvidia-smi that note all calls."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml

from helpers import versions
from helpers.cluster.backend import GPU_LABEL
from helpers.cluster.embedded.layout import GPU_TAINT
from helpers.cluster.embedded.tools import store, table
from helpers.cluster.kind import Kind, backend, engine, gpus, images, kuberay, machine, programs
from helpers.cluster.kind.engine import Done, Engine, Info
from helpers.cluster.kind.images import cause
from helpers.cluster.kind.mark import Mark
from helpers.cluster.kind.status import Status, row
from helpers.errors import CourseError
from helpers.kube import MERGE, Resource
from helpers.state import course_root

FOLDER = course_root() / "manifests" / "kind"
RAY, OPERATOR = versions.RAY_IMAGE, versions.KUBERAY_IMAGE
NODES = ("course-control-plane", "course-worker", "course-worker2")
ADDRESSES = dict(zip(NODES, ("172.18.0.10", "172.18.0.2", "172.18.0.9"), strict=True))
GIB = 1024**3
INFO = {
    "Name": platform.node(), "Architecture": "x86_64", "MemTotal": 16 * GIB, "DockerRootDir": "/",
    "DefaultRuntime": "runc", "DriverStatus": [["Backing Filesystem", "extfs"]],
}  # fmt: skip
PODMAN_INFO = {
    "host": {"hostname": platform.node(), "arch": "amd64", "memTotal": 16 * GIB}, "store": {"graphRoot": "/"}
}  # fmt: skip

# every stand-in notes its arguments; a file `fail-PROGRAM-VERB` beside it makes it say that and fail
HEAD = """#!/bin/sh
PATH=/usr/bin:/bin
name=${0##*/}
cd "${0%/*}/.."
echo "$name $*" >>calls
if [ -s "fail-$name-$1" ]; then cat "fail-$name-$1" >&2; exit 1; fi
"""
ENGINE = """
case $1 in
info) cat info.json ;;
ps) case $* in
  *--all*--filter*label=io.x-k8s.kind.cluster=course*) cat containers ;;
  *) grep ' running$' containers ;;
  esac ;;
image) grep -qxF -- "$3" images || { echo "Error: No such image: $3" >&2; exit 1; } ;;
pull) echo "$2" >>images ;;
tag) echo "$3" >>images ;;
save) while [ "$1" != --output ]; do shift; done; echo tar >"$2" ;;
load) cat loaded ;;
start) shift; for one; do sed -i "s/^$one .*/$one running/" containers; done ;;
stop) shift 3; for one; do sed -i "s/^$one .*/$one exited/" containers; done ;;
exec) case $3 in
  crictl) cat "in-$2" 2>/dev/null || echo '{"images": []}' ;;
  *) shift; echo "in $*" ;;
  esac ;;
esac
"""
KIND = """
case $1 in
version) echo "kind v$(cat kind-version) go1.26.8 linux/amd64" ;;
create) echo "$KIND_EXPERIMENTAL_PROVIDER" >provider
  printf 'course-worker2 running\\ncourse-control-plane running\\ncourse-worker running\\n' >containers
  while [ "$1" != --kubeconfig ]; do shift; done
  echo "clusters: []" >"$2" ;;
delete) : >containers ;;
esac
"""
INSTALLS = """
case $1 in
apply|upgrade) echo "$KUBECONFIG" >installed ;;
esac
"""
GO = """
case $1 in
env) echo go1.26.8 ;;
-C) cat module ;;
esac
"""


class Here:
    """A machine made of stand-ins.

    Attributes:
        folder: where the files are that they read and write.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in ("calls", "containers", "images", "loaded"):
            self.write(name, "")
        self.write("info.json", json.dumps(INFO))
        self.write("kind-version", versions.KIND)
        self.write("module", '{"Dir": "/modules/ray-operator"}')
        for name, script in {"docker": ENGINE, "kind": KIND, "kubectl": INSTALLS, "go": GO}.items():
            self.program(name, script)

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def program(self, name: str, script: str) -> None:
        path = self.write(f"bin/{name}", HEAD + script)
        path.chmod(0o755)

    def without(self, *names: str) -> None:
        for name in names:
            (self.folder / "bin" / name).unlink()

    def calls(self, start: str) -> list[str]:
        """The calls of a program, without what they begin with."""
        found = (self.folder / "calls").read_text().splitlines()
        return [line.removeprefix(start).strip() for line in found if line.startswith(start)]

    def info(self, **changes: object) -> None:
        self.write("info.json", json.dumps(INFO | changes))

    def has(self, *images_there: str) -> None:
        self.write("images", "".join(f"{image}\n" for image in images_there))

    def in_nodes(self, *images_there: str, nodes: tuple[str, ...] = NODES) -> None:
        """Preload images into Kubernetes nodes."""
        for node in nodes:
            told = {"images": [{"repoTags": [image]} for image in images_there]}
            self.write(f"in-{node}", json.dumps(told))

    @property
    def containers(self) -> str:
        return (self.folder / "containers").read_text()


def node(name: str, **changes: object) -> dict:
    """A Kubernetes node as the API server shows it."""
    control = name.endswith("control-plane")
    return {
        "metadata": {
            "name": name,
            "labels": ({"node-role.kubernetes.io/control-plane": ""} if control else {})
            | ({GPU_LABEL: "fake"} if name == NODES[2] else {}),
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "8", "memory": "16777216Ki"},
            "nodeInfo": {"kubeletVersion": "v1.36.1"},
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": ADDRESSES[name]}],
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2999-01-01T00:00:00Z"}],
        },
    } | changes


class Api:
    """What the backend asks of `Kube`. The operator is there as soon as something has installed it."""

    def __init__(self, here: Here):
        self.here, self.nodes, self.sent = here, {name: node(name) for name in NODES}, []
        self.operator = OPERATOR
        self.kubeconfig = Path()

    def at(self, kubeconfig: Path) -> Api:
        self.kubeconfig = kubeconfig
        return self

    def resource(self, name: str, api_version: str) -> Resource:
        prefix = {"v1": "/api/v1", "apps/v1": "/apis/apps/v1"}[api_version]
        return Resource(prefix, name, name.capitalize(), frozenset({name}), name != "nodes")

    def list(self, resource: Resource, namespace: str, selector: str = "") -> list[dict]:
        assert resource.plural == "nodes" and namespace == ""
        label, _, value = selector.partition("=")
        return [one for one in self.nodes.values() if not label or one["metadata"]["labels"].get(label) == value]

    def get(self, resource: Resource, name: str, namespace: str) -> dict | None:
        assert (resource.plural, name, namespace) == ("deployments", "kuberay-operator", "default")
        return deployment(self.operator) if (self.here.folder / "installed").exists() else None

    def request(self, method: str, path: str, body: dict, **more: object) -> dict:
        self.sent.append((method, path, body, more))
        name = path.split("/")[-2]
        for part, amounts in body["status"].items():
            self.nodes[name]["status"].setdefault(part, {}).update(amounts)
        return {}

    def version(self) -> str:
        return "1.36.1"

    def ahead_s(self) -> float:
        return 3.0


def deployment(image: str, available: str = "True", observed: int = 2) -> dict:
    condition = {"type": "Available", "status": available, "message": "Deployment does not have minimum availability."}
    return {
        "metadata": {"generation": 2},
        "spec": {"template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"observedGeneration": observed, "conditions": [condition]},
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    made = Here(tmp_path / "machine")
    monkeypatch.setenv("PATH", str(made.folder / "bin"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # nothing is built
    for name in (images.GIVEN, kuberay.WISH, "KIND_EXPERIMENTAL_PROVIDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "SETTINGS", tmp_path / "no settings")
    store._version_said.cache_clear()
    return made


@pytest.fixture
def api(here: Here, monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api(here)
    monkeypatch.setattr(backend, "Kube", made.at)
    monkeypatch.setattr(backend, "_answers", lambda kubeconfig, timeout_s: True)
    ours = metadata.version("ray"), platform.python_version()
    monkeypatch.setattr(backend.probe, "ray_of_image", lambda kube, image, timeout_s: ours)
    return made


@pytest.fixture
def kind(api: Api) -> Kind:
    return Kind()


@pytest.fixture
def made(kind: Kind, here: Here, capsys: pytest.CaptureFixture) -> Kind:
    """A cluster that runs."""
    kind.up()
    here.in_nodes(f"docker.io/{RAY}", OPERATOR)
    here.write("calls", "")
    capsys.readouterr()
    return kind


def refusal(call) -> str:
    with pytest.raises(CourseError) as caught:
        call()
    assert caught.value.what.endswith(".") and caught.value.fix.endswith(".")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_nothing_stays(kind: Kind, here: Here) -> None:
    assert here.containers == ""
    assert {path.name for path in kind.kubeconfig.parent.iterdir()} == {"lock"}
    assert not kind.is_running()


# ---- up --------------------------------------------------------------------------------------------------------------


def test_a_new_cluster(kind: Kind, here: Here, api: Api, capsys: pytest.CaptureFixture):
    status = kind.up()
    kubeconfig = kind.kubeconfig
    assert here.calls("kind create") == [
        f"cluster --name course --image {versions.KIND_NODE_IMAGE} --config {FOLDER}/cluster.yaml "
        f"--kubeconfig {kubeconfig} --wait 120s"
    ]
    assert (here.folder / "provider").read_text() == "docker\n"
    assert here.calls("docker pull") == [versions.KIND_NODE_IMAGE, OPERATOR, RAY]
    (saved,) = here.calls("docker save")
    assert re.fullmatch(rf"--output {kubeconfig.parent}/images-\w+/images.tar {OPERATOR} {RAY}", saved)
    (loaded,) = here.calls("kind load")
    assert loaded == f"image-archive {saved.split()[1]} --name course --nodes {','.join(NODES)}"
    assert here.calls("kubectl apply") == ["--server-side --kustomize /modules/ray-operator/config/default"]
    assert (here.folder / "installed").read_text() == f"{kubeconfig}\n"
    assert not here.calls("kind delete")
    assert {path.name for path in kubeconfig.parent.iterdir()} == {"lock", "cluster.json", "kubeconfig"}
    assert Mark.read(kubeconfig.parent / "cluster.json") == Mark("docker", versions.KIND_NODE_IMAGE, "fake", ADDRESSES)
    assert status.is_ready and status.remarks == () and kind.is_running()
    said = capsys.readouterr().out
    for line in (
        "… docker pulls kindest/node:v1.36.1: minutes, depending on the network",
        "… kind 0.33.0 of PATH makes the Kubernetes nodes from kindest/node:v1.36.1: about a minute",
        f"… loading {OPERATOR} and {RAY} into {', '.join(NODES)}: a minute or two",
        "$ kubectl apply --server-side --kustomize /modules/ray-operator/config/default",
    ):
        assert f"{line}\n" in said


def test_all_is_seen_to_before_the_cluster_counts_as_made(kind: Kind, api: Api, monkeypatch: pytest.MonkeyPatch):
    def ray_of_image(kube: Api, image: str, timeout_s: float) -> tuple[str, str]:
        assert image == RAY and not kind.is_running()
        assert api.nodes[NODES[2]]["status"]["capacity"] == {"nvidia.com/gpu": "4"}
        return "1.0", "3.11.9"

    monkeypatch.setattr(backend.probe, "ray_of_image", ray_of_image)
    said = refusal(kind.up)
    assert f"Ray is 1.0 in the image {RAY} of the Kubernetes nodes" in said
    assert_nothing_stays(kind, api.here)


def test_images_that_the_kubernetes_nodes_have_are_left_alone(kind: Kind, here: Here):
    here.has(versions.KIND_NODE_IMAGE)
    here.in_nodes(f"docker.io/{RAY}", OPERATOR)
    kind.up()
    assert not here.calls("docker pull") and not here.calls("docker save") and not here.calls("kind load")


def test_only_what_is_lacking_is_loaded_and_only_where(kind: Kind, here: Here):
    here.has(versions.KIND_NODE_IMAGE, RAY)
    here.in_nodes(OPERATOR, nodes=NODES[1:])
    here.in_nodes(OPERATOR, RAY, nodes=NODES[:1])
    kind.up()
    assert not here.calls("docker pull")
    assert here.calls("docker save")[0].endswith(f"images.tar {RAY}")
    assert here.calls("kind load")[0].endswith("--nodes course-worker,course-worker2")


def test_on_arm_ray_has_another_tag_and_gets_the_name_of_the_manifests(kind: Kind, here: Here):
    here.info(Architecture="aarch64")
    kind.up()
    assert here.calls("docker pull")[1:] == [OPERATOR, f"{RAY}-aarch64"]
    assert here.calls("docker tag") == [f"{RAY}-aarch64 {RAY}"]
    assert here.calls("docker save")[0].endswith(f"{OPERATOR} {RAY}")


def test_on_arm_too_an_image_of_the_right_name_will_do(kind: Kind, here: Here):
    here.info(Architecture="aarch64")
    here.has(versions.KIND_NODE_IMAGE, RAY, OPERATOR)
    kind.up()
    assert not here.calls("docker pull") and not here.calls("docker tag")


def test_where_docker_keeps_the_list_of_platforms_one_is_saved(kind: Kind, here: Here):
    here.info(DriverStatus=[["driver-type", "io.containerd.snapshotter.v1"]])
    kind.up()
    assert here.calls("docker save")[0].startswith("--platform linux/amd64 --output ")


def test_podman(kind: Kind, here: Here):
    here.without("docker")
    here.program("podman", ENGINE)
    here.write("info.json", json.dumps(PODMAN_INFO))
    kind.up()
    digest = versions.KIND_NODE_IMAGE.partition("@")[2]
    assert here.calls("podman pull") == [f"docker.io/kindest/node@{digest}", OPERATOR, f"docker.io/{RAY}"]
    assert here.calls("podman save")[0].startswith("--multi-image-archive --output ")
    assert here.calls("podman save")[0].endswith(f"{OPERATOR} docker.io/{RAY}")
    assert (here.folder / "provider").read_text() == "podman\n"
    assert "containers of podman" in str(kind.status())


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("rayproject/ray:1", "docker.io/rayproject/ray:1"),
        ("node:1", "docker.io/node:1"),
        ("quay.io/a/b:1", "quay.io/a/b:1"),
        ("localhost/a:1", "localhost/a:1"),
        ("mirror:5000/a:1@sha256:00", "mirror:5000/a@sha256:00"),
        ("mirror:5000/a@sha256:00", "mirror:5000/a@sha256:00"),
    ],
)
def test_how_podman_is_asked_for_an_image(image, asked):
    assert Engine("podman").reference(image) == asked
    assert Engine("docker").reference(image) == image


def test_a_second_up_makes_nothing(made: Kind, here: Here, api: Api):
    status = made.up()
    assert status.remarks == ("The cluster ran already.",) and status.is_ready
    assert not here.calls("kind create") and not here.calls("kind load") and not here.calls("docker start")
    assert not here.calls("kubectl apply") and len(api.sent) == 1


def test_an_operator_of_another_version_is_replaced(made: Kind, here: Here, api: Api, monkeypatch: pytest.MonkeyPatch):
    api.operator = "quay.io/kuberay/operator:v1.5.1"
    made.up()
    assert here.calls("kubectl apply") == ["--server-side --kustomize /modules/ray-operator/config/default"]


def test_what_is_stopped_is_started_in_the_order_of_addresses(made: Kind, here: Here, monkeypatch: pytest.MonkeyPatch):
    here.write("containers", "".join(f"{name} exited\n" for name in NODES))
    assert not made.is_running()
    assert made.up().remarks == () and made.is_running()
    assert here.calls("docker start") == ["course-worker course-worker2 course-control-plane"]
    assert not here.calls("kind create")


def test_an_api_server_that_does_not_come_back(made: Kind, here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "READY_S", 0.0)
    monkeypatch.setattr(backend, "_answers", lambda kubeconfig, timeout_s: False)
    here.write("containers", "".join(f"{name} exited\n" for name in NODES))
    assert "Waited 0 s for the API server, and it did not happen" in refusal(made.up)


def test_a_started_kubelet_must_have_spoken_since(made: Kind, here: Here, api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "READY_S", 0.0)
    here.write("containers", f"{NODES[0]} running\n{NODES[1]} exited\n{NODES[2]} running\n")
    ready = api.nodes[NODES[1]]["status"]["conditions"][0]
    at = lambda seconds: datetime.fromtimestamp(time.time() + api.ahead_s() + seconds, UTC)  # noqa: E731
    ready["lastHeartbeatTime"] = f"{at(-10):%Y-%m-%dT%H:%M:%SZ}"
    assert "the Kubernetes nodes, and it did not happen: course-worker is not ready" in refusal(made.up)
    here.write("containers", f"{NODES[0]} running\n{NODES[1]} exited\n{NODES[2]} running\n")
    ready["lastHeartbeatTime"] = f"{at(1):%Y-%m-%dT%H:%M:%SZ}"
    made.up()
    assert "running" in here.containers  # a cluster that was made is not removed by what goes wrong later


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda nodes: nodes.pop(NODES[1]), "course-worker has not registered"),
        (lambda nodes: nodes[NODES[0]]["status"].update(conditions=[]), "course-control-plane is not ready"),
    ],
)
def test_a_kubernetes_node_that_does_not_come(kind: Kind, api: Api, monkeypatch: pytest.MonkeyPatch, change, said):
    monkeypatch.setattr(backend, "READY_S", 0.0)
    change(api.nodes)
    assert said in refusal(kind.up)
    assert_nothing_stays(kind, api.here)


def test_a_container_that_was_removed_by_hand(made: Kind, here: Here):
    here.write("containers", f"{NODES[0]} running\n{NODES[2]} running\n")
    assert refusal(made.up) == (
        "Of the kind cluster's Kubernetes nodes, course-worker was removed. "
        "Run `course down --wipe` and then `course up`, which makes the cluster anew."
    )
    assert not made.is_running()


def test_a_cluster_that_was_deleted_by_hand_is_made_anew(made: Kind, here: Here):
    here.write("containers", "")
    assert made.up().remarks == ()
    assert len(here.calls("kind create")) == 1


def test_a_cluster_of_that_name_that_is_not_ours_is_left_alone(kind: Kind, here: Here):
    here.write("containers", "course-control-plane running\n")
    assert refusal(kind.up) == (
        "There is a kind cluster named course that this course has not made: course-control-plane. "
        "If you do not need it, run `kind delete cluster --name course`; then `course up` again."
    )
    assert kind.down(wipe=True).startswith("The kind cluster was down already.")
    assert here.containers == "course-control-plane running\n"


def test_what_an_interrupted_up_has_left_is_removed(kind: Kind, here: Here, capsys: pytest.CaptureFixture):
    kind.kubeconfig.parent.mkdir(parents=True)
    Mark("docker", "an image", "fake").write(kind.kubeconfig.parent / "cluster.json")
    here.write("containers", "course-control-plane running\n")
    assert not kind.is_running() and not kind.status().rows
    kind.up()
    assert here.calls("kind delete") == [f"cluster --name course --kubeconfig {kind.kubeconfig}"]
    assert "… removing what an interrupted `course up` has left\n" in capsys.readouterr().out
    assert kind.is_running()


def test_an_interrupt_removes_what_was_begun(kind: Kind, here: Here, api: Api, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backend.probe, "ray_of_image", interrupt)
    with pytest.raises(KeyboardInterrupt):
        kind.up()
    assert_nothing_stays(kind, here)


def test_what_cannot_be_removed_now_is_found_by_the_next_up(kind: Kind, here: Here):
    here.write("fail-kind-create", "ERROR: failed to create cluster: no room\nCommand Output: much\nmore\n")
    here.write("fail-kind-delete", "ERROR: no\n")
    said = refusal(kind.up)
    log = engine.log_file()
    assert said == f"kind cannot make the cluster: failed to create cluster: no room. All that it said is in {log}."
    assert "Command Output: much" in log.read_text()
    here.write("fail-kind-create", "")
    here.write("containers", "course-control-plane running\n")
    assert "kind cannot remove the cluster: no. Run `course down --wipe`" in refusal(kind.up)
    here.write("fail-kind-delete", "")
    kind.up()
    assert kind.is_running()


def test_no_engine_answers(kind: Kind, here: Here):
    here.without("docker")
    assert refusal(kind.up) == (
        "No container engine answers, and the Kubernetes nodes of kind are containers. "
        "Start Docker or podman, so that `docker info` or `podman info` answers; then try again."
    )


def test_the_engine_of_a_cluster_does_not_answer_any_more(made: Kind, here: Here):
    here.write("fail-docker-ps", "Cannot connect to the Docker daemon. Is the docker daemon running?\n")
    for call in (made.up, made.status, lambda: made.down(wipe=False)):
        assert refusal(call) == (
            "docker does not answer `docker ps`: Cannot connect to the Docker daemon. Is the docker daemon running. "
            "Start it, so that `docker info` answers; then try again."
        )
    assert not made.is_running()


# ---- the image of the Kubernetes nodes -------------------------------------------------------------------------------


def test_an_image_that_the_user_names(kind: Kind, here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(images.GIVEN, "mirror.example/node:v1")
    here.has("mirror.example/node:v1")
    kind.up()
    assert "--image mirror.example/node:v1 " in here.calls("kind create")[0]
    assert not [line for line in here.calls("docker pull") if "node" in line]


def test_an_archive_that_the_user_names(kind: Kind, here: Here, monkeypatch: pytest.MonkeyPatch):
    archive = here.write("node.tar", "")
    monkeypatch.setenv(images.GIVEN, str(archive))
    here.write("loaded", "Loaded image: our/node:v1\nLoaded image: our/other:v1\n")
    kind.up()
    assert here.calls("docker load") == [f"--input {archive}"]
    assert "--image our/node:v1 " in here.calls("kind create")[0]
    assert kind.up().remarks == ("The cluster ran already.",)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Loaded image ID: sha256:0a\n", "sha256:0a"),
        ("Loaded image(s): localhost/a:1,localhost/b:1\n", "localhost/a:1"),
        ("Getting image source\nLoaded images: a:1\n", "a:1"),
    ],
)
def test_what_engines_say_of_an_archive(here: Here, said, name):
    here.write("loaded", said)
    assert Engine("docker").load(here.folder / "x.tar") == name


def test_an_archive_without_an_image(here: Here):
    assert refusal(lambda: Engine("docker").load(Path("x.tar"))) == (
        "There is no image in x.tar. Give a file that `docker save --output FILE IMAGE` wrote."
    )
    here.write("fail-docker-load", "Error: open x.tar: unexpected EOF\n")
    assert "docker cannot load x.tar: open x.tar: unexpected EOF. Give" in refusal(
        lambda: Engine("docker").load(Path("x.tar"))
    )


def test_an_archive_that_is_not_there(kind: Kind, here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(images.GIVEN, "/nowhere/node.tar.gz")
    assert refusal(kind.up) == (
        "There is no archive /nowhere/node.tar.gz with an image of the Kubernetes nodes. "
        "Name a file that `docker save --output FILE IMAGE` wrote, or an image."
    )
    assert not here.calls("kind create")


def test_another_image_than_that_of_the_running_cluster_is_remarked(made: Kind, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(images.GIVEN, "other/node:v1")
    assert made.up().remarks[1] == (
        f"It was made from {versions.KIND_NODE_IMAGE}, and stays so: `course down --wipe` first makes room for "
        "other/node:v1."
    )
    monkeypatch.setenv(images.GIVEN, versions.KIND_NODE_IMAGE)
    assert made.up().remarks == ("The cluster ran already.",)


# ---- images that cannot be had ---------------------------------------------------------------------------------------

NAME = "the name of its registry cannot be resolved"
REACH = "its registry cannot be reached"
TRUST = "its registry has no certificate that is trusted on this machine"
REFUSES = "its registry refuses it to this user"
NONE = "its registry has no such image for this machine"
MANY = "its registry has had too many pulls from this address"
DAEMON = "Error response from daemon: "


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (f'{DAEMON}Get "https://r.example/v2/": dial tcp: lookup r.example on 10.0.0.2:53: no such host', NAME),
        (f'{DAEMON}Get "https://r.example/v2/": dial tcp: lookup r.example: server misbehaving', NAME),
        ("Error: initializing source: dial tcp: lookup r.example: Temporary failure in name resolution", NAME),
        (f'{DAEMON}Get "https://r.example/v2/": dial tcp 192.0.2.7:443: connect: connection refused', REACH),
        (f'{DAEMON}Get "https://r.example/v2/": dial tcp 192.0.2.7:443: connect: network is unreachable', REACH),
        (f'{DAEMON}Get "https://r.example/v2/": dial tcp: lookup r.example on 10.0.0.2:53: i/o timeout', REACH),
        (f"{DAEMON}net/http: request canceled while waiting for connection (Client.Timeout exceeded)", REACH),
        (f'{DAEMON}Get "https://r.example/v2/": net/http: TLS handshake timeout', REACH),
        (f"{DAEMON}Get: proxyconnect tcp: dial tcp 127.0.0.1:3128: connect: connection refused", REACH),
        ("docker has not ended within 3600 s", REACH),
        (f"{DAEMON}pull access denied for a/b, repository does not exist or may require 'docker login'", REFUSES),
        ("Error: reading manifest v1 in quay.io/a/b: unauthorized: access to the resource is not authorized", REFUSES),
        (f"{DAEMON}Head: received unexpected HTTP status: 403 Forbidden", REFUSES),
        ("Error: pinging container registry r.example: Access Denied by policy", REFUSES),
        (f"{DAEMON}manifest for a/b:1 not found: manifest unknown: manifest unknown", NONE),
        (f"{DAEMON}failed to resolve reference: unexpected status from HEAD request: 404 Not Found", NONE),
        (f"{DAEMON}no matching manifest for linux/arm64/v8 in the manifest list entries", NONE),
        (f"{DAEMON}toomanyrequests: You have reached your unauthenticated pull rate limit.", MANY),
        ("Error: initializing source: pinging registry: received unexpected HTTP status: 429 Too Many Requests", MANY),
        (f'{DAEMON}Get "https://r.example/v2/": tls: failed to verify certificate: x509: unknown authority', TRUST),
        (f'{DAEMON}Get "https://r.example/v2/": http: server gave HTTP response to HTTPS client', TRUST),
        (f"{DAEMON}write /var/lib/x: no space left on device", "the disk is full"),
        (f"{DAEMON}something new.", f"{DAEMON}something new"),
        ("", "it does not say why"),
    ],
)  # fmt: skip
def test_why_an_image_cannot_be_pulled(said, means):
    assert cause(Done(1, "1: Pulling from a/b", said) if said else Done(1, "", "")) == means


def test_an_image_of_kubernetes_nodes_that_cannot_be_pulled(kind: Kind, here: Here):
    here.write("fail-docker-pull", f"{DAEMON}Get: dial tcp: lookup r.example: no such host\n")
    assert refusal(kind.up) == (
        f"The image kindest/node:v1.36.1 cannot be pulled: {NAME}. "
        "Name one that this machine can have by `course up --image`: from a mirror, an archive that `docker save` "
        "wrote, or one that docker has already."
    )
    assert not here.calls("kind create") and not here.calls("kind delete")
    assert_nothing_stays(kind, here)


def test_an_image_of_ray_that_cannot_be_pulled(kind: Kind, here: Here, capsys: pytest.CaptureFixture):
    here.has(versions.KIND_NODE_IMAGE, OPERATOR)
    here.write("fail-docker-pull", f"{DAEMON}manifest unknown\n")
    assert refusal(kind.up) == (
        f"The image {RAY} cannot be pulled: {NONE}. "
        "Three ways out: pull it from a mirror and give it that name (`docker pull`, `docker tag`); load it from an "
        "archive (`docker load --input FILE`); or have it in an image of the Kubernetes nodes of your own "
        "(`course up --image`)."
    )
    assert_nothing_stays(kind, here)
    assert "… removing what was begun\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("fail-docker-save", "docker cannot save the images .*: full. Free some disk space"),
        ("fail-kind-load", "kind cannot load images into the Kubernetes nodes: full. Free .*`docker system df`"),
        ("fail-docker-exec", "The Kubernetes node course-control-plane does not say which images it has: full. Run"),
        ("fail-kubectl-apply", "KubeRay cannot be installed: full. See that the cluster answers"),
    ],
)
def test_a_step_that_fails(kind: Kind, here: Here, file, said):
    here.write(file, "error: full\n")
    assert re.search(said, refusal(kind.up))
    assert_nothing_stays(kind, here)


# ---- what is looked at before ----------------------------------------------------------------------------------------


@pytest.fixture
def roomy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Info:
    """An engine on this machine, with room for a cluster."""
    monkeypatch.setattr(machine, "SETTINGS", tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: SimpleNamespace(free=machine.DISK_BYTES))
    limits(tmp_path, 512, 524288)
    return Info(platform.node(), "amd64", machine.MEMORY_BYTES, Path("/data"))


def limits(folder: Path, instances: int, watches: int) -> None:
    place = folder / "fs" / "inotify"
    place.mkdir(parents=True, exist_ok=True)
    (place / "max_user_instances").write_text(f"{instances}\n")
    (place / "max_user_watches").write_text(f"{watches}\n")


def test_a_machine_with_just_enough(roomy: Info):
    machine.check("docker", roomy)


def test_too_little_memory(roomy: Info):
    small = replace(roomy, memory_bytes=machine.MEMORY_BYTES - 1, host="a virtual machine")
    assert refusal(lambda: machine.check("docker", small)) == (
        "docker has 5.5 GiB of memory, and a kind cluster with a lesson needs 6. Give Docker Desktop 6 GiB or more "
        "(Settings, Resources) or the machine of podman (`podman machine set --memory 6144`), or use a larger machine."
    )


@pytest.mark.parametrize(
    ("instances", "watches", "told", "settings"),
    [
        (511, 524288, "fs.inotify.max_user_instances is 511 and has to be 512", "fs.inotify.max_user_instances=512"),
        (
            512, 524287,
            "fs.inotify.max_user_watches is 524287 and has to be 524288", "fs.inotify.max_user_watches=524288",
        ),
        (
            128, 8192,
            "fs.inotify.max_user_instances is 128 and has to be 512, fs.inotify.max_user_watches is 8192 and has to be "
            "524288",
            "fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=524288",
        ),
    ],
)  # fmt: skip
def test_inotify_limits_that_are_too_low(roomy: Info, tmp_path: Path, instances, watches, told, settings):
    limits(tmp_path, instances, watches)
    assert refusal(lambda: machine.check("docker", roomy)) == (
        f"The Kubernetes nodes of kind could not watch all their files here: {told}. "
        f"Run `sudo sysctl -w {settings}`; in a file below /etc/sysctl.d/ the same lines outlive a restart."
    )
    machine.check("docker", replace(roomy, host="a virtual machine"))


def test_too_little_disk(roomy: Info, monkeypatch: pytest.MonkeyPatch):
    asked = []
    usage = lambda place: asked.append(place) or SimpleNamespace(free=machine.DISK_BYTES - 1)  # noqa: E731
    monkeypatch.setattr(machine.shutil, "disk_usage", usage)
    assert refusal(lambda: machine.check("podman", roomy)) == (
        "12.0 GiB are free at /data, where podman keeps images and containers, and a kind cluster with the image of "
        "Ray takes 12. Free some space there; `podman system df` shows what of it podman uses."
    )
    assert asked == [Path("/data")]
    machine.check("docker", replace(roomy, host="another"))


def test_a_disk_that_this_user_may_not_see(roomy: Info, monkeypatch: pytest.MonkeyPatch):
    def refuse(place: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(machine.shutil, "disk_usage", refuse)
    machine.check("docker", roomy)


def test_a_machine_without_room_is_refused_before_anything_is_made(kind: Kind, here: Here):
    here.info(MemTotal=2 * GIB)
    assert "docker has 2.0 GiB of memory" in refusal(kind.up)
    assert not here.calls("kind") and not here.calls("docker pull")


def test_what_engines_say_of_themselves(here: Here, monkeypatch: pytest.MonkeyPatch):
    here.info(DefaultRuntime="nvidia", DockerRootDir="/data", Architecture="aarch64", DriverStatus=None)
    assert Engine("docker").info() == Info(platform.node(), "arm64", 16 * GIB, Path("/data"), "nvidia")
    assert Engine("docker").info().is_here
    here.program("podman", ENGINE)
    here.write("info.json", json.dumps(PODMAN_INFO))
    assert Engine("podman").info() == Info(platform.node(), "amd64", 16 * GIB, Path("/"))
    monkeypatch.setattr(engine.sys, "platform", "darwin")
    assert not Engine("podman").info().is_here


# ---- KubeRay ---------------------------------------------------------------------------------------------------------

HELM = (
    "upgrade --install kuberay-operator kuberay-operator --repo https://ray-project.github.io/kuberay-helm/ "
    f"--version {versions.KUBERAY} --namespace default"
)


def test_kuberay_by_helm(kind: Kind, here: Here, capsys: pytest.CaptureFixture):
    here.program("helm", INSTALLS)
    kind.up()
    assert here.calls("helm") == [HELM] and not here.calls("kubectl apply")
    assert (here.folder / "installed").read_text() == f"{kind.kubeconfig}\n"
    assert f"$ helm {HELM}\n" in capsys.readouterr().out


def test_kuberay_not_by_helm_if_that_is_asked(kind: Kind, here: Here, monkeypatch: pytest.MonkeyPatch):
    here.program("helm", INSTALLS)
    monkeypatch.setenv(kuberay.WISH, "manifests")
    kind.up()
    assert not here.calls("helm") and len(here.calls("kubectl apply")) == 1


@pytest.mark.parametrize(
    "said",
    [
        'Error: looks like "https://x" is not a valid chart repository or cannot be reached: Get: no such host',
        "Error: failed to fetch https://x/index.yaml : 403 Forbidden",
        'Error: failed to download "kuberay-operator"',
        'Error: chart "kuberay-operator" matching 1.6.2 not found in https://x repository',
    ],
)
def test_a_chart_that_cannot_be_had(kind: Kind, here: Here, capsys: pytest.CaptureFixture, said):
    here.program("helm", INSTALLS)
    here.write("fail-helm-upgrade", said)
    kind.up()
    assert len(here.calls("kubectl apply")) == 1
    told = "… KubeRay's chart cannot be had from here: its own manifests are taken instead\n"
    assert told in capsys.readouterr().out


def test_helm_fails(kind: Kind, here: Here):
    here.program("helm", INSTALLS)
    here.write("fail-helm-upgrade", "WARNING: x\nError: Kubernetes cluster unreachable: timeout\n")
    assert refusal(kind.up) == (
        "KubeRay cannot be installed: Kubernetes cluster unreachable: timeout. "
        "Run `COURSE_OPERATOR=manifests course up`, which does without Helm."
    )
    assert not here.calls("kubectl apply")
    assert_nothing_stays(kind, here)


def test_the_module_comes_with_the_checksum_that_go_sum_has(kind: Kind, here: Here):
    kind.up()
    folder = course_root() / "tools" / "kuberay"
    module = "github.com/ray-project/kuberay/ray-operator"
    assert here.calls("go -C") == [f"{folder} mod download -json {module}"]
    assert f"{module} v{versions.KUBERAY} h1:" in (folder / "go.sum").read_text()


def test_a_module_that_cannot_be_fetched(kind: Kind, here: Here):
    here.write("module", json.dumps({"Path": "x", "Error": "Get:\n\tdial tcp: no such host"}))
    said = "KubeRay's manifests cannot be fetched: Get: dial tcp: no such host. Install Helm, so that"
    assert refusal(kind.up).startswith(said)
    here.write("module", "")
    here.write("fail-go--C", "go: no such tool\n")
    assert "cannot be fetched: go: no such tool. Install Helm" in refusal(kind.up)


def test_no_helm_and_no_go(kind: Kind, here: Here, monkeypatch: pytest.MonkeyPatch):
    def none() -> None:
        raise CourseError("Building needs Go.", "Install it.")

    monkeypatch.setattr(kuberay.golang, "find", none)
    assert refusal(kind.up) == (
        "KubeRay's manifests cannot be fetched: Building needs Go. "
        "Install Helm, so that `helm version` answers; or Go, with a network; then try again."
    )
    assert_nothing_stays(kind, here)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (None, "its Deployment is not there"),
        (deployment(OPERATOR, observed=1), "its Deployment has just been changed"),
        (deployment(OPERATOR, available="False"), "Deployment does not have minimum availability"),
        (deployment(OPERATOR) | {"status": {"observedGeneration": 2}}, "its Pod is not ready"),
    ],
)
def test_an_operator_that_does_not_come(made: Kind, api: Api, monkeypatch: pytest.MonkeyPatch, thing, said):
    monkeypatch.setattr(kuberay, "READY_S", 0.0)
    monkeypatch.setattr(api, "get", lambda *_: thing)
    told = refusal(made.up)
    assert f"for KubeRay's operator, and it did not happen: {said}. Run `course logs kuberay-operator`" in told


@pytest.mark.parametrize(
    ("image", "version"),
    [
        (OPERATOR, versions.KUBERAY),
        ("mirror:5000/operator:1.5.1", "1.5.1"),
        ("operator@sha256:0", ""),
        ("operator:dev", ""),
    ],
)
def test_the_version_of_an_operator(made: Kind, api: Api, image, version):
    api.operator = image
    assert made.facts().versions == {"Kubernetes": "1.36.1", "KubeRay": version}


# ---- GPUs ------------------------------------------------------------------------------------------------------------

SMI = "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'"


def test_fake_gpus_come_back(made: Kind, api: Api):
    assert made.begin_lesson() == []
    api.nodes[NODES[2]]["status"]["capacity"]["nvidia.com/gpu"] = "0"
    api.sent.clear()
    assert made.begin_lesson() == [
        "The fake GPUs of course-worker2 were lost, as they are when its kubelet starts anew; they are there again."
    ]
    four = {"nvidia.com/gpu": "4"}
    ((method, path, body, more),) = api.sent
    assert (method, path) == ("PATCH", "/api/v1/nodes/course-worker2/status")
    assert body == {"status": {"capacity": four, "allocatable": four}} and more["content_type"] == MERGE
    del api.nodes[NODES[2]]["status"]["allocatable"]["nvidia.com/gpu"]
    assert len(made.begin_lesson()) == 1 and made.begin_lesson() == []


def test_no_kubernetes_node_for_fake_gpus(made: Kind, api: Api):
    del api.nodes[NODES[2]]
    assert refusal(made.begin_lesson) == (
        "No Kubernetes node has the label ray-course/gpus=fake, by which the one with the fake GPUs is known. "
        "Run `course down --wipe` and then `course up`, which makes the cluster anew."
    )


@pytest.mark.parametrize(
    ("smi", "runtime", "name", "which", "remark"),
    [
        ("", "nvidia", "docker", "fake", ""),
        (SMI, "nvidia", "docker", "real", ""),
        ("echo 'No devices were found'", "nvidia", "docker", "fake", ""),
        ("echo 'GPU 0: x'; exit 9", "nvidia", "docker", "fake", ""),
        (SMI, "runc", "docker", "fake", "docker does not hand them on, .* `sudo nvidia-ctk .* restart docker`, and"),
        (SMI, "crun", "podman", "fake", "This machine has GPUs, .* by docker only, not by podman."),
    ],
)  # fmt: skip
def test_which_gpus_a_cluster_gets(here: Here, kind: Kind, smi, runtime, name, which, remark):
    if smi:
        here.program("nvidia-smi", smi)
    if name == "podman":
        here.without("docker")
        here.program("podman", ENGINE)
        here.write("info.json", json.dumps(PODMAN_INFO))
    else:
        here.info(DefaultRuntime=runtime)
    asked = Engine(name)
    told = gpus.choose(asked, asked.info())
    assert told[0] == which and re.fullmatch(f".*{remark}.*" if remark else "", told[1])
    assert kind.capabilities() == {"kubernetes", "autoscaler", "node_drain", f"{which}_gpu"}


def test_a_remark_on_gpus_is_seen(kind: Kind, here: Here):
    here.program("nvidia-smi", SMI)
    assert "This machine has GPUs, and docker does not hand them on" in kind.up().remarks[0]
    here.info(DefaultRuntime="nvidia")
    assert "fake_gpu" in kind.capabilities()  # as it was made


def test_real_gpus(kind: Kind, here: Here, api: Api):
    here.program("nvidia-smi", SMI)
    here.info(DefaultRuntime="nvidia")
    api.nodes[NODES[2]]["metadata"]["labels"] = {GPU_LABEL: "real"}
    api.nodes[NODES[2]]["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    status = kind.up()
    assert f"--config {FOLDER}/cluster-gpu.yaml" in here.calls("kind create")[0]
    assert here.calls("docker exec course-worker2 bash -c")
    assert here.calls("kubectl apply") == [
        "--server-side --kustomize /modules/ray-operator/config/default",
        f"--server-side --filename {FOLDER}/nvidia-device-plugin.yaml",
    ]
    assert status.rows[2].gpus == "8" and not api.sent  # no fake ones
    assert "real_gpu" in kind.capabilities() and kind.begin_lesson() == []


def test_real_gpus_that_do_not_show(kind: Kind, here: Here, api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpus, "SHOWN_S", 0.0)
    here.program("nvidia-smi", SMI)
    here.info(DefaultRuntime="nvidia")
    api.nodes[NODES[2]]["metadata"]["labels"] = {GPU_LABEL: "real"}
    assert "for the GPUs to show, and it did not happen" in refusal(kind.up)
    assert_nothing_stays(kind, here)


# ---- what it is ------------------------------------------------------------------------------------------------------


def test_facts(made: Kind):
    facts = made.facts()
    assert facts.versions == {"Kubernetes": "1.36.1", "KubeRay": versions.KUBERAY}
    assert not facts.host_is_image and facts.settle_s == 300 and facts.ahead_s == 3.0
    assert made.name == "kind" and made.prepare() == ""
    assert made.kubeconfig == Path(os.environ["XDG_STATE_HOME"]) / "ray-course" / "kind" / "kubeconfig"


def test_whether_it_runs(made: Kind, here: Here, monkeypatch: pytest.MonkeyPatch):
    assert made.is_running()
    here.write("containers", f"{NODES[0]} running\n{NODES[1]} exited\n{NODES[2]} running\n")
    assert not made.is_running()
    here.write("containers", "".join(f"{name} running\n" for name in NODES))
    monkeypatch.setattr(backend, "_answers", lambda kubeconfig, timeout_s: False)
    assert not made.is_running()
    monkeypatch.undo()


def test_an_engine_that_hangs_is_not_waited_for(made: Kind, here: Here):
    here.program("docker", "sleep 30")
    begun = time.monotonic()
    assert not made.is_running()
    assert time.monotonic() - begun < 5  # far below 30, with room for a busy machine


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"engine": "docker"}', '{"other": 1}'])
def test_a_mark_that_says_nothing(kind: Kind, text):
    kind.kubeconfig.parent.mkdir(parents=True)
    (kind.kubeconfig.parent / "cluster.json").write_text(text)
    assert not kind.is_running()
    assert str(kind.status()) == "The kind cluster is down. `course up` starts it."


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """An API server that answers `status` at /readyz, and the kubeconfig by which it is reached."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - timedelta(1), now + timedelta(1)
        )
        .add_extension(loopback, critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "pem").write_bytes(key.private_bytes(*plain) + pem)
    told = SimpleNamespace(status=200, asked=[], kubeconfig=tmp_path / "kubeconfig")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append(self.path)
            self.send_response(told.status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, args=[0.01], daemon=True).start()
        cluster = {
            "server": f"https://127.0.0.1:{http.server_port}",
            "certificate-authority-data": base64.b64encode(pem).decode(),
        }
        told.kubeconfig.write_text(yaml.safe_dump({"clusters": [{"cluster": cluster}]}))
        yield told
        http.shutdown()


def test_an_api_server_that_is_ready(server: SimpleNamespace):
    assert backend._answers(server.kubeconfig, 5) and server.asked == ["/readyz"]
    server.status = 500
    assert not backend._answers(server.kubeconfig, 5)


def test_no_api_server(server: SimpleNamespace, tmp_path: Path):
    text = server.kubeconfig.read_text()
    for wrong in (
        "",
        "- a: b: c",
        re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", text),
        re.sub("data: .*", "data: AAAA", text),
    ):
        server.kubeconfig.write_text(wrong)
        assert not backend._answers(server.kubeconfig, 5)
    assert not backend._answers(tmp_path / "none", 5)
    assert server.asked == []


# ---- the status ------------------------------------------------------------------------------------------------------


def test_the_table_as_text(made: Kind, here: Here, api: Api):
    here.write("containers", f"{NODES[0]} running\n{NODES[1]} exited\n{NODES[2]} running\n")
    api.nodes[NODES[2]]["spec"]["unschedulable"] = True
    lines = str(made.status()).splitlines()
    assert lines[0] == "The kind cluster is up: 3 Kubernetes nodes, containers of docker."
    cells = [re.split(r"  +", line) for line in lines[1:5]]
    assert cells == [
        ["Kubernetes node", "role", "state", "version", "CPUs", "memory", "GPUs"],
        ["course-control-plane", "control plane", "✔ ready", "1.36.1", "8", "16.0 GiB", "–"],
        ["course-worker", "–", "✘ stopped", "–", "–", "–", "–"],
        ["course-worker2", "worker", "✔ ready, takes no new Pods", "1.36.1", "8", "16.0 GiB", "4 fake"],
    ]
    assert lines[5] == f"KUBECONFIG={made.kubeconfig}"
    assert lines[6].startswith("Each Kubernetes node shows all CPUs and all memory of the one machine")
    assert not made.status().is_ready


def test_the_status_while_nobody_answers(made: Kind, api: Api, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise CourseError("No answer.", "Wait.")

    monkeypatch.setattr(api, "list", refuse)
    assert {one.state for one in made.status().rows} == {"no answer"}


@pytest.mark.parametrize(
    ("container", "shown"), [("exited", "stopped"), ("created", "created"), ("paused", "paused"), ("running", "ready")]
)
def test_the_state_of_a_container_comes_first(container, shown):
    assert row(NODES[0], container, node(NODES[0])).state == shown


def test_a_kubernetes_node_that_is_not_ready():
    assert row(NODES[0], "running", node(NODES[0], status=node(NODES[0])["status"] | {"conditions": []})).cells()[
        2
    ] == ("✘ not ready")


def test_the_table_elsewhere(made: Kind):
    from rich.console import Console

    status = replace(made.status(), remarks=("The cluster <ran>.",))
    assert "<td>4 fake</td>" in status._repr_html_() and "<p>The cluster &lt;ran&gt;.</p>" in status._repr_html_()
    console = Console(width=200)
    with console.capture() as shown:
        console.print(replace(status, kubeconfig=Path("/a/[bold]")))
    assert "✔ ready" in shown.get() and "/a/[bold]" in shown.get()
    down = Status((), Path("/nowhere"))
    assert down._repr_html_() == "<p>The kind cluster is down. `course up` starts it.</p>" and not down.is_ready


# ---- logs and the end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("component", "follow", "call"),
    [
        (
            "course-worker.kubelet", False,
            "docker exec course-worker journalctl --unit=kubelet --no-pager --output=cat",
        ),
        (
            "course-control-plane.containerd", True,
            "docker exec course-control-plane journalctl --unit=containerd --no-pager --output=cat --follow",
        ),
        ("etcd", False, "kubectl logs --namespace=kube-system --selector=component=etcd --prefix --tail=-1"),
        (
            "coredns", True,
            "kubectl logs --namespace=kube-system --selector=k8s-app=kube-dns --prefix --tail=-1 --follow",
        ),
        ("kuberay-operator", False, "kubectl logs --namespace=default deployment/kuberay-operator --tail=-1"),
    ],
)  # fmt: skip
def test_logs(made: Kind, here: Here, component, follow, call):
    here.program("kubectl", 'echo "$KUBECONFIG"; echo two')
    lines = list(made.logs(component, follow))
    assert here.calls(call) == [""]
    if call.startswith("kubectl"):
        assert lines == [str(made.kubeconfig), "two"]


def test_a_log_that_is_not_there(made: Kind):
    units = ", ".join(f"{name}.{unit}" for name in NODES for unit in ("kubelet", "containerd"))
    assert refusal(lambda: made.logs("karpenter", False)) == (
        "There is no log of karpenter. There are logs of: etcd, kube-apiserver, kube-controller-manager, "
        f"kube-scheduler, coredns, kube-proxy, kuberay-operator, {units}."
    )


def test_a_log_that_cannot_be_read(made: Kind, here: Here):
    here.write("fail-kubectl-logs", "error: no Pods\n")
    assert refusal(lambda: list(made.logs("etcd", False))) == (
        "The log of etcd cannot be read: error: no Pods. See by `course status` whether it is there, and runs."
    )


def test_logs_of_nothing(kind: Kind):
    assert refusal(lambda: kind.logs("etcd", False)) == "There is no log of etcd. Run `course up` first."


def test_a_log_that_is_followed_ends_with_its_reader(made: Kind, here: Here):
    here.program("kubectl", 'echo "$$" >pid; echo one; exec sleep 60')
    lines = made.logs("etcd", True)
    assert next(lines) == "one"
    lines.close()
    assert ended(int((here.folder / "pid").read_text()))


def test_down_stops_and_wipe_removes(made: Kind, here: Here):
    assert made.down(wipe=False) == "✔ The kind cluster is down."
    assert here.calls("docker stop") == [f"-t 30 {' '.join(NODES)}"] and not here.calls("kind delete")
    assert made.down(wipe=False) == "The kind cluster was down already."
    assert str(made.status()) == "The kind cluster is down. `course up` starts it."
    made.up()
    assert made.down(wipe=True) == "✔ The kind cluster is down.\n✔ All that it kept is removed."
    assert here.calls("kind delete") == [f"cluster --name course --kubeconfig {made.kubeconfig}"]
    assert_nothing_stays(made, here)
    assert made.down(wipe=True) == "The kind cluster was down already.\n✔ All that it kept is removed."


def test_down_removes_what_was_not_made_to_the_end(kind: Kind, here: Here):
    kind.kubeconfig.parent.mkdir(parents=True)
    Mark("docker", "an image", "fake").write(kind.kubeconfig.parent / "cluster.json")
    here.write("containers", "course-control-plane running\n")
    assert kind.down(wipe=False) == "✔ The kind cluster is down."
    assert_nothing_stays(kind, here)


def test_two_ups_at_once_are_one_after_the_other(kind: Kind, api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "OTHER_S", 0.0)
    with kind._alone():
        assert "for another `course up` or `course down` to end" in refusal(kind.up)


# ---- programs --------------------------------------------------------------------------------------------------------


def test_kubectl_is_the_courses_own_else_that_on_path(here: Here, monkeypatch: pytest.MonkeyPatch):
    assert programs.kubectl() == here.folder / "bin" / "kubectl"
    monkeypatch.setattr(programs, "binary", lambda name: Path("/built") / name)
    assert programs.kubectl() == Path("/built/kubectl")


def test_no_kubectl(kind: Kind, here: Here):
    here.without("kubectl")
    assert refusal(kind.kubectl) == (
        "There is no kubectl on PATH, and the course's own is not built. "
        "Install kubectl, or run `course tools build` on Linux."
    )
    assert "There is no kubectl" in refusal(kind.up)
    assert not here.calls("docker pull")


@pytest.mark.parametrize(
    ("version", "is_taken"), [("0.32.0", True), ("0.100.0", True), ("0.31.9", False), ("x", False)]
)
def test_which_kind_on_path_is_taken(here: Here, monkeypatch: pytest.MonkeyPatch, version, is_taken):
    built = []
    monkeypatch.setattr(programs.build, "build_one", built.append)
    monkeypatch.setattr(programs, "binary", lambda name: Path("/built") / name)
    here.write("kind-version", version)
    found = programs.kind()
    if is_taken:
        assert found == programs.Found(here.folder / "bin" / "kind", f"kind {version} of PATH") and not built
    else:
        assert found == programs.Found(Path("/built/kind"), "kind 0.33.0, which the course has built")
        assert built == ["kind"]


def test_kind_is_built_once(here: Here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    built = []
    monkeypatch.setattr(programs.build, "build_one", built.append)
    monkeypatch.setattr(programs, "binary", lambda name: Path("/built") / name)
    here.without("kind")
    programs.kind()
    assert built == ["kind"] and capsys.readouterr().out == "… building kind 0.33.0 from its Go module, once\n"
    monkeypatch.setattr(programs.store, "look", lambda family, program: Path("/built/kind"))
    programs.kind()
    assert built == ["kind"]


@pytest.mark.parametrize(
    ("version", "what"),
    [("", "Kind is not on PATH"), ("0.20.0", "Kind 0.20.0 is on PATH"), ("x", "Kind of unknown version is on PATH")],
)
def test_where_kind_cannot_be_built(here: Here, monkeypatch: pytest.MonkeyPatch, version, what):
    monkeypatch.setattr(programs.sys, "platform", "darwin")
    here.write("kind-version", version)
    if not version:
        here.without("kind")
    assert refusal(programs.kind) == (
        f"{what}, and the course needs 0.32.0 or newer. "
        "Install it (macOS: `brew install kind`), and run the same command again."
    )


def test_kind_is_built_when_it_is_asked_for_only():
    family, program = table.find("kind")
    assert family not in table.families() and family not in table.families(tests=True)
    assert (program.ask, program.says) == (("version",), "kind v")


# ---- running programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "out", "why"),
    [
        ("warning\nError: no room.\nmore", "", "no room"),
        ("ERROR: failed\n\nCommand Output: x", "", "failed"),
        ("error: a\nerror: b", "", "a"),
        ("one\ntwo\n\n", "", "two"),
        ("", "only here\n", "only here"),
        ("", "", "it does not say why"),
    ],
)
def test_why_a_program_failed(said, out, why):
    assert Done(1, out, said).why == why


def test_a_program_that_is_not_there_or_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert engine.run(["no-such-program"], 5).why == "no-such-program cannot be run (No such file or directory)"
    assert engine.run(["sleep", "60"], 0.1).why == "sleep has not ended within 0.1 s"
    assert engine.run(["sh", "-c", "echo $A; exit 3"], 5, A="b") == Done(3, "b\n", "")
    assert "$ sh -c 'echo $A; exit 3'\nb\n" in engine.log_file().read_text()


def test_an_interrupt_ends_the_program_and_all_that_it_started(tmp_path: Path):
    """As Ctrl-C does: kind's own `docker run` must not go on when kind is gone."""
    pid = tmp_path / "pid"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def press() -> None:
        while not pid.exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    old = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Thread(target=press, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            engine.run(["sh", "-c", f"sleep 60 & echo $! >{pid}.part; mv {pid}.part {pid}; wait"], 60)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert ended(int(pid.read_text()))


def ended(pid: int) -> bool:
    """Whether a process ends within ten seconds; whoever inherited it may not have asked for its status yet."""
    for _ in range(1000):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


# ---- the files in manifests/kind -------------------------------------------------------------------------------------


def config(name: str) -> dict:
    return yaml.safe_load((FOLDER / name).read_text())


def registration(part: dict) -> tuple[str, list]:
    """For which of kubeadm's files the patch is, and the taints in it."""
    (patch,) = map(yaml.safe_load, part["kubeadmConfigPatches"])
    return patch["kind"], patch["nodeRegistration"]["taints"]


@pytest.mark.parametrize(("name", "which"), [("cluster.yaml", "fake"), ("cluster-gpu.yaml", "real")])
def test_the_cluster_is_as_the_backend_takes_it_to_be(name, which):
    told = config(name)
    assert told["name"] == engine.CLUSTER
    control, plain, with_gpus = told["nodes"]
    assert [one["role"] for one in told["nodes"]] == ["control-plane", "worker", "worker"]
    assert registration(control) == ("InitConfiguration", []) and plain == {"role": "worker"}
    assert with_gpus["labels"] == {GPU_LABEL: which}
    kind, (taint,) = registration(with_gpus)
    assert kind == "JoinConfiguration" and f"{taint['key']}={taint['value']}:{taint['effect']}" == GPU_TAINT
    mounts = [{"hostPath": "/dev/null", "containerPath": "/var/run/nvidia-container-devices/all"}]
    assert with_gpus.get("extraMounts") == (mounts if which == "real" else None)


def test_the_device_plugin_goes_where_the_gpus_are():
    spec = config("nvidia-device-plugin.yaml")["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {GPU_LABEL: "real"}
    key = GPU_TAINT.partition("=")[0]
    assert spec["tolerations"] == [{"key": key, "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["containers"][0]["image"].endswith(f":v{versions.NVIDIA_DEVICE_PLUGIN}")


def test_the_script_for_gpus_is_a_script():
    bash = shutil.which("bash")
    if bash:
        assert subprocess.run([bash, "-n", FOLDER / "gpu-node.sh"], capture_output=True).stderr == b""

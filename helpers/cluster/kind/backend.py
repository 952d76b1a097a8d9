"""A kind cluster behind the door that all clusters have."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from helpers import versions
from helpers.cluster import backend, probe
from helpers.cluster.backend import Facts
from helpers.cluster.kind import gpus, images, kuberay, logs, machine, programs
from helpers.cluster.kind.engine import CLUSTER, Engine, log_file, must
from helpers.cluster.kind.mark import Mark
from helpers.cluster.kind.status import Status, row
from helpers.cluster.session.tables import condition
from helpers.errors import CourseError
from helpers.kube import Kube, patient
from helpers.state import course_root, make_state_dir, state_dir, try_lock
from helpers.wait import wait_until

QUICK_S = 0.45  # for both questions of `is_running`
CREATE_S = 900.0  # half a minute where nothing else runs
READY_S = 300.0
CLOCKS_S = 2.0  # that two clocks which count as the same may differ by
OTHER_S = 3600.0  # another `course up` may be pulling images
PROBE_S = 300.0
SETTLE_S = 300.0
REMOVE_S = 120.0
MANIFESTS = course_root() / "manifests" / "kind"


class Kind:
    """Kubernetes nodes that are containers of Docker or podman, made by kind.

    Its kubeconfig is a file of its own. `down` stops the containers and `up` starts them again, which kind supports
    for clusters with one control plane, as this is.
    """

    name = "kind"

    def __init__(self) -> None:
        self._home = state_dir() / "kind"

    @property
    def kubeconfig(self) -> Path:
        return self._home / "kubeconfig"

    @property
    def _mark_file(self) -> Path:
        return self._home / "cluster.json"

    @property
    def _mark(self) -> Mark | None:
        return Mark.read(self._mark_file)

    @property
    def _kube(self) -> Kube:
        return Kube(self.kubeconfig)

    # ---- what it is --------------------------------------------------------------------------------------------------

    def is_running(self) -> bool:
        mark, begun = self._mark, time.monotonic()
        if not mark or not mark.is_whole or not _answers(self.kubeconfig, QUICK_S / 2):
            return False
        with contextlib.suppress(CourseError):
            there = Engine(mark.engine).containers(begun + QUICK_S - time.monotonic())
            return all(there.get(name) == "running" for name in mark.addresses)
        return False

    def capabilities(self) -> frozenset[str]:
        return frozenset({"kubernetes", "autoscaler", "node_drain", f"{self._gpus()}_gpu"})

    def _gpus(self) -> str:
        """Which GPUs the cluster has; of one that is not made yet, will have."""
        if mark := self._mark:
            return mark.gpus
        if not gpus.are_here():  # an engine is slower to ask
            return "fake"
        engine = self._engine()
        return gpus.choose(engine, engine.info())[0]

    def facts(self) -> Facts:
        kube = self._kube
        parts = {"Kubernetes": kube.version(), "KubeRay": kuberay.version(kube)}
        return Facts(parts, host_is_image=False, settle_s=SETTLE_S, ahead_s=kube.ahead_s())

    def kubectl(self) -> Path:
        return programs.kubectl()

    def status(self) -> Status:
        mark = self._mark
        there = Engine(mark.engine).containers() if mark and mark.is_whole else {}
        if "running" not in there.values():
            return Status((), self.kubeconfig)
        nodes: dict[str, dict] = {}
        with contextlib.suppress(CourseError):  # the containers are shown even if nobody answers in them
            nodes = self._nodes()
        rows = tuple(row(name, container, nodes.get(name)) for name, container in there.items())
        return Status(rows, self.kubeconfig, mark.engine)

    def _nodes(self) -> dict[str, dict]:
        """What the API server has of the Kubernetes nodes, by their names."""
        kube = self._kube
        return {thing["metadata"]["name"]: thing for thing in kube.list(kube.resource("nodes", "v1"), "")}

    def logs(self, component: str, follow: bool) -> Iterator[str]:
        mark = self._mark
        if not mark or not mark.is_whole:
            raise CourseError(f"There is no log of {component}.", "Run `course up` first.")
        return logs.read(component, follow, Engine(mark.engine), mark.addresses, self.kubectl(), self.kubeconfig)

    # ---- its life ----------------------------------------------------------------------------------------------------

    def prepare(self) -> str:
        return ""

    def up(self) -> Status:
        """Make the cluster, or start it again, or find that it runs."""
        with self._alone():
            remarks = self._bring_up()
        return replace(self.status(), remarks=tuple(remarks))

    def begin_lesson(self) -> list[str]:
        """See to the fake GPUs."""
        lost = gpus.mend(self._kube) if self._gpus() == "fake" else ""
        told = f"The fake GPUs of {lost} were lost, as they are when its kubelet starts anew; they are there again."
        return [told] if lost else []

    def down(self, wipe: bool) -> str:
        with self._alone():
            ran = self._stop(wipe)
        told = "✔ The kind cluster is down." if ran else "The kind cluster was down already."
        return f"{told}\n✔ All that it kept is removed." if wipe else told

    def _stop(self, wipe: bool) -> bool:
        """Stop the Kubernetes nodes, or remove them; returns whether any ran."""
        mark = self._mark
        if not mark:
            return False
        engine = Engine(mark.engine)
        running = [name for name, container in engine.containers().items() if container == "running"]
        if wipe or not mark.is_whole:
            self._remove(engine)
        elif running:
            print(f"… stopping {len(running)} Kubernetes nodes", flush=True)
            engine.stop(running)
        return bool(running)

    def _bring_up(self) -> list[str]:
        mark, engine = self._mark, self._engine()
        there = engine.containers()
        if there and not mark:
            raise CourseError(
                f"There is a kind cluster named {CLUSTER} that this course has not made: {', '.join(there)}.",
                f"If you do not need it, run `kind delete cluster --name {CLUSTER}`; then `course up` again.",
            )
        if there and not mark.is_whole:
            print("… removing what an interrupted `course up` has left", flush=True)
            self._remove(engine)
        elif there:
            return self._go_on(mark, engine, there)
        return self._make(engine)

    def _engine(self) -> Engine:
        """The engine that has the cluster, else the first that answers."""
        name = self._mark.engine if self._mark else backend.engine()
        if not name:
            raise CourseError(
                "No container engine answers, and the Kubernetes nodes of kind are containers.",
                "Start Docker or podman, so that `docker info` or `podman info` answers; then try again.",
            )
        return Engine(name)

    def _make(self, engine: Engine) -> list[str]:
        """Make a cluster; if that fails or is interrupted, nothing of it stays."""
        info = engine.info()
        machine.check(engine.name, info)  # what is missing is said before minutes are spent
        self.kubectl()
        kind = programs.kind()
        which, remark = gpus.choose(engine, info)
        mark = Mark(engine.name, images.node_image(engine), which)
        self.kubeconfig.unlink(missing_ok=True)
        mark.write(self._mark_file)  # from here on there is something to remove
        try:
            self._create(engine, kind, mark)
            self._furnish(engine, mark)
            if mark.gpus == "real":
                gpus.bring(engine, self._kube, self.kubectl(), MANIFESTS)
            ray, python = probe.ray_of_image(self._kube, versions.RAY_IMAGE, PROBE_S)
            backend.check_ray(ray, python, f"the image {versions.RAY_IMAGE} of the Kubernetes nodes")
            replace(mark, addresses=self._addresses()).write(self._mark_file)
        except BaseException:
            print("… removing what was begun", flush=True)
            with contextlib.suppress(CourseError):  # it is found by the next `course up`
                self._remove(engine)
            raise
        return [remark] if remark else []

    def _create(self, engine: Engine, kind: programs.Found, mark: Mark) -> None:
        config = MANIFESTS / ("cluster-gpu.yaml" if mark.gpus == "real" else "cluster.yaml")
        image = mark.image.partition("@")[0]
        print(f"… {kind.told} makes the Kubernetes nodes from {image}: about a minute", flush=True)
        words = ["create", "cluster", "--name", CLUSTER, "--image", mark.image, "--config", config]
        must(
            [kind.path, *words, "--kubeconfig", self.kubeconfig, "--wait", "120s"], CREATE_S,
            "kind cannot make the cluster", f"All that it said is in {log_file()}.", **engine.provider,
        )  # fmt: skip

    def _furnish(self, engine: Engine, mark: Mark) -> None:
        """See that all is there that lessons need; what is there already costs seconds."""
        nodes, kube = list(engine.containers()), self._kube
        self._await_nodes(nodes)
        images.preload(engine, programs.kind().path, nodes, self._home)
        kuberay.ensure(kube, self.kubectl())
        if mark.gpus == "fake":
            gpus.mend(kube)

    def _go_on(self, mark: Mark, engine: Engine, there: dict[str, str]) -> list[str]:
        """Start what is stopped of a cluster that was made before."""
        lost = sorted(set(mark.addresses) - set(there))
        if lost:
            raise CourseError(
                f"Of the kind cluster's Kubernetes nodes, {', '.join(lost)} was removed.",
                "Run `course down --wipe` and then `course up`, which makes the cluster anew.",
            )
        stopped = [name for name in mark.addresses if there[name] != "running"]
        begun = time.time()
        if stopped:
            print(f"… starting {len(stopped)} Kubernetes nodes again", flush=True)
            # an engine hands out addresses in the order of starts: each gets its own back, on which etcd depends most
            engine.start(sorted(stopped, key=lambda name: ip_address(mark.addresses[name])))
            wait_until(lambda: _answers(self.kubeconfig, 5.0), READY_S, what="the API server", every_s=0.5)
            self._await_nodes(stopped, begun)
        self._furnish(engine, mark)
        return [*([] if stopped else ["The cluster ran already."]), *self._other_image(mark)]

    @staticmethod
    def _other_image(mark: Mark) -> list[str]:
        """A remark if the user names another image than the one that the cluster was made from."""
        given = os.environ.get(images.GIVEN, mark.image)
        if given == mark.image or Path(given).expanduser().is_file():
            return []
        return [f"It was made from {mark.image}, and stays so: `course down --wipe` first makes room for {given}."]

    def _await_nodes(self, names: Sequence[str], since: float = 0.0) -> None:
        """Wait until Kubernetes nodes are ready, by word of kubelets that have spoken since a time of this machine."""
        earliest = _as_kubernetes(since + self._kube.ahead_s() - CLOCKS_S) if since else ""

        def are_ready() -> bool:
            nodes = self._nodes()
            missing = [name for name in names if name not in nodes]
            assert not missing, f"{', '.join(missing)} has not registered"
            late = [name for name in names if not _has_spoken(nodes[name], earliest)]
            assert not late, f"{', '.join(late)} is not ready"
            return True

        wait_until(patient(are_ready), READY_S, what="the Kubernetes nodes", every_s=0.5)

    def _addresses(self) -> dict[str, str]:
        """The addresses of the Kubernetes nodes by their names."""
        return {
            name: next(one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP")
            for name, node in self._nodes().items()
        }

    def _remove(self, engine: Engine) -> None:
        """Remove the cluster, and what is kept of it."""
        delete = [programs.kind().path, "delete", "cluster", "--name", CLUSTER, "--kubeconfig", self.kubeconfig]
        fix = f"Run `course down --wipe`; all that kind said is in {log_file()}."
        must(delete, REMOVE_S, "kind cannot remove the cluster", fix, **engine.provider)
        self.kubeconfig.unlink(missing_ok=True)
        self._mark_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other command of the course is at work on the cluster."""
        with open(make_state_dir(self._home.name) / "lock", "a") as file:
            wait_until(lambda: try_lock(file), OTHER_S, what="another `course up` or `course down` to end")
            yield


def _has_spoken(node: dict, earliest: str) -> bool:
    ready = condition(node, "Ready")
    return ready.get("status") == "True" and ready.get("lastHeartbeatTime", "") >= earliest


def _as_kubernetes(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _answers(kubeconfig: Path, timeout_s: float) -> bool:
    """Whether the API server says that it is ready; without the client library, which takes long to load."""
    with contextlib.suppress(Exception):  # whatever is wrong with the file or the connection, it does not
        cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
        server = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        connection = http.client.HTTPSConnection(
            server.hostname, server.port, timeout=timeout_s, context=ssl.create_default_context(cadata=authority)
        )
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")  # for everybody to ask, by kubeadm's rules
            return connection.getresponse().status == 200
    return False

"""A lesson's namespace, and what a notebook's kernel needs for it: a kubeconfig, kubectl, and a lock.

The lock is shared by all notebooks of the lesson that are at work, and ends with their kernels; who can have it alone
knows that whatever is in the namespace was left by a run that is over.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

import yaml

from helpers.cluster.backend import MANAGED, OWNER_LABEL, Backend
from helpers.cluster.session import cleanup
from helpers.cluster.session.forward import Kubectl
from helpers.errors import CourseError
from helpers.kube import Kube, patient
from helpers.state import make_state_dir, write_private
from helpers.wait import wait_until

LABEL = "ray-course/lesson"


class Following(Kube):
    """A connection for threads of their own, which follows the cluster to another port by itself.

    By the lesson's kubeconfig, not the cluster's: that one has its certificates in it, and the client would write them
    to temporary files that stay when a kernel is killed.
    """

    def __init__(self, place: Place):
        super().__init__(place.kubeconfig)
        self._place = place

    def _connected(self) -> Any:
        self._place.refresh()
        return super()._connected()


class Place:
    """A namespace that is entered when this is made.

    Attributes:
        namespace: such as `lesson-03`.
        kube: the cluster, by the lesson's own kubeconfig.
        kubectl: the same for a program.
        said: sentences on what was found.
    """

    def __init__(self, backend: Backend, namespace: str, lesson: str, owner: str = ""):
        self.namespace, self.said = namespace, []
        self._labels = {LABEL: lesson, **MANAGED} | ({OWNER_LABEL: owner} if owner else {})
        self._backend, self._source, self._refreshing = backend, None, threading.Lock()
        self._directory = make_state_dir("kubernetes")
        self.kubeconfig = self._directory / f"{namespace}.kubeconfig"
        self.refresh()
        self.kube = Kube(self.kubeconfig)
        self.kubectl = Kubectl(self._directory / "bin" / "kubectl", self.kubeconfig, namespace)
        self._lock = (self._directory / f"{namespace}.lock").open("a")
        try:
            is_alone = _try_alone(self._lock)
            if not is_alone:
                _with_others(self._lock)  # waits for one that is just beginning or cleaning up
            self._enter(is_alone)
            self._set_environment()
        except BaseException:
            self._lock.close()
            raise
        _with_others(self._lock)

    def refresh(self) -> None:
        """Write the lesson's kubeconfig if the cluster's has changed: one that comes up again may have another port."""
        with self._refreshing:  # a timeline's threads come here too
            self._refresh(self._backend.kubeconfig)

    def _refresh(self, source: Path) -> None:
        try:
            written = source.stat().st_mtime_ns
            if written == self._source:
                return
            config = yaml.safe_load(source.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise CourseError(
                f"The cluster's kubeconfig {source} cannot be read: {error}.", "Run `course up`."
            ) from None
        for context in config["contexts"]:
            context["context"]["namespace"] = self.namespace
        for number, entry in enumerate([*config["clusters"], *config["users"]]):
            self._keep_data(entry.get("cluster") or entry.get("user") or {}, number)
        write_private(self.kubeconfig, json.dumps(config, indent=1).encode())
        self._source = written

    def _keep_data(self, entry: dict, number: int) -> None:
        """Put certificates and keys into files of ours: the client makes some in /tmp, which a killed kernel leaves."""
        for field in ("certificate-authority", "client-certificate", "client-key"):
            data = entry.pop(f"{field}-data", None)
            if data:
                path = self._directory / f"{self.namespace}.{number}.{field}.pem"
                write_private(path, base64.b64decode(data))
                entry[field] = str(path)

    def _enter(self, is_alone: bool) -> None:
        namespaces = self.kube.resource("namespaces")
        there = self.kube.get(namespaces, self.namespace, "")
        labels = (there or {}).get("metadata", {}).get("labels", {})
        if there and any(labels.get(name) != value for name, value in self._labels.items()):
            raise CourseError(
                f"The cluster has a namespace {self.namespace} that is not the course's.",
                f"Rename or remove it: `kubectl delete namespace {self.namespace}` deletes all that is in it.",
            )
        if there and is_alone:
            self._remove_leftovers()
        elif there:
            self.said.append(
                f"Another notebook of this lesson is at work in {self.namespace}: both see the same objects."
            )
        metadata = {"name": self.namespace, "labels": self._labels}
        self.kube.apply(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, "", force=True)
        wait_until(patient(self._has_account), 60, what="the namespace's default ServiceAccount")

    def _remove_leftovers(self) -> None:
        left = cleanup.contents(self.kube, self.namespace) or "nothing that runs"
        healed = cleanup.remove(self.kube, self.namespace)
        self.said.append(f"An earlier run left the namespace {self.namespace} ({left}): removed.")
        self.said += [f"· {line}" for line in healed]

    def _has_account(self) -> bool:
        # without it the API server refuses Pods
        return self.kube.get(self.kube.resource("serviceaccounts"), "default", self.namespace) is not None

    def _set_environment(self) -> None:
        kubectl = self.kubectl.program
        kubectl.parent.mkdir(exist_ok=True)
        new = kubectl.with_name(f"kubectl.{os.getpid()}")
        new.unlink(missing_ok=True)
        new.symlink_to(self._backend.kubectl().resolve())  # it may be found on PATH, where this very link is by now
        new.replace(kubectl)
        # where the user's own contexts are looked up, for a lesson that begins after this one in the same kernel
        places = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        absolute = os.pathsep.join(os.path.abspath(place) for place in places.split(os.pathsep))
        os.environ.setdefault("COURSE_KUBECONFIG", absolute)
        os.environ["KUBECONFIG"] = str(self.kubeconfig)
        os.environ["KUBECACHEDIR"] = str(self._directory / "cache")  # kubectl's own would be in HOME
        # `!kubectl`, and `!ray` and `!python` of this environment, however Jupyter was started
        first = [str(kubectl.parent), str(Path(sys.executable).parent)]
        rest = os.environ.get("PATH", os.defpath).split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join([*first, *(place for place in rest if place not in first)])

    def leave(self) -> str:
        """Remove the namespace, unless another notebook of the lesson is at work in it; says what was done.

        Raises:
            CourseError: if it could not be done; this can be called again.
        """
        if not _try_alone(self._lock):
            self._lock.close()
            return f"· the namespace {self.namespace} stays: another notebook of this lesson is at work in it"
        try:
            held = cleanup.contents(self.kube, self.namespace) or "nothing that ran"
            healed = cleanup.remove(self.kube, self.namespace)
        except BaseException:
            _with_others(self._lock)
            raise
        self._lock.close()
        return "\n".join([f"✔ deleted the namespace {self.namespace} ({held})", *(f"  · {line}" for line in healed)])

    def abandon(self) -> None:
        """Begin to delete the namespace, without a word: the kernel is ending, and has seconds for that."""
        with contextlib.suppress(CourseError), self._lock:
            if _try_alone(self._lock):
                self.kube.delete(self.kube.resource("namespaces"), self.namespace, "")


def _try_alone(file: TextIO) -> bool:
    """Take the lock if nobody has it; otherwise one that was shared before is lost."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _with_others(file: TextIO) -> None:
    fcntl.flock(file, fcntl.LOCK_SH)

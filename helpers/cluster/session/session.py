"""A lesson on Kubernetes: its namespace, and all that its notebook does there. `Lab` hands its calls on to this."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers import versions
from helpers.cluster import backend
from helpers.cluster.session import apply, cleanup, head, job, settle, tables, target
from helpers.cluster.session.capacity import capacity
from helpers.cluster.session.forward import Forward
from helpers.cluster.session.place import Following, Place
from helpers.cluster.session.target import CLUSTER_LABEL, TYPE_LABEL, Target
from helpers.errors import CourseError
from helpers.kube import Kube, patient
from helpers.wait import WaitTimeout, wait_until

SOON_S = 5.0  # a cell that waits says after so long that nobody answers, and asks again
SHOWN_EVENTS = 4  # of those that explain why a wait failed


class Session:
    """One lesson's namespace on the cluster that runs.

    Attributes:
        namespace: such as `lesson-03`.
        said: sentences on what an earlier run left, or that another notebook is at work.
        closed: whether it has been cleaned up.
    """

    def __init__(self, lesson: str, capabilities: list[str]):
        choice = backend.running(capabilities)
        self._backend, self._why = choice.backend, choice.why
        mended = self._backend.begin_lesson()
        self._facts = self._backend.facts()
        owner = self._facts.owner
        self.namespace = (lesson if lesson.startswith("ex") else f"lesson-{lesson}") + (f"-{owner}" if owner else "")
        self._place = Place(self._backend, self.namespace, lesson, owner)
        self.said, self.closed = [*mended, *self._place.said], False
        self._forwards: list[Forward] = []
        self._dashboards: dict[str, Forward] = {}
        # now, not when this module is loaded: the client removes its certificates at exit, and the last comes first
        atexit.register(self.abandon)

    @property
    def kube(self) -> Kube:
        """The cluster.

        Raises:
            CourseError: after `clean_up`.
        """
        if self.closed:
            raise CourseError("This lab has been cleaned up.", "Run the notebook again from its first cell.")
        self._place.refresh()
        return self._place.kube

    @property
    def kubeconfig(self) -> Path:
        """The lesson's own, with its namespace set."""
        return self._place.kubeconfig

    def new_kube(self) -> Kube:
        """A connection for threads of their own, which follows the cluster to another port by itself."""
        return Following(self._place)

    @property
    def ahead_s(self) -> float:
        """Seconds that the API server's clock is ahead of this machine's."""
        return self._facts.ahead_s

    def label(self, what: str) -> str:
        """The usual name of what `kind/name` names, such as `raycluster/demo`, whether it is there or not."""
        return str(self._read(what))

    def introduction(self) -> str:
        """Backend, versions, what the Kubernetes nodes have left, and why it is this backend."""
        told = ", ".join(f"{name} {version or 'of a version that it does not tell'}"
                         for name, version in self._facts.versions.items())  # fmt: skip
        return f"{self._backend.name}: {told}, Ray {versions.RAY}; {capacity(self.kube)}; taken because {self._why}"

    # ---- objects -----------------------------------------------------------------------------------------------------

    def apply(self, what: str | Path | dict, *, replace: bool = False) -> None:
        """Apply a manifest to the lesson's namespace (server-side), and say what of it is new. See `Lab.apply`."""
        kube = self.kube
        changes = apply.prepare(kube, self.namespace, what, host_is_image=self._facts.host_is_image)
        for change in changes:
            if replace and change.resource.kind == "RayJob" and change.before:
                self._delete(change.target)
                change.before = None
            print("\n".join(apply.carry_out(kube, self.namespace, change, replace=replace)))

    def get(self, what: str) -> dict:
        """An object as the API server has it.

        Raises:
            CourseError: if there is none.
        """
        return self._get(self._read(what))

    def delete(self, what: str) -> None:
        """Delete an object, and wait until it and all that it owns are gone; what is not there is said."""
        print(self._delete(self._read(what)))

    def pods(self, what: str = "") -> tables.Pods:
        """The Pods of an object, or all in the namespace."""
        if not what:
            return tables.pods(f"Pods in {self.namespace}", target.listed(self.kube, "pods", self.namespace))
        found = self._read(what)
        return tables.pods(f"Pods of {found}", self._pods(self.kube, self._get(found)))

    def events(self, what: str = "") -> tables.Events:
        """The Kubernetes events of an object and of what it owns, or all in the namespace; oldest first."""
        found = self.raw_events(what)
        return tables.events(f"Events of {self._read(what)}" if what else f"Events in {self.namespace}", found)

    def raw_events(self, what: str = "") -> list[dict]:
        """As `events`, as the API server has them."""
        told = self.kube.events(self.namespace)
        return target.events_of(told, self.family(what)) if what else sorted(told, key=target.when)

    def family(self, what: str) -> list[dict]:
        """An object and all that it owns, directly or not, as the API server has them."""
        return target.family(self.kube, self.namespace, self._get(self._read(what)))

    def _read(self, what: str) -> Target:
        return target.read(self.kube, what)

    def _get(self, found: Target) -> dict:
        thing = self.kube.get(found.resource, found.name, self.namespace)
        if thing is None:
            raise self._missing(found)
        return thing

    def _missing(self, found: Target) -> CourseError:
        there = [thing["metadata"]["name"] for thing in self.kube.list(found.resource, self.namespace)]
        fix = (
            f"There are: {', '.join(sorted(there))}."
            if there
            else f"There is no {found.resource.kind} in {self.namespace} yet."
        )
        return CourseError(f"There is no {found}.", fix)

    def _pods(self, kube: Kube, thing: dict) -> list[dict]:
        """An object's Pods. A RayCluster's are told by a label, which takes one request."""
        if thing["kind"] == "Pod":
            return [thing]
        if thing["kind"] == "RayCluster":
            label = f"{CLUSTER_LABEL}={thing['metadata']['name']},{TYPE_LABEL}"
            return kube.list(kube.resource("pods"), self.namespace, label)
        return [one for one in target.family(kube, self.namespace, thing) if one["kind"] == "Pod"]

    def _delete(self, found: Target) -> str:
        kube = self.kube
        thing = kube.get(found.resource, found.name, self.namespace)
        if thing is None:
            return f"· there is no {found}, so nothing is deleted"
        kube.delete(found.resource, found.name, self.namespace)
        healed = cleanup.until_gone(kube, self.namespace, found.resource, thing)
        return "\n".join([f"✔ {found} deleted", *(f"  · {line}" for line in healed)])

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, what: str, timeout_s: float | None = None) -> None:
        """Wait until an object has settled, and say so. See `Lab.wait`."""
        found = self._read(what)
        word, look = settle.KINDS.get(found.resource.kind, ("", None))
        if look is None:
            kinds = ", ".join(kind.lower() for kind in settle.KINDS)
            raise CourseError(f"lab.wait does not know when {found} has settled.", f"It knows: {kinds}.")
        self._get(found)
        kube = Kube(self.kubeconfig, SOON_S)
        timeout_s = self._facts.settle_s if timeout_s is None else timeout_s

        def settled() -> str:
            self._place.refresh()
            thing = self._still_there(kube, found)
            pods = self._pods(kube, thing)
            if found.resource.api_version.startswith("ray.io/") and not pods:
                self._check_not_refused(kube, thing)
            told = look(thing, pods)
            if found.resource.kind == "RayService":
                self._check_answers(kube, found)
            return told

        try:
            told = wait_until(
                patient(settled), timeout_s, what=f"{found} to be {word}", every_s=0.5,
                fix=f'`lab.pods("{what}")` and `lab.events("{what}")` show more; the wait can be run again.',
            )  # fmt: skip
        except WaitTimeout as error:
            raise self._explained(found, error) from None
        symbol = "✘" if told.startswith(("Failed", "ValidationFailed")) else "✔"
        print(f"{symbol} {found} is {word}: {told}")

    def _still_there(self, kube: Kube, found: Target) -> dict:
        thing = kube.get(found.resource, found.name, self.namespace)
        if thing is None or tables.is_ending(thing):
            how = "was deleted" if thing is None else "is being deleted"
            raise CourseError(f"{found} {how} while it was waited for.", "Apply its manifest again, then wait again.")
        return thing

    def _check_not_refused(self, kube: Kube, thing: dict) -> None:
        uid = thing["metadata"]["uid"]
        about = [event for event in kube.events(self.namespace) if event["involvedObject"].get("uid") == uid]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        refused = settle.refusal(thing, sorted(about, key=target.when), now)
        if refused:
            raise refused

    def _check_answers(self, kube: Kube, found: Target) -> None:
        """Whether the Serve proxies behind the RayService's own Service say that they are well."""
        service = f"{found.name}-serve-svc:{versions.PORT_SERVE}"
        try:
            kube.text(f"/api/v1/namespaces/{self.namespace}/services/{service}/proxy/-/healthz")
        except CourseError as error:
            raise AssertionError(f"its Service does not answer yet: {error.what}") from None

    def _explained(self, found: Target, error: WaitTimeout) -> CourseError:
        """The failed wait, with the latest events that may say why."""
        told: list[str] = []
        with contextlib.suppress(CourseError):
            rows = self.events(str(found)).rows
            telling = [row for row in rows if row.is_warning] or list(rows)
            told = list(dict.fromkeys(map(str, telling[-SHOWN_EVENTS:])))
        fix = f"Its last events: {' | '.join(told)}. {error.fix}" if told else error.fix
        return CourseError(error.what, fix)

    # ---- Pods and ports ----------------------------------------------------------------------------------------------

    def run_on_head(
        self, cluster: str, function: Callable | str, *args: Any, timeout_s: float = 120, **kwargs: Any
    ) -> Any:
        """Run a function, or the text of a program, on a cluster's head. See `Lab.run_on_head`."""
        return head.run(self.kube, self.namespace, self._head(cluster), function, args, kwargs, timeout_s=timeout_s)

    def _head(self, cluster: str) -> dict:
        name = cluster.partition("/")[2] or cluster
        found = Target(self.kube.resource("rayclusters"), name)
        heads = [
            pod for pod in self._pods(self.kube, self._get(found)) if pod["metadata"]["labels"][TYPE_LABEL] == "head"
        ]
        ready = [pod for pod in heads if tables.is_ready(pod)]
        if not ready:
            why = str(tables.pod_row(heads[0])) if heads else "there is none yet"
            raise CourseError(f"The head of {found} is not ready: {why}.", f'Wait for it by `lab.wait("{found}")`.')
        return ready[0]

    def forward(self, what: str, port: int) -> Forward:
        """A port of this machine that leads to a port of a Service or Pod. See `Lab.forward`."""
        self._forwards.append(Forward(self.kube, self._place.kubectl, self._read(what), port))
        return self._forwards[-1]

    def submit(
        self, cluster: str, entrypoint: str, *, working_dir: str | Path | None = None, **options: Any
    ) -> job.Job:
        """Hand a Ray job in at a cluster's dashboard. See `Lab.submit`."""
        self._head(cluster)
        name = cluster.partition("/")[2] or cluster
        if name not in self._dashboards:
            service = Target(self.kube.resource("services"), f"{name}-head-svc")
            self._dashboards[name] = Forward(self.kube, self._place.kubectl, service, versions.PORT_DASHBOARD)
        return job.submit(self._dashboards[name], entrypoint, Path(working_dir) if working_dir else None, options)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> str:
        """Remove the namespace and all in it; what was done, in a sentence. May be called again."""
        if self.closed:
            return "✔ nothing is left to clean up"
        self._close_ports()
        self._place.refresh()
        told = self._place.leave()
        self.closed = True
        atexit.unregister(self.abandon)
        return told

    def abandon(self) -> None:
        """What is done when the kernel ends without `close`."""
        if not self.closed:
            self._close_ports()
            self._place.abandon()
            self.closed = True

    def _close_ports(self) -> None:
        for forward in (*self._forwards, *self._dashboards.values()):
            forward.close()
        self._forwards, self._dashboards = [], {}

"""The node contract: cases in YAML, each a manifest and what the API must show of it, read by `run_case`.

A case is a file of node_contract/. Its first document holds `expect`:
    about    one sentence: what a Kubernetes node owes
    source   the pages of Kubernetes' documentation that say so
    needs    what a cluster must be able to do, beside being one (see `Cluster.can`); elsewhere the case is skipped
    alone    true if no other case may run at the same time
    limit_s  seconds that each step may take, 60 if not given
    steps    what is seen, in this order
The other documents are applied before the first step, in a namespace that the case has for itself.

A step has one of these keys. Texts that begin with "~" are regular expressions, which need to match somewhere.
    see: pod/a, has: {…}         the object comes to hold this: maps hold at least these keys, lists hold each of these
                                 elements anywhere, null means that the key is missing or empty
    gone: pod/a                  the object comes to be deleted
    events: pod/a, has: […]      the object's events come to have these reasons (or {reason, message, type, count}), in
                                 this order, others between them
    log: pod/a, is: text         the log comes to be this, blank lines and spaces at its ends aside; `args` are more
                                 arguments of `kubectl logs`
    kubectl: arguments, …        ends with the status `code` (0 if not given), says `out` and `err`; gets `stdin`; with
                                 `until: true` it is asked again until that is so
    in_order: [pod/a status.startTime, …]   these times do not go back; [key=value] chooses from a list

The cases hold for any cluster with images busybox:1.36 and python:3.11-slim, so commands keep to what busybox and
Debian both have.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from helpers.wait import WaitTimeout, wait_until

CASES = Path(__file__).parent / "node_contract"
LIMIT_S = 60
HOLD = "example.com/hold"  # a finalizer with which a case can look at a Pod after its end
API = {
    **dict.fromkeys(("pod", "service", "configmap", "secret", "endpoints", "serviceaccount"), "api/v1"),
    **dict.fromkeys(("node", "event", "namespace"), "api/v1"),
    **dict.fromkeys(("deployment", "replicaset", "statefulset", "daemonset"), "apis/apps/v1"),
    **dict.fromkeys(("job",), "apis/batch/v1"),
    **dict.fromkeys(("lease",), "apis/coordination.k8s.io/v1"),
    **dict.fromkeys(("raycluster", "rayjob", "rayservice"), "apis/ray.io/v1"),
}
PLURAL = {"endpoints": "endpoints"}
NO_NAMESPACE = {"node", "namespace"}


@dataclass(frozen=True)
class Cluster:
    """A cluster to hold cases against.

    Attributes:
        kubeconfig: file with its address and credentials.
        kubectl: the program.
        context: context of the kubeconfig; "" means its current one.
        can: what not every cluster can do. `fake_gpu`: machines that show `nvidia.com/gpu` and devices that are not
            there. `gpu_devices`: containers are told which GPUs are theirs. `node_drain`: Kubernetes nodes that a test
            may drain. `uids`: containers may run as any user. `cgroups`: memory limits are the kernel's.
    """

    kubeconfig: Path
    kubectl: str
    context: str = ""
    can: frozenset[str] = frozenset()

    @cached_property
    def _api(self) -> client.ApiClient:
        return config.new_client_from_config(str(self.kubeconfig), self.context or None, persist_config=False)

    def get(self, path: str, **query: str) -> dict | None:
        """What the API server has at `path`; None if nothing."""
        request = self._api.param_serialize(
            "GET", f"/{path}", query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        try:
            answer = self._api.call_api(*request, _request_timeout=20)
            answer.read()
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        if answer.status == 404:
            return None
        assert answer.status == 200, f"the API server says {answer.status}: {answer.data[:300]}"
        return json.loads(answer.data)

    def argv(self, *arguments: str) -> list[str]:
        context = ["--context", self.context] if self.context else []
        return [self.kubectl, "--kubeconfig", str(self.kubeconfig), *context, *arguments]

    def ask(
        self, *arguments: str, stdin: str | bytes | None = None, timeout_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess:
        """Run kubectl to its end; out and err are bytes if `stdin` is."""
        return subprocess.run(
            self.argv(*arguments), input="" if stdin is None else stdin, capture_output=True,
            text=not isinstance(stdin, bytes), timeout=timeout_s,
        )  # fmt: skip

    def must(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.ask(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {shlex.join(arguments)}: {done.stderr.strip()}"
        return done.stdout


@dataclass(frozen=True)
class Place:
    """A namespace of a cluster, in which a case is tried."""

    cluster: Cluster
    namespace: str

    def url(self, name: str) -> str:
        """The path of an object, or of a kind: `pod/a`, `node/cpu-a`, `pod`; `lease@kube-node-lease/a` elsewhere."""
        kind, _, name = name.partition("/")
        kind, _, elsewhere = kind.partition("@")
        namespace = "" if kind in NO_NAMESPACE else f"namespaces/{elsewhere or self.namespace}/"
        return f"{API[kind]}/{namespace}{PLURAL.get(kind, kind + 's')}" + (f"/{name}" if name else "")

    def get(self, name: str) -> dict | None:
        return self.cluster.get(self.url(name))

    def wait(self, what: str, look: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        return wait_until(look, limit_s, what=what, every_s=0.3, fix="See below what the API shows.")

    def see(self, name: str, has: Any, limit_s: float = LIMIT_S) -> dict:
        """Wait until the object holds `has`; returns the object."""

        def look() -> dict:
            found = self.get(name)
            assert found is not None, f"there is no {name}"
            wrong = mismatch(has, found)
            assert not wrong, wrong
            return found

        return self.wait(name, look, limit_s)

    def kubectl(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess:
        return self.cluster.ask("-n", self.namespace, *arguments, **options)

    def events(self, name: str) -> list[dict]:
        """Events of an object, in the order in which they first happened."""
        kind, _, name = name.partition("/")
        selector = f"involvedObject.name={name}"
        found = self.cluster.get(self.url("event"), fieldSelector=selector)["items"]
        found = [event for event in found if event["involvedObject"]["kind"].lower() == kind]
        # an event's name ends with the time of its making in nanoseconds; its times have whole seconds only
        return sorted(found, key=lambda event: int(event["metadata"]["name"].rpartition(".")[2], 16))

    def describe(self) -> str:
        """All that may explain a failure: what the API shows of Pods, events and logs."""
        text = []
        for pod in (self.cluster.get(self.url("pod")) or {"items": []})["items"]:
            name = pod["metadata"]["name"]
            text += [f"--- pod/{name} on {pod['spec'].get('nodeName')}", yaml.safe_dump(pod.get("status"))]
            for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
                said = self.kubectl("logs", name, "-c", container["name"], "--tail=20")
                text += [f"--- log of {name}/{container['name']}", said.stdout + said.stderr]
        text += ["--- events", self.kubectl("get", "events", "--sort-by=.metadata.creationTimestamp").stdout]
        return "\n".join(text)


@contextlib.contextmanager
def place(cluster: Cluster, name: str) -> Iterator[Place]:
    """A namespace that is deleted at the end; what a case held there with a finalizer too."""
    here = Place(cluster, f"contract-{name}-{uuid.uuid4().hex[:5]}")
    cluster.must("create", "namespace", here.namespace)
    try:
        # Pods that come earlier are refused
        here.wait("the default ServiceAccount", lambda: here.get("serviceaccount/default"))
        yield here
    except (AssertionError, WaitTimeout, subprocess.TimeoutExpired) as error:
        try:
            shown = here.describe()
        except (AssertionError, subprocess.TimeoutExpired) as other:
            shown = f"and more cannot be shown: {other}"
        raise AssertionError(f"{error}\n{shown}") from None
    finally:
        for pod in (cluster.get(here.url("pod")) or {"items": []})["items"]:
            if HOLD in pod["metadata"].get("finalizers", []):
                unhold = json.dumps({"metadata": {"$deleteFromPrimitiveList/finalizers": [HOLD]}})
                cluster.ask("-n", here.namespace, "patch", "pod", pod["metadata"]["name"], "-p", unhold)
        cluster.ask("delete", "namespace", here.namespace, "--wait=false")


# ---- comparing -------------------------------------------------------------------------------------------------------


def mismatch(expected: Any, actual: Any, at: str = "") -> str:
    """What keeps `actual` from holding `expected`, as one line; "" if nothing does."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        found = (mismatch(value, actual.get(key), f"{at}.{key}") for key, value in expected.items())
        return next((wrong for wrong in found if wrong), "")
    if isinstance(expected, list) and isinstance(actual, list) and expected:
        for element in expected:
            wrongs = [mismatch(element, other, at) for other in actual]
            if all(wrongs) or not actual:
                return wrongs[0] if len(wrongs) == 1 else f"{at}: no {element!r} in {actual!r}"
        return ""
    if expected is None or expected == []:
        return f"{at}: {actual!r} instead of nothing" if actual else ""
    return "" if same(expected, actual) else f"{at}: {actual!r} instead of {expected!r}"


def same(expected: Any, actual: Any) -> bool:
    """Whether a value is the expected one; for a text with "~", whether it matches."""
    if isinstance(expected, str) and expected.startswith("~"):
        return actual is not None and re.search(expected[1:].strip(), str(actual)) is not None
    if isinstance(expected, str) and isinstance(actual, str):
        return expected.strip() == actual.strip()
    return expected == actual


def at_path(found: Any, path: str) -> Any:
    """`status.conditions[type=Ready].status` of an object; None where something on the way is missing."""
    for part in re.findall(r"[^.\[]+|\[[^]]*\]", path):
        if found is None:
            return None
        if not part.startswith("["):
            found = found.get(part)
            continue
        key, _, value = part[1:-1].partition("=")
        found = next((item for item in found if str(item.get(key)) == value), None)
    return found


# ---- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A file of node_contract/. See the top of this module."""

    name: str
    about: str
    source: tuple[str, ...]
    manifest: tuple[dict, ...]
    steps: tuple[dict, ...]
    needs: frozenset[str] = frozenset()
    alone: bool = False
    limit_s: float = LIMIT_S
    unknown: tuple[str, ...] = field(default=())


def load(path: Path) -> Case:
    expect, *manifest = [document for document in yaml.safe_load_all(path.read_text()) if document]
    expect = dict(expect["expect"])
    source = expect.pop("source")
    return Case(
        path.stem, expect.pop("about"), (source,) if isinstance(source, str) else tuple(source), tuple(manifest),
        tuple(expect.pop("steps")), frozenset(expect.pop("needs", ())), expect.pop("alone", False),
        expect.pop("limit_s", LIMIT_S), tuple(expect),
    )  # fmt: skip


def all_cases() -> list[Case]:
    return [load(path) for path in sorted(CASES.glob("*.yaml"))]


def run_case(cluster: Cluster, case: Case, *, on: str = "", limit_s: float = 0) -> None:
    """Apply a case's manifest and go through its steps.

    Args:
        cluster: where.
        case: what.
        on: name of the Kubernetes node that all of its Pods must run on; "" leaves that to the scheduler.
        limit_s: seconds that each step may take, if not those of the case.

    Raises:
        AssertionError: with the step that failed, and what the API shows of the case's Pods.
    """
    with place(cluster, case.name) as here:
        manifest = [pinned(thing, on) for thing in case.manifest] if on else case.manifest
        here.cluster.must("-n", here.namespace, "create", "-f", "-", stdin=yaml.safe_dump_all(manifest))
        for number, step in enumerate(case.steps, 1):
            try:
                take(here, step, limit_s or case.limit_s)
            except (AssertionError, WaitTimeout) as error:
                raise AssertionError(f"step {number} of {case.name}, {step}: {error}") from None


def pinned(thing: dict, node: str) -> dict:
    """An object of a manifest whose Pods all run on one Kubernetes node."""
    spec = thing.get("spec", {})
    if thing["kind"] == "Pod":
        selector = spec.get("nodeSelector", {}) | {"kubernetes.io/hostname": node}
        return thing | {"spec": spec | {"nodeSelector": selector}}
    if "template" in spec:
        template = pinned({"kind": "Pod"} | spec["template"], node)
        template.pop("kind")
        return thing | {"spec": spec | {"template": template}}
    return thing


def take(here: Place, step: dict, limit_s: float) -> None:
    """Take one step."""
    options = dict(step)
    verb = next(verb for verb in STEPS if verb in options)
    STEPS[verb](here, options.pop(verb), options, limit_s)


def step_see(here: Place, name: str, options: dict, limit_s: float) -> None:
    here.see(name, options["has"], limit_s)


def step_gone(here: Place, name: str, options: dict, limit_s: float) -> None:
    here.wait(f"the end of {name}", lambda: here.get(name) is None, limit_s)


def step_events(here: Place, name: str, options: dict, limit_s: float) -> None:
    wanted = [{"reason": event} if isinstance(event, str) else event for event in options["has"]]

    def look() -> bool:
        found = here.events(name)
        left = iter(found)
        for event in wanted:
            shown = [f"{other['reason']}: {other['message']}" for other in found]
            assert any(not mismatch(event, other) for other in left), f"no {event} at its place among {shown}"
        return True

    here.wait(f"the events of {name}", look, limit_s)


def step_log(here: Place, name: str, options: dict, limit_s: float) -> None:
    arguments = shlex.split(options.get("args", ""))

    def look() -> bool:
        done = here.kubectl("logs", name, *arguments)
        assert done.returncode == 0, done.stderr.strip()
        assert same(options["is"], done.stdout), f"it is {done.stdout!r}"
        return True

    here.wait(f"the log of {name}", look, limit_s)


def step_kubectl(here: Place, arguments: str | list[str], options: dict, limit_s: float) -> None:
    words = shlex.split(arguments) if isinstance(arguments, str) else arguments
    words = [word.replace("$NAMESPACE", here.namespace) for word in words]

    def look() -> bool:
        done = here.kubectl(*words, stdin=options.get("stdin"))
        seen = f"status {done.returncode}, out {done.stdout[-500:]!r}, err {done.stderr[-500:]!r}"
        assert same(options.get("code", 0), done.returncode), seen
        for key, said in (("out", done.stdout), ("err", done.stderr)):
            assert key not in options or same(options[key], said), seen
        return True

    if options.get("until"):
        here.wait(f"kubectl {shlex.join(words)}", look, limit_s)
    else:
        look()


def step_in_order(here: Place, paths: list[str], options: dict, limit_s: float) -> None:
    times = []
    for path in paths:
        name, _, inner = path.partition(" ")
        time = at_path(here.get(name), inner)
        assert time, f"there is no {path}"
        times.append(time)
    assert times == sorted(times), f"{dict(zip(paths, times, strict=True))}"


STEPS: dict[str, Callable[[Place, Any, dict, float], None]] = {
    "see": step_see, "gone": step_gone, "events": step_events, "log": step_log, "kubectl": step_kubectl,
    "in_order": step_in_order,
}  # fmt: skip
OPTIONS = {
    "see": {"has"}, "gone": set(), "events": {"has"}, "log": {"is", "args"},
    "kubectl": {"stdin", "code", "out", "err", "until"}, "in_order": set(),
}  # fmt: skip

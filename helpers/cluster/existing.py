"""A cluster that somebody else runs: what it has is asked, and nothing but the course's namespaces is touched."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from helpers import versions
from helpers.cluster import probe
from helpers.cluster.backend import GPU_LABEL, MANAGED, OWNER_LABEL, Facts, check_ray
from helpers.cluster.session.capacity import gpus
from helpers.errors import CourseError
from helpers.kube import Kube, KubeError, NoAnswer, if_allowed
from helpers.state import make_state_dir, write_private
from helpers.text import columns

OLDEST_KUBERAY = (1, 4)  # the first that has `autoscalerOptions.version` and lets groups be without rayStartParams
READ_S = 10.0
PULL_S = 900.0  # an image of a gigabyte, to a Kubernetes node that was just made
SETTLE_S = 600.0  # with a node autoscaler, a worker Pod waits for its machine first
ASKED_AT_ONCE = 8
SAMPLE = "ray-course-sample"  # permissions are asked for a namespace of a name that nobody has given rights to
EVERYTHING = ("get", "list", "watch", "create", "patch", "delete")
RAY = ("rayclusters", "rayjobs", "rayservices")
# what the lessons do: (API group, resource, verbs); the first is asked for the cluster, the rest for a namespace
NAMESPACES = ("", "namespaces", ("get", "create", "patch", "delete"))
NEEDED: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("", "pods", EVERYTHING),
    ("", "pods/log", ("get",)),
    ("", "pods/exec", ("get", "create")),
    ("", "pods/portforward", ("get", "create")),
    ("", "services", EVERYTHING),
    ("", "services/proxy", ("get",)),
    ("", "configmaps", EVERYTHING),
    ("", "serviceaccounts", ("get",)),
    ("", "events", ("list",)),
    ("apps", "deployments", EVERYTHING),
    ("apps", "replicasets", ("list",)),
    ("batch", "jobs", ("list",)),
    *(("ray.io", kind, EVERYTHING) for kind in RAY),
)


@dataclass(frozen=True)
class Seen:
    """What an existing cluster says of itself.

    Attributes:
        kubernetes: version of the API server.
        kuberay: version of the operator; "" if it does not show, None if KubeRay is not installed.
        missing: permissions that this user lacks, such as "create namespaces".
        fake_gpus: GPUs of Kubernetes nodes that call theirs fake.
        real_gpus: all others.
        nodes: how many Kubernetes nodes there are; None if this user may not see them.
        node_autoscaler: its name; "" if none shows.
        ahead_s: seconds that its clock is ahead of this machine's.
    """

    kubernetes: str
    kuberay: str | None
    missing: tuple[str, ...]
    fake_gpus: int
    real_gpus: int
    nodes: int | None
    node_autoscaler: str
    ahead_s: float


@dataclass(frozen=True)
class Status:
    """What `course status` shows of an existing cluster: what was asked, what was found, what to do."""

    head: str
    rows: tuple[tuple[str, str], ...]
    refusals: tuple[CourseError, ...] = ()

    @property
    def is_ready(self) -> bool:
        return not self.refusals

    def __str__(self) -> str:
        wrong = [f"✘ {error.what}\n  → {error.fix}" for error in self.refusals]
        table = [columns(self.rows)] if self.rows else []
        return "\n".join([self.head, *table, *(wrong or ["✔ Lessons can run there."])])

    def __rich__(self) -> str:
        from rich.markup import escape

        return escape(str(self))


class Existing:
    """The cluster behind the kubeconfig context that COURSE_CONTEXT names; never the current one by itself."""

    name = "existing"

    def __init__(self) -> None:
        self._context = os.environ.get("COURSE_CONTEXT", "")
        self._written: tuple[object, ...] | None = None

    # ---- how it is reached -------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """A file of ours that holds the one context and nothing else; made anew when the user's has changed.

        Raises:
            CourseError: if there is no kubeconfig, or no such context in it.
        """
        file = make_state_dir() / "existing.kubeconfig"
        sources = [Path(place) for place in self._source().split(os.pathsep)]
        now = tuple(place.stat().st_mtime_ns for place in sources if place.is_file())
        if not now:
            raise CourseError(
                f"There is no kubeconfig {self._source()}, in which COURSE_CONTEXT={self._context} could be looked up.",
                "Set KUBECONFIG to the file that you were given.",
            )
        if now != self._written:
            write_private(file, self._only_context().encode())
            self._written = now
        return file

    @staticmethod
    def _source() -> str:
        """As kubectl finds it; a lesson sets KUBECONFIG for its own, and keeps what it was before."""
        given = os.environ.get("COURSE_KUBECONFIG") or os.environ.get("KUBECONFIG")
        return given or str(Path.home() / ".kube" / "config")

    def _only_context(self) -> str:
        view = ["config", "view", "--raw", "--minify", "--flatten", f"--context={self._context}", "--output=json"]
        done = self._kubectl(*view)
        if done.returncode != 0:
            there = self._kubectl("config", "get-contexts", "--output=name").stdout.split()
            raise CourseError(
                f"COURSE_CONTEXT names {self._context}, and kubectl cannot use that: {_last_line(done.stderr)}.",
                f"The contexts of {self._source()} are: {', '.join(there) or 'none'}.",
            )
        return done.stdout

    def _kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KUBECONFIG": self._source()}
        return subprocess.run([self.kubectl(), *words], env=environment, capture_output=True, text=True)

    def kubectl(self) -> Path:
        from helpers.cluster.embedded.tools import binary

        found = shutil.which("kubectl")
        return Path(found) if found else binary("kubectl")

    @property
    def _kube(self) -> Kube:
        return Kube(self.kubeconfig, READ_S)

    # ---- what it has -------------------------------------------------------------------------------------------------

    def is_running(self) -> bool:
        try:
            self._kube.version()
        except CourseError:
            return False
        return True

    def capabilities(self) -> frozenset[str]:
        for refusal in self._refusals():
            raise refusal
        seen = self._seen
        found = {"kubernetes", "autoscaler"}
        # where the Kubernetes nodes do not show, nothing is promised of them
        found |= {"real_gpu"} if seen.real_gpus else set()
        found |= {"fake_gpu"} if seen.fake_gpus else set()
        found |= {"node_autoscaler"} if seen.node_autoscaler else set()
        return frozenset(found)

    def facts(self) -> Facts:
        parts = {"Kubernetes": self._seen.kubernetes, "KubeRay": self._seen.kuberay or ""}
        return Facts(parts, host_is_image=False, settle_s=SETTLE_S, ahead_s=self._seen.ahead_s, owner=owner())

    @cached_property
    def _seen(self) -> Seen:
        """
        Raises:
            CourseError: if it does not answer, or does not know this user.
        """
        kube = self._kube
        try:
            kubernetes = kube.version()
            missing = tuple(_missing(kube))
        except NoAnswer as error:
            raise CourseError(
                f"The cluster of the context {self._context} does not answer: {error.why}.",
                "See that it runs and that this machine reaches it (a VPN?): "
                f"`kubectl --context={self._context} get --raw=/version`.",
            ) from None
        except KubeError as error:
            raise self._unknown_user(error) from None
        nodes = if_allowed(lambda: kube.list(kube.resource("nodes"), ""))
        fake, real = _gpus(nodes or [])
        return Seen(
            kubernetes, _kuberay(kube), missing, fake, real, None if nodes is None else len(nodes),
            _node_autoscaler(kube), kube.ahead_s(),
        )  # fmt: skip

    def _unknown_user(self, error: KubeError) -> CourseError:
        if error.status != 401:
            return CourseError(
                f"The cluster of the context {self._context} refuses this user: {error.message.rstrip('.')}.",
                "Ask whoever runs it for the permissions of a user who may make namespaces.",
            )
        ended = _ended(json.loads(self.kubeconfig.read_text()))
        why = f"its certificate ended on {ended}" if ended else "its certificate or token is not valid, or not any more"
        return CourseError(
            f"The cluster of the context {self._context} does not know this user: {why}.",
            "Sign in again as you did at first (such as `aws eks update-kubeconfig` or `gcloud container clusters "
            "get-credentials`), or ask for a new kubeconfig.",
        )

    def _refusals(self) -> list[CourseError]:
        """All that stands in the way of a lesson there."""
        seen, found = self._seen, []
        if seen.missing:
            found.append(
                CourseError(
                    f"In the cluster of the context {self._context} you lack permissions that lessons need: "
                    f"{', '.join(seen.missing)}.",
                    "Ask whoever runs it for these; the course makes namespaces of its own, and works in no others.",
                )
            )
        install = f"helm upgrade --install kuberay-operator kuberay/kuberay-operator --version {versions.KUBERAY}"
        repository = "helm repo add kuberay https://ray-project.github.io/kuberay-helm/"
        ask = f"Have it installed: `{repository} && {install}`."
        if seen.kuberay is None:
            found.append(CourseError(f"In the cluster of the context {self._context} there is no KubeRay.", ask))
        elif seen.kuberay and _numbers(seen.kuberay) < OLDEST_KUBERAY:
            found.append(
                CourseError(
                    f"In the cluster of the context {self._context} is KubeRay {seen.kuberay}, which lacks fields that "
                    f"the lessons use.",
                    ask,
                )
            )
        return found

    # ---- its life, which is not ours ---------------------------------------------------------------------------------

    def prepare(self) -> str:
        return ""

    def up(self) -> Status:
        """See that lessons can run there: the permissions, KubeRay, and that the Ray image can be had and fits."""
        self.capabilities()
        image = versions.RAY_IMAGE
        ray, python = probe.ray_of_image(self._kube, image, PULL_S)
        check_ray(ray, python, f"the image {image} of that cluster")
        return self.status()

    def begin_lesson(self) -> list[str]:
        there = self._seen.kuberay
        if there is None or there == versions.KUBERAY:
            return []
        which = f"KubeRay {there}" if there else "a KubeRay that does not show its version"
        return [f"This cluster has {which}; the course was written for {versions.KUBERAY}, and shows what it shows."]

    def status(self) -> Status:
        head = f"An existing cluster, by the context {self._context} of {self._source()}. Nothing of it is ours."
        try:
            seen, refusals = self._seen, self._refusals()
        except CourseError as error:
            return Status(head, (), (error,))
        if seen.nodes is None:
            nodes = "you may not see them"
        else:
            nodes = f"{seen.nodes}, with {seen.real_gpus} GPUs and {seen.fake_gpus} fake ones"
        rows = (
            ("Kubernetes", seen.kubernetes),
            ("KubeRay", "none" if seen.kuberay is None else seen.kuberay or "there; its version does not show"),
            ("Kubernetes nodes", nodes),
            ("node autoscaler", seen.node_autoscaler or "none shows"),
            ("permissions", f"{len(seen.missing)} missing" if seen.missing else "all that lessons need"),
            ("clock", f"{seen.ahead_s:+.0f} s from this machine's" if seen.ahead_s else "as this machine's"),
            ("your namespaces", f"end in -{owner()}"),
        )
        return Status(head, rows, tuple(refusals))

    def logs(self, component: str, follow: bool) -> Iterator[str]:
        raise CourseError(
            f"The logs of an existing cluster are not the course's, so `course logs {component}` shows none.",
            f"Use kubectl, such as `kubectl --context={self._context} logs -n NAMESPACE POD`.",
        )

    def down(self, wipe: bool) -> str:
        told = f"· The cluster of the context {self._context} is not the course's: it goes on."
        if not wipe:
            return told
        from helpers.cluster.session import cleanup

        kube = self._kube
        namespaces = kube.resource("namespaces")
        selector = ",".join(f"{name}={value}" for name, value in {**MANAGED, OWNER_LABEL: owner()}.items())
        names = [thing["metadata"]["name"] for thing in kube.list(namespaces, "", selector)]
        for name in names:
            cleanup.remove(kube, name)
        return f"{told}\n✔ Your namespaces there are removed: {', '.join(names) or 'there were none'}."


def owner() -> str:
    """Six letters and digits that tell this user's namespaces from those of others on the same cluster."""
    file = make_state_dir() / "owner"
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        write_private(file, secrets.token_hex(3).encode())
        return file.read_text().strip()


# ---- what is asked ---------------------------------------------------------------------------------------------------


def _missing(kube: Kube) -> Iterator[str]:
    """The permissions that the user lacks, in words; asked by SelfSubjectAccessReview, one each."""
    asked = [(NAMESPACES[0], NAMESPACES[1], verb, "") for verb in NAMESPACES[2]]
    asked += [(group, resource, verb, SAMPLE) for group, resource, verbs in NEEDED for verb in verbs]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        allowed = list(pool.map(lambda one: _may(kube, *one), asked))
    lacked: dict[str, list[str]] = {}
    for (group, resource, verb, _), may in zip(asked, allowed, strict=True):
        if not may:
            lacked.setdefault(f"{resource}.{group}" if group else resource, []).append(verb)
    for resource, verbs in lacked.items():
        yield f"{'/'.join(verbs)} {resource}"


def _may(kube: Kube, group: str, resource: str, verb: str, namespace: str) -> bool:
    name, _, sub = resource.partition("/")
    attributes = {"group": group, "resource": name, "subresource": sub, "verb": verb, "namespace": namespace}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = kube.request(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        review | {"spec": {"resourceAttributes": attributes}},
    )  # fmt: skip
    return answer["status"]["allowed"]


def _kuberay(kube: Kube) -> str | None:
    """The operator's version, "" if it does not show, None if KubeRay's kinds are not there."""
    if kube.find("rayclusters", "ray.io/v1") is None:
        return None
    deployments = if_allowed(lambda: kube.list(kube.resource("deployments", "apps/v1"), "")) or []
    images = [c["image"] for d in deployments for c in d["spec"]["template"]["spec"]["containers"]]
    found = (re.search(r"kuberay[^:]*operator[^:]*:v?(\d+\.\d+\.\d+)", image) for image in images)
    return next((match[1] for match in found if match), "")


def _node_autoscaler(kube: Kube) -> str:
    if kube.find("nodepools", "karpenter.sh/v1"):
        return "Karpenter"
    # where the Cluster Autoscaler writes what it does, unless it is the cloud's own and hidden
    status = if_allowed(lambda: kube.get(kube.resource("configmaps"), "cluster-autoscaler-status", "kube-system"))
    return "Cluster Autoscaler" if status else ""


def _gpus(nodes: list[dict]) -> tuple[int, int]:
    """GPUs of all Kubernetes nodes: fake ones, and others."""
    fake = real = 0
    for thing in nodes:
        count = gpus(thing)
        if thing["metadata"].get("labels", {}).get(GPU_LABEL) == "fake":
            fake += count
        else:
            real += count
    return fake, real


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _ended(config: dict) -> str:
    """When the user's certificate ended, as a date; "" if it has none, or it has not ended."""
    import base64

    from cryptography import x509

    data = config["users"][0]["user"].get("client-certificate-data", "") if config.get("users") else ""
    if not data:
        return ""
    end = x509.load_pem_x509_certificate(base64.b64decode(data)).not_valid_after_utc
    return f"{end:%Y-%m-%d}" if end < datetime.now(UTC) else ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it does not say why"])[-1].removeprefix("error: ").rstrip(".")

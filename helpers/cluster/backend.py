"""The door to all clusters: what a backend promises, which one a lesson gets, and why.

No notebook and no other room knows a backend by name. What differs between them is asked of `Backend.capabilities` and
`Backend.facts`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from helpers import versions
from helpers.errors import CourseError
from helpers.proc import ask

PLAIN = "lessons 00, 01 and 11 need no Kubernetes"
ENGINES = ("docker", "podman")  # in the order of choice
ASK_S = 5.0  # an engine that takes longer to say who it is does not answer
CLASSES = {
    "existing": "helpers.cluster.existing:Existing",
    "kind": "helpers.cluster.kind:Kind",
    "embedded": "helpers.cluster.embedded.backend:Embedded",
}
# what a lesson asks for may be had from something that is more
MORE_THAN = {"fake_gpu": "real_gpu"}  # Pods ask for a GPU in the same words, whether it is there or not


@dataclass(frozen=True)
class Facts:
    """What cannot be seen from a cluster's objects, or not at once, and those who use it must know.

    Attributes:
        versions: of its parts, by the name of the part; "" if it does not tell.
        host_is_image: whether all Ray images stand for the Ray that is installed on this machine.
        settle_s: seconds within which a RayCluster of a lesson settles there, with room to spare.
        ahead_s: seconds that its clocks are ahead of this machine's.
        owner: whose namespaces a lesson makes, where several people may use the cluster; "" where nobody else does.
    """

    versions: Mapping[str, str]
    host_is_image: bool
    settle_s: float
    ahead_s: float = 0.0
    owner: str = ""


class Backend(Protocol):
    """A place that Kubernetes comes from. It is made with no argument, and holds nothing that has to be closed.

    Attributes:
        name: as in COURSE_BACKEND.
        kubeconfig: the file by which it is reached while it runs. A lesson gets a copy.
    """

    name: str

    @property
    def kubeconfig(self) -> Path: ...

    def is_running(self) -> bool:
        """Whether it runs, all of it. Quick, and never raises."""

    def capabilities(self) -> frozenset[str]:
        """What lessons may ask of it (`CAPABILITIES`); of one that does not run, what it will have.

        Raises:
            CourseError: if it cannot be used, with the reason and what to do.
        """

    def facts(self) -> Facts:
        """What is so of it while it runs."""

    def kubectl(self) -> Path:
        """The kubectl that fits it."""

    def prepare(self) -> str:
        """Begin, in the background, what `up` would take minutes for; what was begun, as a sentence, or ""."""

    def up(self) -> Any:
        """Bring it up, or what of it is missing. May be called again.

        Returns:
            The status.

        Raises:
            CourseError: that says what this machine lacks for it, and the command that brings it. What was begun is
                gone then.
        """

    def begin_lesson(self) -> list[str]:
        """What must be seen to at each `Lab.start`; sentences on what was mended or is otherwise than usual.

        Raises:
            CourseError: if a lesson cannot run there.
        """

    def status(self) -> Any:
        """What of it runs: shown as text, in a terminal and in a notebook."""

    def logs(self, component: str, follow: bool) -> Iterator[str]:
        """The log of a component, line by line; with `follow` also what is written from now on.

        Raises:
            CourseError: if there is no such component, or its log is not for us to read.
        """

    def down(self, wipe: bool) -> str:
        """Stop it; the next `up` finds the same objects, unless `wipe` is asked. What was done, as a sentence."""


# all that the course makes outside of a namespace of its own, which is: those namespaces
MANAGED = {"app.kubernetes.io/managed-by": "ray-course"}
OWNER_LABEL = "ray-course/owner"
# what a Kubernetes node with GPUs says of them: "fake" (a number in its status) or "real"
GPU_LABEL = "ray-course/gpus"
CAPABILITIES = {
    "kubernetes": "a Kubernetes API server, and KubeRay",
    "autoscaler": "worker Pods that come and go",
    "fake_gpu": "Kubernetes nodes that show `nvidia.com/gpu`",
    "real_gpu": "GPUs that compute",
    "node_autoscaler": "machines that come and go",
    "image_pull_delay": "images that take a declared time to pull",
    "node_drain": "Kubernetes nodes that may be drained",
    "ssh_hosts": "hosts that are reached by SSH",
}


# ---- the choice ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """What the choice hangs on.

    Attributes:
        system: as in `sys.platform`.
        engine: the container engine that answers: "docker", "podman", or "".
        refused: why this machine refuses namespaces, as one clause; "" if it allows them.
        wanted: the backend that the user names: by COURSE_BACKEND or --backend; or "".
        context: the kubeconfig context that the user names by COURSE_CONTEXT; or "".
    """

    system: str
    engine: str
    refused: str
    wanted: str
    context: str


def here() -> Here:
    """What is so on this machine now."""
    wanted, context = os.environ.get("COURSE_BACKEND", ""), os.environ.get("COURSE_CONTEXT", "")
    if wanted or context:  # the rest is not asked then, and an engine takes its time
        return Here(sys.platform, "", "", wanted, context)
    return Here(sys.platform, engine(), _refused(), wanted, context)


def engine() -> str:
    """The container engine that answers on this machine: "docker", "podman", or ""."""
    return next((program for program in ENGINES if ask([program, "info"], ASK_S).ok), "")


def _refused() -> str:
    if sys.platform != "linux":
        return ""
    from helpers.cluster.embedded.namespaces import try_out

    return try_out(ASK_S) or ""


@dataclass(frozen=True)
class Candidate:
    """A backend that a lesson may get, and why, as it reads after "it is taken because"."""

    name: str
    why: str


def candidates(about: Here) -> list[Candidate]:
    """The backends that this machine can have, in the order in which they are offered; without asking any of them.

    Raises:
        CourseError: if the user names one that is none, or there is none.
    """
    if about.wanted:
        return [_named(about)]
    if about.context:
        return [Candidate("existing", f"COURSE_CONTEXT names {about.context}")]
    found = []
    if about.engine:
        found.append(Candidate("kind", f"{about.engine} answers"))
    if about.system == "linux" and not about.refused:
        none = "Linux lets it make namespaces" if about.engine else "no container engine answers"
        found.append(Candidate("embedded", none))
    if not found:
        raise _none(about)
    return found


def _named(about: Here) -> Candidate:
    if about.wanted not in CLASSES:
        raise CourseError(
            f"There is no backend {about.wanted}.",
            f"Unset COURSE_BACKEND, or set it to one of: {', '.join(CLASSES)}.",
        )
    if about.wanted == "existing" and not about.context:
        raise CourseError(
            "The backend is to be an existing cluster, and COURSE_CONTEXT does not say which.",
            "Set COURSE_CONTEXT to a context of your kubeconfig; `kubectl config get-contexts` lists them. "
            "The current one is never taken by itself.",
        )
    if about.wanted == "embedded" and about.system != "linux":
        raise _no_linux()
    return Candidate(about.wanted, "COURSE_BACKEND names it")


def _no_linux() -> CourseError:
    return CourseError(
        f"There is no Kubernetes here: the embedded cluster needs Linux, and {PLAIN}.",
        "Start Docker Desktop or podman (the backend is kind then), or use a Linux machine (on Windows: "
        "`wsl --install`).",
    )


def _none(about: Here) -> CourseError:
    if about.system != "linux":
        return _no_linux()
    return CourseError(
        f"There is no Kubernetes here: no container engine answers, and namespaces are refused ({about.refused}); "
        f"{PLAIN}.",
        "`course doctor` shows the command that allows namespaces; or start Docker or podman.",
    )


def make(name: str) -> Backend:
    """A backend by its name."""
    module, _, kind = CLASSES[name].partition(":")
    return getattr(import_module(module), kind)()


@dataclass(frozen=True)
class Choice:
    """A backend, and why it was taken, as it reads after "it is taken because"."""

    backend: Backend
    why: str


def choose(capabilities: Iterable[str]) -> Choice:
    """The backend that a lesson gets: of those with its capabilities, one that runs, else the first.

    Raises:
        CourseError: if none has them, or none can be had at all.
    """
    wanted = set(capabilities)
    possible = [Choice(make(one.name), one.why) for one in candidates(here())]
    # who wants nothing of it may also have one that cannot be used, and look at it
    missing = {one.backend.name: lacking(wanted, one.backend.capabilities()) if wanted else () for one in possible}
    fitting = [choice for choice in possible if not missing[choice.backend.name]]
    if not fitting:
        told = "; ".join(f"{name} lacks {', '.join(sorted(what))}" for name, what in missing.items())
        raise CourseError(
            f"No cluster that this machine can have has what this lesson needs: {told}.",
            "Take another lesson: the first cell of each says what it needs.",
        )
    if len(fitting) > 1:
        running = next((choice for choice in fitting if choice.backend.is_running()), None)
        if running:
            return Choice(running.backend, "it runs already")
    return fitting[0]


def lacking(wanted: Iterable[str], there: Collection[str]) -> set[str]:
    """The capabilities that are missing."""
    return {one for one in wanted if one not in there and MORE_THAN.get(one) not in there}


def running(capabilities: Iterable[str]) -> Choice:
    """The backend of `choose`, running: found so, or brought up now, with its progress shown.

    Raises:
        CourseError: that says what is missing, and the command that brings it.
    """
    choice = choose(capabilities)
    if not choice.backend.is_running():
        print(
            f"No cluster runs yet: the {choice.backend.name} one is started now, because {choice.why}; it stays until "
            "`course down`.",
            flush=True,
        )
        choice.backend.up()
    return choice


def check_ray(found_ray: str, found_python: str, where: str) -> None:
    """See that a Ray image has what this notebook has.

    Args:
        found_ray: version of Ray in the image.
        found_python: version of Python in it.
        where: of the image, as it reads after "in".

    Raises:
        CourseError: if Ray or Python differs: functions and their results could not be sent between the two.
    """
    from importlib import metadata

    ours = metadata.version("ray"), f"{sys.version_info.major}.{sys.version_info.minor}"
    theirs = found_ray, ".".join(found_python.split(".")[:2])
    for name, here_, there in zip(("Ray", "Python"), ours, theirs, strict=True):
        if here_ != there:
            raise CourseError(
                f"This notebook has {name} {here_}, and {name} is {there} in {where}: what one sends, the other "
                "cannot be sure to read.",
                f"Give the cluster the image {versions.RAY_IMAGE}, or run `make lab` again, which mends this "
                "environment.",
            )

"""What a Ray image holds, as a Pod of it says: found before the first lesson rather than in the middle of one."""

from __future__ import annotations

import json
import uuid

from helpers import versions
from helpers.cluster.backend import MANAGED
from helpers.errors import CourseError
from helpers.kube import Kube, patient
from helpers.wait import WaitTimeout, wait_until

SAY = "import json, platform, ray; print(json.dumps([ray.__version__, platform.python_version()]))"
NOT_PULLED = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
GONE_S = 60.0
SIZE = {"cpu": "200m", "memory": "512Mi"}


def ray_of_image(kube: Kube, image: str, timeout_s: float) -> tuple[str, str]:
    """The versions of Ray and Python in an image, by a Pod in a namespace that is made for it and removed again.

    Args:
        kube: the cluster.
        image: such as `rayproject/ray:2.60.0-py311`.
        timeout_s: seconds for all of it: an image that no Kubernetes node has yet is pulled first.

    Raises:
        CourseError: if the image cannot be pulled, or its Pod does not get that far.
    """
    namespaces = kube.resource("namespaces")
    name = f"ray-course-probe-{uuid.uuid4().hex[:8]}"
    thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(MANAGED)}}
    kube.apply(namespaces, thing, "")
    try:
        wait_until(
            patient(lambda: kube.get(kube.resource("serviceaccounts"), "default", name) is not None),
            GONE_S, what="the namespace's default ServiceAccount",
        )  # fmt: skip
        kube.create(kube.resource("pods"), _pod(image), name)
        return _answer(kube, name, image, timeout_s)
    finally:
        kube.delete(namespaces, name, "")
        wait_until(patient(lambda: kube.get(namespaces, name, "") is None), GONE_S, what=f"the end of {name}")


def _pod(image: str) -> dict:
    container = {"name": "ray", "image": image, "command": ["python", "-c", SAY], "resources": {"requests": SIZE}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}


def _answer(kube: Kube, namespace: str, image: str, timeout_s: float) -> tuple[str, str]:
    def ended() -> str:
        pod = kube.get(kube.resource("pods"), "probe", namespace)
        assert pod, "its Pod is gone"
        _check_pulled(pod, image)
        phase = pod["status"].get("phase", "Pending")
        assert phase in ("Succeeded", "Failed"), f"its Pod is {phase}{_why(pod)}"
        return phase

    try:
        phase = wait_until(patient(ended), timeout_s, what=f"a Pod of {image}, which says its versions", every_s=0.5)
    except WaitTimeout as error:
        raise CourseError(
            f"A Pod of {image} does not come to its end: {error.reason}.",
            "If the Kubernetes nodes still pull the image, run the same command again; else see what they have free.",
        ) from None
    said = kube.logs("probe", namespace)
    try:
        ray, python = json.loads(said.strip().splitlines()[-1])
    except (ValueError, IndexError, TypeError):
        raise CourseError(
            f"A Pod of {image} ended as {phase} and did not say its versions, but: {said.strip()[-200:] or 'nothing'}.",
            f"Give the cluster an image that holds Ray {versions.RAY} under that name.",
        ) from None
    return ray, python


def _check_pulled(pod: dict, image: str) -> None:
    """
    Raises:
        CourseError: if the kubelet has tried to pull the image, and could not.
    """
    for status in pod["status"].get("containerStatuses", ()):
        waiting = status.get("state", {}).get("waiting", {})
        if waiting.get("reason") in NOT_PULLED:
            raise not_pulled(image, waiting.get("message") or waiting["reason"])


def not_pulled(image: str, why: str) -> CourseError:
    """The refusal for an image that cannot be had, with the ways out."""
    return CourseError(
        f"The image {image} cannot be pulled: {' '.join(why.split())[:300].rstrip('.')}.",
        "Three ways out: let a mirror serve it under that name; load it into the Kubernetes nodes from an archive "
        "(`ctr --namespace k8s.io images import FILE`; in kind: `kind load image-archive FILE --name course`); or "
        "preload it in the image that the Kubernetes nodes are made from.",
    )


def _why(pod: dict) -> str:
    conditions = pod["status"].get("conditions", ())
    told = next((c.get("message") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), "")
    return f" ({told.rstrip('.')})" if told else ""

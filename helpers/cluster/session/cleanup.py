"""Removing a lesson's namespace and all in it, also when a finalizer holds something back."""

from __future__ import annotations

import time
from collections import Counter

from helpers.cluster.session.target import listed
from helpers.kube import Kube, KubeError, Resource, patient
from helpers.wait import wait_until

RAY_KINDS = ("rayservices", "rayjobs", "rayclusters")  # what has others goes first
PATIENCE_S = 40.0  # for the operator to take its finalizers off; with a Redis it runs a Job for that
GONE_S = 180.0
# what says that somebody works on it: these are Kubernetes' own, and go by themselves
OWN_FINALIZERS = {"foregroundDeletion", "orphan"}


def contents(kube: Kube, namespace: str) -> str:
    """What there is of Ray and Pods in a namespace, in words; empty if nothing."""
    counts = Counter({kind: len(listed(kube, kind, namespace)) for kind in (*RAY_KINDS, "deployments", "pods")})
    words = {"pods": "Pod", "deployments": "Deployment", "rayclusters": "RayCluster", "rayjobs": "RayJob"}
    words["rayservices"] = "RayService"
    return ", ".join(f"{count} {words[kind]}{'' if count == 1 else 's'}" for kind, count in counts.items() if count)


def remove(kube: Kube, namespace: str) -> list[str]:
    """Delete a namespace, and wait until it is gone; sentences on what had to be healed.

    What KubeRay owns goes first: its operator makes Jobs and asks dashboards while it tidies up, which a namespace
    that is being deleted allows no more.

    Raises:
        CourseError: if it is not gone after `GONE_S`.
    """
    if kube.get(kube.resource("namespaces"), namespace, "") is None:
        return []
    said = remove_ray(kube, namespace)
    kube.delete(kube.resource("namespaces"), namespace, "")
    since = time.monotonic()

    def gone() -> bool:
        thing = kube.get(kube.resource("namespaces"), namespace, "")
        if thing is None:
            return True
        if time.monotonic() - since > PATIENCE_S:
            said.extend(_heal(kube, namespace))
        raise AssertionError(_remaining(thing))

    wait_until(patient(gone), GONE_S, what=f"the namespace {namespace} to end", every_s=0.5, fix=_look(namespace))
    return said


def remove_ray(kube: Kube, namespace: str) -> list[str]:
    """Delete all objects of KubeRay, and wait until they are gone; sentences on what had to be healed."""
    things = [(kube.resource(kind), thing) for kind in RAY_KINDS for thing in listed(kube, kind, namespace)]
    for resource, thing in things:
        kube.delete(resource, thing["metadata"]["name"], namespace)
    return [line for resource, thing in things for line in until_gone(kube, namespace, resource, thing)]


def until_gone(kube: Kube, namespace: str, resource: Resource, thing: dict) -> list[str]:
    """Wait until an object that is being deleted is gone; a finalizer that nobody takes off is taken off, and said.

    Raises:
        CourseError: if it is not gone after `GONE_S`.
    """
    name, uid, since, said = thing["metadata"]["name"], thing["metadata"]["uid"], time.monotonic(), []

    def gone() -> bool:
        now = kube.get(resource, name, namespace)
        if now is None or now["metadata"]["uid"] != uid:
            return True
        held = _held(now)
        if held and time.monotonic() - since > PATIENCE_S:
            said.append(_take_off(kube, namespace, resource, now))
        raise AssertionError(f"the finalizer {', '.join(held)}" if held else "its Pods to end")

    wait_until(patient(gone), GONE_S, what=f"{resource.label(name)} to end", every_s=0.3, fix=_look(namespace))
    return said


def _held(thing: dict) -> list[str]:
    return [name for name in thing["metadata"].get("finalizers", []) if name not in OWN_FINALIZERS]


def _take_off(kube: Kube, namespace: str, resource: Resource, thing: dict) -> str:
    name, held = thing["metadata"]["name"], ", ".join(_held(thing))
    try:
        kube.patch(resource, name, namespace, {"metadata": {"finalizers": None}})
    except KubeError as error:
        if error.status != 404:
            raise
    return (
        f"{resource.label(name)} hung on its finalizer {held}, which its controller had not taken off after "
        f"{PATIENCE_S:g} s (does the operator run?); it was taken off here"
    )


def _heal(kube: Kube, namespace: str) -> list[str]:
    """Take the finalizers off whatever still holds the namespace."""
    said = []
    for kind in (*RAY_KINDS, "jobs", "services", "configmaps", "secrets"):
        for thing in listed(kube, kind, namespace):
            if _held(thing) and "deletionTimestamp" in thing["metadata"]:
                said.append(_take_off(kube, namespace, kube.resource(kind), thing))
    return said


def _remaining(namespace: dict) -> str:
    """What the API server says is still in it."""
    types = ("NamespaceFinalizersRemaining", "NamespaceContentRemaining", "NamespaceDeletionDiscoveryFailure")
    told = [
        condition["message"]
        for type_ in types
        for condition in namespace.get("status", {}).get("conditions", [])
        if condition["type"] == type_ and condition["status"] == "True"
    ]
    return told[0] if told else "what is in it"


def _look(namespace: str) -> str:
    return f"`kubectl get namespace {namespace} -o yaml` says in `status` what holds it; then run the cell again."

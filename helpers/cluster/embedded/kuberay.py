"""KubeRay in the cluster: its custom resource definitions, its operator, and what the operator may do.

Facts: config/crd, config/rbac and main.go of KubeRay's module ray-operator; what Helm's chart makes is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helpers.cluster.embedded import controlplane
from helpers.cluster.embedded.api import Api
from helpers.cluster.embedded.boot import Component
from helpers.cluster.embedded.layout import Layout
from helpers.cluster.embedded.tools.table import CRDS, ROLE

OPERATOR = "kuberay-operator"
PROBE = "127.0.0.1:8083"
METRICS = "127.0.0.1:8082"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DIGEST = "ray-course/sha256"  # annotation of a definition: of the file that it was made from
ANNOTATIONS = b"\n  annotations:\n"


def operator(layout: Layout, binary: Callable[[str], Path]) -> Component:
    """KubeRay's operator, for all namespaces."""
    argv = (
        str(binary("ray-operator")),
        f"--kubeconfig={controlplane.kubeconfig(layout, OPERATOR)}",
        "--enable-leader-election=false",  # there is one of it, see `controlplane.controllers`
        f"--metrics-addr={METRICS}",
        f"--health-probe-bind-address={PROBE}",
        "--log-stdout-encoder=console",
    )
    return Component(OPERATOR, argv, after=(controlplane.API,), ready_url=f"http://{PROBE}/readyz")


def install(api: Api, manifests: Mapping[str, Path]) -> bool:
    """Make the definitions, unless they are there as they should be, and give the operator its role.

    Args:
        api: the API server.
        manifests: files of KubeRay's module by their names, see `tools.kuberay_manifests`.

    Returns:
        True.

    Raises:
        OSError: if nobody answers.
        ApiError: if the API server refuses.
    """
    there = {one["name"]: one.get("annotations", {}).get(DIGEST) for one in api.metadata(DEFINITIONS)}
    wanted = {definition_name(file): manifests[file] for file in CRDS}
    missing = {name: path for name, path in wanted.items() if there.get(name) != _digest(path)}
    with ThreadPoolExecutor() as pool:  # the API server takes a second or two for each
        list(pool.map(lambda name: api.apply_text(f"{DEFINITIONS}/{name}", marked(missing[name])), missing))
    rbac = f"/apis/{controlplane.RBAC}/v1"
    api.apply_text(f"{rbac}/clusterroles/{OPERATOR}", manifests[ROLE].read_bytes())
    api.apply(f"{rbac}/clusterrolebindings", controlplane.binding(OPERATOR, OPERATOR, OPERATOR))
    return True


def is_served(api: Api) -> bool:
    """Whether the API server serves all kinds: they are established, and a client finds them.

    Raises:
        AssertionError: with what is missing.
    """
    told = api.get("/apis/ray.io/v1") or {"resources": []}
    missing = {definition_name(file).partition(".")[0] for file in CRDS} - {one["name"] for one in told["resources"]}
    assert not missing, f"not served yet: {', '.join(sorted(missing))}"
    return True


def definition_name(file: str) -> str:
    """The name of the definition in a file of config/crd/bases.

    Example:
        >>> definition_name("ray.io_rayclusters.yaml")
        'rayclusters.ray.io'
    """
    group, _, plural = file.removesuffix(".yaml").partition("_")
    return f"{plural}.{group}"


def marked(path: Path) -> bytes:
    """The text of a definition, with an annotation that says what it was made from.

    It is not parsed: it has up to 1.3 MB, and the API server reads YAML itself.
    """
    before, found, after = path.read_bytes().partition(ANNOTATIONS)
    assert found, f"{path} has no annotations"
    return before + found + f"    {DIGEST}: {_digest(path)}\n".encode() + after


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

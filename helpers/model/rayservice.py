"""What a RayService becomes: whether KubeRay takes it, and what an upgrade needs.

Source: KubeRay 1.6.2, `controllers/ray/utils/validation.go` and `controllers/ray/rayservice_controller.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from helpers.model.findings import ERROR, WARNING, Finding
from helpers.model.raycluster import Cluster
from helpers.model.releases import PINNED, Releases

NEW_CLUSTER, INCREMENTAL = "NewCluster", "NewClusterWithIncrementalUpgrade"
STRATEGIES = (NEW_CLUSTER, INCREMENTAL, "None")
TIMEOUT = "ray.io/initializing-timeout"
NAMESPACE = "ray.io/external-storage-namespace"  # the old way to name a storage namespace
_DURATION = re.compile(r"\+?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h))+")


def refusals(document: Mapping[str, Any], cluster: Cluster, releases: Releases = PINNED) -> list[Finding]:
    """What the operator refuses the service for, its cluster aside; all errors.

    `ValidateRayServiceMetadata`, `ValidateRayServiceSpec` and `ValidateClusterUpgradeOptions`.
    """
    found = [*_timeout(document)]
    spec, path = document["spec"], f"{cluster.path}.headGroupSpec.headService.metadata.name"
    if ((cluster.head.spec.get("headService") or {}).get("metadata") or {}).get("name"):
        said = "the service makes the head's Service itself, and moves it from cluster to cluster"
        found.append(Finding("head-service-name", path, ERROR, said))
    delay = spec.get("rayClusterDeletionDelaySeconds") or 0
    if delay < 0:
        found.append(Finding("negative-bound", "spec.rayClusterDeletionDelaySeconds", ERROR, f"it is {delay}, below 0"))
    strategy = (spec.get("upgradeStrategy") or {}).get("type")
    if strategy is not None and strategy not in STRATEGIES:
        said = f"{strategy!r:.60} is not one of {', '.join(STRATEGIES)}"
        found.append(Finding("bad-enum", "spec.upgradeStrategy.type", ERROR, said))
    if is_incremental(spec, releases):
        found += _upgrade_options(spec, cluster)
    return found


def _timeout(document: Mapping[str, Any]) -> Iterator[Finding]:
    """`validateInitializingTimeout`."""
    text = (document["metadata"].get("annotations") or {}).get(TIMEOUT, "")
    is_time = _DURATION.fullmatch(text) or re.fullmatch(r"\+?\d+", text)
    if text and not (is_time and re.search("[1-9]", text)):
        said = f"{text!r:.40} is no time above 0"
        yield Finding("bad-annotation", f"metadata.annotations.{TIMEOUT}", ERROR, said)


def _upgrade_options(spec: Mapping[str, Any], cluster: Cluster) -> Iterator[Finding]:
    options, path = spec["upgradeStrategy"].get("clusterUpgradeOptions"), "spec.upgradeStrategy.clusterUpgradeOptions"
    wrong = []
    if not cluster.is_autoscaling:
        wrong.append("an upgrade in steps needs autoscaling")
    if options is None:
        wrong.append("an upgrade in steps needs them")
    else:
        surge, step = options.get("maxSurgePercent"), options.get("stepSizePercent")
        surge = 100 if surge is None else surge
        if not 0 <= surge <= 100:
            wrong.append(f"maxSurgePercent is {surge}, and is 0 to 100")
        if step is None or not 0 <= step <= 100:
            wrong.append(f"stepSizePercent is {'not written' if step is None else step}, and is 0 to 100")
        if (options.get("intervalSeconds") or 0) <= 0:
            wrong.append("intervalSeconds is above 0")
        if not options.get("gatewayClassName"):
            wrong.append("gatewayClassName is required")
    for said in wrong:
        yield Finding("bad-upgrade-options", path, ERROR, said)


def misreadings(document: Mapping[str, Any], cluster: Cluster) -> list[Finding]:
    """Where a service runs, but not as it is written; warnings."""
    said = "it is the same for each cluster of the service, so the next one loads the state of the last"
    options, path = cluster.spec.get("gcsFaultToleranceOptions") or {}, f"{cluster.path}.gcsFaultToleranceOptions"
    found = []
    if options.get("externalStorageNamespace"):
        found.append(Finding("pinned-storage-namespace", f"{path}.externalStorageNamespace", WARNING, said))
    elif cluster.has_fault_tolerance and (document["metadata"].get("annotations") or {}).get(NAMESPACE):
        found.append(Finding("pinned-storage-namespace", f"metadata.annotations.{NAMESPACE}", WARNING, said))
    return found


def is_incremental(spec: Mapping[str, Any], releases: Releases = PINNED) -> bool:
    """Whether an upgrade goes in steps: the gate RayServiceIncrementalUpgrade is off in KubeRay 1.6, and on in 1.7."""
    return (spec.get("upgradeStrategy") or {}).get("type") == INCREMENTAL and releases.kuberay >= (1, 7, 0)


@dataclass(frozen=True)
class Upgrade:
    """What an upgrade needs and does.

    Attributes:
        gpus_needed: of the old cluster and the new one together.
        switches: whether the new one takes over.
        served_by: which of them answers in the end, "old" or "new".
    """

    gpus_needed: int
    switches: bool
    served_by: str


def upgrade(service_gpus: int, there_gpus: int, strategy: str | None = None) -> Upgrade:
    """What becomes of an edit that wants a new cluster: `shouldPrepareNewCluster`, `isZeroDowntimeUpgradeEnabled`.

    The new cluster is whole before the old one goes. With another strategy than NewCluster none is made: the one in
    steps has its gate off in KubeRay 1.6.

    Args:
        service_gpus: what one cluster of the service asks for.
        there_gpus: what the Kubernetes nodes have, in use or free.
        strategy: upgradeStrategy.type.
    """
    if strategy not in (None, "", NEW_CLUSTER):
        return Upgrade(service_gpus, False, "old")
    switches = there_gpus >= 2 * service_gpus
    return Upgrade(2 * service_gpus, switches, "new" if switches else "old")

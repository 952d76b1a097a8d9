"""What is found in a manifest, from the API server's first word to what Ray makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helpers.model import crds, raycluster
from helpers.model.findings import Finding


def lint(document: Mapping[str, Any]) -> list[Finding]:
    """What the API server, the operator and Ray say to a document of KubeRay, the first of them that refuses it last.

    Args:
        document: plain data, as `helpers.model.manifest.documents` gives it; one of another kind has no findings.
    """
    if document.get("kind") not in crds.kinds():
        return []
    if found := crds.faults(document):
        return found
    cluster = raycluster.cluster_of(document)
    if cluster is None:
        return []
    found = raycluster.refusals(cluster)
    return found or raycluster.misreadings(cluster)

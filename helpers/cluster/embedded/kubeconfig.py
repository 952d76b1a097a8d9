"""Kubeconfigs: JSON, which is YAML too."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from helpers.cluster.embedded.pki import CA, Pki

NAME = "ray-course"  # of the context, so that it is told from others when kubeconfigs are merged


def by_paths(keys: Pki, certificate: str, server: str) -> str:
    """A kubeconfig that names files: for components, which live beside them and read them anew when they change."""
    user = {
        "client-certificate": str(keys.certificate(certificate)),
        "client-key": str(keys.key(certificate)),
    }
    return _text({"server": server, "certificate-authority": str(keys.certificate(CA))}, user)


def by_value(keys: Pki, certificate: str, server: str) -> str:
    """A kubeconfig that holds everything, so that it can be copied elsewhere. Who has it is who it names."""
    user = {
        "client-certificate-data": _encoded(keys.certificate(certificate)),
        "client-key-data": _encoded(keys.key(certificate)),
    }
    return _text({"server": server, "certificate-authority-data": _encoded(keys.certificate(CA))}, user)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _text(cluster: dict, user: dict) -> str:
    context = {"cluster": NAME, "user": NAME, "namespace": "default"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": user}],
        "contexts": [{"name": NAME, "context": context}],
        "current-context": NAME,
    }
    return json.dumps(config, indent=1) + "\n"

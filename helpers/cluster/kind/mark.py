"""What is kept of the cluster that was made, so that the next `course up` knows it: one file beside its kubeconfig.

engine     "docker" or "podman"
image      of the Kubernetes nodes
gpus       "fake" or "real"
addresses  {"course-worker": "172.18.0.3", …}, of the Kubernetes nodes; empty while the cluster is being made
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from helpers.state import write_private


@dataclass(frozen=True)
class Mark:
    """What was made, and how."""

    engine: str
    image: str
    gpus: str
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it was made to the end."""
        return bool(self.addresses)

    def write(self, path: Path) -> None:
        write_private(path, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, path: Path) -> Mark | None:
        """What the file says; None if there is none, or no whole one."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

"""KubeRay's own sources and samples: its Go module, of the version that the operator is built from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from helpers.cluster.embedded.tools import golang, table


def go(*words: str, cwd: Path, temporary: Path) -> str:
    """What a command of Go prints; `temporary` is for what it throws away."""
    found = golang.find()
    temporary.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(found.command), *words], cwd=cwd, env=found.environment(temporary), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def sources(temporary: Path) -> Path:
    """Where the module lies, with the checksum of go.sum; fetched, if it is not in Go's cache."""
    family, _ = table.find("ray-operator")

    def look() -> str:
        return go("list", "-m", "-f", "{{.Dir}}", family.module, cwd=family.folder, temporary=temporary)

    if not look():  # as where the operator was unpacked from an archive
        go("mod", "download", family.module, cwd=family.folder, temporary=temporary)
    return Path(look())

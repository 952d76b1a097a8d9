"""Becomes a program in a root of the kind that containers have: `inside.py DIRECTORY DEVICES ENVIRONMENT PROGRAM…`.

DIRECTORY is for the root's layers; DEVICES is a JSON list of device files, ENVIRONMENT a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from helpers.cluster.embedded.runtime import rootfs


def main(directory: str, devices: str, environment: str, *program: str) -> None:
    """Enter the root, and be the program."""
    rootfs.prepare(directory)
    spec = {"devices": json.loads(devices)}
    view = {"hidden": [], "visible": [sys.prefix, sys.base_prefix]}
    rootfs.Root(directory, spec, view, "/dev/shm", {}).enter()
    os.execve(program[0], program, json.loads(environment))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (rootfs.RootError, OSError) as problem:
        sys.exit(f"no such root here: {problem}")

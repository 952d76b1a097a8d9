"""What is looked at before a kind cluster is made, so that it does not fail half-way: memory, inotify limits, disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from helpers.cluster.kind.engine import Info
from helpers.errors import CourseError

GIB = 1024**3
# three Kubernetes nodes take 1.5 GiB; a head and two workers of the lessons ask for 2 GiB each, and use half of it. A
# virtual machine of 6 GiB shows 5.8
MEMORY_BYTES = int(5.5 * GIB)
# the images in the engine, in an archive on the way, and packed and unpacked in each of three Kubernetes nodes
DISK_BYTES = 12 * GIB
# every Kubernetes node runs a systemd, a kubelet and a containerd, each of which watches files (kind, "Known Issues")
INOTIFY = {"fs.inotify.max_user_instances": 512, "fs.inotify.max_user_watches": 524288}
SETTINGS = Path("/proc/sys")


def check(engine: str, info: Info) -> None:
    """See that a cluster has room.

    Args:
        engine: the name of the container engine.
        info: what it says of its machine.

    Raises:
        CourseError: with the command that mends it.
    """
    _check_memory(engine, info)
    if info.is_here:  # of another machine, or a virtual one, nothing more is known
        _check_inotify()
        _check_disk(engine, info)


def _check_memory(engine: str, info: Info) -> None:
    if info.memory_bytes < MEMORY_BYTES:
        raise CourseError(
            f"{engine} has {info.memory_bytes / GIB:.1f} GiB of memory, and a kind cluster with a lesson needs 6.",
            "Give Docker Desktop 6 GiB or more (Settings, Resources) or the machine of podman "
            "(`podman machine set --memory 6144`), or use a larger machine.",
        )


def _check_inotify() -> None:
    low = {name: (found, least) for name, least in INOTIFY.items() if (found := _setting(name, least)) < least}
    if low:
        told = ", ".join(f"{name} is {found} and has to be {least}" for name, (found, least) in low.items())
        settings = " ".join(f"{name}={least}" for name, (_, least) in low.items())
        raise CourseError(
            f"The Kubernetes nodes of kind could not watch all their files here: {told}.",
            f"Run `sudo sysctl -w {settings}`; in a file below /etc/sysctl.d/ the same lines outlive a restart.",
        )


def _setting(name: str, default: int) -> int:
    try:
        return int((SETTINGS / name.replace(".", "/")).read_text())
    except (OSError, ValueError):
        return default


def _check_disk(engine: str, info: Info) -> None:
    try:
        free = shutil.disk_usage(info.root).free
    except OSError:  # not for this user to see
        return
    if free < DISK_BYTES:
        raise CourseError(
            f"{free / GIB:.1f} GiB are free at {info.root}, where {engine} keeps images and containers, and a kind "
            f"cluster with the image of Ray takes {DISK_BYTES / GIB:.0f}.",
            f"Free some space there; `{engine} system df` shows what of it {engine} uses.",
        )

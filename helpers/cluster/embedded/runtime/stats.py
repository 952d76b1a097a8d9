"""What containers use: CPU and memory as init counts them, disk by walking directories, network from the veths."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import Message

from helpers.cluster.embedded.runtime.cri import Messages

FRESH_S = 30  # a directory is not walked more often than that


@dataclass(frozen=True)
class DiskUsage:
    """Of a directory: bytes that it takes on the disk, files and directories in it, when it was counted (ns)."""

    used_bytes: int
    inodes: int
    taken_ns: int


class Disk:
    """Counts what directories take, at most every half minute each.

    Args:
        root: what all of it is below; its file system is the one that is reported.
    """

    def __init__(self, root: Path):
        self.root = root
        self._known: dict[Path, DiskUsage] = {}

    async def usage(self, directory: Path) -> DiskUsage:
        """What a directory takes; nothing if there is none."""
        known = self._known.get(directory)
        if known is None or time.time_ns() - known.taken_ns > FRESH_S * 10**9:
            used, inodes = await asyncio.to_thread(walk, directory)
            known = self._known[directory] = DiskUsage(used, inodes, time.time_ns())
        return known

    def forget(self, directory: Path) -> None:
        self._known.pop(directory, None)

    def message(self, pb: Messages, usage: DiskUsage) -> Message:
        """As the CRI's FilesystemUsage."""
        return pb.FilesystemUsage(
            timestamp=usage.taken_ns,
            fs_id=pb.FilesystemIdentifier(mountpoint=str(self.root)),
            used_bytes=pb.UInt64Value(value=usage.used_bytes),
            inodes_used=pb.UInt64Value(value=usage.inodes),
        )


def walk(directory: Path) -> tuple[int, int]:
    """Bytes on the disk and number of entries of a directory, without other file systems mounted in it."""
    used = inodes = 0
    try:
        device = os.lstat(directory).st_dev
    except OSError:
        return 0, 0
    waiting = [str(directory)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # it was removed meanwhile
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if status.st_dev != device:
                continue
            used, inodes = used + status.st_blocks * 512, inodes + 1
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
    return used, inodes


class Cores:
    """CPU in use right now, in billionths of a core, from the difference to the sample before."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}

    def update(self, id: str, now_ns: int, cpu_ns: int) -> int:
        then_ns, before_ns = self._before.get(id, (now_ns, cpu_ns))
        self._before[id] = now_ns, cpu_ns
        return max(cpu_ns - before_ns, 0) * 10**9 // (now_ns - then_ns) if now_ns > then_ns else 0

    def forget(self, id: str) -> None:
        self._before.pop(id, None)


def cpu_message(pb: Messages, now_ns: int, used_ns: int, nano_cores: int) -> Message:
    value = pb.UInt64Value
    return pb.CpuUsage(
        timestamp=now_ns, usage_core_nano_seconds=value(value=used_ns), usage_nano_cores=value(value=nano_cores)
    )


def memory_message(pb: Messages, now_ns: int, usage: dict[str, int], limit_bytes: int) -> Message:
    """As the CRI's MemoryUsage.

    Args:
        usage: memory_bytes, working_set_bytes, rss_bytes.
        limit_bytes: the container's limit; 0: none, and then nothing is said of what is available.
    """
    value = pb.UInt64Value
    message = pb.MemoryUsage(
        timestamp=now_ns,
        working_set_bytes=value(value=usage["working_set_bytes"]),
        usage_bytes=value(value=usage["memory_bytes"]),
        rss_bytes=value(value=usage["rss_bytes"]),
    )
    if limit_bytes:
        message.available_bytes.value = max(limit_bytes - usage["working_set_bytes"], 0)
    return message


def network_message(pb: Messages, now_ns: int, usage: tuple[int, int, int, int]) -> Message:
    """As the CRI's NetworkUsage of a Pod, whose interface is always eth0."""
    names = ("rx_bytes", "rx_errors", "tx_bytes", "tx_errors")
    values = {name: pb.UInt64Value(value=number) for name, number in zip(names, usage, strict=True)}
    eth0 = pb.NetworkInterfaceUsage(name="eth0", **values)
    return pb.NetworkUsage(timestamp=now_ns, default_interface=eth0, interfaces=[eth0])

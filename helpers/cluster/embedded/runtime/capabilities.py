"""Which of the kernel's capabilities a container has."""

from __future__ import annotations

from collections.abc import Iterable

# Numbered from 0 in this order by linux/capability.h.
NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
# Docker's default set (moby, oci/caps/defaults.go) without CAP_MKNOD: nothing here would keep a container's root from
# the disks of the host.
USUAL = frozenset({
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "NET_RAW",
    "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
})  # fmt: skip
ALL = "ALL"


def short(name: str) -> str:
    """A capability as it is called here: `sys_ptrace` and `CAP_SYS_PTRACE` are `SYS_PTRACE`."""
    return name.upper().removeprefix("CAP_")


def unknown(names: Iterable[str]) -> list[str]:
    """Those that no kernel has."""
    return [name for name in names if short(name) not in (*NAMES, ALL)]


def numbers(add: Iterable[str], drop: Iterable[str]) -> set[int]:
    """The kernel's numbers of what a container has: the usual ones with what is added, without what is dropped.

    `ALL` is what the others start from, dropped before added, as in containerd (internal/cri/server, capabilities).
    """
    added, dropped = set(map(short, add)), set(map(short, drop))
    start = set() if ALL in dropped else set(NAMES) if ALL in added else set(USUAL)
    return {NAMES.index(name) for name in (start | added) - dropped - {ALL}}

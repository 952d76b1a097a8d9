"""The system calls that Python 3.11 has no name for: namespaces, mounts, capabilities. Linux on x86-64 and arm64.

Each raises OSError with the call in its message. Nothing here may be used by a process with threads: a namespace of
processes is entered by a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Iterable, Iterator

# linux/sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
# linux/mount.h
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
MNT_DETACH = 2
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY = 1
# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
# the same on all machines since Linux 5.2 and 5.12 (asm-generic/unistd.h); pivot_root is older than that custom
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

NEW = -1  # for `fork_into`: a namespace of processes that does not exist yet

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    """struct mount_attr of linux/mount.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: object) -> int:
    wide = [ctypes.c_long(x) if isinstance(x, int) else x for x in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *wide), what)


def unshare(flags: int) -> None:
    """Gives the caller namespaces of its own (CLONE_NEW*)."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, flag: int) -> None:
    """Enters the namespace that the descriptor is of; for CLONE_NEWPID it is the caller's next child that enters."""
    _check(_libc.setns(fd, flag), f"setns({flag:#x})")


def sethostname(name: str) -> None:
    """Sets the host name of the caller's UTS namespace."""
    data = name.encode()
    _check(_libc.sethostname(data, len(data)), f"sethostname({name})")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    encoded = [os.fsencode(x) if x is not None else None for x in (source, target, kind)]
    options = os.fsencode(data) if data is not None else None
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), options), f"mount of {kind or source or 'flags'} at {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount of {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"pivot_root: not known for {os.uname().machine}")
    _syscall(f"pivot_root({new})", number, os.fsencode(new), os.fsencode(old))


def clone_tree(path: str, *, recursive: bool = True) -> int:
    """A copy of what is mounted at a path, attached to nothing yet: a descriptor for `attach_tree`.

    It lives on when its caller's root changes, so that nothing of the old root has to stay reachable for it.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _syscall(f"open_tree({path})", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def attach_tree(tree: int, target: str) -> None:
    """Mounts what `clone_tree` made. The target is resolved in the caller's root."""
    _syscall(f"mount at {target}", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def set_mount(fd: int, *, read_only: bool = False, propagation: int = 0, recursive: bool = False) -> None:
    """Changes a mount: the one that `clone_tree` made, or the one whose root an O_PATH descriptor is of."""
    attributes = _MountAttr(set=_MOUNT_ATTR_RDONLY if read_only else 0, propagation=propagation)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    size = ctypes.sizeof(attributes)
    _syscall("mount_setattr", _MOUNT_SETATTR, fd, b"", flags, ctypes.byref(attributes), size)


def prctl(option: int, value: int = 0) -> int:
    """prctl(2) with one argument."""
    zero = ctypes.c_ulong(0)
    return _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl({option})")


def keep_capabilities(kept: Iterable[int]) -> None:
    """No program that this process executes can have other capabilities (numbers of linux/capability.h) than these."""
    kept = set(kept)
    for number in range(64):
        try:
            has = prctl(PR_CAPBSET_READ, number)
        except OSError:  # the kernel knows no capability of that number, nor a higher one
            return
        if has and number not in kept:
            prctl(PR_CAPBSET_DROP, number)


def fork_into(namespace: int, own: int) -> int:
    """Forks a child into another namespace of processes. It is the caller's child all the same, so its exit is seen.

    Args:
        namespace: a descriptor of the namespace, or NEW: then the child is its PID 1.
        own: a descriptor of the caller's own namespace of processes, which its later children are in again.

    Returns:
        What os.fork returns.
    """
    if namespace == NEW:
        unshare(CLONE_NEWPID)
    else:
        setns(namespace, CLONE_NEWPID)
    try:
        pid = os.fork()
    except OSError:
        setns(own, CLONE_NEWPID)
        raise
    if pid:
        setns(own, CLONE_NEWPID)
    return pid


def ended_children() -> Iterator[tuple[int, int]]:
    """Pid and wait status of every child that has ended and that nobody has waited for yet, adopted ones too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def come_first(pid: int | str = "self") -> None:
    """Give the session that a process leads ten times the share of the CPUs, where the kernel lets us: as root.

    The kernel shares CPUs fairly among sessions (sched(7), "The autogroup feature"), and one head of Ray is dozens of
    them. Beside a few heads that start, kubelets would not renew their leases in time, and busy machines look lost.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as file:
        file.write("-10")


def signals_as_new() -> None:
    """Gives a forked child the signal handling that a program expects to start with."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])

"""Private namespaces for the whole cluster: nothing of the host's network, mounts, processes or names is changed.

This is the way in: `enter` makes the calling process's next child process 1 of a world of its own. Without root it goes
through a user namespace, in which the user is root and has, where `/etc/subuid` grants them, more users to be.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from helpers.cluster.embedded.runtime import linux
from helpers.errors import CourseError
from helpers.proc import ask

CLONE_NEWUSER = 0x10000000  # linux/sched.h
RANGE = 65536  # how many users and groups a container may use; Kubernetes wants as many for a Pod with users of its own


def fork_mapped() -> int:
    """`os.fork`, but where this process is not root, the child is: in a user namespace of its own.

    Returns:
        0 in the child, and its pid in the parent, as `os.fork`.

    Raises:
        CourseError: if user namespaces are not allowed here.
    """
    if os.geteuid() == 0:
        return os.fork()
    to_parent, to_child = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            linux.unshare(CLONE_NEWUSER)
        except OSError:
            os._exit(1)
        os.write(to_parent[1], b".")
        if os.read(to_child[0], 1) != b".":
            os._exit(1)
        for end in (*to_parent, *to_child):
            os.close(end)
        return 0
    os.close(to_parent[1]), os.close(to_child[0])
    try:
        if os.read(to_parent[0], 1) != b".":
            raise _refused()
        _map_users(pid)
        os.write(to_child[1], b".")
    except BaseException:
        os.close(to_child[1])  # which ends the child
        os.waitpid(pid, 0)
        raise
    os.close(to_parent[0]), os.close(to_child[1])
    return pid


def _map_users(pid: int) -> None:
    """Make the user root in the user namespace of the process, and give it the further users that it may have."""
    ranges = [_sub_range("/etc/subuid"), _sub_range("/etc/subgid")]
    tools = [shutil.which("newuidmap"), shutil.which("newgidmap")]
    if all(ranges) and all(tools):
        commands = [
            [tool, str(pid), "0", str(own), "1", "1", str(start), str(count)]
            for tool, own, (start, count) in zip(tools, (os.geteuid(), os.getegid()), ranges, strict=True)
        ]
        if all(subprocess.run(command, capture_output=True).returncode == 0 for command in commands):
            return
    process = Path("/proc", str(pid))
    try:
        (process / "setgroups").write_text("deny")  # else an unprivileged process may not map its group
        (process / "uid_map").write_text(f"0 {os.geteuid()} 1")
        (process / "gid_map").write_text(f"0 {os.getegid()} 1")
    except PermissionError:
        raise _refused() from None  # AppArmor's way: the namespace is made, but has no rights


def _sub_range(file: str) -> tuple[int, int] | None:
    """The first range of further ids that the file grants to this user, at most `RANGE - 1` of it."""
    try:
        names = {str(os.geteuid()), pwd.getpwuid(os.geteuid()).pw_name}
    except KeyError:
        names = {str(os.geteuid())}
    try:
        lines = [line.strip().split(":") for line in Path(file).read_text().splitlines()]
        return next((int(start), min(int(count), RANGE - 1)) for name, start, count in lines if name in names)
    except (OSError, ValueError, StopIteration):
        return None


# file under /proc/sys: the value that forbids, the one that allows, and whether it binds root too
SWITCHES = {
    "kernel/unprivileged_userns_clone": ("0", "1", False),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0", False),
    "user/max_user_namespaces": ("0", "15000", False),
    "user/max_pid_namespaces": ("0", "15000", True),
    "user/max_net_namespaces": ("0", "15000", True),
    "user/max_mnt_namespaces": ("0", "15000", True),
}


def forbidding(is_root: bool, proc_sys: Path = Path("/proc/sys")) -> tuple[str, str, str] | None:
    """The setting that forbids namespaces: its name, its value, and the value that allows them; None if none does."""
    for file, (forbids, allows, also_root) in SWITCHES.items():
        if (also_root or not is_root) and _text(proc_sys / file) == forbids:
            return file.replace("/", "."), forbids, allows
    return None


def try_out(timeout_s: float) -> str | None:
    """Make the namespaces that a host of lesson 01 and a machine of the cluster are made of, by `unshare`.

    Returns:
        None if it worked; else what the system said.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    done = ask(["unshare", *user, "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"], timeout_s)
    return None if done.ok else done.text or "no reason given"


def _refused(proc_sys: Path = Path("/proc/sys")) -> CourseError:
    """What stands in the way of namespaces here."""
    if found := forbidding(os.geteuid() == 0, proc_sys):
        key, forbids, allows = found
        return CourseError(
            f"The cluster needs namespaces of its own, and {key} is {forbids}.",
            f"Run `sudo sysctl -w {key}={allows}`, or start the cluster as root.",
        )
    return CourseError(
        "The cluster needs namespaces of its own, and this machine refuses them.",
        "In a container: start it with `--privileged`; elsewhere ask who runs this machine.",
    )


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def enter() -> int:
    """Fork a child that is process 1 of network, mount, PID, IPC and UTS namespaces of its own.

    Returns:
        0 in that child; in the calling process the child's pid, as this process sees it.

    Raises:
        CourseError: if namespaces are not allowed here; names the setting that forbids them.
    """
    reader, writer = os.pipe()
    between = fork_mapped()
    if between == 0:
        os.close(reader)
        return _split_off(writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read()
    os.waitpid(between, 0)
    if not told:
        raise _refused()
    return int(told)


def _split_off(writer: int) -> int:
    """Make the namespaces, fork process 1 of them, tell its pid, and be gone: returns only in process 1."""
    try:
        linux.unshare(
            linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWPID
        )
    except OSError:
        os._exit(1)
    child = os.fork()
    if child == 0:
        os.close(writer)
        return 0
    os.write(writer, str(child).encode())
    os._exit(0)

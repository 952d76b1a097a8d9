"""From what the kubelet says of a container to what init is told to start. Pure, but for looking at paths and users."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from helpers.cluster.embedded.runtime.cri import Messages, Refused
from helpers.cluster.embedded.runtime.images import Entry

PROPAGATION = {
    "PROPAGATION_PRIVATE": "private",
    "PROPAGATION_HOST_TO_CONTAINER": "host_to_container",
    "PROPAGATION_BIDIRECTIONAL": "bidirectional",
}


@dataclass(frozen=True)
class User:
    """Whom a container's processes run as, in the machine's numbers."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def resolve_user(pb: Messages, security: Message) -> User:
    """The user of a container, with what the host's /etc/passwd and /etc/group say of it.

    Args:
        pb: the messages of the CRI.
        security: its LinuxContainerSecurityContext. With the policy Merge the user's own groups are added.

    Raises:
        Refused: there is no user of that name.
    """
    uid = security.run_as_user.value if security.HasField("run_as_user") else 0
    entry = _entry(uid)
    if security.run_as_username and not security.HasField("run_as_user"):
        try:
            entry = pwd.getpwnam(security.run_as_username)
        except KeyError:
            raise Refused("INVALID_ARGUMENT", f"the host has no user {security.run_as_username}") from None
        uid = entry.pw_uid
    gid = security.run_as_group.value if security.HasField("run_as_group") else entry.pw_gid if entry else 0
    groups = set(security.supplemental_groups)
    if security.supplemental_groups_policy == pb.Merge:
        groups |= set(filter(_is_mapped, os.getgrouplist(entry.pw_name, gid))) if entry else {gid}
    return User(uid, gid, tuple(sorted(groups)))


def _entry(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _is_mapped(gid: int) -> bool:
    """Whether this user namespace has a group: without root it has only one, and root may be in more on the host."""
    ranges = [line.split() for line in Path("/proc/self/gid_map").read_text().splitlines()]
    return any(int(first) <= gid < int(first) + int(count) for first, _, count in ranges)


def arguments(config: Message, image: Entry) -> list[str]:
    """The program and its arguments: `command` replaces the image's entrypoint and command, `args` only the latter.

    Raises:
        Refused: there is none.
    """
    program = list(config.command) or list(image.entrypoint)
    rest = list(config.args) or ([] if config.command else list(image.command))
    if not program + rest:
        raise Refused("INVALID_ARGUMENT", "no command specified: neither the Pod nor the image has one")
    return program + rest


def environment(config: Message, image: Entry, hostname: str) -> dict[str, str]:
    """The image's environment, HOSTNAME, and what the Pod says."""
    terminal = {"TERM": "xterm"} if config.tty else {}
    own = {pair.key: pair.value.decode(errors="surrogateescape") for pair in config.envs}
    return image.environment | terminal | {"HOSTNAME": hostname} | own


def mounts(pb: Messages, config: Message, files: Path) -> list[dict[str, Any]]:
    """What is mounted into a container, in the order in which it must be.

    Args:
        pb: the messages of the CRI.
        config: its ContainerConfig.
        files: directory with the Pod's `hostname` and `resolv.conf`, as far as it has them.
    """
    wanted = [
        _mount(str(files / name), f"/etc/{name}") for name in ("hostname", "resolv.conf") if (files / name).exists()
    ]
    asked = {os.path.normpath(mount.container_path) for mount in config.mounts}
    wanted = [mount for mount in wanted if mount["target"] not in asked]
    for mount in config.mounts:
        propagation = PROPAGATION[pb.enum_name("MountPropagation", mount.propagation)]
        wanted.append(_mount(_source(mount.host_path), mount.container_path, mount.readonly, propagation))
    wanted.sort(key=lambda mount: len(Path(mount["target"]).parts))
    return wanted


def _mount(source: str, target: str, read_only: bool = False, propagation: str = "private") -> dict[str, Any]:
    return {"source": source, "target": target, "read_only": read_only, "propagation": propagation}


def _source(path: str) -> str:
    """Where a path leads; it becomes a directory if there is nothing, as containerd and Docker do."""
    real = os.path.realpath(path)
    if not os.path.exists(real):
        os.makedirs(real, exist_ok=True)
    return real


def devices(asked: Iterable[Message]) -> list[dict[str, str]]:
    """The device files that a container has beside the usual ones of /dev."""
    return [{"source": device.host_path, "target": device.container_path} for device in asked]


def container_spec(
    pb: Messages, sandbox: str, config: Message, image: Entry, hostname: str, log: Path | None, files: Path
) -> dict[str, Any]:
    """What init is told to start. See init.py for what its fields mean.

    Args:
        pb: the messages of the CRI.
        sandbox: id of its sandbox.
        config: its ContainerConfig.
        image: what its image stands for.
        hostname: the Pod's.
        log: file for its output; None: nobody wants it.
        files: see `mounts`.

    Raises:
        Refused: there is no such user, or nothing to run.
    """
    security, resources = config.linux.security_context, config.linux.resources
    user = resolve_user(pb, security)
    options = security.namespace_options
    return {
        "sandbox": sandbox,
        "argv": arguments(config, image),
        "env": environment(config, image, hostname),
        "cwd": config.working_dir or image.cwd,
        "uid": user.uid,
        "gid": user.gid,
        "groups": list(user.groups),
        "umask": None,
        "mounts": mounts(pb, config, files),
        "devices": devices(config.devices),
        "read_only_root": security.readonly_rootfs,
        "no_new_privs": security.no_new_privs,
        "stdin": config.stdin,
        "stdin_once": config.stdin_once,
        "tty": config.tty,
        "log": str(log) if log else None,
        "memory_bytes": resources.memory_limit_in_bytes,
        "pid_target": options.target_id if options.pid == pb.TARGET else None,
        "oom_score_adj": resources.oom_score_adj,
        "rlimits": {},
        "privileged": security.privileged,
        "add": list(security.capabilities.add_capabilities),
        "drop": list(security.capabilities.drop_capabilities),
        # what of /proc and /sys is hidden or read-only: the kubelet's lists; nothing if privileged, as in containerd
        "masked_paths": [] if security.privileged else list(security.masked_paths),
        "readonly_paths": [] if security.privileged else list(security.readonly_paths),
    }


def stop_signal(pb: Messages, config: Message) -> int:
    """Number of the signal that asks a container to stop: SIGTERM unless the Pod says another."""
    name = pb.enum_name("Signal", config.stop_signal)
    if name == "RUNTIME_DEFAULT":
        return signal.SIGTERM
    for edge, step in (("SIGRTMINPLUS", 1), ("SIGRTMAXMINUS", -1)):
        if name.startswith(edge):
            return getattr(signal, edge[:8]) + step * int(name.removeprefix(edge))
    return getattr(signal, {"SIGCLD": "SIGCHLD", "SIGIOT": "SIGABRT", "SIGPOLL": "SIGIO"}.get(name, name))


def resolv_conf(dns: Message) -> str:
    """The text of /etc/resolv.conf: empty if the Pod says nothing, and then it has the machine's."""
    lines = [f"nameserver {server}" for server in dns.servers]
    if dns.searches:
        lines.append(f"search {' '.join(dns.searches)}")
    if dns.options:
        lines.append(f"options {' '.join(dns.options)}")
    return "".join(f"{line}\n" for line in lines)

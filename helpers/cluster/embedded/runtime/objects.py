"""Sandboxes and containers as the runtime knows them, how they are kept on disk, and how the CRI shows them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from helpers.cluster.embedded.runtime.cri import Messages
from helpers.cluster.embedded.runtime.state import Store

CREATED, RUNNING, EXITED = "CONTAINER_CREATED", "CONTAINER_RUNNING", "CONTAINER_EXITED"
START_ERROR_CODE = 128  # as containerd says it
log = logging.getLogger("objects")


def new_id() -> str:
    """64 hexadecimal digits, as every runtime's."""
    return secrets.token_hex(32)


@dataclass
class Sandbox:
    """A Pod's sandbox: its namespaces and its address.

    Attributes:
        id: its id.
        config: the PodSandboxConfig.
        created_ns: when, since the epoch.
        ready: whether its namespaces are there.
        ip: its address; "" with the host's network.
    """

    id: str
    config: Message
    created_ns: int = field(default_factory=time.time_ns)
    ready: bool = False
    ip: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def namespaces(self) -> Message:
        return self.config.linux.security_context.namespace_options

    def as_json(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("created_ns", "ready", "ip")}
        return kept | {"config": json_format.MessageToDict(self.config)}


@dataclass
class Container:
    """A container.

    Attributes:
        id: its id.
        sandbox: its sandbox.
        config: the ContainerConfig.
        image_id: id of its image.
        image_name: as people call its image, in full.
        image_digest: as a status calls it.
        user: uid, gid, and groups.
        created_ns, started_ns, finished_ns: since the epoch; 0: not yet.
        state: name of the CRI's ContainerState.
        code, reason, message: how it ended.
        ended: set when it has ended.
    """

    id: str
    sandbox: Sandbox
    config: Message
    image_id: str
    image_name: str
    image_digest: str
    user: list[Any]
    created_ns: int = field(default_factory=time.time_ns)
    started_ns: int = 0
    finished_ns: int = 0
    state: str = CREATED
    code: int = 0
    reason: str = ""
    message: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def log(self) -> Path | None:
        """File of its output; None if the kubelet wants none."""
        directory, path = self.sandbox.config.log_directory, self.config.log_path
        return Path(directory, path) if directory and path else None

    @property
    def memory_limit_bytes(self) -> int:
        return self.config.linux.resources.memory_limit_in_bytes

    def update(self, record: dict[str, Any]) -> None:
        """Takes over what init says of it. See `Init.containers`."""
        self.started_ns = record["started_ns"]
        if record["state"] == "running":
            self.state = RUNNING
        else:
            oom, code = record["oom_killed"], record["code"]
            reason = "OOMKilled" if oom else record["reason"] or ("Error" if code else "Completed")
            self.end(code, reason, "", record["finished_ns"])

    def end(self, code: int, reason: str, message: str, finished_ns: int) -> None:
        """Notes that it has ended."""
        self.state, self.code, self.reason, self.message = EXITED, code, reason, message
        self.finished_ns = finished_ns
        self.ended.set()

    def as_json(self) -> dict[str, Any]:
        names = ("image_id", "image_name", "image_digest", "user", "created_ns", "started_ns", "finished_ns")
        kept = {name: getattr(self, name) for name in (*names, "state", "code", "reason", "message")}
        return kept | {"sandbox": self.sandbox.id, "config": json_format.MessageToDict(self.config)}


class Objects:
    """All sandboxes and containers of a machine, each also on disk.

    Args:
        messages: the messages of the CRI.
        store: where they are kept.
        files: directory with a directory for each sandbox: its `hostname` and `resolv.conf`.
    """

    def __init__(self, messages: Messages, store: Store, files: Path):
        self._pb, self._store, self._files = messages, store, files
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, Container] = {}

    def load(self) -> None:
        """Reads what was kept. A damaged sandbox is there without its names, not ready; a damaged container is not."""
        for id in self._store.ids("sandboxes"):
            self.sandboxes[id] = self._sandbox(id, self._store.load("sandboxes", id))
        for id in self._store.ids("containers"):
            container = self._container(id, self._store.load("containers", id))
            if container:
                self.containers[id] = container
            else:
                self._store.remove("containers", id)

    def _sandbox(self, id: str, kept: dict | None) -> Sandbox:
        try:
            config = json_format.ParseDict(kept["config"], self._pb.PodSandboxConfig())
            return Sandbox(id, config, kept["created_ns"], kept["ready"], kept["ip"])
        except (TypeError, KeyError, json_format.ParseError) as error:
            log.error("sandbox %s is damaged: %r", id, error)
            # with metadata, since the kubelet reads them unasked; it removes what belongs to no Pod
            config = self._pb.PodSandboxConfig(metadata=self._pb.PodSandboxMetadata(name="damaged"))
            return Sandbox(id, config)

    def _container(self, id: str, kept: dict | None) -> Container | None:
        try:
            kept = dict(kept)
            sandbox = self.sandboxes[kept.pop("sandbox")]
            config = json_format.ParseDict(kept.pop("config"), self._pb.ContainerConfig())
            container = Container(id, sandbox, config, **kept)
        except (TypeError, KeyError, json_format.ParseError) as error:
            log.error("container %s is damaged: %r", id, error)
            return None
        if container.state == EXITED:
            container.ended.set()
        return container

    def save_sandbox(self, sandbox: Sandbox) -> None:
        self.sandboxes[sandbox.id] = sandbox
        self._store.save("sandboxes", sandbox.id, sandbox.as_json())

    def save_container(self, container: Container) -> None:
        self.containers[container.id] = container
        self._store.save("containers", container.id, container.as_json())

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        directory = self.files(sandbox)
        for name in os.listdir(directory) if directory.is_dir() else []:
            (directory / name).unlink()
        if directory.is_dir():
            directory.rmdir()
        self._store.remove("sandboxes", sandbox.id)
        self.sandboxes.pop(sandbox.id, None)

    def remove_container(self, container: Container) -> None:
        self._store.remove("containers", container.id)
        self.containers.pop(container.id, None)

    def files(self, sandbox: Sandbox) -> Path:
        """Directory of a sandbox's files."""
        return self._files / sandbox.id

    def of_sandbox(self, sandbox: Sandbox) -> list[Container]:
        """The containers of a sandbox."""
        return [container for container in self.containers.values() if container.sandbox is sandbox]

    # ---- as the CRI shows them

    def sandbox_state(self, sandbox: Sandbox) -> int:
        return self._pb.SANDBOX_READY if sandbox.ready else self._pb.SANDBOX_NOTREADY

    def sandbox_status(self, sandbox: Sandbox) -> Message:
        pb, config = self._pb, sandbox.config
        return pb.PodSandboxStatus(
            id=sandbox.id,
            metadata=config.metadata,
            state=self.sandbox_state(sandbox),
            created_at=sandbox.created_ns,
            network=pb.PodSandboxNetworkStatus(ip=sandbox.ip if sandbox.ready else ""),
            linux=pb.LinuxPodSandboxStatus(namespaces=pb.Namespace(options=sandbox.namespaces)),
            labels=config.labels,
            annotations=config.annotations,
        )

    def sandbox_item(self, sandbox: Sandbox) -> Message:
        config = sandbox.config
        fields = {"metadata": config.metadata, "labels": config.labels, "annotations": config.annotations}
        state, created = self.sandbox_state(sandbox), sandbox.created_ns
        return self._pb.PodSandbox(id=sandbox.id, state=state, created_at=created, **fields)

    def container_status(self, container: Container) -> Message:
        pb, config = self._pb, container.config
        uid, gid, groups = container.user
        signal = config.stop_signal or pb.SIGTERM
        return pb.ContainerStatus(
            id=container.id,
            metadata=config.metadata,
            state=getattr(pb, container.state),
            created_at=container.created_ns,
            started_at=container.started_ns,
            finished_at=container.finished_ns,
            exit_code=container.code,
            reason=container.reason,
            message=container.message,
            image=pb.ImageSpec(image=container.image_name),
            image_ref=container.image_digest,
            image_id=container.image_id,
            labels=config.labels,
            annotations=config.annotations,
            mounts=config.mounts,
            log_path=str(container.log or ""),
            resources=pb.ContainerResources(linux=config.linux.resources),
            user=pb.ContainerUser(linux=pb.LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=groups)),
            stop_signal=signal,
        )

    def container_item(self, container: Container) -> Message:
        pb, config = self._pb, container.config
        return pb.Container(
            id=container.id,
            pod_sandbox_id=container.sandbox.id,
            metadata=config.metadata,
            image=config.image,
            image_ref=container.image_id,
            image_id=container.image_id,
            state=getattr(pb, container.state),
            created_at=container.created_ns,
            labels=config.labels,
            annotations=config.annotations,
        )

    # ---- filters

    def find_sandboxes(self, filter: Message) -> list[Sandbox]:
        """Those that a PodSandboxFilter lets through, or a PodSandboxStatsFilter, which has no state."""
        state = filter.state.state if _has(filter, "state") else None
        return [
            sandbox
            for sandbox in self.sandboxes.values()
            if sandbox.id.startswith(filter.id)
            and state in (None, self.sandbox_state(sandbox))
            and _has_labels(sandbox.config, filter)
        ]

    def find_containers(self, filter: Message) -> list[Container]:
        """Those that a ContainerFilter lets through, or a ContainerStatsFilter, which has no state."""
        state = filter.state.state if _has(filter, "state") else None
        return [
            container
            for container in self.containers.values()
            if container.id.startswith(filter.id)
            and state in (None, getattr(self._pb, container.state))
            and filter.pod_sandbox_id in ("", container.sandbox.id)
            and _has_labels(container.config, filter)
        ]


def _has(filter: Message, name: str) -> bool:
    return name in filter.DESCRIPTOR.fields_by_name and filter.HasField(name)


def _has_labels(config: Message, filter: Message) -> bool:
    return all(config.labels.get(key) == value for key, value in filter.label_selector.items())

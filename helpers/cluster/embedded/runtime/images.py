"""Images: the host is the image. A table says which names stand for what, and what the host must have for it.

Nothing is copied when an image is "pulled": the runtime remembers that this machine has it. All tags that one line of
the table stands for are the same image, with the same id, as they are the same programs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import shutil
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from helpers.cluster.embedded.runtime.cri import Messages, Refused
from helpers.cluster.embedded.runtime.state import Store
from helpers.cluster.embedded.runtime.stats import Disk
from helpers.errors import CourseError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = {"nginx": "nginx-light", "redis-server": "redis-server", "curl": "curl"}  # of Debian, by command
# the grammar of github.com/distribution/reference, which every registry and runtime uses
LABEL, PART = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?", r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
REFERENCE = re.compile(
    rf"(?P<repository>(?:{LABEL}(?:\.{LABEL})*(?::\d+)?/)?{PART}(?:/{PART})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*:[0-9a-fA-F]{32,}))?",
    re.ASCII,
)
ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
log = logging.getLogger("images")


@dataclass(frozen=True)
class Reference:
    """The full name of an image, as `docker.io/library/busybox:1.37`."""

    repository: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        return f"{self.repository}{':' + self.tag if self.tag else ''}{'@' + self.digest if self.digest else ''}"


def parse(name: str) -> Reference:
    """A name as people write it, made full by Docker's rules: `busybox` is `docker.io/library/busybox`, tag latest.

    Raises:
        Refused: it is no name of an image.
    """
    match = REFERENCE.fullmatch(name)
    if not match:
        raise Refused("INVALID_ARGUMENT", f'failed to parse image reference "{name}": invalid reference format')
    repository, tag, digest = match["repository"], match["tag"], match["digest"]
    host, slash, rest = repository.partition("/")
    if not slash or not (re.search(r"[.:]", host) or host == "localhost"):
        host, rest = "docker.io", repository
    if host in ("docker.io", "index.docker.io"):
        host, rest = "docker.io", rest if "/" in rest else f"library/{rest}"
    return Reference(f"{host}/{rest}", tag or (None if digest else "latest"), digest)


@dataclass(frozen=True)
class Entry:
    """A line of the table.

    Attributes:
        name: which full names it stands for, with `*` and `?`, as `docker.io/rayproject/ray:*`. A name by digest fits
            whatever the tag in it is, since there are no contents to compare.
        env: environment that containers begin with.
        entrypoint: what runs if the Pod has no `command`.
        command: arguments of it if the Pod has neither `command` nor `args`.
        cwd: working directory if the Pod names none.
        needs: commands that must be on the host.
    """

    name: str
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    cwd: str = "/"
    needs: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return "sha256:" + hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": SYSTEM_PATH} | self.env

    def fits(self, reference: Reference) -> bool:
        pattern, _, tags = self.name.rpartition(":")
        return fnmatchcase(reference.repository, pattern) and fnmatchcase(
            reference.tag or "", tags if reference.tag else "*"
        )

    def missing(self) -> list[str]:
        """What it needs and the host lacks."""
        return [command for command in self.needs if not shutil.which(command, path=self.environment["PATH"])]


def read_table(lines: list[dict[str, Any]]) -> list[Entry]:
    """The table from its configuration.

    Raises:
        CourseError: a line has an unknown field, or no name with a tag.
    """
    table = []
    for line in lines:
        try:
            entry = Entry(**line)
        except TypeError as error:
            raise CourseError(f"The line {line} of the table of images is wrong: {error}.", "See images.py.") from error
        if ":" not in entry.name.rpartition("/")[2]:
            raise CourseError(f"{entry.name} in the table of images has no tag.", "Write it with a tag, such as `:*`.")
        table.append(entry)
    return table


def default_images(python_prefix: Path) -> list[dict[str, Any]]:
    """What a machine of the course has.

    Args:
        python_prefix: of the Python that has Ray; its `bin` comes first in the PATH of Ray's images.
    """
    python = {
        "PATH": f"{python_prefix}/bin:{SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",  # each container would write its own copies of the cache
    }
    # HOME and working directory as in the image itself (docker/base-deps/Dockerfile of Ray)
    ray = python | {"HOME": "/home/ray", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    # with gRPC's precautions for forks, 1 in 14 programs that Ray Client's server starts dies before its first line:
    # ray-project/ray#63202, grpc/grpc#43055
    ray |= {"GRPC_ENABLE_FORK_SUPPORT": "0"}
    shell = {"env": {"HOME": "/root"}}
    nginx = shell | {"command": ["nginx", "-g", "daemon off;"], "needs": ["nginx"]}
    # protected mode off, as the image's own entrypoint starts it
    redis = shell | {"command": ["redis-server", "--protected-mode", "no"], "needs": ["redis-server"]}
    return [
        {"name": "docker.io/rayproject/ray:*", "env": ray, "command": ["/bin/bash"], "cwd": "/home/ray"},
        {"name": "docker.io/library/python:*", "env": python | {"HOME": "/root"}, "command": ["python3"]},
        {"name": "docker.io/library/busybox:*", **shell, "command": ["sh"]},
        {"name": "registry.k8s.io/e2e-test-images/busybox:*", **shell, "command": ["sh"]},
        {"name": "docker.io/library/alpine:*", **shell, "command": ["/bin/sh"]},
        {"name": "docker.io/library/debian:*", **shell, "command": ["bash"]},
        {"name": "docker.io/library/ubuntu:*", **shell, "command": ["/bin/bash"]},
        {"name": "docker.io/curlimages/curl:*", **shell, "entrypoint": ["curl"], "needs": ["curl"]},
        {"name": "docker.io/library/nginx:*", **nginx},
        {"name": "registry.k8s.io/e2e-test-images/nginx:*", **nginx},
        {"name": "docker.io/library/redis:*", **redis},
        {"name": "registry.k8s.io/pause:*", **shell, "entrypoint": ["sleep", "infinity"]},
    ]


@dataclass
class Image:
    """An image that this machine has: a line of the table, and the names under which it was pulled."""

    entry: Entry
    names: list[str]

    @property
    def tags(self) -> list[str]:
        return [name for name in self.names if "@" not in name]

    @property
    def digests(self) -> list[str]:
        found = [f"{parse(name).repository}@{parse(name).digest or self.entry.id}" for name in self.names]
        return list(dict.fromkeys(found))

    def name_for(self, name: str) -> str:
        """How a container's status shows the name of its image."""
        try:
            return str(parse(name)) if not ID.fullmatch(name) else self.names[0]
        except Refused:
            return self.names[0]

    def digest_for(self, name: str) -> str:
        """How a container's status names its image: by digest."""
        reference = parse(self.name_for(name))
        return f"{reference.repository}@{reference.digest or self.entry.id}"


class Images:
    """ImageService.

    Args:
        messages: the messages of the CRI.
        table: what names stand for.
        store: remembers what was pulled.
        pull_delay_s: how long the first pull of an image takes.
        disk: what the machine's containers use of the disk.
    """

    def __init__(self, messages: Messages, table: list[Entry], store: Store, pull_delay_s: float, disk: Disk):
        self._pb, self._table, self._store, self._delay_s, self._disk = messages, table, store, pull_delay_s, disk
        self._pulling: dict[str, asyncio.Lock] = {}
        self._images: dict[str, Image] = {}
        by_id = {entry.id: entry for entry in table}
        for hexadecimal in store.ids("images"):
            entry, kept = by_id.get(f"sha256:{hexadecimal}"), store.load("images", hexadecimal)
            if entry and kept:  # else the table says something else by now, and it has to be pulled again
                self._images[entry.id] = Image(entry, kept["names"])
            else:
                store.remove("images", hexadecimal)

    def find(self, name: str) -> Image | None:
        """An image that this machine has, by name, digest or id."""
        if ID.fullmatch(name):
            return self._images.get(f"sha256:{name.removeprefix('sha256:')}")
        full = str(parse(name))
        return next((image for image in self._images.values() if full in image.names + image.digests), None)

    async def pull_image(self, request: Message) -> Message:
        reference = parse(request.image.image)
        entry = next((entry for entry in self._table if entry.fits(reference)), None)
        if entry is None:
            text = f'failed to pull and unpack image "{reference}": failed to resolve reference "{reference}"'
            raise Refused("NOT_FOUND", f"{text}: {reference}: not found")
        if missing := entry.missing():
            packages = " ".join(PACKAGES.get(command, command) for command in missing)
            text = f"the image {reference} is what the host has, and the host has no {' and no '.join(missing)}"
            raise Refused("FAILED_PRECONDITION", f"{text}: install the package {packages}")
        async with self._pulling.setdefault(entry.id, asyncio.Lock()):
            image = self._images.get(entry.id)
            if image is None:
                log.info("pulling %s: %s s", reference, self._delay_s)
                await asyncio.sleep(self._delay_s)
                image = self._images[entry.id] = Image(entry, [])
            if str(reference) not in image.names:
                image.names.append(str(reference))
                self._store.save("images", entry.id.removeprefix("sha256:"), {"names": image.names})
        return self._pb.PullImageResponse(image_ref=entry.id)

    async def image_status(self, request: Message) -> Message:
        image = self.find(request.image.image)
        return self._pb.ImageStatusResponse(image=self._message(image) if image else None)

    async def list_images(self, request: Message) -> Message:
        wanted = request.filter.image.image
        images = list(self._images.values()) if not wanted else [image for image in [self.find(wanted)] if image]
        return self._pb.ListImagesResponse(images=map(self._message, images))

    async def remove_image(self, request: Message) -> Message:
        if image := self.find(request.image.image):
            del self._images[image.entry.id]
            self._store.remove("images", image.entry.id.removeprefix("sha256:"))
        return self._pb.RemoveImageResponse()

    async def image_fs_info(self, request: Message) -> Message:
        usage = await self._disk.usage(self._disk.root)
        message = self._disk.message(self._pb, usage)
        return self._pb.ImageFsInfoResponse(image_filesystems=[message], container_filesystems=[message])

    def _message(self, image: Image) -> Message:
        # the CRI wants a size above 0, and nothing is stored; containers without runAsUser run as root
        fields = {"id": image.entry.id, "repo_tags": image.tags, "repo_digests": image.digests, "size": 1}
        spec = self._pb.ImageSpec(image=image.entry.id)
        return self._pb.Image(**fields, uid=self._pb.Int64Value(value=0), spec=spec)

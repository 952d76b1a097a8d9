"""The runtime of one machine: `python -m helpers.cluster.embedded.runtime RUNTIME.json`. Its init starts it."""

from __future__ import annotations

import os

# the runtime's few children are exec'ed at once; gRPC's own precautions for forks cost a lock around everything
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import asyncio
import json
import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.cluster.embedded.runtime.cri import Messages, serve
from helpers.cluster.embedded.runtime.images import Images, read_table
from helpers.cluster.embedded.runtime.init_client import Init, InitGone
from helpers.cluster.embedded.runtime.network import Network
from helpers.cluster.embedded.runtime.objects import Objects
from helpers.cluster.embedded.runtime.service import Runtime
from helpers.cluster.embedded.runtime.state import Store
from helpers.cluster.embedded.runtime.stats import Disk
from helpers.cluster.embedded.runtime.streaming import Streaming
from helpers.errors import CourseError

STOP_S = 1  # that calls under way have when the runtime is stopped
log = logging.getLogger("main")


@dataclass(frozen=True)
class Config:
    """RUNTIME.json.

    Attributes:
        socket: where to serve the CRI.
        init_socket: of the machine's init.
        disk: directory of the runtime and of init; it outlives the machine's restarts.
        descriptor: the description of the CRI. See cri.py.
        machine: the machine's name.
        images: the table of images. See images.py.
        pull_delay_s: how long the first pull of an image takes on this machine.
        pod_gateway: address of the Pods' way out.
        hairpin_table: nftables table with the set `hairpin`.
    """

    socket: str
    init_socket: str
    disk: str
    descriptor: str
    machine: str
    images: list[dict[str, Any]]
    pull_delay_s: float
    pod_gateway: str
    hairpin_table: str


def read_config(path: Path) -> Config:
    """Reads RUNTIME.json.

    Raises:
        CourseError: it cannot be read, or has not the fields that it must have.
    """
    try:
        return Config(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CourseError(f"The runtime's configuration {path} is wrong: {error}.", "Run `course up` again.") from error


async def run(config: Config) -> None:
    """Serves until SIGTERM, or until the machine's init is gone."""
    messages = Messages(Path(config.descriptor))
    disk = Path(config.disk)
    store, usage, sessions = Store(disk / "cri"), Disk(disk), Streaming()
    init = await Init.connect(config.init_socket)
    images = Images(messages, read_table(config.images), store, config.pull_delay_s, usage)
    network = Network(store, config.pod_gateway, config.hairpin_table)
    objects = Objects(messages, store, disk / "cri" / "files")
    runtime = Runtime(messages, config.machine, disk, init, objects, network, images, sessions, usage)
    await runtime.recover()
    await sessions.start()
    server = await serve(Path(config.socket), messages, runtime, images)
    log.info("serving %s at %s", config.machine, config.socket)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(init.gone())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping: %s", "asked to" if stop.is_set() else "the machine's init is gone")
    for wait in waits:
        wait.cancel()
    await sessions.close()
    await server.stop(STOP_S)
    init.close()


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} RUNTIME.json")
    try:
        asyncio.run(run(read_config(Path(sys.argv[1]))))
    except (CourseError, InitGone) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""Runtimes with one feature switched off, each of which a case of the node contract must notice.

As a program, `runtime_mutants.py init MACHINE.json` is a machine's init and `runtime_mutants.py runtime RUNTIME.json`
its runtime. The machine's name says which mutant it is; a machine of any other name is sound.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers.cluster.embedded.runtime import child, container, logs, rootfs, sandbox


@dataclass(frozen=True)
class Mutant:
    """A feature that is switched off.

    Attributes:
        part: what is changed: "init" or "runtime".
        case: name of the contract's case that must fail.
        seen: what it must say, as a regular expression: that it failed for this reason.
        change: makes the change.
    """

    part: str
    case: str
    seen: str
    change: Callable[[], None]


def wrapped(owner: object, name: str, instead: Callable) -> None:
    """Put `instead(original, *arguments)` in the place of a function."""
    original = getattr(owner, name)

    def function(*arguments: object, **named: object) -> object:
        return instead(original, *arguments, **named)

    setattr(owner, name, function)


# ---- of init ---------------------------------------------------------------------------------------------------------


def exit_code() -> None:
    wrapped(container.Container, "_exited", lambda exited, self, code: exited(self, 0))


def read_only_root() -> None:
    def make(init: Callable, self: object, directory: str, spec: dict, *rest: object) -> None:
        init(self, directory, spec | {"read_only_root": False}, *rest)

    wrapped(rootfs.Root, "__init__", make)


def user() -> None:
    child._become_user = lambda uid, gid, groups: None


def grace() -> None:
    wrapped(container.Container, "signal", lambda send, self, number: send(self, signal.SIGKILL))


def long_lines() -> None:
    def split(original: Callable, data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        lines, rest = original(data)
        return [(b"F", text) for _, text in lines], rest

    wrapped(logs, "split", split)


def stdin_of_exec() -> None:
    def execute(original: Callable, self: object, spec: dict, fds: list[int]) -> object:
        return original(self, spec, [os.open("/dev/null", os.O_RDONLY), *fds[1:]] if fds else fds)

    wrapped(container.Container, "execute", execute)


def start_error() -> None:
    def find(original: Callable, name: str, path: str) -> str:
        try:
            return original(name, path)
        except child.CannotRun:
            return "/bin/false"

    wrapped(child, "find_program", find)


def resize() -> None:
    container.Container.limit = lambda self, memory_bytes: None


def shared_processes() -> None:
    def make(init: Callable, self: object, directory: str, spec: dict) -> None:
        init(self, directory, spec | {"namespaces": spec["namespaces"] | {"pid": "container"}})

    wrapped(sandbox.Sandbox, "__init__", make)


def sysctls() -> None:
    wrapped(
        sandbox.Sandbox, "__init__", lambda init, self, directory, spec: init(self, directory, spec | {"sysctls": {}})
    )


# ---- of the runtime --------------------------------------------------------------------------------------------------


def oom() -> None:
    from helpers.cluster.embedded.runtime import objects

    wrapped(objects.Container, "update", lambda update, self, record: update(self, record | {"oom_killed": False}))


def any_image() -> None:
    from helpers.cluster.embedded.runtime import images

    images.Entry.fits = lambda self, reference: True


def resolv_conf() -> None:
    from helpers.cluster.embedded.runtime import service

    service.resolv_conf = lambda config: ""


def hairpin() -> None:
    from helpers.cluster.embedded.runtime import network

    async def nothing(self: object, verb: str, address: str) -> None:
        pass

    network.Network._hairpin = nothing


def environment() -> None:
    from helpers.cluster.embedded.runtime import spec

    spec.environment = lambda config, image, hostname: image.environment | {"HOSTNAME": hostname}


MUTANTS = {
    "exit-code": Mutant("init", "exit-codes", "'Succeeded' instead of 'Failed'", exit_code),
    "read-only-root": Mutant("init", "read-only-root", r"it is 'volume: written\\n'", read_only_root),
    "user": Mutant("init", "users-and-groups", "user 0 group 0", user),
    "grace": Mutant("init", "graceful-termination", "137 instead of 9", grace),
    "long-lines": Mutant("init", "logs", r"pod/long.*it is 'x{16384}\\n", long_lines),
    "stdin-of-exec": Mutant("init", "exec", r"step 3 .*out ''", stdin_of_exec),
    "start-error": Mutant("init", "start-error", "1 instead of 128", start_error),
    "resize": Mutant("init", "resize-memory", r"out '67108864\\n'", resize),
    "shared-processes": Mutant("init", "process-namespaces", r"step 5 .*out '0\\n'", shared_processes),
    "sysctls": Mutant("init", "sysctls", r"it is '0\\n", sysctls),
    "oom": Mutant("runtime", "out-of-memory", "'exitCode': 137, 'reason': 'Error'", oom),
    "any-image": Mutant("runtime", "image-pull", "'Running' instead of 'Pending'", any_image),
    "resolv-conf": Mutant("runtime", "names-of-pods", "step 5 |gaierror", resolv_conf),
    "hairpin": Mutant("runtime", "service-to-itself", "TimeoutError|timed out", hairpin),
    "environment": Mutant("runtime", "environment", "plain: \\\\n", environment),
}


def main() -> None:
    part, config = sys.argv[1:]
    told = json.loads(Path(config).read_text())
    mutant = MUTANTS.get(told["name"] if part == "init" else told["machine"])
    if mutant and mutant.part == part:
        mutant.change()
    sys.argv[1:] = [config]
    if part == "init":
        from helpers.cluster.embedded.runtime.init import main as run
    else:
        from helpers.cluster.embedded.runtime.__main__ import main as run
    sys.exit(run())


if __name__ == "__main__":
    main()

"""What `course up` tells the supervisor, in a JSON file: which components there are, and how each is run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

MACHINE = "{machine}"


@dataclass(frozen=True)
class Component:
    """A program that the supervisor keeps running.

    Attributes:
        name: of the component and of its log.
        argv: its command line. `MACHINE` in it stands for the name of a machine that runs; it starts when there is one.
        env: environment beside `Boot.env`.
        after: names of the components that must answer before its first start.
        ready_url: answers 200 when the component is ready; empty: it is when it runs.
        ready_ca: certificate authority of `ready_url`; empty: the certificate is not checked (it is self-signed, and
            only a loopback that nobody else has is between the two).
        inherits: file descriptors that it gets.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    ready_url: str = ""
    ready_ca: str = ""
    inherits: tuple[int, ...] = ()

    @property
    def needs_machine(self) -> bool:
        return any(MACHINE in word for word in self.argv)


@dataclass(frozen=True)
class DeclaredMachine:
    """A machine as the supervisor sees it: its address in the cluster's network, and the file that its init reads."""

    name: str
    address: IPv4Address
    spec: Path


@dataclass(frozen=True)
class Boot:
    """All that the supervisor is told.

    Attributes:
        root: the cluster's directory, as the host sees it.
        env: environment of everything.
        nft: path of the program nft.
        components: in the order in which they start; they stop in the opposite order.
        init: command line of a machine's init; its spec is appended.
        machines_after: name of the component that must answer before machines boot.
        machines: to boot at once.
    """

    root: Path
    env: dict[str, str]
    nft: str
    components: tuple[Component, ...]
    init: tuple[str, ...]
    machines_after: str
    machines: tuple[DeclaredMachine, ...] = ()

    def as_text(self) -> str:
        return json.dumps(asdict(self), default=str, indent=1)

    @classmethod
    def from_text(cls, text: str) -> Boot:
        data = json.loads(text)
        components = tuple(map(as_component, data.pop("components")))
        machines = tuple(as_machine(one) for one in data.pop("machines"))
        data |= {"root": Path(data["root"]), "init": tuple(data["init"])}
        return cls(**data, components=components, machines=machines)


def as_component(data: dict) -> Component:
    """What `dataclasses.asdict` and JSON made of a component, as it was."""
    return Component(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


def as_machine(data: dict[str, str]) -> DeclaredMachine:
    """What `dataclasses.asdict` and JSON made of a machine, as it was."""
    return DeclaredMachine(data["name"], IPv4Address(data["address"]), Path(data["spec"]))

"""What a notebook gets for its cluster while it is graded: nothing starts, and each call says that it is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Skipped(float):
    """Stands for whatever a call would have given: a host, a driver, what a task returned, a count of bytes.

    It can be called, entered by `with`, indexed, looped over (it is empty), printed, and, since it is the number NaN,
    calculated and compared with, so that the cells after it run. As an answer it is worth nothing.

    Example:
        >>> Skipped("head").run("ray start --head").text
        – head.run(…) is skipped while a notebook is graded
        skipped
    """

    def __new__(cls, name: str) -> Skipped:
        return super().__new__(cls, "nan")

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, name: str) -> Skipped:
        if name.startswith("_"):  # what Python and IPython ask of any object
            raise AttributeError(name)
        return Skipped(f"{self.name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Skipped:
        print(f"– {self.name}(…) is skipped while a notebook is graded")
        return Skipped(self.name)

    def __enter__(self) -> Skipped:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getitem__(self, key: object) -> Skipped:
        return self

    def __iter__(self) -> Iterator:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "skipped"

    def __format__(self, spec: str) -> str:
        return "skipped"


class SkippedLab(Skipped):
    """Stands for a `Lab`."""

    def hosts(self, *names: str) -> list[Skipped]:
        """As many as were asked for, since a notebook gives each a name of its own."""
        Skipped("lab.hosts")()
        return [Skipped(name) for name in names]

    def here(self, *parts: str) -> Path:
        """A real path: it touches nothing, and an answer may lie there."""
        return Path.cwd().joinpath(*parts)

"""What the runtime remembers on disk, one JSON file an object, so that it finds its Pods after a restart.

Files are replaced as a whole: whoever is killed while writing leaves the old one. They are not flushed to the disk,
because what they speak of does not survive a crash of the kernel either.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

log = logging.getLogger("state")


class Store:
    """Objects by kind and id: `<directory>/<kind>/<id>.json`, readable for our own user only.

    Args:
        directory: is made if it is missing.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, kind: str, id: str, value: dict) -> None:
        """Keeps an object, in place of what was there."""
        path = self._path(kind, id)
        path.parent.mkdir(exist_ok=True)
        half = path.with_suffix(".new")
        half.write_text(json.dumps(value, separators=(",", ":")))
        half.replace(path)

    def load(self, kind: str, id: str) -> dict | None:
        """An object; None if there is none, or its file is damaged, which the log says then."""
        path = self._path(kind, id)
        try:
            value = json.loads(path.read_text())
            if isinstance(value, dict):
                return value
            problem = "it is no JSON object"
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            problem = str(error)
        log.error("%s is damaged: %s", path, problem)
        return None

    def ids(self, kind: str) -> list[str]:
        """Ids of the objects of a kind, in order; those with a damaged file too."""
        return sorted(path.stem for path in (self._directory / kind).glob("*.json"))

    def remove(self, kind: str, id: str) -> None:
        """Forgets an object. None of that name is no error."""
        self._path(kind, id).unlink(missing_ok=True)

    def _path(self, kind: str, id: str) -> Path:
        return self._directory / kind / f"{id}.json"

"""What is found in a manifest: by which rule, where, how bad."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        rule: the rule's id, such as "unknown-field".
        path: where, from the root of the document, such as "spec.workerGroupSpecs[0].groupName".
        severity: `ERROR` (it is refused, or a part can never do what it is for), `WARNING` (it runs, but not as it is
            written) or `NOTE`.
        message: what is so, in one sentence without the path.
    """

    rule: str
    path: str
    severity: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"

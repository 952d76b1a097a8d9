"""What /proc says of a process and psutil does not; and short questions to other programs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """What came of a short question: whether the program succeeded, and what it said or why it failed."""

    ok: bool
    text: str


def ask(command: Sequence[str], timeout_s: float) -> Answer:
    """What a command says within so many seconds; its last line of complaint when it fails. Never raises."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return Answer(False, f"no answer within {timeout_s:g} s")
    except OSError as error:
        return Answer(False, error.strerror or str(error))
    if done.returncode == 0:
        return Answer(True, done.stdout)
    return Answer(False, (done.stderr.strip().splitlines() or [""])[-1])


def namespace_pids(pid: int) -> list[int]:
    """All pids that a process has: its pid here, and then what it is called in each namespace of processes further in.

    Raises:
        OSError: if there is no such process, or no /proc.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    # proc_pid_status(5): NSpid begins with the namespace that this /proc was mounted in
    return [int(number) for line in lines if line.startswith("NSpid:") for number in line.split()[1:]]

"""What /proc says of a process and psutil does not."""

from __future__ import annotations

from pathlib import Path


def namespace_pids(pid: int) -> list[int]:
    """All pids that a process has: its pid here, and then what it is called in each namespace of processes further in.

    Raises:
        OSError: if there is no such process, or no /proc.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    # proc_pid_status(5): NSpid begins with the namespace that this /proc was mounted in
    return [int(number) for line in lines if line.startswith("NSpid:") for number in line.split()[1:]]

"""How a figure is measured and printed. The machine's speed changes, so each figure stands beside a calibration."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def side_by_side(work: Callable[[], object], calibration: Callable[[], object], times: int) -> tuple[float, float]:
    """The median seconds of both, run in turn."""
    pairs = [(seconds(work), seconds(calibration)) for _ in range(times)]
    return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)


def bare_python() -> None:
    """A calibration: start Python and end it."""
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def python_loop() -> None:
    """A calibration for what stays in one process: a loop of a hundred thousand turns."""
    for _ in range(100_000):
        pass


def report(name: str, value: float, bound: float, beside: str, unit: str = "s") -> bool:
    """Print one line; returns whether the bound is kept."""
    kept = value <= bound
    print(f"{'✔' if kept else '✘'} {name}: {value:.3g} {unit} (at most {bound:g} {unit}); {beside}", flush=True)
    return kept


def finish(*kept: bool) -> None:
    """End the script, with exit status 1 if a bound was missed."""
    sys.exit(0 if all(kept) else 1)

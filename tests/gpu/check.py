"""Real GPUs, as far as they can be seen without a cluster: `python3 tests/gpu/check.py`, on a computer that has some.

It takes at most two minutes, and needs NVIDIA's driver and Python, with nothing installed. It shows whether

- `gpus.query` understands what this nvidia-smi says, and `gpus.files` finds the GPUs' device files;
- a process with the environment of a container that has one GPU sees that one and no other, and computes on it;
- a process with the environment of a container that has none sees none;
- the same is so in a root of the kind that containers have, where only the own GPU's device files are.

It does not show the kubelet and the process runtime at work, nor who gets which GPU (tools/kubelet/assign_test.go does,
without GPUs); nor Ray or PyTorch on a GPU; nor two Pods at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from helpers.cluster.embedded import gpus
from helpers.errors import CourseError

HERE = Path(__file__).resolve().parent
LIMIT_S = 115.0  # for all
PROCESS_S = 30.0  # for one process: the driver wakes the GPU, and loads what CUDA needs
# what else a container's environment has (runtime/images.py), and nothing of this shell's, such as LD_LIBRARY_PATH
USUAL = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
CUDA = (HERE / "cuda.py").read_text()
NOT_SHOWN = "It does not show" + (__doc__ or "").partition("It does not show")[2].rstrip()


@dataclass(frozen=True)
class Row:
    """One thing that was looked at: `ok` is None if it could not be."""

    what: str
    found: str
    ok: bool | None

    def __str__(self) -> str:
        state = "– not seen" if self.ok is None else "✔ ok" if self.ok else "✘ wrong"
        return f"{state:<10}  {self.what}: {self.found}"


def main() -> int:
    """Look at all, print the table; 0 if nothing is wrong."""
    end = time.monotonic() + LIMIT_S
    try:
        there = gpus.query()
    except CourseError as error:
        rows = [Row("GPUs by nvidia-smi", str(error), False)]
    else:
        rows = [Row("GPUs by nvidia-smi", "; ".join(map(_told, there)), True), *_rows(there, end)]
    print(*rows, sep="\n")
    wrong = sum(row.ok is False for row in rows)
    print(f"{len(rows)} looked at, {wrong} wrong. {NOT_SHOWN}")
    return 1 if wrong else 0


def _told(gpu: gpus.Gpu) -> str:
    return f"{gpu.index} {gpu.name}, {gpu.memory_mib} MiB, {gpu.uuid}"


def _rows(there: Sequence[gpus.Gpu], end: float) -> list[Row]:
    own = [there[-1].uuid]  # the last: that it comes first shows that the others are not there
    rows = [
        compare("a process with one GPU's environment", run(own, None, end), own, None),
        compare("a process with no GPU's environment", run([], None, end), [], None),
    ]
    try:
        files = gpus.files([gpu.uuid for gpu in there])
    except CourseError as error:
        return [*rows, Row("device files", str(error), False)]
    rows.append(Row("device files", "; ".join(f"{uuid}: {' '.join(names)}" for uuid, names in files.items()), True))
    for name, devices, paths in (("one GPU", own, files[own[0]]), ("no GPU", [], [])):
        rows.append(compare(f"a container's root with {name}", run(devices, paths, end), devices, paths))
    return rows


def compare(what: str, seen: dict, devices: Sequence[str], paths: Sequence[str] | None) -> Row:
    """Whether a process has seen what it is to see.

    Args:
        what: the row's name.
        seen: what cuda.py has said, or {"missing": why it could not be run}.
        devices: UUIDs of the GPUs that it is to see.
        paths: the device files that it is to see; None: all that there are.
    """
    if "missing" in seen:
        return Row(what, seen["missing"], None)
    told = f"sees {', '.join(seen.get('uuids', [])) or 'no GPU'}"
    told += f", with {' '.join(seen['files']) or 'no device file'}" if paths is not None else ""
    if "error" in seen:
        # without any device file CUDA may not even begin, and that is as good as seeing none
        return Row(what, f"{told}; {seen['error']}", not devices and paths == [] == seen["files"])
    right = seen["uuids"] == list(devices) and (paths is None or seen["files"] == sorted(paths))
    return Row(what, f"{told}{', which computes' if devices and right else ''}", right)


def run(devices: Sequence[str], paths: Sequence[str] | None, end: float) -> dict:
    """What cuda.py says in a process that has these GPUs; with `paths`, in a root that has these device files only."""
    environment = USUAL | {"HOSTNAME": "gpu-check"} | gpus.environment(devices)
    program = [sys.executable, "-c", CUDA]
    left_s = min(PROCESS_S, end - time.monotonic())
    if left_s <= 0:
        return {"missing": f"the {LIMIT_S:g} s for all are over"}
    if paths is None:
        return _answer(program, environment, left_s)
    # on a file system in memory: an overlay's upper layer cannot be on another overlay, which a container's root is
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        inside = [sys.executable, str(HERE / "inside.py"), directory, json.dumps(paths), json.dumps(environment)]
        user = (
            []
            if os.geteuid() == 0
            else ["unshare", "--user", "--map-root-user", "--net", "--ipc", "--pid", "--kill-child", "--fork"]
        )
        return _answer([*user, *inside, *program], dict(os.environ), left_s)


def _answer(command: list[str], environment: dict[str, str], timeout_s: float) -> dict:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"files": [], "error": f"no answer within {timeout_s:.0f} s"}
    except OSError as error:
        return {"missing": str(error)}
    except ValueError:
        return {"missing": (done.stderr.strip().splitlines() or ["no reason given"])[-1]}


if __name__ == "__main__":
    sys.exit(main())

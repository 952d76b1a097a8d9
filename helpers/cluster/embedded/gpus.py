"""This computer's real GPUs: what nvidia-smi and the driver say of them, and what a container needs to use one.

Which Pod gets which of them is decided by the kubelet (tools/kubelet/assign.go). Here is nothing but the standard
library and `errors`, since tests/gpu/check.py runs where nothing else is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import CourseError

VARIABLE = "COURSE_GPUS"
FIELDS = "index,uuid,name,memory.total,mig.mode.current"
COMMAND = ("nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits")
NONE = "No devices"  # "… were found", which is no failure by its exit status everywhere
ASK_S = 20.0  # without persistence mode the driver wakes each GPU before it answers, and there may be eight
UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NOTHING = ("[N/A]", "N/A", "[Not Supported]")  # of what a GPU does not have: MIG, or memory of its own
PROC = Path("/proc/driver/nvidia/gpus")  # a directory for each GPU, with a file `information`
DEV = Path("/dev")
NEEDED = ("nvidiactl", "nvidia-uvm")  # without these CUDA does not begin
USUAL = ("nvidia-uvm-tools", "nvidia-modeset")  # for debuggers and for graphics, where they are there
OR_FAKE = f"or unset {VARIABLE}, for fake ones"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this computer.

    Attributes:
        index: nvidia-smi's number for it; another one after a restart, maybe.
        uuid: what it is called for life, such as `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
        name: of the product.
        memory_mib: memory of its own in MiB; 0 if it has none.
    """

    index: int
    uuid: str
    name: str
    memory_mib: int


def asked() -> str:
    """Which GPUs the user asks for by COURSE_GPUS: "real", "fake", or "": as declared, and fake ones in a new cluster.

    Raises:
        CourseError: if it is something else.
    """
    kind = os.environ.get(VARIABLE, "")
    if kind not in ("", "real", "fake"):
        raise CourseError(
            f'{VARIABLE} is "{kind}", and it can be real or fake.',
            f"Set {VARIABLE}=real for this computer's GPUs, {OR_FAKE}.",
        )
    return kind


def query() -> tuple[Gpu, ...]:
    """The GPUs of this computer, by nvidia-smi; at least one.

    Raises:
        CourseError: if it is not there, fails, does not answer within `ASK_S`, or says what the course cannot use.
    """
    try:
        done = subprocess.run(
            COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASK_S
        )
    except subprocess.TimeoutExpired:
        raise CourseError(
            f"nvidia-smi, which lists the GPUs, did not answer within {ASK_S:g} s.",
            f"Run `nvidia-smi` to see whether the driver is in order, {OR_FAKE}.",
        ) from None
    except OSError as error:
        raise CourseError(
            f"This computer's GPUs cannot be listed: nvidia-smi, a program of NVIDIA's driver, cannot be run "
            f"({error.strerror}).",
            f"Install NVIDIA's driver, so that `nvidia-smi` shows the GPUs, {OR_FAKE}.",
        ) from None
    said = done.stdout.strip() or done.stderr.strip()  # it complains on either
    if done.returncode != 0 and not said.startswith(NONE):
        why = said.partition("\n")[0].rstrip(". ") or "it gives no reason"
        raise CourseError(
            f"nvidia-smi, which lists the GPUs, fails: {why}.",
            f"Run `nvidia-smi` to see whether the driver is in order and new enough, {OR_FAKE}.",
        )
    return parse(done.stdout)


def parse(text: str) -> tuple[Gpu, ...]:
    """What nvidia-smi says when it is called by `COMMAND`.

    Raises:
        CourseError: if there is no GPU, one is divided by MIG, or a line is not understood.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0].startswith(NONE):
        raise CourseError(
            "nvidia-smi finds no GPU in this computer.",
            f"Use a computer with an NVIDIA GPU, {OR_FAKE}.",
        )
    found: dict[str, Gpu] = {}
    for line in lines:
        gpu = _gpu(line)
        if gpu.uuid in found:
            raise _not_understood(line)
        found[gpu.uuid] = gpu
    return tuple(found.values())


def _gpu(line: str) -> Gpu:
    index, uuid, *name, memory, mig = line.split(", ") if line.count(", ") >= 4 else [""] * 4
    sound = index.isdecimal() and UUID.fullmatch(uuid) and (memory.isdecimal() or memory in NOTHING)
    if not sound or mig not in ("Disabled", "Enabled", *NOTHING):
        raise _not_understood(line)
    gpu = Gpu(int(index), uuid, ", ".join(name), 0 if memory in NOTHING else int(memory))
    if mig == "Enabled":
        raise CourseError(
            f"The GPU {gpu.index} ({gpu.name}) is in MIG mode, in which it is divided, and the course gives out whole "
            "GPUs only.",
            f"Run `sudo nvidia-smi -i {gpu.index} -mig 0`, which ends that mode, {OR_FAKE}.",
        )
    return gpu


def _not_understood(line: str) -> CourseError:
    return CourseError(
        f'nvidia-smi says of a GPU "{line}", and "{FIELDS}" was asked for, once for each.',
        f"Run `nvidia-smi` to see whether the GPU and the driver are in order, {OR_FAKE}.",
    )


def check_uuids(devices: Sequence[str]) -> None:
    """See that each names a whole GPU, and no two the same.

    Raises:
        CourseError: with the first that does not.
    """
    for number, device in enumerate(devices):
        if not UUID.fullmatch(device):
            raise CourseError(f'"{device}" does not name a whole GPU.', "`nvidia-smi -L` shows the UUID of each.")
        if device in devices[:number]:
            raise CourseError(f"The GPU {device} is named twice.", "Name each GPU once.")


def files(devices: Sequence[str]) -> dict[str, list[str]]:
    """The device files that a container needs to use each of these GPUs: its own, and those of the driver.

    Args:
        devices: UUIDs of the GPUs.

    Raises:
        CourseError: if a GPU is not there, or a file is not.
    """
    if not devices:
        return {}
    minors = _minors()
    return {uuid: [_file(f"nvidia{_minor(minors, uuid)}"), *map(_file, NEEDED), *_usual()] for uuid in devices}


def _minors() -> dict[str, int]:
    """The number in the name of each GPU's device file, by UUID. nvidia-smi counts in another order than the driver."""
    found = {}
    for file in sorted(PROC.glob("*/information")):
        said = dict(line.partition(":")[::2] for line in file.read_text(errors="replace").splitlines())
        uuid, minor = (said.get(name, "").strip() for name in ("GPU UUID", "Device Minor"))
        if minor.isdecimal():
            found[uuid] = int(minor)
    return found


def _minor(minors: dict[str, int], uuid: str) -> int:
    if uuid in minors:
        return minors[uuid]
    if not minors:
        raise CourseError(
            f"The driver does not say which device file belongs to which GPU: {PROC} says nothing.",
            f"Use Linux with NVIDIA's own driver (WSL has another), {OR_FAKE}.",
        )
    raise CourseError(
        f"The GPU {uuid} is not in this computer, by what the driver says in {PROC}.",
        "Run `nvidia-smi -L` to see which are; `course down --wipe` removes a cluster that had others.",
    )


def _file(name: str) -> str:
    if not (DEV / name).exists():
        raise CourseError(
            f"There is no {DEV / name}, which a program needs to use a GPU.",
            f"Run `sudo nvidia-smi` and `sudo nvidia-modprobe -u -c=0`, which make such files, {OR_FAKE}.",
        )
    return str(DEV / name)


def _usual() -> list[str]:
    return [str(DEV / name) for name in USUAL if (DEV / name).exists()]


def environment(devices: Sequence[str]) -> dict[str, str]:
    """What a container on a machine with real GPUs is told of its own; the kubelet says the same (assign.go).

    Args:
        devices: UUIDs of the container's GPUs. None: it is told that there is none, and CUDA shows it none.
    """
    value = ",".join(devices)
    return {"NVIDIA_VISIBLE_DEVICES": value or "void", "CUDA_VISIBLE_DEVICES": value}

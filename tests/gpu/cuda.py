"""What CUDA shows to this process, as one line of JSON. check.py runs it as `python3 -c`, so it needs no file."""

from __future__ import annotations

import ctypes
import json
import os

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE of cuda.h
WORDS, VALUE = 1 << 20, 0x5EED


class CudaError(Exception):
    """A call of the CUDA driver API has failed."""


def look(cuda: ctypes.CDLL) -> list[str]:
    """The UUIDs of the GPUs that are visible, in order; each has written and given back 4 MiB.

    Raises:
        CudaError: with the call that fails, and its number in cuda.h.
    """
    if cuda.cuInit(0) == NO_DEVICE:
        return []
    _call(cuda, "cuInit", 0)
    count = ctypes.c_int()
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    return [_device(cuda, number) for number in range(count.value)]


def _device(cuda: ctypes.CDLL, number: int) -> str:
    device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    _call(cuda, "cuDeviceGet", ctypes.byref(device), number)
    _call(cuda, "cuDeviceGetUuid", ctypes.byref(uuid), device)
    _compute(cuda, device)
    text = bytes(uuid).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _compute(cuda: ctypes.CDLL, device: ctypes.c_int) -> None:
    """Lets the GPU fill memory of its own, and reads it back."""
    context, place, words = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_uint32 * WORDS)()
    _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(cuda, "cuCtxSetCurrent", context)
    _call(cuda, "cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(ctypes.sizeof(words)))
    _call(cuda, "cuMemsetD32_v2", place, ctypes.c_uint32(VALUE), ctypes.c_size_t(WORDS))
    _call(cuda, "cuMemcpyDtoH_v2", words, place, ctypes.c_size_t(ctypes.sizeof(words)))
    _call(cuda, "cuMemFree_v2", place)
    if set(words) != {VALUE}:
        raise CudaError("the GPU's memory does not hold what was written to it")


def _call(cuda: ctypes.CDLL, name: str, *arguments: object) -> None:
    if code := getattr(cuda, name)(*arguments):
        raise CudaError(f"{name} fails with {code}")


def main() -> None:
    """Print `{"uuids": […], "files": […]}`, or `{"error": why}`."""
    seen = {"files": sorted(f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia"))}
    try:
        seen["uuids"] = look(ctypes.CDLL("libcuda.so.1"))
    except (CudaError, OSError) as error:
        seen["error"] = str(error)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()

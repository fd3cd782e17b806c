"""Print the UUIDs of CUDA's GPUs, one per line, in CUDA's order. Standard library only."""

from __future__ import annotations

import ctypes
import os
import uuid
from contextlib import suppress


def gpu_ids(driver: ctypes.CDLL, choice: str = "") -> list[str]:
    """Return UUIDs as `nvidia-smi -L` writes them; numbers from a driver that has none.

    `choice`: CUDA_VISIBLE_DEVICES, the only way to distinguish a MIG device from a GPU.
    """
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []

    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or getattr(driver, "cuDeviceGetUuid", None)
    if ask is None:
        return [str(number) for number in range(count.value)]

    choices = [word.strip() for word in choice.split(",")]

    uuids = []
    for number in range(count.value):
        device = ctypes.c_int(0)
        answer = (ctypes.c_ubyte * 16)()
        if (
            driver.cuDeviceGet(ctypes.byref(device), number) != 0
            or ask(ctypes.byref(answer), device) != 0
        ):
            return []
        is_mig = number < len(choices) and choices[number].startswith("MIG-")
        kind = "MIG" if is_mig else "GPU"
        uuids.append(f"{kind}-{uuid.UUID(bytes=bytes(answer))}")

    return uuids


if __name__ == "__main__":
    with suppress(OSError):  # no driver, no GPU
        cuda = ctypes.CDLL("libcuda.so.1")
        print("\n".join(gpu_ids(cuda, os.environ.get("CUDA_VISIBLE_DEVICES", ""))))

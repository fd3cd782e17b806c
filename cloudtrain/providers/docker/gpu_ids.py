"""The UUIDs of the GPUs that CUDA shows, one a line, in CUDA's order. A program of its own;
standard library only.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from contextlib import suppress


def gpu_ids(driver: ctypes.CDLL, choice: str = "") -> list[str]:
    """As `nvidia-smi -L` writes them. `choice`: CUDA_VISIBLE_DEVICES, which alone tells a MIG
    device from a GPU.
    """
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    said = [word.strip() for word in choice.split(",")]
    found = []
    for number in range(count.value):
        device = ctypes.c_int(0)
        answer = (ctypes.c_ubyte * 16)()
        if (
            driver.cuDeviceGet(ctypes.byref(device), number) != 0
            or ask(ctypes.byref(answer), device) != 0
        ):
            return []
        kind = "MIG" if number < len(said) and said[number].startswith("MIG-") else "GPU"
        found.append(f"{kind}-{uuid.UUID(bytes=bytes(answer))}")
    return found


if __name__ == "__main__":
    with suppress(OSError):  # no driver, no GPU
        print(
            "\n".join(
                gpu_ids(ctypes.CDLL("libcuda.so.1"), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
            )
        )

"""How many GPUs a process would see, asked of the driver itself: before torch is there. Standard library only."""

from __future__ import annotations

import ctypes


def visible_gpus() -> int:
    """GPUs that CUDA would show, `CUDA_VISIBLE_DEVICES` and MIG honoured; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


if __name__ == "__main__":
    print(visible_gpus())

"""GPUs of NVIDIA in this machine, counted without torch. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CHOICE = "CUDA_VISIBLE_DEVICES"

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
"""Folder of NVIDIA's driver for Linux, with one for each GPU; WSL has none."""


def visible_gpus() -> int:
    """Return the number of GPUs that CUDA shows this process; 0 without a driver."""
    import ctypes  # slow to import

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0

    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0

    return count.value


def present_gpus(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs of this machine that a process with these variables may use.

    The driver's own folder is read first: CUDA takes up to seconds to answer.
    """
    count = len(list(NVIDIA_GPUS.glob("*"))) or visible_gpus()
    if CHOICE not in environ:
        return count

    chosen = [word for word in environ[CHOICE].split(",") if word.strip() not in ("", "-1")]
    return min(count, len(chosen))

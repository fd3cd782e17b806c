"""Facts about this machine: Python, torch, GPUs, driver, disk. Changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBE_SECONDS = 120
"""Timeout of an import of torch; a cold disk takes most of a minute."""
SMI_SECONDS = 30
GPU_SECONDS = 60


def memory_bytes() -> int:
    """Return this machine's memory in bytes; 8 GiB if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 2**33


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonFacts:
    """Facts about the Python of local runs."""

    path: str
    version: str = ""
    """Version; empty if the Python could not be run."""
    error: str = ""
    """Reason why the Python could not be run, or torch could not be imported."""
    torch: str = ""
    """Version of torch, `2.13.0+cpu`; empty if it is not installed."""
    cuda: str = ""
    """Version of CUDA that torch is built for, `13.0`; empty for none."""
    torch_gpus: int = 0
    """Number of GPUs that torch sees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """GPUs of NVIDIA, as the driver reports them."""

    driver: str = ""
    """Version of the driver; empty without one."""
    names: tuple[str, ...] = ()
    error: str = ""
    """Message of nvidia-smi if it cannot reach the driver."""


def ask_python(path: str) -> PythonFacts:
    """Ask a Python about itself and its torch, in a separate process."""
    program = [path, str(Path(__file__).with_name("python_facts.py"))]
    try:
        completed = subprocess.run(
            program,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
        lines = completed.stdout.strip().splitlines()
        facts: dict[str, Any] = json.loads(lines[-1] if lines else "")
    except (OSError, subprocess.TimeoutExpired) as error:
        return PythonFacts(path=path, error=str(error))
    except ValueError:
        problem = f"exit code {completed.returncode}: {completed.stderr.strip()[-300:]}"
        return PythonFacts(path=path, error=problem)

    torch = facts["torch"]
    return PythonFacts(
        path=path,
        version=facts["python"],
        error=torch.get("error", ""),
        torch=torch.get("version", ""),
        cuda=torch.get("cuda", ""),
        torch_gpus=torch.get("gpus", 0),
    )


def ask_driver() -> GpuFacts:
    """Ask nvidia-smi about driver and GPUs."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return GpuFacts()

    query = [program, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        completed = subprocess.run(
            query,
            capture_output=True,
            text=True,
            timeout=SMI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return GpuFacts(error=str(error))

    rows = [line.partition(", ") for line in completed.stdout.splitlines() if ", " in line]
    if completed.returncode or not rows:
        return GpuFacts(error=" ".join((completed.stdout + completed.stderr).split())[:300])

    return GpuFacts(driver=rows[0][0], names=tuple(row[2] for row in rows))


def visible_gpus(env: Mapping[str, str], python: str = sys.executable) -> tuple[str, ...]:
    """Return UUIDs of the GPUs that CUDA shows a job with these variables, in CUDA's order.

    CUDA numbers GPUs by speed, Docker by their PCI address; UUIDs are the same for both.
    """
    variables = dict(os.environ)
    for name, value in env.items():
        if name.startswith("CUDA_"):
            variables[name] = value

    answer = subprocess.run(
        [python, str(Path(__file__).with_name("gpu_ids.py"))],
        env=variables,
        timeout=GPU_SECONDS,
        check=False,
        capture_output=True,
        text=True,
    )
    return tuple(answer.stdout.split())


def free_bytes(folder: Path) -> int:
    """Return the free space for this user at a folder, which need not exist, in bytes."""
    disk = os.statvfs(_existing(folder))
    return disk.f_bavail * disk.f_frsize


def can_write(folder: Path) -> bool:
    """Return True if this user may write to a folder, or create it."""
    return os.access(_existing(folder), os.W_OK)


def _existing(folder: Path) -> Path:
    """Return the folder, or else the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent

    return folder

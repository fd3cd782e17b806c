"""What this machine is like: its Python and torch, GPUs and driver, disk, as values. Changes
nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain.providers.local.known_trouble import PACKAGES

PROBE_SECONDS = 120
"""How long a Python may take to import torch: a cold disk takes most of a minute."""
SMI_SECONDS = 30

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""Vendor and class of a GPU on the PCI bus (PCI ID repository)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonFacts:
    """The Python that local runs use."""

    path: str
    version: str = ""
    """Empty where it could not be run."""
    error: str = ""
    """Why it could not be run, or why torch could not be imported."""
    torch: str = ""
    """Its version, `2.13.0+cpu`; empty where it is not installed."""
    cuda: str = ""
    """What torch is built for: `13.0`; empty for none."""
    torch_gpus: int = 0
    """How many GPUs torch sees."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that are known to be trouble together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """The GPUs of NVIDIA, as the driver and the PCI bus know them."""

    driver: str = ""
    """Its version; empty where none answers."""
    names: tuple[str, ...] = ()
    error: str = ""
    """What nvidia-smi says where it cannot reach the driver."""
    on_bus: int = 0
    """How many the PCI bus shows, whether there is a driver or not."""


def ask_python(path: str) -> PythonFacts:
    """Ask a Python about itself and its torch, in a process of its own."""
    program = [path, str(Path(__file__).with_name("python_facts.py")), *PACKAGES]
    try:
        done = subprocess.run(
            program, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
        said: dict[str, Any] = json.loads((done.stdout.strip().splitlines() or [""])[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return PythonFacts(path=path, error=str(error))
    except ValueError:
        return PythonFacts(
            path=path, error=f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"
        )
    torch = said["torch"]
    return PythonFacts(
        path=path,
        version=said["python"],
        error=torch.get("error", ""),
        torch=torch.get("version", ""),
        cuda=torch.get("cuda", ""),
        torch_gpus=torch.get("gpus", 0),
        versions=said["versions"],
    )


def ask_driver() -> GpuFacts:
    """Ask nvidia-smi about driver and GPUs, where there is one; and the PCI bus, which knows GPUs
    without a driver.
    """
    on_bus = _gpus_on_bus(Path("/sys/bus/pci/devices"))
    program = shutil.which("nvidia-smi")
    if program is None:
        return GpuFacts(on_bus=on_bus)
    query = [program, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return GpuFacts(error=str(error), on_bus=on_bus)
    rows = [line.partition(", ") for line in done.stdout.splitlines() if ", " in line]
    if done.returncode or not rows:
        return GpuFacts(error=" ".join((done.stdout + done.stderr).split())[:300], on_bus=on_bus)
    return GpuFacts(driver=rows[0][0], names=tuple(row[2] for row in rows), on_bus=on_bus)


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write where a folder is, or where it would be made."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    disk = os.statvfs(there)
    return disk.f_bavail * disk.f_frsize


def can_write(folder: Path) -> bool:
    """Return True if this user may write there, or make it."""
    return os.access(next(path for path in (folder, *folder.parents) if path.exists()), os.W_OK)


def own_versions() -> dict[str, str]:
    """The versions of the same packages in the Python that runs this command."""
    from cloudtrain.providers.local.python_facts import versions

    return versions(list(PACKAGES))


def is_own(path: str) -> bool:
    """Return True if a Python is the one that runs this command."""
    return path == sys.executable


def _gpus_on_bus(folder: Path) -> int:
    found = 0
    for device in folder.glob("*"):
        try:
            vendor = (device / "vendor").read_text()
            kind = (device / "class").read_text()
        except OSError:
            continue
        found += vendor.startswith(_NVIDIA) and kind.startswith(_DISPLAY)
    return found

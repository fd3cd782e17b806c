"""Facts in the name of an instance type: local disks, processor, GPUs.

After "Amazon EC2 instance type naming conventions" and "Naming conventions for Azure virtual
machine sizes". tests/unit/test_machines.py compares the results with EC2's own data.
"""

from __future__ import annotations

import re

# Compiled at first use: most plans do not need them.
_EC2 = r"(?:ml\.)?(?P<series>[a-z]+)(?P<generation>\d+)(?P<options>[a-z]*)(?:-\w+)?\.[\w-]+"
"""`r`, `5` and `d` of `ml.r5d.large`."""
_STORAGE_SERIES = ("i", "im", "is", "d", "h", "f", "x", "trn", "gr")
"""Series that always have local disks, without a letter for it."""
_STORAGE_FROM = {"p": 5, "g": 5}
"""Series with local disks from a generation on."""
_STORAGE_UNTIL = {"c": 3, "m": 3, "r": 3}
"""Series with local disks up to a generation."""
_AZURE_ARM = r"(standard|basic)_[a-z]+\d+(-\d+)?[a-z]*p[a-z]*(_|$)"
"""A small `p` means an ARM processor."""
_GRACE = r"[_-]g[bh]\d00(_|\.|$)"
"""NVIDIA's ARM processor: `p6e-gb200.36xlarge`, `Standard_ND128isr_NDR_GB200_v6`."""
_GPUS = {"aws": r"(ml\.)?(p|g|gr)\d", "azure": r"standard_n"}


def local_disks(instance_type: str) -> bool | None:
    """Return whether an EC2 type has local disks; None for an unknown name."""
    name = re.fullmatch(_EC2, instance_type)
    if name is None:
        return None
    series = name["series"]
    generation = int(name["generation"])
    options = name["options"]
    if "d" in options:
        return True
    if series in _STORAGE_SERIES:
        return series != "x" or generation == 1
    if series in _STORAGE_FROM:
        return generation >= _STORAGE_FROM[series] and options != "g"
    return generation <= _STORAGE_UNTIL.get(series, 0)


def architecture(provider: str, instance_type: str) -> str:
    """Return the architecture as images name it: arm64 or amd64."""
    name = re.fullmatch(_EC2, instance_type) if provider == "aws" else None
    graviton = name is not None and ("g" in name["options"] or name["series"] == "a")
    arm = graviton or (provider == "azure" and re.match(_AZURE_ARM, instance_type, re.IGNORECASE))
    return "arm64" if arm or re.search(_GRACE, instance_type, re.IGNORECASE) else "amd64"


def is_azure_size(name: str) -> bool:
    """Return whether a name is an Azure machine size: `Standard_D4s_v3`. Case is ignored."""
    return re.fullmatch(r"(standard|basic)_\w+", name, re.IGNORECASE) is not None


def has_gpus(provider: str, instance_type: str) -> bool:
    """Return whether a type is of a series with GPUs."""
    return re.match(_GPUS.get(provider, "$"), instance_type, re.IGNORECASE) is not None

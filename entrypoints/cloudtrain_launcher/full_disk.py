"""Detection of a full disk behind a vague error of the program. Standard library only.

On a full disk torch.save raises `RuntimeError: basic_ios::clear: iostream error`, without the name
of the disk or the cause.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

FOLDERS = ("CLOUDTRAIN_CHECKPOINT_DIR", "CLOUDTRAIN_OUTPUT_DIR", "CLOUDTRAIN_MODEL_DIR")
FULL_BYTES = 1 << 20
"""Free space below which a disk counts as full; the failed writer may have freed some."""


def full_disk_hint(error: BaseException, environ: Mapping[str, str]) -> str:
    """Name the full disk and a solution; empty if no disk is full or the cause is another."""
    if not isinstance(error, (OSError, RuntimeError)):
        return ""
    for name in FOLDERS:
        folder = environ.get(name, "")
        try:
            disk = os.statvfs(folder)
        except OSError:
            continue
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < FULL_BYTES:
            return (
                f"the disk of {folder} is full: keep fewer checkpoints (checkpoints.keep), or ask"
                " for more space (resources.disk)"
            )
    return ""

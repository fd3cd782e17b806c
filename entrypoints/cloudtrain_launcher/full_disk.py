"""Says which disk of the job is full, where a program could not write and its error does not.
Standard library only.

torch.save on a full disk raises `RuntimeError: basic_ios::clear: iostream error`, which names
neither disk nor cause.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

FOLDERS = ("CLOUDTRAIN_CHECKPOINT_DIR", "CLOUDTRAIN_OUTPUT_DIR", "CLOUDTRAIN_MODEL_DIR")
FULL_BYTES = 1 << 20
"""A disk with less space than this counts as full: whoever failed to write may have freed a little
again.
"""


def full_disk_hint(error: BaseException, environ: Mapping[str, str]) -> str:
    """Which disk is full and what to do about it; empty if none is, or if the error cannot come
    from it.
    """
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

"""Run ids, which a plan creates without the run store."""

from __future__ import annotations

import os
from pathlib import Path

_LETTERS = "23456789abcdefghjkmnpqrstvwxyz"
"""Letters and digits that are not confused when read aloud or copied by hand."""


def new_run_id(data_dir: Path, name: str) -> str:
    """Return an unused run id: the job's name and four random characters, `digits-k2x9`."""
    while True:
        run_id = f"{name}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(4))}"
        if not (data_dir / "runs" / run_id).exists():
            return run_id

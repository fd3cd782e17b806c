"""Where the programs of `make oracles` are, and the reason to skip without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = os.environ.get("CLOUDTRAIN_TEST_ORACLES", "")
"""Folder that `make oracles` installs into; empty without it."""
PYTHON = Path(FOLDER, "bin", "python").absolute()
AZURITE = Path(FOLDER, "node_modules", ".bin", "azurite-blob").absolute()


def _lacks_toolkit() -> bool:
    if not FOLDER:
        return True
    question = [
        str(PYTHON),
        "-c",
        "import importlib.util as u, sys; sys.exit(not u.find_spec('sagemaker_training'))",
    ]
    return subprocess.run(question, check=False).returncode != 0


needs_toolkit = pytest.mark.skipif(
    _lacks_toolkit(), reason="sagemaker-training is not installed; `make oracles` installs it"
)
needs_oracles = pytest.mark.skipif(not FOLDER, reason="`make oracles` runs this")
needs_azurite = pytest.mark.skipif(
    not FOLDER or not AZURITE.exists(),
    reason="Azurite is not installed; `make oracles` installs it, with npm",
)

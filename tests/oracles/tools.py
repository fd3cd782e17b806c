"""Places of the programs of `make oracles`, and the reason to skip without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = os.environ.get("CLOUDTRAIN_TEST_ORACLES", "")
"""Folder that `make oracles` installs into; empty without it."""
PYTHON = Path(FOLDER, "bin", "python").absolute()
AZURITE = Path(FOLDER, "node_modules", ".bin", "azurite-blob").absolute()


def needs_package(name: str, module: str) -> pytest.MarkDecorator:
    """Skip if a package of requirements.txt is missing."""
    code = f"import importlib.util as u, sys; sys.exit(not u.find_spec({module!r}))"
    has_module = FOLDER and subprocess.run([str(PYTHON), "-c", code], check=False).returncode == 0
    return pytest.mark.skipif(
        not has_module, reason=f"{name} is not installed; `make oracles` installs it"
    )


needs_toolkit = needs_package("sagemaker-training", "sagemaker_training")
needs_local_mode = needs_package("sagemaker-train", "sagemaker.train.local.local_container")
needs_serving_toolkit = needs_package(
    "sagemaker-pytorch-inference", "sagemaker_pytorch_serving_container"
)
needs_oracles = pytest.mark.skipif(not FOLDER, reason="`make oracles` runs this")
needs_azurite = pytest.mark.skipif(
    not FOLDER or not AZURITE.exists(),
    reason="Azurite is not installed; `make oracles` installs it, with npm",
)

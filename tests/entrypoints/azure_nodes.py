"""Nodes of an Azure ML command job on this machine: with the variables, mounts and command line of
the service.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.entrypoints.test_launcher import ENTRYPOINTS, Launcher, document
from tests.entrypoints.warm_launchers import ForkedLauncher

MASTER = "127.0.0.101"


def variables(rank: int = 0, nodes: int = 1, port: int = 6105, **changes: str) -> dict[str, str]:
    """Return Azure ML's variables for a PyTorch distribution with one process per node, and those
    of the request.
    """
    return {
        "AZUREML_RUN_ID": "job-1",
        "MASTER_ADDR": MASTER,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(nodes),
        "NODE_RANK": str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "CLOUDTRAIN_PLATFORM": "azureml",
        "CLOUDTRAIN_JOB": json.dumps(document()),
        "CLOUDTRAIN_SCHEDULED_EVENTS": "off",
    } | changes


def folders(base: Path) -> dict[str, str]:
    """Return the variables that the command exports: the mounts, shared by all nodes."""
    mounts = {
        "CLOUDTRAIN_OUTPUT_DIR": "output",
        "CLOUDTRAIN_MODEL_DIR": "model",
        "CLOUDTRAIN_CHECKPOINT_DIR": "checkpoints",
        "CLOUDTRAIN_INPUT_TRAIN": "in a mount/train",
        "CLOUDTRAIN_RESUME_DIR": "earlier",
    }
    for path in mounts.values():
        (base / path).mkdir(parents=True, exist_ok=True)
    return {name: str(base / path) for name, path in mounts.items()}


def start_node(
    base: Path,
    rank: int,
    nodes: int,
    port: int,
    programs: dict[str, str],
    job: dict[str, Any],
    *,
    new_process: bool = False,
    **environ: str,
) -> Launcher:
    """Start one node in its own folder: as a fork, or as the service does, by a shell that the
    launcher replaces.
    """
    code = base / f"wd-{rank}" / f"node-{rank}"  # every node has its own disk
    shutil.copytree(
        ENTRYPOINTS,
        code / ".cloudtrain",
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    for name, text in programs.items():
        (code / f"{name}.py").write_text(text)
    exports = " ".join(f'{name}="{path}"' for name, path in folders(base).items())
    foreign = ("CLOUDTRAIN_", "PET_", "AZUREML_", "TORCHELASTIC_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    env |= variables(rank, nodes, port, CLOUDTRAIN_JOB=json.dumps(document(**job)))
    env |= {"CLOUDTRAIN_NODE_ADDR": f"127.0.0.{101 + rank}"} | environ
    if not new_process and sys.platform == "linux":
        return ForkedLauncher(code / ".cloudtrain", code, env | folders(base))
    return subprocess.Popen(
        ["sh", "-c", f'export {exports} && exec "{sys.executable}" -u .cloudtrain'],
        cwd=code,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

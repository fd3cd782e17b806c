"""Interface of emulators, which execute a request here, and code that clouds share."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from cloudtrain.planning.launch import PACKAGES_DIR, PUBLISHED, Launch
from cloudtrain.providers.rehearsal.plan import EmulatedPlan
from cloudtrain.providers.rehearsal.run_paths import RunPaths

LaunchT = TypeVar("LaunchT", bound=Launch, covariant=True)


class Emulator(Protocol[LaunchT]):
    """Executes the request of one run on this machine. `LaunchT`: the type of its launches."""

    max_runtime_seconds: int | None
    grace_seconds: int
    nodes_on_host: bool
    """True if paths on a node are paths on this machine; False for containers."""

    def inherits(self, variable: str) -> bool:
        """Return True if the job gets this variable from the user's environment."""
        ...

    def prepare(self, archive: Path) -> Sequence[LaunchT]:
        """Create folders and files of each node; return one launch per node.

        `archive`: the source.
        """
        ...

    def sync(self) -> None:
        """Copy new checkpoints to the run's folder, about once a second. May raise OSError."""
        ...

    def clean_up(self) -> None:
        """Remove leftovers of the nodes' processes after their end. May raise CloudtrainError."""
        ...

    def collect(self) -> list[str]:
        """Collect the nodes' artifacts in the run's folder at the end; return notes for the log."""
        ...


HOST_VARIABLES = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PYTHONDONTWRITEBYTECODE"),
}
"""Variables that programs need on this machine, whatever the contract."""


def machine_variables(paths: RunPaths, plan: EmulatedPlan) -> dict[str, str]:
    """Return variables of a node: this machine's Python, a share of the cores, kept packages."""
    path = f"{Path(plan.python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = {"PATH": path, **thread_variables(paths, plan.cores)}
    variables[PACKAGES_DIR] = str(paths.packages)
    return variables


def published_variables(paths: RunPaths) -> dict[str, str]:
    """Return the folder that replaces a cloud's storage for published files, if it exists.

    It overrides the request's own variable.
    """
    return {PUBLISHED: str(paths.published)} if paths.published.is_dir() else {}


def thread_variables(paths: RunPaths, cores: int) -> dict[str, str]:
    """Return OMP_NUM_THREADS for a rank: all nodes share this machine's cores.

    Too many threads slow a job down several times, because waiting OpenMP threads keep a core busy.
    """
    job = json.loads(paths.job_file.read_text())
    share = cores // (job["nodes"] * job["processes"])
    return {"OMP_NUM_THREADS": str(max(1, share))}

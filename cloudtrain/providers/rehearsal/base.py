"""The interface of emulators, which execute a run's request on this machine, and what those of the
clouds share.
"""

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
    """True if paths on a node are paths on this machine; not in containers."""

    def inherits(self, variable: str) -> bool:
        """Return True if the job gets this variable from the user's environment."""
        ...

    def prepare(self, archive: Path) -> Sequence[LaunchT]:
        """Create the folders and files of each node; returns one launch per node. `archive`: the
        source.
        """
        ...

    def sync(self) -> None:
        """Copy new checkpoints to the run's folder. Called about once a second while the job runs.
        OSError.
        """
        ...

    def clean_up(self) -> None:
        """Remove what the nodes' processes leave running, after their end. CloudtrainError."""
        ...

    def collect(self) -> list[str]:
        """Collect the nodes' artifacts in the run's folder, once at the end; returns notes for the
        log.
        """
        ...


HOST_VARIABLES = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PYTHONDONTWRITEBYTECODE"),
}
"""Variables that programs need on this machine, whatever the contract."""


def search_path(python: str) -> str:
    """The PATH of a rehearsal: the configured Python comes first, in place of the image's."""
    return f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def machine_variables(paths: RunPaths, plan: EmulatedPlan) -> dict[str, str]:
    """What a rehearsed node finds of this machine: its Python, a share of its cores, and packages
    that are kept.
    """
    kept = {PACKAGES_DIR: str(paths.packages)}
    return {"PATH": search_path(plan.python), **thread_variables(paths, plan.cores), **kept}


def published_variables(paths: RunPaths) -> dict[str, str]:
    """Where a rehearsed node reads what the client publishes, in place of a cloud's storage;
    nothing if it does not.
    """
    return {PUBLISHED: str(paths.published)} if paths.published.is_dir() else {}


def thread_variables(paths: RunPaths, cores: int) -> dict[str, str]:
    """OMP_NUM_THREADS for a rehearsed rank: all nodes share this machine's cores, unlike in a
    cloud.

    Too many threads slow a job down several times, because OpenMP threads wait busily for each
    other.
    """
    job = json.loads(paths.job_file.read_text())
    share = cores // (job["nodes"] * job["processes"])
    return {"OMP_NUM_THREADS": str(max(1, share))}

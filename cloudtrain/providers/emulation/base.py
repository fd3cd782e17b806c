"""What an emulator is: it makes a run's request ready to be executed here. And what those of rehearsals share."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from cloudtrain.contracts.launch import Launch
from cloudtrain.providers.emulation.run_paths import RunPaths

LaunchT = TypeVar("LaunchT", bound=Launch, covariant=True)


class Emulator(Protocol[LaunchT]):
    """One run's request, made ready to be executed here. `LaunchT`: what it says of a node."""

    max_runtime_seconds: int | None
    grace_seconds: int
    nodes_on_host: bool
    """Whether a path that a node speaks of is a path of this machine."""

    def inherits(self, variable: str) -> bool:
        """Whether the job sees this variable of the person's own environment."""
        ...

    def prepare(self, archive: Path) -> Sequence[LaunchT]:
        """Lay everything out, and say what is to be started, one launch per node."""
        ...

    def sync(self) -> None:
        """Called now and then while it runs: what must survive even if this machine dies."""
        ...

    def clean_up(self) -> None:
        """Called when the nodes' processes have ended: nothing that they have started goes on. CloudtrainError."""
        ...

    def collect(self) -> list[str]:
        """Called once, when all is over: bring what the nodes left to where people look. What is to be said of it."""
        ...


HOST_VARIABLES = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PYTHONDONTWRITEBYTECODE"),
}
"""Variables that a program needs to run on this machine at all, whatever contract it runs under."""


def search_path(python: str) -> str:
    """The PATH of a rehearsal: the chosen Python comes first, as it is the image that is not there."""
    return f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def threads(paths: RunPaths, cores: int) -> dict[str, str]:
    """How many threads a rehearsed rank has, unless the spec says: all nodes stand on this machine, each cloud's on one
    of its own. Too many threads cost factors, not percents: OpenMP's wait busily for each other.
    """
    job = json.loads(paths.job_file.read_text())
    share = cores // (job["nodes"] * job["processes"])
    return {"OMP_NUM_THREADS": str(max(1, share))}

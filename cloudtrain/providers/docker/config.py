"""Resources of this machine for a run's containers, fixed in its plan."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.planning.target import ProviderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DockerConfig(ProviderConfig):
    """Limits of each container, and the distribution of GPUs."""

    cores: int = 1
    """Cores of this machine; nodes share them."""
    gpus: int = 0
    """GPUs per node."""
    shm_bytes: int = 64 * 2**20
    """Shared memory of each container; Docker's own default."""
    memory_bytes: int | None = None
    """Maximum memory of a container; None: no limit."""

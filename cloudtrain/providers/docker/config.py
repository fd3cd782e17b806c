"""What the containers of a run may use of this machine, decided when it is planned."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.planning.target import ProviderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DockerConfig(ProviderConfig):
    """Limits of each container, and how GPUs are shared out."""

    cores: int = 1
    """Of this machine; nodes share them."""
    gpus: int = 0
    """Per node."""
    shm_bytes: int = 64 * 2**20
    """Shared memory of each container; by default as much as Docker gives."""
    memory_bytes: int | None = None
    """The most that one container may use; None: no limit."""
    share_gpus: bool = False
    """Containers may use GPUs that another run has."""

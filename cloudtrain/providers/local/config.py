"""Facts about this machine that a plan fixes for a run."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.planning.target import ProviderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalConfig(ProviderConfig):
    """Python of the job, and facts about the machine."""

    python: str
    """Path of the interpreter."""
    cores: int = 1
    """Cores that this process may use; nodes share them."""
    system: str = ""
    """Name of the system as in `sys.platform`: `linux`, `darwin`."""

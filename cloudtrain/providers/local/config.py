"""Facts about this machine that a plan of a local run carries."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.runs.provider_config import ProviderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalConfig(ProviderConfig):
    """Python of the job, and facts about the machine."""

    python: str
    """Path of the interpreter."""
    cores: int = 1
    """Cores that this process may use; nodes share them."""
    system: str = ""
    """Name of the system as in `sys.platform`: `linux`, `darwin`."""

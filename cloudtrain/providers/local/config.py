"""What a run on this machine needs to know of it, decided when it is planned."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.planning.target import ProviderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalConfig(ProviderConfig):
    """The Python that runs the job, and the machine."""

    python: str
    """The path of the interpreter."""
    cores: int = 1
    """Those that this process may use; nodes share them."""
    system: str = ""
    """As `sys.platform` names it: `linux`, `darwin`."""

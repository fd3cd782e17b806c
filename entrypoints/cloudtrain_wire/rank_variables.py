"""Variables that torchrun sets for each rank. A job's own values of them reach no program."""

from __future__ import annotations

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Variables that make a process a rank, which others wait for or which waits for others."""

_SET_BY_TORCHRUN = {
    *RANK_VARIABLES,
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
}

_TORCHRUN_PREFIXES = ("PET_", "TORCHELASTIC_")
"""Possible leftovers of the platform, or of a torchrun that started the launcher."""


def is_set_by_torchrun(name: str) -> bool:
    """Return whether the launcher drops a variable, or torchrun replaces its value."""
    return name in _SET_BY_TORCHRUN or name.startswith(_TORCHRUN_PREFIXES)

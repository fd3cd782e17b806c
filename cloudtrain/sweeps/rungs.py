"""Successive halving, as the launcher has it: driver and jobs decide by the same rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain_launcher.rungs import goes_on, is_better, promotable, rungs_of
else:
    from cloudtrain.bundle import launcher_module

    _rungs = launcher_module("rungs")
    goes_on, is_better, promotable, rungs_of = _rungs.goes_on, _rungs.is_better, _rungs.promotable, _rungs.rungs_of

__all__ = ["goes_on", "is_better", "promotable", "rungs_of"]

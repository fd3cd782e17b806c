"""Reads cells of notebooks by the launcher's rules (notebook_code.py, which explains them)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain_launcher.notebook_code import INSTALLS as INSTALLS
    from cloudtrain_launcher.notebook_code import plain_code as plain_code
else:
    from cloudtrain.bundle import launcher_module

    _code = launcher_module("notebook_code")
    INSTALLS = _code.INSTALLS
    plain_code = _code.plain_code

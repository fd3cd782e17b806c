"""The identity of a process, which the client shares with the launcher (process_identity.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain_launcher.process_identity import ProcessIdentity as ProcessIdentity
else:
    from cloudtrain.bundle import launcher_module

    ProcessIdentity = launcher_module("process_identity").ProcessIdentity

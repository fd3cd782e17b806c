"""Identity of a process, shared with the launcher (process_identity.py)."""

from __future__ import annotations

from cloudtrain_launcher.process_identity import ProcessIdentity as ProcessIdentity

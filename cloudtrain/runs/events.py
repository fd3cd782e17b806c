"""The events of a run, as the launcher's own files define them (cloudtrain_launcher/events.py,
which explains them).

They are loaded from beside this package: see `cloudtrain.bundle.launcher_module`.
"""

from __future__ import annotations

from cloudtrain_launcher.events import *  # noqa: F403
from cloudtrain_launcher.events import CLIENT, EVENT_TYPES

RESERVED_EVENTS: tuple[str, ...] = tuple(
    name for name, event in EVENT_TYPES.items() if event.WRITER == CLIENT
)
"""The types of events that only this package may write; a job that prints one is not believed."""

"""The events of a run, as the launcher's own files define them (cloudtrain_launcher/events.py,
which explains them).

They are loaded from beside this package: see `cloudtrain.bundle.launcher_module`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain_launcher.events import *  # noqa: F403
    from cloudtrain_launcher.events import CLIENT, EVENT_TYPES
else:
    from cloudtrain.bundle import launcher_module

    _events = launcher_module("events")
    globals().update(
        {name: value for name, value in vars(_events).items() if not name.startswith("_")}
    )


RESERVED_EVENTS: tuple[str, ...] = tuple(
    name for name, event in EVENT_TYPES.items() if event.WRITER == CLIENT
)
"""The types of events that only this package may write; a job that prints one is not believed."""

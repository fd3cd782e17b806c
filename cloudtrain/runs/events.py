"""The events of a run, as the launcher's own files define them (cloudtrain_launcher/events.py, which explains them).

Those files are sent with the job, so that they cannot import from this package, and a job may bring those of another
version: here they are loaded from beside this package, under a name of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain_launcher.events import *  # noqa: F403
    from cloudtrain_launcher.events import CLIENT, EVENT_TYPES
else:
    import sys
    from importlib import import_module
    from importlib.machinery import ModuleSpec
    from importlib.util import module_from_spec

    from cloudtrain.bundle import bundled

    _package = ModuleSpec("cloudtrain._launcher", None, is_package=True)
    _package.submodule_search_locations = [str(bundled("entrypoints") / "cloudtrain_launcher")]
    sys.modules.setdefault(_package.name, module_from_spec(_package))
    _events = import_module("cloudtrain._launcher.events")
    globals().update({name: value for name, value in vars(_events).items() if not name.startswith("_")})


RESERVED_EVENTS: tuple[str, ...] = tuple(name for name, event in EVENT_TYPES.items() if event.WRITER == CLIENT)
"""The types of events that only this package may write; a job that prints one is not believed."""

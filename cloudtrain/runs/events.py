"""Events as the client may use them, checked by the one schema that the launcher has too (event_schema.py there)."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from cloudtrain.bundle import bundled


def _load_schema() -> Any:
    """The launcher's own file: it is sent with the job, so that it cannot import from this package."""
    spec = spec_from_file_location(
        "cloudtrain._event_schema", bundled("entrypoints") / "cloudtrain_launcher" / "event_schema.py"
    )
    if spec is None or spec.loader is None:
        raise RuntimeError("the launcher's event_schema.py is missing: install cloudtrain again")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_SCHEMA = _load_schema()

CLIENTS: tuple[str, ...] = _SCHEMA.CLIENTS
"""Events that only we may write; a job that prints one is not believed."""


def checked(event: object) -> dict[str, Any] | None:
    """The event as it may be used, None when it does not keep to the schema."""
    found: dict[str, Any] | None = _SCHEMA.checked(event)
    return found


def parse(line: bytes) -> dict[str, Any] | None:
    """The event in a line of JSON; None when it is none of the kind that it says."""
    found: dict[str, Any] | None = _SCHEMA.parse(line)
    return found

"""The providers, one folder each, and the search for one by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cloudtrain.declaration import is_provider, load_third_party, third_party

if TYPE_CHECKING:
    from cloudtrain.providers.protocol import Provider


def get_provider(name: str) -> Provider:
    """Return a provider by name, built in or installed. UsageError lists the existing names."""
    if name in third_party() or not is_provider(name):
        return load_third_party(name)()  # type: ignore[no-any-return]
    provider: Provider = import_module(f"cloudtrain.providers.{name}.provider").PROVIDER()
    return provider

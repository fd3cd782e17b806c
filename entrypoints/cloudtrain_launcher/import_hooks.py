"""Patches of torch's modules at their import. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

Change = Callable[[Any], None]
_changes: dict[str, Change] = {}
"""Module name -> change to apply once, at its import."""


def when_imported(name: str, change: Change) -> None:
    """Call `change` with the module, now or once the program imports it."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _changes[name] = change


class _Finder:
    """Finder that uses the other finders, and changes a module after its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Find a module; Python calls this for each first import."""
        change = _changes.get(name)
        if change is None:
            return None
        finders = (
            finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self
        )
        spec = next((spec for spec in finders if spec is not None), None)
        loader: Any = spec and spec.loader
        if hasattr(loader, "exec_module"):
            loader.exec_module = _then_change(loader.exec_module, change)
        return spec


def _then_change(exec_module: Change, change: Change) -> Change:
    def exec_and_change(module: Any) -> None:
        exec_module(module)
        change(module)

    return exec_and_change

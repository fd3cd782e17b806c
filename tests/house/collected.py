"""A pytest plugin that writes down what is collected: each test's id, with a mark where nobody has written the id.

pytest makes ids of the parameters' own bytes and texts, and bytes may hold a time, as gzip's do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

UNWRITTEN = "<nobody has written this id>"


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Called for a parameter without a written id."""
    return UNWRITTEN if isinstance(val, bytes | bytearray | Path) else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """In a file of the working folder, where nothing else that pytest prints can be mistaken for an id."""
    Path("collected.json").write_text(json.dumps([item.nodeid for item in session.items]))

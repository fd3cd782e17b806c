"""Syntax trees of this repository, and programs of the `dev` extra that look at other files."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def nodes(folder: str) -> dict[Path, list[ast.AST]]:
    """Return all nodes of the syntax tree of each Python file below a folder."""
    return {
        path: list(ast.walk(ast.parse(path.read_text("utf-8"))))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "data" not in path.parts
    }


def tool(name: str) -> str:
    """Return the path of that program: beside this Python, or on the PATH."""
    path = shutil.which(
        name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    )
    if path is None:
        raise RuntimeError(f"{name} is not installed: make test installs it")
    return path

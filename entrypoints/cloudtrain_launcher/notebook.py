"""Runs a notebook's code cells, in order, as one script. Standard library only."""

from __future__ import annotations

import json
import linecache
import sys
from pathlib import Path
from typing import Any


def run_notebook(path: Path, namespace: dict[str, Any]) -> None:
    """Execute every code cell in one namespace; a traceback names the cell and shows its line.

    Lines that only an interactive session understands (`%magic`, `!command`, `%%cell magic`) are left out, and
    the log says which.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    codes = (cell for cell in cells if cell.get("cell_type") == "code")
    for number, cell in enumerate(codes, 1):
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        name = f"{path}[cell {number}]"
        code = _without_magics(source, name)
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        exec(compile(code, name, "exec", dont_inherit=True), namespace)  # noqa: S102


def _without_magics(source: str, name: str) -> str:
    lines = source.splitlines()
    if lines and lines[0].startswith("%%"):
        _say(name, lines[0], "the whole cell")
        return ""
    for index, line in enumerate(lines):
        if line.lstrip().startswith(("%", "!")):
            _say(name, line.strip(), "the line")
            lines[index] = line[: len(line) - len(line.lstrip())] + "pass"
    return "\n".join(lines) + "\n"


def _say(name: str, line: str, what: str) -> None:
    print(f"{name}: left out {what} {line!r}: a notebook's magic does not run in a job", file=sys.stderr)

"""Programs of tests as executable files."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote


def python_program(path: Path, text: str) -> Path:
    """An executable file that runs this Python text. The path of an interpreter may have spaces,
    which `#!` cannot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    program = path.with_name(f"{path.name}-program.py")
    program.write_text(text)
    path.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} {quote(str(program))} "$@"\n')
    path.chmod(0o755)
    return path

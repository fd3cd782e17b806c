"""Runs a program of a Python that has torch, with its output in files, and reads the JSON of its
last line.

It may run a user's code: what that prints may be anything, it must not read the terminal, and
whatever it has started ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

_READ_BYTES = 1 << 20
"""Of the end of its output."""
FOLDERS = ("OUTPUT", "MODEL", "CHECKPOINT")
"""`CLOUDTRAIN_…_DIR`: folders that every job has; those of the program are removed with it."""


class Answer(NamedTuple):
    """How the program ended."""

    found: dict[str, Any]
    """Its last line; empty if that is no JSON."""
    how: str
    """`ended with exit code 3`, `was killed by SIGSEGV`."""
    errors: str
    """The end of what it wrote to stderr."""


def ask_program(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, seconds: float
) -> Answer:
    """Run it to its end. OSError if it cannot be started, subprocess.TimeoutExpired if it takes
    longer.
    """
    with TemporaryDirectory(prefix="cloudtrain-") as scratch:
        places = {f"CLOUDTRAIN_{name}_DIR": str(Path(scratch, name.lower())) for name in FOLDERS}
        for place in places.values():
            Path(place).mkdir()
        with Path(scratch, "out").open("w+b") as out, Path(scratch, "err").open("w+b") as err:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**places, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                code = process.wait(seconds)
            finally:  # also after Ctrl-C
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return Answer(_last_line(_end(out)), _how(code), _end(err).strip())


def _end(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _READ_BYTES))
    return bytes(file.read()).decode("utf-8", "replace")


def _last_line(text: str) -> dict[str, Any]:
    try:
        found = json.loads((text.strip().splitlines() or [""])[-1])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"

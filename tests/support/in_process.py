"""The real command line called in this very process: quick enough to be called hundreds of times."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from cloudtrain.cli import main


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def call(*words: str) -> Said:
    """Run one command to its end, exactly as the console script does."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as left:
            code = left.code
    if not isinstance(code, int):
        raise AssertionError(f"left with {code!r} and not with an exit code")
    return Said(code, out.getvalue(), err.getvalue())

"""The real command line, called in the process of the test: fast enough to be called hundreds of
times.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

from cloudtrain.cli import main
from tests.support.command_line import CommandResult


def call(*arguments: str) -> CommandResult:
    """Run one command to its end, exactly as the console script does."""
    out = io.StringIO()
    err = io.StringIO()
    code: object = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as exited:
            code = exited.code
    if not isinstance(code, int):
        raise AssertionError(f"exited with {code!r}, which is not an exit code")
    return CommandResult(code, out.getvalue(), err.getvalue())

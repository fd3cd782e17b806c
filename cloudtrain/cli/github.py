"""Annotations of GitHub Actions, which pull requests show beside the line of the file.

A workflow command is one line of output, `::error file=job.yaml,line=7,col=3::message`, as GitHub
documents under "Workflow commands for GitHub Actions". They are written on stderr, and only if
GITHUB_ACTIONS is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.cli.terminal import write
from cloudtrain.errors import CloudtrainError, SpecError

if TYPE_CHECKING:  # so that an error alone needs no more imports
    from cloudtrain.runs.state import RunState
    from cloudtrain.submission.run import Run

_PLACE = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+)(?::(?P<col>\d+))?: (?P<text>.*)", re.DOTALL)


def annotate_error(error: CloudtrainError) -> None:
    """Write an annotation per mistake in a spec, or one for any other error."""
    texts = (
        [issue.render() for issue in error.issues]
        if isinstance(error, SpecError)
        else [error.render()]
    )
    annotate("error", texts)


def annotate_failure(run: Run, state: RunState) -> None:
    """Annotate the line of the program that failed, if the job did."""
    if not _on_github():
        return
    from cloudtrain.runs.failure import explain
    from cloudtrain.runs.record import RunRecord

    cause = state.error
    if state.state == "failed" and cause and cause.file and cause.line:
        root = RunRecord(run.folder).source_root
        annotate("error", [f"{Path(root) / cause.file}:{cause.line}: {explain(state)}"])


def annotate(level: str, texts: Iterable[str]) -> None:
    """Write texts that may begin with a place, `job.yaml:7:3: …`. `level`: error or warning."""
    if not _on_github():
        return
    for text in texts:
        match = _PLACE.match(text)
        fields = match.groupdict() if match and Path(match["file"]).is_file() else {"text": text}
        message = fields.pop("text")
        if "file" in fields:
            fields["file"] = _in_repository(fields["file"])
        properties = ",".join(
            f"{name}={_escaped(value, ':,')}" for name, value in fields.items() if value
        )
        write(f"::{level}{' ' + properties if properties else ''}::{_escaped(message)}", err=True)


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _in_repository(file: str) -> str:
    """Return the path from the top of the repository, as GitHub names it."""
    path = Path(file).resolve()
    top = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
    return path.relative_to(top).as_posix() if path.is_relative_to(top) else file


def _escaped(text: str, more: str = "") -> str:
    """Escape by the rules of actions/toolkit, packages/core/src/command.ts."""
    for sign in ("%", "\r", "\n", *more):
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text

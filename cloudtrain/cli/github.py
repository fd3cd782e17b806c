"""Annotations for GitHub Actions, which shows an error beside its line in the files of a pull
request.

A workflow command is one line of output, `::error file=job.yaml,line=7,col=3::message`, as GitHub
documents under "Workflow commands for GitHub Actions". Written on stderr, and only where
GITHUB_ACTIONS says that GitHub reads it: elsewhere these functions do nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.cli.terminal import write
from cloudtrain.errors import CloudtrainError, SpecError

if TYPE_CHECKING:  # a command that has only an error to show loads no more than that
    from cloudtrain.runs.state import RunState
    from cloudtrain.submission.run import Run

_PLACE = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+)(?::(?P<col>\d+))?: (?P<text>.*)", re.DOTALL)


def annotate_error(error: CloudtrainError) -> None:
    """One annotation per mistake in a spec, one for any other error."""
    texts = (
        [issue.render() for issue in error.issues]
        if isinstance(error, SpecError)
        else [error.render()]
    )
    annotate("error", texts)


def annotate_failure(run: Run, state: RunState) -> None:
    """The line of the program at which a job failed; nothing for one that did not fail."""
    if not _on_github():
        return
    from cloudtrain.runs.failure import explain
    from cloudtrain.runs.record import RunRecord

    cause = state.error
    if state.state == "failed" and cause and cause.file and cause.line:
        root = RunRecord(run.folder).source_root
        annotate("error", [f"{Path(root) / cause.file}:{cause.line}: {explain(state)}"])


def annotate(level: str, texts: Iterable[str]) -> None:
    """Texts that may begin with a place, `job.yaml:7:3: …`. `level`: error or warning."""
    if not _on_github():
        return
    for text in texts:
        found = _PLACE.match(text)
        fields = found.groupdict() if found and Path(found["file"]).is_file() else {"text": text}
        message = fields.pop("text")
        if "file" in fields:
            fields["file"] = _in_repository(fields["file"])
        said = ",".join(
            f"{name}={_escaped(value, ':,')}" for name, value in fields.items() if value
        )
        write(f"::{level}{' ' + said if said else ''}::{_escaped(message)}", err=True)


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _in_repository(file: str) -> str:
    """As GitHub knows it: from the top of the repository."""
    path = Path(file).resolve()
    top = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
    return path.relative_to(top).as_posix() if path.is_relative_to(top) else file


def _escaped(text: str, more: str = "") -> str:
    """By the rules of GitHub's own toolkit (actions/toolkit, packages/core/src/command.ts)."""
    for sign in ("%", "\r", "\n", *more):
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text

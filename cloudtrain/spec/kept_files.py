"""Reads `keep` of job.yaml: patterns of files in the program's working folder, relative to it and
to nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloudtrain.issues import Issue
from cloudtrain.spec.fields import FieldErrors, read_strings, read_text

MAX_PATTERNS = 50

_RELATIVE = (
    "write it relative to the working folder, where the program starts, such as out-*/ or"
    " snapshot.pt"
)
_OWN_FOLDERS = (
    "what is in $CLOUDTRAIN_OUTPUT_DIR, ..._MODEL_DIR and ..._CHECKPOINT_DIR is kept in any case"
)


def read_keep(value: Any) -> tuple[str, ...]:
    """The patterns, each relative and without `..`; FieldErrors names all that are not. None: no
    patterns.
    """
    if value is None:
        return ()
    patterns = read_strings(value)
    issues = [
        replace(issue, path=() if isinstance(value, str) else (at,))
        for at, pattern in enumerate(patterns)
        if (issue := _problem(pattern)) is not None
    ]
    if len(patterns) > MAX_PATTERNS:
        issues.append(
            Issue(
                (),
                f"has {len(patterns)} patterns, at most {MAX_PATTERNS} are taken",
                "name their folder",
            )
        )
    if issues:
        raise FieldErrors(issues)
    return patterns


def _problem(pattern: str) -> Issue | None:
    parts = read_text(pattern).split("/")
    if "$" in pattern:
        return Issue((), f"{pattern!r} names a variable, and none is put in here", _OWN_FOLDERS)
    if pattern.startswith(("/", "~")):
        return Issue((), f"{pattern!r} is an absolute path", f"{_RELATIVE}; {_OWN_FOLDERS}")
    if ".." in parts:
        return Issue((), f"{pattern!r} leads out of the working folder", _RELATIVE)
    if not any(part not in ("", ".") for part in parts):
        return Issue(
            (),
            f"{pattern!r} is the whole working folder, the source with it",
            "name what the program writes",
        )
    return None

"""Atomic copies of a run's results to a folder that the next submit does not send."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.files import storing

if TYPE_CHECKING:
    from cloudtrain.providers import Note, Progress, Provider
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState

IGNORE_FILE = ".gitignore"
_IGNORE_ALL = (
    "# Fetched by cloudtrain: neither sent with the next job nor committed. Delete this file to"
    " change that.\n*\n"
)


MAX_LISTED = 20
"""Maximum number of left-out files in an error."""


def refuse_taken(target: Path, run: str, *, force: bool) -> None:
    """Raise UsageError for a target that is not empty; `force`: unless it is a folder."""
    if not is_free(target) and not (force and target.is_dir()):
        hint = f"--force replaces model and output in it; or: cloudtrain fetch {run} ANOTHER_FOLDER"
        raise UsageError(f"{target} exists and is not empty", hint=hint)


def fetch_results(
    provider: Provider,
    run: RunFolder,
    state: RunState,
    names: Sequence[str],
    target: Path,
    progress: Progress | None,
    note: Note | None,
) -> None:
    """Copy these results of the run to the target. Arguments and errors as in `Run.fetch`."""
    draft = target.absolute().with_name(f".{target.absolute().name}.{os.urandom(4).hex()}.part")
    left_out: list[str] = []
    with storing(target, f"cloudtrain fetch {run.run_id} ANOTHER_FOLDER"):
        try:
            draft.mkdir(parents=True)
            artifacts = provider.fetch(run, state, names, draft, progress, left_out.append)
            if artifacts:
                put_in_place(draft, target, artifacts)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    if not artifacts:
        raise _no_files(state, left_out)
    if note is not None:
        for text in left_out:
            note(text)


def _no_files(state: RunState, left_out: Sequence[str]) -> StorageError:
    run = state.run_id
    message = f"run {run} left no files"
    hint = (
        f"cloudtrain logs {run}; a script writes to $CLOUDTRAIN_MODEL_DIR and"
        " $CLOUDTRAIN_OUTPUT_DIR"
    )
    if not state.has_ended:
        message = f"run {run} is still {state.state}: its model comes at the end"
        hint = f"cloudtrain wait {run}; --checkpoints brings what is saved already"
    return StorageError("; ".join([message, *left_out[:MAX_LISTED]]), hint=hint)


def is_free(target: Path) -> bool:
    """Return whether a fetch would replace nothing."""
    if not os.path.exists(target):  # noqa: PTH110  (false for what no disk can hold)
        return True
    return target.is_dir() and not any(target.iterdir())


def put_in_place(draft: Path, target: Path, names: Sequence[str]) -> None:
    """Move a folder of results to the target. In an existing folder replace these names."""
    if not is_free(target):
        for name in names:
            if (target / name).is_dir() and not (target / name).is_symlink():
                shutil.rmtree(target / name)
            else:
                (target / name).unlink(missing_ok=True)
            (draft / name).rename(target / name)
        return
    if target.absolute().is_relative_to(Path.cwd()) and not (draft / IGNORE_FILE).exists():
        (draft / IGNORE_FILE).write_text(_IGNORE_ALL, encoding="utf-8")
    if target.is_dir():
        target.rmdir()
    draft.rename(target)


def fetched_files(folder: Path) -> list[str]:
    """Return the paths of the files in it, without our ignore file."""
    return sorted(
        str(file) for file in folder.rglob("*") if file.is_file() and file != folder / IGNORE_FILE
    )

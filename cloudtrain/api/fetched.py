"""What `fetch` leaves on the disk: a folder that is complete or not there, and that the next submit does not send."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

IGNORE_FILE = ".gitignore"
_IGNORE_ALL = (
    "# Fetched by cloudtrain: neither sent with the next job nor committed. Delete this file to change that.\n*\n"
)


def is_free(target: Path) -> bool:
    """Whether nothing is there that a fetch would have to replace."""
    if not os.path.exists(target):  # noqa: PTH110  (false for what no disk can hold)
        return True
    return target.is_dir() and not any(target.iterdir())


def put_in_place(draft: Path, target: Path, names: Sequence[str]) -> None:
    """Make a folder of results the target. Where a folder is there already, these names in it are replaced."""
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
    """The paths of the files in it, without the mark of ours."""
    return sorted(str(file) for file in folder.rglob("*") if file.is_file() and file != folder / IGNORE_FILE)

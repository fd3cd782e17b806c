"""The file that a command writes: a named one, or one beside the run."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.errors import UsageError


def output_file(named: Path | None, default: Path, force: bool) -> Path:
    """Return the named file to write, or `default`.

    The default is not in the current folder, which the next job would send along. Raise UsageError
    if a named file cannot be written, or exists already.
    """
    if named is None:
        return default
    check_writable(named, force)
    return named


def check_writable(file: Path, force: bool) -> None:
    """Raise UsageError if a file cannot be written, or exists and `force` is not set."""
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint=f"-o {file / 'page.html'} names a file in it")

    if not file.absolute().parent.is_dir():
        raise UsageError(
            f"{file}: there is no folder {file.parent}",
            hint="make it first, or name another file with -o",
        )

    if file.exists() and not force:
        raise UsageError(
            f"{file} is there already", hint="--force writes over it, -o names another file"
        )

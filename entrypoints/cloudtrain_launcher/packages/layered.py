"""Environments that are layered on this machine's Python, made once and kept. Standard library only.

One is a virtual environment whose own packages come first and whose path then goes on with the packages below it, the
image's torch among them, which are neither copied nor changed. It counts once the file `COMPLETE` is in it: what a
process that was killed has left, or a full disk, is made anew. A lock keeps two from making it at once.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence

from cloudtrain_launcher.file_locks import locked

COMPLETE = "cloudtrain-complete.json"
"""The file in an environment that is written last; it tells what was installed."""

_BELOW = "_cloudtrain_below.pth"
"""Python reads it at its start: it adds the packages below at the end of the path, with their own .pth files."""

MAX_ARCHIVE_BYTES = 4 * 2**30
"""An environment that is larger is not kept in a run's storage: installing it again takes no longer."""


def python_of(environment: Path) -> Path:
    """Its interpreter."""
    return environment / "bin" / "python3"


def site_of(environment: Path) -> Path:
    """The folder of its own packages."""
    return next(environment.glob("lib/python*/site-packages"))


def contents(environment: Path) -> Optional[dict[str, Any]]:
    """What the environment says of itself; None while it is not complete."""
    try:
        document: dict[str, Any] = json.loads((environment / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if python_of(environment).exists() else None


@contextmanager
def making(environment: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep other processes from making this environment. `on_wait`: called if one is at it. OSError."""
    environment.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(environment.with_suffix(".lock"), on_wait=on_wait):
        yield


def create(environment: Path, below: Sequence[str]) -> None:
    """An empty one, in place of what is there. `below`: folders of packages that its path goes on with. OSError."""
    shutil.rmtree(environment, ignore_errors=True)
    venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
    lines = ["import site", *(f"import site; site.addsitedir({folder!r})" for folder in below)]
    (site_of(environment) / _BELOW).write_text("\n".join(lines) + "\n", encoding="utf-8")


def complete(environment: Path, document: dict[str, Any]) -> None:
    """Declare it complete. OSError."""
    draft = environment / f"{COMPLETE}.partial"
    draft.write_text(json.dumps(document), encoding="utf-8")
    draft.replace(environment / COMPLETE)


def save(environment: Path, archive: Path) -> None:
    """Write an archive of its packages and programs, as a whole or not at all. OSError."""
    if archive.exists() or _size(environment) > MAX_ARCHIVE_BYTES:
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_name(f"{archive.name}.{os.getpid()}.partial")
    try:
        with tarfile.open(draft, "w:gz", compresslevel=1) as tar:
            for top in ("bin", "lib", COMPLETE):
                tar.add(environment / top, top, filter=_archived)
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)


def _archived(item: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    """Links are the interpreter's own, which `create` makes; bytecode is written again."""
    skipped = item.issym() or item.name.endswith((f"/{_BELOW}", "/__pycache__"))
    return None if skipped else item


def restore(environment: Path, archive: Path) -> bool:
    """Fill an empty environment from an archive; False if that is damaged or missing. OSError if the disk is full."""
    if not archive.is_file():
        return False
    try:
        with tarfile.open(archive, "r:gz") as tar:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(environment, **safe)  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError, ValueError):
        return False
    return contents(environment) is not None


def _size(environment: Path) -> int:
    return sum(path.lstat().st_size for path in environment.rglob("*"))


def remove(environment: Path) -> None:
    """Remove it; what cannot be removed is removed before it is made again."""
    shutil.rmtree(environment, ignore_errors=True)

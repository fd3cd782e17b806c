"""Environments that are layered on this machine's Python, made once and kept. Standard library
only.

One is a virtual environment whose own packages come first and whose path then goes on with the
packages below it, the image's torch among them, which are neither copied nor changed. It counts
once the file `COMPLETE` is in it: what a process that was killed has left, or a full disk, is made
anew. A lock keeps two from making it at once.

A job runs in a thin layer of its own above the kept environment: what its program installs goes
there, and ends with the run. The kept files are read-only, and `COMPLETE` holds their state, so
that an environment which a job has changed all the same (root may write anything) is not used
again.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloudtrain_launcher.file_locks import locked

COMPLETE = "cloudtrain-complete.json"
"""The file in an environment that is written last; it tells what was installed."""

BELOW = "_cloudtrain_below.pth"
"""Python reads it at its start: it adds the packages below at the end of the path, with their own
.pth files.
"""

_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def python_of(environment: Path) -> Path:
    """Its interpreter."""
    return environment / "bin" / "python3"


def site_of(environment: Path) -> Path:
    """The folder of its own packages."""
    return next(environment.glob("lib/python*/site-packages"))


def contents(environment: Path) -> dict[str, Any] | None:
    """What the environment says of itself; None while it is not complete."""
    try:
        document = json.loads((environment / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_valid = isinstance(document, dict) and isinstance(document.get("installed"), dict)
    return document if is_valid and python_of(environment).exists() else None


def is_unchanged(environment: Path) -> bool:
    """Return whether a complete environment is as it was completed."""
    document = contents(environment)
    return document is not None and document.get("state") == _state(environment)


@contextmanager
def making(environment: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep other processes from making this environment. `on_wait`: called if one is at it.
    OSError.
    """
    environment.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(environment.with_suffix(".lock"), on_wait=on_wait):
        yield


def create(environment: Path, below: Sequence[str]) -> None:
    """An empty one, in place of what is there. `below`: folders of packages that its path goes on
    with. OSError.
    """
    shutil.rmtree(environment, ignore_errors=True)
    venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
    lines = ["import site", *(f"import site; site.addsitedir({folder!r})" for folder in below)]
    (site_of(environment) / BELOW).write_text("\n".join(lines) + "\n", encoding="utf-8")


def complete(environment: Path, document: dict[str, Any]) -> None:
    """Make its files read-only and declare it complete. OSError."""
    for path in _files(environment):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & _WRITABLE:
            path.chmod(stat.S_IMODE(mode) & ~_WRITABLE)
    draft = environment / f"{COMPLETE}.partial"
    draft.write_text(json.dumps({**document, "state": _state(environment)}), encoding="utf-8")
    draft.replace(environment / COMPLETE)


def create_layer(layer: Path, environment: Path) -> None:
    """Make an empty environment for one run above a kept one, whose programs it offers. OSError."""
    create(layer, [str(site_of(environment))])
    for program in (environment / "bin").iterdir():
        own = layer / "bin" / program.name
        if own.exists() or own.is_symlink():
            continue
        if _is_python(program, environment):
            words = [shlex.quote(str(path)) for path in (python_of(layer), program)]
            own.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n', encoding="utf-8")
            own.chmod(0o755)
        else:
            own.symlink_to(program)


def _is_python(program: Path, environment: Path) -> bool:
    """Return whether a program is run by the environment's interpreter, directly or, as pip does
    it, by a shell.
    """
    with program.open("rb") as file:
        head = file.read(4096)
    interpreter = os.fsencode(environment / "bin" / "python")
    return head.startswith(b"#!") and interpreter in b"".join(head.splitlines(keepends=True)[:2])


def _files(environment: Path) -> Iterator[Path]:
    """Yield the files of an environment, in order. Python adds bytecode while jobs run: it is left
    out.
    """
    for folder, folders, names in os.walk(environment):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in sorted([*names, *links]))


def _state(environment: Path) -> str:
    """A digest of all files by name, size and times: any change of a file gives it another change
    time.
    """
    digest = sha256()
    for path in _files(environment):
        if path.name.startswith(COMPLETE):
            continue
        about = path.lstat()
        times = (about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        digest.update(
            f"{path.relative_to(environment)}\0{times}\n".encode(errors="surrogateescape")
        )
    return digest.hexdigest()


def last_change(environment: Path) -> str:
    """The file below the environment that was changed last, for people."""
    paths = [path for path in _files(environment) if not path.name.startswith(COMPLETE)]
    newest = max(paths, key=lambda path: path.lstat().st_ctime_ns)
    return str(newest.relative_to(environment))


def remove(environment: Path) -> None:
    """Remove it; what cannot be removed is removed before it is made again."""
    shutil.rmtree(environment, ignore_errors=True)

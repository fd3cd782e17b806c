"""Environments layered on this machine's Python, created once and kept. Standard library only.

An environment is a virtual environment with its own packages first and the image's packages, such
as torch, behind them on the path; those are neither copied nor changed. It is valid once it
contains its file `COMPLETE`; leftovers of a killed process or a full disk are replaced. A lock
prevents concurrent creation.

A job runs in a thin layer above the kept environment: packages that its program installs go there
and vanish with the run. An environment whose modules were edited is not used again.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloudtrain_wire.environments import COMPLETE
from cloudtrain_wire.file_locks import locked

BELOW = "_cloudtrain_below.pth"
"""File that Python reads at its start, to add the packages below at the end of the path."""


def python_of(environment: Path) -> Path:
    """Return the environment's interpreter."""
    return environment / "bin" / "python3"


def site_of(environment: Path) -> Path:
    """Return the folder of the environment's own packages."""
    return next(environment.glob("lib/python*/site-packages"))


def installed_in(environment: Path) -> dict[str, str] | None:
    """Return name -> version of the installed packages; None for an incomplete environment."""
    installed = _document(environment).get("installed")
    return installed if isinstance(installed, dict) else None


def is_changed(environment: Path) -> bool:
    """Return whether somebody has changed modules of a complete environment."""
    state = _document(environment).get("state")
    return state is not None and state != _state(environment)


def _document(environment: Path) -> dict[str, Any]:
    try:
        document = json.loads((environment / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}

    return document if isinstance(document, dict) else {}


def _state(environment: Path) -> str:
    """Return a digest of the names, sizes and times of all modules, without their bytecode."""
    digest = sha256()

    for folder, folders, names in os.walk(environment / "lib"):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".pth", ".so")):
                status = os.lstat(os.path.join(folder, name))  # noqa: PTH118  (faster)
                line = f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n"
                digest.update(os.fsencode(line))

    return digest.hexdigest()


def making(
    environment: Path, on_wait: Callable[[], None] = lambda: None
) -> AbstractContextManager[int]:
    """Lock the creation of this environment. `on_wait`: called before waiting. Raise OSError."""
    environment.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return locked(environment.with_suffix(".lock"), on_wait=on_wait)


def create(environment: Path, below: Sequence[str]) -> None:
    """Create an empty environment in place of any existing one. Raise OSError.

    `below`: package folders that follow on its path.
    """
    shutil.rmtree(environment, ignore_errors=True)

    try:
        venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
    except ValueError:
        message = f"no environment can be in a folder with a {os.pathsep!r} in its path"
        raise OSError(errno.EINVAL, message, str(environment)) from None

    lines = ["import site", *(f"import site; site.addsitedir({folder!r})" for folder in below)]
    (site_of(environment) / BELOW).write_text("\n".join(lines) + "\n", encoding="utf-8")


def complete(environment: Path, installed: Mapping[str, str]) -> None:
    """Mark the environment as complete. Raise OSError."""
    draft = environment / f"{COMPLETE}.partial"
    document = {"installed": installed, "state": _state(environment)}
    draft.write_text(json.dumps(document), encoding="utf-8")
    draft.replace(environment / COMPLETE)


def create_layer(layer: Path, environment: Path) -> None:
    """Create a run's empty environment above a kept one, and offer its programs. Raise OSError."""
    create(layer, [str(site_of(environment))])

    for program in (environment / "bin").iterdir():
        copy = layer / "bin" / program.name
        if copy.exists() or copy.is_symlink():
            continue

        if _is_python(program, environment):
            words = [shlex.quote(str(path)) for path in (python_of(layer), program)]
            copy.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n', encoding="utf-8")
            copy.chmod(0o755)
        else:
            copy.symlink_to(program)


def _is_python(program: Path, environment: Path) -> bool:
    """Return whether the environment's interpreter runs a program, directly or through a shell."""
    with program.open("rb") as file:
        head = file.read(4096)

    interpreter = os.fsencode(environment / "bin" / "python")
    return head.startswith(b"#!") and interpreter in b"".join(head.splitlines(keepends=True)[:2])


def remove(environment: Path) -> None:
    """Remove an environment; leftovers are removed before its next creation."""
    shutil.rmtree(environment, ignore_errors=True)

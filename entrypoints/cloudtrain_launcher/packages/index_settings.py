"""Settings of this machine that say which packages an installer finds. Standard library only.

pip and uv read them from variables and files. Two jobs with the same requirements and different
indexes need different environments, so these settings are part of an environment's digest. The
client uses this file too, so it imports nothing of ours but its neighbours.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cloudtrain_launcher.packages.bounded_files import open_regular_file, read_regular_text

_BLOCK_BYTES = 1 << 20

_WITHOUT_EFFECT = re.compile(
    r"CACHE|COLOR|CONCURRENT|LINK_MODE|LOG|NO_INPUT|PROGRESS|PROJECT|QUIET|RECURSION|RETRIES|ROOT_USER|TIMEOUT|TOOL|"
    r"VERBOSE|VERSION_CHECK"
)
"""Variables whose names have one of these words do not change what is installed."""

_PACKAGES = ("*.whl", "*.tar.gz", "*.zip")


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Paths of pip's configuration, in which a machine or an image may name its index. They may not
    exist.
    """
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:  # which makes pip read none at all
        return []
    home = Path(environ.get("HOME", "/"))
    folders = [Path(part) for part in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep)]
    folders.append(Path(environ.get("XDG_CONFIG_HOME") or home / ".config"))
    files = [folder / "pip" / "pip.conf" for folder in folders]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", Path(sys.prefix) / "pip.conf"]
    return [*files, *([Path(named)] if named else [])]


def uv_files(environ: Mapping[str, str], source: Path) -> list[Path]:
    """Paths of uv's configuration, that of the source folder included. They may not exist."""
    if environ.get("UV_CONFIG_FILE"):
        return [Path(environ["UV_CONFIG_FILE"])]
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/"), ".config"))
    return [Path("/etc/uv/uv.toml"), config / "uv" / "uv.toml", source / "uv.toml"]


def index_settings(environ: Mapping[str, str], source: Path) -> list[str]:
    """Lines for a digest: everything outside of the requirements that says where packages come
    from.

    Never show or store them: addresses may hold passwords. `source`: where relative paths begin.
    """
    lines = []
    for name in sorted(environ):
        if name.startswith(("PIP_", "UV_")) and not _WITHOUT_EFFECT.search(name):
            lines.append(f"{name}={environ[name].replace(str(source), '')}")
            lines += _content_of(environ[name], source)
    for file in [*pip_files(environ), *uv_files(environ, source)]:
        if file.is_file():
            lines.append(_hash(file))
    return [*lines, *_uv_table(source)]


def _content_of(value: str, source: Path) -> Iterator[str]:
    """Yield what is in the files and the folders of packages that a variable names."""
    for part in re.split(r"[\s,]+", value):
        if "://" in part and not part.startswith("file://"):
            continue
        path = source / (unquote(urlsplit(part).path) if part.startswith("file://") else part)
        if not part or not path.is_absolute():
            continue
        if path.is_file():
            yield _hash(path)
        elif path.is_dir():
            yield from _packages_in(path, source)


def _packages_in(folder: Path, source: Path) -> Iterator[str]:
    """Yield the packages of a folder: hashed in the source, of which each run has a copy, else by
    size and time.
    """
    for path in sorted(path for pattern in _PACKAGES for path in folder.glob(pattern)):
        about = path.stat()
        is_copied = source in path.parents
        yield f"{path.name} {_hash(path) if is_copied else (about.st_size, about.st_mtime_ns)}"


def _uv_table(source: Path) -> Iterator[str]:
    """Yield the part of pyproject.toml that configures uv; the rest of the file changes more often."""
    try:
        text = read_regular_text(source / "pyproject.toml")
    except (OSError, ValueError):
        return
    tables = re.split(r"(?m)^(?=\s*\[)", text)
    yield from (table for table in tables if re.match(r"\s*\[+\s*tool\s*\.\s*uv\b", table))


def _hash(file: Path) -> str:
    digest = sha256()
    try:
        with open_regular_file(file) as content:
            while block := content.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:  # an installer cannot read it either
        return str(error.errno)
    return digest.hexdigest()

"""Settings that determine which packages an installer finds. Standard library only.

pip and uv read them from variables and files. Jobs with equal requirements and different indexes
need different environments, so these settings are part of the digest. The client uses this file
too, so it imports only its neighbours.
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
"""Words in the names of variables that do not change the installed packages."""

_PACKAGES = ("*.whl", "*.tar.gz", "*.zip")


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the paths of pip's configuration, which may name an index. They may not exist."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:  # then pip reads no file
        return []
    home = Path(environ.get("HOME", "/"))
    folders = [Path(part) for part in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep)]
    folders.append(Path(environ.get("XDG_CONFIG_HOME") or home / ".config"))
    files = [folder / "pip" / "pip.conf" for folder in folders]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", Path(sys.prefix) / "pip.conf"]
    return [*files, *([Path(named)] if named else [])]


def uv_files(environ: Mapping[str, str], source: Path) -> list[Path]:
    """Return the paths of uv's configuration, below the source folder too. They may not exist."""
    if environ.get("UV_CONFIG_FILE"):
        return [Path(environ["UV_CONFIG_FILE"])]
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/"), ".config"))
    return [Path("/etc/uv/uv.toml"), config / "uv" / "uv.toml", source / "uv.toml"]


def index_settings(environ: Mapping[str, str], source: Path) -> list[str]:
    """Return lines for a digest of all package sources outside of the requirements.

    Never show or store them: addresses may hold passwords. `source`: base of relative paths.
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
    """Yield the content of the files and package folders that a variable names."""
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
    """Yield the packages of a folder: by hash if they are in the source, else by size and time."""
    for path in sorted(path for pattern in _PACKAGES for path in folder.glob(pattern)):
        status = path.stat()
        is_copied = source in path.parents
        yield f"{path.name} {_hash(path) if is_copied else (status.st_size, status.st_mtime_ns)}"


def _uv_table(source: Path) -> Iterator[str]:
    """Yield the part of pyproject.toml that configures uv; other parts change more often."""
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

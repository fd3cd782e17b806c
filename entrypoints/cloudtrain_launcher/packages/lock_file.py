"""uv.lock as requirements: what the project needs, each in the locked version with its hashes.
Standard library only.

uv's documentation calls the format internal, and versions it: a version that is newer than 1 is
refused. A node follows the dependencies from the project on, with the markers that hold there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cloudtrain_launcher.packages.requirement_files import (
    InvalidRequirements,
    Requested,
    Requirement,
    normalised,
    read_toml,
)

PYPI = "https://pypi.org/simple"


def read_lock(
    folder: Path,
    file: str,
    holds: Callable[[str], bool] = lambda _: True,
    there: Collection[str] = (),
) -> Requested:
    """Return what a uv.lock locks for its project. Raise InvalidRequirements or OSError.

    `holds`: whether a marker is true where it is to be installed; by default all are. `there`:
    packages that the image brings, by normalised names: what only they need is left out.
    """
    document = read_toml(folder / file)
    try:
        return _read_document(document, folder, file, holds, there)
    except (AttributeError, KeyError, TypeError):
        raise InvalidRequirements(f"{file} does not have the form of a uv.lock") from None


def _read_document(
    document: Mapping[str, Any],
    folder: Path,
    file: str,
    holds: Callable[[str], bool],
    there: Collection[str],
) -> Requested:
    if document.get("version") != 1:
        raise InvalidRequirements(
            f"{file} is of version {document.get('version')!r}, and only 1 is known"
        )
    packages = document.get("package", [])
    roots = [each for each in packages if _own_folder(each) == "."]
    if len(roots) != 1:
        raise InvalidRequirements(
            f"{file} locks {len(roots)} projects of this folder; one is expected"
        )
    needed = list(_needed(roots[0], packages, holds, there))
    requirements = tuple(_requirement(each, folder, file) for each in needed)
    if not all(
        "--hash" in each.text for each in requirements
    ):  # an installer takes hashes for all, or for none
        requirements = tuple(_requirement(each, folder, file, hashed=False) for each in needed)
    return Requested(requirements, tuple(dict.fromkeys(_indexes(needed, folder))), files=(file,))


def _own_folder(package: Mapping[str, Any]) -> str:
    source = package.get("source", {})
    return str(source.get("virtual") or source.get("editable") or "")


def _needed(
    root: Mapping[str, Any],
    packages: list[Mapping[str, Any]],
    holds: Callable[[str], bool],
    there: Collection[str],
) -> Iterator[Mapping[str, Any]]:
    """The packages that the project depends on, directly or not, each once."""
    waiting = [(root, "")]
    seen = {(id(root), "")}
    given = {id(root)}
    while waiting:
        package, extra = waiting.pop(0)
        if id(package) not in given:
            given.add(id(package))
            yield package
        if normalised(package["name"]) in there:
            continue
        optional = package.get("optional-dependencies", {})
        for wish in optional.get(extra, []) if extra else package.get("dependencies", []):
            if not holds(wish.get("marker", "")):
                continue
            found = _locked(wish, packages)
            for part in ("", *wish.get("extra", [])):
                if (id(found), part) not in seen:
                    seen.add((id(found), part))
                    waiting.append((found, part))


def _locked(wish: Mapping[str, Any], packages: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    for package in packages:
        if package["name"] == wish["name"] and wish.get("version") in (
            None,
            package.get("version"),
        ):
            return package
    raise InvalidRequirements(f"uv.lock holds no package {wish['name']}; `uv lock` writes it anew")


def _requirement(
    package: Mapping[str, Any], folder: Path, file: str, hashed: bool = True
) -> Requirement:
    name = package["name"]
    source = package.get("source", {})
    files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
    hashes = sorted({each["hash"] for each in files if "hash" in each}) if hashed else []
    if "git" in source:
        parts = urlsplit(source["git"])
        text = f"{name} @ git+{urlunsplit((*parts[:3], '', ''))}@{parts.fragment}"
    elif "url" in source:
        text = f"{name} @ {source['url']}"
    elif path := source.get("path") or source.get("directory") or source.get("editable"):
        text = (folder / Path(file).parent / path).resolve().as_uri()
    else:
        text = f"{name}=={package['version']}"
    return Requirement(
        " ".join([text, *(f"--hash={each}" for each in hashes)]), normalised(name), file
    )


def _indexes(packages: list[Mapping[str, Any]], folder: Path) -> Iterator[str]:
    """Options for the indexes that packages are locked from, beside PyPI: uv names them in the lock
    file.
    """
    for package in packages:
        index = package.get("source", {}).get("registry", PYPI)
        if index != PYPI:
            local = "://" not in index
            yield (
                f"--find-links {(folder / index).resolve().as_uri()}"
                if local
                else f"--extra-index-url {index}"
            )

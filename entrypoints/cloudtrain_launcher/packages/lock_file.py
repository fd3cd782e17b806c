"""uv.lock as requirements: a project's locked versions with their hashes. Standard library only.

uv's documentation calls the format internal and versions it; versions above 1 are rejected. A node
follows the dependencies from the project, with its own markers.
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
    read_project,
    read_requirements,
    read_toml,
)

PYPI = "https://pypi.org/simple"


def read_lock(
    folder: Path,
    file: str,
    holds: Callable[[str], bool] = lambda _: True,
    provided: Collection[str] = (),
) -> Requested:
    """Return the locked requirements of a project. Raise InvalidRequirements or OSError.

    `holds`: evaluates a marker for the target machine; by default all are true. `provided`:
    normalised names of the image's packages; their exclusive dependencies are left out.
    """
    document = read_toml(folder / file)

    try:
        return _read_document(document, folder, file, holds, provided)
    except (AttributeError, KeyError, TypeError):
        raise InvalidRequirements(f"{file} does not have the form of a uv.lock") from None


def _read_document(
    document: Mapping[str, Any],
    folder: Path,
    file: str,
    holds: Callable[[str], bool],
    provided: Collection[str],
) -> Requested:
    if document.get("version") != 1:
        raise InvalidRequirements(
            f"{file} has version {document.get('version')!r}, but only version 1 is supported"
        )

    packages = document.get("package", [])
    roots = [package for package in packages if _own_folder(package) == "."]

    if len(roots) != 1:
        raise InvalidRequirements(
            f"{file} locks {len(roots)} projects of this folder, expected one"
        )

    needed = list(_needed(roots[0], packages, holds, provided))
    requirements = tuple(_requirement(package, folder, file) for package in needed)

    # Installers need hashes for all packages or none.
    if not all("--hash" in requirement.text for requirement in requirements):
        requirements = tuple(
            _requirement(package, folder, file, hashed=False) for package in needed
        )

    return Requested(requirements, tuple(dict.fromkeys(_indexes(needed, folder))), files=(file,))


def _own_folder(package: Mapping[str, Any]) -> str:
    source = package.get("source", {})
    return str(source.get("virtual") or source.get("editable") or "")


def _needed(
    root: Mapping[str, Any],
    packages: list[Mapping[str, Any]],
    holds: Callable[[str], bool],
    provided: Collection[str],
) -> Iterator[Mapping[str, Any]]:
    """Return the project's direct and indirect dependencies, each once."""
    waiting = [(root, "")]
    queued = {(id(root), "")}
    yielded = {id(root)}

    while waiting:
        package, extra = waiting.pop(0)
        if id(package) not in yielded:
            yielded.add(id(package))
            yield package

        if normalised(package["name"]) in provided:
            continue

        optional = package.get("optional-dependencies", {})

        for wish in optional.get(extra, []) if extra else package.get("dependencies", []):
            if not holds(wish.get("marker", "")):
                continue
            dependency = _locked(wish, packages)

            for part in ("", *wish.get("extra", [])):
                if (id(dependency), part) not in queued:
                    queued.add((id(dependency), part))
                    waiting.append((dependency, part))


def _locked(wish: Mapping[str, Any], packages: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    for package in packages:
        if package["name"] == wish["name"] and wish.get("version") in (
            None,
            package.get("version"),
        ):
            return package

    raise InvalidRequirements(f"uv.lock lacks package {wish['name']}; run `uv lock` again")


def _requirement(
    package: Mapping[str, Any], folder: Path, file: str, hashed: bool = True
) -> Requirement:
    name = package["name"]
    source = package.get("source", {})
    files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
    hashes = sorted({item["hash"] for item in files if "hash" in item}) if hashed else []

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
        " ".join([text, *(f"--hash={digest}" for digest in hashes)]), normalised(name), file
    )


def _indexes(packages: list[Mapping[str, Any]], folder: Path) -> Iterator[str]:
    """Yield options for indexes other than PyPI, as the lock file names them."""
    for package in packages:
        index = package.get("source", {}).get("registry", PYPI)
        if index != PYPI:
            local = "://" not in index
            yield (
                f"--find-links {(folder / index).resolve().as_uri()}"
                if local
                else f"--extra-index-url {index}"
            )


def read_requested(folder: Path, file: str) -> Requested:
    """Read a requirements file of the source. Raise OSError or InvalidRequirements.

    Return all of a uv.lock: only a node can evaluate its markers.
    """
    name = Path(file).name
    if name == "uv.lock":
        return read_lock(folder, file)
    if name.endswith(".toml"):
        return read_project(folder, file)

    return read_requirements(folder, file)

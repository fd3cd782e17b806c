"""Targets of symbolic links within a tree, as its copy will see them."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence

_MAX_HOPS = 40


def read_link(root: str, path: str) -> str:
    """Return the target of the link at `path`; one below `root` is made relative.

    Raise OSError if it is not a link.
    """
    return relative_target(path, os.readlink(f"{root}/{path}"), (root, os.path.realpath(root)))  # noqa: PTH115


def relative_target(path: str, target: str, roots: Sequence[str]) -> str:
    """Return the target of the link `path`, made relative if it is below one of the `roots`.

    `roots`: names of the tree's top where the link was made.
    """
    if target.startswith("/"):
        plain = os.path.normpath(target)
        for top in (root.rstrip("/") for root in roots):
            if plain == top or plain.startswith(top + "/"):
                return os.path.relpath(plain, os.path.dirname(f"{top}/{path}"))  # noqa: PTH120
    return target


def link_problem(
    path: str,
    links: Mapping[str, str],
    files: Container[str],
    folders: Container[str],
    top: str = "the source folder",
) -> str | None:
    """Return why the link `path` leads to no file or folder of the tree, or None if it does.

    `top`: name of the tree in messages.
    """
    folder = path.split("/")[:-1]
    todo = _parts(links[path])
    hops = 0
    while todo:
        part = todo.pop()
        if part in (".", ""):
            continue
        if part == "/" or (part == ".." and not folder):
            return f"a link that leads out of {top} ({links[path]})"
        if part == "..":
            folder.pop()
            continue
        name = "/".join((*folder, part))
        if name in links:
            hops += 1
            if hops > _MAX_HOPS:
                return f"a link that leads in a circle ({links[path]})"
            todo += _parts(links[name])
        elif name in folders or (name in files and not todo):
            folder.append(part)
        else:
            return f"a broken link: {name} does not exist or is not in the archive"
    return None


def folders_of(paths: Mapping[str, object]) -> set[str]:
    """Return every folder that holds one of the paths, at any depth."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def _parts(target: str) -> list[str]:
    """Return the parts, last one first; an absolute target has "/" as its first part."""
    parts = target.split("/")
    if target.startswith("/"):
        parts[0] = "/"
    return parts[::-1]

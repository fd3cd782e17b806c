"""Remedy for a missing file that is in the source folder, and that an ignore rule keeps out."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from cloudtrain.source.git import IgnoreFile
from cloudtrain.source.walk import walk
from cloudtrain_wire.bounded_files import read_regular_file

_MISSING = re.compile(
    r"(?:No such file or directory|can't open file|name =):?"
    r" '(?:/[^'\n]{0,300}/(?:source|code)/)?([^/'\n][^'\n]{0,300})'"
)
"""Pattern of a missing file of a job, relative to the folder of its source."""


def remedy_of_left_out(message: str, root: str) -> str:
    """Return how to bring the file that is missing in a job into its archive.

    Empty if it is not in the source folder, or is in the archive.
    """
    match = _MISSING.search(message)
    if match is None or not root:
        return ""

    path = PurePosixPath(match[1])
    rule = _rule_that_leaves_out(Path(root), path)
    if not rule:
        return ""

    line = f"!{path.parent}/".replace("!./", f"!{path}")
    return (
        f"{path} is in the source folder, but {rule} leaves it out of the archive: add {line} to"
        " .cloudtrainignore, or make it an input (CLOUDTRAIN_INPUT_<NAME>)"
    )


def _rule_that_leaves_out(root: Path, path: PurePosixPath) -> str:
    """Return the nearest ignore rule of a file that is not archived, such as `.gitignore:1`."""
    entry = root / path
    if ".." in path.parts or not (entry.is_file() or any(entry.glob("*"))):
        return ""

    archived = walk(str(root))
    names = [name for name, _ in archived.files] + archived.links
    if any(PurePosixPath(name).is_relative_to(path) for name in names):
        return ""

    for folder in path.parents:
        for name in (".cloudtrainignore", ".gitignore"):
            if number := _matching_line(root / folder / name, path.relative_to(folder)):
                return f"{folder / name}:{number}"

    return "a rule of git or of cloudtrain"


def _matching_line(file: Path, path: PurePosixPath) -> int:
    """Return the number of the last line of an ignore file that matches a path; 0 for none."""
    try:
        content = read_regular_file(file, follow=False)
    except OSError:
        return 0

    matching = 0
    for number, line in enumerate(content.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
        rule = IgnoreFile([line])
        if any(rule.ignores(str(part), part != path) for part in (path, *path.parents)):
            matching = number

    return matching

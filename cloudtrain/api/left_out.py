"""Files that a program names, and that an ignore file or an input keeps out of its source."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from cloudtrain.planning.launch import command_words
from cloudtrain.source.programs import paths_in
from cloudtrain.source.tree import SourceTree
from cloudtrain.spec.sources import PROGRAMS

if TYPE_CHECKING:
    from cloudtrain.spec.model import JobSpec

BY_JOB = "the job names it"

_WRITTEN = frozenset(
    {
        *("checkpoint", "checkpoints", "log", "logs", "lightning_logs", "mlruns", "wandb"),
        *("model", "models", "out", "output", "outputs", "result", "results", "run", "runs", "tmp"),
    }
)
"""Names of folders that a program usually makes itself."""


def missed_files(spec: JobSpec, tree: SourceTree) -> tuple[str, ...]:
    """Return the entries left out that a job is likely to miss, each with its rule and who names it."""
    if not tree.left_out:
        return ()

    named = list(_named(spec, tree))
    texts = {text for text, _ in named}
    used = set()
    for name in spec.inputs:
        variable = f"CLOUDTRAIN_INPUT_{name.upper().replace('-', '_')}"
        if variable in texts or any(f"inputs.{name}}}" in text for text in texts):
            used.add(f"it is the input {name}")

    missed: dict[str, str] = {}
    for text, by in named:
        path = PurePosixPath(posixpath.normpath(text))
        is_written = by != BY_JOB and str(path) in _WRITTEN
        if is_written or not _exists(tree.root, path):
            continue
        for place in map(str, (path, *path.parents)):
            rule = tree.left_out.get(place, "")
            if rule and rule not in used:
                missed.setdefault(place, f"{place} ({rule}; {by})")

    return tuple(missed.values())


def _named(spec: JobSpec, tree: SourceTree) -> Iterator[tuple[str, str]]:
    """Yield each text that may be a path of the source, and what has it."""
    words = [*command_words(spec), *spec.args.argv]
    for word in words:
        yield word, BY_JOB
        yield word.rpartition("=")[2], BY_JOB

    programs = [tree.root / word for word in (spec.entrypoint or "").split()]
    files = [file for file in programs if file.suffix in PROGRAMS and os.path.isfile(file)]  # noqa: PTH113
    for file, texts in paths_in(tree.root, *files):
        name = os.path.relpath(file, tree.root)
        yield name, "the program imports it"
        for text in texts:
            yield text, f"{name} names it"


def _exists(root: Path, path: PurePosixPath) -> bool:
    is_below = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return is_below and os.path.lexists(root / path)

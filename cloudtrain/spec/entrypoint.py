"""Check of the entrypoint: one program in the source folder, no launcher, no arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cloudtrain.issues import did_you_mean
from cloudtrain.spec.sources import PROGRAMS

Problem = tuple[str, str | None]
"""Message and hint."""

_LAUNCHERS = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|bash|sh)")


def entrypoint_problem(entrypoint: str, source: Path) -> Problem | None:
    """Return what is wrong with an entrypoint and what to write, or None."""
    if not entrypoint.split():
        return (
            "is empty",
            "name a script, '-m package.module' or a notebook; omit it to use the shared trainer",
        )
    if not (source / entrypoint).is_file() and (problem := _command_problem(entrypoint)):
        return problem
    if entrypoint.split()[0] == "-m":
        return _module_problem(entrypoint.split()[1:], source)
    if Path(entrypoint).is_absolute():
        return (
            f"{entrypoint!r} is an absolute path",
            "write a path relative to the source folder",
        )
    target = source / entrypoint
    if not target.resolve().is_relative_to(source):
        return (
            f"{entrypoint!r} is outside the source folder",
            "move it into the source folder",
        )
    if target.is_dir():
        return f"{entrypoint!r} is a folder", "name a script in this folder"
    if not target.is_file():
        names = tuple(
            str(p.relative_to(source)) for p in sorted(source.glob("*")) if p.suffix in PROGRAMS
        )
        return (
            f"no such file in the source folder: {entrypoint}{did_you_mean(entrypoint, names)}",
            None,
        )
    if target.suffix not in PROGRAMS:
        return (
            f"{entrypoint!r} is not a .py script or an .ipynb notebook",
            "put arguments into args",
        )
    return None


def _command_problem(entrypoint: str) -> Problem | None:
    """Return the problem of a command line in place of a program."""
    words = entrypoint.split()
    hint = "name only the program: a script, '-m package.module' or a notebook; put arguments into args"
    if _LAUNCHERS.fullmatch(words[0]):
        message = f"starts with {words[0]!r}, but torchrun already starts the program on every node"
        return message, hint
    has_arguments = len(words) > (2 if words[0] == "-m" else 1)
    if has_arguments and (words[0] == "-m" or words[0].endswith(PROGRAMS)):
        return "contains arguments", hint
    return None


def _module_problem(words: Sequence[str], source: Path) -> Problem | None:
    if len(words) != 1 or not re.fullmatch(r"\w+(\.\w+)*", words[0]):
        return "expected '-m package.module'", "put arguments into args"
    first, *parents = words[0].split(".")
    if not (source / first).is_dir():
        return None  # a file or a module of the image, which is not known here
    place = source.joinpath(first, *parents)
    if place.with_suffix(".py").is_file() or (place / "__main__.py").is_file():
        return None
    return (
        f"no module {words[0]} in the source folder",
        f"expected {place.relative_to(source)}.py or {place.relative_to(source)}/__main__.py",
    )

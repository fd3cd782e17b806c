"""Check of the entrypoint: one program in the source folder, no launcher, no arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from cloudtrain.issues import did_you_mean
from cloudtrain.spec.sources import PROGRAMS
from cloudtrain.spec.written_arguments import written_arguments

Problem = tuple[str, str | None]
"""Message and hint."""

_LAUNCHERS = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|bash|sh)")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_COUNTS = {"nnodes": "nodes", "nproc-per-node": "processes"}
"""Options of torchrun that are fields of `resources`."""


def entrypoint_problem(entrypoint: str, source: Path) -> Problem | None:
    """Return what is wrong with an entrypoint and what to write, or None."""
    if not entrypoint:
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
    """Return the problem of a command line, with its program and arguments as job.yaml."""
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        words = entrypoint.split()
    launched = bool(words) and _LAUNCHERS.fullmatch(words[0]) is not None
    at = _program_at(words)
    if at is None:
        hint = (
            "name only the program: a script, '-m package.module' or a notebook; put arguments"
            " into args"
        )
        return (_launched_by(words[0]), hint) if launched else None
    program = words[at]
    arguments = words[at + 1 :]
    if program == "-m":
        program = f"-m {words[at + 1]}"
        arguments = words[at + 2 :]
    fields = [f"entrypoint: {program}"]
    if arguments:
        fields.append(f"args: {written_arguments(arguments)}")
    if counts := _counts(words[:at]):
        fields.append(
            "resources: {" + ", ".join(f"{name}: {number}" for name, number in counts.items()) + "}"
        )
    hint = f"write {' and '.join(fields)}"
    if at or launched:
        return (_launched_by(words[0]), hint) if launched else None
    return ("contains arguments", f"put arguments into args: {hint}") if arguments else None


def _launched_by(word: str) -> str:
    return f"starts with {word!r}, but torchrun already starts the program on every node"


def _program_at(words: Sequence[str]) -> int | None:
    """Return the position of the program in a command line: a script, or `-m`."""
    for at, word in enumerate(words):
        if word.endswith(PROGRAMS):
            return at
        if word == "-m" and at + 1 < len(words) and words[at + 1] not in _TORCHRUN_MODULES:
            return at
    return None


def _counts(words: Sequence[str]) -> dict[str, int]:
    """Return the counts of nodes and processes in options of torchrun."""
    text = " ".join(words).replace("_", "-")
    matches = {field: re.search(rf"--{option}[ =](\d+)", text) for option, field in _COUNTS.items()}
    return {field: int(match[1]) for field, match in matches.items() if match}


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

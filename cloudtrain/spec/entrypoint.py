"""What is wrong with an entrypoint: it names one program in the source folder, and neither a
launcher nor arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from cloudtrain.issues import did_you_mean
from cloudtrain.spec.sources import PROGRAMS
from cloudtrain.spec.written_arguments import written_arguments

Problem = tuple[str, str | None]
"""A message and a hint."""

_LAUNCHERS = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|bash|sh)")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_COUNTS = {"nnodes": "nodes", "nproc-per-node": "processes"}
"""torchrun's options that are fields of `resources`."""


def entrypoint_problem(entrypoint: str, source: Path) -> Problem | None:
    """What is wrong with it, and what to write instead; None for a program that is there."""
    if not entrypoint:
        return (
            "is empty",
            "name a script, '-m package.module' or a notebook; leave it out for the shared trainer",
        )
    if not (source / entrypoint).is_file() and (problem := _command_problem(entrypoint)):
        return problem
    if entrypoint.split()[0] == "-m":
        return _module_problem(entrypoint.split()[1:], source)
    if Path(entrypoint).is_absolute():
        return (
            f"{entrypoint!r} is an absolute path",
            "write it relative to the source folder, which is what is archived",
        )
    target = source / entrypoint
    if not target.resolve().is_relative_to(source):
        return (
            f"{entrypoint!r} is outside source, so it is not in the archive",
            "move it into the source folder",
        )
    if target.is_dir():
        return f"{entrypoint!r} is a folder", "name the script in it"
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
            f"{entrypoint!r} is neither a .py script nor an .ipynb notebook",
            "arguments go into args",
        )
    return None


def _command_problem(entrypoint: str) -> Problem | None:
    """A command line instead of a program: what it would be in job.yaml."""
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        words = entrypoint.split()
    launched = bool(words) and _LAUNCHERS.fullmatch(words[0]) is not None
    at = _program_at(words)
    if at is None:
        hint = (
            "name the program alone: a script, '-m package.module' or a notebook; its arguments go"
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
    return ("holds arguments too", f"arguments go into args: {hint}") if arguments else None


def _launched_by(word: str) -> str:
    return f"starts with {word!r}, and the program is started by torchrun already, on every node"


def _program_at(words: Sequence[str]) -> int | None:
    """Where a command line names its program: a script, or `-m` before a module."""
    for at, word in enumerate(words):
        if word.endswith(PROGRAMS):
            return at
        if word == "-m" and at + 1 < len(words) and words[at + 1] not in _TORCHRUN_MODULES:
            return at
    return None


def _counts(words: Sequence[str]) -> dict[str, int]:
    """Nodes and processes that torchrun is told."""
    text = " ".join(words).replace("_", "-")
    found = {field: re.search(rf"--{option}[ =](\d+)", text) for option, field in _COUNTS.items()}
    return {field: int(match[1]) for field, match in found.items() if match}


def _module_problem(words: Sequence[str], source: Path) -> Problem | None:
    if len(words) != 1 or not re.fullmatch(r"\w+(\.\w+)*", words[0]):
        return "expected '-m package.module'", "arguments go into args"
    first, *rest = words[0].split(".")
    if not (source / first).is_dir():
        return None  # a single file, or an installed module: known only inside the image
    place = source.joinpath(first, *rest)
    if place.with_suffix(".py").is_file() or (place / "__main__.py").is_file():
        return None
    return (
        f"no module {words[0]} in the source folder",
        f"expected {place.relative_to(source)}.py or its __main__.py",
    )

"""The entrypoint of a spec: what is wrong with it, and what to write."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.errors import did_you_mean
from cloudtrain.spec.sources import PROGRAMS
from cloudtrain_wire.bounded_files import open_regular_file

Problem = tuple[str, str | None]
"""Message and hint."""

_LAUNCHERS = r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|bash|sh)"

_NO_FILE = "{!r} is neither a file nor a link to one"

MAX_LINE = 1000
"""Maximum bytes read of the first line of a script."""

KEEP_LF = "save it with LF line ends; `*.sh text eol=lf` in .gitattributes keeps git from CRLF"

_SHELL_WORDS = ("&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1")


def program_problem(values: Mapping[str, Any], source: Path) -> Problem | None:
    """Return what is wrong with the entrypoint of a spec and what to write, or None."""
    entrypoint = values.get("entrypoint")
    launcher = values.get("launcher", "torchrun")
    if launcher == "none" and isinstance(entrypoint, (str, list)):
        return _line_problem(entrypoint, source, is_built=bool(values.get("setup")))
    if launcher != "torchrun" or not isinstance(entrypoint, str):
        return None
    return _entrypoint_problem(entrypoint.strip(), source)


def _entrypoint_problem(entrypoint: str, source: Path) -> Problem | None:
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

    slashed = entrypoint.replace("\\", "/")
    if slashed != entrypoint and (source / slashed).is_file():
        return f"{entrypoint} has backslashes, and jobs run on Linux", f"write {slashed}"

    if Path(entrypoint).is_absolute():
        return (
            f"{entrypoint!r} is an absolute path",
            "write a path relative to the source folder",
        )

    target = source / entrypoint
    if not Path(os.path.realpath(target)).is_relative_to(source):
        return (
            f"{entrypoint!r} is outside the source folder",
            "move it into the source folder",
        )

    if target.is_dir():
        return f"{entrypoint!r} is a folder", "name a script in this folder"
    if target.exists() and not target.is_file():
        return _NO_FILE.format(entrypoint), "name a script"

    if not target.is_file():
        files = [path for path in sorted(source.glob("*")) if path.suffix in PROGRAMS]
        names = tuple(str(path.relative_to(source)) for path in files)
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
    hint = (
        "name only the program: a script, '-m package.module' or a notebook; put arguments into"
        " args; or set launcher: none to run the command unchanged"
    )

    if re.fullmatch(_LAUNCHERS, words[0]):
        message = f"starts with {words[0]!r}, but torchrun already starts the program on every node"
        return message, hint

    is_module = words[0] == "-m"
    if is_module and len(words) > 2:
        return "contains arguments", hint
    if words[0].endswith(PROGRAMS) and len(words) > 1:
        return "contains arguments", hint

    return None


def _line_problem(
    entrypoint: str | Sequence[object], source: Path, *, is_built: bool
) -> Problem | None:
    """Return what is wrong with a command line or its words, and what to write, or None.

    `is_built`: lines of `setup` may make the program.
    """
    operators: list[str] = []
    if isinstance(entrypoint, str):
        try:
            words = shlex.split(entrypoint)
        except ValueError as error:
            return f"is not a command line: {str(error).lower()}", "or write a list of words"

        # A line end in quotes is not a word.
        marked = shlex.split(entrypoint.strip().replace("\n", " \0 "))
        operators = ["\n" for word in marked if word.strip() == "\0"]
        operators += [word for word in words if word in _SHELL_WORDS]
    else:
        words = [str(word) for word in entrypoint]

    if not words or not words[0]:
        return "is empty", "name a script or a command, such as mpirun -np 2 ./train"

    if operators:
        return (
            f"contains {operators[0]!r}, but no shell reads the command",
            "put the lines into a script, or write a list: [bash, -c, '…']",
        )

    program = words[0]
    if program == "-m":
        return "starts with an option", f"python {' '.join(words)}"

    file = source / program
    is_of_source = "/" in program or program.endswith((".sh", *PROGRAMS))
    if Path(program).is_absolute() or (not is_of_source and not file.is_file()):
        return None  # of the image, which is not known here

    if not Path(os.path.realpath(file)).is_relative_to(source):
        return f"{program!r} is outside the source folder", "move it into the source folder"
    if file.exists() and not file.is_file():
        return _NO_FILE.format(program), "name a script"
    if not file.is_file():
        if is_built:
            return None

        return (f"no such file in the source folder: {program}", None)
    if file.suffix == ".ipynb":
        return f"{program!r} is a notebook, which is not a command", "remove launcher: none"
    if file.suffix != ".py" and not os.access(file, os.X_OK):
        return f"{program!r} is not executable", f"chmod +x {program}, or write bash {program}"

    return _first_line_problem(program, file)


def _first_line_problem(program: str, file: Path) -> Problem | None:
    """Return why Linux cannot start a program of the source, as its first line tells, or None."""
    try:
        with open_regular_file(file) as script:
            line = script.readline(MAX_LINE)
    except OSError as error:
        return f"{program!r} cannot be read: {error.strerror}", None

    if file.suffix == ".sh" and not line.startswith(b"#!"):
        return f"the first line of {program!r} names no shell", "start it with #!/bin/sh"
    if file.suffix != ".py" and line.startswith(b"#!") and line.endswith(b"\r\n"):
        message = f"the first line of {program!r} ends in CRLF: Linux looks for a shell with a \\r"
        return message, KEEP_LF

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

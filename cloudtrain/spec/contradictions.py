"""Fields that are valid alone but impossible together, unknown placeholders, and the entrypoint.

Sweeps and providers have their own checks.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.errors import Issue, Keys, did_you_mean
from cloudtrain.spec.fields import Arguments, read_arguments
from cloudtrain.spec.inputs import TRAINER_METRICS
from cloudtrain.spec.sources import PROGRAMS
from cloudtrain.spec.yaml_document import mapping_of, quantity_of
from cloudtrain.units import parse_duration
from cloudtrain_wire.bounded_files import open_regular_file

# Compiled at first use, to keep a plan fast.
_PLACE = (
    r"\$\{(?P<doubled>\{\s*)?(?P<kind>inputs|outputs)\.(?P<name>[A-Za-z][\w-]*)(?(doubled)\s*\})\}"
)
"""`${inputs.train}`, `${outputs.model}`; or `${{inputs.train}}` as in Azure ML."""
OUTPUTS = ("model", "output", "checkpoints")


def contradictions(values: Mapping[str, Any]) -> list[Issue]:
    """Return the contradictions in raw values, reported together with other mistakes."""
    issues: list[Issue] = []
    resources = mapping_of(values, "resources")
    limits = mapping_of(values, "limits")
    env = mapping_of(values, "env")

    if resources.get("gpu") and resources.get("instance"):
        message = "conflicts with gpu: both choose the machine"
        hint = "keep gpu (any cloud picks a machine) or instance (you pick it), not both"
        issues.append(Issue(("resources", "instance"), message, hint))

    if resources.get("gpu") and resources.get("gpus") is None:
        message = "names a GPU model without a count"
        issues.append(Issue(("resources", "gpu"), message, "set gpus: the number per node"))

    runtime = quantity_of(limits.get("max_runtime"), parse_duration)
    wait = quantity_of(limits.get("max_wait"), parse_duration)
    if runtime and wait and wait < runtime and resources.get("spot") is True:
        hint = "max_wait counts from submission to the end and includes the run"
        issues.append(Issue(("limits", "max_wait"), "is shorter than max_runtime", hint))

    for name in mapping_of(values, "metrics"):
        if name in TRAINER_METRICS and values.get("entrypoint") is None:
            message = "is already reported by the shared trainer"
            issues.append(Issue(("metrics", name), message, "choose another name"))

    issues += _unknown_placeholders("args", values.get("args"), values)
    issues += _launcher_issues(values, resources, limits, env)
    for name in mapping_of(values, "secrets"):
        if name in env:
            issues.append(Issue(("secrets", name), "is also set by env", "keep one of them"))

    return issues


def _launcher_issues(
    values: Mapping[str, Any],
    resources: Mapping[str, Any],
    limits: Mapping[str, Any],
    env: Mapping[str, Any],
) -> Iterator[Issue]:
    """Yield fields without effect or sense beside the launcher."""
    launch = mapping_of(values, "launch")
    entrypoint = values.get("entrypoint")
    launcher = values.get("launcher", "torchrun")
    if launcher == "torchrun":
        hint = "set launcher: none to run a command unchanged, once per node"
        if isinstance(entrypoint, list):
            yield Issue(("entrypoint",), "is a list, but torchrun runs one program", hint)
        if launch.get("tf_config") is True:
            yield Issue(("launch", "tf_config"), "has no effect on ranks of torchrun", hint)
    if launcher != "none":
        return

    if entrypoint is None:
        yield Issue(("launcher",), "none needs an entrypoint", "entrypoint: mpirun -np 2 ./train")
    elif isinstance(entrypoint, list):
        yield from _unknown_placeholders("entrypoint", entrypoint, values)
    else:
        for issue in _unknown_placeholders("entrypoint", [entrypoint], values):
            yield replace(issue, path=("entrypoint",))

    beside = "cannot go with launcher: none, which"
    refused = {
        ("resources", "processes"): (resources, "auto 1", f"{beside} starts one process per node"),
        ("limits", "restarts"): (limits, "0", f"{beside} has no restarts in place"),
        ("limits", "hang"): (limits, "0", f"{beside} cannot see that processes wait"),
        ("launch", "require_group"): (launch, "False", f"{beside} knows no torch.distributed"),
        ("launch", "warm"): (launch, "", f"{beside} forks no ranks"),
    }
    for keys, (section, allowed, message) in refused.items():
        value = section.get(keys[1])
        if value is not None and str(value) not in allowed.split():
            hint = "set limits.retries" if keys[1] == "restarts" else f"remove {'.'.join(keys)}"
            yield Issue(keys, message, hint)

    if launch.get("tf_config") is True and "TF_CONFIG" in env:
        yield Issue(("env", "TF_CONFIG"), "is also set by launch.tf_config", "keep one of them")


def _unknown_placeholders(section: str, args: Any, values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield unknown placeholders in the words of a section; a provider's may add outputs."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(args, dict):
        items = args.items()
    elif isinstance(args, list):
        items = enumerate(args)

    sections = [mapping_of(values, name) for name in values]
    sections += [mapping_of(section, "request") for section in sections]
    outputs = (name for section in sections for name in mapping_of(section, "outputs"))
    names_by_kind = {
        "inputs": tuple(map(str, mapping_of(values, "inputs"))),
        "outputs": (*OUTPUTS, *map(str, outputs)),
    }
    for key, item in items:
        text = str(item)
        if "${" not in text:
            continue

        for place in re.finditer(_PLACE, text):
            name = place["name"]
            names = names_by_kind[place["kind"]]
            is_known = name in names
            if place["doubled"]:  # Azure ML has no hyphens in names
                is_known = name.replace("-", "_") in {other.replace("-", "_") for other in names}

            if not is_known:
                message = f"unknown {place['kind'][:-1]} {name!r}{did_you_mean(name, names)}"
                yield Issue((section, key), message)


Problem = tuple[str, str | None]
"""Message and hint."""

_LAUNCHERS = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|bash|sh)")


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
    hint = (
        "name only the program: a script, '-m package.module' or a notebook; put arguments into"
        " args; or set launcher: none to run the command unchanged"
    )

    if _LAUNCHERS.fullmatch(words[0]):
        message = f"starts with {words[0]!r}, but torchrun already starts the program on every node"
        return message, hint

    has_arguments = len(words) > (2 if words[0] == "-m" else 1)
    if has_arguments and (words[0] == "-m" or words[0].endswith(PROGRAMS)):
        return "contains arguments", hint

    return None


_SHELL_WORDS = ("&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1")


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
    if not file.is_file():
        return None if is_built else (f"no such file in the source folder: {program}", None)
    if file.suffix == ".ipynb":
        return f"{program!r} is a notebook, which is not a command", "remove launcher: none"
    if file.suffix != ".py" and not os.access(file, os.X_OK):
        return f"{program!r} is not executable", f"chmod +x {program}, or write bash {program}"
    if file.suffix == ".sh":
        with open_regular_file(file) as script:
            if script.read(2) != b"#!":
                return f"the first line of {program!r} names no shell", "start it with #!/bin/sh"

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


HIDDEN = "***"

_NAME = re.compile(
    r"(.*[_.])?(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_KEY|CREDENTIALS?)",
    re.IGNORECASE,
)
"""Names of secrets. `MAX_TOKENS` and `TOKENIZERS_PARALLELISM` do not match."""

_VALUE = re.compile(
    r"(?<![\w./-])(hf_[A-Za-z0-9]{30,}|gh[opsur]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}"
    r"|sk-[\w-]{20,}|AKIA[A-Z0-9]{16}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,}"
    r"|\w[\w+.-]*://[^/@:\s\"',]+:[^/@$\s]+@)"
)
"""Tokens of well-known services, and addresses with a password, also inside a longer text."""

_NOT_SECRET = re.compile(
    r"[\d.,eE+-]*|true|false|none|null|[$<\[{(~./-].*", re.IGNORECASE | re.DOTALL
)
"""Numbers, references such as `$TOKEN`, vocabulary tokens such as `<pad>`, and paths."""

MIN_ARGUMENT_CHARACTERS = 8
"""Shorter arguments are words, such as `sks` in `--instance-token sks`."""


def is_secret_variable(name: str, value: str) -> bool:
    """Return whether a variable of the environment probably holds a secret."""
    return bool(value) and (_NAME.fullmatch(name) is not None or _VALUE.search(value) is not None)


def is_secret_argument(name: str, value: str) -> bool:
    """Return whether an argument is probably a secret.

    `name`: `api-key`, `--api-key`, or `+model.api_key` of Hydra.
    """
    if _VALUE.search(value):
        return True

    is_named_so = _NAME.fullmatch(name.lstrip("-+").replace("-", "_")) is not None
    is_long = len(value) >= MIN_ARGUMENT_CHARACTERS and not re.search(r"\s", value)
    return is_named_so and is_long and not _NOT_SECRET.fullmatch(value)


def secret_arguments(args: Arguments, command: Sequence[str] = ()) -> Iterator[tuple[Keys, str]]:
    """Yield the field and the name (may be "") of each argument that is probably a secret.

    `command`: words of the entrypoint, if it is a command.
    """
    for _, option in _secret_words(command):
        yield ("entrypoint",), option.lstrip("-+")

    if not isinstance(args.values, Mapping):
        for at, option in _secret_words(args.argv):
            yield ("args", at), option.lstrip("-+")

        return

    for key, value in args.values.items():
        if any(_secret_words(read_arguments({key: value}).argv)):
            yield ("args", key), key


def hide_secrets(argv: Sequence[str]) -> list[str]:
    """Return a command line with `***` in place of each word that is probably a secret."""
    shown = list(argv)
    for at, option in _secret_words(argv):
        shown[at] = f"{option}={HIDDEN}" if argv[at].startswith(f"{option}=") else HIDDEN

    return shown


def _secret_words(argv: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the position of each word that is probably a secret, and the option it belongs to."""
    option = ""
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if equals and is_secret_argument(name, value):
            yield at, name
        elif not word.startswith("-") and is_secret_argument(option, word):
            yield at, option

        option = word if word.startswith("-") and not equals else ""


def hide_setting(path: str, value: object) -> object:
    """Return `***` for the value of `args.api_key` or `env.TOKEN` if it is probably a secret.

    A member of a request, as in `aws.request.Environment.TOKEN`, is judged like a variable.
    """
    section, _, name = path.partition(".")
    text = str(value)
    is_variable = section == "env" or name.startswith(("request.", "sweep_request."))
    is_secret = (section == "args" and is_secret_argument(name, text)) or (
        is_variable and is_secret_variable(name.rpartition(".")[2], text)
    )

    return HIDDEN if is_secret else value

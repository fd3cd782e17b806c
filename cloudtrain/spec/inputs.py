"""Readers of `inputs`, `dependencies` and `metrics`, the fields with special forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from cloudtrain.errors import Issue, did_you_mean
from cloudtrain.spec.fields import (
    FieldError,
    FieldErrors,
    expect,
    known_provider,
    read_each,
    read_strings,
    read_text,
    refuse_long,
)
from cloudtrain.spec.yaml_document import kind_of

INPUT_TYPES = ("file", "folder", "table", "model", "mlflow_model", "triton_model")
"""Values of an input's `type`. Tables and models belong to Azure ML; elsewhere folders."""
_INPUT_NAME = r"[a-zA-Z][a-zA-Z0-9_-]{0,63}"

OFF = "none"
CONDA_WAY = (
    "the nodes do not run conda: list pip packages in requirements.txt; put conda packages into an"
    " image (image: {build: Dockerfile}); Azure ML installs the conda file that azure.conda names"
)
LOCK_WAY = (
    "pip installs: uv export --frozen --no-emit-project --prune torch -o requirements.txt writes the"
    " locked versions for it"
)
_DEPENDENCY_FILES = (".txt", ".in", ".toml")
_DEPENDENCY_KEYS = ("file", "packages", "replace_torch")
_NO_VENDOR = (
    "use an image that has the packages, or send wheels with the source: --no-index and"
    " --find-links in requirements.txt"
)
_ELSEWHERE = {"conda": CONDA_WAY, "conda_file": CONDA_WAY, "vendor": _NO_VENDOR}
"""Hints for keys that are not ours, or not any longer."""

MAX_METRICS = 36
"""SageMaker's limit is 40 (AlgorithmSpecification.MetricDefinitions); the trainer uses four."""
MAX_PATTERN = 480
"""SageMaker's limit is 500 characters (MetricDefinition.Regex); the rank needs some."""
MANY = 20
"""A repeat above this count is treated as endless."""

TRAINER_METRICS = ("loss", "val_loss", "val_accuracy", "samples_per_s")
"""Metrics of the shared trainer, which SageMaker receives too."""

_METRIC_NAME = r"[A-Za-z_][A-Za-z0-9_.:/ -]{0,63}"
_METRIC_EXAMPLE = "for example accuracy: 'Accuracy: ([0-9.]+)'"

_REFUSED_IN_PATTERNS = {
    "POSSESSIVE_REPEAT": "a possessive repeat",
    "ATOMIC_GROUP": "an atomic group",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a condition",
    "ASSERT": "a look-around",
    "ASSERT_NOT": "a look-around",
}


@dataclass(frozen=True, slots=True)
class Input:
    """An input: its location per provider ("*": all), its mode and its type."""

    uri: Mapping[str, str]
    mode: Literal["copy", "stream"] = "copy"
    type: str | None = None
    """One of `INPUT_TYPES`; None: decided by its suffix or by the local file."""

    def on(self, provider: str) -> str | None:
        """Return the location for a provider, or None."""
        return self.uri.get(provider, self.uri.get("*"))


def read_inputs(value: Any) -> Mapping[str, Input]:
    """Read inputs by name. Raise FieldErrors for invalid names, URIs and shared variables."""
    inputs = read_each(expect(value, dict, "a mapping (name: location)"), _input, _input_name)
    names: dict[str, str] = {}
    for name in inputs:
        variable = name.upper().replace("-", "_")
        if variable in names:
            shared = f"shares the variable CLOUDTRAIN_INPUT_{variable} with {names[variable]!r}"
            raise FieldError(shared, "give one of them another name", at=(name,))

        names[variable] = name

    return inputs


def _input(value: Any) -> Input:
    if isinstance(value, (str, Input)):
        if isinstance(value, Input):
            return value

        return Input({"*": _uri(value)})

    places = dict(
        expect(value, dict, "a URI, a path, or a mapping (numbers and texts belong in args)")
    )
    mode = places.pop("mode", "copy")
    if mode not in ("copy", "stream"):
        raise FieldError(f"expected copy or stream, got {kind_of(mode)}", at=("mode",))

    kind = places.pop("type", None)
    if kind is not None and kind not in INPUT_TYPES:
        suggestion = did_you_mean(str(kind), INPUT_TYPES)
        raise FieldError(
            f"expected one of {', '.join(INPUT_TYPES)}, got {kind_of(kind)}{suggestion}",
            at=("type",),
        )

    if not places:
        raise FieldError("the URI is missing", "write uri: …, or one URI per provider")

    uris = read_each(places, _uri, _provider_or_uri)
    slashed = [uri for uri in uris.values() if uri.endswith("/")]
    if kind == "file" and slashed:
        raise FieldError(
            f"{slashed[0]} ends in a slash, but a file does not", "type: folder", at=("type",)
        )

    by_provider = {}
    for key, uri in uris.items():
        provider = "*" if key == "uri" else key
        by_provider[provider] = uri

    return Input(by_provider, mode, kind)


def _provider_or_uri(key: str) -> str:
    if key == "uri":
        return key

    return known_provider(key)


def _uri(value: Any) -> str:
    uri = read_text(expect(value, str, "a URI or a path"))
    if not uri.strip():
        raise FieldError(
            "is empty", "write an address such as s3://bucket/data/, or a folder such as ./data"
        )

    if "://" not in uri:
        refuse_long(uri)

    try:
        Path(uri).expanduser()
    except RuntimeError:
        raise FieldError(
            f"unknown user: {kind_of(uri)}", "write ./~name for a folder of that name"
        ) from None

    return uri


def _input_name(name: str) -> str:
    if not re.fullmatch(_INPUT_NAME, name):
        raise FieldError(
            "is not a valid input name", "letters, digits, - and _, starting with a letter"
        )

    return name


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The field `dependencies`. Empty means: use a requirements file of the source folder."""

    file: str | None = None
    """Path of a file below the source folder."""
    packages: tuple[str, ...] = ()
    """Requirements, each as a line of requirements.txt."""
    off: bool = False
    """True if the job installs no packages at all."""
    replace_torch: bool = False
    """True if requirements may replace the image's torch and its extensions."""

    @property
    def is_automatic(self) -> bool:
        """True if a file of the source folder decides."""
        return not (self.off or self.file or self.packages)


def read_dependencies(value: Any) -> Dependencies:
    """Read `none`, a file, a list of requirements, or a mapping."""
    if isinstance(value, Dependencies):
        return value
    if value is None:
        return Dependencies()
    if isinstance(value, str):
        if value == OFF:
            return Dependencies(off=True)

        return Dependencies(file=_file(value))
    if isinstance(value, (list, tuple)):
        return Dependencies(packages=_packages(value))

    if not isinstance(value, dict):
        raise FieldError(
            f"expected a file, a list of packages, a mapping or none, got {kind_of(value)}"
        )

    return _from_mapping(value)


def _from_mapping(value: Mapping[Any, Any]) -> Dependencies:
    for key in value:
        if key not in _DEPENDENCY_KEYS:
            hint = _ELSEWHERE.get(key, f"one of {', '.join(_DEPENDENCY_KEYS)}")
            raise FieldError(
                f"unknown key{did_you_mean(str(key), _DEPENDENCY_KEYS)}", hint, at=(key,)
            )

    if "file" in value and "packages" in value:
        raise FieldError(
            "conflicts with file: both choose the packages", "keep one of them", at=("packages",)
        )

    replace_torch = value.get("replace_torch", False)
    if not isinstance(replace_torch, bool):
        message = f"expected true or false, got {kind_of(replace_torch)}"
        raise FieldError(message, at=("replace_torch",))

    file = None
    if "file" in value:
        file = _file(value["file"])

    packages: tuple[str, ...] = ()
    if "packages" in value:
        packages = _packages(value["packages"])

    return Dependencies(file=file, packages=packages, replace_torch=replace_torch)


def _file(value: Any) -> str:
    name = read_text(expect(value, str, "a file of the source folder")).strip()
    path = PurePosixPath(name)
    if path.suffix in (".yml", ".yaml"):
        raise FieldError(f"{name} is a conda environment, which pip cannot read", CONDA_WAY)

    if path.name == "uv.lock":
        raise FieldError("uv.lock is not read", LOCK_WAY)

    if not name.endswith(_DEPENDENCY_FILES):
        hint = "write none for no packages"
        if name:
            hint = f"for a package, write a list: dependencies: [{name}]"

        raise FieldError(f"{name!r} is not a requirements file or pyproject.toml", hint)

    if path.is_absolute() or ".." in path.parts:
        raise FieldError(
            f"{name!r} is not in the source folder", "write a path relative to the source folder"
        )

    return str(path)


def _packages(value: Any) -> tuple[str, ...]:
    packages = read_strings(value, _package)
    if not packages:
        raise FieldError("is an empty list", f"for no packages, write dependencies: {OFF}")
    return packages


def _package(text: str) -> str:
    if re.search(r"://[^/@\s]+@", text) and "${" not in text:
        hint = "write ${NAME} instead, and set NAME under secrets"
        raise FieldError("contains a password, which the run folder would store", hint)

    if text.endswith(_DEPENDENCY_FILES) or text.startswith(
        ("-r", "-c", "--requirement", "--constraint")
    ):
        hint = f"for a file, write no list: dependencies: {text.split()[-1]}"
        raise FieldError(f"{text!r} is a file", hint)

    if not re.match(r"--?[a-z]|[A-Za-z0-9.]", text) or "\n" in text:
        hint = "write a line of requirements.txt, such as einops==0.8.1"
        raise FieldError(f"{text!r} is not a requirement", hint)

    return text


def read_metrics(value: Any) -> Mapping[str, str]:
    """Read metrics: name -> regular expression, whose first group is the number."""
    patterns = expect(value, dict, "a mapping (name: regular expression)")
    issues: list[Issue] = []
    names: dict[str, str] = {}

    for name, pattern in patterns.items():
        try:
            _check_name(name)
            _check_pattern(pattern)

            if pattern in names:
                raise FieldError(
                    f"repeats the expression of {names[pattern]!r}", "keep one of them"
                )

            names[pattern] = name
        except FieldErrors as error:
            for issue in error.issues:
                issues.append(Issue((name, *issue.path), issue.message, issue.hint))

    if len(patterns) > MAX_METRICS:
        issues.append(Issue((), f"has {len(patterns)} metrics; the limit is {MAX_METRICS}"))
    if issues:
        raise FieldErrors(issues)

    return {str(name): str(pattern) for name, pattern in patterns.items()}


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(_METRIC_NAME, name):
        raise FieldError(
            "is not a valid metric name",
            "up to 64 letters, digits, spaces and _ . : / -, a letter first",
        )


def _check_pattern(pattern: Any) -> None:
    text = expect(pattern, str, "a regular expression")
    if len(text) > MAX_PATTERN:
        raise FieldError(f"has {len(text)} characters; the limit is {MAX_PATTERN}")

    try:
        groups = re.compile(text).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise FieldError(
            f"{text!r} is not a valid regular expression: {error}", _METRIC_EXAMPLE
        ) from None

    if groups == 0:
        message = f"{text!r} has no group: it needs a capture group around the number"
        raise FieldError(message, _METRIC_EXAMPLE)

    problem = next(_problems(text), None)
    if problem:
        raise FieldError(f"{text!r} {problem}", _METRIC_EXAMPLE)


def _problems(text: str) -> Iterator[str]:
    parser: Any = import_module("re._parser")
    parsed = parser.parse(text)
    if parsed.state.flags & ~re.UNICODE.value:
        yield "sets flags, which some engines do not support"
    if parsed.state.groupdict:
        yield "names its group, which some engines do not support: write ( ) without a name"
    if parsed.getwidth()[0] == 0:
        yield "matches every line, even an empty one"

    yield from _in_parts(parsed)


def _in_parts(
    parsed: Any, *, inside_repeat: bool = False, inside_group: bool = False
) -> Iterator[str]:
    """Yield problems in the parts of a parsed expression from `re._parser`."""
    for operator, operand in parsed:
        name = str(operator)
        if name in _REFUSED_IN_PATTERNS:
            yield f"has {_REFUSED_IN_PATTERNS[name]}, which some engines do not support"

        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            _, most, repeated = operand
            is_endless = int(most) > MANY
            if is_endless and inside_repeat:
                yield "has a repeat inside a repeat, which may run forever on some lines"

            inside_repeat_here = inside_repeat or is_endless
            yield from _in_parts(
                repeated, inside_repeat=inside_repeat_here, inside_group=inside_group
            )

        elif name == "SUBPATTERN":
            group = operand[0] or 0
            if group > 1 and not inside_group:
                yield "has a second group beside the first, the number: write (?:…) for the others"

            yield from _in_parts(
                operand[-1],
                inside_repeat=inside_repeat,
                inside_group=inside_group or group > 0,
            )

        elif name == "BRANCH":
            if inside_repeat:
                yield "repeats a choice (a|b), which may run forever on some lines"

            for part in operand[1]:
                yield from _in_parts(part, inside_repeat=inside_repeat, inside_group=inside_group)

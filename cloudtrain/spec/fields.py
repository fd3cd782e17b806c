"""Readers of single fields. Each returns our value or raises `FieldError`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloudtrain.catalog import all_gpu_names, gpu_names
from cloudtrain.declaration import declaration_of, is_provider, meant_provider, provider_names
from cloudtrain.errors import Issue, Keys, did_you_mean
from cloudtrain.spec.yaml_document import kind_of
from cloudtrain_wire.kept_files import MODEL_PREFIX

NAME = r"[a-zA-Z0-9]([-_]*[a-zA-Z0-9]){0,49}"
"""Name of a job, with room for a run's suffix in SageMaker's 63 characters.

SageMaker alone takes no underscores; its rules refuse them.
"""

MAX_VARIABLE_BYTES = 131_072
"""Limit of `NAME=value` and its final zero: MAX_ARG_STRLEN in execve(2)."""

_ENV_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
EMPTY_HINT = "remove the key, or add values below it"
_NO_SECRETS = (
    "a spec names the place of a secret, not its value; for example {local: 'env:HF_TOKEN'}"
)


MAX_PATTERNS = 50

_RELATIVE = (
    "write a path relative to the working folder of the program, such as out-*/ or snapshot.pt"
)
_OWN_FOLDERS = (
    "files in $CLOUDTRAIN_OUTPUT_DIR, ..._MODEL_DIR and ..._CHECKPOINT_DIR are always kept"
)


class FieldErrors(ValueError):
    """Mistakes in a field. The path of each issue is relative to the field."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        super().__init__("; ".join(issue.message for issue in issues))
        self.issues = tuple(issues)


class FieldError(FieldErrors):
    """One mistake in a field. `at`: path inside the field."""

    def __init__(self, message: str, hint: str | None = None, at: Keys = ()) -> None:
        super().__init__([Issue(at, message, hint)])


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of the program: `argv` as sent, `values` with their types."""

    argv: tuple[str, ...] = ()
    values: Mapping[str, Any] | tuple[str, ...] = ()


def expect(value: Any, kind: type | tuple[type, ...], name: str) -> Any:
    """Return a value of the expected kind. Raise FieldError for any other."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        hint = EMPTY_HINT if value is None else None
        raise FieldError(f"expected {name}, got {kind_of(value)}", hint)

    return value


def read_quantity(value: Any, parse: Callable[[str], Any], label: str, forms: str) -> Any:
    """Read a duration, a size or an amount of money. A number without a unit is an error."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise FieldError(f"{kind_of(value)} has no unit; write for example {forms}")
    expect(value, str, label)
    try:
        return parse(value)
    except ValueError as error:
        raise FieldError(str(error)) from None


def read_text(value: Any) -> str:
    """Read a text, a number or a boolean as text. Raise FieldError for anything else."""
    if value is None:
        raise FieldError("has no value", "write '' for an empty text")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(getattr(value, "text", value))

    expect(value, str, "one value")
    if "\0" in value:
        raise FieldError("contains a NUL character")
    if re.search("[\ud800-\udfff]", value):
        raise FieldError("is not UTF-8 text")

    return str(value)


def read_name(value: Any) -> str:
    """Read a job's name. Raise FieldError if a platform would reject it."""
    if not re.fullmatch(NAME, read_text(value)):
        rule = "up to 50 letters and digits, with hyphens and underscores only between them"
        raise FieldError(f"{read_text(value)!r} is not a valid job name", rule)

    return read_text(value)


def read_arguments(value: Any) -> Arguments:
    """Read arguments: a list, or a mapping as `--key value` pairs.

    true: a bare flag; false: left out; a list: several values.
    """
    if isinstance(value, Arguments):
        return value
    if value is None:
        raise FieldError("is empty", "remove args, or add values: args: {epochs: 3}")

    if isinstance(value, (list, tuple)):
        words = read_list(value, read_text)
        return Arguments(words, words)

    pairs = read_each(expect(value, dict, "a mapping (name: value) or a list, verbatim"), _argument)
    argv: list[str] = []
    for key, words in pairs.items():
        if words is None:
            continue

        argv.append(key if key.startswith("-") else f"--{key}")
        argv += words

    return Arguments(tuple(argv), plain(value))


def _argument(value: Any) -> tuple[str, ...] | None:
    if value is False:
        return None
    if value is True:
        return ()
    if isinstance(value, (list, tuple)):
        return read_list(value, read_text)
    if value is None:
        hint = "leave it out, or write true for a bare flag, '' for an empty text"
        raise FieldError("has no value", hint)
    if isinstance(value, dict):
        raise FieldError("is a mapping, and an argument is text", "write JSON: '{\"a\": 1}'")

    return (read_text(value),)


def read_env(value: Any) -> Mapping[str, str]:
    """Read environment variables. Raise FieldErrors for invalid or reserved names and values."""
    expect(value, dict, "a mapping (NAME: value)")
    variables = read_each(value, read_text, _variable)
    for name, text in variables.items():
        size = len(f"{name}={text}".encode()) + 1
        if size > MAX_VARIABLE_BYTES:
            limit = f"{size:,} bytes, the limit is {MAX_VARIABLE_BYTES:,}"
            message = f"is too large for an environment variable: {limit}"
            raise FieldError(message, "put the value into a file of the source folder", at=(name,))

    return variables


def read_secrets(value: Any) -> Mapping[str, Mapping[str, str]]:
    """Read secrets: variable -> provider -> place. Raise FieldErrors for anything else."""

    # Messages never repeat a value: it may be the secret.
    def read(sources: Any) -> Mapping[str, str]:
        if not isinstance(sources, dict):
            raise FieldError(
                "expected a mapping from provider to the place of the secret", _NO_SECRETS
            )

        pairs = {provider: (provider, place) for provider, place in sources.items()}
        return read_each(pairs, _secret_address)

    if not isinstance(value, dict):
        raise FieldError("expected a mapping (NAME: place of the secret)", _NO_SECRETS)

    return read_each(value, read, _variable)


def _secret_address(pair: tuple[str, Any]) -> str:
    provider = known_provider(pair[0])
    address = pair[1]
    store = name = ""
    if isinstance(address, str):
        store, _, name = address.partition(":")

    stores = declaration_of(provider).secret_stores
    if store not in stores or not name.strip() or "\0" in name:
        forms = " or ".join(f"'{store}:{form}'" for store, form in stores.items())
        raise FieldError(f"expected {forms}", _NO_SECRETS)

    return str(address)


def read_tags(value: Any) -> Mapping[str, str]:
    """Read tags by name. Raise FieldError if one is not text."""
    return read_each(expect(value, dict, "a mapping (name: value)"), read_text)


def read_request(value: Any) -> Mapping[str, Any]:
    """Read members of a platform's request. Raise FieldError for a number that JSON lacks."""
    members: dict[str, Any] = plain(expect(value, dict, "a mapping with members of the request"))
    try:
        json.dumps(members, allow_nan=False)
    except ValueError:
        raise FieldError("contains a number that is not finite") from None

    return members


def read_gpus(value: Any) -> tuple[str, ...]:
    """Read GPU models in order of preference. An empty value resets the file's."""
    if value is None:
        return ()
    if isinstance(value, str) and value:
        return (_gpu(value),)

    names = expect(value, (list, tuple), "a GPU name or a list of them")
    if not names:
        raise FieldError("is an empty list", "remove gpu, or name at least one")

    return read_list(names, _gpu)


def _gpu(name: Any) -> str:
    if expect(name, str, "a GPU name") not in all_gpu_names():
        raise FieldError(
            f"unknown GPU {kind_of(name)}{did_you_mean(name, gpu_names())}",
            f"known: {', '.join(gpu_names())}",
        )

    return str(name)


def read_instances(value: Any) -> Mapping[str, tuple[str, ...]]:
    """Read instance types per provider, in order of preference. Empty resets the file's."""
    if value is None:
        return {}
    if isinstance(value, str):
        message = f"expected a mapping from provider to instance types, got {kind_of(value)}"
        raise FieldError(message, f"name the provider: instance: {{PROVIDER: {value}}}")

    expect(value, dict, "a mapping from provider to instance types")
    return read_each(value, _machines, known_provider)


def _machines(value: Any) -> tuple[str, ...]:
    names = read_strings(value)
    if not names or not all(name.strip() for name in names):
        raise FieldError("is empty", "remove it, or name at least one instance type")
    return names


def read_strings(value: Any, read: Callable[[str], str] = str) -> tuple[str, ...]:
    """Read one text, or a list of texts. `read`: called with each."""
    if isinstance(value, str):
        return (read(value),)

    texts = expect(value, (list, tuple), "a text or a list of texts")
    return read_list(texts, lambda item: read(expect(item, str, "text")))


def refuse_long(path: str) -> None:
    """Raise FieldError for a path that is too long for any disk."""
    longest_name = max(len(os.fsencode(part)) for part in path.split("/"))
    if longest_name > 255 or len(os.fsencode(path)) > 4000:
        raise FieldError("the path is too long for any disk")


def _image(value: Any) -> str:
    """Read an address, or the path of a Dockerfile."""
    text = read_text(expect(value, str, "text"))
    if not text.strip():
        raise FieldError("is empty", "remove it, or write auto")

    refuse_long(text)
    return text


def read_image(value: Any) -> str | Mapping[str, str]:
    """Read an image: `auto`, an address, one per provider, or `{build: Dockerfile, context: .}`."""
    if isinstance(value, str) and value.strip():
        return value

    mapping = expect(value, dict, "auto, an image's address, or a mapping")
    if not mapping:
        raise FieldError("is empty", "remove it, or write auto")

    if "build" in mapping:
        return read_each(mapping, _image, _build_key)
    if "context" in mapping:
        raise FieldError("context is the folder of a build", "{build: Dockerfile, context: .}")

    return read_each(mapping, _image, known_provider)


def _build_key(name: str) -> str:
    if name not in ("build", "context"):
        raise FieldError(
            f"cannot stand beside build{did_you_mean(name, ('context',))}",
            "{build: Dockerfile, context: .}, or one address per provider",
        )

    return name


def reader_of_count(
    word: str, least: int, most: int, default: str | None
) -> Callable[[Any], int | str | None]:
    """Return a reader of a count per node, of the word in its place, or of the default."""

    def read(value: Any) -> int | str | None:
        if value in (word, default):
            return value  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int):
            raise FieldError(f"expected {word} or a whole number, got {kind_of(value)}")
        if not least <= value <= most:
            raise FieldError(f"must be between {least} and {most}, got {value}")
        return int(value)

    return read


def plain(value: Any) -> Any:
    """Return plain JSON types: numbers without their original text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, int):
        return int(value)

    return float(value)


def read_each(
    value: dict[Any, Any], read: Callable[[Any], Any], key: Callable[[str], str] = str
) -> dict[Any, Any]:
    """Read every item. Raise all mistakes together, each with its key."""
    good: dict[Any, Any] = {}
    issues: list[Issue] = []
    for name, item in value.items():
        try:
            if isinstance(name, str):
                key(name)
            good[name] = read(item)
        except FieldErrors as error:
            issues += [replace(issue, path=(name, *issue.path)) for issue in error.issues]

    if issues:
        raise FieldErrors(issues)
    return good


def read_list(values: Iterable[Any], read: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Read every item. Raise all mistakes together, each with its number."""
    return tuple(read_each(dict(enumerate(values)), read).values())


def _variable(name: str) -> str:
    if not re.fullmatch(_ENV_NAME, name):
        raise FieldError(
            "is not a valid variable name", "letters, digits and _, not starting with a digit"
        )

    if name.startswith("CLOUDTRAIN_"):
        raise FieldError("is reserved: cloudtrain sets CLOUDTRAIN_* itself", "choose another name")
    return name


def known_provider(name: str) -> str:
    """Return the name of a provider. Raise FieldError for any other."""
    if not is_provider(name):
        providers = provider_names()
        raise FieldError(
            f"unknown provider{meant_provider(name)}", f"one of {', '.join(providers)}"
        )

    return name


def read_setup(value: Any) -> tuple[str, ...]:
    """Read shell lines. Raise FieldErrors for an empty line."""
    return read_strings(value, _setup_line)


def _setup_line(line: str) -> str:
    if not line.strip():
        raise FieldError("is empty", "write a shell line")
    return line


def read_keep(value: Any) -> tuple[str, ...]:
    """Read relative patterns. Raise FieldErrors with all invalid ones. None: no patterns."""
    if value is None:
        return ()

    patterns = read_strings(value, _keep_pattern)
    if len(patterns) > MAX_PATTERNS:
        message = f"has {len(patterns)} patterns; the limit is {MAX_PATTERNS}"
        raise FieldError(message, "name their folder")
    return patterns


def _keep_pattern(pattern: str) -> str:
    path = read_text(pattern).removeprefix(MODEL_PREFIX)
    parts = path.split("/")
    if "$" in pattern:
        raise FieldError(
            f"{pattern!r} contains a variable, which is not replaced here", _OWN_FOLDERS
        )

    if path.startswith(("/", "~")):
        raise FieldError(f"{pattern!r} is an absolute path", f"{_RELATIVE}; {_OWN_FOLDERS}")
    if ".." in parts:
        raise FieldError(f"{pattern!r} leads out of the working folder", _RELATIVE)
    if not any(part not in ("", ".") for part in parts):
        message = f"{pattern!r} is the whole working folder, including the source"
        raise FieldError(message, "name the files that the program writes")

    return pattern

"""Readers of single fields: each takes what YAML gave and returns our value, or raises
`FieldError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cloudtrain.catalog import gpu_names
from cloudtrain.declaration import declaration_of, is_provider, provider_names
from cloudtrain.issues import Issue, Keys, did_you_mean
from cloudtrain.spec.yaml_document import kind_of

NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,49}")
"""SageMaker's pattern for a job name (63 characters), less the room for a run's own ending."""

MAX_VARIABLE_BYTES = 131_072
"""Of `NAME=value` and the zero after it: MAX_ARG_STRLEN in execve(2)."""

_ENV_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
EMPTY_HINT = "remove the key, or add values below it"
_NO_SECRETS = (
    "a spec names where a secret is kept, it never holds it; for example {local: 'env:HF_TOKEN'}"
)


class FieldErrors(ValueError):
    """What is wrong with a field's value; the path of each issue leads from the field to the part
    that is wrong.
    """

    def __init__(self, issues: Sequence[Issue]) -> None:
        super().__init__("; ".join(issue.message for issue in issues))
        self.issues = tuple(issues)


class FieldError(FieldErrors):
    """One thing is wrong with it; `at` leads from the field to the part that is wrong."""

    def __init__(self, message: str, hint: str | None = None, at: Keys = ()) -> None:
        super().__init__([Issue(at, message, hint)])


@dataclass(frozen=True, slots=True)
class Arguments:
    """The program's arguments: `argv` exactly as it will arrive, `values` with their types kept."""

    argv: tuple[str, ...] = ()
    values: Mapping[str, Any] | tuple[str, ...] = ()


def expect(value: Any, kind: type | tuple[type, ...], name: str) -> Any:
    """The value if it is of that kind; `FieldError` names what was expected and what is there."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        hint = EMPTY_HINT if value is None else None
        raise FieldError(f"expected {name}, got {kind_of(value)}", hint)
    return value


def read_quantity(value: Any, parse: Callable[[str], Any], what: str, forms: str) -> Any:
    """A duration, a size or an amount of money; a bare number has no unit and is refused."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise FieldError(f"{kind_of(value)} has no unit; write for example {forms}")
    expect(value, str, what)
    try:
        return parse(value)
    except ValueError as error:
        raise FieldError(str(error)) from None


def read_text(value: Any) -> str:
    """A scalar as text: numbers and booleans are accepted where text is expected. FieldError for
    anything else.
    """
    if value is None:
        raise FieldError("has no value", "write '' for an empty text")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(getattr(value, "text", value))
    expect(value, str, "one value")
    if "\0" in value:
        raise FieldError("holds a NUL character, which no program can be given")
    if re.search("[\ud800-\udfff]", value):
        raise FieldError("is not UTF-8 text")
    return str(value)


def read_name(value: Any) -> str:
    """A job's name. FieldError if it is not valid on every platform."""
    if not NAME.fullmatch(read_text(value)):
        rule = "up to 50 letters, digits and single hyphens inside, the rule that SageMaker sets"
        raise FieldError(f"{read_text(value)!r} is not a valid job name", rule)
    return read_text(value)


def read_arguments(value: Any) -> Arguments:
    """A mapping becomes `--key value` pairs (true: a bare flag, false: left out, a list: several
    values).
    """
    if isinstance(value, Arguments):
        return value
    if value is None:
        raise FieldError("is empty", "remove args, or add values: args: {epochs: 3}")
    if isinstance(value, (list, tuple)):
        argv = tuple(read_each(dict(enumerate(value)), read_text).values())
        return Arguments(argv, argv)
    pairs = read_each(expect(value, dict, "a mapping (name: value) or a list, verbatim"), _argument)
    argv = tuple(
        word
        for key, words in pairs.items()
        if words is not None
        for word in (key if key.startswith("-") else f"--{key}", *words)
    )
    return Arguments(argv, plain(value))


def _argument(value: Any) -> tuple[str, ...] | None:
    if value is False:
        return None
    if value is True:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(read_each(dict(enumerate(value)), read_text).values())
    if value is None:
        raise FieldError("has no value", "write true for a bare flag, '' for an empty text")
    return (read_text(value),)


def read_env(value: Any) -> Mapping[str, str]:
    """Environment variables. FieldErrors for invalid names and values, and for `CLOUDTRAIN_*`,
    which is reserved.
    """
    expect(value, dict, "a mapping (NAME: value)")
    found = read_each(value, read_text, _variable)
    for name, text in found.items():
        size = len(f"{name}={text}".encode()) + 1
        if size > MAX_VARIABLE_BYTES:
            message = (
                f"is {size:,} bytes long, and Linux starts no program with a variable of more than "
            )
            raise FieldError(
                f"{message}{MAX_VARIABLE_BYTES:,}",
                "put it into a file in the source folder",
                at=(name,),
            )
    return found


def read_secrets(value: Any) -> Mapping[str, Mapping[str, str]]:
    """Variable -> provider -> where the secret is stored. FieldErrors for anything else, such as a
    secret itself.
    """

    # No message repeats a value: it may be the secret.
    def read(sources: Any) -> Mapping[str, str]:
        if not isinstance(sources, dict):
            raise FieldError(
                "expected a mapping from provider to where the secret is kept", _NO_SECRETS
            )
        pairs = {provider: (provider, place) for provider, place in sources.items()}
        return read_each(pairs, _secret_address)

    if not isinstance(value, dict):
        raise FieldError("expected a mapping (NAME: where it is kept)", _NO_SECRETS)
    return read_each(value, read, _variable)


def _secret_address(pair: tuple[str, Any]) -> str:
    provider = known_provider(pair[0])
    address = pair[1]
    store, _, name = address.partition(":") if isinstance(address, str) else ("", "", "")
    stores = declaration_of(provider).secret_stores
    if store not in stores or not name.strip() or "\0" in name:
        forms = " or ".join(f"'{store}:{form}'" for store, form in stores.items())
        raise FieldError(f"expected {forms}", _NO_SECRETS)
    return str(address)


def read_tags(value: Any) -> Mapping[str, str]:
    """Tags by their names. FieldError if one is not text."""
    return read_each(expect(value, dict, "a mapping (name: value)"), read_text)


def read_gpus(value: Any) -> tuple[str, ...]:
    """GPU models, in order of preference, that the catalog knows. An empty value resets what a file
    sets.
    """
    if value is None:
        return ()
    names = (
        (value,)
        if isinstance(value, str)
        else expect(value, (list, tuple), "a GPU name or a list of them")
    )
    if not names:
        raise FieldError("names no GPU", "leave it out, or name at least one")
    if isinstance(value, str):
        return (_gpu(value),)
    return tuple(read_each(dict(enumerate(names)), _gpu).values())


def _gpu(name: Any) -> str:
    if expect(name, str, "a GPU name") not in gpu_names():
        raise FieldError(
            f"unknown GPU {kind_of(name)}{did_you_mean(name, gpu_names())}",
            f"known: {', '.join(gpu_names())}",
        )
    return str(name)


def read_instances(value: Any) -> Mapping[str, tuple[str, ...]]:
    """Instance types per provider, in order of preference. An empty value resets what a file sets."""
    if value is None:
        return {}
    expect(value, dict, "a mapping from provider to instance types")
    return read_each(value, _machines, known_provider)


def _machines(value: Any) -> tuple[str, ...]:
    names = read_strings(value)
    if not names or not all(name.strip() for name in names):
        raise FieldError("names no machine", "leave it out, or name at least one")
    return names


def read_strings(value: Any) -> tuple[str, ...]:
    """One text, or a list of texts."""
    if isinstance(value, str):
        return (value,)
    expect(value, (list, tuple), "a text or a list of texts")
    return tuple(
        read_each(dict(enumerate(value)), lambda item: str(expect(item, str, "text"))).values()
    )


def refuse_long(path: str) -> None:
    """FieldError for a path that no disk can hold."""
    if (
        max(len(os.fsencode(part)) for part in path.split("/")) > 255
        or len(os.fsencode(path)) > 4000
    ):
        raise FieldError("holds a longer name than any disk keeps")


def _image(value: Any) -> str:
    """An address, or the path of a Dockerfile."""
    text = read_text(expect(value, str, "text"))
    if not text.strip():
        raise FieldError("names no image", "leave it out, or write auto")
    refuse_long(text)
    return text


def read_image(value: Any) -> str | Mapping[str, str]:
    """An image: `auto`, an address, one per provider, or the path of a Dockerfile. FieldError for
    anything else.
    """
    if isinstance(value, str) and value.strip():
        return value
    mapping = expect(value, dict, "auto, an image's address, or a mapping")
    if not mapping:
        raise FieldError("names no image", "leave it out, or write auto")
    known = (lambda key: key) if set(mapping) == {"build"} else known_provider
    return read_each(mapping, _image, known)


def read_processes(value: Any) -> int | Literal["auto"]:
    """Processes per node: auto or a count."""
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"expected auto or a whole number, got {kind_of(value)}")
    if not 1 <= value <= 1024:
        raise FieldError(f"must be between 1 and 1024, got {value}")
    return int(value)


def plain(value: Any) -> Any:
    """Plain JSON types: numbers lose the text that they were written as."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (bool, str)) or value is None:
        return value
    return int(value) if isinstance(value, int) else float(value)


def read_each(
    value: dict[Any, Any], read: Callable[[Any], Any], key: Callable[[str], str] = str
) -> dict[Any, Any]:
    """Every item read, and all that is wrong with them raised together, each with its key."""
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


def _variable(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise FieldError(
            "is not a valid variable name", "letters, digits and _, not starting with a digit"
        )
    if name.startswith("CLOUDTRAIN_"):
        raise FieldError(
            "is reserved for cloudtrain's contract with the job", "choose another name"
        )
    return name


def known_provider(name: str) -> str:
    """The name of a provider. FieldError for any other."""
    if not is_provider(name):
        known = provider_names()
        raise FieldError(
            f"unknown provider{did_you_mean(name, known)}", f"one of {', '.join(known)}"
        )
    return name

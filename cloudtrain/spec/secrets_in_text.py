"""Secrets in arguments and variables: which look like one, and texts without them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from cloudtrain.errors import Keys
from cloudtrain.spec.fields import Arguments, read_arguments

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
        if argv[at].startswith(f"{option}="):
            shown[at] = f"{option}={HIDDEN}"
        else:
            shown[at] = HIDDEN

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

"""Secrets: which values look like one, and texts without them. Standard library only.

One rule for client and nodes. A value is probably a secret by its name (`HF_TOKEN`, `--api-key`,
`db.password`) or by its form (a token of a well-known service, an address with a password).

One masker for each process. Whatever reads a job, a setting or a flag adds the secrets in it. Output,
pages and logs show `***` instead. Values shorter than `MIN_SECRET_CHARS` and transformed values
(base64, reversed, split) are not recognised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

MASK = "***"
MIN_SECRET_CHARS = 6
"""Minimum length: shorter values occur in too many harmless words."""
MAX_NAME_CHARS = 80
"""Maximum of a name; the end of a longer one counts, so that an endless word costs no time."""
MIN_TOKEN_CHARS = 8
"""Shorter values of an option such as `--pad-token` are words of a vocabulary."""

_NAME = re.compile(
    r"(?!AZURE_TOKEN_CREDENTIALS$)(.*[_.])?(\w*PASSWORD|PASSWD|PASSPHRASE|SECRETS?|SECRET_?KEY|API_?KEY|ACCESS_?KEY|ACCOUNT_?KEY"
    r"|PRIVATE_?KEY|CREDENTIALS?|CONNECTION_?STRING|(?P<token>\w*TOKEN))",
    re.IGNORECASE,
)
"""Names of secrets. `MAX_TOKENS` and `TOKENIZERS_PARALLELISM` do not match, nor does the variable
that only says which login of Azure to try.
"""

_FORM = re.compile(
    r"(?<![\w./-])(hf_[A-Za-z0-9]{30,}|gh[opsur]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}"
    r"|sk-[\w-]{20,}|AKIA[A-Z0-9]{16}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,}"
    r"|\w[\w+.-]*:(?P<login>//[^/@:\s\"',]+:(?P<password>[^/@$\s]+)@))"
    r"|[?&](?:sig|X-Amz-Signature)=(?P<signature>[^\s&'\"]+)"
)
"""Tokens of well-known services, addresses with a password or a signature, also inside a text."""

_NOT_SECRET = re.compile(
    r"[\d.,eE+-]*|true|false|none|null|[$<\[{(~./-].*|\*+|(env|file|ssm|secretsmanager|keyvault):.*",
    re.IGNORECASE | re.DOTALL,
)
"""Numbers, references such as `$TOKEN` and `env:TOKEN`, tokens such as `<pad>`, and paths."""

_VALUE = r"""(?P<value>"[^"]*"|'[^']*'|[^\s"',;&(){}\[\]-][^\s"',;&)}\]]*)"""

_ASSIGNMENT = re.compile(rf"""(?<![\w.-])(?P<name>[A-Za-z_][\w.-]*)["']?(?:=|:\s*){_VALUE}""")
"""`NAME=value`, `name: value` and `"name": "value"` in a text, such as a shell line."""

_OPTION = re.compile(rf"(?<![\w.-])--?(?P<name>[A-Za-z][\w.-]*)\s+{_VALUE}")
"""`--name value` in a text."""


def is_secret_variable(name: str, value: str) -> bool:
    """Return whether a variable of the environment probably holds a secret."""
    return bool(value) and (_is_name(name) or _FORM.search(value) is not None)


def is_secret_argument(name: str, value: str) -> bool:
    """Return whether an argument is probably a secret.

    `name`: `api-key`, `--api-key`, or `+model.api_key` of Hydra.
    """
    return _FORM.search(value) is not None or _is_named_secret(name, value)


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(_spelled(name)) is not None


def _spelled(name: str) -> str:
    """Return `api_key` for `--api-key` and `apiKey`."""
    words = name.lstrip("-+")[-MAX_NAME_CHARS:].replace("-", "_")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", words)


def _is_named_secret(name: str, value: str) -> bool:
    match = _NAME.fullmatch(_spelled(name))
    if match is None or len(value) < MIN_SECRET_CHARS or _NOT_SECRET.fullmatch(value):
        return False
    if not match["token"]:
        return True

    return len(value) >= MIN_TOKEN_CHARS and not re.search(r"\s", value)


def secret_words(argv: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the position of each word that is probably a secret, and the option it belongs to."""
    option = ""
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if equals and is_secret_argument(name, value):
            yield at, name
        elif not word.startswith("-") and is_secret_argument(option, word):
            yield at, option

        option = word if word.startswith("-") and not equals else ""


def secrets_in(value: Any, name: str = "") -> Iterator[str]:
    """Yield what is probably a secret in a JSON value or a text.

    `name`: the key of the value; inside of `secrets` it is that.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from secrets_in(item, name if name == "secrets" else str(key))
    elif isinstance(value, (list, tuple)):
        yield from _secrets_in_list(value, name)
    elif isinstance(value, str):
        if _is_named_secret(name, value):
            yield value

        yield from _secrets_in_text(value)


def _secrets_in_list(values: Sequence[Any], name: str) -> Iterator[str]:
    words = [word if isinstance(word, str) else "" for word in values]
    for at, option in secret_words(words):
        value = words[at].removeprefix(f"{option}=")
        if _is_named_secret(option, value):
            yield value

    for item in values:
        yield from secrets_in(item, name)


def _secrets_in_text(text: str) -> Iterator[str]:
    for match in _FORM.finditer(text):
        part = match["password"] or match["signature"] or match[0]
        if len(part) < MIN_SECRET_CHARS and match["login"]:
            part = match["login"]

        yield part

    for pattern in (_ASSIGNMENT, _OPTION):
        for match in pattern.finditer(text):
            value = match["value"].strip("\"'")
            if _is_named_secret(match["name"], value):
                yield value


class SecretMasker:
    """Replacement of secret values by `***`. `add` values before any output that contains them."""

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._texts: list[str] = []

    def add(self, values: Iterable[str]) -> None:
        """Add values to mask: each of their lines, also as JSON writes it."""
        masked = set(self._texts)

        for value in values:
            for line in map(str.strip, (value, *value.splitlines())):
                if len(line) >= MIN_SECRET_CHARS:
                    masked.add(line)
                    masked.add(json.dumps(line)[1:-1])
                    masked.add(json.dumps(line, ensure_ascii=False)[1:-1])

        # A value that contains another comes first.
        self._texts = sorted(masked, key=len, reverse=True)
        self._values = [text.encode("utf-8", "surrogateescape") for text in self._texts]

    def clear(self) -> None:
        """Forget all values."""
        self._texts = []
        self._values = []

    def mask_text(self, text: str) -> str:
        """Return the text with every secret value masked."""
        for value in self._texts:
            text = text.replace(value, MASK)

        return text

    def mask(self, line: bytes) -> bytes:
        """Return the line with every secret value masked."""
        for value in self._values:
            if value in line:
                line = line.replace(value, MASK.encode())

        return line

    def mask_json(self, value: Any) -> Any:
        """Return a JSON value with every string in it masked, keys included."""
        if not self._values:
            return value
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, dict):
            return {self.mask_json(name): self.mask_json(item) for name, item in value.items()}
        if not isinstance(value, list):
            return value

        return [self.mask_json(item) for item in value]

    def partial_match_length(self, text: bytes) -> int:
        """Return the length of the text's end that may begin a secret value; 0 if none."""
        longest = 0
        for value in self._values:
            for length in range(longest + 1, min(len(value), len(text) + 1)):
                if text.endswith(value[:length]):
                    longest = length

        return longest


masker = SecretMasker()
"""Masker of this process."""

"""Record exchanges with a cloud as test data, without names, secrets and texts of a user.

`CLOUDTRAIN_RECORD` names a folder. A word is kept only if the cloud's public SDK or this package
contains it, and never at a name, an owner, a value or a secret.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from cloudtrain.planning.launch import TAG_PREFIX
from cloudtrain.runs.files import make_private_folder, private_opener
from cloudtrain.version import __version__

_LOG = logging.getLogger(__name__)

_END = r"[^/?&\s\"'{},:]+"
_POSITIONS = {
    "sub": rf"(?<=/subscriptions/){_END}",
    "rg": rf"(?<=/resourcegroups/){_END}",
    "ws": rf"(?<=/workspaces/){_END}",
    "name": rf"(?:(?<=/jobs/)|(?<=/runs/)|(?<=training-job/)){_END}",
    "compute": rf"(?<=/computes/){_END}",
    "asset": rf"(?:(?<=/codes/)|(?<=/data/)|(?<=/environments/)(?!AzureML-)){_END}",
    "account": r"(?<=://)[^/.\s{}]+(?=\.(?:blob|dfs|file|vault|azurecr)\.)|(?<!\d)\d{12}(?!\d)",
    "arn": r"(?:(?<=:\d{12}:)|(?<=:s3:::))[^\s\"'{},]+",
    "bucket": rf"(?<=s3://){_END}",
    "image": r"(?:(?<=amazonaws\.com/)|(?<=azurecr\.io/))[^\s\"'{},]+",
    "address": r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])",
    "guid": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "sas": r"(?<=\?)[^\s\"'<>{}]*\b(?:sig|signature|x-amz-signature)=[^\s\"'<>{}]*",
    "token": r"\beyJ[\w.-]+",
}
"""Placeholder -> expression of a text that identifies an account, wherever it stands."""
_IDENTIFIERS = re.compile(
    "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _POSITIONS.items()),
    re.IGNORECASE,
)
_PRIVATE_KEY = re.compile(
    "(name|bucket|by|owner|value|key|password|token|secrets?|signature|user|email|account|role|hash)$",
    re.IGNORECASE,
)
"""Members whose texts are replaced as a whole."""
_PRIVATE_VARIABLE = re.compile("^(USER|LOGNAME|HOSTNAME)$|KEY|SECRET|TOKEN|PASSWORD|PROFILE|_ID$")
_MAPS = ("tags", "environmentvariables", "environment", "hyperparameters", "inputs", "outputs")
"""Members whose keys are a user's own."""
_SYSTEM_KEY = re.compile(rf"(_?azureml|_aml|mlflow|CLOUDTRAIN_|{TAG_PREFIX})")
_PUBLIC = ("workspaceblobstore", "workspaceartifactstore", "default", "Studio", "Tracking")
_TYPE = re.compile(r"Microsoft\.[A-Za-z]+(/[A-Za-z]+)+")
_TOKEN = re.compile(
    r"(?P<placeholder>\{\w+\})"
    r"|(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.]*(?:Z|[+-]\d\d:\d\d)?"
    r"|\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT)"
    r"|\w(?:[\w.+@~-]*\w)?"
)
_LETTERS = re.compile("[A-Za-z]+")
_PIECE = re.compile("[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_XML_TEXT = re.compile(r"(?<=>)[^<]+|(?<=\")[^\"<>]*(?=\")")
_HEADERS = re.compile(
    "location|content-(type|length|range)|x-ms-(error-code|response-type|async-operation-timeout"
    "|blob-type|version)|azure-asyncoperation|x-amz-target",
    re.IGNORECASE,
)
MAX_NUMBER_DIGITS = 5
"""Maximum length of a number in a text; longer ones may be identifiers."""


class Recording:
    """The exchanges of one process, in one file."""

    def __init__(self, cloud: str, folder: Path, sdk: Path) -> None:
        """Start a file. `sdk`: folder with the public words that may be kept."""
        make_private_folder(folder)
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._path = folder / f"{cloud}-{moment}-{os.getpid()}.jsonl"
        self._words = _words(sdk) | _words(Path(__file__).parents[2]) | set(_PUBLIC)
        self._lock = threading.Lock()
        self._count = 0
        self._placeholders: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._names: set[str] = set()
        """Texts to replace inside of others, in lower case."""

        for variable, text in os.environ.items():
            if _PRIVATE_VARIABLE.search(variable):
                self._placeholder(text, "text")

    def exchange(
        self,
        method: str,
        address: str,
        request: Any,
        status: int,
        response: bytes,
        headers: Mapping[str, str],
    ) -> None:
        """Write an exchange of HTTP. Bodies that are neither JSON nor XML become null."""
        with self._lock:
            self._count += 1
            row: dict[str, Any] = {
                "recording": self._path.stem,
                "commit": "",
                "date_or_sdk": f"cloudtrain/{__version__} {time.strftime('%Y-%m-%d')}",
                "n": self._count,
                "method": method,
                "path": self._text(address.removeprefix("https://management.azure.com")),
                "status": status,
                "request": self._sanitized(_parsed(request)),
                "response": self._sanitized(_parsed(response)),
                "headers": {},
            }
            for name, value in headers.items():
                if _HEADERS.fullmatch(name):
                    row["headers"][name] = self._text(value)

            self._write(row)

    def observation(self, kind: str, request: Any, value: Any) -> None:
        """Write a request to an operation and its answer."""
        with self._lock:
            row = {
                "source": self._path.stem,
                "date": time.strftime("%Y-%m-%d"),
                "kind": kind,
                "request": self._sanitized(request),
                "value": self._sanitized(value),
            }
            self._write(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        try:
            with open(self._path, "a", encoding="utf-8", opener=private_opener) as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            _LOG.warning("an exchange could not be recorded in %s: %s", self._path, error)

    def _sanitized(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with the same form. `key`: the member that it is the value of."""
        match value:
            case dict():
                return self._sanitized_members(value, key)
            case list() | tuple():
                return [self._sanitized(item, key) for item in value]
            case str():
                is_private = _PRIVATE_KEY.search(key) and not _SYSTEM_KEY.match(value)
                if is_private and value not in _PUBLIC:
                    return self._placeholder(value, "text")
                if key == "type" and _TYPE.fullmatch(value):
                    return value
                if value.startswith("<?xml"):
                    return _XML_TEXT.sub(lambda match: self._text(match[0]), value)
                return self._text(value)
            case datetime():
                return value.isoformat()
            case bool() | None:
                return value
            case int() | float():
                return 0 if str(value) in self._placeholders else value

        return None

    def _sanitized_members(self, members: Mapping[str, Any], key: str) -> dict[str, Any]:
        is_map = key.lower() in _MAPS
        sanitized = {}
        for name, item in members.items():
            new_name = self._key(name) if is_map else name
            sanitized[new_name] = self._sanitized(item, _member(key, name, is_map=is_map))

        return sanitized

    def _key(self, name: str) -> str:
        is_public = _SYSTEM_KEY.match(name) or name in _PUBLIC
        if is_public:
            return name

        return self._placeholder(name, "key")

    def _text(self, text: str) -> str:
        """Return a text with its public words alone."""
        text = _IDENTIFIERS.sub(
            lambda match: self._placeholder(match[0], str(match.lastgroup)),
            text,
        )
        if self._names:
            names = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
            pattern = rf"(?<![a-z0-9{{])(?:{names})(?![a-z0-9}}])"
            text = re.sub(
                pattern,
                lambda match: self._placeholders[match[0].lower()],
                text,
                flags=re.I,
            )

        return _TOKEN.sub(self._word, text)

    def _word(self, match: re.Match[str]) -> str:
        token = match[0]
        if match["time"] or (match["placeholder"] and token in self._placeholders.values()):
            return token
        if token in self._words or all(map(self._is_public, re.split("[-_.]", token))):
            return token
        return self._placeholder(token, "word")

    def _is_public(self, part: str) -> bool:
        """Return True for a short number, or if an SDK has each piece of a name in camel case."""
        if part in self._words or (part.isdecimal() and len(part) <= MAX_NUMBER_DIGITS):
            return True
        pieces = _PIECE.findall(part)
        if "".join(pieces) != part:
            return False

        return all(len(piece) > 2 and piece.lower() in self._words for piece in pieces)

    def _placeholder(self, text: str, kind: str) -> str:
        """Return the same placeholder for the same text, whatever its case."""
        name = text.lower()
        if name and name not in self._placeholders:
            self._counts[kind] += 1
            number = self._counts[kind]
            label = kind if number == 1 else f"{kind}{number}"
            self._placeholders[name] = f"{{{label}}}"
            if kind != "word" and len(name) > 2 and name not in self._words:
                self._names.add(name)

        return self._placeholders.get(name, "")


def _member(parent: str, name: str, *, is_map: bool) -> str:
    """Return the member whose rules apply to the item of an object."""
    if is_map:
        return "value"
    return "tags" if parent == name == "properties" else name


def _parsed(body: Any) -> Any:
    """Return JSON as a value, XML as text, anything else as None."""
    if not isinstance(body, (bytes, str)):
        return None

    if isinstance(body, str):
        text = body
    else:
        text = body.decode("utf-8-sig", "replace")

    try:
        return json.loads(text)
    except ValueError:
        if not text.startswith("<?xml"):
            return None
        return text


@cache
def _words(folder: Path) -> frozenset[str]:
    """Return the words of modules, or of a compressed model, as written and in lower case."""
    words: set[str] = set()
    for path in folder.rglob("*"):
        if path.suffix not in (".py", ".gz"):
            continue
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)

        text = content.decode()
        for pattern in (_TOKEN, _LETTERS):
            words |= {match[0] for match in pattern.finditer(text)}

    return frozenset(words | {word.lower() for word in words})


@cache
def recording(cloud: str, sdk: Path) -> Recording | None:
    """Return the recording of this process; None without CLOUDTRAIN_RECORD."""
    folder = os.environ.get("CLOUDTRAIN_RECORD")
    if not folder:
        return None

    return Recording(cloud, Path(folder), sdk)

"""Settings: flags > environment `CLOUDTRAIN_*` > `cloudtrain.toml` beside the job > the user's
config folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain.bounded_files import read_regular_text
from cloudtrain.declaration import Setting, SettingKind, declarations
from cloudtrain.errors import SpecError
from cloudtrain.issues import Issue, did_you_mean
from cloudtrain.units import parse_duration, parse_size

STRICT = "strict"
POLICIES = ("warn", STRICT)
"""What the setting `policy` takes."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected text, got {_shown(value)}")
    if "\0" in value:
        raise ValueError("holds a NUL character")
    return value


def _shown(value: Any) -> str:
    """A value as a message shows it; a number of thousands of digits, which Python does not write,
    in words.
    """
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:59] + "…"


def _path(value: Any) -> str:
    try:
        path = str(Path(_text(value)).expanduser())
        if (
            max(len(os.fsencode(part)) for part in path.split("/")) > 255
            or len(os.fsencode(path)) > 3000
        ):
            raise ValueError("is longer than any disk keeps")
        return path
    except RuntimeError:
        raise ValueError(f"there is no such user: {value}") from None


def _grace(value: Any) -> int:
    seconds = parse_duration(_text(value))
    if seconds < 5:
        raise ValueError(f"{seconds} s leaves no time for a checkpoint; at least 5 s")
    return seconds


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected a number of seconds, got {_shown(value)}")
    try:
        seconds = float(value)
    except (OverflowError, ValueError):
        seconds = float("inf")
    if not 0.05 <= seconds <= 3600:
        raise ValueError(f"expected 0.05 to 3600 seconds, got {_shown(value)}")
    return seconds


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (str, list)):
        raise ValueError(f"expected a list of texts, got {_shown(value)}")
    return tuple(
        _text(item)
        for item in ([v.strip() for v in value.split(",")] if isinstance(value, str) else value)
    )


def _arguments(value: Any) -> tuple[str, ...]:
    found = _texts(value)
    wrong = [text for text in found if not re.match(r"[A-Za-z_]\w*=", text)]
    if wrong:
        raise ValueError(f"expected NAME=VALUE, got {wrong[0]!r}")
    return found


def _boolean(value: Any) -> bool:
    if str(value).lower() not in ("1", "true", "yes", "0", "false", "no"):
        raise ValueError(f"expected true or false, got {value!r}")
    return str(value).lower() in ("1", "true", "yes")


def _policy(value: Any) -> str:
    if value not in POLICIES:
        raise ValueError(f"expected {' or '.join(POLICIES)}, got {_shown(value)}")
    return str(value)


_READERS: Mapping[SettingKind, Callable[[Any], Any]] = {
    "text": _text,
    "texts": _texts,
    "arguments": _arguments,
    "path": _path,
    "size": lambda value: parse_size(_text(value)),
    "grace": _grace,
    "seconds": _seconds,
    "boolean": _boolean,
    "policy": _policy,
}
DEFAULT_PROVIDER = "local"
GENERAL: Mapping[str, Setting] = {
    "provider": Setting("the provider when --provider is not given", default=DEFAULT_PROVIDER),
    "data_dir": Setting("where runs are kept", "path"),
    "python": Setting("the Python that local runs use; it must have torch", "path"),
    "source_warn": Setting("warn when the source folder is larger", "size", 100_000_000),
    "source_limit": Setting("refuse when the source folder is larger", "size", 1_000_000_000),
    "stop_grace": Setting("local runs: time from the stop signal to the kill", "grace", 30),
    "image.args": Setting(
        "arguments of our own image, such as BASE_IMAGE=debian:12-slim", "arguments"
    ),
    "image.build_args": Setting("arguments of a Dockerfile of your own", "arguments"),
    "confirm": Setting("on a terminal, ask before a job that costs money", "boolean", True),
    "policy": Setting(
        "what becomes of security findings: warn shows them in check, strict refuses the job",
        "policy",
        POLICIES[0],
    ),
    "prices": Setting(
        "your own table of prices: CSV, instance_type,usd_per_hour,region,as_of", "path"
    ),
}
"""Settings that belong to no provider, by key. Those of a provider are in its declaration."""

FILE_NAME = "cloudtrain.toml"
PREFIX = "CLOUDTRAIN_"


def known_settings(*, third_parties: bool = True) -> dict[str, Setting]:
    """Every setting by its dotted key, `aws.region`; `third_parties`: those of other packages'
    providers, too.
    """
    found = dict(GENERAL)
    for each in declarations(third_parties=third_parties):
        found |= {f"{each.name}.{key}": setting for key, setting in each.settings.items()}
    return found


def variable_of(key: str) -> str:
    """The environment variable of a setting: `CLOUDTRAIN_AWS_REGION` for `aws.region`."""
    return PREFIX + key.upper().replace(".", "_").replace("-", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings in force and where each comes from; a key that is not set is absent."""

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    """The job's, from which relative paths in the spec count."""

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def get(self, key: str) -> Any:
        """The value, or None when it is not set."""
        return self.values.get(key)

    def origin_beside_job(self, key: str) -> str:
        """The line in the file beside the job that sets a key, which may be another user's; empty
        when none does.
        """
        origin = self.origins.get(key, "")
        return origin if origin.startswith(f"{self.folder / FILE_NAME}:") else ""


def load_settings(
    folder: Path, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings for a job in `folder`. SpecError lists every mistake with its file or variable."""
    environ = os.environ if environ is None else environ
    issues: list[Issue] = []
    files = (_xdg(environ, "XDG_CONFIG_HOME", ".config") / "config.toml", folder / FILE_NAME)
    tables = [_file(file, issues) for file in files]
    chosen = [
        (flags or {}).get("provider"),
        *(table["provider"][0] for table in tables if "provider" in table),
    ]
    known = _settings_for({key for table in tables for key in table}, environ, chosen)
    values = {key: setting.default for key, setting in known.items() if setting.default is not None}
    values["data_dir"] = str(_xdg(environ, "XDG_DATA_HOME", ".local/share"))
    origins = dict.fromkeys(values, "default")
    variables = {
        key: (environ.get(variable_of(key)), f"environment {variable_of(key)}") for key in known
    }
    command_line = {
        key: (value, f"--{key.replace('_', '-')}") for key, value in (flags or {}).items()
    }
    for given in (*tables, {key: pair for key, pair in variables.items() if pair[0]}, command_line):
        for key, (value, origin) in given.items():
            if value is None:
                continue
            if key not in known:
                issues.append(
                    Issue((key,), f"unknown setting{did_you_mean(key, known)}", origin=origin)
                )
                continue
            try:
                values[key] = _READERS[known[key].kind](value)
                origins[key] = origin
            except ValueError as error:
                issues.append(Issue((key,), str(error), known[key].meaning, origin=origin))
    if issues:
        raise SpecError(issues)
    return Settings(values=values, origins=origins, folder=folder)


def _settings_for(
    keys: Set[str], environ: Mapping[str, str], chosen: Sequence[object]
) -> dict[str, Setting]:
    """The settings that these keys and variables may mean; other packages are searched only if they
    may be theirs.

    `chosen`: the providers that a flag or a file names, whose defaults count too; None where one
    names none.
    """
    ours = known_settings(third_parties=False)
    variables = {variable_of(key) for key in ours}
    names = [each.name for each in declarations(third_parties=False)]
    are_ours = keys <= ours.keys() and all(
        name in variables for name in environ if name.startswith(PREFIX)
    )
    are_ours &= all(
        name in names for name in (*chosen, environ.get(variable_of("provider"))) if name
    )
    return ours if are_ours else known_settings()


def _file(path: Path, issues: list[Issue]) -> dict[str, tuple[Any, str]]:
    try:
        text = read_regular_text(path)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        issues.append(Issue((), f"cannot be read: {why}", origin=str(path)))
        return {}
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+), column (\d+)", str(error))
        where = f"{path}:{place[1]}:{place[2]}" if place else str(path)
        issues.append(Issue((), f"is not TOML: {error}", origin=where))
        return {}
    except ValueError:  # names the number alone, without its line
        issues.append(Issue((), "holds a number of more digits than can be read", origin=str(path)))
        return {}
    except RecursionError:
        issues.append(Issue((), "is nested too deeply", origin=str(path)))
        return {}
    given = {}
    for key, value in table.items():
        for name, item in value.items() if isinstance(value, dict) else [("", value)]:
            dotted = f"{key}.{name}" if name else key
            if (
                dotted in ("data_dir", "prices")
                and isinstance(item, str)
                and not item.startswith("~")
            ):
                item = str(path.absolute().parent / item)  # a path in a file counts from that file
            line = _line(text, key if name else "", name or key)
            given[dotted] = (item, f"{path}:{line}" if line else str(path))
    return given


def _line(text: str, table: str, key: str) -> int:
    """The line on which a key of a table is given a value, or else the table is written in one
    line; 0 for neither.
    """
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\]]*?)\s*\]", line):
            current = _unquoted(header[1])
        elif (word := _unquoted(line.split("=")[0])) and "=" in line:
            full = f"{current}.{word}" if current else word
            if full in (f"{table}.{key}" if table else key, table):
                return number
    return 0


def _unquoted(name: str) -> str:
    return re.sub(r"""[\s"']""", "", name)


def _xdg(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    base = environ.get(variable) or str(Path(environ.get("HOME") or "~").expanduser() / below_home)
    return Path(base) / "cloudtrain"

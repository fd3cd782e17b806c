"""Settings: flags > `CLOUDTRAIN_*` > cloudtrain.toml beside the job > the user's config.

Above all of them are the limits of the organization, in a file that root writes. Below all of them,
and below job.yaml, are the tables `[defaults]`: fields of job.yaml.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain.declaration import Setting, SettingKind, declarations
from cloudtrain.errors import Issue, Keys, SpecError, did_you_mean, dotted
from cloudtrain.ownership import is_mine, why_not_private, why_not_roots
from cloudtrain.units import parse_duration, parse_money, parse_size
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.secret_values import masker, secrets_in

STRICT = "strict"
POLICIES = ("warn", STRICT)
"""Values of the setting `policy`."""

DEFAULT_PROVIDER = "local"
GENERAL: Mapping[str, Setting] = {
    "provider": Setting("the provider when --provider is not given", default=DEFAULT_PROVIDER),
    "data_dir": Setting("where runs are kept", "path", beside_job="never"),
    "python": Setting(
        "the Python that local runs use; it must have torch", "path", beside_job="never"
    ),
    "source_limit": Setting(
        "refuse when the source folder is larger", "size", 1_000_000_000, beside_job="harmless"
    ),
    "stop_grace": Setting(
        "local runs: time from the stop signal to the kill", "grace", 30, beside_job="harmless"
    ),
    "image.args": Setting(
        "arguments of our own image, such as BASE_IMAGE=debian:12-slim",
        "arguments",
        beside_job="harmless",
    ),
    "image.build_args": Setting(
        "arguments of your own Dockerfile", "arguments", beside_job="harmless"
    ),
    "image.context_root": Setting(
        "the folder that image.context may not leave; default: the job's folder",
        "path",
        beside_job="never",
    ),
    "confirm": Setting(
        "on a terminal, ask before a job that costs money", "boolean", True, beside_job="never"
    ),
    "policy": Setting(
        "security findings: warn shows them in check, strict refuses the job",
        "policy",
        POLICIES[0],
        beside_job="harmless",
    ),
    "notify.command": Setting(
        "a command for each ended run: its last argument is a sentence, its input JSON",
        beside_job="never",
    ),
    "notify.webhook": Setting(
        "env:NAME of an address that gets JSON for each ended run", "reference", beside_job="never"
    ),
    "notify.slack": Setting(
        "env:NAME of an address that gets Slack's form", "reference", beside_job="never"
    ),
    "mlflow.uri": Setting(
        "the MLflow server that gets each run: http://HOST:5000, arn:aws:sagemaker:…, azureml://…",
        beside_job="never",
    ),
    "mlflow.experiment": Setting(
        "the experiment of these runs in MLflow", default="cloudtrain", beside_job="never"
    ),
    "prices": Setting(
        "your own price table: CSV, instance_type,usd_per_hour,region,as_of",
        "path",
        beside_job="never",
    ),
}
"""Settings without a provider, by key. Provider settings are in declarations."""

ORGANIZATION: Mapping[str, Setting] = {
    "organization.policy": Setting("`strict` for everybody, as the setting `policy`", "policy"),
    "organization.max_cost": Setting(
        "the most that one job may cost, such as 500 USD; an unknown price is refused", "money"
    ),
    "organization.max_runtime": Setting("the longest time of one job, such as 24 h", "duration"),
    "organization.providers": Setting("the providers that jobs may run on", "texts"),
    "organization.regions": Setting("regions of rented machines, such as eu-*", "texts"),
    "organization.machines": Setting("types of rented machines, such as ml.g5.*", "texts"),
    "organization.tags": Setting("tags that each job on rented machines bears", "texts"),
}
"""Limits of the organization, by key."""

ORGANIZATION_FILE = Path("/etc/cloudtrain/config.toml")
DEFAULTS = "defaults"
"""Table of a settings file with fields of job.yaml."""

_OWN = ("runs", "sources", "sweeps", "packages", "cache", "rehearsals.jsonl", "confirmed.jsonl")
"""Names in the data folder that hold what is run, or tell what is run."""

_not_taken: set[str] = set()
"""Lines of settings files that were warned of."""

FILE_NAME = "cloudtrain.toml"
PREFIX = "CLOUDTRAIN_"


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected text, got {_shown(value)}")
    if "\0" in value:
        raise ValueError("contains a NUL character")
    return value


def _shown(value: Any) -> str:
    """Return a value for a message, shortened. Python refuses to print very long numbers."""
    try:
        text = masker.mask_text(repr(value))
    except ValueError:
        return "a number with thousands of digits"

    if len(text) <= 60:
        return text

    return text[:59] + "…"


def _path(value: Any) -> str:
    try:
        path = str(Path(_text(value)).expanduser())
        longest_name = max(len(os.fsencode(part)) for part in path.split("/"))
        if longest_name > 255 or len(os.fsencode(path)) > 3000:
            raise ValueError("the path is too long for any disk")

        return path
    except RuntimeError:
        raise ValueError(f"unknown user: {value}") from None


def _grace(value: Any) -> int:
    seconds = parse_duration(_text(value))
    if seconds < 5:
        raise ValueError(f"{seconds} s is too short for a checkpoint; the minimum is 5 s")
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
    if isinstance(value, str):
        items = [item.strip() for item in value.split(",")]
    else:
        items = value

    return tuple(_text(item) for item in items)


def _arguments(value: Any) -> tuple[str, ...]:
    arguments = _texts(value)
    wrong = [text for text in arguments if not re.match(r"[A-Za-z_]\w*=", text)]
    if wrong:
        raise ValueError(f"expected NAME=VALUE, got {wrong[0]!r}")

    return arguments


def _boolean(value: Any) -> bool:
    if str(value).lower() not in ("1", "true", "yes", "0", "false", "no"):
        raise ValueError(f"expected true or false, got {value!r}")
    return str(value).lower() in ("1", "true", "yes")


def _reference(value: Any) -> str:
    """Read `env:NAME`, and mask the value of the variable from now on."""
    match = re.fullmatch(r"env:([A-Za-z_]\w*)", _text(value))
    if match is None:
        raise ValueError("expected env:NAME, the variable that holds the address, which is secret")

    masker.add([os.environ.get(match[1], "")])
    return match[0]


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
    "duration": lambda value: parse_duration(_text(value)),
    "money": lambda value: parse_money(_text(value)),
    "seconds": _seconds,
    "boolean": _boolean,
    "policy": _policy,
    "reference": _reference,
}


def known_settings(*, third_parties: bool = True) -> dict[str, Setting]:
    """Return all settings by dotted key, `aws.region`.

    `third_parties`: include providers of other packages.
    """
    settings = dict(GENERAL)
    for declaration in declarations(third_parties=third_parties):
        for key, setting in declaration.settings.items():
            settings[f"{declaration.name}.{key}"] = setting

    return settings


def variable_of(key: str) -> str:
    """Return the environment variable of a setting: `CLOUDTRAIN_AWS_REGION`."""
    return PREFIX + key.upper().replace(".", "_").replace("-", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings in force and their origins. A missing key is not set."""

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    """Folder of the job, the base of relative paths in the spec."""
    redirects: frozenset[str] = frozenset()
    """Keys that the file beside the job sets, and that the user confirms once per folder."""

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def get(self, key: str) -> Any:
        """Return the value, or None if it is not set."""
        return self.values.get(key)


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultFields:
    """The table `[defaults]` of a settings file: fields of job.yaml."""

    values: dict[str, Any]
    origins: dict[Keys, str]
    """Place of each field: `cloudtrain.toml:7`."""


def default_fields(folder: Path, environ: Mapping[str, str] | None = None) -> list[DefaultFields]:
    """Return the default fields of a job in `folder`, the nearest first.

    A file that cannot be read has none: `load_settings` reports it.
    """
    defaults = []
    for file in reversed(_files(folder, os.environ if environ is None else environ)):
        table, origin = _file(file, []).get(DEFAULTS, (None, ""))
        if not isinstance(table, DefaultFields) or not table.values:
            continue

        if file.parent != folder or is_mine(file):
            defaults.append(table)
        else:
            _warn_once(
                origin,
                "[defaults] is not taken from a file of another user: write it into job.yaml",
            )

    return defaults


def organization() -> Settings:
    """Return the limits of the organization. Raise SpecError for a file that is not root's."""
    issues: list[Issue] = []
    if reason := why_not_roots(ORGANIZATION_FILE):
        message = f"{reason}, but it counts for everybody"
        hint = f"root must own it, and nobody else may write it: chmod go-w {ORGANIZATION_FILE}"
        raise SpecError([Issue((), message, hint, origin=str(ORGANIZATION_FILE))])

    values = {}
    origins = {}
    for key, (value, origin) in _file(ORGANIZATION_FILE, issues).items():
        values[key] = _read_value(ORGANIZATION, key, value, origin, issues)
        origins[key] = origin

    if issues:
        raise SpecError(issues)

    return Settings(values=values, origins=origins)


def load_settings(
    folder: Path, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Read the settings for a job in `folder`. Raise SpecError with all mistakes.

    What only the user may set is not taken from the file beside the job, with a warning.
    """
    environ = os.environ if environ is None else environ
    issues: list[Issue] = []
    limits = organization()
    tables = [_file(file, issues) for file in _files(folder, environ)]
    fields = []
    for table in tables:
        is_table = isinstance(table.get(DEFAULTS, (None,))[0], DefaultFields)
        fields.append(table.pop(DEFAULTS)[0].values if is_table else {})

    flags = flags or {}
    keys = {key for table in tables for key in table}
    chosen = [flags.get("provider")]
    chosen += [table["provider"][0] for table in tables if "provider" in table]
    settings = _settings_for(keys, environ, chosen)

    values = {}
    for key, setting in settings.items():
        if setting.default is not None:
            values[key] = setting.default

    values["data_dir"] = str(_xdg(environ, "XDG_DATA_HOME", ".local/share"))
    origins = dict.fromkeys(values, "default")

    variables = {}
    for key in settings:
        name = variable_of(key)
        if environ.get(name):
            variables[key] = (environ[name], f"environment {name}")

    command_line = {key: (value, f"--{key.replace('_', '-')}") for key, value in flags.items()}

    own_file, beside_job = tables
    own = own_file.keys() | variables.keys() | {key for key in flags if flags[key] is not None}

    for layer in (own_file, beside_job, variables, command_line):
        for key, (value, origin) in layer.items():
            if value is None:
                continue

            read = _read_value(settings, key, value, origin, issues)
            if read is None:
                continue

            if layer is beside_job and not _is_taken(settings[key], read):
                if key not in own:
                    _say_not_taken(key, value, origin)
                continue

            values[key] = read
            origins[key] = origin

    if limits.get("organization.policy") == STRICT:
        values["policy"] = STRICT
        origins["policy"] = limits.origins["organization.policy"]

    if not issues:
        issues += _data_dir_issues(Path(values["data_dir"]), origins["data_dir"])
    if issues:
        raise SpecError(issues)

    redirects = set()
    for key, (_, origin) in beside_job.items():
        if settings[key].beside_job == "confirmed" and origins[key] == origin:
            redirects.add(key)

    if fields[1] and is_mine(folder / FILE_NAME):
        values[DEFAULTS] = json.dumps(fields[1], ensure_ascii=False)
        redirects.add(DEFAULTS)

    return Settings(values=values, origins=origins, folder=folder, redirects=frozenset(redirects))


def _read_value(
    settings: Mapping[str, Setting], key: str, value: Any, origin: str, issues: list[Issue]
) -> Any:
    """Return the value of a setting, or None with an issue."""
    if key not in settings:
        hint = None
        if key in ORGANIZATION:
            hint = f"limits of the organization are in {ORGANIZATION_FILE} alone, which root writes"

        message = f"unknown setting{did_you_mean(key, settings)}"
        issues.append(Issue((key,), message, hint, origin=origin))
        return None

    try:
        return _READERS[settings[key].kind](value)
    except ValueError as error:
        issues.append(Issue((key,), str(error), settings[key].meaning, origin=origin))
        return None


def _is_taken(setting: Setting, value: Any) -> bool:
    """Return whether the file beside a job may give a setting this value."""
    is_looser = setting.kind == "policy" and value != STRICT
    return setting.beside_job != "never" and not is_looser


def _say_not_taken(key: str, value: Any, origin: str) -> None:
    """Warn once of a setting that only the user's own places may have."""
    if key == "policy":
        return

    _warn_once(
        origin,
        f"{key} is not taken from the folder of a job, which may be another user's: to use it, set"
        f" {variable_of(key)}={_shown(value)}, or write it into ~/.config/cloudtrain/config.toml",
    )


def _warn_once(origin: str, message: str) -> None:
    """Warn of a line that is not taken."""
    if origin in _not_taken:
        return

    import logging  # needed only for this warning

    _not_taken.add(origin)
    place = origin if origin.isprintable() else ascii(origin)
    logging.getLogger(__name__).warning("%s: %s", place, message)


def _data_dir_issues(data_dir: Path, origin: str) -> Iterator[Issue]:
    """Yield a mistake if others may change what is kept in the data folder, and run from there."""
    for place in (data_dir, *(data_dir / name for name in _OWN)):
        if reason := why_not_private(place):
            hint = "set CLOUDTRAIN_DATA_DIR to a folder of your own"
            if "written" in reason:
                hint += f"; or, if nobody has changed anything there, chmod -R go-w '{place}'"

            message = f"{place} {reason}: others may change what is run from there"
            yield Issue(("data_dir",), message, hint, origin=origin)
            return


def data_folder(data_dir: str | None) -> Path:
    """Return the folder of runs of a command that belongs to no job. `data_dir`: --data-dir."""
    return Path(load_settings(Path.cwd(), {"data_dir": data_dir})["data_dir"]).absolute()


def _settings_for(
    keys: Set[str], environ: Mapping[str, str], chosen: Sequence[object]
) -> dict[str, Setting]:
    """Return the settings that may be meant. Search other packages only if needed.

    `keys`: keys in settings files. `chosen`: providers that a flag or a file selects; None for
    none.
    """
    built_in = known_settings(third_parties=False)
    variables = {variable_of(key) for key in built_in}
    names = [declaration.name for declaration in declarations(third_parties=False)]

    if not keys <= built_in.keys():
        return known_settings()
    if any(name.startswith(PREFIX) and name not in variables for name in environ):
        return known_settings()
    if any(name and name not in names for name in (*chosen, environ.get(variable_of("provider")))):
        return known_settings()

    return built_in


def _files(folder: Path, environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the user's own file, and that beside a job."""
    own = _xdg(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"
    return own, folder / FILE_NAME


def _file(path: Path, issues: list[Issue]) -> dict[str, tuple[Any, str]]:
    """Return the entries of a settings file with their places. Its fields are `DefaultFields`."""
    try:
        text = read_regular_text(path)
    except (FileNotFoundError, NotADirectoryError):  # the home of a service user is /dev/null
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
        if place:
            where = f"{path}:{place[1]}:{place[2]}"
        else:
            where = str(path)

        issues.append(Issue((), f"is not TOML: {error}", origin=where))

        return {}
    except ValueError:  # Python reports the number without its line
        issues.append(Issue((), "contains a number with too many digits", origin=str(path)))
        return {}
    except RecursionError:
        issues.append(Issue((), "is nested too deeply", origin=str(path)))
        return {}

    masker.add(secrets_in(table))
    entries: dict[str, tuple[Any, str]] = {}
    for key, value in table.items():
        members = {"": value}
        if key == DEFAULTS and isinstance(value, dict):
            fields = json.loads(json.dumps(value, default=str))  # dates, as text
            origins = dict(_field_origins(path, text, fields, (), str(path)))
            entries[key] = (DefaultFields(values=fields, origins=origins), str(path))
            continue

        if isinstance(value, dict):
            members = value

        for name, item in members.items():
            dotted = f"{key}.{name}" if name else key
            is_path = dotted in ("data_dir", "prices") and isinstance(item, str)
            if is_path and not item.startswith("~"):
                item = str(path.absolute().parent / item)  # relative to the settings file

            origin = str(path)
            if line := _line(text, dotted):
                origin += f":{line}"

            entries[dotted] = (item, origin)

    return entries


def _field_origins(
    path: Path, text: str, fields: Mapping[str, Any], keys: Keys, place: str
) -> Iterator[tuple[Keys, str]]:
    """Yield the place of each default field. `place`: of the table around it."""
    for key, value in fields.items():
        at = (*keys, key)
        line = _line(text, f"{DEFAULTS}.{dotted(at)}")
        origin = f"{path}:{line}" if line else place
        yield at, origin
        if isinstance(value, dict):
            yield from _field_origins(path, text, value, at, origin)


def _line(text: str, dotted: str) -> int:
    """Return the line of a key, or of its table if it is inline; 0 for neither."""
    table = dotted.partition(".")[0]
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\]]*?)\s*\]", line):
            current = _unquoted(header[1])
        elif (word := _unquoted(line.split("=")[0])) and "=" in line:
            full = f"{current}.{word}" if current else word
            if full in (dotted, table):
                return number

    return 0


def _unquoted(name: str) -> str:
    return re.sub(r"""[\s"']""", "", name)


def _xdg(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    base = environ.get(variable) or str(Path(environ.get("HOME") or "~").expanduser() / below_home)
    return Path(base) / "cloudtrain"

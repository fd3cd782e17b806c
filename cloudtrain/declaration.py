"""Facts about a provider that are known before it is loaded.

Reading a spec needs only these, so a declaration imports next to nothing. Ours are `DECLARATION` in
`cloudtrain/providers/NAME/declaration.py`. A third party's is the attribute `declaration` of the
class behind its entry point in the group `cloudtrain.providers`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cloudtrain.errors import UsageError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "cloudtrain.providers"
"""Entry point group for third-party providers."""


SettingKind = Literal[
    "text",
    "texts",
    "arguments",
    "path",
    "size",
    "grace",
    "duration",
    "money",
    "seconds",
    "boolean",
    "policy",
    "reference",
]
"""Format of a setting.

`size`: bytes, such as 8 GiB. `grace`: a duration of at least 5 s. `seconds`: 0.05 to 3600. `texts`:
several, separated by commas in the environment. `arguments`: NAME=VALUE. `policy`: warn or strict. `reference`:
env:NAME, a variable with the value.
"""


FolderRule = Literal["harmless", "confirmed", "never"]
"""Whether the folder of a job, which may be somebody else's, can set a key.

`harmless`: it changes neither what is run here nor where something is sent. `confirmed`: the user is
asked once per folder. `never`: only the user's own file, environment and flags set it.
"""


class Setting(NamedTuple):
    """A setting: a key of cloudtrain.toml and a variable `CLOUDTRAIN_*`."""

    meaning: str
    kind: SettingKind = "text"
    default: Any = None
    """Default after reading (bytes, seconds); None for no default."""
    beside_job: FolderRule = "confirmed"
    """Whether the cloudtrain.toml beside a job may set it."""


class PackageLimit(NamedTuple):
    """Packages that a provider's service does not take from a version on."""

    names: tuple[str, ...]
    major: str
    """First digit of the versions that it refuses."""
    unless: str
    """Variable of the job that names another service."""
    reason: str
    instead: str
    """Requirements to use."""


class UploadTerms(NamedTuple):
    """Terms of a cloud's storage for inputs of this machine."""

    usd: float
    """List price of a GB (10^9 bytes) for a month, in US dollars."""
    price: str
    """What that price is of, and its date."""
    tool: str
    """The cloud's own command that copies a large folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """A provider's names and abilities, as data."""

    name: str
    """Value of `--provider` and key of the section in job.yaml."""
    label: str
    """Name for people: `SageMaker`."""
    is_remote: bool = True
    """True if reading the state of a run needs a network."""
    contract: str = "plain"
    """Environment of its containers: `sagemaker`, or `plain` for our own."""
    input_schemes: tuple[str, ...]
    """URI schemes of readable inputs: `s3`, `https`; "" for a local folder."""
    input_example: str
    """Example of an input for this provider."""
    image_schemes: tuple[str, ...] = ()
    """Prefixes of image names that only this provider knows: `dlc` in `dlc:pytorch-2.8`."""
    secret_stores: Mapping[str, str] = field(default_factory=dict)
    """Secret stores, each with the form of its names: `{"keyvault": "VAULT/NAME"}`."""
    no_local_secrets: str = ""
    """Reason why a local rehearsal cannot read its secrets; empty if it can."""
    fallback_providers: tuple[str, ...] = ()
    """Providers whose inputs and secrets this one can use too."""
    uploads: UploadTerms | None = None
    """Terms on which inputs of this machine are uploaded; None: they are read in place, or not."""
    publishes: bool = False
    """True if a running job can read files that the client publishes for it."""
    runs_on_lent_machines: bool = False
    """True if a job can run on the share of a machine that a scheduler lends to the submitter.

    Such a job sees only the GPUs of that process and ends with it.
    """
    has_keyboard: bool = False
    """True if a program can ask the terminal that follows its run: see `RunPaths.keyboard`."""
    package_limits: tuple[PackageLimit, ...] = ()
    """Packages of which its service takes older versions only."""
    request_name: str = ""
    """Name of the cloud's request: `CreateTrainingJob`; empty if it is unnamed."""
    profile_variables: tuple[str, ...] = ()
    """Environment variables that select a profile; `--profile` sets them."""
    region_setting: str = ""
    """Setting with the region, which decides prices: `region`; empty without rented machines."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """Settings by key: `region` for `[aws] region` and `CLOUDTRAIN_AWS_REGION`."""
    section: Callable[[], type[Any]] | None = None
    """Importer of the model of its section in job.yaml; None without a section."""

    def location_for(self, locations: Mapping[str, str]) -> str | None:
        """Return this provider's location of an input or a secret, or None. "*" means all."""
        for name in (self.name, *self.fallback_providers, "*"):
            if name in locations:
                return locations[name]
        return None


def provider_names() -> tuple[str, ...]:
    """Return all provider names: ours by folder, third parties' by entry point."""
    return tuple(sorted(set(_our_names()) | set(third_party())))


def is_provider(name: str) -> bool:
    """Return whether a provider exists. Search other packages only if it is not ours."""
    return name in _our_names() or name in third_party()


def meant_provider(name: str) -> str:
    """Return ` (did you mean 'aws'?)` for a misspelt provider, or the name of its service."""
    names = {provider: provider for provider in provider_names()}
    for declaration in declarations(third_parties=False):
        if declaration.contract != "plain":
            names.setdefault(declaration.contract, declaration.name)

    matches = nearest(name, names)
    return f" (did you mean {names[matches[0]]!r}?)" if matches else ""


def declaration_of(name: str) -> Declaration:
    """Return a provider's declaration.

    Raise UsageError for an unknown provider or an invalid third-party declaration.
    """
    if name in _our_names():
        declaration: Declaration = import_module(
            f"cloudtrain.providers.{name}.declaration"
        ).DECLARATION
        return declaration
    declared = getattr(load_third_party(name), "declaration", None)
    if not isinstance(declared, Declaration):
        message = f"the provider {name!r} lacks a declaration: {third_party()[name].value}"
        raise UsageError(
            message, hint="its class needs the attribute `declaration`, a cloudtrain Declaration"
        )
    return declared


def declarations(*, third_parties: bool = True) -> Iterator[Declaration]:
    """Yield the declarations of all providers, ours first.

    Other packages are searched only if the caller iterates that far. Skip a third-party provider
    that cannot be loaded, with a warning.
    """
    for name in _our_names():
        yield declaration_of(name)

    if not third_parties:
        return

    for name in sorted(set(third_party()) - set(_our_names())):
        try:
            yield declaration_of(name)
        except UsageError as error:
            import logging  # needed only for this warning

            logging.getLogger(__name__).warning("%s", error.message)


def is_local(location: str) -> bool:
    """Return whether a location is a path of this machine, not a URI or the name of an asset."""
    scheme, colon, _ = location.partition(":")
    if not colon or "/" in scheme:
        return True

    return "://" not in location and not any(
        scheme.lower() in declaration.input_schemes
        for declaration in declarations(third_parties=False)
    )


def rehearsed_by(provider: str, contract: str) -> Declaration | None:
    """Return the provider whose request a run executes, or None if it is its own."""
    if contract in ("", "plain"):
        return None
    for declaration in declarations():
        if declaration.contract == contract:
            return declaration if declaration.name != provider else None
    return None


def load_third_party(name: str) -> Any:
    """Return the class of a third-party provider.

    Raise UsageError if it is unknown or cannot be imported.
    """
    if name not in third_party():
        raise UsageError(
            f"unknown provider {name!r}{meant_provider(name)}",
            hint=f"one of: {', '.join(provider_names())}",
        )
    point = third_party()[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else point.value
        raise UsageError(
            f"the provider {name!r} of {package} cannot be imported: {error}"
        ) from error


def third_party() -> Mapping[str, EntryPoint]:
    """Return third-party entry points by provider name."""
    return _entry_points(tuple(sys.path))


@cache
def _our_names() -> tuple[str, ...]:
    files = Path(__file__).parent.glob("providers/*/declaration.py")
    return tuple(sorted(file.parent.name for file in files))


@cache
def _entry_points(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    if not any(map(_names_our_group, path)):
        return {}
    from importlib.metadata import entry_points  # slow to import

    return {point.name: point for point in entry_points(group=GROUP)}


def _names_our_group(folder: str) -> bool:
    """Return whether a package installed in a `sys.path` folder declares a provider."""
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208  (faster)
    except OSError:
        return False

    for name in names:
        if not name.endswith((".dist-info", ".egg-info")):
            continue
        path = f"{folder or '.'}/{name}/entry_points.txt"
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            if GROUP in file.read():
                return True
    return False

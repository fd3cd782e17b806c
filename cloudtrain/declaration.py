"""What a provider declares before it is loaded: its section in job.yaml, URI schemes, secret stores
and names.

Reading a spec takes no more than this, so a declaration imports next to nothing. Ours are
`DECLARATION` in `cloudtrain/providers/NAME/declaration.py`; that of a third party is the attribute
`declaration` of the class that its entry point in the group `cloudtrain.providers` names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from cloudtrain.spec.section import Section

GROUP = "cloudtrain.providers"
"""The entry point group in which third parties name their providers."""


SettingKind = Literal[
    "text", "texts", "arguments", "path", "size", "grace", "seconds", "boolean", "policy"
]
"""How a setting is written. `size`: bytes, such as 8 GiB; `grace`: a duration of at least 5 s;
`seconds`: 0.05 to 3600;
`texts`: several, separated by commas in the environment; `arguments`: texts of the form NAME=VALUE;
`policy`: warn or strict.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: a key of cloudtrain.toml, and a variable `CLOUDTRAIN_*`."""

    meaning: str
    kind: SettingKind = "text"
    default: Any = None
    """As it is read: bytes, seconds; None for no default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """A provider's names for things, as data."""

    name: str
    """What `--provider` takes, and the key of its section in job.yaml."""
    label: str
    """What people call it: `SageMaker`."""
    is_remote: bool = True
    """Whether asking about a run takes a network."""
    contract: str = "plain"
    """What its containers find: `sagemaker`; `plain` for our own."""
    input_schemes: tuple[str, ...]
    """URI schemes of inputs that it can read: `s3`, `https`; empty text for a folder on this
    machine.
    """
    input_example: str
    """An input as one writes it for this provider; its scheme, if it has one, is the provider's
    own.
    """
    image_schemes: tuple[str, ...] = ()
    """What names of images begin with that mean something here alone: `dlc` of `dlc:pytorch-2.8`.
    """
    secret_stores: Mapping[str, str] = field(default_factory=dict)
    """Where it finds secrets, each store with the form of a name in it: `{"keyvault":
    "VAULT/NAME"}`.
    """
    no_local_secrets: str = ""
    """Why its secrets cannot be looked up in a rehearsal on this machine; empty where they can be.
    """
    fallback_providers: tuple[str, ...] = ()
    """Providers whose inputs and secrets are this one's too: what `local` finds, a container here
    finds.
    """
    publishes: bool = False
    """Whether files can be left for a job while it runs, which it reads by itself: trials of a
    sweep end themselves.
    """
    runs_on_lent_machines: bool = False
    """Whether a job can run on a part of a machine that a scheduler lends to the process that
    submits it: it sees that process's GPUs alone, and ends with it.
    """
    request_name: str = ""
    """What its cloud calls a request: `CreateTrainingJob`; empty where there is no such word."""
    profile_variables: tuple[str, ...] = ()
    """The variables by which its own tools choose a profile, which `--profile` sets."""
    region_setting: str = ""
    """The setting that says where its machines are, and so what they cost: `region`; empty where
    none is rented.
    """
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """Its settings, by their key within its own table: `region` for `[aws] region` and
    `CLOUDTRAIN_AWS_REGION`.
    """
    section: Callable[[], type[Section]] | None = None
    """Imports the model of its section in job.yaml; None where it has none."""

    def location_for(self, locations: Mapping[str, str]) -> str | None:
        """Where this provider finds an input or a secret, of the locations by provider ("*": all);
        None for none.
        """
        return next(
            (
                locations[name]
                for name in (self.name, *self.fallback_providers, "*")
                if name in locations
            ),
            None,
        )


def provider_names() -> tuple[str, ...]:
    """The known providers: ours by their folders, others by their entry points."""
    return tuple(sorted({*_our_names(), *third_party()}))


def is_provider(name: str) -> bool:
    """Whether there is a provider of that name. Others' packages are searched only where it is none
    of ours.
    """
    return name in _our_names() or name in third_party()


def declaration_of(name: str) -> Declaration:
    """A provider's declaration. UsageError names the known providers, or what is wrong with a third
    party's.
    """
    if name in _our_names():
        found: Declaration = import_module(f"cloudtrain.providers.{name}.declaration").DECLARATION
        return found
    declared = getattr(load_third_party(name), "declaration", None)
    if not isinstance(declared, Declaration):
        message = f"the provider {name!r} has no declaration: {third_party()[name].value}"
        raise UsageError(
            message, hint="its class needs the attribute `declaration`, a cloudtrain Declaration"
        )
    return declared


def declarations(*, third_parties: bool = True) -> Iterator[Declaration]:
    """Those of all providers, ours first: others' packages are searched only if the caller reads
    on.

    A third party's that cannot be loaded is skipped with a warning: the command may not be about
    it.
    """
    for name in _our_names():
        yield declaration_of(name)
    for name in sorted({*third_party()} - {*_our_names()}) if third_parties else ():
        try:
            yield declaration_of(name)
        except UsageError as error:
            import logging  # of no use where nothing is broken

            logging.getLogger(__name__).warning("%s", error.message)


def rehearsed_by(provider: str, contract: str) -> Declaration | None:
    """The provider whose request a run of `provider` executes, by the run's contract; None where it
    is its own.
    """
    if contract in ("", "plain"):
        return None
    owner = next((each for each in declarations() if each.contract == contract), None)
    return owner if owner and owner.name != provider else None


def load_third_party(name: str) -> Any:
    """The class of a third party's provider. UsageError where there is none, or it cannot be
    imported.
    """
    if name not in third_party():
        raise UsageError(
            f"there is no provider {name!r} here", hint=f"one of: {', '.join(provider_names())}"
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
    """Entry points of the group, by the provider's name; one of a name of ours is never taken."""
    return _entry_points(tuple(sys.path))


@cache
def _our_names() -> tuple[str, ...]:
    return tuple(
        sorted(
            path.parent.name for path in Path(__file__).parent.glob("providers/*/declaration.py")
        )
    )


@cache
def _entry_points(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    if not any(map(_names_our_group, path)):
        return {}
    from importlib.metadata import entry_points  # takes longer to import than all of a spec to read

    return {point.name: point for point in entry_points(group=GROUP)}


def _names_our_group(folder: str) -> bool:
    """Whether any package that is installed in a folder of `sys.path` names a provider."""
    try:
        with os.scandir(folder or ".") as entries:
            names = [
                entry.name for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))
            ]
    except OSError:
        return False
    for name in names:
        try:
            with open(
                f"{folder or '.'}/{name}/entry_points.txt", encoding="utf-8", errors="replace"
            ) as file:
                if GROUP in file.read():
                    return True
        except OSError:
            continue
    return False

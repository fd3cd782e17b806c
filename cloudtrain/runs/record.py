"""Typed readers of a submit's documents. An incomplete document is reported as damaged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from cloudtrain.errors import StorageError
from cloudtrain.runs.folder import PLAN, REQUEST, RunFolder
from cloudtrain_wire.secret_values import masker, secrets_in

if TYPE_CHECKING:
    from cloudtrain.runs.provider_config import ProviderConfig

    Config = TypeVar("Config", bound=ProviderConfig)

T = TypeVar("T")

_SOURCE: dict[str, type] = {
    "root": str,
    "digest": str,
    "files": int,
    "bytes": int,
    "warning": str,
}
"""Fields of a source that every version has written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRecord:
    """Part of a stored plan that a rerun needs."""

    provider: str
    """Name of the provider that runs it. May raise StorageError."""
    target: str
    """Provider of the request."""
    is_rehearsal: bool
    name: str
    overrides: tuple[str, ...]
    checkpoints_uri: str
    folder: str
    git_commit: str
    git_dirty: bool | None
    source: Mapping[str, Any]
    """Fields of the source's summary."""


class RunRecord:
    """Documents of a run. Damaged ones raise StorageError. The plan is read once."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    @cached_property
    def _plan(self) -> dict[str, Any]:
        plan = self._folder.document(PLAN)
        masker.add(secrets_in([plan.get("spec"), plan.get("overrides")]))
        return plan

    @property
    def is_of_another_machine(self) -> bool:
        """True if the run was imported from a cloud's list, without source and spec.

        False if its plan cannot be read.
        """
        with suppress(StorageError):
            return "adopted" in self._plan

        return False

    @property
    def provider(self) -> str:
        """Name of the provider that runs it. May raise StorageError."""
        return self._read("provider", str)

    @property
    def name(self) -> str:
        """Name of the job. May raise StorageError."""
        return self._read("spec.name", str)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Spec without defaults; only the name for a run of another machine."""
        return self._part("spec")

    @property
    def quote(self) -> Mapping[str, Any]:
        """CostEstimate of the plan as JSON; empty if the run is free."""
        return self._part("target", "quote")

    @property
    def owner(self) -> str:
        """Who planned it on this machine; empty if unknown. May raise StorageError."""
        return str(self._part("facts").get("owner") or "")

    @property
    def machines(self) -> tuple[str, ...]:
        """Types of its machines, by preference; empty if unknown. May raise StorageError."""
        return tuple(map(str, self._part("target", "facts").get("instances") or ()))

    @property
    def price(self) -> Mapping[str, Any]:
        """List price of a machine as JSON; empty if unknown. May raise StorageError."""
        price = part_of(self.quote, "price")
        prices = self._part("target", "facts", "prices")
        if not price and len(self.machines) == 1 and self.machines[0] in prices:
            return {"usd": prices[self.machines[0]]}

        return price

    @property
    def account(self) -> dict[str, str]:
        """Settings of the account of the job."""
        facts = self._part("target", "facts")
        names = ("region", "subscription", "resource_group", "workspace")
        return {f"{self.provider}.{name}": str(facts[name]) for name in names if name in facts}

    @property
    def is_spot(self) -> bool | None:
        """True if it runs on spot machines; None if unknown. May raise StorageError."""
        if self.is_of_another_machine:
            spot: bool | None = self._plan.get("spot")
            return spot

        return bool(self._part("spec", "resources").get("spot"))

    @property
    def trial(self) -> Mapping[str, Any]:
        """TrialRules of the plan as JSON; empty if the run is not a trial."""
        return self._part("facts", "trial")

    @property
    def is_rehearsal(self) -> bool:
        """True if this machine executes the request of a cloud."""
        return self._plan.get("host") is not None

    @property
    def version(self) -> str:
        """Version of cloudtrain that planned it."""
        return str(self._plan.get("version") or "")

    @property
    def git_commit(self) -> str:
        """Git commit of its folder; empty if unknown."""
        return str(self._part("facts").get("git_commit") or "")

    @property
    def spec_digest(self) -> str:
        """Digest of its spec; empty if unknown."""
        return str(self._plan.get("spec_digest") or "")

    @property
    def resumed_from(self) -> str:
        """Run whose checkpoints it continues from; empty for none."""
        return str(self._part("facts").get("resume_run") or "")

    @property
    def rerun_of(self) -> str:
        """Run whose source and spec it repeats; empty for none."""
        return str(self._part("facts").get("rerun_of") or "")

    @property
    def mlflow_run(self) -> str:
        """Id of its run in MLflow that its submitter has made; empty if unknown."""
        return str(self._part("facts").get("mlflow_run") or "")

    @property
    def places(self) -> frozenset[str]:
        """Folder of the job and folder of the command; empty if unknown."""
        with suppress(StorageError):
            facts = self._part("facts")
            folders = (facts.get("folder"), facts.get("submitted_from"))
            return frozenset(str(folder) for folder in folders if folder)

        return frozenset()

    @property
    def source_digest(self) -> str:
        """Digest of its SourceTree; empty if unknown."""
        return str(self._part("facts", "source").get("digest") or "")

    @property
    def source_root(self) -> str:
        """Source folder on the machine that planned it; empty if unknown."""
        return str(self._part("facts", "source").get("root") or "")

    @property
    def other_machines(self) -> tuple[str, ...]:
        """Return `other_machines` of the plan; empty if it cannot be read."""
        with suppress(StorageError):
            return other_machines(self._plan)

        return ()

    @property
    def grace_seconds(self) -> int:
        """Seconds from SIGTERM to SIGKILL at a stop."""
        return self._read("target.grace_seconds", int)

    def config(self, kind: type[Config]) -> Config:
        """Return the provider's settings in the plan. Raise StorageError if they do not fit."""
        settings: dict[str, Any] = self._read("target.facts", dict)
        try:
            return kind.from_json(settings)
        except TypeError as error:  # a field without a default is missing
            raise self._folder.damaged(f"{PLAN} cannot be read: target.facts: {error}") from None

    def request(self, required: Mapping[str, type]) -> dict[str, Any]:
        """Return the cloud's request. `required`: types of required values by dotted path."""
        return self._folder.document(REQUEST, required)

    def plan(self) -> PlanRecord:
        """Return the part of the plan that a rerun needs. May raise StorageError."""
        written: dict[str, Any] = self._read("facts.source", dict)
        source: dict[str, Any] = {}
        for name, kind in _SOURCE.items():
            source[name] = self._read(f"facts.source.{name}", kind)

        source["secrets"] = tuple(written.get("secrets") or ())
        source["requirements"] = str(written.get("requirements") or "")
        source["packages"] = tuple(written.get("packages") or ())
        source["offline"] = bool(written.get("offline"))

        return PlanRecord(
            provider=self.provider,
            target=self._read("target.provider", str),
            is_rehearsal=self._optional("host", dict) is not None,
            name=self.name,
            overrides=tuple(self._read("overrides", list)),
            checkpoints_uri=str(self._part("spec", "checkpoints").get("uri") or ""),
            folder=self._read("facts.folder", str),
            git_commit=self._read("facts.git_commit", str),
            git_dirty=self._optional("facts.git_dirty", bool),
            source=source,
        )

    def _read(self, path: str, kind: type[T]) -> T:
        """Return a value of the plan by dotted path. May raise StorageError."""
        value = self._optional(path, kind)
        if value is None:
            raise self._missing(path)
        return value

    def _optional(self, path: str, kind: type[T]) -> T | None:
        """Return a value of the plan by dotted path, or None for null."""
        *above, key = path.split(".")
        value = self._part(*above).get(key, self)
        if value is None or isinstance(value, kind):
            return value

        raise self._missing(path)

    def _missing(self, path: str) -> StorageError:
        return self._folder.damaged(f"{PLAN} cannot be read: it does not say {path}")

    def _part(self, *keys: str) -> Mapping[str, Any]:
        """Return the part of the plan below these keys, or {}."""
        return part_of(self._plan, *keys)


def part_of(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the part of a document below these keys, or {}."""
    part: Any = document
    for key in keys:
        if not isinstance(part, dict):
            return {}

        part = part.get(key)

    if not isinstance(part, dict):
        return {}

    return part


def other_machines(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return overrides that plan a job without the first machine of its list.

    `plan`: as JSON. Empty if it has no other machine, or if the platform itself tries them.
    """
    target = part_of(plan, "target")
    others = list(part_of(target, "facts").get("instances") or ())[1:]
    if not others or target.get("tries_all_instances", True):
        return ()

    overrides = (f"resources.instance.{target.get('provider')}=[{', '.join(map(str, others))}]",)
    # Models of GPUs led to these machines, and cannot be set beside them.
    has_gpu = part_of(plan, "spec", "resources").get("gpu")
    if not has_gpu:
        return overrides

    return (*overrides, "resources.gpu=null")


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Price of a run's machines, and what limits its time."""

    usd_per_hour: float | None = None
    """List price of all its machines; None if unknown or without machines."""
    is_billed: bool = True
    """False for a rehearsal, which has the limit of the cloud but no price."""
    kept_seconds: int = 0
    """Seconds that its machines are kept and billed after its end."""
    limit: str = ""
    """Origin of the limit: `limits.max_cost`, `limits.max_runtime`; empty: the platform."""


def terms_of(folder: RunFolder, instance: str = "") -> Terms:
    """Return the terms of a run; empty if its plan cannot be read or is of another machine.

    `instance`: the type of its machines, once the cloud chose one.
    """
    with suppress(StorageError, TypeError, ValueError):
        record = RunRecord(folder)
        quote = record.quote
        usd = part_of(quote, "price").get("usd")
        if usd is not None:
            usd *= quote.get("nodes")
        if instance in quote.get("prepaid", ()):
            usd = 0.0

        kept_seconds = 0
        if not record.is_rehearsal:
            kept_seconds = int(quote.get("kept_seconds") or 0)

        limit = "limits.max_runtime"
        if quote:
            limit = str(quote.get("cap") or "")

        return Terms(
            usd_per_hour=usd,
            is_billed=not record.is_rehearsal,
            kept_seconds=kept_seconds,
            limit=limit,
        )

    return Terms()

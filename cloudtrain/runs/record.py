"""Typed readers of a submit's documents. An incomplete document is reported as damaged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from cloudtrain.errors import StorageError

if TYPE_CHECKING:
    from cloudtrain.planning.target import ProviderConfig
    from cloudtrain.runs.folder import RunFolder

    Config = TypeVar("Config", bound=ProviderConfig)

T = TypeVar("T")

PLAN = "plan.json"
REQUEST = "request.json"
JOB = "job.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRecord:
    """The source as it was planned."""

    root: str
    digest: str
    files: int
    bytes: int
    warning: str
    secrets: tuple[str, ...]
    requirements: str
    packages: tuple[str, ...]
    wheels: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextRecord:
    """Where and from what a run was planned."""

    folder: str
    git_commit: str
    git_dirty: bool | None
    source: SourceRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRecord:
    """The part of a stored plan that a rerun is made from."""

    provider: str
    """Name of the provider that runs it. May raise StorageError."""
    target: str
    """Provider of the request."""
    is_rehearsal: bool
    name: str
    overrides: tuple[str, ...]
    checkpoints_uri: str
    context: ContextRecord


class RunRecord:
    """Documents of a run. Damaged ones raise StorageError. The plan is read once."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    @cached_property
    def _plan(self) -> dict[str, Any]:
        return self._folder.document(PLAN)

    @property
    def is_of_another_machine(self) -> bool:
        """Whether it was imported from a cloud's list of jobs: it has no source then, and no spec.

        False when its plan cannot be read.
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
        """The spec as the plan writes it, defaults left out; of a run of another machine the name
        alone.
        """
        return self._part("spec")

    @property
    def quote(self) -> Mapping[str, Any]:
        """What its machines were to cost, as the plan writes a CostEstimate; empty where nothing is
        paid for.
        """
        return self._part("target", "quote")

    @property
    def trial(self) -> Mapping[str, Any]:
        """What it was told as a trial that may end itself, as the plan writes TrialRules; else
        empty.
        """
        return self._part("facts", "trial")

    @property
    def is_rehearsal(self) -> bool:
        """Whether this machine runs it in place of the cloud whose request it is."""
        return self._plan.get("host") is not None

    @property
    def version(self) -> str:
        """Version of cloudtrain that planned it."""
        return str(self._plan.get("version") or "")

    @property
    def git_commit(self) -> str:
        """The commit that its folder was at; empty for none, and where that is not known here."""
        return str(self._part("facts").get("git_commit") or "")

    @property
    def places(self) -> frozenset[str]:
        """The folder of its job, and the one in which the command was typed; empty if that is not
        known here.
        """
        with suppress(StorageError):
            facts = self._part("facts")
            return frozenset(
                str(facts[key]) for key in ("folder", "submitted_from") if facts.get(key)
            )
        return frozenset()

    @property
    def source_root(self) -> str:
        """The folder that its source was packed from; empty where that is not known here."""
        return str(self._part("facts", "source").get("root") or "")

    @property
    def source_digest(self) -> str:
        """The SHA-256 of its source's files, as SourceTree has it; empty where that is not known
        here.
        """
        return str(self._part("facts", "source").get("digest") or "")

    @property
    def stop_after_seconds(self) -> int:
        """When its launcher stops it, before the platform does; 0: never, or that is not known
        here.
        """
        with suppress(StorageError):
            return int(self._folder.document(JOB).get("stop_after_seconds") or 0)
        return 0

    @property
    def grace_seconds(self) -> int:
        """Seconds from SIGTERM to SIGKILL at a stop."""
        return self._read("target.grace_seconds", int)

    def config(self, kind: type[Config]) -> Config:
        """The provider's own settings of the plan. StorageError if the plan has none, or others."""
        settings: dict[str, Any] = self._read("target.facts", dict)
        try:
            return kind.from_json(settings)
        except TypeError as error:  # a field without a default is not there
            raise self._folder.damaged(f"{PLAN} cannot be read: target.facts: {error}") from None

    def request(self, required: Mapping[str, type]) -> dict[str, Any]:
        """The request, the cloud's own document. `required`: what it must hold, by dotted paths."""
        return self._folder.document(REQUEST, required)

    def plan(self) -> PlanRecord:
        """The part of the plan that a rerun is made from. StorageError if something is missing."""
        source: dict[str, Any] = self._read("facts.source", dict)
        return PlanRecord(
            provider=self.provider,
            target=self._read("target.provider", str),
            is_rehearsal=self._optional("host", dict) is not None,
            name=self.name,
            overrides=tuple(self._read("overrides", list)),
            checkpoints_uri=str(self._part("spec", "checkpoints").get("uri") or ""),
            context=ContextRecord(
                folder=self._read("facts.folder", str),
                git_commit=self._read("facts.git_commit", str),
                git_dirty=self._optional("facts.git_dirty", bool),
                source=SourceRecord(
                    root=self._read("facts.source.root", str),
                    digest=self._read("facts.source.digest", str),
                    files=self._read("facts.source.files", int),
                    bytes=self._read("facts.source.bytes", int),
                    warning=self._read("facts.source.warning", str),
                    secrets=tuple(source.get("secrets") or ()),
                    requirements=str(source.get("requirements") or ""),
                    packages=tuple(source.get("packages") or ()),
                    wheels=int(source.get("wheels") or 0),
                ),
            ),
        )

    def _read(self, path: str, kind: type[T]) -> T:
        """What the plan has at a dotted path. StorageError where it has nothing, or something else."""
        found = self._optional(path, kind)
        if found is None:
            raise self._missing(path)
        return found

    def _optional(self, path: str, kind: type[T]) -> T | None:
        """The same; None where the plan says null."""
        *above, key = path.split(".")
        found = self._part(*above).get(key, self)
        if found is None or isinstance(found, kind):
            return found
        raise self._missing(path)

    def _missing(self, path: str) -> StorageError:
        return self._folder.damaged(f"{PLAN} cannot be read: it does not say {path}")

    def _part(self, *keys: str) -> Mapping[str, Any]:
        """What the plan has below these keys; empty where there is nothing."""
        return part_of(self._plan, *keys)


def part_of(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the part of a document below these keys, or {}."""
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}

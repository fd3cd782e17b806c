"""The documents that a submit wrote, read back as types. A document that lacks something is reported as damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cloudtrain.planning.target import ProviderConfig
    from cloudtrain.runs.folder import RunFolder

    Config = TypeVar("Config", bound=ProviderConfig)

T = TypeVar("T")

PLAN, REQUEST = "plan.json", "request.json"


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
    """The name of the provider that runs it. StorageError if the plan does not say."""
    target: str
    """The provider whose request it is."""
    is_rehearsal: bool
    name: str
    overrides: tuple[str, ...]
    checkpoints_uri: str
    context: ContextRecord


class RunRecord:
    """The documents of one run. StorageError wherever one is not what was written."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    @property
    def is_of_another_machine(self) -> bool:
        """Whether it was imported from a cloud's list of jobs: it has no source then, and no spec."""
        return self._folder.is_imported()

    @property
    def provider(self) -> str:
        """The name of the provider that runs it. StorageError if the plan does not say."""
        return self._read(PLAN, "provider", str)

    @property
    def source_root(self) -> str:
        """The folder that its source was packed from; empty where that is not known here."""
        plan = self._folder.document(PLAN)
        source = (plan.get("facts") or {}).get("source") or {}
        return str(source.get("root") or "")

    @property
    def grace_seconds(self) -> int:
        """The seconds from SIGTERM to SIGKILL when the job is stopped."""
        return self._read(PLAN, "target.grace_seconds", int)

    def config(self, kind: type[Config]) -> Config:
        """The provider's own settings of the plan. StorageError if the plan has none, or others."""
        settings: dict[str, Any] = self._read(PLAN, "target.facts", dict)
        try:
            return kind.from_json(settings)
        except TypeError as error:  # a field without a default is not there
            raise self._folder.damaged(f"{PLAN} cannot be read: target.facts: {error}") from None

    def request(self, required: Mapping[str, type]) -> dict[str, Any]:
        """The request, the cloud's own document. `required`: what it must hold, by dotted paths."""
        return self._folder.document(REQUEST, required)

    def plan(self) -> PlanRecord:
        """The part of the plan that a rerun is made from. StorageError if something is missing."""
        uri = ((self._folder.document(PLAN).get("spec") or {}).get("checkpoints") or {}).get("uri")
        source: dict[str, Any] = self._read(PLAN, "facts.source", dict)
        git_dirty = self._folder.document(PLAN, {"facts.git_dirty": (bool, type(None))})["facts"]["git_dirty"]
        host = self._folder.document(PLAN, {"host": (dict, type(None))})["host"]
        return PlanRecord(
            provider=self.provider,
            target=self._read(PLAN, "target.provider", str),
            is_rehearsal=host is not None,
            name=self._read(PLAN, "spec.name", str),
            overrides=tuple(self._read(PLAN, "overrides", list)),
            checkpoints_uri=str(uri or ""),
            context=ContextRecord(
                folder=self._read(PLAN, "facts.folder", str),
                git_commit=self._read(PLAN, "facts.git_commit", str),
                git_dirty=git_dirty,
                source=SourceRecord(
                    root=self._read(PLAN, "facts.source.root", str),
                    digest=self._read(PLAN, "facts.source.digest", str),
                    files=self._read(PLAN, "facts.source.files", int),
                    bytes=self._read(PLAN, "facts.source.bytes", int),
                    warning=self._read(PLAN, "facts.source.warning", str),
                    secrets=tuple(source.get("secrets") or ()),
                    requirements=str(source.get("requirements") or ""),
                    packages=tuple(source.get("packages") or ()),
                    wheels=int(source.get("wheels") or 0),
                ),
            ),
        )

    def _read(self, name: str, path: str, kind: type[T]) -> T:
        value: Any = self._folder.document(name, {path: kind})
        for key in path.split("."):
            value = value[key]
        found: T = value
        return found

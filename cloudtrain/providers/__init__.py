"""What a provider is: the protocol that each of them implements, its values, and how one is found by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.declaration import Declaration, is_provider, load_third_party, third_party
from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue

if TYPE_CHECKING:
    from cloudtrain.images.reference import ResolvedImage
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.target import Target
    from cloudtrain.runs.observation import Observation, Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.runs.store import RunFolder
    from cloudtrain.settings import Settings
    from cloudtrain.spec import JobSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The provider's own document, in its own words: what `plan --json` prints and what `start` sends."""

    provider: str
    document: Mapping[str, Any]
    job: Mapping[str, Any] = field(default_factory=dict)
    """The job document that is sent with it: what the launcher reads on every node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """A job of ours as a cloud lists it, whoever started it."""

    run_id: str
    documents: Mapping[str, str]
    """What its run folder is born with, where this machine has none."""
    events: Sequence[Mapping[str, Any]]
    """The same."""
    news: Sequence[Mapping[str, Any]] = ()
    """How it stands: its phase, or its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What this machine knows of the runs at a provider already, so that the provider is asked for news only."""

    states: Mapping[str, str] = field(default_factory=dict)
    """Run id -> state as last seen."""
    until: dict[str, float] = field(default_factory=dict)
    """Up to when all changes in an account are known, by the account's own clock. A provider moves it on."""


Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""

Note = Callable[[str], None]
"""Told of one thing that a user should know."""


class Provider(ABC):
    """One place where jobs run. Everything up to `render` is pure; everything after it is an effect.

    A provider says its `declaration` and has the abstract methods; the others are for places that can do more.
    """

    declaration: Declaration
    """What it says of itself."""

    @property
    def contracts(self) -> tuple[str, ...]:
        """The contracts whose requests it can execute; the first is its own."""
        return (self.declaration.contract,)

    @abstractmethod
    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """The target that these settings and this spec mean. No network.

        `rehearsal`: the request is executed elsewhere; account settings that nobody has given may then be placeholders.
        """

    def rules(self, plan: Plan) -> list[Issue]:  # noqa: ARG002
        """What is wrong with the plan, as far as rules, tables and the disk tell: no network, no process, no SDK.

        `plan` shows it. For a rehearsal both providers are asked, the one whose request it is and the one that runs it.
        """
        return []

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002
        """What else stands in the way, where it takes a process, an engine or an SDK to tell. Nothing is spent yet.

        `starting`: whether the job is started if nothing stands in the way. If not, no program is executed that a file
        beside the job names: who only looks at a repository of somebody else must be able to without running it.
        """
        return []

    @abstractmethod
    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """The request for a plan. Pure.

        `image`: the one that a submit has put in its place, instead of the address that was planned.
        """

    def repository(self, settings: Settings) -> str:  # noqa: ARG002
        """Where images for its jobs are pushed, as the settings say. UsageError where they say nothing."""
        raise UsageError("no repository is configured", hint="--to REPOSITORY, or --provider with that of a cloud")

    @abstractmethod
    def start(
        self, plan: Plan, request: Request, run: RunFolder, archive: Path, progress: Progress | None, record: Record
    ) -> dict[str, Any]:
        """Start the job of a plan by its request; the answer finds it again. Idempotent: the remote name is the run id.

        `record` writes down what must be known even if this process dies in the next moment. An error that does not
        say `Outcome.UNKNOWN` means that nothing was started.
        """

    def pause_seconds(self, run: RunFolder) -> float:  # noqa: ARG002
        """How long to wait between two looks at a run."""
        return PAUSE_SECONDS

    @abstractmethod
    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """What the run folder does not hold yet: log lines, how the job stands, the end of a job nobody watched.

        Each observation is written down, and `state` brought up to date with it, before the next one is asked for: what
        the lines have said decides how a job has ended. CloudError when nobody can tell.
        """

    @abstractmethod
    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the job to stop: a checkpoint, then the end. False: it cannot be asked yet; asking twice does no harm.

        `record` writes down what was done, and brings `state` up to date.
        """

    def places(self, run: RunFolder, state: RunState) -> Mapping[str, str]:  # noqa: ARG002
        """Where model, output and checkpoints lie, as people would write it. No network."""
        return {}

    def checkpoints(self, run: RunFolder, state: RunState) -> str:  # noqa: ARG002
        """Where a run's checkpoints lie, for another run to start from; empty when there are none."""
        return ""

    @abstractmethod
    def fetch(
        self, run: RunFolder, state: RunState, names: Sequence[str], folder: Path, progress: Progress | None, note: Note
    ) -> list[str]:
        """Bring what the job left, each into `folder/<name>`; returns the names that there were.

        Links that lead to something inside are kept, as relative ones. What cannot be kept (links that lead out,
        devices) does not keep the rest from arriving: `note` is told of it.
        """

    def adopt(self, settings: Settings, run_id: str | None, seen: Seen) -> list[Adopted]:  # noqa: ARG002
        """Jobs of ours there, whoever started them, that are new or have changed; of one name, if it is given."""
        return []

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:  # noqa: ARG002
        """What an ended run of another machine has printed, and the events among it; once is enough."""
        return ()

    def release(self, run: RunFolder, state: RunState) -> Observation:  # noqa: ARG002
        """Give back machines that are kept after a run, and billed; the events that say so. UsageError for none."""
        raise UsageError(f"run {run.run_id} keeps no machines")

    def native(self, run: RunFolder, state: RunState) -> Any:  # noqa: ARG002
        """The job as an object of the cloud's own SDK. UsageError where there is none."""
        raise UsageError(f"run {run.run_id}: there is no SDK of {self.declaration.label}, whose object it could be")


PAUSE_SECONDS = 5.0
"""Between two looks at a run, unless its provider knows better."""


def get_provider(name: str) -> Provider:
    """The provider of that name. UsageError names those at hand."""
    if name in third_party() or not is_provider(name):
        return load_third_party(name)()  # type: ignore[no-any-return]
    provider: Provider = import_module(f"cloudtrain.providers.{name}.provider").Provider()
    return provider

"""The interface that every provider implements, the values it uses, and how a provider is found by
name.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.declaration import Declaration, is_provider, load_third_party, third_party
from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue

if TYPE_CHECKING:
    from cloudtrain.checkup import Check
    from cloudtrain.planning.launch import JobDocument
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.planning.target import ProviderConfig, Target
    from cloudtrain.providers.infrastructure import Infrastructure
    from cloudtrain.providers.native_sweep import NativeSweeps
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.observation import Observation, Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec
    from cloudtrain_launcher.events import Event, Submitted, Submitting


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a provider sends to start a job: `plan --json` prints `document`, `start` sends it."""

    provider: str
    document: Mapping[str, Any]
    """The platform's own request, in its own format: plain JSON."""
    job: JobDocument
    """What is sent with it for the launcher to read on every node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscoveredRun:
    """A job that cloudtrain started, perhaps from another machine, as a cloud lists it."""

    run_id: str
    config: ProviderConfig
    """What the provider needs to look after the job."""
    instance: str
    """The instance type; may be empty."""
    grace_seconds: int
    """Of the job, from SIGTERM to SIGKILL."""
    request: Mapping[str, Any]
    """The cloud's own request document, as far as the cloud repeats it."""
    submitting: Submitting
    """The first event of the run, if this machine does not know it yet."""
    submitted: Submitted
    """The second."""
    updates: Sequence[Event] = ()
    """The current phase of the job, or its end."""

    def documents(self) -> dict[str, str]:
        """Content of `plan.json` and `request.json` of its run folder, by file name."""
        from cloudtrain import __version__
        from cloudtrain.runs.files import as_text

        provider = self.submitting.provider
        contract = self.submitting.contract
        plan = {
            "version": __version__,
            "run_id": self.run_id,
            "provider": provider,
            "host": None,
            "spec": {"name": self.submitting.name},
            "target": {
                "provider": provider,
                "contract": contract,
                "grace_seconds": self.grace_seconds,
                "facts": {**self.config.to_json(), "instances": [self.instance]},
            },
            "adopted": time.time(),
        }
        return {"plan.json": as_text(plan), "request.json": as_text(dict(self.request))}


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRuns:
    """The runs at a provider that this machine knows already, so that only new and changed ones are
    asked for.
    """

    states: Mapping[str, str] = field(default_factory=dict)
    """Run id -> state as last seen."""
    synced_until: dict[str, float] = field(default_factory=dict)
    """Account -> Unix timestamp by the cloud's clock, up to which all changes are known;
    `discover_runs` updates it.
    """


Progress = Callable[[int, int], None]
"""Called with the amount done so far and the total, in the same unit (bytes)."""

Note = Callable[[str], None]
"""Called with a remark for the user, such as a file that was left out."""


class Provider(ABC):
    """A platform that runs jobs. Everything up to `render` is pure; everything after it has
    effects.

    A provider sets `declaration` and implements the abstract methods. The others have defaults, for
    platforms that can do more.
    """

    declaration: Declaration
    """Name, label, section of job.yaml and URI schemes: what can be known without importing the
    provider.
    """

    @property
    def contracts(self) -> tuple[str, ...]:
        """The contracts whose requests it can execute; the first is its own."""
        return (self.declaration.contract,)

    @abstractmethod
    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """The target that these settings and this spec mean. No network; problems are listed in the
        target.

        `rehearsal`: the request will be executed on this machine, so account settings that are
        missing may be replaced by placeholders.
        """

    def rules(self, plan: Plan) -> list[Issue]:  # noqa: ARG002
        """Problems that rules, tables and the disk show: no network, no process, no SDK.

        `plan` shows them. For a rehearsal both providers are asked: the one whose request it is and
        the one that runs it.
        """
        return []

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002
        """Problems that only a process, a container engine or an SDK can find. Nothing that costs
        money is done.

        `starting`: whether the job is started if there are no errors. If not, no program is
        executed that a file beside the job names: planning a repository that is not trusted must
        not run code from it.
        """
        return []

    def security_findings(self, plan: Plan) -> list[Issue]:  # noqa: ARG002
        """What a reviewer of security would say of the request. Pure, as `rules` are.

        They are warnings of `check`, and refuse a job where the settings say `policy = "strict"`.
        """
        return []

    def checkup(self, settings: Settings, target: Target, spec: JobSpec) -> Iterable[Check]:  # noqa: ARG002
        """Questions to the platform about what a job of this spec would need there, with their
        answers as they come.

        `cloudtrain doctor` shows them, `check --online` those of a job. Only calls that read are
        made: what these credentials may not look at is not wrong. `target` may have problems; they
        are shown by themselves.
        """
        return ()

    @abstractmethod
    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """The request for a plan. Pure.

        `image`: the image that a submit has built or looked up; None: the address that was planned.
        """

    def repository(self, settings: Settings) -> str:  # noqa: ARG002
        """The repository that images for its jobs are pushed to. UsageError if the settings name
        none.
        """
        raise UsageError(
            "no repository is configured",
            hint="--to REPOSITORY, or --provider with that of a cloud",
        )

    @abstractmethod
    def start(
        self,
        plan: Plan,
        request: Request,
        run: RunFolder,
        archive: Path,
        progress: Progress | None,
        record: Record,
    ) -> dict[str, Any]:
        """Start a job and return a reference by which it is found again. Idempotent: the remote
        name is the run id.

        `archive`: the source as tar.gz. `record` stores an observation at once, so that it is known
        even if this process dies right after. An error without `Outcome.UNKNOWN` means that nothing
        was started.
        """

    def warm(self, data_dir: Path) -> AbstractContextManager[None]:  # noqa: ARG002
        """While it is open, many short jobs of this process and data folder start sooner, where the
        platform can.

        Nothing else about a job changes, and one that cannot be started so starts as ever.
        """
        return nullcontext()

    def poll_seconds(self, run: RunFolder) -> float:  # noqa: ARG002
        """Seconds to wait between two calls of `observe`."""
        return POLL_SECONDS

    @abstractmethod
    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """What the run folder does not have yet: log lines, events, and the end of a job that was
        not watched.

        Each observation is stored and `state` updated before the next one is requested, because
        events in the log decide how a job has ended. CloudError when the platform cannot be
        reached.
        """

    @abstractmethod
    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the job to save a checkpoint and end. False: not possible yet, try again. Repeating
        it does no harm.

        `record` stores an observation and updates `state`.
        """

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Leave a small file where the job of this run reads it by itself, whole at once; an
        earlier one is replaced.

        Idempotent, and no request to the job. UsageError where the platform has no such place, as
        `Declaration.publishes` says before.
        """
        raise UsageError(
            f"{self.declaration.label} has no place at which a job reads what is published for it"
        )

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:  # noqa: ARG002
        """URI or path of `model`, `output` and `checkpoints`, those that there are. No network."""
        return {}

    def checkpoints(self, run: RunFolder, state: RunState) -> str:  # noqa: ARG002
        """URI or path of a run's checkpoints, for another run to resume from; empty if there are
        none.
        """
        return ""

    @abstractmethod
    def fetch(
        self,
        run: RunFolder,
        state: RunState,
        names: Sequence[str],
        folder: Path,
        progress: Progress | None,
        note: Note,
    ) -> list[str]:
        """Copy these artifacts, each into `folder/<name>`; returns the names of those that exist.

        Symbolic links to something inside the artifact are kept as relative links. Links that point
        outside and devices are left out, and `note` is called for each; the rest is still copied.
        """

    def discover_runs(
        self,
        settings: Settings,  # noqa: ARG002
        run_id: str | None,  # noqa: ARG002
        known: KnownRuns,  # noqa: ARG002
    ) -> list[DiscoveredRun]:
        """Jobs that cloudtrain started from any machine and that are new or changed; `run_id`: that
        one alone.
        """
        return []

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:  # noqa: ARG002
        """All log lines and events of an ended run that another machine started. Called once per
        run.
        """
        return ()

    def release(self, run: RunFolder, state: RunState) -> Observation:  # noqa: ARG002
        """Release machines that are kept, and billed, after a run. UsageError if there are none."""
        raise UsageError(f"run {run.run_id} keeps no machines")

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:  # noqa: ARG002
        """Return the template of an account and its deployment of that name.

        `region`: empty for that of the settings. Raise UsageError if the provider has no template.
        """
        message = f"the provider {self.declaration.name!r} has no template of an account"
        raise UsageError(message, hint="aws and azure have one: --provider aws")

    def native_sweeps(self) -> NativeSweeps:
        """Its cloud's own service for sweeps. UsageError if there is none."""
        raise UsageError(
            f"{self.declaration.label} has no service for sweeps of its own",
            hint="engine: portable",
        )

    def native(self, run: RunFolder, state: RunState) -> Any:  # noqa: ARG002
        """The job as an object of the platform's own SDK. UsageError if there is no such SDK."""
        raise UsageError(f"run {run.run_id}: {self.declaration.label} has no SDK object for a job")


POLL_SECONDS = 5.0
"""Seconds between two calls of `observe`, unless the provider overrides `poll_seconds`."""


def get_provider(name: str) -> Provider:
    """The provider of that name, built in or installed. UsageError lists those there are."""
    if name in third_party() or not is_provider(name):
        return load_third_party(name)()  # type: ignore[no-any-return]
    provider: Provider = import_module(f"cloudtrain.providers.{name}.provider").PROVIDER()
    return provider

"""Interface of every provider, and its values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.checkup import Check
    from cloudtrain.declaration import Declaration
    from cloudtrain.errors import Issue
    from cloudtrain.planning.launch import Request
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.registry import ResolvedImage
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.discovered_run import DiscoveredRun, KnownRuns
    from cloudtrain.providers.infrastructure import Infrastructure
    from cloudtrain.providers.native_sweep import NativeSweeps
    from cloudtrain.providers.progress import Note, Progress
    from cloudtrain.providers.remote_folder import RemoteFolder
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Observation, Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec

POLL_SECONDS = 5.0
"""Seconds between two calls of `observe`, unless the provider overrides `poll_seconds`."""


class Export(NamedTuple):
    """Files and commands of a cloud's own tool that start a job without cloudtrain."""

    files: Mapping[str, str]
    """Content by file name."""
    archive: str
    """Name of the source archive."""
    commands: Sequence[Sequence[str]]
    """Words of each command, to be run in the folder of the files."""


class Provider(ABC):
    """A platform that runs jobs. Everything up to `render` is pure; the rest has effects.

    A provider sets `declaration` and implements the abstract methods. The others have defaults, for
    platforms that can do more.
    """

    declaration: Declaration
    """Name, label, section of job.yaml and URI schemes, known without an import of the provider."""

    @property
    def contracts(self) -> tuple[str, ...]:
        """Contracts whose requests the provider can execute; its own comes first."""
        return (self.declaration.contract,)

    @abstractmethod
    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """Return the target for these settings and this spec. No network.

        Problems are listed in the target. `rehearsal`: the request will be executed on this
        machine, so placeholders may replace missing account settings.
        """

    def rules(self, plan: Plan) -> list[Issue]:  # noqa: ARG002
        """Return problems found by rules, tables and the disk: no network, no process, no SDK.

        `plan` shows them. For a rehearsal this is called for both providers: the owner of the
        request and the provider that runs it.
        """
        return []

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002
        """Return problems that need a process, a container engine or an SDK. Free of charge.

        `starting`: whether the job starts if there are no errors. Otherwise never execute a program
        named by a file beside the job: planning an untrusted repository must not run code from it.
        """
        return []

    def security_findings(self, plan: Plan) -> Iterable[Issue]:  # noqa: ARG002
        """Return the findings of a security review of the request. Pure, as `rules` are.

        They are warnings of `check`, and refuse a job if the settings say `policy = "strict"`.
        """
        return []

    def checkup(self, plan: Plan) -> Iterable[Check]:  # noqa: ARG002
        """Ask the platform for each thing in the plan's request, and yield the answers.

        `cloudtrain doctor` and `check --online` show them. Only read. What no call tells, or these
        credentials may not ask, is a check that was not made, with the reason.
        """
        return ()

    @abstractmethod
    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the request for a plan. Pure.

        `image`: the image that a submit has built or looked up; None for the planned address.
        """

    def export(self, plan: Plan) -> Export:
        """Return what starts the plan's job without cloudtrain. Pure.

        Raise UsageError if the platform has no command that could.
        """
        raise UsageError(
            f"a job of {plan.target.provider} runs without a cloud's command",
            hint="--provider aws or --provider azure",
        )

    def repository(self, settings: Settings) -> str:  # noqa: ARG002
        """Return the repository that images for its jobs are pushed to.

        Raise UsageError if the settings name no repository.
        """
        raise UsageError(
            "no repository is configured",
            hint="--to REPOSITORY, or --provider of a cloud with a repository",
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
        """Start a job and return a reference to it. Idempotent: the remote name is the run id.

        `archive`: the source as tar.gz. `record` stores an observation at once, so that it survives
        a crash of this process. An error without `Outcome.UNKNOWN` means that no job was started.
        """

    def poll_seconds(self, run: RunFolder) -> float:  # noqa: ARG002
        """Return the pause between two calls of `observe`, in seconds."""
        return POLL_SECONDS

    @abstractmethod
    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield log lines, events, and the end of a job, as far as the run folder lacks them.

        Each observation is stored and `state` updated before the next one is requested, because
        events in the log decide how a job has ended. Raise CloudError if the platform cannot be
        reached.
        """

    @abstractmethod
    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the job to save a checkpoint and end. Return False if that is not possible yet.

        Repeating it does no harm. `record` stores an observation and updates `state`.
        """

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Leave a small file for the job to read, written atomically; replaces an earlier one.

        Idempotent, and no request to the job. Raise UsageError if the platform has no such place
        (see `Declaration.publishes`).
        """
        raise UsageError(
            f"{self.declaration.label} has no place at which a job reads what is published for it"
        )

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:  # noqa: ARG002
        """Return URI or path of existing artifacts: model, output, checkpoints. No network."""
        return {}

    def remote_folder(self, run: RunFolder) -> RemoteFolder | None:  # noqa: ARG002
        """Return the folder of a run in the cloud's storage; None without one."""
        return None

    def native(self, run: RunFolder, state: RunState) -> Any:  # noqa: ARG002
        """Return the job of a run as an object of the platform's own SDK.

        Raise UsageError if there is no such SDK, or if it is not installed.
        """
        raise UsageError(
            f"{self.declaration.label} has no SDK with an object for a run",
            hint="aws and azure have one; run.status() has the state of every run",
        )

    def left_behind(self, run: RunFolder, state: RunState) -> list[str]:  # noqa: ARG002
        """Return the folders of this machine with files that the program left beside its results."""
        return []

    def checkpoints(self, run: RunFolder, state: RunState) -> str:  # noqa: ARG002
        """Return URI or path of a run's checkpoints for a resuming run; empty if there are none."""
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
        """Copy these artifacts, each into `folder/<name>`; return the names of existing ones.

        Symbolic links to something inside the artifact are kept as relative links. Links that point
        outside and devices are left out, and `note` is called for each; the rest is still copied.
        """

    def discover_runs(
        self,
        settings: Settings,  # noqa: ARG002
        run_id: str | None,  # noqa: ARG002
        known_runs: KnownRuns,  # noqa: ARG002
    ) -> list[DiscoveredRun]:
        """List new or changed jobs that cloudtrain started from any machine.

        `run_id`: list only this run.
        """
        return []

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:  # noqa: ARG002
        """Yield all log lines and events of another machine's ended run. Called once per run."""
        return ()

    def release(self, run: RunFolder, state: RunState) -> Observation:  # noqa: ARG002
        """Release machines that are kept, and billed, after a run. UsageError without any."""
        raise UsageError(f"run {run.run_id} keeps no machines")

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:  # noqa: ARG002
        """Return the template of an account and its deployment of that name.

        `region`: empty for the region of the settings. Raise UsageError if the provider lacks a template.
        """
        message = f"the provider {self.declaration.name!r} has no template of an account"
        raise UsageError(message, hint="aws and azure have one: --provider aws")

    def native_sweeps(self) -> NativeSweeps:
        """Return the cloud's own service for sweeps. Raise UsageError if there is none."""
        raise UsageError(
            f"{self.declaration.label} has no service for sweeps of its own",
            hint="engine: portable",
        )

"""The interface of native sweeps: a cloud's own service chooses the values and starts the trials of
a `sweep` section.

The sweep's folder is laid out as a run's is, so that submitting, looking again after a lost answer,
and stopping are recorded as those of a job are: plan.json, request.json, job.json and events.jsonl.
Its plan is the job's, with the sweep's id as run id. A trial is a job of the cloud with a name that
the cloud chose: `NativeTrial.run` makes an ordinary run of it, which is listed, watched and fetched
as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cloudtrain.providers import DiscoveredRun, Progress, Request

if TYPE_CHECKING:
    from cloudtrain.issues import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.observation import Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.spec.search_space import Scalar


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeTrial:
    """One trial, as the cloud's service lists it."""

    number: int
    """From 0, in the order in which the service has started them."""
    name: str
    """The cloud's name of its job: the id of its run."""
    parameters: Mapping[str, Scalar]
    """A value for each setting of the space, of the type that a trial of ours has."""
    state: Literal["waiting", "running", "completed", "pruned", "failed", "stopped"]
    """As in `sweeps.state.Trial`; pruned: the service has ended it before its time."""
    reason: str = ""
    value: float | None = None
    """The latest value of the metric; None where the service does not say."""
    curve: Sequence[float] = ()
    """Every report of the metric, where the service keeps them; else they are among the events of
    its run.
    """
    usd: float | None = None
    """What it has cost; None where that is not known (yet)."""
    seconds: float = 0.0
    """How long it has run."""
    run: DiscoveredRun | None = None
    """What makes an ordinary run of it; None while there is nothing to look after."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeSweepState:
    """A sweep as the cloud's service describes it."""

    state: Literal["running", "stopping", "succeeded", "failed", "stopped"]
    """The last three are final, and no trial changes any more. succeeded: all trials have ended,
    and one has a value; failed: none has, or the service could not go on.
    """
    reason: str = ""
    trials: Sequence[NativeTrial] = ()
    """All of them, by number."""
    url: str = ""
    """The cloud's own page about it."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ("succeeded", "failed", "stopped")


class NativeSweeps(Protocol):
    """What a provider with a service for sweeps implements. Up to `render` all is pure;
    `plan.spec.sweep` is set.
    """

    def rules(self, plan: Plan) -> list[Issue]:
        """What the service cannot express, each at its line, and what it may cost against the
        budget.

        Nothing is approximated: an error refuses the sweep. Problems of the job itself are those of
        `Provider.rules`.
        """
        ...

    def method(self, plan: Plan) -> str:
        """Name the service's own way to choose values, for people: `SageMaker's Bayesian strategy`."""
        ...

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """The service's own request, with the job document that all trials share."""
        ...

    def start(
        self,
        plan: Plan,
        request: Request,
        folder: RunFolder,
        archive: Path,
        progress: Progress | None,
        record: Record,
    ) -> dict[str, Any]:
        """Start the sweep and return a reference by which it is found again: as `Provider.start`
        does for a job.

        Idempotent: the remote name is the sweep's id. An error without `Outcome.UNKNOWN` means that
        nothing was started.
        """
        ...

    def observe(
        self, folder: RunFolder, state: RunState, record: Record
    ) -> NativeSweepState | None:
        """The sweep and all its trials as they are now. CloudError when the service cannot be
        reached.

        `state`: that of `folder`, in which `record` writes what became of an interrupted
        submission. None: it is not known yet whether the sweep was started, or `state` has ended
        since it was not.
        """
        ...

    def stop(self, folder: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the service to stop all trials, each of which saves a checkpoint. False: not possible
        yet, try again.
        """
        ...

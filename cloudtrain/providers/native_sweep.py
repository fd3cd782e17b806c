"""Interface of native sweeps: a cloud's service chooses values and starts the trials.

The sweep's folder has the layout of a run folder (plan.json, request.json, job.json and
events.jsonl), so that submissions, lost answers and stops are recorded as for a job. Its plan is
the job's, with the sweep's id as run id. A trial is a job with a name chosen by the cloud:
`NativeTrial.run` makes an ordinary run of it, which is listed, watched and fetched like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtrain.errors import Issue
    from cloudtrain.planning.launch import Request
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.registry import ResolvedImage
    from cloudtrain.providers.discovered_run import DiscoveredRun
    from cloudtrain.providers.progress import Progress
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.spec.search_space import Scalar


State = Literal["running", "stopping", "succeeded", "failed", "stopped"]
TrialState = Literal["running", "completed", "pruned", "failed", "stopped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeTrial:
    """A trial, as the cloud's service lists it."""

    number: int
    """Number from 0, in the order of starts."""
    name: str
    """Name of its job in the cloud: the id of its run."""
    parameters: Mapping[str, Scalar]
    """Value of each setting, of the same type as in a portable trial."""
    state: TrialState
    """State as in `sweeps.state.Trial`; pruned: the service ended it early."""
    run: DiscoveredRun
    """Values for an ordinary run of it, whose events hold its reports and its cost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeSweepState:
    """A sweep as the cloud's service describes it."""

    state: State
    """Current state; the last three are final.

    succeeded: all trials have ended, and one has a value. failed: no trial has a value, or the
    service failed.
    """
    reason: str = ""
    trials: Sequence[NativeTrial] = ()
    """All trials, by number."""


class NativeSweeps(Protocol):
    """Interface of a provider with a service for sweeps. Everything up to `render` is pure.

    `plan.spec.sweep` is set.
    """

    def rules(self, plan: Plan) -> list[Issue]:
        """Return parts that the service cannot express, each at its line, and a budget at risk.

        Nothing is approximated: an error refuses the sweep. `Provider.rules` covers the job itself.
        """
        ...

    def method(self, plan: Plan) -> str:
        """Name the service's method of choosing values: `SageMaker's Bayesian strategy`."""
        ...

    def stopping(self, plan: Plan) -> str:
        """Say what ends bad trials early; empty for nothing."""
        ...

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the service's request, with the job document that all trials share."""
        ...

    def render_trial(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the request of one trial as the service would start it, for a rehearsal.

        Its values are arguments of the plan.
        """
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
        """Start the sweep and return a reference to it, as `Provider.start` does for a job.

        Idempotent: the remote name is the sweep's id. An error without `Outcome.UNKNOWN` means that
        no sweep was started.
        """
        ...

    def observe(
        self,
        folder: RunFolder,
        state: RunState,
        record: Record,
    ) -> NativeSweepState | None:
        """Return the current state of the sweep and its trials.

        `state`: state of `folder`; `record` stores in it the outcome of an interrupted
        submission. Return None if it is not known yet whether the sweep was started, or if `state`
        has ended because it was not. Raise CloudError if the service cannot be reached.
        """
        ...

    def stop(self, folder: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the service to stop all trials with a checkpoint. Return False if not possible yet."""
        ...

"""A run that was submitted, going on or ended: status, logs, wait, stop, fetch, rerun."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, JobFailed, StorageError, UsageError
from cloudtrain.providers import Note, Progress
from cloudtrain.runs.failure import explain
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.forecast import Forecast, forecast
from cloudtrain.runs.logs import LogLine
from cloudtrain.runs.observation import Observation
from cloudtrain.runs.series import MetricPoint, metric_points
from cloudtrain.runs.state import RunState
from cloudtrain.runs.terms import terms_of
from cloudtrain.submission.fetched import fetch_results, refuse_taken
from cloudtrain.submission.log_stream import LogStream
from cloudtrain.submission.monitor import RunMonitor
from cloudtrain.submission.updates import Update, Wait, updates

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

RETRY_SECONDS = 1.0
"""Before a stop is tried again; doubled with each attempt."""
STOP_ATTEMPTS = 5
"""Attempts to send a stop, besides the retries of an SDK."""


class Run:
    """One run, on this machine or in a cloud, going on or ended."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.id = folder.run_id
        self._monitor = RunMonitor(folder)

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self._monitor.state.state}>"

    def _repr_html_(self) -> str:
        """The run's card, as notebooks show it: as last seen, without asking a cloud."""
        from cloudtrain.submission.card import card

        try:
            return card(self.cached_status(), time.time())
        except StorageError as error:
            return escape(f"{self!r}: {error}")

    @property
    def damaged_lines(self) -> int:
        """How many lines of its events file hold no event: after a full disk, a killed writer, a
        change by hand.
        """
        return self._monitor.history.damaged_lines

    @property
    def unstored(self) -> str:
        """Why what was seen last could not be written to the run's folder; empty if it was."""
        return self._monitor.unstored

    def status(self) -> RunState:
        """The state now, asked from the provider. CloudError when the cloud cannot be asked."""
        self._monitor.backfill_logs()
        self._monitor.poll_at_once()
        state = self._monitor.refresh(retry=False)
        if state.has_ended and state.keeps_machines:
            with suppress(CloudError):  # as last seen, then
                self._monitor.observe()
        if state.may_have_started:
            self._monitor.observe()
        return self._monitor.state

    def cached_status(self) -> RunState:
        """The state as last seen: only the run folder is read. StorageError when that fails."""
        return self._monitor.history.read()

    def forecast(self) -> Forecast | None:
        """How long the run will take and what it will cost, with an interval, by what is known of
        it here.

        None for one that has ended, that does not say how many steps it has, or that has made too
        few of them.
        """
        return forecast(self.cached_status(), terms_of(self.folder), now=time.time())

    def take(self, observations: Iterable[Observation]) -> None:
        """Write observations of the run to its folder, and its end to the index that `list_runs`
        reads.
        """
        self._monitor.record(observations)

    def watch(self, *, tail: int | None = None, timeout: float | None = None) -> Iterator[Update]:
        """Updates until the run has ended: first all that is there already, then what comes.

        `tail`: of the lines that are there already only the last so many, and none of the events.
        TimeoutError after `timeout` seconds, while the run goes on. CloudError when the cloud
        cannot be asked, and asking again would not help.
        """
        yield from updates(self._monitor, tail=tail, timeout=timeout)

    def wait(self, timeout: float | None = None) -> RunState:
        """Wait for the end and return the state. TimeoutError after `timeout` seconds, while the
        run goes on.

        In a notebook the cell shows the run's card meanwhile, with its curves.

        CloudError when the cloud cannot be asked, and asking again would not help.
        """
        from cloudtrain.submission.card import live_card

        wait = Wait(self._monitor, timeout)
        with live_card() as show:
            while not (state := self._monitor.refresh()).has_ended:
                show(state)
                wait.raise_if_over()
                wait.pause()
            show(state)
        return state

    def result(self) -> RunState:
        """Wait for the end and return the state. JobFailed, with the root cause, unless the run
        succeeded.
        """
        state = self.wait()
        if state.state != "succeeded":
            raise JobFailed(
                f"run {self.id} {state.state}: {explain(state)}", hint=f"cloudtrain logs {self.id}"
            )
        return state

    def logs(
        self,
        *,
        follow: bool = False,
        node: int | None = None,
        rank: int | None = None,
        tail: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        metrics: bool = True,
        waiting: Callable[[RunState], None] | None = None,
    ) -> Iterator[LogLine]:
        """Log lines of all nodes, oldest first.

        `node`, `rank`: only lines of that one. `tail`: only the last so many of those that are
        there. `since`: only lines from that Unix timestamp on. `grep`: only lines in which that
        regular expression matches. `metrics`: also the lines that stand for reported metrics and
        progress. `follow`: go on until the run has ended; then `waiting` is called with the state
        whenever there is no line to yield.

        CloudError, after the lines that are here already, when the cloud does not give the others;
        UsageError for a `grep` that is no regular expression.
        """
        stream = LogStream(
            self._monitor, node=node, rank=rank, since=since, grep=grep, metrics=metrics
        )
        yield from stream.stored(tail=tail, retry=follow)
        wait = Wait(self._monitor)
        while follow:
            yield from stream.fresh()
            if stream.has_ended:
                return
            if waiting is not None:
                waiting(self._monitor.state)
            wait.pause()

    def metrics(self) -> list[MetricPoint]:
        """Every report of metrics so far, as last seen. StorageError when the events cannot be
        read.
        """
        return metric_points(self.folder.each_event())

    def stop(self, *, note: Note | None = None) -> RunState:
        """Stop the run, wait for its end and return its state. An ended run stays as it is.

        Every rank gets SIGTERM, and SIGKILL after the grace period. The stop is sent even if the
        cloud does not report the state of the job. `note` is called once, with a sentence, if the
        job is too new to be stopped. Raise CloudError if the stop cannot be sent, or if the cloud
        does not report the end.
        """
        state = self.last_known()
        has_noted = False
        while not state.has_ended and not self.request_stop(state):
            if note and not has_noted:
                note("the job is too new to be stopped; retrying for up to 5 minutes")
                has_noted = True
            time.sleep(RETRY_SECONDS)
            state = self.last_known()
        try:
            return self.wait()
        except CloudError as error:
            hint = f"it was told to stop; cloudtrain status {self.id} tells when it has ended"
            raise CloudError(error.message, hint=hint, code=error.code) from error

    def release(self) -> RunState:
        """Give back the machines that are kept after the run, and billed, and return the state.
        UsageError for none.
        """
        self.take([self._monitor.provider.release(self.folder, self.cached_status())])
        return self._monitor.state

    def last_known(self) -> RunState:
        """The state now or, when the provider cannot be asked, as last seen.

        CloudError if the run counts as not started and the cloud does not say whether that is so.
        """
        try:
            return self.status()
        except (CloudError, StorageError) as error:
            state = self.cached_status()
            if state.may_have_started or (isinstance(error, StorageError) and state.ref is None):
                raise
            return state

    def request_stop(self, state: RunState) -> bool:
        """Send the stop, and do not wait for the end; a failure that may pass is tried again.

        False: the job does not exist yet. CloudError when the stop cannot be sent.
        """
        rerun = f"cloudtrain stop {self.id} asks again"
        for attempt in range(STOP_ATTEMPTS):
            try:
                return self._monitor.provider.stop(self.folder, state, self._monitor.record_stop)
            except CloudError as error:
                failure = error
            if not failure.transient:
                break
            time.sleep(RETRY_SECONDS * 2**attempt)
        hint = f"{failure.hint}; {rerun}" if failure.hint else rerun
        raise CloudError(
            f"{self.id} was not told to stop: {failure.message}", hint=hint, code=failure.code
        ) from failure

    def fetch(
        self,
        folder: str | Path | None = None,
        *,
        checkpoints: bool = False,
        force: bool = False,
        progress: Progress | None = None,
        note: Note | None = None,
    ) -> Path:
        """Copy model and output (and checkpoints) to a new folder, by default one named like the
        run; returns it.

        The folder is there with everything in it, or not at all. `force`: into a folder that is
        there, where model and output are replaced. One below the present folder is left out of jobs
        by a .gitignore in it. `progress` is called with bytes; `note` with a sentence on each file
        that was left out, such as a link that leads out of the run's own files. UsageError when the
        folder is not empty, unless `force`; StorageError when there is nothing to copy or the disk
        refuses.
        """
        target = Path(folder or self.id)
        refuse_taken(target, self.id, force=force)
        names = ("model", "output", *(("checkpoints",) if checkpoints else ()))
        state = (
            self.last_known()
        )  # stored files can be copied also when the provider does not answer
        fetch_results(self._monitor.provider, self.folder, state, names, target, progress, note)
        return target

    def artifacts(self) -> Mapping[str, str]:
        """Where model, output and checkpoints are, by these names: folders of this machine, or URIs
        in a cloud.

        Of a run whose end has been seen, only those that exist.
        """
        state = self.cached_status()
        artifacts = self._monitor.provider.artifacts(self.folder, state)
        results = state.results
        return (
            artifacts
            if results is None
            else {name: place for name, place in artifacts.items() if name in results}
        )

    def native(self) -> Any:
        """The job as an object of the cloud's own SDK: for aws a `sagemaker.core` TrainingJob, for
        azure a `Job`.

        UsageError for a run that has none.
        """
        return self._monitor.provider.native(self.folder, self.status())

    def rerun(
        self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None
    ) -> Run:
        """Submit the same source and spec again, under a new id, and return that run.

        A run that did not succeed goes on from its checkpoints unless `fresh`. `overrides`: as
        `--set`, `KEY=VALUE`. UsageError while this one goes on, StorageError when its source is not
        stored any more.
        """
        from cloudtrain.submission.context import archive_of
        from cloudtrain.submission.submit import submit

        rerun = self.plan_again(overrides, fresh=fresh, provider=provider)
        return Run(submit(rerun, archive=archive_of(rerun)))

    def plan_again(
        self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None
    ) -> Plan:
        """The plan that `rerun` submits; the same arguments and errors."""
        state = self.status()
        if not state.has_ended:
            raise UsageError(
                f"run {self.id} is still {state.state}", hint=f"cloudtrain stop {self.id}"
            )
        resume = not fresh and (
            state.state != "succeeded" or state.trial_outcome in ("pruned", "paused")
        )
        resume_from = self._monitor.provider.checkpoints(self.folder, state) if resume else ""
        from cloudtrain.submission.rerun import plan_again  # the one verb that needs spec and plan

        return plan_again(self.folder, provider, tuple(overrides), resume_from)

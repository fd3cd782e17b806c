"""Submitted run: status, logs, wait, stop, fetch, rerun."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.api.monitor import LogStream, RunMonitor, Update, Wait, updates
from cloudtrain.errors import CloudError, JobFailed, StorageError, UsageError
from cloudtrain.ownership import is_mine
from cloudtrain.providers.progress import Note, Progress
from cloudtrain.runs.files import storing
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.forecast import Forecast, forecast
from cloudtrain.runs.in_use import in_use
from cloudtrain.runs.logs import LogBlock, LogLine, Observation
from cloudtrain.runs.metric_points import MetricPoint, metric_points
from cloudtrain.runs.record import terms_of
from cloudtrain.runs.state import RunState

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.protocol import Provider

RETRY_SECONDS = 1.0
"""Seconds before a stop is retried, doubled with each attempt."""
STOP_ATTEMPTS = 5
"""Attempts to send a stop, besides the retries of an SDK."""

IGNORE_FILE = ".gitignore"
_IGNORE_ALL = (
    "# Fetched by cloudtrain: neither sent with the next job nor committed. Delete this file to"
    " change that.\n*\n"
)

MAX_LISTED = 20
"""Maximum number of left-out files in an error."""


class Run:
    """Run on this machine or in a cloud."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.id = folder.run_id
        self._monitor = RunMonitor(folder)

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self._monitor.state.state}>"

    def _repr_html_(self) -> str:
        """Return the run's card for notebooks, as last seen, without asking a cloud."""
        from cloudtrain.api.card import card

        try:
            return card(self.cached_status(), time.time())
        except StorageError as error:
            from html import escape  # rarely needed

            return escape(f"{self!r}: {error}")

    @property
    def damaged_lines(self) -> int:
        """Number of unreadable lines in the events file, after a full disk or a killed writer."""
        return self._monitor.history.damaged_lines

    @property
    def unstored(self) -> str:
        """Error of writing the last observation; empty after success."""
        return self._monitor.unstored

    def status(self) -> RunState:
        """Return the current state from the provider. May raise CloudError."""
        self._monitor.backfill_logs()
        self._monitor.poll_at_once()
        state = self._monitor.refresh(retry=False)
        if state.has_ended and state.keeps_machines:
            with suppress(CloudError):  # keep the last seen state
                self._monitor.observe()
        if state.may_have_started:
            self._monitor.observe()
        return self._monitor.state

    def cached_status(self) -> RunState:
        """Return the state as last seen from the run folder. May raise StorageError."""
        return self._monitor.history.read()

    def forecast(self) -> Forecast | None:
        """Return the remaining time, the cost until now and at the end, from stored events.

        Return None for an ended run, or if neither time nor cost is known.
        """
        state = self.cached_status()
        return forecast(state, terms_of(self.folder, state.instance), now=time.time())

    def take(self, observations: Iterable[Observation]) -> None:
        """Write observations to the run folder, and its end to the index of `list_runs`."""
        self._monitor.record(observations)

    def watch(self, *, tail: int | None = None, timeout: float | None = None) -> Iterator[Update]:
        """Yield updates until the run has ended: first stored lines and events, then new ones.

        `tail`: only the last stored lines, and no stored events. Raise TimeoutError after `timeout`
        seconds, while the run continues; CloudError if the cloud does not answer and asking again
        cannot help.
        """
        with in_use(self.folder.path):
            yield from updates(self._monitor, tail=tail, timeout=timeout)

    def wait(self, timeout: float | None = None) -> RunState:
        """Wait for the end and return the state.

        A notebook cell shows the run's card meanwhile. Raise TimeoutError after
        `timeout` seconds, while the run continues; CloudError if the cloud does not answer and
        asking again cannot help.
        """
        from cloudtrain.api.card import live_card

        wait = Wait(self._monitor, timeout)
        with in_use(self.folder.path), live_card() as show:
            while not (state := self._monitor.refresh()).has_ended:
                show(state)
                wait.raise_if_over()
                wait.pause()

            show(state)

        return state

    def result(self) -> RunState:
        """Wait for the end and return the state. Raise JobFailed unless it succeeded."""
        from cloudtrain.diagnosis.failure import diagnose_run

        state = self.wait()
        if state.state == "succeeded":
            return state

        why = state.reason
        if state.state == "failed":
            why = diagnose_run(self.folder, state, brief=True).headline

        raise JobFailed(f"run {self.id} {state.state}: {why}", hint=f"cloudtrain logs {self.id}")

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
        """Yield log lines of all nodes, oldest first.

        `node`, `rank`: only their lines. `tail`: only the last stored lines. `since`: only lines
        from that Unix timestamp. `grep`: only lines that match the regular expression. `metrics`:
        include the lines for reported metrics and progress. `follow`: continue until the run has
        ended, and call `waiting` with the state whenever no line is new.

        Raise CloudError, after the stored lines, if the cloud does not return the others;
        UsageError for an invalid `grep`.
        """
        blocks = self.log_blocks(
            follow=follow,
            node=node,
            rank=rank,
            tail=tail,
            since=since,
            grep=grep,
            metrics=metrics,
            waiting=waiting,
        )
        for block in blocks:
            yield from block.lines()

    def log_blocks(
        self,
        *,
        follow: bool = False,
        tail: int | None = None,
        waiting: Callable[[RunState], None] | None = None,
        **filters: Any,
    ) -> Iterator[LogBlock]:
        """Yield log lines as `logs`, which has the filters; lines of one source and time are together."""
        stream = LogStream(self._monitor, **filters)
        with in_use(self.folder.path):
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
        """Return every stored report of metrics. May raise StorageError."""
        return metric_points(self.folder.each_event())

    def stop(self, *, note: Note | None = None) -> RunState:
        """Stop the run, wait for its end and return its state. An ended run is not changed.

        Every rank gets SIGTERM, and SIGKILL after the grace period. The stop is sent even if the
        cloud does not report the state of the job. `note` is called once if the job is too new to
        be stopped. Raise CloudError if the stop cannot be sent, or if the cloud does not report the
        end.
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
        """Release the machines that are kept after the run. Raise UsageError for none."""
        self.take([self._monitor.provider.release(self.folder, self.cached_status())])
        return self._monitor.state

    def last_known(self) -> RunState:
        """Return the current state, or the last seen one if the provider does not answer.

        Raise CloudError if the run counts as not started and the cloud does not confirm it.
        """
        try:
            return self.status()
        except (CloudError, StorageError) as error:
            state = self.cached_status()
            if state.may_have_started or (isinstance(error, StorageError) and state.ref is None):
                raise
            return state

    def request_stop(self, state: RunState) -> bool:
        """Send the stop without waiting for the end. Retry transient failures.

        Return False if the job does not exist yet. Raise CloudError if the stop cannot be sent.
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

        if failure.hint:
            hint = f"{failure.hint}; {rerun}"
        else:
            hint = rerun

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
        """Copy model and output (and checkpoints) to a new folder, by default named like the run.

        The copy is complete or missing. If the cloud fails, what has arrived is kept beside the
        folder, and the same call continues. `force`: copy into an existing folder and replace model
        and output. A folder below the current one gets a .gitignore, so that jobs leave it out.
        `progress` is called with bytes; `note` with a sentence on each file that was left out, such
        as a link that leads out of the run's files. Raise UsageError if the folder is not empty,
        unless `force`; StorageError if there is nothing to copy or the disk refuses.
        """
        target = Path(folder or self.id)
        refuse_taken(target, self.id, force=force)
        names = ["model", "output"]
        if checkpoints:
            names.append("checkpoints")
        # Stored files can be copied even if the provider does not answer.
        with in_use(self.folder.path):
            state = self.last_known()
            fetch_results(self._monitor.provider, self.folder, state, names, target, progress, note)
        return target

    def artifacts(self) -> Mapping[str, str]:
        """Return the places of model, output and checkpoints: folders of this machine or URIs.

        An ended run has only those that exist.
        """
        state = self.cached_status()
        artifacts = self._monitor.provider.artifacts(self.folder, state)
        results = state.results
        if results is None:
            return artifacts

        return {name: place for name, place in artifacts.items() if name in results}

    def native(self) -> Any:
        """Return the job as the object of the cloud's own SDK, with the credentials of this run.

        On AWS a TrainingJob of `sagemaker.core`, which needs the extra `sagemaker`; on Azure a Job
        of azure-ai-ml. Its `wait(logs=True)` on AWS reads logs with the default credentials: use
        `logs` of this object. Raise UsageError for other providers, CloudError without an answer.
        """
        return self._monitor.provider.native(self.folder, self.cached_status())

    def left_behind(self) -> list[str]:
        """Return the folders of this machine with files that the program left beside its results."""
        return self._monitor.provider.left_behind(self.folder, self.cached_status())

    def rerun(
        self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None
    ) -> Run:
        """Submit the same source and spec again under a new id, and return that run.

        A run that did not succeed resumes from its checkpoints unless `fresh`. `overrides`:
        `KEY=VALUE` as with `--set`. Raise UsageError while this run continues, StorageError if its
        source is gone.
        """
        from cloudtrain.api.context import archive_of
        from cloudtrain.api.submit import submit

        with in_use(self.folder.path):
            rerun = self.plan_again(overrides, fresh=fresh, provider=provider)
            return Run(submit(rerun, archive=archive_of(rerun)))

    def plan_again(
        self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None
    ) -> Plan:
        """Return the plan that `rerun` submits; same arguments and errors."""
        state = self.status()
        if not state.has_ended:
            raise UsageError(
                f"run {self.id} is still {state.state}", hint=f"cloudtrain stop {self.id}"
            )

        resume = not fresh and (
            state.state != "succeeded" or state.trial_outcome in ("pruned", "paused")
        )
        resume_from = ""
        if resume:
            resume_from = self._monitor.provider.checkpoints(self.folder, state)

        from cloudtrain.api.submit import plan_again  # only this verb needs spec and plan

        return plan_again(self.folder, provider, tuple(overrides), resume_from)


def refuse_taken(target: Path, run: str, *, force: bool) -> None:
    """Raise UsageError for a target that is not empty; `force`: unless it is a folder."""
    if not is_free(target) and not (force and target.is_dir()):
        hint = f"--force replaces model and output in it; or: cloudtrain fetch {run} ANOTHER_FOLDER"
        raise UsageError(f"{target} exists and is not empty", hint=hint)


def fetch_results(
    provider: Provider,
    run: RunFolder,
    state: RunState,
    names: Sequence[str],
    target: Path,
    progress: Progress | None,
    note: Note | None,
) -> None:
    """Copy these results of the run to the target. Arguments and errors as in `Run.fetch`."""
    left_out: list[str] = []
    with storing(target, f"cloudtrain fetch {run.run_id} ANOTHER_FOLDER"):
        draft = _draft_of(target, state)
        try:
            artifacts = provider.fetch(run, state, names, draft, progress, left_out.append)
        except CloudError as error:
            hint = error.hint
            if fetched_files(draft):
                next_step = f"what has arrived is kept in {draft}; the same command continues"
                hint = f"{hint}; {next_step}" if hint else next_step
            else:
                shutil.rmtree(draft, ignore_errors=True)

            raise CloudError(error.message, hint=hint, code=error.code) from error
        except Exception:
            shutil.rmtree(draft, ignore_errors=True)
            raise

        if artifacts:
            put_in_place(draft, target, artifacts)

        shutil.rmtree(draft, ignore_errors=True)

    for folder in provider.left_behind(run, state):
        left_out.append(f"what the program left in its working folder is still in {folder}")
    if not artifacts:
        may_have_more = "checkpoints" not in names
        has_checkpoints = may_have_more and bool(provider.checkpoints(run, state))
        raise _no_files(state, left_out, has_checkpoints=has_checkpoints)
    if note is not None:
        for text in left_out:
            note(text)


def _draft_of(target: Path, state: RunState) -> Path:
    """Return the folder that a copy fills, with what an earlier attempt has left in it.

    It begins empty if the run may have changed it since, or another user owns it.
    """
    draft = target.absolute().with_name(f".{target.absolute().name}.{state.run_id}.part")
    if state.has_ended and draft.is_dir() and not draft.is_symlink() and is_mine(draft):
        for cut_short in draft.rglob(".*.part"):
            cut_short.unlink()
    else:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)

    return draft


def _no_files(state: RunState, left_out: Sequence[str], *, has_checkpoints: bool) -> StorageError:
    """Return the error for a run without copied files. Without `left_out` it left none."""
    run = state.run_id
    message = f"run {run} left no files"
    hint = (
        f"cloudtrain logs {run}; a script writes to $CLOUDTRAIN_MODEL_DIR and"
        " $CLOUDTRAIN_OUTPUT_DIR"
    )
    if not state.has_ended:
        message = f"run {run} is still {state.state}: its model comes at the end"
        hint = f"cloudtrain wait {run}; --checkpoints brings what is saved already"
    elif has_checkpoints:
        message = f"run {run} left checkpoints, but neither a model nor an output"
        hint = f"cloudtrain fetch {run} --checkpoints"
    elif left_out:
        message = f"run {run} left neither a model nor an output that can be copied"

    return StorageError("; ".join([message, *left_out[:MAX_LISTED]]), hint=hint)


def is_free(target: Path) -> bool:
    """Return whether a fetch would replace nothing."""
    if not os.path.exists(target):  # noqa: PTH110  (false for what no disk can hold)
        return True
    return target.is_dir() and not any(target.iterdir())


def put_in_place(draft: Path, target: Path, names: Sequence[str]) -> None:
    """Move a folder of results to the target. In an existing folder replace these names."""
    if not is_free(target):
        for name in names:
            if (target / name).is_dir() and not (target / name).is_symlink():
                shutil.rmtree(target / name)
            else:
                (target / name).unlink(missing_ok=True)
            (draft / name).rename(target / name)
        return
    if target.absolute().is_relative_to(Path.cwd()) and not (draft / IGNORE_FILE).exists():
        (draft / IGNORE_FILE).write_text(_IGNORE_ALL, encoding="utf-8")
    if target.is_dir():
        target.rmdir()
    draft.rename(target)


def fetched_files(folder: Path) -> list[str]:
    """Return the paths of the files in it, without our ignore file."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return sorted(str(file) for file in files if file != folder / IGNORE_FILE)

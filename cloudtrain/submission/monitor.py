"""What is known of a run, kept up to date: its events are read, and its provider is asked, but not
too often.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from cloudtrain.errors import CloudError, StorageError
from cloudtrain.providers import Provider, get_provider
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.forecast import TOLD_FROM_SECONDS, forecast
from cloudtrain.runs.forecast_words import raised_limit, told_once
from cloudtrain.runs.history import History
from cloudtrain.runs.index import forget_run, index_run
from cloudtrain.runs.observation import Observation
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain.runs.terms import Terms, terms_of
from cloudtrain_launcher.events import Cursor, LimitTooLow

MAX_BACKOFF = 16
"""A cloud that does not answer is asked ever more rarely: at last after this many of the provider's
usual pauses.
"""


class RunMonitor:
    """The state of one run; `refresh` brings it up to date, in place."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.history = History(folder)
        self.state = self.history.state
        self.last_error = ""
        """Why the provider could not say how the run stands, the last time that it was asked; empty
        if it could.
        """
        self._last_poll = 0.0
        """Monotonic time; 0: the provider is asked the next time."""
        self._poll_seconds: float | None = None
        self._backoff = 1
        self._provider: Provider | None = None
        self._terms: Terms | None = None

    @property
    def provider(self) -> Provider:
        """The provider that runs it. StorageError when its plan does not say which, UsageError for
        an unknown one.
        """
        if self._provider is None:
            self._provider = get_provider(self.state.provider or RunRecord(self.folder).provider)
        return self._provider

    def record(self, observations: Iterable[Observation]) -> None:
        """Apply observations and write them down, and a run that has ended into the index.

        A disk that refuses is no error here: `unstored` reports it.
        """
        had_ended = self.state.has_ended
        has_events = self.history.take(observations, unstored_ok=True)
        if has_events and self.history.unstored is None:
            index_run(self.folder, self.state)
        if had_ended and not self.state.has_ended:
            forget_run(self.folder)

    def record_stop(self, observation: Observation) -> None:
        """Write down what a stop does, flushed to the disk; a disk that refuses does not keep a job
        from its stop.
        """
        self.history.take([observation], durable=True, unstored_ok=True)

    @property
    def unstored(self) -> str:
        """Why the latest observation could not be written down; empty if it was."""
        error = self.history.unstored
        return f"what was seen is not kept: {error.message}" if error else ""

    def observe(self) -> None:
        """Ask the provider now, and write down what it says. CloudError when it cannot."""
        self.record(self.provider.observe(self.folder, self.state))

    def poll_at_once(self) -> None:
        """Have the next `refresh` ask the provider, however recently it was asked."""
        self._last_poll = 0.0

    def refresh(self, *, retry: bool = True) -> RunState:
        """Read the events that are new, ask the provider when its pause is over, and return the
        state.

        `retry`: a CloudError that may pass is kept in `last_error`, and the provider is asked again
        later. StorageError when the events do not tell how the run began; CloudError when the cloud
        cannot be asked.
        """
        self.history.read()
        if not self.state.created:
            hint = f"what is left of it is in {self.folder.path}"
            message = f"run {self.folder.run_id} is damaged: its events do not tell how it began"
            raise StorageError(message, hint=hint)
        if not self.state.has_ended and self._is_poll_due():
            try:
                self.observe()
                self._backoff = 1
                self.last_error = ""
            except CloudError as error:
                if not (retry and error.transient):
                    raise
                self._backoff = min(2 * self._backoff, MAX_BACKOFF)
                self.last_error = error.message
            self.history.read()
            self._warn_of_limit()
        elif self.state.has_ended and not self._last_poll:
            self._last_poll = time.monotonic()
            self._clean_up()
        return self.state

    def _warn_of_limit(self) -> None:
        """Write down, once, that a limit is going to end the run before its last step, as soon as
        that can be told.
        """
        state = self.state
        now = time.time()
        if state.limit_too_low or state.stop_requested or state.has_ended:
            return
        if not state.laps.first or state.laps.time - state.laps.first < TOLD_FROM_SECONDS:
            return
        self._terms = self._terms or terms_of(self.folder)
        estimate = forecast(state, self._terms, now=now) if self._terms.seconds else None
        if estimate is not None and (message := told_once(estimate, state.run_id)):
            event = LimitTooLow(time=now, message=message, raised=raised_limit(estimate))
            self.history.take([Observation(events=[event])], unstored_ok=True)

    def sync_logs(self, *, retry: bool) -> CloudError | StorageError | None:
        """Copy what is new of the log to the run folder; the error if a cloud does not give it, or
        the disk refuses.
        """
        try:
            self.backfill_logs(retry_failed=True)
            self.refresh(retry=retry)
            self.raise_if_log_unread(retry=retry)
        except CloudError as error:
            return error
        return self.history.unstored

    def backfill_logs(self, *, retry_failed: bool = False) -> None:
        """Copy the log of an ended run that is not in the run folder yet.

        Of a run of another machine the first time; with `retry_failed`, of any run whose log could
        not be read before.
        """
        state = self.history.read()
        if not state.has_ended:
            return
        is_first = state.adopted and not state.log_unread and self.folder.last_event(Cursor) is None
        if is_first or (retry_failed and state.log_unread):
            self.history.take(self.provider.backfill_logs(self.folder, state), unstored_ok=True)

    def raise_if_log_unread(self, *, retry: bool = True) -> None:
        """CloudError when the log cannot be read; with `retry`, only when asking again cannot help."""
        unread = self.state.log_unread
        if unread and not (retry and unread.transient and not self.state.has_ended):
            raise CloudError(self.state.log_error, hint=unread.hint or None, code=unread.code)

    def _is_poll_due(self) -> bool:
        now = time.monotonic()
        if self._last_poll:
            if self._poll_seconds is None:
                self._poll_seconds = self.provider.poll_seconds(self.folder)
            if now - self._last_poll <= self._poll_seconds * self._backoff:
                return False
        self._last_poll = now
        return True

    def _clean_up(self) -> None:
        """Have the provider remove what could not be removed when a run on this machine ended."""
        if self.folder.run_id in RunStore(self.folder.path.parents[1]).runs_to_clean_up():
            self.observe()

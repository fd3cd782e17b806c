"""Process that brings runs to an MLflow server: each run once, each point of a metric once.

A run in MLflow has the tag `cloudtrain.run`. Whoever makes one looks for others of the same tag
afterwards: all clients keep the same one and delete the others. A process that starts reads back
which points the server has and sends the others, so that it may be killed at any moment.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.api.shared_history import LOCK, Mark, marks
from cloudtrain.providers.shared.idempotent_create import may_appear
from cloudtrain.runs.fold import fold
from cloudtrain.runs.in_use import in_use
from cloudtrain.runs.metric_points import MetricPoint, metric_points
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState, SeenEvents, explain
from cloudtrain.runs.store import HISTORY_MARKS, submitted_at, sweep_ids, sweep_of_run
from cloudtrain.settings import Settings, load_settings
from cloudtrain_wire.events import Cursor
from cloudtrain_wire.file_locks import acquire, locked
from cloudtrain_wire.secret_values import masker, secrets_in

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

TAG = "cloudtrain.run"
"""Tag of a run in MLflow: the id of the run here."""
STATE_TAG = "cloudtrain.state"
"""Tag of a run that was brought to the server at least once."""

PASS_SECONDS = 1.0
"""Pause between two looks for new events."""
IDLE_SECONDS = 60.0
"""Time without a new event after which the process ends; the next look at a run starts another."""
PAUSES = (1, 5, 30)
"""Seconds before further attempts; then a later command tries again."""
DROPPED_SECONDS = 86_400
"""Age of a mark without a run: its submit then counts as killed."""

BATCH = 500
BATCH_BYTES = 1 << 22
"""Points of a request, of at most 1,000 for MLflow, and bytes of events read at once."""
MAX_STEP = 1 << 62
MAX_NAME = 250
MAX_VALUE = 5000
"""Maximum characters of a name and of a tag's value in MLflow."""
MAX_TAGS = 60
"""Maximum number of a job's own tags, and of its arguments."""
MAX_ERROR = 200

STATUSES = {"succeeded": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

Point = tuple[int, int, str]
"""Time in ms, step and value of a point: it identifies the point in its metric."""


class Experiment:
    """The experiment of the user's settings, and its runs."""

    def __init__(self, client: MlflowClient, name: str) -> None:
        self.client = client
        self._name = name
        self._id = ""

    @property
    def id(self) -> str:
        """Id of the experiment, which is made if it does not exist."""
        if not self._id:
            experiment = self.client.get_experiment_by_name(self._name)
            if experiment is None:
                # Raises if another client has just made it: the next attempt finds it.
                self._id = self.client.create_experiment(self._name)
            else:
                self._id = experiment.experiment_id

        return self._id

    def runs(self, run_id: str) -> list[str]:
        """Return the ids in MLflow of a run here; the first counts."""
        matches = self.client.search_runs([self.id], f"tags.`{TAG}` = '{run_id}'")
        return sorted(run.info.run_id for run in matches)

    def one_run(self, run_id: str, tagged: str = "", created: float = 0) -> str:
        """Return the id of the only run in MLflow; make it, or delete its doubles, if necessary.

        `tagged`: the id that the job's tags name. Return "" if somebody has deleted that run.
        `created`: Unix timestamp of the submit; 0: now.
        """
        if tagged and self.client.get_run(tagged).info.lifecycle_stage != "active":
            return ""
        if not tagged and not self.runs(run_id):
            self.client.create_run(
                self.id,
                start_time=int((created or time.time()) * 1000),
                tags={TAG: run_id, "mlflow.runName": run_id},
            )

        doubles = self.runs(run_id)
        winner = tagged or doubles[0]
        for double in doubles:
            if double != winner:
                self.client.delete_run(double)

        return winner

    def drop(self, mark: Mark) -> None:
        """Delete what a submit without a run has made."""
        for run in self.runs(mark.path.name):
            if STATE_TAG not in self.client.get_run(run).data.tags:
                self.client.delete_run(run)

        mark.path.unlink(missing_ok=True)


class Mirror:
    """One run and its counterpart in MLflow, from the first event on."""

    def __init__(self, experiment: Experiment, mark: Mark) -> None:
        self._experiment = experiment
        self._client = experiment.client
        self._mark = mark
        self._run = mark.run
        self._record = RunRecord(self._run)
        self._tagged = self._record.mlflow_run
        created = submitted_at(self._run) / 1e9
        self._id = experiment.one_run(self._run.run_id, self._tagged, created)
        self._had_ended = bool(self._id) and self._client.get_run(self._id).info.end_time
        self._state = RunState(run_id=self._run.run_id)
        self._offset = 0
        self._seen = SeenEvents()
        self._on_server: dict[str, set[Point]] = {}
        self._tags: dict[str, str] = {}
        mark.write(id=self._id)

    def catch_up(self) -> None:
        """Send what the server lacks. The mark goes when it has everything."""
        if not self._id:  # somebody has deleted it there
            self._mark.path.unlink(missing_ok=True)
            return

        while True:
            begin = self._offset
            events, self._offset = self._run.events_since(begin, BATCH_BYTES)
            if self._offset == begin:
                break

            fold(self._run.run_id, events, self._state)
            self._send_points(metric_points(events, self._seen))

        self._send_tags()
        if self._state.has_ended:
            self._end()

        if self._is_complete():
            self._mark.path.unlink(missing_ok=True)
            self._end_sweep()
        else:
            self._mark.write(done=self._offset, error="")

    def _send_points(self, points: Iterable[MetricPoint]) -> None:
        from mlflow.entities import Metric

        batch: list[Metric] = []
        for point in points:
            step = _step(point)
            for name, number in point.values.items():
                key = _name(name)
                metric = Metric(key, _number(number), int(point.time * 1000), step)
                if _identity(metric) not in self._points_on_server(key):
                    self._on_server[key].add(_identity(metric))
                    batch.append(metric)

        for start in range(0, len(batch), BATCH):
            self._client.log_batch(self._id, metrics=batch[start : start + BATCH])

    def _points_on_server(self, key: str) -> set[Point]:
        if key not in self._on_server:
            history = self._client.get_metric_history(self._id, key)
            self._on_server[key] = set(map(_identity, history))

        return self._on_server[key]

    def _send_tags(self) -> None:
        """Send the arguments once, and each tag that has changed.

        Another client may have sent the end, which counts.
        """
        from mlflow.entities import Param, RunTag

        if self._had_ended and not self._state.has_ended:
            return

        params = []
        if not self._tags:
            arguments = list(self._state.arguments.items())[:MAX_TAGS]
            params = [Param(_name(name), str(value)[:MAX_VALUE]) for name, value in arguments]

        tags = {name: value for name, value in self._all_tags() if value}
        changed = tags.items() - self._tags.items()
        if params or changed:
            batch = [RunTag(_name(name), value[:MAX_VALUE]) for name, value in sorted(changed)]
            self._client.log_batch(self._id, params=params, tags=batch)
            self._tags = tags

    def _all_tags(self) -> Iterator[tuple[str, str]]:
        state = self._state
        record = self._record
        for name, value in list(state.tags.items())[:MAX_TAGS]:
            yield name, masker.mask_text(str(value))

        yield STATE_TAG, state.state
        yield "cloudtrain.name", state.name
        yield "cloudtrain.provider", state.provider
        yield "cloudtrain.machine", state.instance or " or ".join(record.machines)
        yield "cloudtrain.nodes", str(state.nodes)
        yield "cloudtrain.processes", str(state.processes)
        yield "cloudtrain.owner", record.owner or state.owner
        yield "cloudtrain.spec", record.spec_digest
        yield "cloudtrain.source", record.source_digest
        yield "cloudtrain.resumed_from", record.resumed_from
        yield "cloudtrain.rerun_of", record.rerun_of
        yield "cloudtrain.reason", masker.mask_text(explain(state).partition("\n")[0])
        yield "mlflow.user", record.owner or state.owner
        yield "mlflow.source.git.commit", record.git_commit
        if record.is_spot is not None:
            yield "cloudtrain.spot", str(record.is_spot).lower()
        if state.billing and state.billing.usd is not None:
            yield "cloudtrain.usd", f"{state.billing.usd:.4f}"
        if state.billing and state.billing.billable_seconds is not None:
            yield "cloudtrain.billed_seconds", f"{state.billing.billable_seconds:g}"
        if url := str((state.ref or {}).get("url") or ""):
            yield "mlflow.note.content", f"[Job in the console of {state.provider}]({url})"
        if sweep := self._sweep:
            yield "cloudtrain.sweep", sweep
            yield "mlflow.parentRunId", self._parent(sweep)

    @property
    def _sweep(self) -> str:
        return sweep_of_run(self._run.run_id, sweep_ids(self._run.path.parents[1]))

    def _parent(self, sweep: str) -> str:
        return self._tags.get("mlflow.parentRunId") or self._experiment.one_run(sweep)

    def _end(self) -> None:
        if self._experiment.one_run(self._run.run_id, self._tagged) != self._id:
            raise RuntimeError("another client has made this run, too")

        status = STATUSES[self._state.state]
        self._client.set_terminated(self._id, status, int(self._state.ended * 1000))

    def _is_complete(self) -> bool:
        """Return whether its last event was sent."""
        state = self._state
        has_log = not state.adopted or self._run.last_event(Cursor) is not None
        settled = state.has_ended and not may_appear(state, time.time())
        return settled and has_log and not state.log_unread

    def _end_sweep(self) -> None:
        """End the run of a sweep when the server has all its known trials."""
        sweep = self._sweep
        if sweep and not any(
            sweep_of_run(mark.path.name, [sweep]) for mark in marks(self._run.path.parents[1])
        ):
            self._client.set_terminated(self._parent(sweep), "FINISHED")


def _step(point: MetricPoint) -> int:
    """Return the step of a point, or else its epoch, as an integer of 64 bits."""
    step = point.step if point.step is not None else point.epoch or 0
    if math.isnan(step):
        return 0

    return int(max(-MAX_STEP, min(MAX_STEP, step)))


def _number(value: float) -> float:
    """Return a number without change by MLflow: infinity is its largest one."""
    if math.isnan(value):
        return value

    return max(-sys.float_info.max, min(sys.float_info.max, value))


def _identity(metric: Metric) -> Point:
    return metric.timestamp, metric.step, repr(float(metric.value))


def _name(name: str) -> str:
    """Return a name in the characters that MLflow accepts."""
    parts = re.sub(r"[^\w./ :-]", "_", name, flags=re.ASCII).split("/")
    return "/".join(part for part in parts if part.strip("."))[:MAX_NAME] or "_"


def make_run(experiment: Experiment, mark: Mark) -> None:
    """Make the run of a submit, whose id the mark gets."""
    with locked(mark.path):
        mark.write(id=experiment.one_run(mark.path.name))


def bring_runs(experiment: Experiment, data_dir: Path) -> None:
    """Bring all marked runs to the server, until nothing new comes or it does not answer."""
    mirrors: dict[str, Mirror] = {}
    failures = 0
    idle_since = time.monotonic()
    while waiting := marks(data_dir):
        has_failed = False
        for mark in waiting:
            if not mark.is_behind and mark.run.path.exists():
                continue
            try:
                has_moved = _bring(experiment, mark, mirrors)
            except Exception as error:  # noqa: BLE001  (a network, a server, a version: anything)
                has_failed = True
                mirrors.pop(mark.path.name, None)
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
                mark.write(error=masker.mask_text(text)[:MAX_ERROR])
            else:
                if has_moved:
                    idle_since = time.monotonic()

        failures = failures + 1 if has_failed else 0
        if failures > len(PAUSES):
            return
        if failures:
            time.sleep(PAUSES[failures - 1])
        elif time.monotonic() - idle_since > IDLE_SECONDS:
            return
        else:
            time.sleep(PASS_SECONDS)


def _bring(experiment: Experiment, mark: Mark, mirrors: dict[str, Mirror]) -> bool:
    """Bring one run to the server. Return False if there is none, or its submit makes it now."""
    name = mark.path.name
    lock = acquire(mark.path, wait=False, flags=os.O_RDWR)
    if lock is None:
        return False

    try:
        if not mark.run.path.exists():
            if time.time() - mark.path.stat().st_mtime > DROPPED_SECONDS:
                experiment.drop(mark)
            return False

        with in_use(mark.run.path):
            if name not in mirrors:
                mirrors[name] = Mirror(experiment, mark)
            mirrors[name].catch_up()
    finally:
        lock.release()

    return True


def run(data_dir: Path, words: list[str]) -> None:
    """Bring the runs of a data folder to the server; with the id of a run, make that one."""
    settings: Settings = load_settings(data_dir)
    uri = settings.get("mlflow.uri")
    if not uri:
        return

    lock = acquire(data_dir / HISTORY_MARKS / LOCK, wait=False) if not words else None
    if not words and lock is None:  # another process does it
        return

    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        for mark in marks(data_dir):
            mark.write(error=str(error))
        return

    masker.add(secrets_in(dict(os.environ)))
    experiment = Experiment(MlflowClient(tracking_uri=uri), settings["mlflow.experiment"])
    if words:
        make_run(experiment, Mark(data_dir / HISTORY_MARKS / words[0]))
    else:
        bring_runs(experiment, data_dir)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])

"""A run, while it goes on and ever after: status, logs, wait, stop, fetch, rerun. Needs neither spec nor plan."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.errors import JobFailed, StorageError, UsageError
from cloudtrain.provider import LogLine, Provider, get_provider
from cloudtrain.runs import ENDED, RunFolder, RunState, RunStore, fold
from cloudtrain.runs.index import summaries
from cloudtrain.runs.store import storing
from cloudtrain.settings import load_settings

POLL_SECONDS = 0.05
OBSERVE_SECONDS = 1.0


def find_run(name: str = "last", *, data_dir: str | None = None) -> Run:
    """The run of that id, of that unique beginning, or the last one. RunNotFound otherwise."""
    return Run(_store(data_dir).open(name))


def list_runs(*, data_dir: str | None = None) -> list[dict[str, Any]]:
    """A summary of every run, newest first, the state of those still open looked up; `damaged` where that fails."""
    store = _store(data_dir)
    found = []
    for summary in summaries(store):
        if summary["state"] not in ENDED:
            try:
                state = Run(RunFolder(store.runs_dir / summary["run"])).status()
                summary = {key: state.to_json()[key] for key in summary}
            except StorageError as error:
                summary = {**summary, "state": "damaged", "reason": error.message}
        found.append(summary)
    return found


@dataclass(frozen=True, slots=True)
class Update:
    """What is new about a run."""

    state: RunState
    events: list[dict[str, Any]]
    lines: list[LogLine]


class Run:
    """One run, on this machine or in a cloud, while it goes on and ever after."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.id = folder.run_id
        self._state = RunState(run_id=folder.run_id)
        self._offset = 0
        self._observed = 0.0

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self._state.state}>"

    def status(self) -> RunState:
        """The state now."""
        self._observed = 0.0
        return self._refresh()[0]

    def watch(self) -> Iterator[Update]:
        """Everything from the beginning, then what comes, until the run has ended."""
        cursor: Mapping[str, Any] = {}
        before = self._refresh()[1]
        while True:
            # Lines first: an error is told before the lines that tell of it, so it is never read after them.
            lines, cursor = self._provider().logs(self.folder, cursor)
            state, events = self._refresh()
            events, before = before + events, []
            ended = state.has_ended
            if ended:
                rest, cursor = self._provider().logs(self.folder, cursor)
                lines += rest
            yield Update(state, events, lines)
            if ended:
                return
            time.sleep(POLL_SECONDS)

    def wait(self, timeout: float | None = None) -> RunState:
        """Wait for the end and return the state. TimeoutError after `timeout` seconds; the run goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (state := self._refresh()[0]).has_ended:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {self.id} is still {state.state} after {timeout:g} s; it goes on")
            time.sleep(POLL_SECONDS)
        return state

    def result(self) -> RunState:
        """Wait for the end; JobFailed, with the root cause, unless the run succeeded."""
        state = self.wait()
        if state.state != "succeeded":
            raise JobFailed(f"run {self.id} {state.state}: {explain(state)}", hint=f"cloudtrain logs {self.id}")
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
    ) -> Iterator[LogLine]:
        """Log lines, oldest first. `since`: seconds since 1970. `follow`: until the run has ended."""
        try:
            pattern = re.compile(grep) if grep else None
        except re.error as error:
            raise UsageError(f"{grep!r} is no regular expression: {error}") from None

        def wanted(line: LogLine) -> bool:
            return (
                (node is None or line.node == node)
                and (rank is None or line.rank == rank)
                and (since is None or line.time >= since)
                and (pattern is None or pattern.search(line.text) is not None)
            )

        self._refresh()
        lines, cursor = self._provider().logs(self.folder, {})
        chosen = [line for line in lines if wanted(line)]
        yield from chosen if tail is None else chosen[max(0, len(chosen) - tail) :]
        while follow:
            ended = self._refresh()[0].has_ended
            lines, cursor = self._provider().logs(self.folder, cursor)
            yield from (line for line in lines if wanted(line))
            if ended:
                return
            time.sleep(POLL_SECONDS)

    def stop(self) -> RunState:
        """SIGTERM to every rank, the grace period, the end; returns when it has come. An ended run stays as it is."""
        state = self.status()
        if not state.has_ended:
            self._provider().stop(self.folder, state)
            state = self.wait()
        return state

    def fetch(self, folder: str | Path | None = None, *, checkpoints: bool = False) -> Path:
        """Copy model and output (and checkpoints) into a new folder, by default one named like the run."""
        target = Path(folder or self.id)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} exists and is not empty", hint=f"cloudtrain fetch {self.id} ANOTHER_FOLDER")
        found = {
            name: path
            for name, path in self._provider().results(self.folder, self.status()).items()
            if (checkpoints or name != "checkpoints") and path.is_dir() and any(path.iterdir())
        }
        if not found:
            hint = f"cloudtrain logs {self.id}; a script writes to $CLOUDTRAIN_MODEL_DIR and $CLOUDTRAIN_OUTPUT_DIR"
            raise StorageError(f"run {self.id} left no files", hint=hint)
        with storing(target, f"cloudtrain fetch {self.id} ANOTHER_FOLDER"):
            for name, path in found.items():
                shutil.copytree(path, target / name, symlinks=True)
        return target

    def rerun(self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None) -> Run:
        """Run the same source and spec again, under a new id; what did not succeed goes on from its checkpoints."""
        state = self.status()
        if not state.has_ended:
            raise UsageError(f"run {self.id} is still {state.state}", hint=f"cloudtrain stop {self.id}")
        resume = not fresh and state.state != "succeeded"
        from cloudtrain.submission import archive_of, plan_again, submit  # the one verb that needs spec and plan

        again = plan_again(self.folder, provider, tuple(overrides), resume=resume)
        return Run(submit(again, archive=archive_of(again)))

    def _provider(self) -> Provider:
        return get_provider(self._state.provider or self.folder.document("plan.json")["target"]["provider"])

    def _refresh(self) -> tuple[RunState, list[dict[str, Any]]]:
        events, self._offset = self.folder.events_since(self._offset)
        fold(self.id, events, self._state)
        now = time.monotonic()
        if not self._state.has_ended and now - self._observed > OBSERVE_SECONDS:
            self._observed = now
            seen = self._provider().observe(self.folder, self._state)
            if seen:
                self.folder.append(*seen)
                more, self._offset = self.folder.events_since(self._offset)
                fold(self.id, more, self._state)
                events += more
        return self._state, events


def explain(state: RunState) -> str:
    """Why a run ended as it did, in one line: the first failing rank and what it raised."""
    error = state.error
    if not error:
        return state.reason
    if error["rank"] < 0:
        return f"node {error['node']}: {error['message']}"
    verb = f"raised {error['exception']}: " if error.get("traceback") else ""
    return f"rank {error['rank']} (node {error['node']}) {verb}{error['message']}"


def _store(data_dir: str | None) -> RunStore:
    return RunStore(Path(load_settings(Path.cwd(), {"data_dir": data_dir})["data_dir"]).absolute())

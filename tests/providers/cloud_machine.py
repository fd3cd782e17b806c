"""Random sequences of what people, their clients, the network and a cloud do to each other's jobs.

Two machines submit to one imitated cloud. Any request of a command may go wrong, any client may be
killed, requests arrive late, jobs end by themselves, and time passes at once. The cloud's own list
of jobs is the truth that every answer and every run folder is held against.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

import cloudtrain
from cloudtrain.api.lookup import import_remote_runs
from cloudtrain.api.run import fetched_files
from cloudtrain.errors import NOTHING_STARTED, CloudError, CloudtrainError, RunExists, RunNotFound
from cloudtrain.runs.state import RunState
from tests.fakes.messages import Call
from tests.providers.faults import PERMANENT
from tests.providers.sites import Site, new_source
from tests.providers.strikes import (
    EXECUTED,
    TRANSIENT,
    Blow,
    FirstTry,
    Killed,
    Strike,
    Struck,
    Wire,
    blows_of,
    blows_of_submits,
)
from tests.support.clock import Clock
from tests.support.samples import events_of

USERS = {"here": "ann", "there": "bob"}
"""Machines, and who works there."""
OF_ANOTHER_MACHINE = "was started on another machine"
NOT_KNOWN = "not known yet"
UNSENT = ("was not told to stop", "so it was not stopped")
"""Message of a stop that has not reached the job."""
ORDER = ("submitting", "pending", "running", "stopping")
"""States of a run that has not ended, the earliest first."""
FRESH_SECONDS = 20
"""Age of a submission whose job a cloud may not show yet."""
MODEL = {"weights": "w" * 1000, "deep/tokens.json": "{}", "empty": ""}
CHECKPOINT = "checkpoints/step-1/rank-0.pt"
RESULTS = {CHECKPOINT: "c" * 1000, **{f"model/{name}": text for name, text in MODEL.items()}}
"""Files that a job leaves."""
OUR_TAGS = ("run", "name", "spec", "source", "processes", "planned", "owner", "version")
NUMBERS = itertools.count()
"""Numbers of machines of this process: jobs of different ones have different names."""

machines = st.sampled_from(sorted(USERS))
NO_BLOWS: tuple[Blow, ...] = ()


@dataclass
class Known:
    """Observations of a run by a machine, which may not be told anything older."""

    rank: int = 0
    is_denied: bool = False
    """An answer said that no job was started."""
    was_unread: bool = False
    """It could not read the log at some time."""


@dataclass
class Submission:
    """A run that somebody submitted, and what its job has done."""

    run_id: str
    home: str
    submitted: float
    requests: int = 0
    """Number of requests that create its job."""
    lines: dict[int, list[str]] = field(default_factory=lambda: {0: [], 1: []})
    """Lines that its nodes have printed."""
    saves: bool = False
    """Its nodes look for the file that tells them to stop."""
    has_started: bool = False
    has_model: bool = False
    known: dict[str, Known] = field(default_factory=lambda: {name: Known() for name in USERS})


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what befell it."""

    value: Any
    error: CloudtrainError | None
    struck: Struck
    new_jobs: frozenset[str]

    @property
    def is_answered(self) -> bool:
        """Return whether it ended without an error."""
        return self.error is None and not self.struck.is_killed

    @property
    def message(self) -> str:
        """Return the message of its error."""
        return self.error.message if self.error is not None else ""


class CloudMachine(RuleBasedStateMachine):
    """One cloud, two machines with a data folder each, and their runs."""

    runs: Bundle[str] = Bundle("runs")

    def __init__(self, site: Site, clock: Clock, folder: Path) -> None:
        super().__init__()
        self.site = site
        self._clock = clock
        self._number = next(NUMBERS)
        self._folder = folder / f"machines-{self._number}"
        self._folder.mkdir()
        self._ids = itertools.count()
        self._submissions: dict[str, Submission] = {}
        self._strangers: set[str] = set()
        self._is_broken = False
        self._wire = Wire(site)
        clock.set_back()  # what an imitation logs may not be hours ahead
        clock.on_sleep = self._while_a_client_sleeps
        new_source(Path.cwd())

    # Commands of people.

    @rule(target=runs, at=machines, blows=blows_of_submits(("rival", "look")), is_new=st.booleans())
    def submit(self, at: str, blows: tuple[Blow, ...] = NO_BLOWS, is_new: bool = False) -> str:
        """Submit the job, perhaps with a source that the cloud has not stored."""
        run_id = f"m{self._number}-{next(self._ids)}"
        if is_new:
            new_source(Path.cwd())
        self._add(run_id, at)
        acts = {"rival": lambda: self._rival(run_id, at), "look": lambda: self._ask(run_id, at)}
        outcome = self._do(at, blows, lambda place: self.site.submit(run_id, place), acts)
        self._judge_submit(run_id, at, outcome, blows)
        return run_id

    @rule(run_id=runs, at=machines)
    def submit_a_taken_name(self, run_id: str, at: str) -> None:
        """Submit another job under the name of one that there is."""
        tags = self._tags(run_id)
        if tags is None or self._has_folder(run_id, at):
            return
        outcome = self._do(
            at, NO_BLOWS, lambda place: self.site.submit(run_id, place, env={"ANOTHER": "job"})
        )
        self._require(isinstance(outcome.error, RunExists), "a name in use was taken", run_id)
        self._require(self._tags(run_id) == tags, "a job of another run was changed", run_id)
        self._require(not outcome.new_jobs, "a refused submit created a job", run_id)
        with suppress(RunNotFound):
            self._require(
                self._state(run_id, at).state == "failed", "a refused run is still running", run_id
            )
        shutil.rmtree(self._data(at) / "runs" / run_id, ignore_errors=True)

    @rule(run_id=runs, at=machines, blows=blows_of(("observe", "look", "tags", "log"), ("ends",)))
    def status(self, run_id: str, at: str, blows: tuple[Blow, ...] = NO_BLOWS) -> None:
        """Ask for the state of a run."""
        self._look(run_id, at, blows, lambda place: self._find(run_id, place).status())

    @rule(run_id=runs, times=st.integers(1, 3), is_stop=st.booleans())
    def ask_before_it_is_shown(self, run_id: str, times: int, is_stop: bool) -> None:
        """Ask for a run, or stop it, while the cloud does not show its new job yet."""
        sent = self._submissions[run_id]
        if time.monotonic() - sent.submitted < FRESH_SECONDS:
            blows = (Strike(kind="unseen", call="observe", times=times),)
            (self.stop if is_stop else self.status)(run_id, sent.home, blows)

    @rule(at=machines, blows=blows_of(("observe", "look", "tags")))
    def list_runs(self, at: str, blows: tuple[Blow, ...] = NO_BLOWS) -> None:
        """List the runs of a machine."""
        outcome = self._do(at, blows, lambda place: cloudtrain.list_runs(data_dir=place))
        self._require(not outcome.new_jobs, "a list created a job", *outcome.new_jobs)
        self._require(outcome.error is None, f"a list failed: {outcome.message}")
        for run_id in self._submissions:
            self._judge(run_id, at, outcome, is_about=not blows)

    @rule(at=machines, blows=blows_of(("list", "observe")))
    def adopt(self, at: str, blows: tuple[Blow, ...] = NO_BLOWS) -> None:
        """Copy everybody's jobs into the data folder of a machine."""
        before = self._jobs()
        has_own = any(self._has_folder(sent.run_id, at) for sent in self._submissions.values())
        outcome = self._do(
            at, blows, lambda place: import_remote_runs(self.site.provider, data_dir=place)
        )
        self._require(not outcome.new_jobs, "a list created a job", *outcome.new_jobs)
        if self._is_survivable(blows):
            self._require(outcome.error is None, f"a list failed: {outcome.message}")
        for run_id in self._submissions:
            if outcome.is_answered and run_id in before:
                self._require(self._has_folder(run_id, at), "a list missed a job", run_id)
            self._judge(run_id, at, outcome, is_about=not blows)
            if not (outcome.is_answered and self._is_alive(run_id)):
                continue
            state = self._state(run_id, at)
            if state.adopted:  # not one's own submit that came second
                is_started = self._submissions[run_id].has_started
                self._require((state.state == "running") == is_started, "not its phase", run_id)
        if not has_own and not blows and self.site.calls["look"] != self.site.calls["list"]:
            self._require(
                self.site.calls["look"] not in outcome.struck.calls,
                "a list looked at each job of others",
            )

    @rule(run_id=runs, at=machines, blows=blows_of(("observe", "look", "log")))
    def logs(self, run_id: str, at: str, blows: tuple[Blow, ...] = NO_BLOWS) -> None:
        """Read the log of a run."""
        lines: list[str] = []

        def read(place: str) -> None:
            lines.extend(line.text for line in self._find(run_id, place).logs())

        outcome = self._look(run_id, at, blows, read)
        is_whole = outcome.is_answered and self._own_job(run_id, at)
        self._check_lines(run_id, at, lines, is_whole=is_whole)

    @rule(
        run_id=runs,
        at=machines,
        blows=blows_of(("stop", "tell", "observe", "look", "log"), ("ends", "look")),
    )
    def stop(self, run_id: str, at: str, blows: tuple[Blow, ...] = NO_BLOWS) -> None:
        """Stop a run."""
        is_known = self._has_folder(run_id, at) and self._state(run_id, at).ref is not None
        was_told = self._is_told(run_id)
        outcome = self._look(run_id, at, blows, lambda place: self._find(run_id, place).stop())
        if not self._own_job(run_id, at):
            return

        is_told = self._is_told(run_id)
        struck = outcome.struck
        stopping = [call[:2] for call in self.site.stopping]
        is_only_blind = not struck.of(*stopping) and not struck.is_killed
        if outcome.is_answered or (is_known and is_only_blind):
            self._require(is_told, f"a stop did not reach the job: {outcome.message}", run_id)
        if any(words in outcome.message for words in UNSENT) and not was_told:
            has_arrived = set(struck.of(self.site.calls["stop"])) & set(EXECUTED)
            has_heard = self.site.is_told_to_stop(run_id)
            self._require(not has_heard or bool(has_arrived), "a stop was denied", run_id)
        if outcome.is_answered:
            self._require(outcome.value.has_ended, "a stop returned before the end", run_id)
        if self._is_survivable(blows):
            self._require(outcome.error is None, f"a stop failed: {outcome.message}", run_id)
        if isinstance(outcome.error, CloudError) and set(struck.calls_struck) == {
            self.site.calls["stop"]
        }:
            kind = struck.kinds[0][0]
            words = self.site.hints.get("stop" if kind == "denied" else kind, "")
            self._require(words in str(outcome.error.hint), f"hint: {outcome.error.hint}", run_id)

    @rule(target=runs, run_id=runs, at=machines, blows=blows_of_submits(("look",)))
    def rerun(self, run_id: str, at: str, blows: tuple[Blow, ...] = NO_BLOWS) -> Any:
        """Submit the same source again, which a running run refuses."""
        if any(isinstance(blow, Strike) and blow.kind == "unseen" for blow in blows):
            return multiple()
        is_alive = self._own_job(run_id, at) and not self.site.is_over(run_id)
        before = self._folders(at)
        outcome = self._look(
            run_id, at, blows, lambda place: self._find(run_id, place).rerun(), may_start=True
        )
        added = [name for name in self._folders(at) - before if name not in self._submissions]
        if is_alive:
            self._require(not outcome.new_jobs, "a rerun doubled a job", run_id)
            self._require(not added, "a rerun of a running run", run_id)
            self._require(not outcome.is_answered, "a rerun of a running run", run_id)
        for name in added:
            self._add(name, at)
            self._judge_submit(name, at, outcome, blows)
        self._require(
            outcome.new_jobs <= set(added), "a rerun created a job of no run", *outcome.new_jobs
        )
        return multiple(*added)

    @rule(
        run_id=runs,
        at=machines,
        blows=blows_of(("observe", "log"), ("look",), max_times=3),
        follows=st.booleans(),
    )
    def wait(
        self, run_id: str, at: str, blows: tuple[Blow, ...] = NO_BLOWS, follows: bool = False
    ) -> None:
        """Wait for the end of a run, or a minute, and perhaps follow its log."""
        lines: list[str] = []

        def wait(place: str) -> RunState | None:
            run = self._find(run_id, place)
            with suppress(TimeoutError):
                if not follows:
                    return run.wait(60)
                for update in run.watch(timeout=60):
                    lines.extend(line.text for line in update.lines)
                    if update.state.has_ended:
                        return update.state
            return None

        is_over = self._own_job(run_id, at) and self.site.is_over(run_id)
        outcome = self._look(run_id, at, blows, wait)
        if is_over and outcome.is_answered:
            self._require(outcome.value is not None, "a wait missed the end of a job", run_id)
        is_whole = follows and not blows and self._submissions[run_id].home == at
        self._check_lines(
            run_id, at, lines, is_whole=is_whole and outcome.is_answered and bool(lines)
        )

    @rule(run_id=runs, at=machines, blows=blows_of(("observe", "log")))
    def fetch(self, run_id: str, at: str, blows: tuple[Blow, ...] = NO_BLOWS) -> None:
        """Fetch the model of a run; a fetch that was cut short continues."""
        target = self._folder / f"fetched-{next(self._ids)}"

        def fetch(place: str) -> Path:
            return self._find(run_id, place).fetch(target, checkpoints=True)

        outcome = self._look(run_id, at, blows, fetch)
        has_model = self._submissions[run_id].has_model and self._own_job(run_id, at)
        if outcome.struck.is_killed:
            return
        if outcome.is_answered:
            found = {
                name.relative_to(target).as_posix(): name.read_text()
                for name in map(Path, fetched_files(target))
            }
            self._require(found == RESULTS, f"a fetch brought {sorted(found)}", run_id)
        else:
            self._require(not target.exists(), "a failed fetch left something", run_id)
            self._require(not (has_model and self._is_survivable(blows)), outcome.message, run_id)
            if has_model:
                again = self._look(run_id, at, NO_BLOWS, fetch)
                self._require(again.is_answered, again.message, run_id)

        parts = [path.name for path in self._folder.iterdir() if path.name.endswith(".part")]
        self._require(not parts, f"a fetch left {parts}", run_id)

    @rule(at=machines, verb=st.sampled_from(("last", "begin")))
    def name_a_run_roughly(self, at: str, verb: str) -> None:
        """Name the last run, or a run by the beginning of its id: never somebody else's."""
        name = "last" if verb == "last" else f"m{self._number}"
        own = [sent for sent in self._submissions.values() if sent.home == at]
        outcome = self._do(
            at, NO_BLOWS, lambda place: cloudtrain.find_run(name, data_dir=place).cached_status()
        )
        if outcome.is_answered:
            self._require(not outcome.value.adopted, "a run of others was meant by accident")
        self._require(outcome.is_answered or not own or verb == "begin" or self._lacks_own(at), "")

    def requests(self, do: Callable[[], object]) -> list[Call]:
        """Do a command as a new process; return its calls."""
        self.site.reconnect()
        do()
        return list(self._wire.struck.calls)

    # Acts of the cloud.

    @rule(run_id=runs, saves=st.booleans())
    def start_running(self, run_id: str, saves: bool = False) -> None:
        """Have the nodes of a job run; perhaps they save when they are stopped."""
        if self._is_alive(run_id):
            self.site.start_job(run_id)
            self._submissions[run_id].saves = saves
            self._submissions[run_id].has_started = True

    @rule(run_id=runs, node=st.sampled_from((0, 1)))
    def print_line(self, run_id: str, node: int = 0) -> None:
        """Have a node print a line, and an event."""
        if self._is_alive(run_id):
            lines = self._submissions[run_id].lines[node]
            number = len(lines)
            lines.append(f"node{node} line{number}")
            event = {"type": "metrics", "time": 1, "node": node, "rank": node, "seq": number}
            event["values"] = {"loss": number}
            self.site.write_log(
                run_id, node, f"[rank {node}] {lines[-1]}", f"::cloudtrain:: {json.dumps(event)}"
            )

    @rule(run_id=runs, how=st.sampled_from(("succeeded", "failed", "evicted")))
    def end(self, run_id: str, how: str = "succeeded") -> None:
        """Have a job end by itself."""
        if not self._is_alive(run_id):
            return
        sent = self._submissions[run_id]
        if how == "succeeded":
            self.site.put_model(run_id, **MODEL)
            self.site.cloud.put(f"cloudtrain/runs/{run_id}/{CHECKPOINT}", b"c" * 1000)
            sent.has_model = True
        self.site.end_as(run_id, how)

    @rule(seconds=st.sampled_from((70, 400)))
    def let_time_pass(self, seconds: int) -> None:
        """Wait longer than a request may be on its way, or than a job is new."""
        self._clock.advance(seconds)

    @rule()
    def deliver_late_requests(self) -> None:
        """Have requests arrive whose clients have given up."""
        self.site.cloud.endpoint.deliver_late()

    @rule(run_id=runs, copies_tags=st.booleans())
    def add_a_job_of_a_stranger(self, run_id: str, copies_tags: bool) -> None:
        """Have a job that this project did not create, perhaps with the tags of one that it did."""
        if self._is_alive(run_id):
            name = f"stranger-{self._number}-{next(self._ids)}"
            self.site.add_job_of_stranger(name, run_id, copies_tags=copies_tags)
            self._strangers.add(name)

    # Invariants.

    @invariant()
    def every_job_has_our_tags(self) -> None:
        """Each job is one of a submission, and can be found by its tags."""
        for name in self._jobs():
            self._require(name in self._submissions, "a job of no run", name)
            tags = self._tags(name) or {}
            missing = [key for key in OUR_TAGS if f"cloudtrain-{key}" not in tags]
            self._require(not missing, f"a job without the tags {missing}", name)
            self._require(tags["cloudtrain-run"] == name, "a job with the tags of another", name)

    @invariant()
    def the_imitation_is_well(self) -> None:
        """It has made no mistake itself."""
        mistakes = self.site.cloud.account.unexpected_errors
        self._require(not mistakes, "\n".join(mistakes))

    def teardown(self) -> None:
        """Unless something is wrong already, look at everything when all is well again."""
        try:
            if not self._is_broken:
                self._judge_the_end()
        finally:
            self.site.cloud.endpoint.intercept = None
            self.site.cloud.account.unexpected_errors.clear()
            for name in {*self.site.job_names()}:
                self.site.end_job(name)
                self.site.forget_job(name)
            self._clock.on_sleep = lambda: None
            shutil.rmtree(self._folder, ignore_errors=True)

    def _judge_the_end(self) -> None:
        self.deliver_late_requests()
        for run_id, sent in self._submissions.items():
            if self._has_folder(run_id, sent.home):
                self.status(run_id, sent.home)
                self.logs(run_id, sent.home)
        for at in USERS:
            self.list_runs(at)
            self.adopt(at)
            self.name_a_run_roughly(at, "last")
            listed = {run["run"]: run for run in cloudtrain.list_runs(data_dir=str(self._data(at)))}
            for run_id in self._jobs():
                self._require(run_id in listed, f"a job is not listed {at}", run_id)
                owner = USERS[self._home_of_job(run_id)]
                is_own = not self._state(run_id, at).adopted
                named = str(listed[run_id]["owner"]).partition("@")[0]
                self._require(named == ("" if is_own else owner), f"its owner is {named}", run_id)
            strange = self._strangers & listed.keys()
            self._require(not strange, f"adopted {at}", *strange)
        alive = [run_id for run_id in self._jobs() if not self.site.is_over(run_id)]
        for run_id in alive:
            self.stop(run_id, self._home_of_job(run_id))
        self._settle_jobs()
        for run_id in alive:
            self._require(self.site.is_over(run_id), "a stopped job still runs, and costs", run_id)
        for run_id in self._jobs():
            self.wait(run_id, self._home_of_job(run_id))

    # How a command is done and judged.

    def _do(
        self,
        at: str,
        blows: tuple[Blow, ...],
        do: Callable[[str], object],
        acts: Mapping[str, Callable[[], object]] | None = None,
    ) -> Outcome:
        """Do a command on a machine, with what befalls it."""
        before = self._jobs()
        place = self._data(at)
        value: object = None
        error: CloudtrainError | None = None
        self._wire.begin(blows, place, acts or {})
        try:
            with self._user(at):
                value = do(str(place))
        except CloudtrainError as failed:
            error = failed
        except Killed:
            pass
        except BaseException:
            self._is_broken = not self._wire.struck.is_killed
            if self._is_broken:
                raise
        finally:
            struck = self._wire.end()
        if struck.is_killed:
            value = error = None
        if isinstance(error, CloudError):
            self._require(bool(error.hint), f"no hint: {error.message}")
        return Outcome(value, error, struck, frozenset(self._jobs() - before))

    def _look(
        self,
        run_id: str,
        at: str,
        blows: tuple[Blow, ...],
        do: Callable[[str], object],
        *,
        may_start: bool = False,
    ) -> Outcome:
        """Do a command about a run, and hold what is known of it against its job."""
        has_job = self._own_job(run_id, at) or (
            run_id in self._jobs() and not self._has_folder(run_id, at)
        )
        acts = {
            "ends": lambda: self.end(run_id),
            "look": lambda: self._ask(run_id, at),
        }
        outcome = self._do(at, blows, do, acts)
        if not may_start:
            self._require(not outcome.new_jobs, "a command created a job", *outcome.new_jobs)
        if isinstance(outcome.error, CloudError) and NOTHING_STARTED in outcome.message:
            self._require(may_start or not has_job, "a job was denied", run_id)
        self._judge(run_id, at, outcome, is_about=has_job)
        if not blows and not may_start and has_job:
            is_refused = isinstance(outcome.error, cloudtrain.UsageError | cloudtrain.RefusedError)
            is_empty = "left no files" in outcome.message or "its model comes" in outcome.message
            self._require(
                outcome.error is None or is_refused or is_empty,
                f"a command failed without a fault: {outcome.message}",
                run_id,
            )
        return outcome

    def _judge(self, run_id: str, at: str, outcome: Outcome, *, is_about: bool) -> None:
        """Hold the folder of a run against its job.

        `is_about`: the command asked the cloud for this run, and its job was there before.
        """
        if not self._has_folder(run_id, at):
            return
        state = self._state(run_id, at)
        known = self._submissions[run_id].known[at]
        known.was_unread |= state.log_unread is not None
        is_denied = NOTHING_STARTED in state.reason
        has_job = self._own_job(run_id, at)

        asks_in_vain = any(kind == "unseen" for kind, _ in outcome.struck.kinds)
        if is_about and has_job and outcome.is_answered and not asks_in_vain:
            self._require(not is_denied, f"a job was denied: {state.reason}", run_id)
            self._require(state.ref is not None, "a job is not known", run_id)
        if state.has_ended and not is_denied and has_job:
            self._require(
                self.site.is_over(run_id), f"a job was lost: {state.state}: {state.reason}", run_id
            )
            truth = {self.site.ended_as_run(run_id)}
            if state.adopted or known.was_unread:  # the words of its nodes are not known
                truth.add(self.site.ended_by_status(run_id))
            self._require(state.state in truth, f"it is {state.state}, not {truth}", run_id)
        if state.has_ended and not has_job and not self._is_late(run_id):
            self._require(state.state == "failed", f"without a job it {state.state}", run_id)

        rank = len(ORDER) if state.has_ended else ORDER.index(state.state)
        self._require(
            rank >= known.rank or (known.is_denied and has_job), f"back to {state.state}", run_id
        )
        known.rank = rank
        known.is_denied = is_denied

    def _judge_submit(
        self, run_id: str, at: str, outcome: Outcome, blows: tuple[Blow, ...]
    ) -> None:
        """Judge what a submit said of the job that it created, or did not."""
        sent = self._submissions[run_id]
        struck = outcome.struck
        create = Call(*self.site.calls["create"])
        sent.requests += struck.calls.count(create)
        is_of_the_cloud = isinstance(outcome.error, CloudError | RunExists | None)
        self._require(is_of_the_cloud, f"a submit was refused: {outcome.message}", run_id)
        has_rival = "rival" in struck.acts
        self._require(outcome.new_jobs <= {run_id}, "a second job", *outcome.new_jobs)
        if self._has_folder(run_id, at):
            self._check_events(run_id, at)

        exists = run_id in self._jobs() or self._is_late(run_id)
        kinds = struck.of(create)
        if has_rival:
            is_own = self._own_job(run_id, at)
            self._require(
                isinstance(outcome.error, RunExists) or struck.is_killed or is_own,
                "a job of another was taken for one's own",
                run_id,
            )
        elif NOTHING_STARTED in outcome.message:
            self._require(not exists, f"a job was denied: {outcome.message}", run_id)
        elif isinstance(outcome.error, CloudError):
            self._require(NOT_KNOWN in outcome.message, outcome.message, run_id)
            self._require(create in struck.calls, "nothing was sent", run_id)
            is_refused = len(kinds) == 1 and kinds[0] in PERMANENT
            self._require(not is_refused, "a refusal is certain", run_id)
        if kinds and kinds[0] in PERMANENT:
            self._require(struck.calls.count(create) == 1, "a refused request was repeated", run_id)
        if self._is_survivable(blows):
            self._require(outcome.error is None, f"a submit failed: {outcome.message}", run_id)
        if outcome.is_answered:
            self._require(run_id in self._jobs(), "a submit created no job", run_id)
        self._judge(run_id, at, outcome, is_about=outcome.is_answered)

    def _check_lines(self, run_id: str, at: str, lines: list[str], *, is_whole: bool) -> None:
        """Each line and each event of a node was read once, in its order."""
        if not self._has_folder(run_id, at):
            return
        read = events_of(cloudtrain.find_run(run_id, data_dir=str(self._data(at))).folder)
        for node, printed in self._submissions[run_id].lines.items():
            got = [line for line in lines if line.startswith(f"node{node} ")]
            wanted = printed if is_whole else printed[: len(got)]
            self._require(got == wanted, f"lines {got} instead of {printed}", run_id)
            numbers = [
                event["seq"]
                for event in read
                if event["type"] == "metrics" and event["node"] == node
            ]
            self._require(numbers == [*range(len(numbers))], f"events {numbers}", run_id)

    def _check_events(self, run_id: str, at: str) -> None:
        """Each request that may have created the job is on disk, and its creation at most once."""
        folder = cloudtrain.find_run(run_id, data_dir=str(self._data(at))).folder
        counts = Counter(event["type"] for event in events_of(folder))
        sent = self._submissions[run_id].requests
        self._require(counts["creating"] == sent, f"{counts['creating']} of {sent}", run_id)
        self._require(counts["submitted"] <= 1, "it was submitted twice", run_id)

    def _is_survivable(self, blows: tuple[Blow, ...]) -> bool:
        """Return whether a command has to succeed in spite of what befalls it."""
        if not blows:
            return True
        if len(blows) != 1:
            return False
        (blow,) = blows
        if isinstance(blow, Strike):
            return blow.kind in TRANSIENT and blow.times == 1
        return isinstance(blow, FirstTry)

    # Acts of others meanwhile.

    def _rival(self, run_id: str, at: str) -> None:
        (other,) = USERS.keys() - {at}
        with self._user(other), suppress(CloudtrainError):
            self.site.submit(run_id, str(self._data(other)), env={"ANOTHER": "job"})
        if self._home_of_job(run_id) == other:
            self._submissions[run_id].home = other
            self._submissions[run_id].requests = 0

    def _ask(self, run_id: str, at: str) -> None:
        """Ask for a run in another process of the same machine."""
        with suppress(RunNotFound, CloudError):
            cloudtrain.find_run(run_id, data_dir=str(self._data(at))).status()

    def _while_a_client_sleeps(self) -> None:
        self._wire.raise_if_killed()
        self._settle_jobs()

    def _settle_jobs(self) -> None:
        """Let stopping jobs save and end."""
        for run_id, sent in self._submissions.items():
            if sent.saves and self._is_alive(run_id):
                self.site.save_if_told(run_id)
        self._clock.pause()

    # Content of the cloud and of the disks.

    def _add(self, run_id: str, at: str) -> None:
        self._submissions[run_id] = Submission(run_id, at, time.monotonic())

    def _data(self, at: str) -> Path:
        return self._folder / at

    def _folders(self, at: str) -> set[str]:
        runs = self._data(at) / "runs"
        return {path.name for path in runs.iterdir()} if runs.exists() else set()

    def _has_folder(self, run_id: str, at: str) -> bool:
        return (self._data(at) / "runs" / run_id).is_dir()

    def _lacks_own(self, at: str) -> bool:
        """Return whether no own run has a folder: their clients were killed before."""
        folders = self._folders(at)
        return not any(
            name in folders and not self._state(name, at).adopted for name in self._submissions
        )

    def _state(self, run_id: str, at: str) -> RunState:
        return cloudtrain.find_run(run_id, data_dir=str(self._data(at))).cached_status()

    def _find(self, run_id: str, place: str) -> cloudtrain.Run:
        return cloudtrain.find_run(run_id, data_dir=place, provider=self.site.provider)

    def _jobs(self) -> set[str]:
        """Return the names of the jobs that are not of strangers."""
        return self.site.job_names() - self._strangers

    def _tags(self, run_id: str) -> dict[str, str] | None:
        return self.site.tags_by_name(run_id) if run_id in self.site.job_names() else None

    def _home_of_job(self, run_id: str) -> str:
        owner = str((self._tags(run_id) or {}).get("cloudtrain-owner", "")).partition("@")[0]
        return next((name for name, user in USERS.items() if user == owner), "")

    def _own_job(self, run_id: str, at: str) -> bool:
        """Return whether the run of that name on a machine belongs to the job of that name."""
        if run_id not in self._jobs() or not self._has_folder(run_id, at):
            return False
        return self._state(run_id, at).adopted or self._home_of_job(run_id) == at

    def _is_alive(self, run_id: str) -> bool:
        return run_id in self._jobs() and not self._is_told(run_id)

    def _is_told(self, run_id: str) -> bool:
        return run_id in self._jobs() and (
            self.site.is_told_to_stop(run_id) or self.site.is_over(run_id)
        )

    def _is_late(self, run_id: str) -> bool:
        return self.site.cloud.endpoint.holds_late_requests and run_id not in self._jobs()

    @contextmanager
    def _user(self, at: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOGNAME", USERS[at])
            yield

    def _require(self, condition: bool, message: str, *names: str) -> None:
        """Fail with this message, and what is known of these runs."""
        if condition:
            return
        self._is_broken = True
        raise AssertionError(f"{self.site.provider}: {' '.join(names)}: {message}")

"""Checks of runs: one job per run id, each line once, cause of the end, stop and results.

Three jobs run for all checks of a class: one succeeds, one fails and one is stopped.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from cloudtrain.api.context import archive_of
from cloudtrain.api.jobs import render, submit
from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run
from cloudtrain.errors import JobFailed, RunExists
from cloudtrain.planning.launch import Request
from cloudtrain.runs.history import History
from cloudtrain.testing.bench import (
    ARGUMENTS,
    GREETING,
    LINES,
    SECRET,
    VARIABLE,
    Bench,
    Checks,
    Effects,
    must,
    recorded,
)

T = TypeVar("T")

LOOK_SECONDS = 0.2
"""Pause between two looks at a run, whatever the provider asks for."""


@dataclass(frozen=True)
class Jobs:
    """The runs by kind, and the effects of submitting them."""

    runs: dict[str, Run]
    effects: Effects

    def ended(self, kind: str, seconds: float) -> Run:
        """Wait until the run has ended and return it. Each look reads the run folder anew."""
        run_id = self.runs[kind].id
        _eventually(lambda: find_run(run_id).status().has_ended, f"{run_id} has not ended", seconds)
        return find_run(run_id)


class RunChecks(Checks):
    """Checks of a provider's effects."""

    timeout_seconds: ClassVar[float] = 300.0
    """Maximum duration of a job of the suite, including its wait for a machine."""

    @pytest.fixture(scope="class")
    @classmethod
    def jobs(cls, bench: Bench) -> Jobs:
        """Submit the jobs once for all tests of the class, and start the first one twice."""
        with bench.client(), recorded() as effects:
            runs = {kind: submit(bench.plan(kind)) for kind in ("succeed", "fail", "wait")}
            _start_again(bench, runs["succeed"])

        return Jobs(runs, effects)

    def test_a_run_id_is_submitted_once(self, bench: Bench, jobs: Jobs) -> None:
        with pytest.raises(RunExists):
            submit(bench.plan("succeed"))

        run = jobs.ended("succeed", self.timeout_seconds)
        begun = [event for event in run.folder.events() if event.type == "node_started"]
        must(
            len(begun) == bench.platform.nodes,
            f"started twice with the same request, {len(begun)} launchers have begun",
            "start is idempotent: the remote name is the run id, and a name that is taken by this"
            " very run is no error",
        )

    def test_a_job_that_ends_well_has_succeeded(self, jobs: Jobs) -> None:
        state = jobs.ended("succeed", self.timeout_seconds).status()
        must(
            state.state == "succeeded",
            f"a job whose program left with 0 has {state.state}: {state.reason}",
            "the last observation of a run says how it ended, once all reports of its nodes are"
            " read",
        )
        must(state.started > 0 < state.ended, "it does not say when", "times are Unix timestamps")

    def test_the_job_sees_what_the_spec_says(self, bench: Bench, jobs: Jobs) -> None:
        run = jobs.ended("succeed", self.timeout_seconds)
        seen = [dict(event.extra) for event in run.folder.events() if event.type == "seen"]
        reported = seen[0] if seen else {}
        expected: dict[str, Any] = {"argv": list(ARGUMENTS), "variable": VARIABLE}

        if bench.platform.input:
            expected["greeting"] = GREETING
        if bench.platform.secret:
            expected["secret"] = hashlib.sha256(SECRET.encode()).hexdigest()

        for name, value in expected.items():
            must(
                reported.get(name) == value,
                f"the job's {name} is {reported.get(name)!r}, not {value!r}",
                "arguments, variables, inputs and secrets reach the program unchanged: no shell"
                " changes them",
            )

    def test_each_line_and_event_comes_once_and_in_order(self, jobs: Jobs) -> None:
        run = jobs.ended("succeed", self.timeout_seconds)
        lines = [line.text for line in run.logs() if line.text.startswith("line ")]
        events = [event for event in run.folder.events() if event.type == "numbered"]
        numbers = [event.extra["number"] for event in events]

        for kind, actual, expected in (
            ("lines", lines, [f"line {number}" for number in range(LINES)]),
            ("events", numbers, list(range(LINES))),
        ):
            must(
                actual == expected,
                f"of {LINES} {kind} there are {len(actual)}: {_difference(actual, expected)}",
                "observe gives what the run folder does not hold yet; LogPart.position says how far"
                " a log was read",
            )

    def test_an_ended_run_has_no_news(self, bench: Bench, jobs: Jobs) -> None:
        run = jobs.ended("succeed", self.timeout_seconds)
        before = run.folder.events_file.read_bytes()
        history = History(run.folder)
        history.take(bench.provider.observe(run.folder, history.read()))
        must(
            run.folder.events_file.read_bytes() == before,
            "a look at a run that has ended wrote more events",
            "observe gives nothing new of a run that has ended and is known to have",
        )

    def test_a_job_that_fails_names_its_cause(self, jobs: Jobs) -> None:
        run = jobs.ended("fail", self.timeout_seconds)
        state = run.status()
        promise = "the first error that a node tells is the cause, not the platform's exit code"
        must(
            state.state == "failed",
            f"a job whose program raised has {state.state}: {state.reason}",
            promise,
        )
        cause = None
        if state.error:
            cause = (state.error.rank, state.error.exception, state.error.message)

        must(
            cause == (0, "ValueError", "the dog ate shard 3"),
            f"its cause is {cause}: {state.reason}",
            promise,
        )

        with pytest.raises(JobFailed):
            run.result()

    def test_a_running_job_stops_when_it_is_asked_and_asking_again_does_no_harm(
        self, bench: Bench, jobs: Jobs
    ) -> None:
        run = find_run(jobs.runs["wait"].id)
        seconds = self.timeout_seconds
        folder = run.folder
        _eventually(
            lambda: any(line.text == "waiting" for line in run.logs()),
            "it prints no `waiting`",
            seconds,
        )

        must(
            SECRET not in _command_lines(),
            "a process's arguments hold a secret",
            "secrets are never arguments",
        )
        history = History(folder)
        is_told = bench.provider.stop(folder, history.read(), history.record)
        must(is_told, "stop returned False for a job that runs", "False: it cannot be asked yet")
        bench.provider.stop(folder, history.read(), history.record)
        state = jobs.ended("wait", seconds).status()
        must(
            state.state == "stopped",
            f"a job with a stop request has {state.state}: {state.reason}",
            "stop asks the launcher with SIGTERM, or by its stop file; it then leaves as stopped",
        )
        before = folder.events_file.read_bytes()
        must(
            find_run(run.id).stop().state == "stopped",
            "a second stop changed its end",
            "asking twice does no harm",
        )

        must(
            folder.events_file.read_bytes() == before,
            "a second stop wrote events",
            "what has ended stays as it is",
        )

    def test_fetch_brings_what_the_job_left(self, jobs: Jobs, tmp_path: Path) -> None:
        folder = jobs.ended("succeed", self.timeout_seconds).fetch(tmp_path / "result")
        for name, text in (("model/model.txt", "weights"), ("output/output.txt", "notes")):
            must(
                (folder / name).is_file() and (folder / name).read_text() == text,
                f"{name} is missing, or lacks the content of the job:"
                f" {sorted(path.name for path in folder.rglob('*'))}",
                "fetch fills folder/model and folder/output with the files of the job",
            )

    def test_no_secret_is_in_a_command_or_in_the_run_folder(self, jobs: Jobs) -> None:
        promise = "secrets are never arguments, in no file of this machine, and *** in logs"
        leaked = [words for words in jobs.effects.processes if SECRET in words]
        must(
            not leaked,
            "a command was given a secret:"
            f" {[words.replace(SECRET, '…')[:200] for words in leaked]}",
            promise,
        )

        for kind, run in jobs.runs.items():
            if kind != "wait":  # that one runs until it is stopped
                jobs.ended(kind, self.timeout_seconds)

            for path in run.folder.path.rglob("*"):
                must(
                    SECRET.encode() not in _content(path),
                    f"{path.name} of the run folder holds a secret",
                    promise,
                )


def _content(path: Path) -> bytes:
    """Content of a file; empty for a folder and for a file that a running job has just replaced."""
    with suppress(FileNotFoundError):
        if not path.is_file():
            return b""

        return path.read_bytes()

    return b""


def _start_again(bench: Bench, run: Run) -> None:
    """Submit once more, as if the first answer had been lost."""
    plan = bench.plan("succeed")
    folder = run.folder
    request = Request(
        provider=bench.name, document=folder.document("request.json"), job=render(plan).job
    )
    bench.provider.start(
        plan,
        request,
        folder,
        archive_of(plan),
        None,
        History(folder).record,
    )


def _eventually(look: Callable[[], T], complaint: str, seconds: float) -> T:
    deadline = time.monotonic() + seconds
    while not (result := look()):
        if time.monotonic() > deadline:
            pytest.fail(f"{complaint} after {seconds:g} s", pytrace=False)
        time.sleep(LOOK_SECONDS)

    return result


def _command_lines() -> str:
    """Command lines of all processes of this machine, where the system shows them."""
    return "\n".join(text for text in map(_text, Path("/proc").glob("[0-9]*/cmdline")) if text)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended
        return ""


def _difference(actual: list[Any], expected: list[Any]) -> str:
    for one, other in zip(actual, expected, strict=False):
        if one != other:
            return f"{one!r} where {other!r} belongs"

    last = actual[-1] if actual else None
    return f"the last is {last!r}"

"""Kills in a row, whatever is struck and at whatever moment: the training ends, and as if nothing
had happened.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.waiting import eventually

JOB = """
name: cat
args: {epochs: EPOCHS, checkpoint-every-steps: 3, seed: 3}
resources: {processes: 2}
limits: {restarts: 10}
"""
STRIKES = 10
FEW = ("SIGKILL of a rank", "SIGKILL of the supervisor")
"""Strikes without `--thorough`, which is asked for after a change of the launcher."""
FURTHER_STEPS = 12
"""How many steps a training is let go on after a resume, at most, before it is struck again."""
STOPPED = 5
FAILED = 1


class Training:
    """One training in as many runs as it takes, each the rerun of the one before."""

    def __init__(self, cli: CommandLine, first: str) -> None:
        self.cli = cli
        self.runs = [first]
        cli.run("submit", "--run-id", first, "--detach")
        self.told: list[str] = []
        """Targets that were struck, with their steps."""

    @property
    def run(self) -> str:
        return self.runs[-1]

    def events(self, kind: str, *runs: str) -> list[dict[str, Any]]:
        """Return the events of one kind, of all runs or of some, in order."""
        return [
            event
            for run in runs or self.runs
            for event in self.cli.events(run)
            if event["type"] == kind
        ]

    def pid(self, rank: int) -> int:
        """The process that is this rank now; -1: the launcher."""
        kind = "node_started" if rank < 0 else "rank_started"
        return int(
            [event for event in self.events(kind, self.run) if event["rank"] == rank][-1]["pid"]
        )

    def await_checkpoint(self, resumes: int, further: int) -> int:
        """Wait until it has resumed this often and trained some steps since; return the step of its
        checkpoint.
        """

        def look() -> int:
            ended = self.events("ended", self.run)
            resumed = self.events("resumed")
            first = resumed[-1]["step"] if resumed else 0
            steps = [event["step"] for event in self.events("checkpoint", self.run)]
            if len(resumed) == resumes and steps and steps[-1] >= first + further:
                return int(steps[-1])
            assert not ended, f"it ended before it was struck so often: {ended}"
            return 0

        return eventually(look)

    def go_on(self, ends: int | None) -> None:
        """After a strike that ends the run with this exit code: wait for the end and begin the next
        one.
        """
        if ends is None:
            return
        waited = self.cli.run("wait", self.run)
        assert waited.code == ends, waited.err
        rerun = self.cli.run("rerun", self.run, "--detach")
        assert rerun.code == 0, rerun.err
        self.runs.append(rerun.out.strip())


def kill(
    choose: Callable[[Training, random.Random], int], signum: signal.Signals
) -> Callable[..., None]:
    """A strike at a process."""
    return lambda training, chance: os.kill(choose(training, chance), signum)


def rank(training: Training, chance: random.Random) -> int:
    return training.pid(chance.randint(0, 1))


def agent(training: Training, chance: random.Random) -> int:
    """torchrun itself: the child of the launcher, and the parent of the process that forks the
    ranks.
    """
    launcher = training.pid(-1)
    (child,) = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return int(child)


def launcher(training: Training, chance: random.Random) -> int:
    return training.pid(-1)


def supervisor(training: Training, chance: random.Random) -> int:
    return int((training.cli.run_folder(training.run) / "supervisor.lock").read_text())


def stop(training: Training, chance: random.Random) -> None:
    training.cli.run("stop", training.run)


KINDS: dict[str, tuple[Callable[..., None], int | None]] = {
    "SIGKILL of a rank": (kill(rank, signal.SIGKILL), None),
    "SIGTERM of a rank": (kill(rank, signal.SIGTERM), STOPPED),
    "SIGKILL of torchrun": (kill(agent, signal.SIGKILL), FAILED),
    "SIGKILL of the launcher": (kill(launcher, signal.SIGKILL), FAILED),
    "SIGTERM of the launcher": (kill(launcher, signal.SIGTERM), STOPPED),
    "SIGKILL of the supervisor": (kill(supervisor, signal.SIGKILL), FAILED),
    "cloudtrain stop": (stop, STOPPED),
}
"""Source of a strike -> exit code of the run that it ends; None: the ranks start anew within the
run.
"""


@contextmanager
def noted(note: Callable[[], str]) -> Iterator[None]:
    """A failure inside tells how to repeat it."""
    try:
        yield
    except BaseException as error:
        error.add_note(note())
        raise


@pytest.mark.torchrun
def test_kills_at_random_moments_leave_the_parameters_as_they_would_have_been(
    cli: CommandLine, thorough: bool
) -> None:
    seed = int(os.environ.get("SEED", "7"))
    chance = random.Random(seed)
    kinds = [*KINDS, *["SIGKILL of a rank"] * (STRIKES - len(KINDS))]
    chance.shuffle(kinds)
    kinds = kinds if thorough else [*FEW]
    cli.write(job_yaml=JOB.replace("EPOCHS", "7" if thorough else "4"))
    scratch = cli.folder / "tmp"
    scratch.mkdir()
    cli.env["TMPDIR"] = str(scratch)
    whole = cli.run("submit", "--run-id", "whole-1")
    assert whole.code == 0, whole.err
    expected = cli.json("status", "whole-1")["result"]["parameters_sha256"]

    training = Training(cli, "cat-1")
    with noted(lambda: f"SEED={seed}; struck: {training.told}"):
        for resumes, kind in enumerate(kinds):
            strike, ends = KINDS[kind]
            step = training.await_checkpoint(resumes, chance.randint(1, FURTHER_STEPS))
            training.told.append(f"{kind} at step {step} of {training.run}")
            strike(training, chance)
            training.go_on(ends)
            training.await_checkpoint(resumes + 1, 1)
            assert training.events("resumed")[-1]["step"] >= step, (
                "what was on disk when it was struck is not lost"
            )
        waited = cli.run("wait", training.run)
        assert waited.code == 0, waited.err
        state = cli.json("status", training.run)
        assert state["state"] == "succeeded"
        assert state["result"]["parameters_sha256"] == expected
        starts = [event for event in training.events("rank_started") if event["rank"] == 0]
        assert len(training.events("resumed")) == len(starts) - 1 == len(kinds), "none began anew"
        assert cli.processes() == []
        assert {Path(event["scratch"]).parent for event in training.events("node_started")} == {
            scratch
        }
        assert list(scratch.glob("cloudtrain-*")) == []

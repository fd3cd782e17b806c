"""Submits to an imitated cloud while faults strike and clients are killed, and their outcomes."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloudtrain.api.lookup import find_run, import_remote_runs, list_runs
from cloudtrain.errors import NOTHING_STARTED, CloudtrainError
from tests.fakes.messages import FaultKind
from tests.providers.sites import ALWAYS, CREATE_TIMEOUT, Site
from tests.support.waiting import eventually

ALIVE = ("pending", "running")


@dataclass
class Tally:
    """Numbers of many submits, and what went wrong, a line each."""

    submits: int = 0
    jobs: int = 0
    strikes: int = 0
    kills: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.submits} submits, {self.strikes} faults, {self.kills} kills, {self.jobs} jobs,"
            f" {len(self.failures)} failures"
        )


KINDS: tuple[FaultKind, ...] = (
    *("throttle", "error", "expired", "denied", "lost", "refused_lost", "late"),
    *("unseen", "gateway", "proxy", "failed_after", "html", "truncated", "empty"),
)
VERBS = ("status", "list", "rerun", "stop", "discovery")


def random_strikes(chance: random.Random) -> str:
    """Choose up to six faults, most of them in the calls that create the job and look for it."""
    strikes = []
    for _ in range(chance.randrange(7)):
        call = chance.choice(("create", "create", "look", "look", "tags", "prepare"))
        excluded = {"create": ("unseen",), "prepare": ("unseen", "late")}.get(call, ("late",))
        kind = chance.choice([kind for kind in KINDS if kind not in excluded])
        times = chance.choice((1, 1, 2, ALWAYS))
        strikes.append(f"{call}:{kind}@{chance.randint(1, 3)}x{times}")
    return " ".join(strikes)


class Campaign:
    """Random submits to one cloud, each with a separate data folder.

    The seed decides everything but the timing.
    """

    def __init__(self, site: Site, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.folder = folder
        self._patch = patch
        self.tally = Tally()

    def submit(self, seed: int) -> None:
        """Submit once, look at the run while faults continue, then judge it when all is well again."""
        chance = random.Random(seed)
        run_id = f"struck-{seed}"
        strikes = random_strikes(chance)
        data_dir = self.folder / run_id
        endpoint = self.site.cloud.endpoint
        endpoint.reset()
        self.site.strike(strikes)
        is_killed = chance.random() < 0.15
        error = (
            self._kill(run_id, data_dir, chance)
            if is_killed
            else self._attempt(run_id, lambda: self.site.submit(run_id, str(data_dir)))
        )
        self._look(run_id, data_dir, chance)
        self.tally.strikes += len(endpoint.struck)
        self._patch.setattr(CREATE_TIMEOUT, 0 if chance.random() < 0.5 else 60)
        was_late = run_id not in self.site.job_names()
        if chance.random() < 0.5:  # this look comes first, and the request arrives later
            self._look(run_id, data_dir, chance)
        endpoint.deliver_late()
        was_late = was_late and run_id in self.site.job_names()
        endpoint.reset()
        self.tally.submits += 1
        message = f"seed {seed} {strikes}{' killed' if is_killed else ''}"
        if run_id in self.site.job_names():
            self.tally.jobs += 1
            if NOTHING_STARTED in error:
                self.tally.failures.append(f"denied: {run_id}: {message}: {error}")
            self._judge(run_id, data_dir, chance.choice(VERBS), message)
        self.site.end_job(run_id)
        self.site.forget_job(run_id)

    def _attempt(self, what: str, do: Callable[[], object]) -> str:
        """Do something; return the message of the error, and take note of a crash."""
        try:
            do()
        except CloudtrainError as error:
            return error.message
        except Exception as error:  # noqa: BLE001
            self.tally.failures.append(f"crashed: {what}: {error!r}")
        return ""

    def _kill(self, run_id: str, data_dir: Path, chance: random.Random) -> str:
        """Submit in another process that is killed amid a call, and return what it said before."""
        cli = self.site.command_line(self.folder / f"cli-{run_id}")
        call = self.site.calls[chance.choice(("create", "create", "look", "prepare"))]
        endpoint = self.site.cloud.endpoint
        endpoint.fault(chance.choice(("hang", "hang_before")), *call, nth=chance.randint(1, 2))
        client = cli.start("--data-dir", str(data_dir), *self._words(run_id))
        eventually(lambda: endpoint.hanging or client.poll() is not None)
        client.send_signal(signal.SIGKILL)
        _, errors = client.communicate()
        self.tally.kills += client.returncode == -signal.SIGKILL
        eventually(lambda: not endpoint.hanging)
        return errors

    def _words(self, run_id: str) -> tuple[str, ...]:
        return ("submit", "--provider", self.site.provider, "--detach", "--run-id", run_id)

    def _look(self, run_id: str, data_dir: Path, chance: random.Random) -> None:
        """Ask for the run once or twice, whatever comes of it."""
        for _ in range(chance.randint(0, 2)):
            self._ask(chance.choice(("status", "list")), run_id, data_dir)

    def _ask(self, verb: str, run_id: str, data_dir: Path) -> None:
        place = str(data_dir)
        asks: dict[str, Callable[[], object]] = {
            "list": lambda: list_runs(data_dir=place),
            "discovery": lambda: import_remote_runs(self.site.provider, data_dir=place),
            "rerun": lambda: find_run(run_id, data_dir=place).rerun(),
            "stop": lambda: find_run(run_id, data_dir=place).stop(),
            "status": lambda: find_run(run_id, data_dir=place).status(),
        }
        self._attempt(f"{run_id}: {verb}", asks[verb])

    def _judge(self, run_id: str, data_dir: Path, verb: str, message: str) -> None:
        """The job exists and the cloud is healthy: one command must suffice to find it."""
        before = self.site.job_names()
        self._ask(verb, run_id, data_dir)
        new_jobs = self.site.job_names() - before
        if new_jobs:
            self.tally.failures.append(f"doubled: {run_id}: {message}: {verb} started {new_jobs}")
        for name in new_jobs:
            self.site.end_job(name)
        try:
            state = find_run(run_id, data_dir=str(data_dir)).cached_status()
        except CloudtrainError as error:
            self.tally.failures.append(f"lost: {run_id}: {message}: {verb}: {error.message}")
            return
        if NOTHING_STARTED in state.reason:
            self.tally.failures.append(f"denied: {run_id}: {message}: {verb}: {state.reason}")
        elif state.state not in (("stopped",) if verb == "stop" else ALIVE):
            self.tally.failures.append(
                f"lost: {run_id}: {message}: {verb}: {state.state}: {state.reason}"
            )

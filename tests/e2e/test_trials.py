"""Trials of a sweep that really train end themselves at a rung, and those that wait there go on
from their checkpoint.

The launcher's decisions are shown by tests/entrypoints/launcher/test_trial.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api.run import Run
from cloudtrain.declaration import declarations
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.planning.plan import Plan, TrialRules
from cloudtrain.providers import get_provider
from cloudtrain.providers.protocol import Provider
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import RunState
from cloudtrain_wire.events import RungReached
from tests.fakes.containers import Container
from tests.providers.sites import open_site
from tests.support.engine import engine_and_image, left_of

pytestmark = pytest.mark.torchrun

RULES = TrialRules(trial=0, metric="loss", goal="minimize", rungs=(1, 2, 4), eta=2)
BEHIND = json.dumps({"version": 1, "rungs": [{"at": 2, "values": {"1": 0.1, "2": 0.2, "3": 0.3}}]})
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from cloudtrain_job import log_metrics
stopped = []
while "RUNS" in os.environ and not any(Path(os.environ["RUNS"]).rglob("rungs.json")):
    time.sleep(0.05)
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
for epoch in range(1, 4):
    time.sleep(0.3)
    print(f"loss={1 / epoch:.3f}", flush=True) if sys.argv[1:] else log_metrics(epoch=epoch, loss=1 / epoch)
    for _ in range(200 * (epoch == 2)):
        if stopped:
            raise SystemExit
        time.sleep(0.1)
"""
"""Waits for the published values if RUNS is set; after its second report, for its end."""
JOB: dict[str, Any] = {"name": "trial", "entrypoint": "train.py", "limits": {"max_runtime": "1 h"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the job; runs are kept beside it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    made = tmp_path / "job"
    made.mkdir()
    (made / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(made)
    return made


def as_trial(plan: Plan, rules: TrialRules) -> Plan:
    return replace(plan, context=replace(plan.context, trial=rules))


def reached(run: Run) -> list[tuple[int, str]]:
    return [
        (event.report, event.outcome)
        for event in run.folder.each_event()
        if isinstance(event, RungReached)
    ]


def pruned(
    job: Mapping[str, Any],
    provider: str,
    begin: Callable[[Run], None] = lambda _: None,
    **more: Any,
) -> Run:
    """A trial that is behind at its second report, when it has ended.

    `begin` is called when the values of other trials are published.
    """
    run = cloudtrain.submit(
        as_trial(cloudtrain.plan(cloudtrain.load(job), provider, **more), RULES)
    )
    get_provider(provider).publish(run.folder, run.status(), "rungs.json", BEHIND)
    begin(run)
    state = run.wait()
    assert (state.state, state.trial_outcome) == ("succeeded", "pruned")
    assert reached(run) == [(1, "goes_on"), (2, "pruned")]
    assert not state.warnings
    return run


def test_a_rehearsal_of_a_cloud_is_pruned_as_the_job_there_would_be(
    folder: Path, tmp_path: Path
) -> None:
    pruned({**JOB, "env": {"RUNS": str(tmp_path / "data")}}, "local", as_="aws")


@pytest.mark.docker
@pytest.mark.parametrize("contract", [None, "aws"], ids=["plain", "as SageMaker"])
def test_containers_find_what_is_published_while_they_run(
    folder: Path, tmp_path: Path, contract: str | None
) -> None:
    with engine_and_image() as (client, image):
        pruned({**JOB, "image": {"docker": image}}, "docker", as_=contract)
        assert left_of(client, tmp_path / "data") == []


@pytest.mark.parametrize("provider", ["aws", "azure"])
def test_a_trial_in_a_cloud_reads_what_is_published_and_is_pruned_by_its_output(
    folder: Path, tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Container, "forked", True)
    with open_site(provider) as site:
        for name, value in site.cloud.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(f"CLOUDTRAIN_{provider.upper()}_POLL", "0.2")
        job = {**JOB, "args": ["prints"], "metrics": {"loss": "loss=([0-9.]+)"}}
        # Its containers start when this wakes it from its first phase.
        run = pruned(job, provider, lambda run: site.cloud.service.jobs[run.id].woken.set())
        with pytest.raises(StorageError, match="left no files"):
            run.fetch(tmp_path / "fetched")


def test_each_provider_publishes_as_it_declares(tmp_path: Path) -> None:
    for declaration in declarations():
        overrides = type(get_provider(declaration.name)).publish is not Provider.publish
        assert overrides is declaration.publishes
    local = get_provider("local")
    with pytest.raises(UsageError, match="has no place at which a job reads"):
        Provider.publish(local, RunFolder(tmp_path), RunState(run_id="x"), "rungs.json", "{}")

"""Submits with doubtful answers that no sequence of `CloudMachine` makes: sweeps and their trials."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.lookup import find_run
from cloudtrain.errors import CloudError
from cloudtrain.providers import get_provider
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.sweeps.journal import Launching, RunEnded, SweepFolder
from cloudtrain.sweeps.state import Trial
from cloudtrain.sweeps.trials import RunTrials
from tests.fakes.messages import Call
from tests.providers.faults import run_id_of
from tests.providers.sites import CREATE_TIMEOUT, NEW_JOB, Site
from tests.support.function_trials import definition_of
from tests.support.native_sweeps import begin
from tests.support.samples import events_of

pytestmark = [
    pytest.mark.once,
    pytest.mark.usefixtures("site_folder"),
]


TUNING_CALLS = {
    "create": ("sagemaker", "CreateHyperParameterTuningJob"),
    "look": ("sagemaker", "DescribeHyperParameterTuningJob"),
}
SWEEP = {
    "args": {"lr": 1},
    "metrics": {"loss": "loss: ([0-9.]+)"},
    "sweep": {
        "objective": {"metric": "loss", "goal": "minimize"},
        "method": "random",
        "space": {"lr": "uniform(0.1, 1)"},
        "trials": 1,
    },
}


EXECUTED = {
    "a page for an answer": "create:html",
    "unreadable for good": "create:htmlx200 look:unseenx200",
    "lost, then denied": "create:lost create:denied@2x200 look:unseen",
    "lost, and no tags yet": "create:lost tags:unseenx200",
}
"""Faults in a submit whose request is executed."""


@pytest.mark.parametrize("case", EXECUTED)
def test_a_native_sweep_that_was_created_is_known_whatever_the_answers_were(
    site: Site, case: str
) -> None:
    run_id = f"sweep-{run_id_of(case)}"
    of_sweeps = (
        replace(site, calls={**site.calls, **TUNING_CALLS}) if site.provider == "aws" else site
    )
    plan = cloudtrain.plan(
        cloudtrain.load({**site.job, **SWEEP, "image": site.cloud.image}),
        site.provider,
        run_id=run_id,
    )
    of_sweeps.strike(EXECUTED[case])
    with suppress(CloudError):
        begin(plan)
    site.cloud.endpoint.reset()
    history = History(RunFolder(Path(plan.context.data_dir, "sweeps", "runs", run_id)))
    native = get_provider(site.provider).native_sweeps()
    native.observe(history.folder, history.read(), history.record)
    assert history.state.ref is not None
    assert not history.state.has_ended


@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
def test_each_request_that_creates_a_job_is_recorded_before_it_is_sent(
    site: Site, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudtrain.providers.aws.client import aws

    aws.cache_clear()
    monkeypatch.setenv("AWS_RETRY_MODE", mode)
    run_id = f"counted-{mode}"
    site.strike("create:errorx200")
    with pytest.raises(CloudError, match="not known yet"):
        site.submit(run_id)
    aws.cache_clear()
    recorded = [event["type"] for event in events_of(find_run(run_id).folder)].count("creating")
    assert site.cloud.endpoint.calls.count(Call(*site.calls["create"])) == recorded > 1


def submit_late(site: Site, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submit a job that the cloud creates only when the client has stopped to look for it."""
    site.strike("create:latex200")
    with pytest.raises(CloudError, match="not known yet"):
        site.submit(run_id)
    monkeypatch.setattr(CREATE_TIMEOUT, 0)


def test_a_trial_that_appears_late_has_not_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_late(site, "late-trial", monkeypatch)
    monkeypatch.setattr(type(get_provider(site.provider)), "poll_seconds", lambda *_: -1.0)
    run = find_run("late-trial").folder
    documents = {name: run.text(name) for name in ("spec.yaml", "plan.json")}
    folder = SweepFolder.create(run.path.parents[1], definition_of(), documents)
    trials = RunTrials(folder, definition_of())
    launching = Launching(time=0, trial=0, run=run.run_id)
    trial = Trial(number=0, parameters={}, state="running", runs=[launching])
    assert trials.observe(trial) == []
    with monkeypatch.context() as later:
        later.setattr(NEW_JOB, 0)
        (ended,) = trials.observe(trial)
    assert isinstance(ended, RunEnded)
    assert ended.outcome == "interrupted"

    site.cloud.endpoint.deliver_late()
    assert trials.observe(trial) == []
    assert History(run).read().ref is not None

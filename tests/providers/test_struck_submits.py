"""Sequences of faults and kills at both clouds: every job is known, not doubled and not denied."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.lookup import find_run, import_remote_runs, list_runs
from cloudtrain.api.monitor import RunMonitor
from cloudtrain.errors import NOTHING_STARTED, CloudError, UsageError
from cloudtrain.providers import get_provider
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.sweeps.journal import Launching, RunEnded, SweepFolder
from cloudtrain.sweeps.state import Trial
from cloudtrain.sweeps.trials import RunTrials
from tests.fakes.messages import Call, FaultKind
from tests.providers.faults import run_id_of
from tests.providers.sites import ALWAYS, CREATE_TIMEOUT, NEW_JOB, Site
from tests.providers.struck_submits import VERBS, Campaign
from tests.support.function_trials import definition_of
from tests.support.native_sweeps import begin
from tests.support.samples import events_of

SUBMITS = 5
THOROUGH_SUBMITS = 500


pytestmark = [
    pytest.mark.once,
    pytest.mark.usefixtures("folder"),
]


@pytest.fixture
def folder(site_folder: Path) -> Path:
    return site_folder.parent


def error_of_submit(site: Site, run_id: str) -> str:
    """Submit, and return the message of the error; empty if there was none."""
    try:
        site.submit(run_id)
    except CloudError as error:
        return error.message
    return ""


EXECUTED = {
    "a page for an answer": "create:html",
    "an answer cut off": "create:truncated",
    "an empty answer": "create:empty",
    "created and yet an error": "create:failed_afterx200",
    "unreadable for good": "create:htmlx200 look:unseenx200",
    "an error, then cut off": "create:error create:truncated@2",
    "lost, then denied": "create:lost create:denied@2x200 look:unseen",
    "lost, then throttled": "create:lost create:throttle@2x200 look:unseenx200",
    "lost, then a proxy": "create:lost create:proxy@2x200 look:errorx200",
    "lost, and no tags yet": "create:lost tags:unseenx200",
    "lost, and unreadable looks": "create:lostx200 look:emptyx200",
    "lost, and tags denied": "create:lostx200 tags:deniedx200",
    "lost, and tags expired": "create:lostx200 tags:expiredx200",
    "lost, and tags throttled": "create:lostx200 tags:throttle",
}
"""Sequences that execute the request, whatever answer the client gets."""


@pytest.mark.parametrize("case", EXECUTED)
def test_a_job_that_was_created_is_known_whatever_the_answers_were(site: Site, case: str) -> None:
    run_id = run_id_of(case)
    site.strike(EXECUTED[case])
    error = error_of_submit(site, run_id)
    assert not error or "not known yet" in error
    assert NOTHING_STARTED not in error
    site.cloud.endpoint.reset()
    assert run_id in site.job_names()
    before = site.job_names()
    with pytest.raises(UsageError, match="is still pending"):
        find_run(run_id).rerun()
    assert site.job_names() == before
    assert find_run(run_id).cached_status().state == "pending"


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


@pytest.mark.parametrize(
    "case",
    ["a page for an answer", "unreadable for good", "lost, then denied", "lost, and no tags yet"],
)
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


@pytest.mark.parametrize("verb", VERBS)
def test_a_job_that_appears_late_is_found_before_its_absence_is_believed(
    site: Site, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = f"late-{verb}"
    submit_late(site, run_id, monkeypatch)
    assert NOTHING_STARTED in find_run(run_id).status().reason
    site.cloud.endpoint.deliver_late()
    site.cloud.endpoint.reset()
    before = site.job_names()
    if verb == "status":
        assert find_run(run_id).status().state == "pending"
    elif verb == "list":
        (listed,) = (run for run in list_runs() if run["run"] == run_id)
        assert (listed["state"], listed["ended"], listed["reason"]) == ("pending", None, "")
    elif verb == "rerun":
        with pytest.raises(UsageError, match="is still pending"):
            find_run(run_id).rerun()
    elif verb == "stop":
        assert find_run(run_id).stop().state == "stopped"
    else:
        import_remote_runs(site.provider)
    assert site.job_names() == before
    state = find_run(run_id).cached_status()
    assert state.ref is not None
    assert state.state == ("stopped" if verb == "stop" else "pending")


def test_a_trial_that_appears_late_has_not_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_late(site, "late-trial", monkeypatch)
    monkeypatch.setattr(RunMonitor, "_is_poll_due", lambda _: True)
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


@pytest.mark.parametrize("verb", ["status", "rerun", "stop"])
def test_that_nothing_was_started_is_not_believed_while_the_cloud_is_silent(
    site: Site, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = f"silent-{verb}"
    submit_late(site, run_id, monkeypatch)
    assert find_run(run_id).status().has_ended
    site.cloud.endpoint.deliver_late()
    site.cloud.endpoint.fault("expired", *site.calls["look"], times=ALWAYS)
    before = site.job_names()
    with pytest.raises(CloudError, match="expired"):
        getattr(find_run(run_id), verb)()
    assert site.job_names() == before


@pytest.mark.parametrize("kind", ["unseen", "html", "empty", "gateway"])
def test_a_new_job_that_is_not_shown_yet_does_not_end_a_follow(site: Site, kind: FaultKind) -> None:
    run = site.submit(f"unseen-{kind}")
    site.cloud.endpoint.fault(kind, *site.calls["observe"], times=3)
    updates = run.watch()
    while len(site.cloud.endpoint.struck) < 3:
        assert not next(updates).state.has_ended
    assert not next(updates).state.has_ended
    assert find_run(run.id).status().state == "pending"


def test_a_job_that_has_just_been_created_can_be_stopped_before_it_is_shown(site: Site) -> None:
    run = site.submit("unseen-stop")
    site.cloud.endpoint.fault("unseen", *site.calls["observe"], times=2)
    assert run.stop().state == "stopped"


@pytest.mark.timeout(5000)
def test_every_job_is_known_after_random_faults_and_kills(
    site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    submits = THOROUGH_SUBMITS if thorough else SUBMITS
    campaign = Campaign(site, folder, monkeypatch)
    for seed in range(submits):
        campaign.submit(seed)
    print(f"\n{site.provider}: {campaign.tally}", *campaign.tally.failures, sep="\n  ")
    assert campaign.tally.jobs
    assert not campaign.tally.failures

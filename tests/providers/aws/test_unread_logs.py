"""Who may not read logs, or is not answered: jobs are stopped, end, and are fetched and repeated
all the same.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.cli import main
from cloudtrain.errors import CloudError
from cloudtrain.submission.lookup import find_run
from tests.fakes.aws.cloud import Cloud
from tests.fakes.faults import FaultKind
from tests.providers.aws.archives import entry, packed
from tests.providers.aws.jobs import submitted, write_log
from tests.support.events import events_of

ALWAYS = 500
"""More often than anybody asks."""
UNREADABLE = [{"logs:*"}, {"logs:DescribeLogStreams"}, {"logs:GetLogEvents"}]
NAMES = ["all of logs", "the list of streams", "the lines"]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtrain.submission.run.RETRY_SECONDS", 0.01)


def trained(cloud: Cloud, run_id: str, status: str = "Completed") -> None:
    """The job has trained, printed something and left a model; it ends in this moment."""
    job = cloud.service.jobs[run_id]
    write_log(cloud, run_id, 0, "[rank 0] hello")
    job.enter("Training")
    cloud.put(f"cloudtrain/runs/{run_id}/output/model.tar.gz", packed(entry("weights", text="w")))
    job.finish(status, status)


@pytest.mark.parametrize("denied_actions", UNREADABLE, ids=NAMES)
def test_without_permission_to_read_logs_a_job_ends_is_fetched_and_repeated(
    cloud: Cloud, tmp_path: Path, denied_actions: set[str]
) -> None:
    run = submitted(f"unread-{UNREADABLE.index(denied_actions)}")
    write_log(cloud, run.id, 0, "[rank 0] hello")
    cloud.account.denied_actions |= denied_actions
    assert run.status().state == "pending"
    assert "not authorized to perform: logs:" in run.status().log_error
    trained(cloud, run.id)
    assert run.wait(30).state == "succeeded"
    assert (run.fetch(tmp_path / "result") / "model" / "weights").read_text() == "w"
    assert run.rerun(["env.AGAIN=1"]).status().state == "pending"


def test_an_unreadable_log_is_reported_once_and_its_recovery_once(cloud: Cloud) -> None:
    run = submitted("note-1")
    write_log(cloud, run.id, 0, "[rank 0] hello")
    for denied_actions in (True, True, False, False):
        cloud.account.denied_actions = {"logs:*"} if denied_actions else set()
        find_run(run.id).status()
    notes = [
        event["reason"] != "" for event in events_of(run.folder) if event["type"] == "log_unread"
    ]
    assert notes == [True, False]


def test_lines_that_are_here_are_shown_before_what_cannot_be_read_is_reported(cloud: Cloud) -> None:
    run = submitted("here-1")
    write_log(cloud, run.id, 0, "[rank 0] hello")
    run.status()
    cloud.endpoint.fault("denied", "sagemaker", "DescribeTrainingJob", times=ALWAYS)
    shown: list[str] = []
    with pytest.raises(CloudError, match="DescribeTrainingJob"):
        # Which has not asked a moment ago.
        shown.extend(line.text for line in find_run(run.id).logs())
    assert shown == ["hello"]


@pytest.mark.parametrize("kind", ["throttle", "denied", "expired", "error", "lost"])
@pytest.mark.parametrize(
    "call",
    [("sagemaker", "DescribeTrainingJob"), ("logs", "DescribeLogStreams")],
    ids=lambda call: call[1],
)
def test_a_stop_is_sent_although_nothing_can_be_read(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, kind: FaultKind, call: tuple[str, str]
) -> None:
    monkeypatch.setattr("cloudtrain.providers.shared.idempotent_create.NEW_JOB_SECONDS", 0)
    run = submitted(f"stop-{kind}-{call[0]}")
    cloud.endpoint.fault(kind, *call, times=3 if kind != "denied" else ALWAYS)
    with suppress(CloudError):  # not everybody may see that it has ended
        run.stop()
    assert cloud.service.jobs[run.id].stop_asked.is_set()


def test_the_command_sends_the_stop_too_and_says_what_it_cannot_tell(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cloudtrain.providers.shared.idempotent_create.NEW_JOB_SECONDS", 0)
    run = submitted("stop-by-command")
    cloud.account.denied_actions |= {"sagemaker:DescribeTrainingJob"}
    with pytest.raises(SystemExit) as stopped:
        main(["stop", run.id])
    assert cloud.service.jobs[run.id].stop_asked.is_set()
    assert stopped.value.code == 4
    assert "it was told to stop" in capsys.readouterr().err

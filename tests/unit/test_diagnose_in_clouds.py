"""`cloudtrain diagnose` of what clouds do to runs: a submit that is refused, a limit, a queue, no
answer.
"""

from __future__ import annotations

import json

import pytest

from cloudtrain.cli import main
from cloudtrain.errors import CloudError
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.run import Run
from tests.support.samples import BORN, write_events
from tests.unit.test_diagnose_command import home, shown

__all__ = ["home"]


def refused(store: RunStore, reason: str, hint: str) -> None:
    folder = store.create(
        "a-1", {"plan.json": json.dumps({"provider": "aws", "spec": {"name": "digits"}})}
    )
    born = {**BORN, "time": 100.0, "provider": "aws", "contract": "sagemaker"}
    write_events(
        folder,
        born,
        {"type": "ended", "time": 101.0, "state": "failed", "reason": reason, "hint": hint},
    )


def test_a_submit_that_was_refused_is_no_matter_of_the_job_s_role_and_has_no_log(
    home: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "PutObject: AccessDenied: Access Denied; nothing was started"
    hint = "these credentials lack s3:PutObject"
    refused(home, message, hint)
    assert shown(capsys, "a-1").splitlines()[1:] == [
        f"  remedy      {hint}",
        "  next        cloudtrain rerun a-1   after that change; of a setting: --set KEY=VALUE",
        (
            "              cloudtrain submit --provider aws"
            "   if the program or job.yaml has changed: a rerun runs what was sent"
        ),
    ]


@pytest.mark.parametrize(
    ("reason", "cap", "saved", "remedy", "following"),
    [
        (
            "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)",
            "limits.max_cost",
            None,
            "raise limits.max_cost; no checkpoint was told of, so that a rerun begins at the start",
            "cloudtrain rerun a-1   after that change; of a setting: --set KEY=VALUE",
        ),
        (
            "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)",
            "limits.max_runtime",
            40,
            "raise limits.max_runtime; cloudtrain rerun continues from the checkpoint of step 40",
            "cloudtrain rerun a-1",
        ),
        (
            "the time for waiting and training together is over (limits.max_wait)",
            "limits.max_runtime",
            None,
            "raise limits.max_wait; no checkpoint was told of, so that a rerun begins at the start",
            "cloudtrain rerun a-1   after that change; of a setting: --set KEY=VALUE",
        ),
    ],
)
def test_a_run_that_a_limit_has_stopped_says_which_one_to_raise(
    home: RunStore,
    capsys: pytest.CaptureFixture[str],
    reason: str,
    cap: str,
    saved: int | None,
    remedy: str,
    following: str,
) -> None:
    quote = {"price": {"usd": 1.0}, "nodes": 1, "max_seconds": 60, "cap": cap}
    plan = {"provider": "aws", "spec": {"name": "digits"}, "target": {"quote": quote}}
    folder = home.create("a-1", {"plan.json": json.dumps(plan)})
    write_events(
        folder, {**BORN, "time": 100.0}, {"type": "node_started", "time": 100.0, "node": 0}
    )
    if saved:
        write_events(
            folder,
            {"type": "checkpoint", "time": 110.0, "seq": 1, "node": 0, "rank": 0, "step": saved},
        )
    write_events(folder, {"type": "ended", "time": 160.0, "state": "stopped", "reason": reason})
    text = shown(capsys, "a-1")
    assert f"  remedy      {remedy}\n" in text
    assert f"  next        {following}\n" in text
    assert "speed" not in text


def test_a_run_of_which_the_cloud_says_nothing_is_not_said_to_go_on(
    home: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.create(
        "a-1", {"plan.json": json.dumps({"provider": "aws", "spec": {"name": "digits"}})}
    )
    born = {**BORN, "time": 100.0, "provider": "aws", "contract": "sagemaker"}
    write_events(folder, born, {"type": "submitted", "time": 101.0, "ref": {"arn": "arn:x"}})

    def refuse(run: Run) -> None:
        raise CloudError("the credentials have expired", hint="aws sso login")

    monkeypatch.setattr(Run, "status", refuse)
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "a-1"])
    text = capsys.readouterr()
    assert ended.value.code == 4
    assert text.out == "a-1 was pending when it was last seen; asking again failed\n"
    assert "the credentials have expired" in text.err
    assert "aws sso login" in text.err

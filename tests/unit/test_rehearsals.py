"""A submit knows the rehearsals of its job: the one with the same request, or the changes since."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from cloudtrain.cli.plan_view import overview
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.store import RunStore
from cloudtrain.submission import jobs as api
from cloudtrain.submission.rehearsals import FILE, record_rehearsal
from cloudtrain.submission.submit import documents_of
from cloudtrain_launcher.events import Ended

JOB: dict[str, Any] = {
    "name": "tiny",
    "entrypoint": "train.py",
    "args": {"epochs": 3},
    "limits": {"max_runtime": "1 h"},
    "resources": {"instance": {"aws": "ml.m5.large", "azure": "Standard_D4s_v3"}},
    "image": {
        "aws": "123456789012.dkr.ecr.us-east-1.amazonaws.com/x:1",
        "azure": "x.azurecr.io/x:1",
    },
    "aws": {
        "region": "us-east-1",
        "role": "arn:aws:iam::123456789012:role/train",
        "bucket": "bucket-1",
    },
    "azure": {
        "subscription": "9" * 8 + "-1111-2222-3333-" + "4" * 12,
        "resource_group": "rg",
        "workspace": "ws",
    },
}
ACCOUNTS = ("aws", "azure")
pytestmark = pytest.mark.usefixtures("folder")


def plan(
    provider: str, *, leave_out: tuple[str, ...] = (), as_: str | None = None, **changes: Any
) -> Plan:
    values = {key: value for key, value in (JOB | changes).items() if key not in leave_out}
    return api.plan(api.load(values), None if as_ else provider, as_=as_)


def rehearse(
    provider: str, state: Literal["succeeded", "failed"] = "succeeded", **changes: Any
) -> str:
    """A rehearsal as a submit records it, without the processes; its run id."""
    made = plan(provider, as_=provider, **changes)
    request = api.render(made)
    record_rehearsal(made, request)
    run = RunStore(Path(made.context.data_dir)).create(made.run_id, documents_of(made, request))
    run.append(Ended(time=time.time(), state=state))
    return made.run_id


def tags(made: Plan) -> str:
    return json.dumps(dict(api.render(made).document))


@pytest.mark.parametrize("provider", ACCOUNTS)
def test_the_same_request_is_said_to_be_rehearsed_and_bears_a_tag(provider: str) -> None:
    run = rehearse(provider)
    made = plan(provider)
    assert made.context.rehearsal is not None
    assert (made.context.rehearsal.run, made.context.rehearsal.changes) == (run, ())
    assert f"by {run}: the same request" in overview(made)
    assert "cloudtrain-rehearsed" in tags(made)


@pytest.mark.parametrize("provider", ACCOUNTS)
def test_settings_of_the_account_that_the_rehearsal_lacked_are_no_difference(provider: str) -> None:
    run = rehearse(provider, leave_out=("aws", "azure"), aws={"region": "us-east-1"})
    made = plan(provider)
    assert made.context.rehearsal is not None
    assert (made.context.rehearsal.run, made.context.rehearsal.changes) == (run, ())


@pytest.mark.parametrize("provider", ACCOUNTS)
def test_a_request_that_has_changed_says_in_what_and_bears_no_tag(provider: str) -> None:
    rehearse(provider)
    made = plan(provider, args={"epochs": 5})
    assert made.context.rehearsal is not None
    assert "job.values.epochs: 3 → 5" in made.context.rehearsal.changes
    assert "argv" not in str(made.context.rehearsal.changes), "that would say the same again"
    assert "but changed since: " in overview(made)
    assert "cloudtrain-rehearsed" not in tags(made)


def test_another_source_is_a_change_though_the_request_only_names_it(folder: Path) -> None:
    rehearse("aws")
    (folder / "train.py").write_text("print(2)\n")
    made = plan("aws")
    assert made.context.rehearsal is not None
    assert [text[:10] for text in made.context.rehearsal.changes] == ["the source"]


@pytest.mark.parametrize(
    "changes", [{"state": "failed"}, {"name": "other"}], ids=["failed", "of another job"]
)
def test_only_a_rehearsal_of_this_job_that_succeeded_counts(changes: dict[str, Any]) -> None:
    rehearse("aws", **changes)
    assert plan("aws").context.rehearsal is None


def test_damaged_lines_and_removed_runs_are_passed_over(folder: Path) -> None:
    run = rehearse("aws")
    ledger = folder.parent / "data" / FILE
    text = ledger.read_text()
    ledger.write_bytes(
        b'\n{"name": "tiny", "provider": "aws"\n[]\n' + text.replace(run, "gone-1").encode() + b"\n"
    )
    assert plan("aws").context.rehearsal is None
    ledger.write_bytes(b"\xff\n")
    assert plan("aws").context.rehearsal is None

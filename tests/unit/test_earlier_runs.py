"""Local runs and rehearsals of version 0.1.0: listed, read, stopped, fetched and run again as if
they were of today.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import StorageError
from cloudtrain.providers.rehearsal.base import EmulatedPlan
from tests.support.earlier_runs import earlier_runs

ENDS = {
    "old-local": "succeeded",
    "old-failed": "failed",
    "old-as-aws": "succeeded",
    "old-as-azure": "succeeded",
}


@pytest.fixture
def data(tmp_path: Path) -> str:
    return earlier_runs("local", tmp_path / "kept", tmp_path / "job")


def test_they_are_listed_and_read(data: str) -> None:
    assert {run["run"]: run["state"] for run in cloudtrain.list_runs(data_dir=data)} == ENDS
    failed = cloudtrain.find_run("old-failed", data_dir=data).status()
    assert failed.error is not None
    assert (failed.error.exception, failed.error.message) == ("ValueError", "the dog ate it")


@pytest.mark.parametrize("run_id", ENDS)
def test_their_lines_and_files_are_here_and_a_stop_changes_nothing(
    data: str, run_id: str, tmp_path: Path
) -> None:
    run = cloudtrain.find_run(run_id, data_dir=data)
    assert {"hello from 0", "hello from 1"} <= {line.text for line in run.logs()}
    assert (run.fetch(tmp_path / "result") / "model" / "model.txt").read_text() == "weights\n"
    assert run.stop().state == ENDS[run_id]


@pytest.mark.parametrize("run_id", ENDS)
def test_each_is_planned_again_as_it_was(data: str, run_id: str) -> None:
    old = cloudtrain.find_run(run_id, data_dir=data)
    plan = old.plan_again()
    before = old.folder.document("request.json")
    after = cloudtrain.render(plan).document
    assert {**before.get("job", {}), "run_id": ""} == {**after.get("job", {}), "run_id": ""}
    assert before.keys() == after.keys()
    assert plan.is_rehearsal == run_id.startswith("old-as-")
    if run_id == "old-failed":
        assert after["resume_from"] == str(old.folder.path / "checkpoints")


@pytest.mark.parametrize("facts", [{}, {"python": 3}], ids=["missing", "no text"])
def test_a_plan_that_does_not_say_its_python_is_told_as_damaged(facts: dict[str, object]) -> None:
    plan = EmulatedPlan.from_json(
        {"provider": "local", "target": {"contract": "sagemaker"}, "host": {"facts": facts}}
    )
    with pytest.raises(
        StorageError, match=r"plan\.json cannot be read: it does not say which python runs the job"
    ):
        _ = plan.python

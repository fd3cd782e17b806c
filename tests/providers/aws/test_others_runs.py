"""Runs of others in one account, archives of strangers, and outputs of a stack."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain.api.costs import costs
from cloudtrain.api.folder_settings import is_confirmed, redirections
from cloudtrain.api.lookup import find_run, import_remote_runs
from cloudtrain.api.run import Run
from cloudtrain.errors import StorageError
from cloudtrain.runs.record import RunRecord, terms_of
from cloudtrain.settings import load_settings
from tests.fakes.aws.cloud import Cloud
from tests.fakes.messages import Call
from tests.providers.aws.accounts import TRAINING_PLAN
from tests.providers.aws.archives import (
    DAMAGED,
    HOSTILE,
    LEFT_BUT_THE_REST_ARRIVES,
    LINK,
    WHOLE,
    Kept,
    entry,
    packed,
)
from tests.providers.aws.operations import submitted
from tests.support.aws_template import EVERYTHING, resolved
from tests.support.clock import Clock
from tests.support.in_process import call
from tests.support.waiting import HANG_SECONDS

# Runs of others in one account: shown with their owners, never meant by accident, and asked for
# only when new.

pytestmark = pytest.mark.once


def test_a_list_requests_pages_of_a_hundred_jobs_and_then_only_new_ones(
    cloud: Cloud, data_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud.service, "jobs", {})  # without those of other tests
    first = submitted("many-0")
    template = cloud.service.jobs[first.id].body
    for number in range(1, 101):
        tags = [
            {**tag, "Value": f"many-{number}"} if tag["Key"] == "cloudtrain-run" else tag
            for tag in template["Tags"]
        ]
        cloud.service.call(
            "CreateTrainingJob", {**template, "TrainingJobName": f"many-{number}", "Tags": tags}
        )
    total = len(cloud.service.jobs)
    cloud.endpoint.reset()
    assert len(import_remote_runs("aws", data_dir=data_dir)) == total
    assert cloud.endpoint.calls.count(Call("sagemaker", "Search")) == -(-total // 100)
    for job in cloud.service.jobs.values():  # unchanged for an hour
        job.update(LastModifiedTime=job["LastModifiedTime"] - 3600)
    late = submitted("many-late")
    cloud.service.jobs["many-7"].finish("Failed", "Failed", "AlgorithmError: , exit code: 3")
    cloud.endpoint.reset()
    assert import_remote_runs("aws", data_dir=data_dir) == [late.id]
    assert [call.operation for call in cloud.endpoint.calls] == ["GetCallerIdentity", "Search"]
    assert find_run("many-7", data_dir=data_dir).cached_status().state == "failed"
    cloud.endpoint.reset()
    assert import_remote_runs("aws", data_dir=data_dir, everything=True) == []
    assert cloud.endpoint.calls.count(Call("sagemaker", "Search")) == -(-(total + 1) // 100)


def test_machines_that_are_kept_are_shown_until_they_are_given_back(
    cloud: Cloud, data_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud.account, "has_warm_pools", True)
    run = submitted("kept-1", data_dir, aws={"keep_alive": "30 min"})
    job = cloud.service.jobs[run.id]
    job.enter("Training")
    job.finish("Completed", "Completed")
    assert run.wait(HANG_SECONDS).state == "succeeded"
    for words in (["status", run.id], ["list"]):
        result = call("--data-dir", data_dir, *words)
        told = "its machines are kept, and billed, for (30|29) min"
        assert re.search(told, result.out + result.err) or "for 29 min" in result.out + result.err
    result = call("--data-dir", data_dir, "stop", run.id, "--release")
    assert "kept-1: its machines are given back" in result.err
    assert cloud.endpoint.sent[-1] == (
        ("sagemaker", "UpdateTrainingJob"),
        {"TrainingJobName": run.id, "ResourceConfig": {"KeepAlivePeriodInSeconds": 0}},
    )
    assert job.describe()["WarmPoolStatus"]["Status"] == "Terminated"
    result = call("--data-dir", data_dir, "list")
    assert "are kept" not in result.out + result.err


@pytest.mark.parametrize("free", [2, 1])
def test_a_job_takes_the_machines_of_its_training_plan_first_and_pays_for_others(
    cloud: Cloud, data_dir: str, clock: Clock, free: int
) -> None:
    cloud.account.training_plans["mine"] = {"AvailableInstanceCount": free}
    resources = {"nodes": 2, "instance": {"aws": ["ml.p5.48xlarge", "ml.p4d.24xlarge"]}}
    reserved = {"training_plan": {"ml.p5.48xlarge": TRAINING_PLAN}}
    run = submitted(f"reserved-{free}", data_dir, resources=resources, aws=reserved)
    per_hour = RunRecord(run.folder).quote["price"]["usd"] * 2 if free < 2 else 0.0
    job = cloud.service.jobs[run.id]
    job.choose_machines(cloud.account.training_plans)
    job.take_machines()
    job.enter("Training")
    terms = terms_of(run.folder, run.status().instance)
    (row,) = costs(data_dir=data_dir)
    import_remote_runs("aws")
    [found] = [row for row in costs() if row["run"] == run.id]
    assert (terms.usd_per_hour, row["usd_per_hour"], found["usd_per_hour"]) == (per_hour,) * 3
    assert bool(row["cap_usd"]) == (free < 2)

    clock.advance(3600)
    job.finish("Completed", "Completed")
    for folder in (data_dir, None):
        bill = find_run(run.id, data_dir=folder).wait(HANG_SECONDS).billing
        assert bill is not None
        assert bill.usd == pytest.approx(per_hour, rel=0.01)


def test_releasing_machines_that_are_not_kept_is_reported(cloud: Cloud, data_dir: str) -> None:
    # The account's quota is 0, which AWS does not report.
    run = submitted("unkept-1", data_dir, aws={"keep_alive": "30 min"})
    cloud.service.jobs[run.id].finish("Completed", "Completed")
    assert run.wait(HANG_SECONDS).kept is None
    result = call("--data-dir", data_dir, "stop", run.id, "--release")
    assert result.code == 2
    assert "run unkept-1 keeps no machines" in result.err


# Archives in S3 are fetched as untrusted: damaged ones are refused, odd entries named, the rest
# arrives.


@pytest.fixture(scope="module")
def archive_data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(cloud: Cloud, archive_data: str) -> Run:
    """Return one run for all archives; a fetch does not change it."""
    return (
        find_run("left-1", data_dir=archive_data)
        if "left-1" in cloud.service.jobs
        else submitted("left-1", archive_data)
    )


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_text()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


@pytest.mark.parametrize("case", LEFT_BUT_THE_REST_ARRIVES, ids=lambda case: case.name)
def test_one_unusual_entry_does_not_keep_the_rest_from_being_fetched(
    cloud: Cloud, run: Run, tmp_path: Path, case: Kept
) -> None:
    archive = packed(entry("good", text="fine"), *case.entries, entry("last", text="too"))
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", archive)
    notes: list[str] = []
    run.fetch(tmp_path / "result", note=notes.append)
    assert content(tmp_path / "result" / "model") == {"good": "fine", **case.arrives, "last": "too"}
    assert len(notes) == len(case.named)
    for note, begin in zip(sorted(notes), case.named, strict=True):
        assert note.startswith(begin)
    modes = [path.stat().st_mode for path in (tmp_path / "result" / "model").rglob("*")]
    assert not any(mode & (stat.S_ISUID | stat.S_ISGID) for mode in modes)


@pytest.mark.parametrize("name", [*DAMAGED, *HOSTILE])
def test_a_damaged_or_hostile_archive_is_refused_and_leaves_nothing(
    cloud: Cloud, run: Run, tmp_path: Path, name: str
) -> None:
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", (DAMAGED | HOSTILE)[name])
    with pytest.raises(StorageError, match=r"the archive is damaged or hostile: .") as caught:
        run.fetch(tmp_path / "deep" / "result")
    assert caught.value.hint == "aws s3 cp brings it as it is"
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / "deep").iterdir()) == []


def test_an_archive_that_the_disk_cannot_take_is_refused_before_it_is_full(
    cloud: Cloud, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", WHOLE)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=8000))
    with pytest.raises(StorageError, match=r"more than the 8.0 kB free here") as caught:
        run.fetch(tmp_path / "deep" / "result")
    assert "free some space" in str(caught.value.hint)
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_run_whose_files_all_were_left_out_says_which(
    cloud: Cloud, run: Run, tmp_path: Path
) -> None:
    cloud.put(
        f"cloudtrain/runs/{run.id}/output/model.tar.gz",
        packed(entry("best", LINK, "/opt/ml/checkpoints/7")),
    )
    with pytest.raises(StorageError) as caught:
        run.fetch(tmp_path / "result")
    assert "model/best was left out: a link that leads out" in caught.value.message


def test_results_without_compression_are_fetched_file_by_file(
    cloud: Cloud, archive_data: str, tmp_path: Path
) -> None:
    run = submitted("files-1", archive_data, aws={"compress_output": False})
    stored = f"cloudtrain/runs/{run.id}/output"
    cloud.put(f"{stored}/model/deep/weights", b"1")
    cloud.put(f"{stored}/output/notes", b"2")
    run.fetch(tmp_path / "result")
    assert content(tmp_path / "result" / "model") == {"deep/weights": "1"}
    assert content(tmp_path / "result" / "output") == {"notes": "2"}

    cloud.put(f"{stored}/model/../../up", b"3")
    with pytest.raises(StorageError, match="is not a path inside a folder"):
        run.fetch(tmp_path / "deep" / "result")
    assert list((tmp_path / "deep").iterdir()) == []


# `cloudtrain infra settings --provider aws` against an imitated CloudFormation.


@pytest.fixture(autouse=True)
def no_stack_is_left(cloud: Cloud) -> Iterator[None]:
    yield
    cloud.stacks.clear()


def test_outputs_of_the_stack_become_settings(cloud: Cloud) -> None:
    cloud.stacks.outputs["lab"] = resolved(**EVERYTHING).outputs()
    result = call("infra", "settings", "--provider", "aws", "--name", "lab", "--yes")
    assert result.code == 0, result.err
    assert "policy to attach to people who submit: <SubmitterPolicy>" in result.out
    assert "role for the GitHub workflow: <GitHubRole.Arn>" in result.out
    text = Path("cloudtrain.toml").read_text()
    for line in ('bucket = "made-bucket"', 'subnets = ["<SubnetA>", "<SubnetB>"]'):
        assert line in text

    settings = load_settings(Path.cwd())
    redirected = redirections(settings, "aws")
    assert "aws.repository" in redirected
    assert is_confirmed(settings, redirected)  # submit does not ask about them again


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("missing", ["the stack cloudtrain in us-east-1 does not exist", "cloudformation deploy"]),
        ("failed", ["is not ready (ROLLBACK_COMPLETE): [Bucket].", "describe-stack-events"]),
        ("denied", ["cloudformation:DescribeStacks"]),
    ],
)
def test_a_stack_without_outputs_is_reported(cloud: Cloud, state: str, words: list[str]) -> None:
    if state == "failed":
        cloud.stacks.failed["cloudtrain"] = "[Bucket]."
    if state == "denied":
        cloud.account.denied_actions.add("cloudformation:DescribeStacks")
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert result.code == 4
    assert all(text in result.err for text in words), result.err


def test_stack_of_aws_needs_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLOUDTRAIN_AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert result.code == 2
    assert "aws.region is not set" in result.err
    assert call("infra", "template", "--provider", "aws").code == 0

"""Every wrong SageMaker request is refused offline: at its line, with all other mistakes, and without a traceback."""

from __future__ import annotations

from pathlib import Path

import botocore
import pytest

from tests.providers.aws import wrong_contents, wrong_requests
from tests.providers.aws.wrong_requests import ECR, Row
from tests.support.in_process import call

ACCOUNT = {
    "CLOUDTRAIN_AWS_REGION": "us-east-1",
    "CLOUDTRAIN_AWS_ROLE": "arn:aws:iam::123456789012:role/train",
    "CLOUDTRAIN_AWS_BUCKET": "my-bucket",
}
ALL = [*wrong_requests.ROWS, *wrong_contents.ROWS]
ROWS = [row for row in ALL if not row.is_limit]
LIMITS = [row for row in ALL if row.is_limit]


@pytest.fixture(autouse=True)
def a_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, an account's facts, and no credentials of any kind."""
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_it_is_refused_at_its_line(row: Row, a_job_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (a_job_folder / "job.yaml").write_text(row.job)
    for name, value in row.env.items():
        monkeypatch.setenv(name, value)
    words = ["submit", "--dry-run", "--run-id", row.run_id] if row.run_id else ["check"]
    said = call(*words, "--provider", "aws")
    assert said.code == 2, said.err
    assert "Traceback" not in said.err
    for words_ in row.said:
        assert words_ in said.err
    if not row.run_id:  # what is told without network is told by a plan too
        assert call("plan", "--provider", "aws").err == said.err


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.id)
def test_a_limit_of_the_service_model_is_a_warning_that_names_the_model(row: Row, a_job_folder: Path) -> None:
    (a_job_folder / "job.yaml").write_text(row.job)
    said = call("check", "--provider", "aws")
    assert said.code == 0, said.err
    for words in (*row.said, f"in the service model of botocore {botocore.__version__}"):
        assert words in said.err
    planned = call("plan", "--provider", "aws")
    assert planned.code == 0, planned.err
    assert all(words in planned.out for words in row.said)


def test_a_plan_that_would_be_refused_is_shown_with_what_is_wrong(a_job_folder: Path) -> None:
    (a_job_folder / "job.yaml").write_text(
        "name: digits\nlimits: {max_wait: 10 min, max_runtime: 1 h}\nresources: {gpus: 1}\n"
    )
    said = call("plan", "--provider", "aws")
    assert said.code == 2
    assert said.out.startswith("digits  1 x ml.g4dn.xlarge")
    assert said.out.endswith("  refused  submit would not start it: 1 error\n")
    assert said.err.startswith("job.yaml:2:10: limits.max_wait: is 10 min, at least 30 min")
    assert call("plan", "--provider", "aws", "--json").out.startswith('{\n  "error"')


def test_there_are_enough_of_them() -> None:
    assert len(ROWS) >= 40
    assert len(LIMITS) >= 10
    assert len({row.id for row in ALL}) == len(ALL)


def test_all_mistakes_are_told_at_once(a_job_folder: Path) -> None:
    (a_job_folder / "job.yaml").write_text(
        f"image: {ECR.replace('us-east-1', 'eu-west-1')}\n"
        "resources: {gpus: 1, spot: true}\n"
        "limits: {max_wait: 1 h}\n"
        "tags: {'aws:x': y, z: 'a€b'}\n"
        "env: {SAGEMAKER_X: y}\n"
        "aws: {role: not-an-arn-at-all-and-long-enough, subnets: [subnet-1]}\n"
    )
    said = call("check", "--provider", "aws")
    fields = ("image", "limits.max_wait", "tags.aws:x", "tags.z", "env.SAGEMAKER_X", "aws.role", "aws.subnets")
    assert [field for field in fields if f": {field}: " not in said.err] == []


def test_a_right_request_passes(a_job_folder: Path) -> None:
    (a_job_folder / "job.yaml").write_text(
        "resources: {nodes: 2, gpus: 8, gpu: [A100-80GB, H100]}\n"
        "limits: {max_runtime: 6 h, max_wait: 12 h, max_cost: 500 USD, retries: 2}\n"
        "inputs: {train: 's3://data/mnist/', table: 's3://data/x.csv', live: {uri: 's3://data/live', mode: stream}}\n"
        "tags: {team: vision, Größe: 'sehr groß'}\n"
        "aws: {subnets: [subnet-1], security_groups: [sg-1], kms_key: alias/mine, encrypt_traffic: true}\n"
    )
    assert call("check", "--provider", "aws").code == 0

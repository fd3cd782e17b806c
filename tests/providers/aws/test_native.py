"""The object of sagemaker.core that a run gives, and whose account and region its calls use."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api.lookup import find_run
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.client import aws
from tests.fakes.aws.cloud import Cloud
from tests.providers.aws.operations import submitted

CREDENTIALS = """
[default]
aws_access_key_id = AKIADEFAULT
aws_secret_access_key = loopback
[work]
aws_access_key_id = AKIAWORK
aws_secret_access_key = loopback
"""


@pytest.fixture(autouse=True)
def new_sdk() -> None:
    pytest.importorskip("sagemaker.core.utils.utils").SageMakerClient.reset()


@pytest.mark.parametrize("region", ["us-east-1", ""])
def test_the_calls_of_the_object_are_of_the_runs_profile_and_region_and_no_other_call_is(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    from sagemaker.core.resources import TrainingJob

    signed: list[tuple[str, str]] = []
    rejection = cloud.endpoint.rejection

    def record(request: Any, call: Any) -> Any:
        signed.append(
            (call.operation, re.findall("AKIA[A-Z]+", request.headers["authorization"])[0])
        )
        return rejection(request, call)

    monkeypatch.setattr(cloud.endpoint, "rejection", record)
    (tmp_path / "credentials").write_text(CREDENTIALS)
    (tmp_path / "config").write_text(f"[default]\nregion = {region}\n[profile work]\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    run = submitted(f"native-{region or 'none'}")
    monkeypatch.delenv("AWS_PROFILE")
    signed.clear()

    job = find_run(run.id).native()
    job.refresh()
    job.stop()

    assert type(job) is TrainingJob
    assert job.training_job_arn == (run.status().ref or {})["arn"]
    assert {key for _, key in signed} == {"AKIAWORK"}
    assert ("StopTrainingJob", "AKIAWORK") in signed
    signed.clear()
    TrainingJob.get(run.id)
    assert signed == [("DescribeTrainingJob", "AKIADEFAULT")]


def test_a_job_of_the_same_name_in_another_account_is_refused(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted("native-other")
    role = "arn:aws:iam::999999999999:role/other"
    sts = cloud.client("sts", direct=True)
    credentials = sts.assume_role(RoleArn=role, RoleSessionName="other")["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", credentials["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", credentials["SessionToken"])
    aws.cache_clear()
    with pytest.raises(CloudError, match="belong to the account 999999999999"):
        run.native()
    aws.cache_clear()


def test_without_the_package_one_command_installs_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted("native-missing")
    monkeypatch.setitem(sys.modules, "sagemaker.core.resources", None)
    with pytest.raises(UsageError, match="needs sagemaker-core, which is not installed") as error:
        run.native()
    assert error.value.hint == "pip install 'sagemaker-core<3,>=2.27'"


def test_a_run_without_a_cloud_has_no_such_object(cloud: Cloud) -> None:
    run = submitted("native-local")
    with pytest.raises(UsageError, match="has no SDK with an object for a run"):
        get_provider("local").native(run.folder, run.cached_status())

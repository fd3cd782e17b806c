"""A job reads what its client publishes: in a folder, which may be a mount that hangs, or in S3
with its own role.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cloudtrain_launcher import trial
from cloudtrain_launcher.trial import read_published
from tests.support.waiting import HANG_SECONDS


def test_a_file_is_read_once_it_is_there(tmp_path: Path) -> None:
    assert read_published(str(tmp_path / "not yet"), "rungs.json") is None
    assert read_published(str(tmp_path), "rungs.json") is None
    (tmp_path / "rungs.json").write_text("{}")
    assert read_published(str(tmp_path), "rungs.json") == "{}"


def test_a_disk_that_refuses_is_an_error_and_a_mount_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rungs.json").mkdir()
    with pytest.raises(IsADirectoryError):
        read_published(str(tmp_path), "rungs.json")
    hanging = threading.Event()
    monkeypatch.setattr(trial, "READ_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(Path, "read_bytes", lambda _: hanging.wait(2 * HANG_SECONDS) and b"")
    with pytest.raises(RuntimeError, match="could not be read within"):
        read_published(str(tmp_path), "rungs.json")
    hanging.set()


def test_an_object_of_s3_is_read_with_the_image_s_boto3(
    aws: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    monkeypatch.setenv("AWS_REGION", "us-east-1")
    storage = boto3.client("s3", region_name="us-east-1")
    storage.create_bucket(Bucket="runs")
    assert read_published("s3://runs/run-1/published", "rungs.json") is None
    storage.put_object(Bucket="runs", Key="run-1/published/rungs.json", Body=b"{}")
    assert read_published("s3://runs/run-1/published", "rungs.json") == "{}"
    with pytest.raises(RuntimeError, match="NoSuchBucket; the job's role needs s3:GetObject there"):
        read_published("s3://nobodys/run-1/published", "rungs.json")

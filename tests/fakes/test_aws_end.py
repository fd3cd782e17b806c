"""Closing the imitation leaves no process, port, thread or file behind."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit

import pytest

from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.samples import request, wait_for_output
from tests.fakes.containers import processes_below
from tests.support.waiting import eventually


def test_nothing_is_left_of_a_cloud_that_is_closed_while_jobs_run() -> None:
    before = set(threading.enumerate())
    with Cloud(grace_seconds=60) as cloud:
        folder = cloud.account.folder
        places = [cloud.endpoint.url, cloud.moto_url]
        cloud.client("sagemaker").create_training_job(
            **request(cloud, "stubborn", 2, do="stubborn")
        )
        wait_for_output(cloud, "stubborn", "ready", times=2)
        assert len(processes_below(folder)) >= 4
        cloud.endpoint.fault("hang", "s3", "ListBuckets")
        connection = socket.create_connection(("127.0.0.1", urlsplit(cloud.endpoint.url).port or 0))
        caught: list[BaseException] = []
        hanging = threading.Thread(target=ask, args=(cloud, caught))
        hanging.start()
        cloud.endpoint.wait_until_hanging()
    hanging.join(10)
    connection.close()
    assert len(caught) == 1
    assert cloud.service.jobs["stubborn"]["TrainingJobStatus"] == "Stopped"
    assert not cloud.account.unexpected_errors
    assert processes_below(folder) == []
    assert not folder.exists()
    for place in places:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", urlsplit(place).port or 0)).close()
    eventually(lambda: set(threading.enumerate()) <= before)  # moto's threads take a moment


def test_a_slow_job_does_not_prevent_closing() -> None:
    with Cloud(phase_seconds=3600) as cloud:
        cloud.client("sagemaker").create_training_job(**request(cloud, "slow", do="talk"))
    assert cloud.service.jobs["slow"]["TrainingJobStatus"] == "Stopped"


def ask(cloud: Cloud, caught: list[BaseException]) -> None:
    try:
        cloud.client("s3").list_buckets()
    except Exception as error:  # noqa: BLE001
        caught.append(error)

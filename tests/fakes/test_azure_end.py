"""Closing the imitation of Azure leaves no process, port, thread or file behind."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import urllib.request
from pathlib import Path

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.samples import client, document, submit, wait_for_output
from tests.fakes.containers import processes_below


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the SDK writes into the environment is undone."""
    monkeypatch.setenv("AZUREML_CURRENT_CLOUD", "")
    monkeypatch.delenv("AZUREML_CURRENT_CLOUD")


def become_client(cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)


def test_nothing_is_left_of_a_workspace_that_is_closed_while_jobs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    with AzureCloud(grace_seconds=60) as cloud:
        become_client(cloud, monkeypatch)
        folder = cloud.account.folder
        port = cloud.endpoint.port
        submit(client(cloud), document(cloud, "stubborn", tmp_path, "stubborn", nodes=2))
        wait_for_output(cloud, "stubborn", "ready", times=2)
        assert len(processes_below(folder)) >= 4
        cloud.endpoint.fault("hang", "history", "GetDiscovery")
        idle = socket.create_connection(("127.0.0.1", port))
        caught: list[BaseException] = []
        hanging = threading.Thread(target=ask, args=(cloud, caught))
        hanging.start()
        cloud.endpoint.wait_until_hanging()
    hanging.join(10)
    idle.close()
    assert len(caught) == 1
    assert cloud.service.jobs["stubborn"].status == "Canceled"
    assert not cloud.account.unexpected_errors
    assert processes_below(folder) == []
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
    assert set(threading.enumerate()) <= before


def test_a_slow_job_does_not_prevent_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AzureCloud(phase_seconds=3600) as cloud:
        become_client(cloud, monkeypatch)
        submit(client(cloud), document(cloud, "slow", tmp_path, "talk"))
        assert cloud.service.jobs["slow"].status == "NotStarted"
    assert cloud.service.jobs["slow"].status == "Canceled"


def test_a_client_s_environment_has_all_of_this_account_and_nothing_of_another() -> None:
    with AzureCloud() as cloud:
        outside = {
            "AZURE_CLIENT_ID": "x",
            "ARM_TENANT_ID": "x",
            "AZUREML_RUN_ID": "x",
            "HOME": "/home/x",
            "PATH": "/x",
        }
        environment = cloud.clean(outside)
        assert not {"AZURE_CLIENT_ID", "ARM_TENANT_ID", "AZUREML_RUN_ID"} & environment.keys()
        assert environment["HOME"] == "/home/x"
        assert Path(environment["PATH"].partition(os.pathsep)[0], "az").exists()


def ask(cloud: AzureCloud, caught: list[BaseException]) -> None:
    context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    try:
        urllib.request.urlopen(f"{cloud.endpoint.url}/discovery", context=context).close()
    except Exception as error:  # noqa: BLE001
        caught.append(error)

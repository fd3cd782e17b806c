"""Faults while a job is stopped, and messages for Azure's refusals."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from cloudtrain.errors import NOTHING_STARTED, CloudError
from cloudtrain.extras import install_command
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.messages import FaultKind
from tests.providers.azure.operations import (
    ALWAYS,
    JOB,
    append_outcome,
    command_line_of,
    forget,
    reconnect,
    submitted,
)
from tests.support.clock import Clock
from tests.support.command_line import CommandLine
from tests.support.in_process import call
from tests.support.waiting import HANG_SECONDS

# Faults while a job is stopped: it is cancelled, or an error reports that it is not.

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """These jobs never end by themselves."""
    monkeypatch.setattr("cloudtrain.providers.azure.stop.FINISHING_SECONDS", 0)


def test_a_stop_of_a_job_in_the_queue_cancels_at_once(cloud: AzureCloud) -> None:
    run = submitted("queued-1")
    cloud.endpoint.reset()
    assert run.stop().state == "stopped"
    assert ("blob", "PutBlob") not in cloud.endpoint.calls, "no process could read it"
    assert ("arm", "CancelJob") in cloud.endpoint.calls


@pytest.mark.parametrize(
    ("kind", "call"),
    [("denied", ("blob", "PutBlob")), ("expired", ("arm", "ListSecrets"))],
    ids=["no right to write the file", "an expired login"],
)
def test_a_job_that_cannot_be_told_to_save_runs_on_until_a_second_stop(
    cloud: AzureCloud, kind: FaultKind, call: tuple[str, str]
) -> None:
    run = submitted(f"untold-{kind}")
    reconnect()
    cloud.service.jobs[run.id].enter("Running")
    cloud.endpoint.fault(kind, *call, times=ALWAYS)
    with pytest.raises(CloudError, match="to save, so it was not stopped") as refused:
        run.stop()
    assert f"once more `cloudtrain stop {run.id}` cancels it at once" in str(refused.value.hint)
    assert not cloud.service.jobs[run.id].cancel_asked.is_set()
    assert run.cached_status().state != "stopping"
    state = run.stop()
    assert state.state == "stopped"
    assert "to save, so what came after its last checkpoint is lost: " in state.reason
    assert cloud.service.jobs[run.id].status == "Canceled"


def test_job_without_a_save_in_its_grace_period_is_cancelled_with_reason(
    cloud: AzureCloud, clock: Clock
) -> None:
    run = submitted("slow-save-1")
    cloud.service.jobs[run.id].enter("Running")
    state = run.stop()
    assert state.state == "stopped"
    assert "without having said that it has saved (azure.stop_grace gives more)" in state.reason


def test_a_node_that_was_killed_is_named_in_the_reason(cloud: AzureCloud) -> None:
    run = submitted("forced-1")
    append_outcome(cloud, run.id, 0, "stopped", why="stop_file")
    append_outcome(cloud, run.id, 1, "stopped", why="stop_file", forced=True)
    cloud.service.jobs[run.id].enter("Running")
    state = run.stop()
    assert state.state == "stopped"
    assert "(node 1 ended by force: what it was saving may be lost" in state.reason


@pytest.mark.parametrize("why", ["sigterm", "preempted"])
def test_completed_job_with_a_node_stopped_by_its_platform_did_not_succeed(
    cloud: AzureCloud, why: str
) -> None:
    run = submitted(f"evicted-{why}")
    cloud.service.jobs[run.id].enter("Running")
    append_outcome(cloud, run.id, 0, "stopped", why=why)
    append_outcome(cloud, run.id, 1, "succeeded")
    cloud.service.jobs[run.id].finish("Completed")
    state = run.wait(HANG_SECONDS)
    assert state.state == "stopped"
    assert state.reason.startswith("node 0 stopped before it was done: its ")


def test_an_interrupt_while_a_stop_waits_leaves_the_job_to_save_and_says_so(
    cloud: AzureCloud, tmp_path: Path
) -> None:
    cli = command_line_of(cloud, tmp_path)
    assert cli.run("submit", "--provider", "azure", "--detach", "--run-id", "hasty-1").code == 0
    job = cloud.service.jobs["hasty-1"]
    job.enter("Running")
    client = cli.start("stop", "hasty-1")
    cli.wait_for_event("hasty-1", lambda event: event["type"] == "stop_requested")
    assert cloud.blobs("cloudtrain/runs/hasty-1/output/.cloudtrain-stop")
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=HANG_SECONDS)
    assert client.returncode == 130
    assert "Traceback" not in err
    assert "hasty-1: stop requested, it saves and ends; no longer waiting" in err
    assert not job.cancel_asked.is_set()
    job.finish("Completed")


# Messages of the command line for Azure's refusals: each with its own text and a next step.

SUBMIT = ("submit", "--provider", "azure", "--detach")
SYSTEM = "/usr/bin:/bin"
STALE = """#!/bin/sh
echo "ERROR: AADSTS700082: The refresh token has expired due to inactivity. Trace ID: 1" >&2
echo "To re-authenticate, please run: az login" >&2
exit 1
"""
WORDS = {
    "wrong subscription": ("99999999-0000-0000-0000-000000000000", "check azure.subscription"),
    "wrong workspace": ("workspaces/nowhere", "check azure.workspace"),
    "expired login": ("the credentials have expired: AzureCliCredential", "hint: az login"),
    "nobody logged in": ("no Azure credentials", "hint: az login (or AZURE_CLIENT_ID"),
    "missing role of storage": ("not authorized", "Storage Blob Data Contributor"),
    "expired signature": ("clock is wrong", "date -u; az login"),
}


def arranged(cloud: AzureCloud, trouble: str, folder: Path) -> dict[str, str]:
    """Bring a trouble about: by faults, or by variables of the client."""
    match trouble:
        case "wrong subscription":
            return {"CLOUDTRAIN_AZURE_SUBSCRIPTION": "99999999-0000-0000-0000-000000000000"}
        case "wrong workspace":
            return {"CLOUDTRAIN_AZURE_WORKSPACE": "nowhere"}
        case "expired login":
            (folder / "az").write_text(STALE)
            (folder / "az").chmod(0o755)
            return {"PATH": f"{folder}{os.pathsep}{SYSTEM}"}
        case "nobody logged in":
            cloud.log_out()
        case "missing role of storage":
            cloud.endpoint.fault("denied", "blob", "PutBlob", times=ALWAYS)
        case "expired signature":
            cloud.endpoint.fault("expired", "blob", "PutBlob", times=ALWAYS)
    return {}


@pytest.mark.parametrize("trouble", WORDS)
def test_refused_submit_says_what_is_wrong_and_what_to_do(
    cloud: AzureCloud, folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    (folder / "job.yaml").write_text(json.dumps(JOB))
    for name, value in arranged(cloud, trouble, folder).items():
        monkeypatch.setenv(name, value)
    forget()
    result = call(*SUBMIT)
    forget()
    assert result.code == 4, result.err
    for words in (*WORDS[trouble], NOTHING_STARTED):
        assert words in result.err


def without_noise(err: str) -> None:
    """Nothing but our own lines on the screen."""
    for word in (
        "Traceback",
        "xperimental",
        "\x1b",
        "WARNING",
        "Warning",
        "Uploading",
        "studio",
        "Azure ML was unable",
    ):
        assert word not in err


@pytest.fixture
def own_process(cloud: AzureCloud, tmp_path: Path) -> CommandLine:
    """Commands that import everything themselves."""
    return command_line_of(cloud, tmp_path, modules=())


def test_a_successful_submit_prints_only_our_own_messages(own_process: CommandLine) -> None:
    result = own_process.run(*SUBMIT, "--run-id", "quiet-1")
    assert (result.code, result.out) == (0, "quiet-1\n")
    without_noise(result.err)
    begins = [line.split()[0] for line in result.err.splitlines()]
    assert begins == ["quiet-1", "cost:", "note:", "follow", "wait"]
    assert "is not looked up before the start" in result.err, (
        "no registry answers where the image of these jobs is"
    )


def test_without_the_sdk_one_can_plan_and_see_what_is_known(
    own_process: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stub" / "azure").mkdir(parents=True)
    (tmp_path / "stub" / "azure" / "__init__.py").touch()  # of another package
    own_process.env["PYTHONPATH"] = str(tmp_path / "stub")
    monkeypatch.chdir(own_process.folder / "job")
    submitted("known-1", data_dir=str(own_process.data))
    assert own_process.run("plan", "--provider", "azure").code == 0
    assert "known-1  pending" in own_process.run("list").out.replace("   ", "  ")
    for code, *words in (
        (3, *SUBMIT),
        (2, "list", "--provider", "azure"),
        (2, "status", "known-1"),
    ):
        result = own_process.run(*words)
        assert (result.code, "Traceback" in result.err) == (code, False), result.err
        assert install_command("azure") in result.err

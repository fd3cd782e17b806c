"""Messages of the command line for Azure's refusals: each with its own text and a next step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloudtrain.errors import NOTHING_STARTED
from tests.fakes.azure.cloud import AzureCloud
from tests.providers.azure.jobs import ALWAYS, JOB, command_line_of, forget, submitted
from tests.support.command_line import CommandLine
from tests.support.in_process import call

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
    "expired token": ("the credentials have expired: The access token", "hint: az login"),
    "expired login": ("the credentials have expired: DefaultAzureCredential", "hint: az login"),
    "nobody logged in": ("no Azure credentials", "hint: az login (or AZURE_CLIENT_ID"),
    "missing role": ("not authorized", "jobs/write: AzureML Data Scientist on the workspace"),
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
        case "expired token":
            cloud.endpoint.fault("expired", "arm", times=ALWAYS)
        case "expired login":
            (folder / "az").write_text(STALE)
            (folder / "az").chmod(0o755)
            return {"PATH": f"{folder}{os.pathsep}{SYSTEM}"}
        case "nobody logged in":
            cloud.log_out()
        case "missing role":
            cloud.endpoint.fault("denied", "arm", "PutJob", times=ALWAYS)
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


@pytest.fixture
def without_sdk(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a Python that has `azure` but not azure-ai-ml."""
    (tmp_path / "stub" / "azure").mkdir(parents=True)
    (tmp_path / "stub" / "azure" / "__init__.py").touch()
    return {"PYTHONPATH": str(tmp_path / "stub")}


def test_without_the_sdk_one_is_told_how_to_install_it(
    own_process: CommandLine, without_sdk: dict[str, str]
) -> None:
    result = own_process.run(*SUBMIT, **without_sdk)
    assert (result.code, result.out) == (3, "")
    assert "azure-ai-ml is not installed" in result.err
    assert 'pip install "cloudtrain[azure]"' in result.err
    result = own_process.run("list", "--provider", "azure", **without_sdk)
    assert result.code == 2
    assert 'pip install "cloudtrain[azure]"' in result.err


def test_without_the_sdk_one_can_plan_and_see_what_is_known(
    own_process: CommandLine, without_sdk: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_process.folder / "job")
    submitted("known-1", data_dir=str(own_process.data))
    assert own_process.run("plan", "--provider", "azure", **without_sdk).code == 0
    assert "known-1  pending" in own_process.run("list", **without_sdk).out.replace("   ", "  ")
    result = own_process.run("status", "known-1", **without_sdk)
    assert result.code == 2
    assert 'pip install "cloudtrain[azure]"' in result.err
    assert "Traceback" not in result.err

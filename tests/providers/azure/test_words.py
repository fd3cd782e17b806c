"""Messages of the command line for Azure's refusals: each with its own text and a next step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.providers.azure.jobs import ALWAYS, command_line_of, submitted
from tests.support.command_line import CommandLine

SUBMIT = ("submit", "--provider", "azure", "--detach")
SYSTEM = "/usr/bin:/bin"
STALE = """#!/bin/sh
echo "ERROR: AADSTS700082: The refresh token has expired due to inactivity. Trace ID: 1" >&2
echo "To re-authenticate, please run: az login" >&2
exit 1
"""
WORDS = {
    "a wrong subscription": (
        "subscription '99999999-0000-0000-0000-000000000000'",
        "check azure.subscription",
    ),
    "a wrong resource group": ("Resource group 'nowhere'", "check azure.resource_group"),
    "a wrong workspace": ("workspaces/nowhere", "check azure.workspace"),
    "an expired token": ("the credentials have expired: The access token", "hint: az login"),
    "an expired login": ("the credentials have expired: DefaultAzureCredential", "hint: az login"),
    "nobody logged in": ("no Azure credentials", "hint: az login (or AZURE_CLIENT_ID"),
    "no az": ("Azure CLI not found on path", "hint: az login (or AZURE_CLIENT_ID"),
    "no variables": (
        "Environment variables are not fully configured",
        "hint: az login (or AZURE_CLIENT_ID",
    ),
    "a missing role": ("not authorized", "jobs/write: AzureML Data Scientist on the workspace"),
    "a missing role of storage": (
        "not authorized",
        "Storage Blob Data Contributor on the workspace's storage account",
    ),
    "an expired signature": (
        "or this machine's clock is wrong",
        "hint: check this machine's clock with date -u; az login",
    ),
    "no network": ("Azure cannot be reached", "hint: check the network"),
}


def arranged(cloud: AzureCloud, trouble: str, folder: Path) -> dict[str, str]:
    """Bring a trouble about: by faults, or by variables of the client."""
    match trouble:
        case "a wrong subscription":
            return {"CLOUDTRAIN_AZURE_SUBSCRIPTION": "99999999-0000-0000-0000-000000000000"}
        case "a wrong resource group":
            return {"CLOUDTRAIN_AZURE_RESOURCE_GROUP": "nowhere"}
        case "a wrong workspace":
            return {"CLOUDTRAIN_AZURE_WORKSPACE": "nowhere"}
        case "an expired token":
            cloud.endpoint.fault("expired", "arm", times=ALWAYS)
        case "an expired login":
            (folder / "az").write_text(STALE)
            (folder / "az").chmod(0o755)
            return {"PATH": f"{folder}{os.pathsep}{SYSTEM}"}
        case "nobody logged in":
            cloud.log_out()
        case "no az":
            return {"PATH": str(folder)}
        case "no variables":
            return {"AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
        case "a missing role":
            cloud.endpoint.fault("denied", "arm", "PutJob", times=ALWAYS)
        case "a missing role of storage":
            cloud.endpoint.fault("denied", "blob", "PutBlob", times=ALWAYS)
        case "an expired signature":
            cloud.endpoint.fault("expired", "blob", "PutBlob", times=ALWAYS)
        case "no network":
            return {
                "HTTPS_PROXY": "http://127.0.0.1:9",
                "https_proxy": "http://127.0.0.1:9",
                "NO_PROXY": "",
            }
    return {}


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
def cli(cloud: AzureCloud, tmp_path: Path) -> CommandLine:
    return command_line_of(cloud, tmp_path)


@pytest.mark.parametrize("trouble", WORDS)
def test_a_submit_says_what_is_wrong_and_what_to_do(
    cloud: AzureCloud, cli: CommandLine, tmp_path: Path, trouble: str
) -> None:
    env = arranged(cloud, trouble, tmp_path)
    result = cli.run(*SUBMIT, **env)
    assert result.code == 4, result.err
    for words in WORDS[trouble]:
        assert words in result.err
    assert "nothing was started" in result.err
    without_noise(result.err)


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

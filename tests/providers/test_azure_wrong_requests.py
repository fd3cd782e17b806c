"""Every wrong Azure ML request is refused offline: at its line, with all other mistakes, and without a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.providers.aws.wrong_requests import Row
from tests.providers.azure import wrong_contents, wrong_requests
from tests.support.in_process import call

ROWS = [*wrong_requests.ROWS, *wrong_contents.ROWS]
ACCOUNT = {
    "CLOUDTRAIN_AZURE_SUBSCRIPTION": "12345678-1234-1234-1234-123456789abc",
    "CLOUDTRAIN_AZURE_RESOURCE_GROUP": "my-group",
    "CLOUDTRAIN_AZURE_WORKSPACE": "my-workspace",
    "CLOUDTRAIN_AZURE_LOCATION": "eastus",
}


@pytest.fixture(autouse=True)
def a_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, an account's facts, and no credentials of any kind."""
    monkeypatch.chdir(tmp_path)
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"):
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
    said = call(*words, "--provider", "azure")
    assert said.code == 2, said.err
    assert "Traceback" not in said.err
    for words_ in row.said:
        assert words_ in said.err
    if not row.run_id:  # what is told without network is told by a plan too
        assert call("plan", "--provider", "azure").err == said.err


def test_there_are_enough_of_them() -> None:
    assert len(ROWS) >= 90
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_all_mistakes_are_told_at_once(a_job_folder: Path) -> None:
    (a_job_folder / "job.yaml").write_text(
        "image: azureml:mine\n"
        "resources: {instance: {azure: p4d.24xlarge}, gpus: 8, spot: true, shm: 1 KB}\n"
        "limits: {max_runtime: 30 d}\n"
        "inputs: {train: 'azureml:mnist', local: ./gone}\n"
        "checkpoints: {uri: 's3://bucket/checkpoints'}\n"
        "secrets: {TOKEN: {azure: 'keyvault:token'}}\n"
        "env: {AZUREML_RUN_ID: y}\n"
        "tags: {cloudtrain-x: y}\n"
        "azure: {subscription: mine, datastore: my-store, tier: basic, services: ssh}\n"
    )
    said = call("check", "--provider", "azure")
    told = re.findall(r"^job\.yaml:\d+:\d+: ([\w.-]+): ", said.err, re.MULTILINE)
    assert sorted(told) == [
        "azure.datastore",
        "azure.services",
        "azure.subscription",
        "azure.tier",
        "checkpoints.uri",
        "env.AZUREML_RUN_ID",
        "image",
        "inputs.local",
        "inputs.train",
        "limits.max_runtime",
        "resources.instance.azure",
        "resources.shm",
        "secrets.TOKEN",
        "tags.cloudtrain-x",
    ]


def test_a_right_request_passes(a_job_folder: Path) -> None:
    (a_job_folder / "data").mkdir()
    (a_job_folder / "data" / "rows.csv").write_text("1,2\n")
    (a_job_folder / "job.yaml").write_text(
        "image: {azure: 'azureml://registries/azureml/environments/acpt-pytorch/labels/latest', aws: auto}\n"
        "resources: {nodes: 2, gpus: 8, gpu: [L4, A100-80GB], shm: 16 GiB}\n"
        "limits: {max_runtime: 6 h, max_cost: 500 USD}\n"
        "inputs:\n"
        "  train: azureml://datastores/data/paths/mnist/\n"
        "  far: azureml://subscriptions/s/resourcegroups/g/workspaces/w/datastores/d/paths/x/\n"
        "  words: azureml:words@latest\n"
        "  table: {uri: 'https://account.blob.core.windows.net/box/table.csv', mode: stream}\n"
        "  here: ./data\n"
        "checkpoints: {uri: 'azureml://datastores/data/paths/kept'}\n"
        "secrets: {TOKEN: {azure: 'keyvault:https://my-vault.vault.azure.net/secrets/token'}}\n"
        "tags: {team: vision, Größe: 'sehr groß'}\n"
        "azure: {location: East US, tier: standard, identity: user, services: [ssh, jupyter, vscode, tensorboard],\n"
        "  ssh_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI me@here}\n"
    )
    said = call("check", "--provider", "azure")
    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize("size", ["STANDARD_NC24ADS_A100_V4", "standard_nc24ads_a100_v4"])
def test_a_size_is_known_however_its_letters_are_written(size: str, a_job_folder: Path) -> None:
    (a_job_folder / "job.yaml").write_text(f"resources: {{instance: {{azure: {size}}}, gpus: 1}}\n")
    assert call("check", "--provider", "azure").code == 0


def test_an_input_of_another_cloud_is_refused_with_a_way_to_say_both(a_job_folder: Path) -> None:
    (a_job_folder / "job.yaml").write_text("inputs: {train: 's3://my-data/train/'}\n")
    said = call("check", "--provider", "azure")
    assert said.code == 2
    both = "{azure: 'azureml://datastores/NAME/paths/FOLDER/', aws: 's3://my-data/train/'}"
    assert f"hint: name one per provider: {both}" in said.err
    (a_job_folder / "job.yaml").write_text(f"inputs: {{train: {both}}}\n")
    assert call("check", "--provider", "azure").code == 0


def test_a_cluster_of_the_settings_is_planned_without_its_machines_being_known(
    a_job_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_AZURE_COMPUTE", "azureml:my-cluster")
    (a_job_folder / "job.yaml").write_text("resources: {gpus: 3, gpu: H100}\nlimits: {max_runtime: 1 h}\n")
    assert call("check", "--provider", "azure").code == 0
    assert "1 x machine of my-cluster" in call("plan", "--provider", "azure").out

"""Every wrong request is refused offline: at its line, with all other mistakes, and without a
traceback.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudtrain.providers.aws.service_model import model_name
from tests.support.in_process import call
from tests.support.samples import AWS_ACCOUNT, AZURE_ACCOUNT, Row, wrong_inputs


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Facts about one cloud.

    A `right` job passes; `wrong` has a mistake in each of the `wrong_fields`.
    """

    provider: str
    rows: list[Row]
    account: Mapping[str, str]
    right: str
    wrong: str
    wrong_fields: tuple[str, ...]


AWS = Cloud(
    provider="aws",
    rows=wrong_inputs("wrong_requests.yaml", "both", "aws"),
    account=AWS_ACCOUNT,
    right=(
        "env: {SAGEMAKER_REQUIREMENTS: requirements.txt}\n"
        "resources: {nodes: 2, gpus: 8, gpu: [A100-80GB, H100]}\nlimits: {max_runtime: 6 h,"
        " max_wait: 12 h, max_cost: 500 USD, retries: 2}\ninputs: {train: 's3://data/mnist/',"
        " table: 's3://data/x.csv', live: {uri: 's3://data/live', mode: stream}}\ntags: {team:"
        " vision, Größe: 'sehr groß'}\naws: {subnets: [subnet-1], security_groups: [sg-1], kms_key:"
        " alias/mine, encrypt_traffic: true}\n"
    ),
    wrong=(
        "image: 123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1\n"
        "resources: {gpus: 1, spot: true}\n"
        "limits: {max_wait: 1 h}\n"
        "tags: {'aws:x': y, z: 'a€b'}\n"
        "env: {TRAINING_JOB_X: y}\n"
        "aws: {role: not-an-arn-at-all-and-long-enough, subnets: [subnet-1]}\n"
    ),
    wrong_fields=(
        *("image", "limits.max_wait", "tags.aws:x", "tags.z", "env.TRAINING_JOB_X"),
        *("aws.role", "aws.subnets", "aws.security_groups"),
    ),
)
AZURE = Cloud(
    provider="azure",
    rows=wrong_inputs("wrong_requests.yaml", "both", "azure"),
    account=AZURE_ACCOUNT,
    right=(
        "image: {azure: 'azureml://registries/azureml/environments/acpt-pytorch/labels/latest',"
        " aws: auto}\nresources: {nodes: 2, gpus: 8, gpu: [L4, A100-80GB], shm: 16 GiB}\nlimits:"
        " {max_runtime: 6 h, max_cost: 500 USD}\ninputs:\n  train:"
        " azureml://datastores/data/paths/mnist/\n  far:"
        " azureml://subscriptions/s/resourcegroups/g/workspaces/w/datastores/d/paths/x/\n  words:"
        " azureml:words@latest\n  table: {uri:"
        " 'https://account.blob.core.windows.net/box/table.csv', mode: stream}\n  here:"
        " ./data\ncheckpoints: {uri: 'azureml://datastores/data/paths/kept'}\nsecrets: {TOKEN:"
        " {azure: 'keyvault:https://my-vault.vault.azure.net/secrets/token'}}\ntags: {team: vision,"
        " Größe: 'sehr groß'}\nazure: {location: East US, identity: user, services:"
        " [ssh, jupyter, vscode, tensorboard],\n  ssh_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"
        " me@here}\n"
    ),
    wrong=(
        "image: azureml:mine\n"
        "resources: {instance: {azure: p4d.24xlarge}, gpus: 8, spot: true, shm: 1 KB}\n"
        "limits: {max_runtime: 30 d}\n"
        "inputs: {train: 'azureml:mnist', local: ./gone}\n"
        "checkpoints: {uri: 's3://bucket/checkpoints'}\n"
        "secrets: {TOKEN: {azure: 'keyvault:token'}}\n"
        "env: {AZUREML_RUN_ID: y}\n"
        "tags: {cloudtrain-x: y}\n"
        "azure: {subscription: mine, datastore: my-store, services: ssh}\n"
    ),
    wrong_fields=(
        *(
            "azure.datastore",
            "azure.services",
            "azure.subscription",
            "checkpoints.uri",
        ),
        *("env.AZUREML_RUN_ID", "image", "inputs.local", "inputs.train", "limits.max_runtime"),
        *("resources.instance.azure", "resources.shm", "secrets.TOKEN", "tags.cloudtrain-x"),
    ),
)
CLOUDS = (AWS, AZURE)
EVERY_CLOUD = pytest.mark.parametrize("cloud", CLOUDS, ids=lambda cloud: cloud.provider)
REFUSED = [(cloud, row) for cloud in CLOUDS for row in cloud.rows if not row.limit]
LIMITS = [(cloud, row) for cloud in CLOUDS for row in cloud.rows if row.limit]


def ids(pairs: list[tuple[Cloud, Row]]) -> list[str]:
    return [f"{cloud.provider}: {row.id}" for cloud, row in pairs]


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the job.yaml of the current folder; accounts are known, credentials are missing."""
    monkeypatch.chdir(tmp_path)
    for name, value in {**AWS.account, **AZURE.account}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "job.yaml"


@pytest.mark.parametrize(("cloud", "row"), REFUSED, ids=ids(REFUSED))
def test_it_is_refused_at_its_line(
    cloud: Cloud, row: Row, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write_text(row.job or "")
    for name, value in row.env.items():
        monkeypatch.setenv(name, value)
    words = ["submit", "--dry-run", "--run-id", row.run_id] if row.run_id else ["check"]
    result = call(*words, "--provider", cloud.provider)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    assert [words_ for words_ in row.shown if words_ not in result.err] == []
    if not row.run_id:  # a plan reports the same errors; warnings come after them
        assert result.err.startswith(call("plan", "--provider", cloud.provider).err)


@pytest.mark.parametrize(("cloud", "row"), LIMITS, ids=ids(LIMITS))
def test_a_limit_of_the_service_model_is_a_warning_that_names_the_model(
    cloud: Cloud, row: Row, job: Path
) -> None:
    job.write_text(row.job or "")
    result = call("check", "--provider", cloud.provider)
    assert result.code == 0, result.err
    for words in (*row.shown, f"in the service model of {model_name()}"):
        assert words in result.err
    planned = call("plan", "--provider", cloud.provider)
    assert planned.code == 0, planned.err
    assert all(words in planned.out for words in row.shown)


@EVERY_CLOUD
def test_all_mistakes_are_reported_at_once(cloud: Cloud, job: Path) -> None:
    job.write_text(cloud.wrong)
    result = call("check", "--provider", cloud.provider)
    assert result.code == 2
    reported = re.findall(r"^job\.yaml:\d+:\d+: ([\w.:-]+): ", result.err, re.MULTILINE)
    assert sorted(reported) == sorted(cloud.wrong_fields)


@EVERY_CLOUD
def test_a_right_request_passes(cloud: Cloud, job: Path) -> None:
    job.write_text(cloud.right)
    (job.parent / "data").mkdir()
    (job.parent / "data" / "rows.csv").write_text("1,2\n")
    result = call("check", "--provider", cloud.provider)
    security = r"note: job\.yaml:\d+:\d+: (aws\.network_isolation|azure\.(compute|services)): "
    lines = [line for line in result.err.splitlines() if not re.match(security, line)]
    assert (result.code, lines) == (0, [])


def test_a_plan_that_would_be_refused_is_shown_with_its_errors(job: Path) -> None:
    job.write_text(
        "name: digits\nlimits: {max_wait: 10 min, max_runtime: 1 h}\nresources: {gpus: 1}\n"
    )
    result = call("plan", "--provider", "aws")
    assert result.code == 2
    assert result.out.startswith("digits  1 x ml.g4dn.xlarge")
    assert result.out.endswith("  refused  submit would refuse it: 1 error\n")
    assert result.err.startswith("job.yaml:2:10: limits.max_wait: is 10 min, at least 30 min")
    assert call("plan", "--provider", "aws", "--json").out.startswith('{\n  "error"')


@pytest.mark.parametrize("size", ["STANDARD_NC24ADS_A100_V4", "standard_nc24ads_a100_v4"])
def test_an_azure_vm_size_is_known_in_any_case(size: str, job: Path) -> None:
    job.write_text(f"resources: {{instance: {{azure: {size}}}, gpus: 1}}\n")
    assert call("check", "--provider", "azure").code == 0


def test_an_input_of_another_cloud_is_refused_with_a_way_to_name_both(job: Path) -> None:
    job.write_text("inputs: {train: 's3://my-data/train/'}\n")
    result = call("check", "--provider", "azure")
    assert result.code == 2
    both = "{azure: 'azureml://datastores/NAME/paths/FOLDER/', aws: 's3://my-data/train/'}"
    assert f"hint: name one per provider: {both}" in result.err
    job.write_text(f"inputs: {{train: {both}}}\n")
    assert call("check", "--provider", "azure").code == 0


def test_a_cluster_from_the_settings_is_planned_without_knowing_its_machines(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_AZURE_COMPUTE", "azureml:my-cluster")
    job.write_text("resources: {gpus: 3, gpu: H100}\nlimits: {max_runtime: 1 h}\n")
    assert call("check", "--provider", "azure").code == 0
    assert "1 x machine of my-cluster" in call("plan", "--provider", "azure").out

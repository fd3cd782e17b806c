"""What the README shows as a job is one: it can be planned for every provider that it speaks of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import cloudtrain

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
ACCOUNT = {
    "AWS_REGION": "us-east-1",
    "AWS_ROLE": "arn:aws:iam::123456789012:role/train",
    "AWS_BUCKET": "my-bucket",
    "AZURE_SUBSCRIPTION": "00000000-0000-0000-0000-000000000000",
    "AZURE_RESOURCE_GROUP": "my-group",
    "AZURE_WORKSPACE": "my-workspace",
    "AZURE_LOCATION": "eastus",
}


def blocks() -> list[str]:
    found: list[str] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    return found


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cloudtrain.Job:
    """The example that is held against Microsoft's own."""
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(f"CLOUDTRAIN_{name}", value)
    text = next(block for block in blocks() if block.startswith("name: cifar-distributed"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print(1)\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "job.yaml").write_text(text)
    return cloudtrain.load(tmp_path / "job.yaml")


@pytest.mark.parametrize("block", blocks())
def test_every_yaml_block_is_yaml(block: str) -> None:
    assert isinstance(yaml.safe_load(block), dict)


@pytest.mark.parametrize(
    ("provider", "as_"),
    [*((name, None) for name in ("local", "docker", "aws", "azure")), ("local", "aws"), ("docker", "azure")],
)
def test_the_example_is_a_job_for_every_provider(cifar: cloudtrain.Job, provider: str, as_: str | None) -> None:
    plan = cloudtrain.plan(cifar, provider, as_=as_)
    argv = ["--epochs", "1", "--learning-rate", "0.2", "--data-dir", "${inputs.data}"]
    job = cloudtrain.render(plan).job
    assert (job["argv"], job["nodes"], job["processes"], job["gpus"]) == (argv, 2, 1, 1)


def test_on_azure_the_example_asks_for_what_microsofts_own_asks_for(cifar: cloudtrain.Job) -> None:
    document = cloudtrain.render(cloudtrain.plan(cifar, "azure")).document
    assert document["inputs"]["data"]["path"] == "azureml:cifar-10-example:1"
    assert document["resources"]["instance_count"] == 2
    assert document["distribution"] == {"type": "pytorch", "process_count_per_instance": 1}

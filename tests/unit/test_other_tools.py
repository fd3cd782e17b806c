"""Settings of the clouds' own command lines that cloudtrain uses, and the plan's note about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.aws.target import cli_default_region
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.target import cli_default_account, workspace_of
from cloudtrain.settings import load_settings
from tests.support.samples import write

CONFIG = """[default]
region=eu-north-1   # home
[profile work]
role_arn = arn:aws:iam::123456789012:role/x
s3 =
    region = no-where-1
region = eu-west-3
[profile empty]
output = json
"""
SUBSCRIPTION = "12345678-1234-1234-1234-123456789abc"
PROFILE = {
    "subscriptions": [{"id": "other", "isDefault": False}, {"id": SUBSCRIPTION, "isDefault": True}]
}
AZURE = (
    "[cloud]\nname = AzureCloud\n[defaults]\ngroup = my-group\nworkspace=my-workspace\nlocation ="
    " westeurope\n"
)
REGIONS: dict[str, tuple[Mapping[str, str], tuple[str, str] | None]] = {
    "the default profile": ({}, ("eu-north-1", "~/.aws/config:2, profile default")),
    "a profile": ({"AWS_PROFILE": "work"}, ("eu-west-3", "~/.aws/config:7, profile work")),
    "boto3's older name of it": (
        {"AWS_PROFILE": "empty", "AWS_DEFAULT_PROFILE": "work"},
        ("eu-west-3", "~/.aws/config:7, profile work"),
    ),
    "a profile without one": ({"AWS_PROFILE": "empty"}, None),
    "a variable": (
        {"AWS_PROFILE": "work", "AWS_REGION": "us-west-2"},
        ("us-west-2", "environment AWS_REGION"),
    ),
}


@pytest.fixture(autouse=True)
def files(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the files of both command lines."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    write(own_home, {".aws/config": CONFIG, ".azure/config": AZURE})
    (own_home / ".azure/azureProfile.json").write_text(json.dumps(PROFILE), encoding="utf-8-sig")
    return own_home


@pytest.mark.parametrize("case", REGIONS.values(), ids=REGIONS.keys())
def test_the_region_is_that_of_awss_own_tools(
    case: tuple[Mapping[str, str], tuple[str, str] | None],
) -> None:
    environ, expected = case
    assert cli_default_region(environ) == expected


def test_the_workspace_is_that_of_azures_command_line(files: Path, tmp_path: Path) -> None:
    assert cli_default_account({}) == {
        "subscription": (SUBSCRIPTION, "~/.azure/azureProfile.json"),
        "resource_group": ("my-group", "~/.azure/config:4"),
        "workspace": ("my-workspace", "~/.azure/config:5"),
        "location": ("westeurope", "~/.azure/config:6"),
    }
    assert cli_default_account({"AZURE_DEFAULTS_GROUP": "mine"})["resource_group"] == (
        "mine",
        "environment AZURE_DEFAULTS_GROUP",
    )
    assert workspace_of(load_settings(tmp_path)) == (SUBSCRIPTION, "my-group", "my-workspace")
    assert cli_default_account({"AZURE_CONFIG_DIR": str(tmp_path)}) == {}
    (files / ".azure/azureProfile.json").write_text("{broken")
    assert "subscription" not in cli_default_account({})


def planned(provider: str, tmp_path: Path, **sections: object) -> Plan:
    folder = write(tmp_path / "job", {"train.py": ""})
    (folder / "job.yaml").write_text(
        json.dumps(
            {"name": "d", "entrypoint": "train.py", "limits": {"max_runtime": "1 h"}, **sections}
        )
    )
    return cloudtrain.plan(
        cloudtrain.load(folder / "job.yaml"), provider, data_dir=str(tmp_path / "data")
    )


def test_what_the_spec_or_the_settings_say_counts_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-west-1")
    monkeypatch.setenv("CLOUDTRAIN_AZURE_WORKSPACE", "settings-own")
    aws = {
        "region": "us-east-2",
        "role": "arn:aws:iam::123456789012:role/train",
        "bucket": "my-bucket",
    }
    assert planned("aws", tmp_path, aws=aws).target.where == "us-east-2"
    target = planned("azure", tmp_path, azure={"location": "eastus"}).target
    config = target.config_as(AzureConfig)
    assert (config.location, config.workspace, config.resource_group) == (
        "eastus",
        "settings-own",
        "my-group",
    )
    assert sorted(target.borrowed) == ["azure.resource_group", "azure.subscription"]

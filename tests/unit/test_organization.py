"""Limits of the organization: above every other place, and refused where they are broken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain import ownership, settings
from cloudtrain.errors import RefusedError, SpecError
from cloudtrain.settings import load_settings

JOB: dict[str, Any] = {
    "name": "x",
    "entrypoint": "train.py",
    "resources": {"gpus": 8, "gpu": "H100", "nodes": 2},
    "limits": {"max_runtime": "8 h"},
    "tags": {"project": "vision"},
    "aws": {
        "region": "us-east-1",
        "role": "arn:aws:iam::123456789012:role/x",
        "bucket": "my-bucket",
    },
}
"""Costs 126.59 USD per hour: 1055 USD with its grace and the time for image and data."""


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The organization's file, as if this user were root."""
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(settings, "ORGANIZATION_FILE", folder / "config.toml")
    monkeypatch.setattr(ownership, "ROOT", os.geteuid())
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").touch()
    monkeypatch.chdir(tmp_path / "job")
    return folder / "config.toml"


def write(file: Path, lines: str) -> None:
    file.write_text(f"[organization]\n{lines}\n")
    file.chmod(0o644)


def broken(provider: str = "aws", as_: str | None = None, **fields: Any) -> list[str]:
    """Return the limits that the job breaks."""
    plan = cloudtrain.plan(cloudtrain.load({**JOB, **fields}), provider, as_=as_)
    place = str(settings.ORGANIZATION_FILE)
    return [issue.message for issue in plan.issues if issue.origin.startswith(place)]


@pytest.mark.parametrize(
    ("kept", "not_kept"),
    [
        ('max_runtime = "8 h"', 'max_runtime = "7 h 59 min"'),
        ('max_cost = "1100 USD"', 'max_cost = "1000 USD"'),
        ('providers = ["aws", "local"]', 'providers = ["azure"]'),
        ('regions = ["eu-*", "us-east-?"]', 'regions = ["eu-*"]'),
        ('machines = ["ml.P5.*"]', 'machines = ["ml.g5.*"]'),
        ('tags = ["project"]', 'tags = ["project", "owner"]'),
    ],
)
def test_a_job_beyond_a_limit_is_refused_and_one_within_is_not(
    limits: Path, kept: str, not_kept: str
) -> None:
    write(limits, kept)
    assert broken() == []
    write(limits, not_kept)
    [message] = broken()
    assert message.startswith(not_kept.split()[0])


def test_it_is_refused_before_anything_is_started(limits: Path) -> None:
    write(limits, 'max_runtime = "1 h"')
    with pytest.raises(RefusedError, match="max_runtime"):
        cloudtrain.submit(cloudtrain.plan(cloudtrain.load(JOB), "aws"))


def test_a_cost_counts_the_higher_of_the_users_price_and_the_tables(
    limits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "prices.csv"
    monkeypatch.setenv("CLOUDTRAIN_PRICES", str(table))
    table.write_text("instance_type,usd_per_hour\nml.p5.48xlarge,0.01\n")
    write(limits, 'max_cost = "1000 USD"')
    assert len(broken()) == 1
    table.write_text("instance_type,usd_per_hour\nml.p5.48xlarge,1000\n")
    write(limits, 'max_cost = "1100 USD"')
    assert len(broken()) == 1


def test_machines_that_are_paid_in_advance_do_not_count(limits: Path) -> None:
    write(limits, 'max_cost = "1000 USD"')
    resources = {"nodes": 2, "instance": {"aws": ["ml.p5.48xlarge", "ml.p4d.24xlarge"]}}
    assert len(broken(resources=resources)) == 1
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine"
    reserved = JOB["aws"] | {"training_plan": {"ml.p5.48xlarge": arn}}
    assert broken(resources=resources, aws=reserved) == []


def test_an_unknown_price_is_beyond_every_cost(limits: Path) -> None:
    b300 = {"gpus": 8, "gpu": "B300"}
    assert broken(resources=b300) == []
    write(limits, 'max_cost = "1000000 USD"')
    [message] = broken(resources=b300)
    assert "unknown" in message


def test_a_rehearsal_rents_nothing(limits: Path) -> None:
    write(limits, 'max_cost = "1 USD"\nregions = ["eu-*"]\nproviders = ["aws"]')
    [message] = broken("local", "aws")
    assert message.startswith("providers")


def test_strict_of_the_organization_is_above_every_other_place(
    limits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_POLICY", "warn")
    write(limits, 'policy = "strict"')
    assert load_settings(tmp_path)["policy"] == "strict"

    monkeypatch.setenv("CLOUDTRAIN_POLICY", "strict")
    write(limits, 'policy = "warn"')
    assert load_settings(tmp_path)["policy"] == "strict"


def test_no_variable_changes_a_limit(limits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(limits, 'max_cost = "1 USD"')
    monkeypatch.setenv("CLOUDTRAIN_ORGANIZATION_MAX_COST", "1000000 USD")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    assert len(broken()) == 1


def test_a_file_that_is_not_roots_alone_is_refused(
    limits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(limits, 'max_cost = "1 USD"')
    limits.chmod(0o664)
    with pytest.raises(SpecError, match="its group"):
        load_settings(tmp_path)

    limits.chmod(0o644)
    monkeypatch.setattr(ownership, "ROOT", os.geteuid() + 1)
    with pytest.raises(SpecError, match="belongs to"):
        load_settings(tmp_path)


def test_a_mistake_in_it_stops_every_job(limits: Path, tmp_path: Path) -> None:
    write(limits, 'max_costs = "1 USD"')
    with pytest.raises(SpecError, match="unknown setting"):
        load_settings(tmp_path)

"""The same questions to every provider that is found: pure until `start`, frozen, and plain JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain import providers
from cloudtrain.declaration import provider_names
from cloudtrain.errors import SpecError, UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.settings import load_settings

NAMES = provider_names()


@pytest.fixture(autouse=True)
def an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the settings that a cloud requires before a plan."""
    monkeypatch.setenv("CLOUDTRAIN_AWS_REGION", "us-east-1")
    monkeypatch.setenv("CLOUDTRAIN_AWS_ROLE", "arn:aws:iam::123456789012:role/train")
    monkeypatch.setenv("CLOUDTRAIN_AWS_BUCKET", "my-bucket")
    monkeypatch.setenv("CLOUDTRAIN_AZURE_SUBSCRIPTION", "12345678-1234-1234-1234-123456789abc")
    monkeypatch.setenv("CLOUDTRAIN_AZURE_RESOURCE_GROUP", "my-group")
    monkeypatch.setenv("CLOUDTRAIN_AZURE_WORKSPACE", "my-workspace")
    monkeypatch.setenv("CLOUDTRAIN_AZURE_LOCATION", "eastus")


def plan_for(name: str, folder: Path, text: str = "resources: {nodes: 2, processes: 2}\n") -> Plan:
    (folder / "job").mkdir()
    (folder / "job" / "job.yaml").write_text(text)
    return cloudtrain.plan(
        cloudtrain.load(folder / "job" / "job.yaml"), name, data_dir=str(folder / "data")
    )


def test_local_is_among_them() -> None:
    assert "local" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_provider_is_called_like_its_file(name: str, tmp_path: Path) -> None:
    provider = providers.get_provider(name)
    assert provider.declaration.name == name
    spec = cloudtrain.load({"name": "digits"}).spec
    assert provider.target(load_settings(tmp_path), spec).provider == name


@pytest.mark.parametrize("name", NAMES)
def test_rendering_is_pure_and_plain_json(name: str, tmp_path: Path) -> None:
    plan = plan_for(name, tmp_path)
    before = json.dumps(plan.to_json())
    first, second = (providers.get_provider(name).render(plan) for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first.document)) == first.document
    assert json.dumps(plan.to_json()) == before
    assert not (tmp_path / "data" / "runs").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_cannot_be_changed(name: str, tmp_path: Path) -> None:
    plan = plan_for(name, tmp_path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.run_id = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        plan.spec.resources.nodes = 9  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_provider_cannot_do_is_refused_at_its_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        plan_for(name, tmp_path, "resources:\n  nodes: 1000\n")
    assert f"{tmp_path / 'job' / 'job.yaml'}:2:3: resources.nodes: " in str(refused.value)


def test_what_a_provider_has_no_use_for_is_said_not_dropped(tmp_path: Path) -> None:
    plan = plan_for("local", tmp_path, "resources: {spot: true, disk: 1 TB}\nimage: some/image:1\n")
    assert plan.unused == ("image", "resources.spot", "resources.disk")


def test_an_unknown_provider_is_answered_with_those_at_hand() -> None:
    with pytest.raises(UsageError, match="unknown provider 'slurm'") as refused:
        providers.get_provider("slurm")
    assert "local" in (refused.value.hint or "")
    for hostile in ("../errors", "__init__", "os.path"):
        with pytest.raises(UsageError):
            providers.get_provider(hostile)

"""`cloudtrain infra` over a provider in memory: the template, and the settings in cloudtrain.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.providers.infrastructure import Deployment, Infrastructure
from tests.support.in_process import call


class InMemory(Infrastructure):
    """A deployment with fixed outputs."""

    formats = ("native", "terraform")

    def template(self, format_: str) -> str:
        return f"the {format_} template\n"

    def deployment(self) -> Deployment:
        return Deployment(
            settings={"aws.bucket": "made-1", "aws.subnets": ("subnet-1", "subnet-2")},
            outputs={"submitter policy": "arn:1"},
        )


@pytest.fixture(autouse=True)
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider of the commands of a test, in an empty folder."""

    class Provider:
        def infrastructure(self, *_: object) -> Infrastructure:
            return InMemory()

    monkeypatch.setattr("cloudtrain.cli.infra.get_provider", lambda _: Provider())
    monkeypatch.chdir(tmp_path)


def test_template_is_printed_in_each_format() -> None:
    assert call("infra", "template", "--provider", "aws").out == "the native template\n"
    result = call("infra", "template", "--provider", "aws", "--format", "terraform")
    assert result.out == "the terraform template\n"
    result = call("infra", "template", "--provider", "aws", "--format", "teraform")
    assert result.code == 2
    assert "(did you mean 'terraform'?)" in result.err


def test_settings_are_shown_and_written() -> None:
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert (result.code, result.out) == (0, "submitter policy: arn:1\n")
    assert '+ bucket = "made-1"' in result.err
    assert "next: cloudtrain doctor aws" in result.err
    text = Path("cloudtrain.toml").read_text()
    assert text == '[aws]\nbucket = "made-1"\nsubnets = ["subnet-1", "subnet-2"]\n'


def test_settings_that_are_there_are_not_written_again() -> None:
    call("infra", "settings", "--provider", "aws", "--yes")
    result = call("infra", "settings", "--provider", "aws")
    assert result.code == 0
    assert "cloudtrain.toml has these settings already" in result.err


def test_settings_are_not_written_without_a_terminal_or_yes() -> None:
    result = call("infra", "settings", "--provider", "aws")
    assert result.code == 3
    assert "--yes writes without asking" in result.err
    assert not Path("cloudtrain.toml").exists()


def test_json_prints_settings_and_writes_nothing() -> None:
    result = call("infra", "settings", "--provider", "aws", "--json")
    assert json.loads(result.out) == {
        "settings": {"aws.bucket": "made-1", "aws.subnets": ["subnet-1", "subnet-2"]},
        "outputs": {"submitter policy": "arn:1"},
    }
    assert not Path("cloudtrain.toml").exists()


def test_infra_without_a_command_shows_its_help() -> None:
    result = call("infra")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: cloudtrain infra")
    assert "error:" not in result.err


def test_provider_without_a_template_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    result = call("infra", "settings", "--provider", "local")
    assert result.code == 2
    assert "the provider 'local' has no template of an account" in result.err

"""Folders of `examples/parallelism` are jobs: each can be planned anywhere, one is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.in_process import call
from tests.support.samples import AWS_ACCOUNT, AZURE_ACCOUNT

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "parallelism"
JOBS = sorted(EXAMPLES.glob("*/job.yaml"))


@pytest.mark.parametrize("provider", ["local", "aws", "azure"])
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name)
def test_each_folder_can_be_planned(
    path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**AWS_ACCOUNT, **AZURE_ACCOUNT}.items():
        monkeypatch.setenv(name, value)
    ended = call("plan", str(path.parent), "--provider", provider)
    assert ended.code == 0, ended.err


@pytest.mark.torchrun
def test_the_pipeline_runs_on_this_machine(cli: CommandLine) -> None:
    submit_pipeline(cli)


@pytest.mark.torchrun
@pytest.mark.thorough
@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_the_pipeline_is_rehearsed_as_each_cloud_would_run_it(cli: CommandLine, cloud: str) -> None:
    submit_pipeline(cli, "--as", cloud)


def submit_pipeline(cli: CommandLine, *flags: str) -> None:
    """Run two steps of the folder to their end."""
    folder = str(EXAMPLES / "pipeline")
    result = cli.run("submit", folder, "--provider", "local", *flags, "--set", "args.steps=2")
    assert result.code == 0, result.err
    assert "step 2: loss" in cli.run("logs", "last").out


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    """A folder without a job, from which commands are typed."""
    commands = CommandLine(tmp_path / "workspace", modules=("warm_jobs",))
    (commands.folder / "job").mkdir()
    yield commands
    commands.close()

"""A source with a requirements.txt, everywhere: installed once, layered on the existing torch."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import CommandLine, CommandResult
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from docker.client import DockerClient

pytestmark = [pytest.mark.torchrun]

SCRIPT = """
import subprocess, sys
import torch
import pure_part, compiled_part, sees
from cloudtrain_job import emit
child = subprocess.check_output([sys.executable, "-c", "import sees; print(sees.VERSION)"], text=True).strip()
emit("seen", torch=torch.__version__, sees=sees.VERSION, child=child, place=pure_part.__file__)
"""
REQUIREMENTS = """
--no-index
--find-links wheels
pure_part==1.0
compiled_part
sees
"""
JOB = """
name: packages
entrypoint: train.py
image: {docker: "%s"}
aws: {region: us-east-1, role: "arn:aws:iam::123456789012:role/train", bucket: my-bucket}
limits: {max_runtime: 1 h}
"""


def write_source(cli: CommandLine, image: str = "train:1") -> None:
    """A job whose requirements are one pure wheel, one for this platform alone, and one that would
    pull a new torch.
    """
    wheels = cli.folder / "job" / "wheels"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    make_wheel(wheels, "pure_part", "1.0")
    make_wheel(wheels, "compiled_part", "1.0", tag=f"py3-none-{platform}")
    make_wheel(wheels, "sees", "2.0", requires=["torch>=99"])
    make_wheel(wheels, "sees", "1.0", requires=["torch>=2"])
    make_wheel(wheels, "torch", "99.0")
    cli.write(job_yaml=JOB % image, train_py=SCRIPT, requirements_txt=REQUIREMENTS)


def check_runs(cli: CommandLine, runs: dict[str, CommandResult]) -> None:
    """All found their packages, with one torch, and only the first one has installed anything."""
    assert {way: run.code for way, run in runs.items()} == dict.fromkeys(runs, 0), runs
    reports = {
        way: next(e for e in cli.events(f"run-{way}") if e["type"] == "seen") for way in runs
    }
    assert {(event["sees"], event["child"]) for event in reports.values()} == {("1.0", "1.0")}
    assert not any(event["torch"].startswith("99") for event in reports.values())
    assert len({event["place"] for event in reports.values()}) == 1
    logs = {way: (cli.run_folder(f"run-{way}") / "logs" / "node-0.log").read_text() for way in runs}
    first, *later = logs.values()
    assert "installing: " in first
    assert "packages: compiled_part 1.0, pure_part 1.0, sees 1.0 (installed now)" in first.replace(
        "-", "_"
    )
    for way in runs:
        activities = [
            event["activity"] for event in cli.events(f"run-{way}") if event["type"] == "activity"
        ]
        assert activities[0] == "installing"
        assert not [pair for pair in pairwise(activities) if pair[0] == pair[1]], (
            "what goes on is told once"
        )
    for text in later:
        assert "installing: " not in text
        assert "(installed before)" in text


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("packages") / "a folder, with spaces")
    yield made
    made.close()


def test_they_are_installed_once_on_this_machine_whichever_cloud_is_rehearsed(
    cli: CommandLine,
) -> None:
    write_source(cli)
    ways = {"as-aws": ("--as", "aws"), "plain": ()}
    check_runs(
        cli,
        {way: cli.run("submit", "--run-id", f"run-{way}", *flags) for way, flags in ways.items()},
    )
    (installed,) = (path for path in (cli.data / "packages").iterdir() if path.is_dir())
    assert (installed / "bin" / "python3").exists()


@pytest.mark.docker
def test_they_are_installed_once_for_an_image_whichever_cloud_is_rehearsed(
    tmp_path: Path, docker_with_image: tuple[DockerClient, str]
) -> None:
    cli = CommandLine(tmp_path / "in containers")
    write_source(cli, docker_with_image[1])
    ways = {"as-azure": ("--as", "azure"), "plain": ()}
    submit = ("submit", "--provider", "docker", "--run-id")
    check_runs(cli, {way: cli.run(*submit, f"run-{way}", *flags) for way, flags in ways.items()})
    cli.close()


def test_unavailable_requirement_ends_the_run_with_its_line_and_advice(
    cli: CommandLine,
) -> None:
    cli.write(
        requirements_txt="--no-index\nno-such-thing==3\n", train_py=SCRIPT, job_yaml=JOB % "train:1"
    )
    run = cli.run("submit", "--run-id", "run-bad")
    assert run.code == 1
    assert "requirements.txt:2: no-such-thing==3 cannot be installed for Python" in run.err
    assert "No matching distribution found for no-such-thing==3" in run.err
    assert "is the name right" in run.err
    assert "Traceback" not in run.err

"""The workflow that rehearses a pull request's job: its own steps, run as GitHub runs them, with what GitHub reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.house.tools import ROOT
from tests.support.limits import HANG_SECONDS

WORKFLOW = yaml.safe_load((ROOT / "examples/github-actions/smoke.yml").read_text())
(JOB,) = WORKFLOW["jobs"].values()
ONE = "resources.nodes=1\nresources.gpus=0\nresources.processes=1\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a job on GPUs, and cloudtrain where the workflow installs it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "cloudtrain").symlink_to(Path(sys.executable).with_name("cloudtrain"))
    top = tmp_path / "repository"
    (top / "training").mkdir(parents=True)
    (top / "training" / "job.yaml").write_text(
        "name: cat\nentrypoint: train.py\nresources: {nodes: 4, gpus: 8, gpu: H100}\nlimits: {max_cost: 50 USD}\n"
    )
    (top / "training" / "train.py").write_text("print('trained')\n")
    return top


def step(repository: Path, name: str, tiny: str = ONE) -> subprocess.CompletedProcess[str]:
    """One step of the workflow, in the shell that GitHub takes: `bash -e`."""
    (script,) = (step["run"] for step in JOB["steps"] if step.get("name") == name)
    env = {**os.environ, **JOB["env"], "JOB": "training/job.yaml", "TINY": tiny, "GITHUB_ACTIONS": "true"}
    env |= {"RUNNER_TEMP": str(repository.parent), "GITHUB_WORKSPACE": str(repository)}
    argv = ["bash", "-e", "-c", script]
    return subprocess.run(
        argv, cwd=repository, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


@pytest.mark.torchrun
def test_a_job_for_gpus_is_rehearsed_for_both_clouds(repository: Path) -> None:
    assert step(repository, "Check").returncode == 0
    done = step(repository, "Rehearse")
    assert done.returncode == 0, done.stderr
    assert "as SageMaker would run it" in done.stderr
    assert "as Azure ML would run it" in done.stderr
    assert done.stderr.count("trained") == 2
    assert "::error" not in done.stderr


def test_each_mistake_of_the_spec_appears_at_its_line(repository: Path) -> None:
    job = repository / "training" / "job.yaml"
    job.write_text(job.read_text() + "env: {A: [1, 2]}\ninputs: 3\n")
    done = step(repository, "Check")
    assert done.returncode == 2
    found = [line for line in done.stderr.splitlines() if line.startswith("::error ")]
    assert [line.partition("::env")[0] for line in found[:1]] == ["::error file=training/job.yaml,line=5,col=7"]
    assert found[1].startswith("::error file=training/job.yaml,line=6,col=1::inputs: ")


@pytest.mark.torchrun
def test_the_line_at_which_training_failed_is_annotated(repository: Path) -> None:
    (repository / "training" / "train.py").write_text("\nraise ValueError('50% is\\nnot, enough')\n")
    done = step(repository, "Rehearse")
    assert done.returncode == 1
    (found,) = (line for line in done.stderr.splitlines() if line.startswith("::error "))
    assert found.startswith("::error file=training/train.py,line=2::rank 0 (node 0) raised ValueError: 50%25 is%0A")


def test_what_is_to_be_installed_is_no_name_of_an_index() -> None:
    for path in (ROOT / "examples/github-actions").glob("*.yml"):
        text = path.read_text()
        assert "cloudtrain==" not in text
        assert "]==" not in text
        assert " @ git+https://" in text

"""Commands for jobs in a cloud on a system without Unix: on Windows, or here with it taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]

JOB = """
name: elsewhere
launcher: none
entrypoint: bash parts/run.sh
inputs: {train: ./data}
limits: {max_runtime: 1 h}
"""
PROGRAM = b"""
cat "$CLOUDTRAIN_INPUT_TRAIN/a.csv"
if [ "$1" = wait ]; then sleep 1000; fi
echo weights > "$CLOUDTRAIN_MODEL_DIR/m.txt"
"""
FILES = {"job.yaml": JOB.encode(), "parts/run.sh": PROGRAM, "data/a.csv": b"1,2\n"}

ACCOUNT = {
    "CLOUDTRAIN_AWS_REGION": "us-east-1",
    "CLOUDTRAIN_AWS_ROLE": "arn:aws:iam::111122223333:role/job",
    "CLOUDTRAIN_AWS_BUCKET": "of-the-tests",
    "CLOUDTRAIN_AZURE_SUBSCRIPTION": "00000000-0000-0000-0000-000000000001",
    "CLOUDTRAIN_AZURE_RESOURCE_GROUP": "group",
    "CLOUDTRAIN_AZURE_WORKSPACE": "workspace",
    "CLOUDTRAIN_AZURE_LOCATION": "eastus",
}


def without_accounts() -> dict[str, str]:
    """Return this process's variables without those that name an account or a cloud."""
    clouds = ("AWS_", "AZURE_", "AZUREML_", "ARM_", "MSI_", "IDENTITY_", "CLOUDTRAIN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(clouds)}


Results = list[tuple[int, str, str]]
"""Exit code, stdout and stderr of each command."""
Client = Callable[..., Results]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Return a function that runs commands, in one process, in the folder of a job."""
    for name, content in FILES.items():
        file = tmp_path / "job" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    places = (ROOT, ROOT / "entrypoints", ROOT / "entrypoints" / "job")
    home = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    paths = {"PYTHONPATH": os.pathsep.join(map(str, places))}

    def run(*commands: str, env: Mapping[str, str] = ACCOUNT) -> Results:
        script = str(ROOT / "tests" / "support" / "without_unix.py")
        words = json.dumps([command.split() for command in commands])
        done = subprocess.run(
            [sys.executable, "-X", "warn_default_encoding", script, words],
            cwd=tmp_path / "job",
            env={**without_accounts(), **env, **home, **paths},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results: Results = json.loads(done.stdout)
        return results

    return run


def test_every_module_of_the_client_is_imported(client: Client) -> None:
    assert client() == []


def test_jobs_are_checked_and_planned_for_both_clouds(client: Client) -> None:
    commands = ["gpus", "list", "infra template --provider aws"]
    for provider in ("aws", "azure"):
        commands += [f"check --provider {provider}", f"plan --provider {provider} --json"]

    results = client(*commands)
    assert [(code, error) for code, _, error in results if code] == []
    on_aws, on_azure = (output for _, output, _ in results[4::2])
    assert json.loads(on_azure)["command"]
    assert "\\" not in json.dumps(json.loads(on_aws))


@pytest.mark.parametrize("provider", ["local", "docker"])
def test_a_run_on_this_machine_says_in_one_line_what_it_needs(
    client: Client, provider: str
) -> None:
    (code, _, error), *_ = client(f"submit --provider {provider}")
    assert code == 2
    assert error.splitlines()[0] == "error: runs on this machine need Linux or macOS"


@pytest.fixture(params=["aws", "azure"])
def cloud(request: pytest.FixtureRequest) -> Any:
    """Yield an imitated cloud, and its name."""
    from tests.fakes.aws.cloud import Cloud  # neither is imported on Windows
    from tests.fakes.azure.cloud import AzureCloud

    imitations: dict[str, Any] = {"aws": Cloud, "azure": AzureCloud}
    with imitations[request.param]() as imitation:
        yield request.param, imitation


@pytest.mark.linux("the imitated clouds run their jobs as containers do")
def test_a_job_in_a_cloud_is_submitted_followed_fetched_and_removed(
    client: Client, tmp_path: Path, cloud: Any
) -> None:
    provider, imitation = cloud
    others = {"aws": ("AZURE", "ARM_", "MSI_", "IDENTITY_"), "azure": "AWS_"}[provider]
    variables = imitation.clean().items()
    submit = f"submit --provider {provider} --detach --yes --run-id"
    results = client(
        f"{submit} one",
        "wait one",
        "logs one",
        "status one",
        "fetch one",
        f"{submit} two -- wait",
        "stop two",
        "list",
        "rm one --yes",
        "list",
        env={name: value for name, value in variables if not name.startswith(others)},
    )
    codes = [code for code, _, _ in results]
    assert codes == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0], results
    outputs = [output for _, output, _ in results]
    assert "1,2" in outputs[2]
    assert (tmp_path / "job" / "one" / "model" / "m.txt").read_text("utf-8") == "weights\n"
    listed = [[line.split()[0] for line in output.splitlines()[1:]] for output in outputs[7::2]]
    assert listed == [["two", "one"], ["two"]]

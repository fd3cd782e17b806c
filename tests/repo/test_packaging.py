"""The wheel: it carries the launcher and the trainer inside the package, and works without the
checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cloudtrain
from tests.support.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=HANG_SECONDS)
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_what_travels_with_a_job_inside_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "cloudtrain_launcher/launch.py",
        "job/cloudtrain_job.py",
        "cloudtrain_trainer/tasks/digits.py",
    ):
        assert f"cloudtrain/_bundle/entrypoints/{name}" in names
    assert "cloudtrain/_bundle/infra/azure/template.json" in names
    for name in (
        "Dockerfile",
        ".dockerignore",
        "train",
        "torch-cuda.txt",
        "torch-cpu.txt",
        "requirements.txt",
    ):
        assert f"cloudtrain/_bundle/docker/{name}" in names, (
            "the image can be built from an installed package"
        )
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "cloudtrain",
        "cloudtrain_job.py",
        "cloudtrain_launcher",
        "cloudtrain_trainer",
    }
    assert "cloudtrain/catalog/aws.csv" in names
    assert "cloudtrain/cli/starter/job.yaml" in names


def test_the_wheel_takes_its_version_from_the_package_and_its_types_along(wheel: Path) -> None:
    assert wheel.name.startswith(f"cloudtrain-{cloudtrain.__version__}-")
    assert "cloudtrain/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_an_installed_wheel_finds_its_payload_without_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from cloudtrain.bundle import payload_files\nfiles = payload_files()\n"
    code += "print(files['cloudtrain_launcher/launch.py'], len(files))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    assert process.stdout.startswith(
        str(
            tmp_path
            / "cloudtrain"
            / "_bundle"
            / "entrypoints"
            / "cloudtrain_launcher"
            / "launch.py"
        )
    )
    assert int(process.stdout.split()[-1]) > 15

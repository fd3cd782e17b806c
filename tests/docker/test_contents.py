"""Contents of the image: present and absent parts, checked inside a container."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pytest

from tests.docker.engine import ROOT, Engine, steps

pytestmark = pytest.mark.docker

COMPILERS = ["gcc", "g++"]
PROGRAMS = (
    *COMPILERS,
    "clang",
    "make",
    "nvcc",
    "sshd",
    "ssh",
    "ssh-keygen",
    "tini",
    "curl",
    "wget",
)
QUESTION = """
import glob, importlib.metadata, json, os, shutil, sys
print(json.dumps({
    "programs": [name for name in sys.argv[1:] if shutil.which(name)],
    "train": shutil.which("train"), "python": [shutil.which("python3"), sys.version_info[:2], sys.prefix],
    "keys": [os.path.join(folder, name) for top in ("/etc", "/home", "/opt", "/root", "/usr/local", "/var")
             for folder, folders, files in os.walk(top) for name in [*folders, *files]
             if name in ("ssh", "sshd", ".ssh") or name.startswith(("id_rsa", "id_ed25519", "ssh_host_"))],
    "caches": [path for path in ("/root/.cache/pip", "/var/cache/apt/pkgcache.bin") if os.path.exists(path)],
    "lists": os.listdir("/var/lib/apt/lists"), "tmp": os.listdir("/tmp"),
    "packages": sorted({d.metadata["Name"].lower() for d in importlib.metadata.distributions()}),
    "environment": dict(os.environ), "user": os.getuid(),
    "infiniband": glob.glob("/usr/lib/*/libibverbs.so.1") + glob.glob("/usr/lib/*/libibverbs/libmlx5*"),
}))
"""


@pytest.fixture(scope="module")
def inside(engine: Engine, image: str) -> dict[str, object]:
    output = engine.run(image, "python3", "-c", QUESTION, *PROGRAMS, options=("--network", "none"))
    document: dict[str, object] = json.loads(output)
    return document


def test_no_server_no_key_no_cache_is_left_behind(inside: dict[str, object]) -> None:
    assert inside["programs"] == COMPILERS
    for nothing in ("keys", "caches", "lists", "tmp"):
        assert inside[nothing] == [], nothing


def test_the_image_has_what_jobs_need(
    engine: Engine, image: str, inside: dict[str, object]
) -> None:
    assert inside["train"] == "/usr/local/bin/train"
    assert inside["user"] == 0
    packages = inside["packages"]
    assert isinstance(packages, list)
    assert {"torch", "numpy", "scikit-learn", "boto3", "keras", "pillow", "tensorboard"} <= {
        *packages
    }
    assert "cloudtrain" not in packages, "the project travels with the job"
    infiniband = inside["infiniband"]
    assert isinstance(infiniband, list)
    assert len(infiniband) >= 2
    assert (
        engine.run(image, "pip", "check", options=("--network", "none"))
        == "No broken requirements found."
    )


def test_both_clouds_find_the_python_of_the_image(
    engine: Engine, image: str, inside: dict[str, object]
) -> None:
    environment = inside["environment"]
    assert isinstance(environment, dict)
    assert environment["PATH"].startswith("/opt/venv/bin:")
    expected = {
        "PYTHONUNBUFFERED": "1",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    assert environment.items() >= expected.items()
    # SageMaker names its own program; Azure ML's is a line of shell.
    code = "import sys, torch; print(sys.prefix)"
    offline = ("--network", "none")
    assert (
        engine.run(image, "-c", code, options=(*offline, "--entrypoint", "python3")) == "/opt/venv"
    )
    assert engine.run(image, "bash", "-c", f"python -c '{code}'", options=offline) == "/opt/venv"


# Building the image again: what a change rebuilds.


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A copy of docker/ to be changed."""
    return shutil.copytree(ROOT / "docker", tmp_path / "docker")


def test_a_change_of_train_rebuilds_no_layer_of_packages(
    engine: Engine, image: str, context: Path
) -> None:
    (context / "train").write_text((context / "train").read_text() + f"# {uuid.uuid4()}\n")
    build = engine.build(context, "changed")
    assert build.returncode == 0, build.stdout
    before = engine.layers(image)
    after = engine.layers("changed")
    assert before[:-2] == after[:-2], "all but `train` and its mode"
    assert before[-2:] != after[-2:]
    assert steps(build.stdout), build.stdout

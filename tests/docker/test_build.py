"""Building the image again: what a change rebuilds."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from tests.docker.engine import ROOT, Engine, steps

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]


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

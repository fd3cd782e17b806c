"""`image: auto` with a real engine: our own image is built by the submit that needs it, and by no
other.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.engine import BUILD_SECONDS, Engine
from tests.support import command_line
from tests.support.command_line import CommandLine

pytestmark = [pytest.mark.docker, pytest.mark.torchrun, pytest.mark.timeout(1800)]


@pytest.fixture
def cli(
    engine: Engine, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandLine]:
    """A job without a word about its image, on the base of these tests; the label makes the image a
    new one.
    """
    monkeypatch.setattr(command_line, "HANG_SECONDS", BUILD_SECONDS)
    made = CommandLine(tmp_path / "workspace")
    made.env["CLOUDTRAIN_IMAGE_ARGS"] = f"BASE_IMAGE={engine.base},REVISION={uuid.uuid4().hex}"
    made.env["DOCKER"] = engine.docker
    made.write(
        job_yaml="name: auto\nentrypoint: train.py\n",
        train_py="import sys\nprint('in', sys.prefix)\n",
    )
    yield made
    made.close()


def test_auto_is_built_where_it_is_new_and_only_there(engine: Engine, cli: CommandLine) -> None:
    first = cli.run("submit", "--provider", "docker", "--run-id", "first-1")
    name = cli.document("first-1", "plan.json")["target"]["facts"]["image"]
    try:
        assert first.code == 0, first.err
        assert "in /opt/venv" in cli.run("logs", "first-1").out
        assert name.startswith("cloudtrain:cpu-")
        made = engine.inspect(name)
        assert (
            made["Config"]["Labels"]["org.opencontainers.image.revision"]
            in cli.env["CLOUDTRAIN_IMAGE_ARGS"]
        )
        # A client that cannot build proves that a build does not happen.
        second = cli.run(
            "submit", "--provider", "docker", "--run-id", "second-1", DOCKER="/no/such/program"
        )
        assert second.code == 0, second.err
        assert cli.document("second-1", "plan.json")["target"]["facts"]["image"] == name
    finally:
        engine.call("rmi", "--force", name)

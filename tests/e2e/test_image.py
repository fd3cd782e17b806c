"""Images with a real engine and registry: built where they are new, pushed once, named by digest,
or told why not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docker.errors import APIError, NotFound

import cloudtrain
from cloudtrain.planning.recipe import recipe_of
from cloudtrain.providers.docker.images import ensure_pushed, inspect_image
from tests.fakes.azure.cloud import AzureCloud
from tests.support.command_line import CommandLine
from tests.support.engine import left_of, registry
from tests.support.waiting import HANG_SECONDS, eventually

if TYPE_CHECKING:
    from docker.client import DockerClient

pytestmark = pytest.mark.docker

JOB = (
    "name: own\nentrypoint: train.py\nimage: {build: image/Dockerfile}\nlimits: {max_runtime: 1"
    " h}\n"
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that takes everything."""
    with registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def mark(docker: DockerClient) -> Iterator[str]:
    """Return a label of one test's images, so that all of them can be removed."""
    mark = f"cloudtrain.test={uuid.uuid4().hex}"
    yield mark
    mine = {"filters": {"label": mark}, "all": True}
    # The steps of a build cannot go before what was built upon them.
    while images := docker.images.list(**mine):
        removed = [image for image in images if _removed(docker, image.id)]
        assert removed, images


@pytest.fixture
def folder(cli: CommandLine, mark: str) -> Path:
    """The folder of a small image that no other test has."""
    made = cli.folder / "job" / "image"
    made.mkdir(parents=True)
    (made / "Dockerfile").write_text(f"FROM scratch\nLABEL {mark}\nCOPY data /data\n")
    (made / "data").write_bytes(os.urandom(3_000_000))
    return made


@pytest.fixture
def cli(cli: CommandLine) -> CommandLine:
    """Provide a job with a custom image; record each call of the docker program."""
    program = shutil.which("docker")
    if program is None:
        pytest.skip("the docker program is not installed")
    cli.write(job_yaml=JOB, train_py="print('trained')\n")
    replace_docker(cli, f'exec {program} "$@"')
    cli.env["DOCKER_CONFIG"] = str(cli.folder)
    return cli


def _removed(docker: DockerClient, image: str) -> bool:
    try:
        docker.images.remove(image, force=True)
    except NotFound:  # it went with another one
        return True
    except APIError:
        return False
    return True


def replace_docker(cli: CommandLine, command: str) -> None:
    """Another client program, which says what it is called with and does something then."""
    path = cli.folder / "docker"
    path.write_text(f"#!/bin/sh\necho \"$1\" >> '{cli.folder}/called'\n{command}\n")
    path.chmod(0o755)
    cli.env["DOCKER"] = str(path)


def builds(cli: CommandLine) -> int:
    """Return the number of docker builds."""
    called = cli.folder / "called"
    return called.read_text().split().count("build") if called.exists() else 0


def images_of(docker: DockerClient, mark: str) -> set[str]:
    """The names of a test's images."""
    return {name for image in docker.images.list(filters={"label": mark}) for name in image.tags}


def test_what_is_built_is_pushed_once_and_known_by_its_digest(
    cli: CommandLine,
    folder: Path,
    host: str,
    docker: DockerClient,
    mark: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DOCKER", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, cli.env[name])
    recipe = recipe_of(folder / "Dockerfile", platform="linux/amd64")
    progress: list[tuple[int, int]] = []
    address = ensure_pushed(
        recipe, f"{host}/own:{recipe.tag}", lambda sent, total: progress.append((sent, total))
    )
    image = inspect_image(address)
    assert image is not None
    assert address == f"{host}/own@{image.digest}"
    assert image == inspect_image(f"{host}/own:{recipe.tag}")
    assert image.architectures == {"amd64"}
    assert images_of(docker, mark) == {recipe.name, f"{host}/own:{recipe.tag}"}
    sent = [count for count, _ in progress]
    assert sent == sorted(sent)
    assert progress[-1][0] == progress[-1][1] >= 3_000_000
    docker.images.remove(recipe.name, force=True)
    assert ensure_pushed(recipe, f"{host}/own:{recipe.tag}") == address
    assert builds(cli) == 1


def test_azure_job_names_the_digest_and_the_next_one_does_not_build(
    cli: CommandLine, folder: Path, host: str, docker: DockerClient, mark: str
) -> None:
    with AzureCloud(phase_seconds=3600) as cloud:
        cli.env |= cloud.environment() | {"CLOUDTRAIN_AZURE_REPOSITORY": f"{host}/own"}
        requests = []
        for run in ("first-1", "second-1"):
            cloud.endpoint.reset()
            result = cli.run("submit", "--provider", "azure", "--run-id", run, "--detach")
            assert result.code == 0, result.err
            assert [call.operation for call, _ in cloud.endpoint.sent].count("PutJob") == 1
            requests.append(json.dumps([body for _, body in cloud.endpoint.sent]))
            for image in docker.images.list(filters={"label": mark}):
                # A missing image cannot be pushed again.
                docker.images.remove(image.id, force=True)
        tag = recipe_of(folder / "Dockerfile", platform="linux/amd64").tag
        pushed = inspect_image(f"{host}/own:{tag}")
        assert pushed is not None
        assert all(f"{host}/own@{pushed.digest}" in text for text in requests)
        found_run = cloudtrain.find_run("second-1", data_dir=str(cli.data))
        assert (found_run.cached_status().image, found_run.cached_status().image_digest) == (
            f"{host}/own@{pushed.digest}",
            pushed.digest,
        )
        assert f"{host}/own@{pushed.digest}" in cli.run("status", "second-1").out
        planned = cli.document("second-1", "plan.json")["target"]["facts"]["image"]
        assert planned == f"{host}/own:{tag}", "the plan is kept as it was shown"
        assert builds(cli) == 1


@pytest.mark.torchrun
def test_a_job_in_containers_runs_in_its_own_image_which_is_built_once(
    cli: CommandLine, folder: Path, image: str, docker: DockerClient, mark: str
) -> None:
    (folder / "Dockerfile").write_text(f"FROM {image}\nLABEL {mark}\nENV MADE_FOR=this-job\n")
    cli.write(train_py="import os\nprint('made for', os.environ['MADE_FOR'])\n")
    for run in ("first-1", "second-1"):
        result = cli.run("submit", "--provider", "docker", "--run-id", run)
        assert result.code == 0, result.err
        assert "made for this-job" in cli.run("logs", run).out
    name = f"cloudtrain:{recipe_of(folder / 'Dockerfile').tag}"
    assert (images_of(docker, mark), builds(cli)) == ({name}, 1)
    assert cli.document("first-1", "plan.json")["target"]["facts"]["image"] == name
    assert left_of(docker, cli.data) == []


def test_a_build_that_fails_is_shown_and_starts_nothing(cli: CommandLine, folder: Path) -> None:
    (folder / "Dockerfile").write_text("FROM scratch\nARG NAME=no-such-file\nCOPY $NAME /\n")
    result = cli.run("submit", "--provider", "docker")
    assert result.code == 4
    assert "no-such-file" in result.err.partition("error: ")[0], "what docker said"
    assert "was not built: docker build ended with" in result.err
    assert "the same by hand: " in result.err
    assert cli.json("list") == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["ctrl-c", "kill"]
)
def test_a_submit_interrupted_during_a_build_leaves_no_run(
    cli: CommandLine, folder: Path, number: int, code: int
) -> None:
    replace_docker(cli, 'if [ "$1" = build ]; then exec sleep 600; fi; exit 1')
    submitting = cli.start("submit", "--provider", "docker")
    eventually(lambda: builds(cli))
    os.killpg(submitting.pid, number)
    _, err = submitting.communicate(timeout=HANG_SECONDS)
    assert (submitting.returncode, "Traceback" in err) == (code, False), err
    assert cli.json("list") == []
    assert cli.processes() == []

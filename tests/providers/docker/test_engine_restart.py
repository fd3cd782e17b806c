"""The engine restarts under a container: it continues or ends as the engine decides, and every line
comes once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.providers.docker.container_spec import (
    DATA_LABEL,
    NODE_LABEL,
    RUN_LABEL,
    Bind,
    ContainerSpec,
)
from tests.providers.docker.conftest import Begin
from tests.support.dockerd import IMAGE, NETWORK, Dockerd, of_this_machine, own_dockerd
from tests.support.limits import HANG_SECONDS
from tests.support.waiting import eventually

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

COUNTING = """
trap 'echo; echo asked; exit 5' TERM
i=0
while [ ! -e /out/go ]; do
  i=$((i + 1)); echo "line $i"; printf 'half '; sleep 0.02; echo "of $i"; echo "error $i" >&2; echo $i > /out/count
done
echo "last $i"
exit 7
"""


@pytest.fixture
def dockerd(request: pytest.FixtureRequest) -> Iterator[Dockerd]:
    with own_dockerd(*request.param) as engine:
        yield engine


def counting(tmp_path: Path) -> ContainerSpec:
    """Build a minimal image of a shell that counts until a file ends it."""
    (tmp_path / "out").mkdir(exist_ok=True)
    return ContainerSpec(
        node=0, image=IMAGE, name="cloudtrain-test-counting", host="node-00", network=NETWORK,
        argv=("/bin/sh", "-c", COUNTING), folder="/", env={}, secrets=(),
        binds=(*of_this_machine(), Bind(source=str(tmp_path / "out"), target="/out")),
        labels={RUN_LABEL: "run-1", DATA_LABEL: str(tmp_path), NODE_LABEL: "0"}, user="0:0", grace_seconds=30,
    )  # fmt: skip


def count(tmp_path: Path) -> int:
    file = tmp_path / "out" / "count"
    return int(file.read_text() or 0) if file.exists() else 0


def begin_counting(begin: Begin, dockerd: Dockerd, tmp_path: Path) -> subprocess.Popen[bytes]:
    process = begin(counting(tmp_path), DOCKER_HOST=dockerd.host)
    eventually(lambda: count(tmp_path) > 5)
    return process


@pytest.mark.parametrize("dockerd", [("--live-restore",)], indirect=True, ids=["live-restore"])
def test_a_run_that_goes_on_is_followed_and_every_line_arrives_once(
    dockerd: Dockerd, begin: Begin, tmp_path: Path
) -> None:
    process = begin_counting(begin, dockerd, tmp_path)
    dockerd.end()
    at = count(tmp_path)
    dockerd.start()
    eventually(lambda: count(tmp_path) > at + 5)
    (tmp_path / "out" / "go").touch()
    out, _ = process.communicate(timeout=HANG_SECONDS)
    lines = out.decode().splitlines()
    last = count(tmp_path)
    printed = [line for line in lines if line.startswith(("line ", "half ", "of "))]
    assert process.returncode == 7
    assert [line for line in lines if line.startswith("error ")] == [
        f"error {i + 1}" for i in range(last)
    ]
    assert printed == [line for i in range(last) for line in (f"line {i + 1}", f"half of {i + 1}")]
    assert lines.count(f"last {last}") == 1
    assert "[node 0] the Docker engine was lost and is back after " in out.decode()
    with dockerd.client() as client:
        assert client.containers.list(all=True) == []


@pytest.mark.parametrize(
    "dockerd", [("--shutdown-timeout", "1")], indirect=True, ids=["no live-restore"]
)
def test_a_rank_killed_by_the_engine_is_attributed_to_it(
    dockerd: Dockerd, begin: Begin, tmp_path: Path
) -> None:
    stubborn = ("/bin/sh", "-c", "trap '' TERM; echo listening; while true; do sleep 1; done")
    process = begin(replace(counting(tmp_path), argv=stubborn), DOCKER_HOST=dockerd.host)
    assert process.stdout is not None
    assert process.stdout.readline() == b"listening\n"
    dockerd.end()
    dockerd.start()
    out, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 137
    assert b'"message":"the Docker engine was stopped, and ended its container"' in out
    assert b"live-restore" in out


@pytest.mark.parametrize("dockerd", [()], indirect=True, ids=["no live-restore"])
def test_what_ended_with_the_engine_is_told_and_removed(
    dockerd: Dockerd, begin: Begin, tmp_path: Path
) -> None:
    process = begin_counting(begin, dockerd, tmp_path)
    dockerd.end()
    dockerd.start()
    out, _ = process.communicate(timeout=HANG_SECONDS)
    lines = out.decode().splitlines()
    assert (process.returncode, lines.count("asked")) == (5, 1)
    counted = [line for line in lines if line.startswith("line ")]
    assert counted == [f"line {i + 1}" for i in range(len(counted))]
    assert len(counted) >= count(tmp_path)
    with dockerd.client() as client:
        assert client.containers.list(all=True) == []

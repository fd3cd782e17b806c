"""Fixtures: ranks of the trainer, forked by one server; for the launcher an AWS of this machine
with some secrets.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.entrypoints.groups import TRAIN, TRAINER, ForkServer, Group, StartGroup
from tests.entrypoints.launchers import close_server
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from cloudtrain_trainer.tasks import Task
    from cloudtrain_trainer.training.loop import Loop

SECRET = "value-that-nobody-may-print"
REGION = "eu-west-1"


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """The process whose forks are the ranks of the trainer."""
    server = ForkServer(*TRAINER)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def a_launcher_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are written as such: without a launcher they are shown to people."""
    monkeypatch.setenv("CLOUDTRAIN_STREAM_DIR", ".")


@pytest.fixture(scope="session", autouse=True)
def warm_launchers() -> Iterator[None]:
    """The process whose forks are launchers ends with the tests."""
    yield
    close_server()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Compute in one thread, as ranks do: numbers depend neither on cores nor on other tests."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def loader_processes_end() -> Iterator[None]:
    """No loader process outlives its test. They end when their loader is freed."""
    yield
    if multiprocessing.active_children():
        gc.collect()
        eventually(lambda: not multiprocessing.active_children())


@pytest.fixture
def group(fork_server: ForkServer, tmp_path: Path) -> StartGroup:
    """Starts ranks of the trainer in the test's folder, or in one below it."""

    def start(
        ranks: int,
        flags: str = "",
        *,
        folder: str = "",
        program: str = TRAIN,
        before: str = "",
        **env: str,
    ) -> Group:
        return Group(
            fork_server, tmp_path / folder, ranks, flags, program=program, before=before, **env
        )

    return start


@pytest.fixture
def make_loop(tmp_path: Path) -> Callable[..., Loop]:
    """Makes a training loop in this process, from a command line; its checkpoints are in the test's
    folder.
    """
    from cloudtrain_trainer.arguments import parse
    from cloudtrain_trainer.checkpoints.store import CheckpointStore
    from cloudtrain_trainer.ranks import Ranks
    from cloudtrain_trainer.sigterm import Stop
    from cloudtrain_trainer.tasks import digits
    from cloudtrain_trainer.training.loop import Loop

    def make(*argv: str, task: Task | None = None) -> Loop:
        options = parse(list(argv))
        ranks = Ranks()
        store = CheckpointStore(tmp_path, options.keep, ranks)
        return Loop(task or digits.build(options.seed), ranks, options, store, Stop())

    return make


@pytest.fixture(scope="module")
def aws_server() -> Iterator[dict[str, str]]:
    """The variables that lead to it, and the ARN of the secret hf-token."""
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", **keys}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        store, parameters = (
            boto3.client(name, region_name=REGION) for name in ("secretsmanager", "ssm")
        )
    inherited = {
        "hf-token": SECRET,
        "team/db": json.dumps({"user": "u", "password": SECRET, "port": 5432}),
        "zero": "a\0b",
    }
    made = [store.create_secret(Name=name, SecretString=value) for name, value in inherited.items()]
    made.append(store.create_secret(Name="picture", SecretBinary=b"\x89PNG"))
    parameters.put_parameter(Name="/path/b", Value=SECRET, Type="SecureString")
    yield {**variables, "ARN": made[0]["ARN"]}
    # All servers of one process keep the same things: leave none.
    for secret in made:
        store.delete_secret(SecretId=secret["ARN"], ForceDeleteWithoutRecovery=True)
    parameters.delete_parameter(Name="/path/b")
    store.close()
    parameters.close()
    server.stop()


@pytest.fixture
def aws(aws_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the same with the given variables."""
    for name, value in aws_server.items():
        monkeypatch.setenv(name, value)
    return aws_server

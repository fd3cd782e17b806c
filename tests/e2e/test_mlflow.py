"""A real MLflow server that gets runs of this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api.shared_history import LOCK, Mark
from cloudtrain.runs.store import HISTORY_MARKS
from cloudtrain_wire.file_locks import is_locked
from tests.support.command_line import CommandLine
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(
    find_spec("mlflow") is None or find_spec("flask") is None,
    reason="needs the whole of mlflow",
)

TRAIN = """
import time
from cloudtrain_job import log_metrics
for step in range(40):
    log_metrics(step=step, loss=1 / (step + 1), acc=step / 40)
    time.sleep(0.05)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with a new database."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    words = ["server", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    words += ["--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    # Its own jobs are processes that import all of it.
    environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    address = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: answer(f"{address}/health") or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield address
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answer(address: str, body: dict[str, Any] | None = None) -> bytes:
    """Return the answer of a server; empty if it does not answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return bytes(response.read())
    except OSError:
        return b""


def runs(server: str) -> dict[str, dict[str, Any]]:
    """Return the runs of the experiment by the id of the run here; each is there once."""
    api = f"{server}/api/2.0/mlflow"
    experiment = json.loads(
        answer(f"{api}/experiments/get-by-name?experiment_name=cloudtrain") or "{}"
    )
    if not experiment:
        return {}

    ids = {"experiment_ids": [experiment["experiment"]["experiment_id"]], "max_results": 1000}
    result: dict[str, dict[str, Any]] = {}
    for run in json.loads(answer(f"{api}/runs/search", ids)).get("runs", []):
        run["tags"] = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
        assert run["tags"]["cloudtrain.run"] not in result
        result[run["tags"]["cloudtrain.run"]] = run

    return result


def points(server: str, run: dict[str, Any], key: str) -> list[tuple[int, float]]:
    query = f"run_id={run['info']['run_id']}&metric_key={key}&max_results=1000"
    history = json.loads(answer(f"{server}/api/2.0/mlflow/metrics/get-history?{query}"))
    return sorted((int(point["step"]), point["value"]) for point in history["metrics"])


def sent_end(cli: CommandLine, server: str, run_id: str) -> dict[str, Any]:
    """Wait until the server has the end of a run, with the help of `list`; return the run there."""
    folder = cli.data / HISTORY_MARKS

    def look() -> bool:
        if not is_locked(folder / LOCK):
            assert cli.run("list").code == 0
        return not (folder / run_id).exists()

    eventually(look)
    return runs(server)[run_id]


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    cli = CommandLine(tmp_path / "workspace")
    cli.write(job_yaml="name: digits\nentrypoint: train.py\nargs: {lr: 0.1}\n", train_py=TRAIN)
    yield cli
    cli.close()


def test_a_run_is_in_the_shared_history_once_although_the_sender_is_killed(
    cli: CommandLine, server: str
) -> None:
    cli.env["CLOUDTRAIN_MLFLOW_URI"] = server
    assert cli.run("submit", "--run-id", "a-1", "--detach").code == 0
    folder = cli.data / HISTORY_MARKS
    for _ in range(3):
        cli.run("status", "a-1")
        kill_holder(folder / LOCK)

    assert cli.run("wait", "a-1").code == 0
    run = sent_end(cli, server, "a-1")
    assert run["info"]["status"] == "FINISHED"
    assert run["data"]["params"] == [{"key": "lr", "value": "0.1"}]
    assert points(server, run, "loss") == [(step, 1 / (step + 1)) for step in range(40)]
    assert len(points(server, run, "acc")) == 40

    again = cli.json("rerun", "a-1", "--fresh")["run"]
    run = sent_end(cli, server, again)
    assert run["tags"]["cloudtrain.rerun_of"] == "a-1"


def test_a_server_that_comes_back_gets_what_it_missed(cli: CommandLine, server: str) -> None:
    cli.env["CLOUDTRAIN_MLFLOW_URI"] = f"http://127.0.0.1:{free_port()}"
    result = cli.run("submit", "--run-id", "b-1")
    assert result.code == 0
    mark = Mark(cli.data / HISTORY_MARKS / "b-1")
    eventually(lambda: mark.read().get("error"))
    assert "behind by 1 run" in cli.run("list").err

    kill_holder(
        cli.data / HISTORY_MARKS / LOCK
    )  # it goes on for half a minute with the old address
    cli.env["CLOUDTRAIN_MLFLOW_URI"] = server
    run = sent_end(cli, server, "b-1")
    assert len(points(server, run, "loss")) == 40


def kill_holder(path: Path) -> None:
    """Kill the process that holds the lock of a file, if there is one."""
    inode = path.stat().st_ino if path.exists() else -1
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
            os.kill(int(words[4]), signal.SIGKILL)

"""The registry program that engines push to in tests: a process on a free port."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudtrain_launcher.host import free_port
from tests.support.waiting import eventually


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Host and port of a registry whose files are in that folder. Skips where the program is not
    installed.
    """
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    host = "127.0.0.1"
    port = free_port()
    configuration = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": f"{host}:{port}"},
    }
    (folder / "config.yml").write_text(json.dumps(configuration))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with socket.socket() as client:
            return client.connect_ex((host, port)) == 0

    try:
        eventually(answers)
        yield f"{host}:{port}"
    finally:
        process.kill()
        process.wait()

"""The registry program that engines push to in tests: a process on a free port, with a password or
without.
"""

from __future__ import annotations

import base64
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

USER = "me"
PASSWORD = "secret"
LINE = "me:$2b$04$iMk/pN6sWZC7KoSdmbU5TOHGSrDsPVn8pOEj0OjjBtC1C2Mz.pGSa\n"
"""The same user and password in the format of htpasswd."""


@contextmanager
def registry(folder: Path, *, private: bool = False) -> Iterator[str]:
    """Host and port of a registry whose files are in that folder. Skips where the program is not
    installed.
    """
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    host = "127.0.0.1"
    port = free_port()
    (folder / "htpasswd").write_text(LINE)
    auth = (
        {"auth": {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}}
        if private
        else {}
    )
    configuration = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": f"{host}:{port}"},
        **auth,
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


def logged_in(folder: Path, host: str, password: str = PASSWORD) -> dict[str, str]:
    """DOCKER_CONFIG for a folder that holds the credentials of one registry, as `docker login`
    stores them.
    """
    folder.mkdir(exist_ok=True)
    credentials = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": credentials}}}))
    return {"DOCKER_CONFIG": str(folder)}

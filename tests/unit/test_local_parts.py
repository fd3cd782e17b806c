"""The local provider's parts: the lock that tells life from death, and ports that stay free."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest

from cloudtrain.providers.local.supervisor import Supervisor
from cloudtrain.providers.local.supervisor_status import (
    supervisor_state,
    take_lock,
)
from cloudtrain_launcher import host
from cloudtrain_launcher.host import free_port
from tests.repo.tools import ROOT


def test_a_look_at_a_run_never_costs_the_supervisor_its_lock(tmp_path: Path) -> None:
    looking = threading.Event()
    signal = threading.Event()

    def look() -> None:
        while not signal.is_set():
            supervisor_state(tmp_path)
            looking.set()

    watcher = threading.Thread(target=look)
    watcher.start()
    looking.wait()
    try:
        for _ in range(200):
            lock = take_lock(tmp_path)
            assert lock is not None
            lock.release()
    finally:
        signal.set()
        watcher.join()


def test_a_free_port_can_be_bound_and_is_not_handed_out_twice() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", ports[0]))


def test_a_free_port_has_a_free_port_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = host.free_port()
    offers = [first]
    reserve = host._reserve_port
    monkeypatch.setattr(
        host, "_reserve_port", lambda port: offers.pop() if offers and not port else reserve(port)
    )
    with socket.socket() as neighbour:
        neighbour.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        neighbour.bind(("127.0.0.1", first + 1))
        second = host.free_port()

    assert second != first
    with socket.create_server(("127.0.0.1", second + 1)):
        pass


def test_checkpoints_that_cannot_be_kept_now_end_no_training_and_are_kept_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = json.loads((ROOT / "tests" / "golden" / "aws-kept.json").read_text())["request"]
    (tmp_path / "request.json").write_text(json.dumps(request))
    (tmp_path / "plan.json").write_text(
        json.dumps({"provider": "local", "target": {"contract": "sagemaker"}})
    )
    saved = tmp_path / "nodes" / "0" / "ml" / "checkpoints" / "step-1"
    saved.parent.mkdir(parents=True)
    saved.write_text("weights")
    supervisor = Supervisor(tmp_path, tmp_path / "source.tar.gz", [])

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full_disk)
        supervisor._sync()
    assert "checkpoints not kept" in capfd.readouterr().err
    supervisor._sync()
    assert (tmp_path / "checkpoints" / "step-1").read_text() == "weights"

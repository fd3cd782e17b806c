"""The bandwidth between nodes is reported before training, with a warning if it is far too low."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloudtrain_trainer import network
from tests.entrypoints.launchers import document, events


def ranks_of(device: str, size: int = 16) -> Any:
    return SimpleNamespace(device=torch.device(device), rank=0, size=size, local_size=8, log=print)


@pytest.mark.parametrize(
    ("device", "size", "measured"), [("cuda", 16, True), ("cuda", 8, False), ("cpu", 16, False)]
)
def test_the_network_between_gpus_of_several_nodes_is_measured(
    device: str, size: int, measured: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(network, "bus_bandwidth", lambda _: 1e9)
    network.check(ranks_of(device, size))
    assert ("1 GB/s" in capsys.readouterr().out) == measured


def test_the_expected_bandwidth_is_the_share_of_the_gpus_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 16)
    assert network.expected_bandwidth(ranks_of("cuda")) == 0
    (tmp_path / "job.json").write_text(json.dumps(document(network_gbps=400)))
    monkeypatch.setenv("CLOUDTRAIN_JOB_FILE", str(tmp_path / "job.json"))
    assert network.expected_bandwidth(ranks_of("cuda")) == 25e9


@pytest.mark.parametrize(
    ("has_efa", "env", "reason"),
    [
        (False, {}, "uverbs"),
        (True, {"FI_PROVIDER": "efa"}, "no EFA plug-in"),
        (True, {"NCCL_TOPO_FILE": "/none.xml"}, "/none.xml"),
        (True, {}, "NCCL_DEBUG"),
    ],
)
def test_a_slow_network_is_a_warning_with_a_reason(
    has_efa: bool,
    env: dict[str, str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(network, "has_efa", lambda: has_efa)
    monkeypatch.setattr(network, "efa_library_dirs", tuple)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    network.report(ranks_of("cuda"), 5e9, 50e9)
    output = capfd.readouterr().out
    assert "at 5 of 50 GB/s expected" in output
    (warning,) = events(output)
    assert warning["type"] == "warning"
    assert reason in warning["message"]

    network.report(ranks_of("cuda"), 40e9, 50e9)
    assert "warning" not in capfd.readouterr().out

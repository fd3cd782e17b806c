"""Parts of an emulated container: the tree and channels of its node, addresses, host names, its
command.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.planning.sagemaker import NodeContainer
from cloudtrain.providers.rehearsal import container as emulator
from tests.support.samples import write
from tests.unit.test_container import ENTER, PYTHON, a_job, names


def test_a_tree_has_the_files_and_channels_of_its_node_and_is_built_twice_alike(
    tmp_path: Path,
) -> None:
    write(tmp_path, {"data/a": "1", "file.csv": "2"})
    job = a_job("folder", "file", "empty")
    places = {"folder": tmp_path / "data", "file": tmp_path / "file.csv"}
    root = tmp_path / "nodes" / "1" / "ml"
    for _ in range(2):
        emulator.create_folders(job, job.containers[1], root, places)
        assert (
            json.loads((root / "input/config/resourceconfig.json").read_text())["current_host"]
            == "algo-2"
        )
        assert json.loads((root / "input/config/hyperparameters.json").read_text()) == {
            "epochs": "3"
        }
        assert (root / "input/data/folder").readlink() == tmp_path / "data"
        assert (root / "input/data/file/file.csv").readlink() == tmp_path / "file.csv"
        assert names(root / "input/data/empty") == []
        assert all(
            (root / name).is_dir() for name in ("model", "output/data", "checkpoints", "code")
        )
    assert names(root / "input/data/file") == ["file.csv"]
    assert names(tmp_path / "data") == ["a"]

    emulator.create_folders(job, job.containers[1], root, {})
    assert not (root / "input/data/folder").is_symlink()
    with pytest.raises(FileNotFoundError, match="no-such-data"):
        emulator.create_folders(job, job.containers[1], root, {"empty": tmp_path / "no-such-data"})


@pytest.mark.linux("a loopback address per node")
def test_every_node_has_an_address_in_the_order_of_the_nodes() -> None:
    assert emulator.addresses(0) == ()
    assert emulator.addresses(1) == ("127.0.0.1",)
    assert emulator.addresses(2) == ("127.0.0.101", "127.0.0.102")
    many = emulator.addresses(1000)
    assert many[149:151] == ("127.0.0.250", "127.0.1.101")
    assert len(set(many)) == 1000
    assert list(many) == sorted(many)
    with pytest.raises(ValueError, match="1000"):
        emulator.addresses(1001)


def test_a_command_enters_the_tree_or_names_it() -> None:
    container = NodeContainer(
        node=1, host="algo-2", argv=("train", "it's"), env={"A": "b"}, files={}
    )

    def command(private: bool) -> tuple[tuple[str, ...], dict[str, str]]:
        hosts = Path("/run/hosts")
        root = Path("/run/ml")
        return emulator.command(
            container, root, hosts_file=hosts, address="addr", master="first", private=private
        )

    argv, env = command(private=True)
    assert argv == (*PYTHON, str(ENTER), "/run/ml", "algo-2", "/run/hosts", "train", "it's")
    assert env == {"A": "b"}
    argv, env = command(private=False)
    assert argv == ("train", "it's")
    assert env == {
        "A": "b",
        "SAGEMAKER_BASE_DIR": "/run/ml",
        "CLOUDTRAIN_MASTER_ADDR": "first",
        "CLOUDTRAIN_NODE_ADDR": "addr",
    }

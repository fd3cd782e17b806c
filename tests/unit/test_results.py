"""Results on this machine are copied without following links out, and one odd entry does not stop
the rest.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from cloudtrain.providers import get_provider
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import RunState
from tests.support.samples import write


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of this machine that has left a model."""
    write(tmp_path / "data/runs/a-1/model", {"weights": "w", "step-2/deep/x": "x"})
    return RunFolder(tmp_path / "data/runs/a-1")


def fetched(run: RunFolder, into: Path, provider: str = "local") -> tuple[list[str], list[str]]:
    """Return the fetched names and the notes about the rest."""
    notes: list[str] = []
    state = RunState(run_id=run.run_id)
    artifacts = get_provider(provider).fetch(
        run, state, ("model", "output"), into, None, notes.append
    )
    return artifacts, sorted(notes)


def test_links_inside_are_kept_as_relative_ones_and_others_are_named(
    run: RunFolder, tmp_path: Path
) -> None:
    model = run.path / "model"
    write(tmp_path, {"secret": "s"})
    (model / "latest").symlink_to(model / "step-2")
    (model / "step-2" / "up").symlink_to("../weights")
    (model / "secret").symlink_to(tmp_path / "secret")
    (model / "up").symlink_to("../../../../secret")
    (model / "gone").symlink_to("nowhere")
    (model / "of-azure.cloudtrain-link").write_text("step-2/deep")
    artifacts, notes = fetched(run, tmp_path / "result")
    copy = tmp_path / "result" / "model"
    assert artifacts == ["model"]
    assert sorted(path.name for path in copy.iterdir()) == [
        "latest",
        "of-azure",
        "step-2",
        "weights",
    ]
    assert (copy / "latest").readlink() == Path("step-2")
    assert (copy / "step-2" / "up").read_text() == "w"
    assert (copy / "of-azure" / "x").read_text() == "x"
    assert notes == [
        "model/gone was left out: a broken link: nowhere does not exist or is not in the archive",
        (
            "model/secret was left out: a link that leads out of what the job left"
            f" ({tmp_path}/secret)"
        ),
        "model/up was left out: a link that leads out of what the job left (../../../../secret)",
    ]


def test_pipes_sockets_and_devices_are_named_and_never_opened(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = run.path / "model"
    os.mkfifo(model / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(model)  # a socket's path may have 107 bytes
        server.bind("socket")
    expected = [
        "model/pipe was left out: a FIFO, not a file",
        "model/socket was left out: a socket, not a file",
    ]
    try:
        os.mknod(model / "endless", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        expected.insert(0, "model/endless was left out: a device, not a file")
    except PermissionError:
        pass  # not for everyone to make
    assert fetched(run, tmp_path / "result") == (["model"], expected)
    assert (tmp_path / "result/model/weights").read_text() == "w"


def test_a_folder_that_was_replaced_by_a_link_is_not_followed(
    run: RunFolder, tmp_path: Path
) -> None:
    write(tmp_path, {"home/private": "s"})
    (run.path / "output").symlink_to(tmp_path / "home")
    artifacts, notes = fetched(run, tmp_path / "result")
    assert artifacts == ["model"]
    assert notes == [f"output was left out: a link in place of the folder ({tmp_path}/home)"]
    assert "output" not in get_provider("local").artifacts(run, RunState(run_id=run.run_id))


def test_files_keep_their_time_and_whether_they_can_be_run_and_no_other_right(
    run: RunFolder, tmp_path: Path
) -> None:
    tool = run.path / "model" / "tool"
    tool.write_text("x")
    tool.chmod(0o6755)
    os.utime(tool, ns=(1, 10**18))
    fetched(run, tmp_path / "result")
    info = (tmp_path / "result/model/tool").stat()
    assert info.st_mode & 0o7700 == 0o700
    assert info.st_mtime_ns == 10**18
    assert not (tmp_path / "result/model/weights").stat().st_mode & 0o100


def test_a_container_knows_its_folders_by_other_names(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "model" / "latest").symlink_to("/cloudtrain/model/step-2")
    assert fetched(run, tmp_path / "result", "docker") == (["model"], [])
    assert (tmp_path / "result" / "model" / "latest").readlink() == Path("step-2")

"""Checkpoints of an emulated node reach the run's folder whole, and deletions follow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cloudtrain.providers.rehearsal.sagemaker import FileStates, sync_folder
from tests.support.samples import write


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_new_and_changed_files_are_copied_and_deletions_follow(tmp_path: Path) -> None:
    nodes = [tmp_path / "0", tmp_path / "1"]
    into = tmp_path / "into"
    states: list[FileStates] = [{}, {}]

    def sync() -> None:
        for node, state in zip(nodes, states, strict=True):
            sync_folder(node, into, state)

    sync()
    for node in nodes:
        write(node, {"step-1/model": "1", "step-2/model": "2", f"own/{node.name}": "x"})
        (node / "link").symlink_to("own")
    sync()
    shutil.rmtree(nodes[0] / "step-1")
    sync()
    assert contents(into) == {"own/0": "x", "own/1": "x", "step-2/model": "2"}
    assert not (into / "step-1").exists()

    (nodes[1] / "step-1/model").write_text("anew")
    (nodes[0] / "step-2/model").write_text("longer")
    sync()
    assert contents(into)["step-1/model"] == "anew"
    assert contents(into)["step-2/model"] == "longer"


@pytest.mark.parametrize("change", ["grows", "replaced", "vanishes"])
def test_a_file_that_changes_while_it_is_copied_is_left_to_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source = tmp_path / "source"
    into = tmp_path / "into"
    known: FileStates = {}
    write(source, {"model": "old"})
    sync_folder(source, into, known)
    (source / "model").write_text("newer")
    copy = shutil.copyfile

    def disturbed(path: Path, target: Path, *, follow_symlinks: bool) -> None:
        if change == "vanishes":
            path.unlink()
        copy(path, target, follow_symlinks=follow_symlinks)
        if change == "grows":
            path.write_text("newest, longer")
        if change == "replaced":
            before = path.stat()
            path.with_name("draft").write_text("NEWER")
            os.utime(path.with_name("draft"), ns=(0, before.st_mtime_ns))
            path.with_name("draft").replace(path)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", disturbed)
        sync_folder(source, into, known)
    assert contents(into) == {"model": "old"}
    sync_folder(source, into, known)
    after = {"grows": {"model": "newest, longer"}, "replaced": {"model": "NEWER"}, "vanishes": {}}
    assert contents(into) == after[change]

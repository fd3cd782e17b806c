"""Files that outlive containers: whole checkpoints, and the nodes' folders merged without a lost
file.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cloudtrain.providers.rehearsal import storage_sync as keeping
from tests.support.samples import write


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_all_nodes_folders_become_one_and_clashes_are_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "1/shared": "same",
            "1/mine/a": "1",
            "1/clash": "first",
            "1/kind/file": "",
            "1/deep/x/y": "1",
        },
    )
    write(
        tmp_path,
        {"2/shared": "same", "2/mine/b": "2", "2/clash": "second", "2/kind": "", "2/deep/x/y": "2"},
    )
    write(tmp_path, {"3/clash": "third", "3/only": "3"})
    folders = [tmp_path / name for name in ("1", "2", "3", "missing")]
    into = tmp_path / "into" / "model"
    messages = list[str]()
    assert keeping.merge(folders, into, "/opt/ml/model", messages.append) == [
        "clash",
        "deep/x/y",
        "kind",
    ]
    merged = {
        "clash": "first",
        "deep/x/y": "1",
        "kind/file": "",
        "mine/a": "1",
        "mine/b": "2",
        "only": "3",
    }
    assert contents(into) == {**merged, "shared": "same"}
    assert (into / "only").samefile(tmp_path / "3" / "only")
    assert keeping.merge(folders[:1], into, "/opt/ml/model", messages.append) == []


def test_links_stay_links_and_none_leads_out(tmp_path: Path) -> None:
    write(tmp_path, {"1/sub/file": "x", "outside": "secret"})
    links = {
        "good": "sub/file",
        "folder": "sub",
        "sub/up": "../good",
        "sub/./down": "./file",
        "bad": "../outside",
        "sub/bad": "../../outside",
        "absolute": "/etc/passwd",
        "within": "/opt/ml/model/sub/file",
        "here": f"{tmp_path}/1/sub",
        "top": ".",
        "sly": "top/../outside",
    }
    for name, target in links.items():
        (tmp_path / "1" / name).symlink_to(target)
    os.mkfifo(tmp_path / "1" / "pipe")
    into = tmp_path / "into"
    messages = list[str]()
    folders = [tmp_path / "1", tmp_path / "1"]
    assert keeping.merge(folders, into, "/opt/ml/model", messages.append) == []
    states = {
        "good": "-> sub/file",
        "folder": "-> sub",
        "sub/up": "-> ../good",
        "sub/down": "-> file",
        "top": "-> .",
    }
    assert contents(into) == {"sub/file": "x", "within": "-> sub/file", "here": "-> sub", **states}
    assert sorted(set(messages)) == [
        "into/absolute was left out: a link that points outside (/etc/passwd)",
        "into/bad was left out: a link that points outside (../outside)",
        "into/sly was left out: a link that points outside (top/../outside)",
        "into/sub/bad was left out: a link that points outside (../../outside)",
    ]


def test_a_disk_without_hard_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    write(tmp_path, {"1/file": "x"})
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert keeping.merge([tmp_path / "1"], tmp_path / "into", "/opt/ml/model", print) == []
    assert contents(tmp_path / "into") == {"file": "x"}
    assert not (tmp_path / "into/file").samefile(tmp_path / "1/file")


def test_new_and_changed_files_are_copied_and_none_is_taken_away(tmp_path: Path) -> None:
    source = tmp_path / "source"
    into = tmp_path / "into" / "checkpoints"
    assert keeping.sync_folder(source, into) == 0
    write(
        source,
        {
            "step-1/model": "1",
            "last": "1",
            ".hidden.tmp": "kept",
            ".cloudtrain-1234abcd.part": "ours",
        },
    )
    (source / "empty").mkdir()
    (source / "link").symlink_to("last")
    assert keeping.sync_folder(source, into) == 3
    assert keeping.sync_folder(source, into) == 0
    assert (into / "last").stat().st_mtime_ns == (source / "last").stat().st_mtime_ns
    assert not (into / "last").samefile(source / "last")

    (source / "last").write_text("2")
    os.utime(source / "last", ns=(0, (into / "last").stat().st_mtime_ns + 1))
    shutil.rmtree(source / "step-1")
    (source / "step-1").write_text("now a file")
    assert keeping.sync_folder(source, into) == 1
    assert contents(into) == {"step-1/model": "1", "last": "2", ".hidden.tmp": "kept"}


def test_what_is_deleted_is_deleted_there_too_unless_another_node_brings_it_anew(
    tmp_path: Path,
) -> None:
    nodes = [tmp_path / "0", tmp_path / "1"]
    into = tmp_path / "into"
    states: list[keeping.FileStates] = [{}, {}]

    def sync() -> None:
        for node, state in zip(nodes, states, strict=True):
            keeping.sync_folder(node, into, state)

    for node in nodes:
        write(node, {"step-1/model": "1", "step-2/model": "2", "own/" + node.name: "x"})
    sync()
    shutil.rmtree(nodes[0] / "step-1")
    sync()
    sync()
    assert contents(into) == {"own/0": "x", "own/1": "x", "step-2/model": "2"}
    assert not (into / "step-1").exists()
    (nodes[1] / "step-1/model").write_text("anew")
    sync()
    assert contents(into)["step-1/model"] == "anew"


@pytest.mark.parametrize("change", ["grows", "replaced", "vanishes"])
def test_a_file_that_changes_while_it_is_copied_is_left_to_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source = tmp_path / "source"
    into = tmp_path / "into"
    write(source, {"model": "old", "other": "x"})
    keeping.sync_folder(source, into)
    (source / "model").write_text("newer")
    (source / "other").write_text("xx")
    copy = shutil.copyfile

    def disturbed(path: Path, target: Path, *, follow_symlinks: bool) -> None:
        if change == "vanishes" and path.name == "model":
            path.unlink()
        copy(path, target, follow_symlinks=follow_symlinks)
        if change == "grows" and path.name == "model":
            path.write_text("newest, longer")
        if change == "replaced" and path.name == "model":
            before = path.stat()
            path.with_name("draft").write_text("NEWER")
            os.utime(path.with_name("draft"), ns=(0, before.st_mtime_ns))
            path.with_name("draft").replace(path)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", disturbed)
        assert keeping.sync_folder(source, into) == 1
    assert contents(into) == {"model": "old", "other": "xx"}
    assert keeping.sync_folder(source, into) == (change != "vanishes")
    assert (
        contents(into)["model"]
        == {"grows": "newest, longer", "replaced": "NEWER", "vanishes": "old"}[change]
    )

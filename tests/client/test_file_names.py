"""Names of files of a job on Linux, on a machine with Windows."""

from __future__ import annotations

import io
import ntpath
import os
import sys
import tarfile
from pathlib import Path, PureWindowsPath

import pytest

from cloudtrain.errors import StorageError
from cloudtrain.file_names import is_storable, relative_name
from cloudtrain.providers.shared.downloads import safe_join
from cloudtrain.source.extract import extract
from cloudtrain.source.inputs import SentFile, list_input
from cloudtrain.source.scan import scan


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (r"C:\work\job\src\train.py", "src/train.py"),
        (r"C:\work\data", "../data"),
        (r"D:\data\train", "D:/data/train"),
    ],
)
def test_a_path_of_windows_is_named_with_slashes(
    monkeypatch: pytest.MonkeyPatch, path: str, name: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "path", ntpath)
        patch.setattr(os, "sep", "\\")
        named = relative_name(PureWindowsPath(path), PureWindowsPath(r"C:\work\job"))

    assert named == name


STORABLE = ["model.pt", "a/b c.txt", ".hidden", "console.log", "step=1/é.bin"]
UNSTORABLE = ["12:30.log", r"..\..\x", "a/nul", "CON.txt", "end.", "a /b", "what?", "tab\t"]


@pytest.mark.usefixtures("windows")
def test_names_that_windows_cannot_store_are_known() -> None:
    assert [name for name in STORABLE + UNSTORABLE if is_storable(name)] == STORABLE


@pytest.mark.usefixtures("windows")
def test_results_under_such_names_are_left_out_or_refused(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("model.pt", r"..\outside", "12:30.log"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())

    notes: list[str] = []
    assert extract(archive, tmp_path / "model", [], notes.append, "a.tar.gz")
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["model.pt"]
    assert len(notes) == 2

    with pytest.raises(StorageError):
        safe_join(tmp_path, r"..\outside")


@pytest.mark.usefixtures("windows")
def test_a_shell_script_may_run_although_windows_keeps_no_such_bit(tmp_path: Path) -> None:
    for name in ("run.sh", "train.py"):
        (tmp_path / name).write_bytes(b"#!/bin/sh\r\n")
        (tmp_path / name).chmod(0o644)

    files = scan(tmp_path).files
    assert {file.path: file.executable for file in files} == {"run.sh": True, "train.py": False}


def test_a_listed_file_is_sent(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"1,2\r\n")
    os.utime(tmp_path / "a.csv", (0, 0))
    file = list_input(str(tmp_path)).files[0]
    sent = SentFile(file, "", 2**62, lambda _: None)
    assert sent.read() == b"1,2\r\n"
    sent.close()

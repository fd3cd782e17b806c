"""A scan remembers unchanged files and does not read them again."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from cloudtrain.source.scan import scan
from cloudtrain.source.tree import SourceTree
from tests.support.samples import write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(
        tmp_path / "source",
        {"train.py": "print(1)\n", "pkg/model.py": "x = 1\n", "pkg/data.txt": "1 2 3"},
    )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths whose content was read."""
    from cloudtrain.source.hashes import read_content

    hashed: list[str] = []

    def counted(path: str, size: int, follow: bool = False) -> str | None:
        hashed.append(Path(path).name)
        return read_content(path, size, follow=follow)

    monkeypatch.setattr(sys.modules["cloudtrain.source.scan"], "read_content", counted)
    return hashed


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns the clock ahead, so that files written just now are old."""
    clock = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: clock() + 10_000_000_000)


def rescan(root: Path, tmp_path: Path, reads: list[str]) -> tuple[SourceTree, list[str]]:
    reads.clear()
    tree = scan(root, None, tmp_path / "cache")
    return tree, sorted(reads)


def test_unchanged_files_are_not_read_again(
    root: Path, tmp_path: Path, reads: list[str], later: None
) -> None:
    first, read = rescan(root, tmp_path, reads)
    assert read == ["data.txt", "model.py", "train.py"]
    (root / "train.py").write_text("print(2)\n")
    (root / "new.py").touch()
    second, read = rescan(root, tmp_path, reads)
    assert read == ["new.py", "train.py"]
    third, read = rescan(root, tmp_path, reads)
    assert read == []
    assert third == second != first
    assert third == scan(root, None, None)


def test_a_change_that_keeps_size_and_mtime_is_seen(
    root: Path, tmp_path: Path, reads: list[str], later: None
) -> None:
    before, _ = rescan(root, tmp_path, reads)
    file = root / "train.py"
    info = file.stat()
    file.write_text("print(7)\n")
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    after, read = rescan(root, tmp_path, reads)
    assert read == ["train.py"]
    assert after.digest != before.digest


@pytest.mark.parametrize("age_ms", [0, 100, 1900])
def test_a_file_too_young_to_be_trusted_is_read_again(
    root: Path, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch, age_ms: int
) -> None:
    newest = max(file.stat().st_ctime_ns for file in root.rglob("*"))
    monkeypatch.setattr("time.time_ns", lambda: newest + age_ms * 1_000_000)
    for _ in range(2):
        _, read = rescan(root, tmp_path, reads)
        assert "train.py" in read
    monkeypatch.setattr("time.time_ns", lambda: newest + 2_100_000_000)
    rescan(root, tmp_path, reads)
    _, read = rescan(root, tmp_path, reads)
    assert read == []


@pytest.mark.parametrize("damage", ["one byte", "folder"])
def test_a_damaged_cache_is_ignored(
    root: Path, tmp_path: Path, reads: list[str], later: None, damage: str
) -> None:
    expected, _ = rescan(root, tmp_path, reads)
    (file,) = (tmp_path / "cache").iterdir()
    data = file.read_bytes()
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        middle = bytes([data[200] ^ 1])
        file.write_bytes(data[:200] + middle + data[201:])
    tree, read = rescan(root, tmp_path, reads)
    assert tree == expected
    assert len(read) == 3


def test_a_cache_that_cannot_be_written_is_done_without(root: Path, tmp_path: Path) -> None:
    blocked = write(tmp_path, {"file": ""}) / "file"
    assert scan(root, None, blocked / "cache") == scan(root, None, None)

"""Packing gives the same bytes for the same tree; a scan remembers unchanged files."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.errors import SourceError, StorageError
from cloudtrain.providers.rehearsal.base import unpack
from cloudtrain.source.pack import pack
from cloudtrain.source.scan import CHANGED_HINT, scan
from cloudtrain.source.stored_archive import holds
from cloudtrain.source.tree import SourceEntry, SourceTree, digest_entries
from tests.providers.aws.archives import DAMAGED, HOSTILE, LEFT_BUT_THE_REST_ARRIVES, entry, packed
from tests.support.samples import write
from tests.support.waiting import HANG_SECONDS, next_tick

# Packing gives the same bytes for the same tree, or an error; unpacking lets nothing out of its
# folder.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write(
        tmp_path / "source", {"train.py": "print(1)\n", "pkg/model.py": "x = 1\n", "empty": ""}
    )
    write(root, {"é/ü.txt": "unicode", f"{'long' * 20}/{'name' * 20}.txt": "long"})
    (root / "run.sh").write_text("echo")
    (root / "run.sh").chmod(0o750)
    (root / "pkg/link").symlink_to("../train.py")
    (root / "folder").symlink_to("pkg")
    (root / "far").symlink_to(f"{'long' * 20}/{'name' * 20}.txt")
    return root


def test_the_archive_is_named_by_the_digest_and_reproducible_to_the_byte(
    root: Path, tmp_path: Path
) -> None:
    first = scan(root, None, None)
    copy = shutil.copytree(root, tmp_path / "elsewhere", symlinks=True)
    for file in copy.rglob("*"):
        os.utime(file, (7, 7), follow_symlinks=False)
    one = pack(first, tmp_path / "one")
    two = pack(scan(copy, None, None), tmp_path / "two")
    assert one.name == two.name == f"{first.digest}.tar.gz"
    assert one.read_bytes() == two.read_bytes()
    assert list((tmp_path / "one").iterdir()) == [one]


def test_the_archive_names_nobody_and_no_time(root: Path, tmp_path: Path) -> None:
    archive = pack(scan(root, None, None), tmp_path / "store")
    assert archive.read_bytes()[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    modes = {member.name: oct(member.mode) for member in members if member.isreg()}
    assert modes["run.sh"] == "0o700"
    assert modes["train.py"] == "0o600"
    assert gzip.decompress(archive.read_bytes())[-1024:] == bytes(1024)


def test_a_round_trip_gives_the_same_tree(root: Path, tmp_path: Path) -> None:
    tree = scan(root, None, None)
    unpack(pack(tree, tmp_path / "store"), tmp_path / "new/node-0")
    copy = scan(tmp_path / "new/node-0", None, None)
    assert copy.files == tree.files
    assert copy.digest == tree.digest
    assert (tmp_path / "new/node-0/pkg/link").readlink() == Path("../train.py")


def test_an_archive_that_is_there_is_not_written_again(root: Path, tmp_path: Path) -> None:
    tree = scan(root, None, None)
    archive = pack(tree, tmp_path / "store")
    before = archive.stat()  # its access time does not count: the archive is read to compare it
    calls: list[tuple[int, int]] = []
    assert (
        pack(tree, tmp_path / "store", lambda packed, total: calls.append((packed, total)))
        == archive
    )
    after = archive.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert calls == [(tree.files_count, tree.files_count)]


@pytest.mark.parametrize("damage", ["cut off", "another byte", "empty"])
def test_a_damaged_archive_is_written_again(root: Path, tmp_path: Path, damage: str) -> None:
    tree = scan(root, None, None)
    archive = pack(tree, tmp_path / "store")
    whole = archive.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    damaged = {"cut off": whole[:middle], "another byte": changed, "empty": b""}
    archive.write_bytes(damaged[damage])
    assert pack(tree, tmp_path / "store") == archive
    assert archive.read_bytes() == whole


PLANTED: dict[str, Callable[[Path], object]] = {
    "other content": lambda copy: (copy / "train.py").write_text("print(2)\n"),
    "a mode": lambda copy: (copy / "train.py").chmod(0o700),
    "another link": lambda copy: (copy / "pkg/link").rename(copy / "folder"),
    "one more": lambda copy: (copy / "sitecustomize.py").write_text("x"),
    "a folder of its own": lambda copy: (copy / "empty.d").mkdir(),
    "a FIFO": lambda copy: os.mkfifo(copy / "fifo"),
    "one less": lambda copy: (copy / "empty").unlink(),
}


@pytest.mark.parametrize("change", PLANTED.values(), ids=PLANTED)
def test_an_archive_of_other_files_is_not_taken_for_the_source(
    root: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    tree = scan(root, None, None)
    archive = pack(tree, tmp_path / "store", cache_dir=tmp_path / "cache")
    ours = archive.read_bytes()
    unpack(archive, tmp_path / "copy")
    change(tmp_path / "copy")
    members = sorted(tmp_path.joinpath("copy").rglob("*"))
    with tarfile.open(archive, "w:gz") as tar:
        for member in members:
            if member.is_symlink() or not member.is_dir() or not any(member.iterdir()):
                tar.add(member, member.relative_to(tmp_path / "copy").as_posix())

    assert not holds(archive, tree.digest, tmp_path / "cache")
    assert pack(tree, tmp_path / "store", cache_dir=tmp_path / "cache").read_bytes() == ours


def test_a_name_of_several_lines_stands_for_no_other_files(tmp_path: Path) -> None:
    entries = []
    for name in ("a.py", "b.py"):
        digest = hashlib.sha256(b"").hexdigest()
        entries.append(SourceEntry(name, 0, executable=False, sha256=digest))

    archive = tmp_path / "planted.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo(f"a.py\nfile {entries[1].sha256} b.py")
        info.mode = 0o600
        tar.addfile(info)

    assert not holds(archive, digest_entries(entries))


def test_a_checked_archive_is_read_again_only_after_a_change(root: Path, tmp_path: Path) -> None:
    tree = scan(root, None, None)
    archive = pack(tree, tmp_path / "store", cache_dir=tmp_path / "cache")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("read again"))
        assert holds(archive, tree.digest, tmp_path / "cache")

    before = archive.stat()
    content = archive.read_bytes()
    next_tick(tmp_path)
    archive.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not holds(archive, tree.digest, tmp_path / "cache")


def grow(file: Path) -> None:
    file.write_text(file.read_text() + "x")


def swap(file: Path) -> None:
    file.unlink()
    file.symlink_to("empty")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("train.py", lambda file: file.write_text("print(2)\n")),
        ("train.py", grow),
        ("train.py", lambda file: os.truncate(file, 3)),
        ("train.py", Path.unlink),
        ("train.py", swap),
        ("far", lambda file: (file.unlink(), file.symlink_to("train.py"))),
        ("far", Path.unlink),
    ],
    ids=[
        "changed",
        "grown",
        "shrunk",
        "vanished",
        "turned into a link",
        "link changed",
        "link vanished",
    ],
)
def test_what_is_not_as_scanned_is_not_packed(
    root: Path, tmp_path: Path, name: str, change: Callable[[Path], object]
) -> None:
    tree = scan(root, None, None)
    change(root / name)
    with pytest.raises(
        SourceError, match=rf"^{name} changed after the source folder was scanned"
    ) as caught:
        pack(tree, tmp_path / "store")
    assert caught.value.hint == CHANGED_HINT
    assert list((tmp_path / "store").iterdir()) == []


def test_a_full_disk_is_the_stores_fault(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def compress(self, data: bytes = b"") -> bytes:
            raise OSError(errno.ENOSPC, "No space left on device")

        flush = compress

    monkeypatch.setattr("zlib.compressobj", lambda *_: Full())
    with pytest.raises(StorageError, match="No space left"):
        pack(scan(root, None, None), tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_two_at_once_both_succeed(root: Path, tmp_path: Path) -> None:
    tree = scan(root, None, None)
    gate = threading.Barrier(4)
    finished: list[Path] = []

    def one() -> None:
        first = True

        def wait(_packed: int, _total: int) -> None:
            nonlocal first
            if first:
                first = False
                gate.wait(HANG_SECONDS)

        finished.append(pack(tree, tmp_path / "store", wait))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(finished) == 4
    assert list((tmp_path / "store").iterdir()) == [finished[0]]
    unpack(finished[0], tmp_path / "node")


ARCHIVES = {**DAMAGED, **HOSTILE}
ARCHIVES |= {
    case.name: packed(entry("good", text="fine"), *case.entries)
    for case in LEFT_BUT_THE_REST_ARRIVES
}
HARMLESS = {
    *("circle", "file below a link", "twice", "hard link", "hard link to a link", "setuid"),
    *("negative time", "absolute name", "sparse", "sparse parts that overlap"),
    *("sparse parts behind its end", "bomb of many files"),
}
"""Archives that a source may be; their content stays inside."""


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_damaged_or_hostile_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str
) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(ARCHIVES[name])
    if name in HARMLESS:
        unpack(archive, tmp_path / "node")
        assert {path.name for path in tmp_path.iterdir()} == {"archive", "node"}
        return
    with pytest.raises((SourceError, StorageError)) as refused:
        unpack(archive, tmp_path / "node")
    assert "damaged or hostile" in refused.value.message or name == "sparse bomb"
    assert list(tmp_path.iterdir()) == [archive]


def test_a_folder_that_holds_something_is_left_alone(root: Path, tmp_path: Path) -> None:
    archive = pack(scan(root, None, None), tmp_path / "store")
    write(tmp_path, {"node/mine": "kept"})
    with pytest.raises(SourceError, match="not empty"):
        unpack(archive, tmp_path / "node")
    assert [file.name for file in (tmp_path / "node").iterdir()] == ["mine"]


# A scan remembers unchanged files and does not read them again.


@pytest.fixture
def scanned_root(tmp_path: Path) -> Path:
    return write(
        tmp_path / "source",
        {"train.py": "print(1)\n", "pkg/model.py": "x = 1\n", "pkg/data.txt": "1 2 3"},
    )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths whose content was read."""
    from cloudtrain.source.tree import read_content

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


def rescan(scanned_root: Path, tmp_path: Path, reads: list[str]) -> tuple[SourceTree, list[str]]:
    reads.clear()
    tree = scan(scanned_root, None, tmp_path / "cache")
    return tree, sorted(reads)


def test_unchanged_files_are_not_read_again(
    scanned_root: Path, tmp_path: Path, reads: list[str], later: None
) -> None:
    first, read = rescan(scanned_root, tmp_path, reads)
    assert read == ["data.txt", "model.py", "train.py"]
    next_tick(tmp_path)
    (scanned_root / "train.py").write_text("print(2)\n")
    (scanned_root / "new.py").touch()
    second, read = rescan(scanned_root, tmp_path, reads)
    assert read == ["new.py", "train.py"]
    third, read = rescan(scanned_root, tmp_path, reads)
    assert read == []
    assert third == second != first
    assert third == scan(scanned_root, None, None)


def test_a_change_that_keeps_size_and_mtime_is_seen(
    scanned_root: Path, tmp_path: Path, reads: list[str], later: None
) -> None:
    before, _ = rescan(scanned_root, tmp_path, reads)
    file = scanned_root / "train.py"
    info = file.stat()
    next_tick(tmp_path)
    file.write_text("print(7)\n")
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    after, read = rescan(scanned_root, tmp_path, reads)
    assert read == ["train.py"]
    assert after.digest != before.digest


@pytest.mark.parametrize("age_ms", [0, 100, 1900])
def test_a_file_too_young_to_be_trusted_is_read_again(
    scanned_root: Path,
    tmp_path: Path,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    age_ms: int,
) -> None:
    written = (scanned_root / "train.py").stat().st_ctime_ns
    monkeypatch.setattr("time.time_ns", lambda: written + age_ms * 1_000_000)
    for _ in range(2):
        _, read = rescan(scanned_root, tmp_path, reads)
        assert "train.py" in read
    newest = max(file.stat().st_ctime_ns for file in scanned_root.rglob("*"))
    monkeypatch.setattr("time.time_ns", lambda: newest + 2_100_000_000)
    rescan(scanned_root, tmp_path, reads)
    _, read = rescan(scanned_root, tmp_path, reads)
    assert read == []


@pytest.mark.parametrize("damage", ["one byte", "folder"])
def test_a_damaged_cache_is_ignored(
    scanned_root: Path, tmp_path: Path, reads: list[str], later: None, damage: str
) -> None:
    expected, _ = rescan(scanned_root, tmp_path, reads)
    (file,) = (tmp_path / "cache").iterdir()
    data = file.read_bytes()
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        middle = bytes([data[200] ^ 1])
        file.write_bytes(data[:200] + middle + data[201:])
    tree, read = rescan(scanned_root, tmp_path, reads)
    assert tree == expected
    assert len(read) == 3


def test_a_cache_that_cannot_be_written_is_done_without(scanned_root: Path, tmp_path: Path) -> None:
    blocked = write(tmp_path, {"file": ""}) / "file"
    assert scan(scanned_root, None, blocked / "cache") == scan(scanned_root, None, None)

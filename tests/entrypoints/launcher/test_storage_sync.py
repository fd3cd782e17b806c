"""A node's files are copied to storage, and an earlier run's checkpoints restored from it.

Files are copied whole and in order, and restoring never overwrites existing ones.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher import restore as restore_module
from cloudtrain_launcher import storage_sync
from cloudtrain_launcher.restore import restore
from cloudtrain_launcher.storage_sync import StorageSync
from tests.support.waiting import eventually


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder on the node's disk."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Provide mounted, empty storage."""
    return tmp_path / "there"


def content(folder: Path) -> dict[str, str]:
    """Return the text of each file, without those that a thread deletes meanwhile."""
    texts = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                texts[str(path.relative_to(folder))] = path.read_text()

    return texts


def storage_sync_of(local: Path, storage: Path, logged: list[str] | None = None) -> StorageSync:
    return StorageSync({str(local): str(storage)}, (logged if logged is not None else []).append)


def test_the_last_poll_copies_everything_that_is_finished(local: Path, storage: Path) -> None:
    (local / "step-1").mkdir()
    (local / "step-1" / "a").write_text("1")
    (local / "step-2.partial").mkdir()
    (local / "step-2.partial" / "b").write_text("2")
    (local / ".0.restoring").write_text("3")
    os.mkfifo(local / "fifo")
    assert storage_sync_of(local, storage).finish() == ""
    assert content(storage) == {"step-1/a": "1"}


def test_links_are_stored_as_files_that_hold_their_target(local: Path, storage: Path) -> None:
    (local / "step-1").mkdir()
    (local / "step-1" / "a").write_text("1")
    (local / "latest").symlink_to(local / "step-1")
    (local / "step-1" / "b").symlink_to("a")
    (local / "out").symlink_to("/etc/passwd")
    sync = storage_sync_of(local, storage)
    assert sync.finish() == ""
    stored = {"step-1/a": "1", "latest.cloudtrain-link": "step-1", "step-1/b.cloudtrain-link": "a"}
    assert content(storage) == {**stored, "out.cloudtrain-link": "/etc/passwd"}
    (local / "out").unlink()
    (local / "latest").unlink()
    (local / "latest").write_text("a file now")
    assert sync.finish() == ""
    assert content(storage) == {
        "step-1/a": "1",
        "step-1/b.cloudtrain-link": "a",
        "latest": "a file now",
    }


def test_files_are_copied_in_the_order_in_which_they_were_written(
    local: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    monkeypatch.setattr(shutil, "copyfileobj", lambda file, *_: copied.append(Path(file.name).name))
    for number, name in enumerate(["z-rank", "a-manifest"]):
        (local / name).write_text(name)
        os.utime(local / name, ns=(number, number))

    storage_sync_of(local, storage).finish()
    assert copied == ["z-rank", "a-manifest"]


def test_a_deleted_file_is_deleted_in_storage_but_not_those_of_other_nodes(
    local: Path, storage: Path
) -> None:
    (storage / "step-1").mkdir(parents=True)
    (storage / "step-1" / "rank-7").write_text("another node's")
    (local / "step-1").mkdir()
    (local / "step-2").mkdir()
    for step in ("step-1", "step-2"):
        (local / step / "rank-0").write_text("mine")

    sync = storage_sync_of(local, storage)
    sync.finish()
    for step in ("step-1", "step-2"):
        (local / step / "rank-0").unlink()

    sync.finish()
    assert content(storage) == {"step-1/rank-7": "another node's"}
    assert not (storage / "step-2").exists()


def test_a_deleted_file_stays_in_storage_until_its_replacement_is_stored(
    local: Path, storage: Path
) -> None:
    (local / "step-1").write_text("old")
    sync = storage_sync_of(local, storage)
    sync.finish()
    (local / "step-2").write_text("new")
    (local / "step-1").unlink()
    copied = []
    for _ in range(3):
        sync.poll(everything=False)
        copied.append(content(storage))

    assert copied == [{"step-1": "old"}, {"step-2": "new"}, {"step-2": "new"}]


def test_a_restored_file_is_not_copied_back(local: Path, storage: Path) -> None:
    (local / "old").write_text("restored")
    sync = storage_sync_of(local, storage)
    sync.mark_synced()
    (local / "new").write_text("new")
    sync.finish()
    assert content(storage) == {"new": "new"}


def test_a_file_that_cannot_be_copied_is_logged_and_tried_again(
    local: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_sync, "POLL_SECONDS", 0.02)
    storage.write_text("a file is in the way")
    logged: list[str] = []
    sync = storage_sync_of(local, storage, logged)
    sync.start()
    (local / "model").write_text("weights")
    eventually(lambda: logged)
    assert "not saved to storage yet: model: " in logged[0]
    storage.unlink()
    eventually(lambda: content(storage) == {"model": "weights"})
    assert sync.finish() == ""
    assert logged[1:] == ["saved to storage"]


def test_a_link_to_storage_can_be_moved_and_deleted_as_a_file(local: Path, storage: Path) -> None:
    storage.mkdir()
    for name in ("stays", "moves", "goes", "renewed"):
        (storage / name).write_text(f"{name}, stored before")
        (local / name).symlink_to(storage / name)

    sync = storage_sync_of(local, storage)
    sync.mark_synced()
    assert sync.finish() == ""
    assert content(storage).keys() == {"stays", "moves", "goes", "renewed"}
    (local / "before").mkdir()
    (local / "moves").rename(local / "before" / "moved")
    (local / "moves").write_text("another one")
    (local / "goes").unlink()
    (local / "new").write_text("new")
    (local / "new").replace(local / "renewed")
    assert sync.finish() == ""
    assert content(storage) == {
        "stays": "stays, stored before",
        "before/moved": "moves, stored before",
        "moves": "another one",
        "renewed": "new",
    }
    assert (local / "stays").is_symlink()
    assert not (local / "before" / "moved").is_symlink()


def test_files_that_came_from_peers_are_left_to_them(
    local: Path, storage: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    sync = StorageSync({str(local): str(storage)}, print, journal=journal)
    (local / "brought").write_text("by a peer")
    status = (local / "brought").stat()
    journal.write_text(
        f'["{local / "brought"}", [{status.st_size}, {status.st_mtime_ns}, ""]]\n["torn'
    )
    assert sync.finish() == ""
    assert content(storage) == {}
    (local / "brought").write_text("written here since")
    assert sync.finish() == ""
    assert content(storage)["brought"] == "written here since"
    (local / "brought").unlink()
    assert sync.finish() == ""
    assert content(storage) == {}


def test_a_file_that_is_deleted_for_a_peer_is_deleted_in_storage_by_the_node_that_stored_it(
    local: Path, storage: Path, tmp_path: Path
) -> None:
    """A folder that the first rank deletes has parts that only other nodes have stored."""
    journal = tmp_path / "journal"
    sync = StorageSync({str(local): str(storage)}, print, journal=journal)
    for name in ("own", "replaced"):
        (local / name).write_text("stored by this node")
    assert sync.finish() == ""

    (local / "brought").write_text("stored by a peer")
    (storage / "brought").write_text("stored by a peer")
    (storage / "replaced").write_text("stored by a peer!!!")
    os.utime(storage / "replaced", (time.time() + 60,) * 2)
    status = (local / "brought").stat()
    lines: list[tuple[str, list[Any] | None]] = [
        ("brought", [status.st_size, status.st_mtime_ns, ""]),
        *((name, None) for name in ("own", "replaced", "brought")),
    ]
    journal.write_text("".join(f"{json.dumps([str(local / name), e])}\n" for name, e in lines))
    for name in ("own", "replaced", "brought"):
        (local / name).unlink()

    assert sync.finish() == ""
    assert content(storage) == {
        "replaced": "stored by a peer!!!",
        "brought": "stored by a peer",
    }


def test_a_file_that_the_platform_uploads_is_linked_while_it_is_written(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_sync, "POLL_SECONDS", 0.02)
    shown = tmp_path / "shown"
    sync = StorageSync({}, print, {str(local): str(shown)})
    sync.start()
    with (local / "log.txt").open("w", buffering=1) as log:
        log.write("first\n")
        eventually(lambda: content(shown) == {"log.txt": "first\n"})
        log.write("second\n")
        assert content(shown) == {"log.txt": "first\nsecond\n"}, "at once: it is the same file"

    (local / "new").write_text("another file")
    (local / "new").replace(local / "log.txt")
    eventually(lambda: content(shown) == {"log.txt": "another file"})
    (local / "log.txt").unlink()
    eventually(lambda: content(shown) == {})
    assert sync.finish() == ""


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Two checkpoints of an earlier run."""
    folder = tmp_path / "earlier"
    for name, text in {
        "step-1/shared.pt": "one",
        "step-2/shared.pt": "two",
        "step-2/deep/er/x": "x",
        "last": "2",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return folder


def test_missing_files_are_restored_and_existing_ones_stay(earlier: Path, tmp_path: Path) -> None:
    logged: list[str] = []
    new = tmp_path / "new"
    (new / "step-2").mkdir(parents=True)
    (new / "step-2" / "shared.pt").write_text("written since")
    (new / ".0.restoring").write_text("torn")
    (earlier / ".1.restoring").write_text("torn before")
    restore(earlier, new, 0, logged.append)
    expected = content(earlier) | {"step-2/shared.pt": "written since"}
    del expected[".1.restoring"]
    assert content(new) == expected
    restore(earlier, new, 0, logged.append)
    assert content(new) == expected
    assert len(logged) == 1


def test_links_are_neither_followed_nor_made(earlier: Path, tmp_path: Path) -> None:
    logged: list[str] = []
    new = tmp_path / "new"
    outside = tmp_path / "outside"
    new.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("s")
    (earlier / "file-link").symlink_to(outside / "secret")
    (earlier / "folder-link").symlink_to(outside)
    os.mkfifo(earlier / "pipe")
    (new / "step-1").symlink_to(outside)
    (new / "last").symlink_to(tmp_path / "nowhere")
    restore(earlier, new, 0, logged.append)
    assert content(outside) == {"secret": "s"}
    assert sorted(path.name for path in new.iterdir()) == ["last", "step-1", "step-2"]
    assert not (tmp_path / "nowhere").exists()
    assert logged[:-1] == [
        "not restored: file-link: a link",
        "not restored: folder-link: a link",
        "not restored: pipe: not a file",
        f"not restored: step-1/shared.pt: {new / 'step-1'} is in the way: it is not a folder",
    ]


def test_a_full_disk_is_an_error_and_leaves_no_partial_file(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        restore(earlier, tmp_path / "new", 0, print)

    assert content(tmp_path / "new") == {}


def test_a_stop_cancels_it_between_two_blocks(earlier: Path, tmp_path: Path) -> None:
    logged: list[str] = []
    answers = iter((False, False, False, True, True, True))
    restore(earlier, tmp_path / "new", 0, logged.append, lambda: next(answers))
    assert content(tmp_path / "new") == {"last": "2"}
    assert logged == []


def test_a_file_that_stands_for_a_link_becomes_one_if_it_stays_inside(
    earlier: Path, tmp_path: Path
) -> None:
    logged: list[str] = []
    for name, target in {
        "latest": "step-2",
        "step-2/up": "../last",
        "absolute": "/etc/passwd",
        "out": "../x",
        "sly": "step-1/../../x",
        "empty": "",
    }.items():
        (earlier / f"{name}.cloudtrain-link").write_text(target)

    restore(earlier, tmp_path / "new", 0, logged.append)
    links = {
        str(p.relative_to(tmp_path / "new")): str(p.readlink())
        for p in tmp_path.rglob("new/**/*")
        if p.is_symlink()
    }
    assert links == {"latest": "step-2", "step-2/up": "../last"}
    assert logged[:-1] == [
        "not restored: absolute.cloudtrain-link: a link to outside (/etc/passwd)",
        "not restored: empty.cloudtrain-link: a link to outside ()",
        "not restored: out.cloudtrain-link: a link to outside (../x)",
        "not restored: sly.cloudtrain-link: a link to outside (step-1/../../x)",
    ]
    restore(earlier, tmp_path / "new", 0, logged.append)
    assert (tmp_path / "new" / "latest").readlink() == Path("step-2")


def test_large_files_on_a_mount_become_links(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(restore_module, "LINK_MIN_BYTES", 3)
    new = tmp_path / "new"
    restore(earlier, new, 0, logged.append, link_large_files=True)
    assert (new / "step-1/shared.pt").readlink() == earlier / "step-1/shared.pt"
    assert not (new / "last").is_symlink(), "what a program may append to is on this disk"
    assert content(new) == content(earlier)
    assert (
        logged[-1]
        == "2 large files of earlier checkpoints are read from storage when they are needed"
    )

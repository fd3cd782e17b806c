"""What a node writes to its own disk is kept in storage: whole, as it comes, and nothing of it is lost unsaid."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain_launcher import storage_sync
from cloudtrain_launcher.storage_sync import StorageSync
from tests.support.waiting import eventually


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder on the node's disk."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Storage, as it is mounted: nothing is there yet."""
    return tmp_path / "there"


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def keeper(here: Path, there: Path, said: list[str] | None = None) -> StorageSync:
    return StorageSync({str(here): str(there)}, (said if said is not None else []).append)


def test_the_last_look_keeps_everything_that_is_finished(here: Path, there: Path) -> None:
    (here / "step-1").mkdir()
    (here / "step-1" / "a").write_text("1")
    (here / "step-2.partial").mkdir()
    (here / "step-2.partial" / "b").write_text("2")
    (here / ".0.restoring").write_text("3")
    os.mkfifo(here / "fifo")
    assert keeper(here, there).finish() == ""
    assert content(there) == {"step-1/a": "1"}


def test_links_are_kept_as_files_that_hold_their_target(here: Path, there: Path) -> None:
    (here / "step-1").mkdir()
    (here / "step-1" / "a").write_text("1")
    (here / "latest").symlink_to(here / "step-1")
    (here / "step-1" / "b").symlink_to("a")
    (here / "out").symlink_to("/etc/passwd")
    kept = keeper(here, there)
    assert kept.finish() == ""
    stored = {"step-1/a": "1", "latest.cloudtrain-link": "step-1", "step-1/b.cloudtrain-link": "a"}
    assert content(there) == {**stored, "out.cloudtrain-link": "/etc/passwd"}
    (here / "out").unlink()
    (here / "latest").unlink()
    (here / "latest").write_text("a file now")
    assert kept.finish() == ""
    assert content(there) == {"step-1/a": "1", "step-1/b.cloudtrain-link": "a", "latest": "a file now"}


def test_files_come_while_the_job_runs_once_they_no_longer_change(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_sync, "POLL_SECONDS", 0.02)
    kept = keeper(here, there)
    kept.start()
    (here / "model").write_text("weights")
    eventually(lambda: content(there) == {"model": "weights"})
    (here / "model").write_text("better weights")
    eventually(lambda: content(there) == {"model": "better weights"})
    assert kept.finish() == ""


def test_a_checkpoint_that_is_told_of_is_kept_at_once(here: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_sync, "POLL_SECONDS", 1000)
    kept = keeper(here, there)
    kept.start()
    (here / "step-1").mkdir()
    (here / "step-1" / "manifest.json").write_text("{}")
    kept.sync_soon()
    eventually(lambda: content(there) == {"step-1/manifest.json": "{}"})
    assert kept.finish() == ""


def test_what_was_written_first_is_kept_first(here: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(storage_sync, "_copy", lambda path, _: copied.append(path.name))
    for number, name in enumerate(["z-rank", "a-manifest"]):
        (here / name).write_text(name)
        os.utime(here / name, ns=(number, number))
    keeper(here, there).finish()
    assert copied == ["z-rank", "a-manifest"]


def test_what_is_deleted_here_goes_there_but_nothing_of_anybody_elses(here: Path, there: Path) -> None:
    (there / "step-1").mkdir(parents=True)
    (there / "step-1" / "rank-7").write_text("another node's")
    (here / "step-1").mkdir()
    (here / "step-2").mkdir()
    for step in ("step-1", "step-2"):
        (here / step / "rank-0").write_text("mine")
    kept = keeper(here, there)
    kept.finish()
    for step in ("step-1", "step-2"):
        (here / step / "rank-0").unlink()
    kept.finish()
    assert content(there) == {"step-1/rank-7": "another node's"}
    assert not (there / "step-2").exists()


def test_what_a_program_deletes_goes_only_when_what_replaces_it_is_stored(here: Path, there: Path) -> None:
    (here / "step-1").write_text("old")
    kept = keeper(here, there)
    kept.finish()
    (here / "step-2").write_text("new")
    (here / "step-1").unlink()
    seen = []
    for _ in range(3):
        kept._sync(everything=False)
        seen.append(content(there))
    assert seen == [{"step-1": "old"}, {"step-2": "new"}, {"step-2": "new"}]


def test_what_came_from_storage_is_not_sent_back(here: Path, there: Path) -> None:
    (here / "old").write_text("restored")
    kept = keeper(here, there)
    kept.mark_synced()
    (here / "new").write_text("new")
    kept.finish()
    assert content(there) == {"new": "new"}


def test_what_cannot_be_kept_is_said_and_tried_again(here: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_sync, "POLL_SECONDS", 0.02)
    there.write_text("a file is in the way")
    said: list[str] = []
    kept = keeper(here, there, said)
    kept.start()
    (here / "model").write_text("weights")
    eventually(lambda: said)
    assert "not saved to storage yet: model: " in said[0]
    there.unlink()
    eventually(lambda: content(there) == {"model": "weights"})
    assert kept.finish() == ""
    assert said[1:] == ["saved to storage"]


def test_what_cannot_be_kept_at_the_end_is_an_error(here: Path, there: Path) -> None:
    there.write_text("a file is in the way")
    (here / "model").write_text("weights")
    assert keeper(here, there).finish().startswith("model: ")


def test_what_leads_to_storage_stays_there_and_moves_and_goes_as_a_file_would(here: Path, there: Path) -> None:
    there.mkdir()
    for name in ("stays", "moves", "goes", "renewed"):
        (there / name).write_text(f"{name}, stored before")
        (here / name).symlink_to(there / name)
    kept = keeper(here, there)
    kept.mark_synced()
    assert kept.finish() == ""
    assert content(there).keys() == {"stays", "moves", "goes", "renewed"}
    (here / "before").mkdir()
    (here / "moves").rename(here / "before" / "moved")
    (here / "moves").write_text("another one")
    (here / "goes").unlink()
    (here / "new").write_text("new")
    (here / "new").replace(here / "renewed")
    assert kept.finish() == ""
    assert content(there) == {
        "stays": "stays, stored before",
        "before/moved": "moves, stored before",
        "moves": "another one",
        "renewed": "new",
    }
    assert (here / "stays").is_symlink()
    assert not (here / "before" / "moved").is_symlink()


def test_what_peers_brought_or_took_away_is_theirs_to_keep(here: Path, there: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    kept = StorageSync({str(here): str(there)}, print, journal=journal)
    (here / "old").write_text("kept by this node")
    assert kept.finish() == ""
    (here / "brought").write_text("by a peer")
    about = (here / "brought").stat()
    journal.write_text(
        f'["{here / "brought"}", [{about.st_size}, {about.st_mtime_ns}, ""]]\n["{here / "old"}", null]\n["torn'
    )
    (here / "old").unlink()
    assert kept.finish() == ""
    assert content(there) == {"old": "kept by this node"}
    (here / "brought").write_text("written here since")
    assert kept.finish() == ""
    assert content(there)["brought"] == "written here since"
    (here / "brought").unlink()
    assert kept.finish() == ""
    assert content(there).keys() == {"old"}


def test_what_somebody_else_stores_is_there_as_it_is_written(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_sync, "POLL_SECONDS", 0.02)
    shown = tmp_path / "shown"
    kept = StorageSync({}, print, {str(here): str(shown)})
    kept.start()
    with (here / "log.txt").open("w", buffering=1) as log:
        log.write("first\n")
        eventually(lambda: content(shown) == {"log.txt": "first\n"})
        log.write("second\n")
        assert content(shown) == {"log.txt": "first\nsecond\n"}, "at once: it is the same file"
    (here / "new").write_text("another file")
    (here / "new").replace(here / "log.txt")
    eventually(lambda: content(shown) == {"log.txt": "another file"})
    (here / "log.txt").unlink()
    eventually(lambda: content(shown) == {})
    assert kept.finish() == ""


def test_where_a_disk_has_no_hard_links_it_is_a_copy(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    (here / "log.txt").write_text("all of it")
    assert StorageSync({}, print, {str(here): str(tmp_path / "shown")}).finish() == ""
    assert content(tmp_path / "shown") == {"log.txt": "all of it"}


def test_a_node_without_such_folders_has_nothing_to_do() -> None:
    kept = StorageSync({}, print)
    kept.start()
    assert kept.finish() == ""

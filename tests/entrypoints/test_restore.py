"""Checkpoints of an earlier run are restored as whole files, and never overwrite existing ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain_launcher import restore as restore_module
from cloudtrain_launcher.restore import restore


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


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_all_files_are_restored_to_their_paths(earlier: Path, tmp_path: Path) -> None:
    logged: list[str] = []
    os.utime(earlier / "last", ns=(1, 10**18))
    restore(earlier, tmp_path / "new", 0, logged.append)
    assert tree(tmp_path / "new") == tree(earlier)
    assert (tmp_path / "new" / "last").stat().st_mtime_ns == 10**18
    assert logged == ["restored 4 files of an earlier run's checkpoints, 0.0 MB"]


def test_missing_files_are_restored_and_existing_ones_stay(earlier: Path, tmp_path: Path) -> None:
    logged: list[str] = []
    new = tmp_path / "new"
    (new / "step-2").mkdir(parents=True)
    (new / "step-2" / "shared.pt").write_text("written since")
    (new / ".0.restoring").write_text("torn")
    (earlier / ".1.restoring").write_text("torn before")
    restore(earlier, new, 0, logged.append)
    expected = tree(earlier) | {"step-2/shared.pt": "written since"}
    del expected[".1.restoring"]
    assert tree(new) == expected
    restore(earlier, new, 0, logged.append)
    assert tree(new) == expected
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
    assert tree(outside) == {"secret": "s"}
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
    assert tree(tmp_path / "new") == {}


def test_a_stop_cancels_it_between_two_blocks(earlier: Path, tmp_path: Path) -> None:
    logged: list[str] = []
    answers = iter((False, False, False, True, True, True))
    restore(earlier, tmp_path / "new", 0, logged.append, lambda: next(answers))
    assert tree(tmp_path / "new") == {"last": "2"}
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
    assert tree(new) == tree(earlier)
    assert (
        logged[-1]
        == "2 large files of earlier checkpoints are read from storage when they are needed"
    )

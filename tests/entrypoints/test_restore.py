"""An earlier run's checkpoints come back whole, and never in the place of anything that is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain_launcher import restore as restoring
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
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_all_files_come_back_where_they_were(earlier: Path, tmp_path: Path) -> None:
    said: list[str] = []
    os.utime(earlier / "last", ns=(1, 10**18))
    restore(earlier, tmp_path / "new", 0, said.append)
    assert tree(tmp_path / "new") == tree(earlier)
    assert (tmp_path / "new" / "last").stat().st_mtime_ns == 10**18
    assert said == ["restored 4 files of an earlier run's checkpoints, 0.0 MB"]


def test_what_is_missing_is_repaired_and_what_is_there_stays(earlier: Path, tmp_path: Path) -> None:
    said: list[str] = []
    new = tmp_path / "new"
    (new / "step-2").mkdir(parents=True)
    (new / "step-2" / "shared.pt").write_text("written since")
    (new / ".0.restoring").write_text("torn")
    (earlier / ".1.restoring").write_text("torn before")
    restore(earlier, new, 0, said.append)
    expected = tree(earlier) | {"step-2/shared.pt": "written since"}
    del expected[".1.restoring"]
    assert tree(new) == expected
    restore(earlier, new, 0, said.append)
    assert tree(new) == expected
    assert len(said) == 1


def test_links_are_neither_followed_nor_made(earlier: Path, tmp_path: Path) -> None:
    said: list[str] = []
    new, outside = tmp_path / "new", tmp_path / "outside"
    new.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("s")
    (earlier / "file-link").symlink_to(outside / "secret")
    (earlier / "folder-link").symlink_to(outside)
    os.mkfifo(earlier / "pipe")
    (new / "step-1").symlink_to(outside)
    (new / "last").symlink_to(tmp_path / "nowhere")
    restore(earlier, new, 0, said.append)
    assert tree(outside) == {"secret": "s"}
    assert sorted(path.name for path in new.iterdir()) == ["last", "step-1", "step-2"]
    assert not (tmp_path / "nowhere").exists()
    assert said[:-1] == [
        "not restored: file-link: a link",
        "not restored: folder-link: a link",
        "not restored: pipe: not a file",
        f"not restored: step-1/shared.pt: {new / 'step-1'} is in the way: it is not a folder",
    ]


def test_a_file_that_cannot_be_read_is_passed_over(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    opened = os.open

    def refuse(path: Path, *rest: int) -> int:
        if path.name == "last":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    restore(earlier, tmp_path / "new", 0, said.append)
    assert set(tree(tmp_path / "new")) == set(tree(earlier)) - {"last"}
    assert said[0] == "not restored: last: Permission denied"


def test_a_disk_that_is_full_is_an_error_and_leaves_no_half_file(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        restore(earlier, tmp_path / "new", 0, print)
    assert tree(tmp_path / "new") == {}


def test_a_stop_ends_it_between_two_blocks(earlier: Path, tmp_path: Path) -> None:
    said: list[str] = []
    asked = iter((False, False, False, True, True, True))
    restore(earlier, tmp_path / "new", 0, said.append, lambda: next(asked))
    assert tree(tmp_path / "new") == {"last": "2"}
    assert said == []


def test_a_file_that_stands_for_a_link_becomes_one_if_it_stays_inside(earlier: Path, tmp_path: Path) -> None:
    said: list[str] = []
    for name, target in {
        "latest": "step-2",
        "step-2/up": "../last",
        "absolute": "/etc/passwd",
        "out": "../x",
        "sly": "step-1/../../x",
        "empty": "",
    }.items():
        (earlier / f"{name}.cloudtrain-link").write_text(target)
    restore(earlier, tmp_path / "new", 0, said.append)
    links = {
        str(p.relative_to(tmp_path / "new")): str(p.readlink()) for p in tmp_path.rglob("new/**/*") if p.is_symlink()
    }
    assert links == {"latest": "step-2", "step-2/up": "../last"}
    assert said[:-1] == [
        "not restored: absolute.cloudtrain-link: a link to outside (/etc/passwd)",
        "not restored: empty.cloudtrain-link: a link to outside ()",
        "not restored: out.cloudtrain-link: a link to outside (../x)",
        "not restored: sly.cloudtrain-link: a link to outside (step-1/../../x)",
    ]
    restore(earlier, tmp_path / "new", 0, said.append)
    assert (tmp_path / "new" / "latest").readlink() == Path("step-2")


def test_large_files_of_a_mount_are_led_to(earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(restoring, "LINK_MIN_BYTES", 3)
    new = tmp_path / "new"
    restore(earlier, new, 0, said.append, link_large_files=True)
    assert (new / "step-1/shared.pt").readlink() == earlier / "step-1/shared.pt"
    assert not (new / "last").is_symlink(), "what a program may append to is on this disk"
    assert tree(new) == tree(earlier)
    assert said[-1] == "2 large files of earlier checkpoints are read from storage when they are needed"

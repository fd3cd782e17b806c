"""Files in the working folder are stored if a pattern matches, and reported otherwise."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cloudtrain_launcher.contract import KeepPattern
from cloudtrain_launcher.working_folder import WorkingFolder
from tests.support.samples import write
from tests.support.waiting import next_tick

PROGRAM = "train.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with its source, as a launcher finds it at its start."""
    write(
        tmp_path / "work",
        {"train.py": "pass", "results/README": "of the source", ".cloudtrain/__main__.py": ""},
    )
    return tmp_path / "work"


def start(folder: Path, *patterns: str, uploaded: tuple[str, ...] = ()) -> WorkingFolder:
    """Start the working folder of a launcher; existing files belong to the source."""
    next_tick(folder / ".cloudtrain")
    probe = folder / ".cloudtrain" / "probe"
    probe.touch()
    return WorkingFolder(folder, patterns, uploaded, probe.stat().st_ctime_ns - 1)


@pytest.mark.parametrize(
    ("pattern", "covered", "uncovered"),
    [
        ("snapshot.pt", ["snapshot.pt"], ["out/snapshot.pt", "snapshot.pth"]),
        ("out-*/", ["out-a/ckpt.pt", "out-b/x/y"], ["out-a", "sub/out-a/ckpt.pt"]),
        ("out-a", ["out-a", "out-a/x/y"], ["out-ab"]),
        ("runs/*/best.pt", ["runs/1/best.pt"], ["runs/best.pt", "runs/1/2/best.pt"]),
        ("**/*.ckpt", ["a.ckpt", "x/y/a.ckpt"], ["a.ckpt2"]),
        ("runs/**", ["runs/a", "runs/x/y"], ["run/a"]),
        ("epoch[12].pt", ["epoch2.pt"], ["epoch3.pt"]),
        ("model:code/", ["code/inference.py"], ["code", "model:code/inference.py"]),
    ],
)
def test_a_pattern_means_paths_from_the_working_folder_on(
    pattern: str, covered: list[str], uncovered: list[str]
) -> None:
    assert [path for path in covered + uncovered if KeepPattern(pattern).covers(path)] == covered


def test_what_a_pattern_means_appears_in_the_output_without_being_copied(
    folder: Path, tmp_path: Path
) -> None:
    work = start(folder, "out-*/", "snapshot.pt")
    output = tmp_path / "output"
    write(
        folder,
        {"out-a/ckpt.pt": "weights", "out-a/deep/log": "x", "snapshot.pt": "s", "other.pt": "o"},
    )
    report = work.keep(output)
    assert (report.files, report.bytes, report.errors, report.left_out, report.unmatched) == (
        3,
        9,
        [],
        [],
        [],
    )
    paths = sorted(
        path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()
    )
    assert paths == ["out-a/ckpt.pt", "out-a/deep/log", "snapshot.pt"]
    assert (output / "out-a/ckpt.pt").samefile(folder / "out-a/ckpt.pt")


def test_what_is_for_the_model_is_kept_with_it_alone_even_from_an_uploaded_folder(
    folder: Path, tmp_path: Path
) -> None:
    work = start(folder, "model:code/", "model:outputs/vocab", "out/", uploaded=("outputs",))
    files = {"code/inference.py": "def", "outputs/vocab": "a b", "out/log": "x"}
    write(folder, files)
    for place, with_model in (("model", True), ("output", False)):
        report = work.keep(tmp_path / place, with_model=with_model)
        assert (report.errors, report.left_out, report.unmatched) == ([], [], [])
    kept = {path: (tmp_path / "model" / path).is_file() for path in files}
    assert kept == {"code/inference.py": True, "outputs/vocab": True, "out/log": False}
    assert [path.name for path in (tmp_path / "output").rglob("*")] == ["out", "log"]
    assert work.warning(PROGRAM) == ""


def test_files_are_moved_where_the_disk_cannot_link(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    work = start(folder, "out/")
    write(folder, {"out/ckpt.pt": "weights"})
    assert work.keep(tmp_path / "output").errors == []
    assert (tmp_path / "output/out/ckpt.pt").read_text() == "weights"
    assert list((tmp_path / "output/out").iterdir()) == [tmp_path / "output/out/ckpt.pt"]
    assert not (folder / "out/ckpt.pt").exists()


def test_a_file_that_cannot_be_kept_is_named_and_the_others_are_kept(
    folder: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"output/out": "a file in place of the folder"})
    work = start(folder, "out/", "snapshot.pt")
    write(folder, {"out/ckpt.pt": "weights", "snapshot.pt": "s"})
    report = work.keep(tmp_path / "output")
    assert [text.split(":")[0] for text in report.errors] == ["out/ckpt.pt"]
    assert (tmp_path / "output/snapshot.pt").read_text() == "s"


def test_a_link_becomes_its_file_and_none_is_followed_out_of_the_folder(
    folder: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"secret/key": "not yours"})
    work = start(folder, "out/")
    output = tmp_path / "output"
    write(folder, {"out/epoch2.pt": "weights", "elsewhere.pt": "x"})
    links = {
        "last.pt": "epoch2.pt",
        "absolute.pt": str(folder / "out/epoch2.pt"),
        "unmatched": "../elsewhere.pt",
        "key": str(tmp_path / "secret/key"),
        "folder": "../../secret",
        "broken": "gone.pt",
    }
    for name, target in links.items():
        (folder / "out" / name).symlink_to(target)

    (folder / "linked-out").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "out/pipe")
    report = work.keep(output)
    assert {path.name: path.read_text() for path in (output / "out").iterdir()} == {
        "epoch2.pt": "weights",
        "last.pt": "weights",
        "absolute.pt": "weights",
        "unmatched": "x",
    }
    left_out = [text.split(":")[0] for text in report.left_out]
    assert left_out == ["out/broken", "out/folder", "out/key"]
    assert "secret" not in work.warning(PROGRAM)


@pytest.mark.parametrize(
    ("written", "message", "keep"),
    [
        (
            {"out-a/ckpt.pt": "x" * 12_000_000, "out-a/b/log": "x"},
            "out-a/ (2 files, 12 MB)",
            '["kept/", "out-a/"]',
        ),
        ({"results/run 1": "x"}, "results/ (1 file, 1 B)", '["kept/", "results/"]'),
        ({"train.py": "changed"}, "train.py (1 file, 7 B)", '["kept/", "train.py"]'),
        (
            {"1": "x", "2": "xx", "3": "xxx", "4": "xxxx", "5": "xxxxx"},
            "5 (1 file, 5 B), 4 (1 file, 4 B), 3 (1 file, 3 B), more (2 files, 3 B)",
            '["kept/", "5", "4", "3"]',
        ),
    ],
)
def test_new_files_that_are_not_kept_are_told_with_what_would_keep_them(
    folder: Path, written: dict[str, str], message: str, keep: str
) -> None:
    work = start(folder, "kept/")
    write(folder, {**written, "kept/x": "x"})
    warning = work.warning(PROGRAM)
    assert f"left {message} in its working folder" in warning
    assert f"keep: {keep} in job.yaml" in warning


def test_caches_the_source_and_what_the_platform_keeps_are_not_told(
    folder: Path, tmp_path: Path
) -> None:
    work = start(folder, "outputs/", uploaded=("outputs",))
    write(
        folder,
        {
            "pkg/__pycache__/x.pyc": "x",
            ".cache/x": "x",
            ".cloudtrain/new": "x",
            "outputs/plot.png": "x",
        },
    )
    assert work.warning(PROGRAM) == ""
    assert work.keep(tmp_path / "output").files == 0

"""Checkpoints of programs that do not report them: counted and found by their files."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cloudtrain.submission.drills.history import SavedFiles, newest_file


def save(path: Path, size: int = 10, age: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - age, time.time() - age))


def test_a_checkpoint_counts_once_when_its_files_have_come_to_rest(tmp_path: Path) -> None:
    files = SavedFiles(tmp_path / "checkpoints")
    assert files.look() == 0, "there is no folder yet"
    save(tmp_path / "checkpoints" / "latest.pt")
    assert (files.look(), files.look(), files.look()) == (0, 1, 1)
    save(tmp_path / "checkpoints" / "latest.pt", size=11)
    assert files.look() == 1, "it may still be written"
    assert files.look() == 2


def test_files_that_are_being_written_and_hidden_ones_are_no_checkpoints(tmp_path: Path) -> None:
    files = SavedFiles(tmp_path)
    for name in ("latest.tmp", "step-8.partial/weights.pt", ".lock"):
        save(tmp_path / name)
    assert (files.look(), files.look()) == (0, 0)


def test_the_largest_file_of_the_newest_checkpoint_is_torn(tmp_path: Path) -> None:
    assert newest_file(tmp_path) is None
    save(tmp_path / "step-1" / "weights.pt", size=1000, age=60)
    save(tmp_path / "step-2" / "weights.pt", size=100, age=10)
    save(tmp_path / "step-2" / "manifest.json", age=5)
    save(tmp_path / "best.pt", size=5000)
    assert newest_file(tmp_path) == tmp_path / "best.pt"
    checkpoints = ("step-1", "step-2")
    assert newest_file(tmp_path, checkpoints) == tmp_path / "step-2" / "weights.pt", (
        "what the program calls a checkpoint"
    )

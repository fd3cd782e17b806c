"""A failed write names the full disk, even if the error itself does not."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from cloudtrain_launcher.error_details import FULL_BYTES, full_disk_hint


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that are free, by folder."""
    free: dict[str, int] = {}

    def statvfs(folder: str) -> SimpleNamespace:
        if folder not in free:
            raise FileNotFoundError(folder)
        return SimpleNamespace(f_blocks=1 << 20, f_bavail=free[folder], f_frsize=1)

    monkeypatch.setattr(os, "statvfs", statvfs)
    return free


ENVIRON = {"CLOUDTRAIN_CHECKPOINT_DIR": "/saved", "CLOUDTRAIN_MODEL_DIR": "/model"}
TORCH = RuntimeError("basic_ios::clear: iostream error")


def test_the_full_disk_is_named_with_what_to_do(disks: dict[str, int]) -> None:
    disks |= {"/saved": 0, "/model": 10 * FULL_BYTES}
    hint = full_disk_hint(TORCH, ENVIRON)
    assert hint.startswith("the disk of /saved is full")
    assert "checkpoints.keep" in hint
    disks |= {"/saved": 10 * FULL_BYTES, "/model": FULL_BYTES - 1}
    assert full_disk_hint(OSError("write failed"), ENVIRON).startswith("the disk of /model is full")


def test_disk_with_space_or_unrelated_error_is_not_mentioned(
    disks: dict[str, int],
) -> None:
    disks["/saved"] = FULL_BYTES
    assert full_disk_hint(TORCH, ENVIRON) == ""
    disks["/saved"] = 0
    assert full_disk_hint(ValueError("the dog ate shard 3"), ENVIRON) == ""
    assert full_disk_hint(TORCH, {}) == ""

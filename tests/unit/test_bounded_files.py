"""Files of a foreign folder are read up to a limit, and only if they are regular files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain_launcher.packages.bounded_files import (
    FileTooLarge,
    open_regular_file,
    read_regular_file,
    read_regular_text,
)


def test_a_regular_file_is_read_whole_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert read_regular_file(tmp_path / "a", 10) == b"x" * 10
    with pytest.raises(FileTooLarge, match=r"File too large \(limit 9 bytes\)"):
        read_regular_file(tmp_path / "a", 9)


def test_a_sparse_file_is_not_read_beyond_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileTooLarge):
        read_regular_file(tmp_path / "a")


def test_a_fifo_without_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OSError, match="Not a regular file but a FIFO"):
        open_regular_file(tmp_path / "a")


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="Not a regular file but a device"):
        read_regular_file(tmp_path / "a")


def test_a_link_is_followed_only_if_its_reader_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to("a")
    assert read_regular_file(tmp_path / "b") == b"x"
    with pytest.raises(OSError, match="symbolic links"):
        read_regular_file(tmp_path / "b", follow=False)


def test_text_has_no_mark_and_plain_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffä\r\nb\rc\n".encode())
    assert read_regular_text(tmp_path / "a") == "ä\nb\nc\n"

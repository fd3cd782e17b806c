"""A local input is all of its folder, whatever ignore files say; what cannot be brought along is
told before.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain.errors import SourceError
from cloudtrain.source.inputs import digest_input, input_problem, is_empty, list_input
from tests.support.samples import write


def digest(folder: Path, cache: Path) -> str:
    return digest_input(list_input(str(folder)).files, str(folder), cache)[0]


def test_every_file_is_found_and_links_are_followed(tmp_path: Path) -> None:
    write(tmp_path, {"data/.gitignore": "*", "data/a": "1", "data/b/.hidden": "", "other/x": "2"})
    (tmp_path / "data" / "folder").symlink_to(tmp_path / "other")
    (tmp_path / "data" / "file").symlink_to("../other/x")
    assert sorted(file.path for file in list_input(str(tmp_path / "data")).files) == [
        ".gitignore", "a", "b/.hidden", "file", "folder/x",
    ]  # fmt: skip
    assert input_problem(str(tmp_path / "data")) is None
    assert [file.path for file in list_input(str(tmp_path / "data" / "a")).files] == ["a"]


def test_what_cannot_be_brought_along_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"data/good": "1"})
    (tmp_path / "data" / "broken").symlink_to("gone")
    (tmp_path / "data" / "circle").symlink_to(tmp_path)
    (tmp_path / "data" / "itself").symlink_to("itself")
    os.mkfifo(tmp_path / "data" / "pipe")
    message = str(input_problem(str(tmp_path / "data")))
    assert "broken is a broken link (gone)" in message
    assert message.endswith(", and 1 more")
    (tmp_path / "data" / "broken").unlink()
    message = str(input_problem(str(tmp_path / "data")))
    assert "circle/data is a link to a folder around it" in message
    assert "itself cannot be read (Too many levels of symbolic links)" in message
    assert "pipe is neither a file nor a folder" in message


def test_an_empty_folder_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    assert str(input_problem(str(tmp_path / "data"))).endswith(
        "data is empty: the job would run on nothing"
    )
    assert is_empty(str(tmp_path / "data"))
    (tmp_path / "data" / "link").symlink_to(tmp_path)
    assert not is_empty(str(tmp_path / "data"))
    (tmp_path / "data" / "link").unlink()
    write(tmp_path, {"data/deep/empty": ""})
    assert input_problem(str(tmp_path / "data")) is None
    assert not is_empty(str(tmp_path / "data"))


def test_the_name_is_of_content_and_paths_alone(tmp_path: Path) -> None:
    write(tmp_path, {"one/a": "bc", "two/a": "bc", "three/ab": "c", "four/d/a": "bc"})
    names = [
        digest(tmp_path / folder, tmp_path / "cache") for folder in ("one", "two", "three", "four")
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_a_file_that_changes_while_it_is_read_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"data/a": "1"})
    files = list_input(str(tmp_path / "data")).files
    (tmp_path / "data" / "a").write_text("longer")
    with pytest.raises(SourceError, match="data/a changed while it was read"):
        digest_input(files, str(tmp_path / "data"), tmp_path / "cache")

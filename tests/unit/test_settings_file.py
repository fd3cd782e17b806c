"""Edits of a cloudtrain.toml keep everything but the settings of a deployment."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import StorageError, UsageError
from cloudtrain.providers.infrastructure import SettingValue, settings_edit

NEW: dict[str, SettingValue] = {"aws.bucket": "b", "aws.subnets": ("s1", "s2")}
FILES = {
    "nothing": ("", '[aws]\nbucket = "b"\nsubnets = ["s1", "s2"]\n'),
    "other keys": (
        '# mine\nprovider = "aws"\n\n[aws]\nregion = "x"  # near\n\n[azure]\nlocation = "y"\n',
        '# mine\nprovider = "aws"\n\n[aws]\nregion = "x"  # near\nbucket = "b"\nsubnets = ["s1", "s2"]\n\n'
        '[azure]\nlocation = "y"\n',
    ),
    "other values": (
        '[aws]\nsubnets = [\n  "old",  # one\n  "older",\n]\nbucket = "was"\npoll = 5\n',
        '[aws]\nsubnets = ["s1", "s2"]\nbucket = "b"\npoll = 5\n',
    ),
    "the same values": (
        '[ "aws" ] # spaced\nbucket="b"\nsubnets=[ "s1" , "s2" ]',
        '[ "aws" ] # spaced\nbucket="b"\nsubnets=[ "s1" , "s2" ]',
    ),
    "a key of another table": (
        '[azure]\nbucket = "n"\n',
        '[azure]\nbucket = "n"\n\n[aws]\nbucket = "b"\nsubnets = ["s1", "s2"]\n',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_what_stands_in_the_file_stays(tmp_path: Path, case: str) -> None:
    before, after = FILES[case]
    path = tmp_path / "cloudtrain.toml"
    path.write_text(before)
    edit = settings_edit(path, NEW)
    assert edit.after == after
    assert edit.is_empty == (before == after) == (edit.diff() == [])
    edit.write()
    assert path.read_text() == after
    assert settings_edit(path, NEW).is_empty
    assert [path.name for path in tmp_path.iterdir()] == ["cloudtrain.toml"]


@pytest.mark.parametrize(
    "text",
    [
        'aws = {region = "x"}\n',
        'aws.region = "x"\n',
        '[aws]\nregion = "x"',
        "[aws.sub]\nx = 1\n\n[other]\ny = 2\n",
        '[aws]\nregion = "x"\n\n# next\n[[list]]\nx = 1\n',
        '"aws" = {}\r\nprovider = "aws"\r\n',
    ],
    ids=["inline", "dotted", "no last line end", "sub-table", "array of tables", "CRLF"],
)
def test_any_form_of_toml_gets_the_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cloudtrain.toml"
    path.write_bytes(text.encode())
    expected = tomllib.loads(text)
    expected.setdefault("aws", {}).update(bucket="b", subnets=["s1", "s2"])
    edit = settings_edit(path, NEW)
    assert tomllib.loads(edit.after) == expected
    edit.write()
    assert settings_edit(path, NEW).is_empty


def test_a_value_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cloudtrain.toml"
    path.write_text("aws = 5\n")
    with pytest.raises(UsageError, match="aws is not a table"):
        settings_edit(path, NEW)
    assert path.read_text() == "aws = 5\n"


def test_a_broken_file_and_a_folder_that_takes_none_are_told(tmp_path: Path) -> None:
    (tmp_path / "cloudtrain.toml").write_text("[aws\n")
    with pytest.raises(UsageError, match="cloudtrain"):
        settings_edit(tmp_path / "cloudtrain.toml", NEW)
    with pytest.raises(StorageError, match="cannot be written"):
        settings_edit(tmp_path / "none" / "cloudtrain.toml", NEW).write()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("")
    link = tmp_path / "cloudtrain.toml"
    link.symlink_to("real.toml")
    settings_edit(link, NEW).write()
    assert link.is_symlink()
    assert "bucket" in (tmp_path / "real.toml").read_text()


@given(
    st.dictionaries(
        st.sampled_from(["aws.bucket", "aws.role", "azure.workspace"]),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_every_text_is_read_back_as_it_was_written(settings: dict[str, SettingValue]) -> None:
    read = tomllib.loads(settings_edit(Path("/dev/null/new"), settings).after)
    assert {
        f"{table}.{key}": value for table, keys in read.items() for key, value in keys.items()
    } == settings

"""The rules of .dockerignore: a table from Docker's reference, and the docker SDK's own reading of
made-up trees.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.errors import SourceError
from cloudtrain.planning.recipe import has_exceptions, read_rules

TABLE: list[tuple[str, str, bool]] = [
    # anchoring: a pattern counts from the top, with or without a slash before it
    ("foo", "foo", True),
    ("foo", "deep/foo", False),
    ("/foo", "foo", True),
    ("foo/", "foo", True),
    ("./foo", "foo", True),
    ("a/../foo", "foo", True),
    ("foo", "foobar", False),
    ("foo", "Foo", False),
    # folders: what is below one that fits is left out as well
    ("foo", "foo/bar/x", True),
    ("foo/bar", "foo/bar/x", True),
    ("foo/bar", "foo/x", False),
    ("*/temp", "a/temp/x", True),
    # wildcards of filepath.Match stay in one folder
    ("*", "x", True),
    ("*", "a/x", True),
    ("*.md", "README.md", True),
    ("*.md", "a/README.md", False),
    ("*/temp*", "somedir/temporary.txt", True),
    ("*/temp*", "a/b/temporary.txt", False),
    ("*/*/temp*", "a/b/temporary.txt", True),
    ("temp?", "tempa", True),
    ("temp?", "temp", False),
    ("temp?", "temp/", False),
    ("[a-c]x", "bx", True),
    ("[a-c]x", "dx", False),
    ("[^a-c]x", "dx", True),
    ("[^a-c]x", "ax", False),
    (r"\*.md", "*.md", True),
    (r"\*.md", "a.md", False),
    ("a.b", "axb", False),
    ("a+(b|c)$", "a+(b|c)$", True),
    ("{a,b}", "a", False),
    # ** matches any number of folders, including zero
    ("**/*.go", "x.go", True),
    ("**/*.go", "a/b/x.go", True),
    ("**/foo", "a/foo/x", True),
    ("**/foo", "a/barfoo", False),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**/b", "a/xb", False),
    ("a/**", "a/x/y", True),
    ("a/**", "a", False),
    ("**", "a/x", True),
    ("**foo", "a/foo", True),
    # at the very start, before plain text, it is the end of the path that counts
    ("**foo", "barfoo", True),
    ("**foo", "foobar", False),
    ("**.py", "pkg/m.py", True),
    ("**.py", "m.pyc", False),
    ("**b/c", "a/xb/c", True),
    ("**/foo", "barfoo", False),
    # the last rule that fits decides
    ("*.md\n!README.md", "README.md", False),
    ("*.md\n!README.md", "OTHER.md", True),
    ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", True),
    ("*.md\nREADME-secret.md\n!README*.md", "README-secret.md", False),
    ("foo\n!foo/bar", "foo/bar", False),
    ("foo\n!foo/bar", "foo/bar/x", False),
    ("foo\n!foo/bar", "foo/other", True),
    ("foo/*\n!foo/bar\nfoo/bar/x", "foo/bar/x", True),
    ("*\n!train", "train", False),
    ("*\n!**/*.py", "a/b/x.py", False),
    ("!foo", "foo", False),
    ("! foo", "foo", False),
    ("foo\n! foo", "foo", False),
    # lines
    ("# foo", "# foo", False),
    ("#foo\nfoo", "foo", True),
    (" #foo", "#foo", True),
    ("  foo  ", "foo", True),
    ("\n\n   \nfoo\n\n", "foo", True),
    ("foo\r\nbar\r\n", "foo", True),
    ("\ufefffoo", "foo", True),
    (".", "foo", False),
    ("/", "foo", False),
    ("!", "foo", False),
    ("../foo", "foo", False),
    ("ü*", "über/x", True),
]


@pytest.mark.parametrize(("text", "path", "ignored"), TABLE)
def test_a_path_is_left_out_as_dockers_reference_says(text: str, path: str, ignored: bool) -> None:
    assert read_rules(text).match_file(path) is ignored


def test_only_an_exclamation_mark_brings_back() -> None:
    assert has_exceptions(read_rules("a\n!a/b"))
    assert not has_exceptions(read_rules("a\n#!a/b"))


def test_a_pattern_that_is_none_is_refused_and_not_a_traceback() -> None:
    with pytest.raises(SourceError, match=r"\[z-a\]"):
        read_rules("ok\n[z-a]\n")


def test_a_pattern_with_many_wildcards_is_refused() -> None:
    with pytest.raises(SourceError, match="wildcards"):
        read_rules("*a" * 40)


NAMES = ("a", "b", "ab", "a.b", "c")
PARTS = (*NAMES, "*", "a*", "*b", "?", "[ab]")
plain_paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
trees = st.lists(plain_paths, min_size=1, max_size=12, unique=True)
in_one_folder = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("/".join)
back = plain_paths.map("!{}".format)


def left_by_the_sdk(files: list[str], patterns: list[str]) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return set(exclude_paths(folder, list(patterns))) & set(files)


def files_of(tree: list[str]) -> list[str]:
    """Those of a tree that no other one needs as a folder."""
    return [name for name in tree if not any(entry.startswith(f"{name}/") for entry in tree)]


# With exceptions the SDK reads patterns with `**` differently than Docker's reference.


@settings(max_examples=60)
@given(trees, st.lists(in_one_folder | back, min_size=1, max_size=5))
def test_with_exceptions_by_name_the_docker_sdk_leaves_the_same_files(
    tree: list[str], patterns: list[str]
) -> None:
    files = files_of(tree)
    rules = read_rules("\n".join(patterns))
    assert {name for name in files if not rules.match_file(name)} == left_by_the_sdk(
        files, patterns
    )

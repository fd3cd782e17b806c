"""The digest of an image: the files that its build would see, and .dockerignore."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.errors import SourceError
from cloudtrain.planning.dockerignore import read_rules
from cloudtrain.planning.recipe import our_recipe, payload_archive, recipe_of
from tests.support.samples import write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Dockerfile, two files and a folder."""
    made = tmp_path / "image"
    (made / "deep").mkdir(parents=True)
    (made / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    (made / "train.py").write_text("print(1)\n")
    (made / "deep" / "data.txt").write_text("1")
    for path in (made / "deep", *made.glob("**/*.*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the umask
    return made


def digest(
    folder: Path, *args: str, platform: str = "", name: str = "Dockerfile", limit: int | None = None
) -> str:
    return recipe_of(folder / name, args, platform, limit=limit).digest


def link(folder: Path, to: str) -> None:
    (folder / "link").unlink(missing_ok=True)
    (folder / "link").symlink_to(to)


def as_under_077(path: Path) -> Path:
    path.chmod(path.stat().st_mode & ~0o077)
    return path


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file's content": lambda folder: (folder / "deep" / "data.txt").write_text("2"),
    "a file's name": lambda folder: (folder / "train.py").rename(folder / "main.py"),
    "a file's folder": lambda folder: (folder / "train.py").rename(folder / "deep" / "train.py"),
    "an executable bit": lambda folder: (folder / "train.py").chmod(0o755),
    "an empty folder": lambda folder: (folder / "nothing").mkdir(),
    "the Dockerfile": lambda folder: (folder / "Dockerfile").write_text(
        "FROM scratch\nCOPY . /job\n"
    ),
    "one file more": lambda folder: (folder / "empty").touch(),
    "one file less": lambda folder: (folder / "train.py").unlink(),
    "a link": lambda folder: link(folder, "train.py"),
}


def write_git_head(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")


NO_CHANGES: dict[str, Callable[[Path], object]] = {
    "the time of a file": lambda folder: os.utime(folder / "train.py", (1, 1)),
    "git's own folder": lambda folder: write_git_head(folder),
    "another umask": lambda folder: [as_under_077(path) for path in folder.rglob("*")],
    "a pipe": lambda folder: os.mkfifo(folder / "pipe"),
}


@pytest.mark.parametrize("change", [*CHANGES, *NO_CHANGES])
def test_exactly_what_the_build_would_see_is_in_the_digest(folder: Path, change: str) -> None:
    before = digest(folder)
    (CHANGES | NO_CHANGES)[change](folder)
    assert (digest(folder) != before) == (change in CHANGES)


def test_arguments_and_platform_are_in_the_digest(folder: Path) -> None:
    several = [digest(folder, *args) for args in ((), ("A=1",), ("A=2",), ("A=",), ("B=1",))]
    several += [digest(folder, platform="linux/amd64"), digest(folder, platform="linux/arm64")]
    assert len(set(several)) == len(several)


@pytest.mark.parametrize(
    ("files", "ignored", "counted"),
    [
        ({".dockerignore": "deep\nDockerfile\n.dockerignore\n"}, "deep/data.txt", "Dockerfile"),
        (
            {"deep/more.txt": "1", ".dockerignore": "deep\n!deep/data.txt\n"},
            "deep/more.txt",
            "deep/data.txt",
        ),
        (
            {
                ".dockerignore": "train.py\n*.dockerignore\n.dockerignore\n",
                "Dockerfile.dockerignore": "deep\n",
            },
            "deep/data.txt",
            "train.py",
        ),
    ],
    ids=["the Dockerfile always counts", "brought back", "the Dockerfile's own rules come first"],
)
def test_ignored_files_do_not_count(
    folder: Path, files: dict[str, str], ignored: str, counted: str
) -> None:
    write(folder, files)
    before = digest(folder)
    write(folder, {ignored: "2"})
    (folder / "deep" / "empty").mkdir()
    (folder / "deep").chmod(0o700)
    assert digest(folder) == before
    write(folder, {counted: "FROM scratch\n"})
    assert digest(folder) != before


def test_a_link_counts_by_where_it_leads_and_is_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("1")
    (folder / "linked").symlink_to(outside)
    link(folder, str(outside / "secret.txt"))
    before = digest(folder)
    (outside / "secret.txt").write_text("2")
    assert digest(folder) == before
    link(folder, "nowhere")
    assert digest(folder) != before


def test_a_folder_over_the_limit_is_refused_with_what_to_do(folder: Path) -> None:
    (folder / "large.bin").write_bytes(bytes(5000))
    with pytest.raises(SourceError, match=f"{folder} holds more than 4000 bytes") as refused:
        digest(folder, limit=4000)
    assert ".dockerignore" in (refused.value.hint or "")
    (folder / ".dockerignore").write_text("*.bin\n")
    assert digest(folder, limit=4000)


def test_a_folder_that_cannot_be_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.scandir

    def closed(path: str) -> object:  # whoever runs the tests may be root, who may read everything
        if path.endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return look(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(SourceError, match=f"{folder}/deep: Permission denied"):
        digest(folder)


def test_an_argument_that_is_given_counts_more_than_our_own() -> None:
    assert our_recipe("cpu", ("BASE_IMAGE=mine:1",)).args[-1] == "BASE_IMAGE=mine:1"
    assert our_recipe("cpu", ("BASE_IMAGE=debian:12-slim",)).digest == our_recipe("cpu").digest
    assert our_recipe("cpu", ("BASE_IMAGE=mine:1",)).digest != our_recipe("cpu").digest


NAMED = {
    "a file": ("COPY requirements.txt /tmp/\n", {"requirements.txt"}),
    "several, over two lines": (
        "copy --chown=1:1 requirements.txt \\\n  setup.cfg /tmp/\n",
        {"requirements.txt", "setup.cfg"},
    ),
    "in JSON": ('COPY ["requirements.txt", "/tmp/"]\n', {"requirements.txt"}),
    "a pattern": ("ADD require*.txt /tmp/\n", {"requirements.txt"}),
    "a folder": ("COPY ./src /src\n", {"src/a.py", "src/deep/b.py"}),
    "a mounted file": (
        "RUN --mount=type=bind,source=setup.cfg,target=/x pip install x\n",
        {"setup.cfg"},
    ),
    "nothing": (
        "RUN --mount=type=cache,target=/root/.cache pip install torch\nADD https://x.org/y /y\n",
        set(),
    ),
    "another stage's": ("COPY --from=builder /requirements.txt /\n", set()),
    "a folder that is ignored in a comment": ("# COPY . /\nCOPY setup.cfg /\n", {"setup.cfg"}),
    "everything": ("COPY . /\n", None),
    "a variable": ("COPY ${WHICH} /\n", None),
    "the whole folder, mounted": ("RUN --mount=target=. make\n", None),
    "a heredoc": ("COPY <<EOF /x\nhello\nEOF\n", None),
    "another language": ("# syntax=mine/frontend\nCOPY setup.cfg /\n", None),
}


@pytest.mark.parametrize("case", NAMED)
def test_only_what_the_dockerfile_copies_makes_another_image(tmp_path: Path, case: str) -> None:
    text, named = NAMED[case]
    files = {
        "requirements.txt",
        "setup.cfg",
        "train.py",
        "src/a.py",
        "src/deep/b.py",
        "notes/requirements.txt",
    }
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("1")
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.12\n{text}")
    before = digest(tmp_path)
    counts = set()
    for file in files:
        (tmp_path / file).write_text("2")
        if digest(tmp_path) != before:
            counts.add(file)
        (tmp_path / file).write_text("1")
    assert counts == (files if named is None else named)


def test_our_own_image_is_another_with_another_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = our_recipe("cpu")
    (tmp_path / "train.py").write_text("print()\n")
    monkeypatch.setattr(
        "cloudtrain.planning.recipe.payload_files", lambda: {"train.py": tmp_path / "train.py"}
    )
    assert our_recipe("cpu").digest != before.digest
    assert payload_archive() == payload_archive()


IGNORED = [
    # anchoring: a pattern counts from the top, with or without a slash before it
    "foo → foo",
    "/foo → foo",
    "foo/ → foo",
    "./foo → foo",
    "a/../foo → foo",
    # folders: what is below one that fits is left out as well
    "foo → foo/bar/x",
    "foo/bar → foo/bar/x",
    "*/temp → a/temp/x",
    # wildcards of filepath.Match stay in one folder
    "* → x",
    "* → a/x",
    "*.md → README.md",
    "*/temp* → somedir/temporary.txt",
    "*/*/temp* → a/b/temporary.txt",
    "temp? → tempa",
    "[a-c]x → bx",
    "[^a-c]x → dx",
    r"\*.md → *.md",
    "a+(b|c)$ → a+(b|c)$",
    # ** matches any number of folders, including zero
    "**/*.go → x.go",
    "**/*.go → a/b/x.go",
    "**/foo → a/foo/x",
    "a/**/b → a/b",
    "a/**/b → a/x/y/b",
    "a/** → a/x/y",
    "** → a/x",
    "**foo → a/foo",
    # at the very start, before plain text, it is the end of the path that counts
    "**foo → barfoo",
    "**.py → pkg/m.py",
    "**b/c → a/xb/c",
    # the last rule that fits decides
    "*.md\n!README.md → OTHER.md",
    "*.md\n!README*.md\nREADME-secret.md → README-secret.md",
    "foo\n!foo/bar → foo/other",
    "foo/*\n!foo/bar\nfoo/bar/x → foo/bar/x",
    # lines
    "#foo\nfoo → foo",
    " #foo → #foo",
    "  foo   → foo",
    "\n\n   \nfoo\n\n → foo",
    "foo\r\nbar\r\n → foo",
    "\ufefffoo → foo",
    "ü* → über/x",
]
"""Text of .dockerignore, and a path that it leaves out."""

KEPT = [
    # anchoring: a pattern counts from the top, with or without a slash before it
    "foo → deep/foo",
    "foo → foobar",
    "foo → Foo",
    # folders: what is below one that fits is left out as well
    "foo/bar → foo/x",
    # wildcards of filepath.Match stay in one folder
    "*.md → a/README.md",
    "*/temp* → a/b/temporary.txt",
    "temp? → temp",
    "temp? → temp/",
    "[a-c]x → dx",
    "[^a-c]x → ax",
    r"\*.md → a.md",
    "a.b → axb",
    "{a,b} → a",
    # ** matches any number of folders, including zero
    "**/foo → a/barfoo",
    "a/**/b → a/xb",
    "a/** → a",
    # at the very start, before plain text, it is the end of the path that counts
    "**foo → foobar",
    "**.py → m.pyc",
    "**/foo → barfoo",
    # the last rule that fits decides
    "*.md\n!README.md → README.md",
    "*.md\nREADME-secret.md\n!README*.md → README-secret.md",
    "foo\n!foo/bar → foo/bar",
    "foo\n!foo/bar → foo/bar/x",
    "*\n!train → train",
    "*\n!**/*.py → a/b/x.py",
    "!foo → foo",
    "! foo → foo",
    "foo\n! foo → foo",
    # lines
    "# foo → # foo",
    ". → foo",
    "/ → foo",
    "! → foo",
    "../foo → foo",
]
"""Text of .dockerignore, and a path that it does not leave out."""


@pytest.mark.parametrize("row", [*IGNORED, *KEPT])
def test_a_path_is_left_out_as_dockers_reference_says(row: str) -> None:
    text, _, path = row.rpartition(" → ")
    assert read_rules(text).match_file(path) is (row in IGNORED)


def test_a_pattern_that_is_none_is_refused_and_not_a_traceback() -> None:
    with pytest.raises(SourceError, match=r"\[z-a\]"):
        read_rules("ok\n[z-a]\n")


def test_many_wildcards_in_one_pattern_take_no_longer() -> None:
    assert not read_rules("*a" * 40 + "*b").match_file("a" * 250)
    assert read_rules("*a" * 40 + "*b").match_file("a" * 250 + "b")


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

"""The archive holds the files that git would not ignore, as changed by .cloudtrainignore."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from cloudtrain.source.linear_patterns import linear
from cloudtrain.source.scan import scan
from tests.support.samples import write

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def archived(root: Path) -> list[str]:
    return [entry.path for entry in scan(root, None, None).files]


def git(folder: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    process = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, check=True
    )
    return process.stdout.decode()


@contextmanager
def without_git() -> Iterator[None]:
    """Simulate a machine without git."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PATH", "/nowhere")
        yield


def git_sees(folder: Path) -> list[str]:
    listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted(path for path in listed.split("\0") if path)


FOLDERS = ("", "a/", "b/", "a/b/", "a/a/", "b/data/", "a/b/data/")
FILES = ("a", "k.csv", "b.csv", "ab", " s", "[x]", "éé", "#h", "!n", "data", "d/k.csv")
TREE = tuple(
    dict.fromkeys(
        folder + file
        for folder in FOLDERS
        for file in FILES
        if folder + file not in {f.strip("/") for f in FOLDERS}
    )
)
SEGMENTS = (
    "a",
    "b",
    "data",
    "*",
    "**",
    "*.csv",
    "?",
    "[ab]",
    "[!a]",
    "a*",
    "*b",
    "k.*",
    "d",
    "éé",
    "*a*b",
)
ODD = (
    "",
    "#a",
    r"\#h",
    "a ",
    r"a\ ",
    "a\r",
    "!#h",
    r"\[x\]",
    "*/",
    "/*",
    "a/**",
    "*",
    r"\!n",
    "a/b",
)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(ODD))
    body = "/".join(draw(st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4)))
    start = draw(st.sampled_from(("", "", "!", "/", "!/")))
    return start + body + draw(st.sampled_from(("", "", "/")))


@st.composite
def ignore_files(draw: st.DrawFn) -> dict[str, str]:
    folders = draw(
        st.lists(st.sampled_from(("", "", "a/", "b/", "a/b/")), min_size=1, max_size=3, unique=True)
    )
    places = [folder + ".gitignore" for folder in folders]
    if draw(st.booleans()):
        places.append(".git/info/exclude")
    return {place: "\n".join(draw(st.lists(patterns(), max_size=5))) for place in places}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write(tmp_path_factory.mktemp("repository"), dict.fromkeys(TREE, ""))
    (root / ".git/info").mkdir(parents=True)
    git(root, "init", "--quiet", "--template=")
    return root


@needs_git
@settings(max_examples=200)
@given(rules=ignore_files())
def test_without_git_pathspec_finds_the_files_that_git_sees(
    repository: Path, rules: dict[str, str]
) -> None:
    write(repository, rules)
    try:
        expected = git_sees(repository)
        with without_git():
            assert archived(repository) == expected
    finally:
        for place in rules:
            (repository / place).unlink()


@needs_git
@settings(max_examples=100)
@given(rules=ignore_files())
def test_cloudtrainignore_alone_reads_as_gitignore_would(
    repository: Path, rules: dict[str, str]
) -> None:
    visited = []
    for name, files in ((".gitignore", git_sees), (".cloudtrainignore", archived)):
        places = {
            place.replace(".gitignore", name): text
            for place, text in rules.items()
            if "exclude" not in place
        }
        write(repository, places)
        visited.append({path for path in files(repository) if path in TREE})
        for place in places:
            (repository / place).unlink()
    assert visited[0] == visited[1]


LONG = "a" * 100
MANY = (
    "*a" * 7 + "b",
    "**/a" * 12 + "/b",
    "*?" * 30 + "b",
    "**/*a*a*/" * 8 + "b",
    "[!b]*" * 9 + "b",
)
"""Patterns that share one name, or one path, among many stars."""


@pytest.mark.parametrize("pattern", MANY)
def test_many_stars_in_one_pattern_take_no_longer(tmp_path: Path, pattern: str) -> None:
    files = {LONG: "", "/".join(["aa"] * 60): "", "x.cloudtrain": ""}
    write(
        tmp_path, {**files, ".gitignore": pattern, ".cloudtrainignore": f"{pattern}\n*.cloudtrain"}
    )

    assert archived(tmp_path) == sorted([".cloudtrainignore", ".gitignore", *list(files)[:2]])


@settings(max_examples=200)
@given(
    pattern=st.lists(st.sampled_from(("a", "b", "*", "**", "/", "/**/", "?", "[ab]", r"\*", "^"))),
    path=st.lists(st.text("ab*^", min_size=1, max_size=4), min_size=1, max_size=5),
    is_folder=st.booleans(),
)
def test_linear_time_changes_nothing_that_a_pattern_matches(
    pattern: list[str], path: list[str], is_folder: bool
) -> None:
    try:
        expression = GitIgnoreSpecPattern("".join(pattern)).regex
    except ValueError:
        return
    if expression is None:
        return

    name = "/".join(path) + "/" * is_folder
    faster = re.compile(linear(expression.pattern), re.DOTALL)
    assert bool(faster.fullmatch(name)) == bool(expression.fullmatch(name))
    assert bool(faster.match(name)) == bool(expression.match(name))


@needs_git
def test_a_folder_inside_a_repository_obeys_the_rules_above_it(tmp_path: Path) -> None:
    write(tmp_path, {
        ".gitignore": "*.ckpt\n/jobs/digits/out/\nsecret.env\n",
        "jobs/.gitignore": "!keep.ckpt\n/digits/notes\n",
        "jobs/digits/.gitignore": "!secret.env\n",
        "jobs/digits/train.py": "", "jobs/digits/a.ckpt": "", "jobs/digits/keep.ckpt": "", "jobs/digits/out/x": "",
        "jobs/digits/secret.env": "", "jobs/digits/notes/n": "", "jobs/digits/sub/notes/n": "",
    })  # fmt: skip
    git(tmp_path, "init", "--quiet")
    write(tmp_path, {".git/info/exclude": "jobs/digits/sub\n"})  # git's templates may lack it
    expected = [".gitignore", "keep.ckpt", "secret.env", "train.py"]
    assert archived(tmp_path / "jobs/digits") == git_sees(tmp_path / "jobs/digits") == expected
    with without_git():
        assert archived(tmp_path / "jobs/digits") == expected


@needs_git
@pytest.mark.parametrize("has_git", [True, False])
def test_an_ignored_source_folder_is_archived_by_its_own_rules(
    tmp_path: Path, has_git: bool
) -> None:
    files = {".gitignore": "*\n", "job/.gitignore": "*.log\n", "job/a.py": "", "job/a.log": ""}
    git(write(tmp_path, files), "init", "--quiet")
    with nullcontext() if has_git else without_git():
        assert archived(tmp_path / "job") == [".gitignore", "a.py"]


@needs_git
def test_a_tracked_file_is_archived_although_a_rule_ignores_it(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.bin\n", "kept.bin": "", "new.bin": "", "deleted.py": ""})
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--force", ".gitignore", "kept.bin", "deleted.py")
    (tmp_path / "deleted.py").unlink()
    assert archived(tmp_path) == [".gitignore", "kept.bin"]


@needs_git
def test_a_repository_inside_of_another_obeys_its_own_rules(tmp_path: Path) -> None:
    inner = {"lib/.gitignore": "*.log\n", "lib/a.py": "", "lib/a.log": "", "lib/a.tmp": ""}
    write(tmp_path, {".gitignore": "*.tmp\n", "train.py": "", "a.tmp": "", **inner})
    git(tmp_path, "init", "--quiet")
    git(tmp_path / "lib", "init", "--quiet")
    assert archived(tmp_path) == [
        ".gitignore",
        "lib/.gitignore",
        "lib/a.py",
        "lib/a.tmp",
        "train.py",
    ]


@needs_git
def test_a_worktree_obeys_the_exclude_file_of_its_repository(tmp_path: Path) -> None:
    main = write(tmp_path / "main", {"a.py": ""})
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    git(main, "init", "--quiet")
    git(main, "add", "a.py")
    git(main, *identity, "commit", "--quiet", "--message", "first")
    git(main, "worktree", "add", "--quiet", "../side")
    write(main, {".git/info/exclude": "*.tmp\n"})
    write(tmp_path / "side", {"a.tmp": "", "b.py": ""})
    assert archived(tmp_path / "side") == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {
                ".gitignore": "data/\n",
                ".cloudtrainignore": "!data/\n",
                "data/a.csv": "",
                "x/data/b.csv": "",
            },
            ["data/a.csv", "x/data/b.csv"],
            id="a folder comes back whole",
        ),
        pytest.param(
            {
                ".gitignore": "data/\n*.csv\n",
                ".cloudtrainignore": "!data/\n",
                "data/a.csv": "",
                "b.csv": "",
                "data/.gitignore": "*\n",
            },
            ["data/.gitignore", "data/a.csv"],
            id="whatever other .gitignore rules say inside it",
        ),
        pytest.param(
            {
                ".gitignore": "out/\n",
                ".cloudtrainignore": "!out/a/data/\n",
                "out/a/data/k": "",
                "out/a/x": "",
                "out/b/data/k": "",
            },
            ["out/a/data/k"],
            id="from inside an ignored folder by path",
        ),
        pytest.param(
            {
                ".gitignore": "out/\n",
                ".cloudtrainignore": "!data/\n",
                "out/a/data/k": "",
                "out/a/x": "",
            },
            ["out/a/data/k"],
            id="from inside an ignored folder by name",
        ),
        pytest.param(
            {
                ".gitignore": "out/\n",
                ".cloudtrainignore": "!*.json\n",
                "out/a/m.json": "",
                "out/x": "",
                "out/.venv/p.json": "",
                "out/env/pyvenv.cfg": "",
                "out/env/p.json": "",
            },
            ["out/a/m.json"],
            id="but not out of environments inside it",
        ),
        pytest.param(
            {
                ".cloudtrainignore": "!data/\n*.tmp\n",
                ".gitignore": "data/\n",
                "data/a": "",
                "data/a.tmp": "",
            },
            ["data/a"],
            id="minus what .cloudtrainignore itself leaves out",
        ),
        pytest.param(
            {
                ".cloudtrainignore": "*.bin\n",
                "sub/.cloudtrainignore": "!keep.bin\n",
                "a.bin": "",
                "keep.bin": "",
                "sub/keep.bin": "",
            },
            ["sub/.cloudtrainignore", "sub/keep.bin"],
            id="nested .cloudtrainignore",
        ),
        pytest.param(
            {".cloudtrainignore": "data/\n!data/keep\n", "data/keep": "", "a": ""},
            ["a"],
            id="as in git, nothing comes back from a folder that the same file leaves out",
        ),
    ],
)
def test_cloudtrainignore_has_the_last_word(
    tmp_path: Path, files: dict[str, str], expected: list[str]
) -> None:
    rules = {".gitignore", ".cloudtrainignore"}
    assert [path for path in archived(write(tmp_path, files)) if path not in rules] == expected


STAYS_OUT = {
    ".git/HEAD": "",
    ".cloudtrain/launch.py": "",
    "pkg/.git/HEAD": "",
    "__pycache__/a.pyc": "",
    "pkg/__pycache__/b.pyc": "",
    "old.pyc": "",
    ".venv/bin/x": "",
    "env/pyvenv.cfg": "",
    "env/lib/y.py": "",
    "train.py": "",
    "pkg/.cloudtrain/ok": "",
}


def test_caches_environments_and_git_stay_out(tmp_path: Path) -> None:
    assert archived(write(tmp_path, STAYS_OUT)) == ["pkg/.cloudtrain/ok", "train.py"]


def test_cloudtrainignore_restores_caches_but_never_git_or_our_folder(
    tmp_path: Path,
) -> None:
    write(tmp_path, STAYS_OUT)
    (tmp_path / ".cloudtrainignore").write_text(
        "!__pycache__/\n!*.pyc\n!.venv\n!env/\n!.git/\n!.cloudtrain/\n"
    )
    hidden = (".git/", ".cloudtrain/launch", "pkg/.git/")
    expected = sorted(path for path in STAYS_OUT if not path.startswith(hidden))
    assert archived(tmp_path) == [".cloudtrainignore", *expected]


def test_a_folder_that_is_brought_back_does_not_bring_its_caches(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "src/\n",
            ".cloudtrainignore": "!src/\n",
            "src/a.py": "",
            "src/__pycache__/a.pyc": "",
        },
    )
    assert archived(tmp_path) == [".cloudtrainignore", ".gitignore", "src/a.py"]


def test_a_link_to_a_folder_is_no_folder_to_a_pattern(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "link/\n", "real/a": ""})
    (tmp_path / "link").symlink_to("real")
    assert archived(tmp_path) == [".gitignore", "link", "real/a"]


def test_patterns_that_git_never_matches_are_no_error(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "a\\\n[\n[z-a]\n!\n/\n[[]\n", "a": "", "[": ""})
    assert archived(tmp_path) == [".gitignore", "a"]

"""What is told of a git repository by reading it: the same as git itself says, and nothing where it is damaged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path

import pytest

import cloudtrain.git
from cloudtrain.git import GitState, git_state
from tests.limits import HANG_SECONDS

OUTSIDE = GitState("", None)
NOBODY = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
ANN = {f"GIT_{who}_{key}": "ann@example.com" for who in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
# Without locks `git status` leaves the index as it finds it.
ENV = NOBODY | ANN | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0"}

FILES = """
printf 'lr = 0.1\\n' > train.py
mkdir -p model/heads
printf 'width = 64\\n' > model/layers.py
printf '' > model/__init__.py
ln -s model/layers.py latest
touch -d @1600000000 train.py model/layers.py model/__init__.py
git add --all
git commit -qm 'some words'
printf 'bias = True\\n' > model/heads/linear.py
printf 'depth = 3\\n' > model-v2.py  # comes after the folder as a file, before it as a word
touch -d @1600000000 model/heads/linear.py model-v2.py
git add --all
git commit -qm 'more words'
"""


class Git:
    """A repository, and a shell in it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.index = top / ".git" / "index"
        top.mkdir(exist_ok=True)

    def __call__(self, script: str) -> str:
        argv = ["sh", "-ec", script]
        done = subprocess.run(argv, cwd=self.top, env=ENV, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def commit(self) -> str:
        return self("git rev-parse --verify HEAD")

    def says(self) -> GitState:
        """The answer of git itself."""
        return GitState(self.commit, self("git status --porcelain -uno") != "")


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """A repository with two commits, with files from 2020, and nothing changed since."""
    git = Git(tmp_path / "repository")
    git("git -c init.defaultBranch=main init -q" + FILES)
    return git


DIRTY = {
    "other size": "echo 'lr = 0.001' > train.py",
    "same size, other content": "echo 'lr = 0.2' > train.py",
    "changed in the tick in which the index was written": """
        echo 'lr = 0.2' > train.py
        touch -d @1600000000 train.py .git/index""",
    "emptied": "printf '' > train.py",
    "deleted": "rm model/layers.py",
    "file for a folder": "rm -r model/heads; touch model/heads",
    "folder for a file": "rm train.py; mkdir train.py",
    "link for a file": "ln -sf model-v2.py train.py",
    "link that leads elsewhere": "ln -sf model/lay-rs.py latest",
    "staged": "echo 'lr = 0.2' > train.py; git add train.py",
    "staged on a packed commit": "git gc -q; echo 'lr = 0.2' > train.py; git add train.py",
    "staged, then changed back": "echo 'lr = 0.2' > train.py; git add train.py; echo 'lr = 0.1' > train.py",
    "staged mode": "chmod +x train.py; git add train.py",
    "staged link for a file": "ln -sf model-v2.py train.py; git add train.py",
    "no longer tracked": "git rm -q --cached model/heads/linear.py",
    "only announced": "touch new.py; git add --intent-to-add new.py",
    "in conflict": """
        git checkout -q -b other HEAD~1; echo 'depth = 4' > model-v2.py; git add --all; git commit -qm other
        ! git merge -q main""",
    "commit taken back": "git reset -q --soft HEAD~1",
    "packed commit taken back": "git gc -q; git reset -q --soft HEAD~1",
    "index gone": "rm .git/index",
}

CLEAN = {
    "nothing": "",
    "touched": "touch train.py model/__init__.py",
    "files as old as the index": "touch -d @1600000000 .git/index",
    "sizes not noted": "git read-tree HEAD",
    "untracked file": "echo 'buy milk' > notes.txt",
    "changed where git was told not to look": """
        git update-index --assume-unchanged train.py
        echo 'lr = 0.001' > train.py""",
    "outside a sparse checkout": "git sparse-checkout set --no-cone '/*' '!/train.py'; ! test -e train.py",
    "line ends that git converts": """
        git config core.autocrlf true
        printf 'a = 1\\r\\n' > dos.py; git add dos.py; git commit -qm dos; touch dos.py""",
    "staged, then committed": "echo 'lr = 0.2' > train.py; git add train.py; git commit -qm more",
    "staged, then taken back": """
        echo 'lr = 0.2' > train.py; git add train.py
        echo 'lr = 0.1' > train.py; touch -d @1600000001 train.py; git add train.py""",
    "folders staged again": "git rm -rq --cached model; git add model",
    "folders staged again on a packed commit": "git gc -q; git rm -rq --cached model; git add model",
    "packed": "git gc -q; ! test -e .git/refs/heads/main",
    "packed, the branch newer": "git gc -q; git commit -q --allow-empty -m newer",
    "packed beside a branch whose name ends alike": "git branch a/refs/heads/main HEAD~1; git pack-refs --all",
    "packed where a folder of that name is left": "git pack-refs --all; mkdir .git/refs/heads/main",
    "detached": "git checkout -q --detach HEAD~1",
    "branch that stands for another": """
        git symbolic-ref refs/heads/trunk refs/heads/main
        git symbolic-ref HEAD refs/heads/trunk""",
}


@pytest.mark.parametrize("script", DIRTY.values(), ids=DIRTY)
def test_what_git_calls_changed_is_dirty(git: Git, script: str) -> None:
    git(script)
    assert git_state(git.top) == git.says() == GitState(git.commit, True)


@pytest.mark.parametrize("script", CLEAN.values(), ids=CLEAN)
def test_what_git_calls_unchanged_is_clean(git: Git, script: str) -> None:
    git(script)
    assert git_state(git.top) == git.says() == GitState(git.commit, False)


# Formats


@pytest.mark.parametrize("change", ["touch train.py", "echo 'lr = 0.2' > train.py"], ids=["touched", "changed"])
@pytest.mark.parametrize("version", [2, 3, 4])
def test_every_version_of_the_index_is_read(git: Git, version: int, change: str) -> None:
    # git writes version 3 only for flags that version 2 has no room for
    git(
        "git update-index --skip-worktree model-v2.py"
        if version == 3
        else f"git update-index --index-version {version}"
    )
    assert git.index.read_bytes()[7] == version
    git(change)
    assert git_state(git.top) == git.says()


@pytest.mark.parametrize("version", [2, 4])
def test_long_and_foreign_names_are_read(git: Git, version: int) -> None:
    long = "/".join(["folder" * 30] * 30)
    git(f"mkdir 'ä ö'; echo x > 'ä ö/ü\n.txt'; git add .; git update-index --index-version {version}")
    git(f"git update-index --add --cacheinfo 100644,$(git hash-object train.py),{long}; git commit -qm names")
    git(f"git update-index --skip-worktree {long}")
    assert git_state(git.top) == GitState(git.commit, False)


def test_an_index_without_a_checksum_is_read(git: Git) -> None:
    git.index.write_bytes(git.index.read_bytes()[:-20] + bytes(20))
    assert git_state(git.top) == git.says()


def test_a_repository_with_sha256_is_read(tmp_path: Path) -> None:
    git = Git(tmp_path / "new")
    git("git init -q --object-format=sha256" + FILES + "touch train.py")
    assert git_state(git.top) == git.says()


def test_commits_that_a_pack_keeps_as_deltas_are_read(git: Git) -> None:
    git('for i in 1 2 3 4 5 6; do echo $i > train.py; git add train.py; git commit -qm "$(seq 99)"; done; git gc -q')
    in_pack = [line.split() for line in git("git verify-pack -v .git/objects/pack/*.idx").splitlines()]
    deltas = [line[0] for line in in_pack if line[1] == "commit" and len(line) == 7]
    assert deltas
    for commit in deltas:
        git(f"git checkout -q {commit}")
        assert git_state(git.top) == git.says() == GitState(commit, False)


# Places


def test_a_folder_deep_below_the_top_has_the_state_of_the_repository(git: Git) -> None:
    git("echo 'lr = 0.001' > train.py")
    assert git_state(git.top / "model" / "heads") == git.says()


def test_a_relative_folder_is_looked_up_from_here(git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(git.top / "model")
    assert git_state(Path("heads")) == git.says()


def test_a_link_to_a_folder_has_the_state_of_where_it_leads(git: Git, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(git.top / "model")
    assert git_state(tmp_path / "link") == git.says()


def test_a_worktree_has_a_commit_of_its_own(git: Git) -> None:
    git("git worktree add -q -b side ../side HEAD~1")
    assert git_state(git.top.parent / "side").commit == git("git rev-parse HEAD~1")


@pytest.mark.parametrize("change", ["", "echo 'lr = 0.001' > train.py"], ids=["clean", "dirty"])
def test_a_worktree_is_clean_or_dirty_by_itself(git: Git, change: str) -> None:
    git("git worktree add -q --detach ../side; rm train.py")
    side = Git(git.top.parent / "side")
    side(change)
    assert git_state(side.top) == side.says()


@pytest.fixture
def outer(git: Git, tmp_path: Path) -> Git:
    """A repository around another, its submodule."""
    outer = Git(tmp_path / "outer")
    add = f"git -c protocol.file.allow=always submodule --quiet add {git.top} inner"
    outer(f"git init -q; {add}; git commit -qm outer")
    return outer


@pytest.mark.parametrize("change", ["", "echo 'lr = 0.001' > train.py"], ids=["clean", "dirty"])
def test_a_submodule_has_a_state_of_its_own(outer: Git, change: str) -> None:
    inner = Git(outer.top / "inner")
    inner(change)
    assert git_state(inner.top) == inner.says()


def test_a_repository_with_a_submodule_can_be_clean(outer: Git) -> None:
    assert git_state(outer.top) == outer.says() == GitState(outer.commit, False)


def test_a_folder_that_is_not_there_has_the_state_of_what_is_around_it(git: Git) -> None:
    assert git_state(git.top / "not" / "there") == git.says()


def test_an_empty_git_folder_is_no_repository(git: Git) -> None:
    git("mkdir model/.git")
    assert git_state(git.top / "model") == git.says()


# What cannot be told


def test_outside_git_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert git_state(tmp_path) == OUTSIDE


def test_a_worktree_whose_repository_is_gone_is_not_taken_for_the_one_around_it(git: Git) -> None:
    git("echo 'gitdir: /nowhere/at/all' > model/.git")
    assert git_state(git.top / "model") == OUTSIDE


@pytest.mark.parametrize("staged", [False, True], ids=["nothing staged", "staged"])
def test_a_branch_without_a_commit_is_dirty_once_something_is_staged(tmp_path: Path, staged: bool) -> None:
    Git(tmp_path)("git init -q; touch train.py" + ("; git add train.py" if staged else ""))
    assert git_state(tmp_path) == GitState("", staged)


DAMAGED_HEADS = ["", "\n", "ref:\n", "ref: ../../train.py\n", "ref: refs/heads/loop\n", "f00d\n", "\0", "a" * 41]


@pytest.mark.parametrize("text", [*DAMAGED_HEADS, "ref: refs/heads/.invalid\n"])
def test_a_head_that_is_damaged_or_in_a_reftable_is_not_judged(git: Git, text: str) -> None:
    (git.top / ".git" / "refs" / "heads" / "loop").write_text("ref: refs/heads/loop\n")
    (git.top / ".git" / "HEAD").write_text(text)
    assert git_state(git.top) == OUTSIDE


def test_a_damaged_branch_is_not_taken_for_a_commit(git: Git) -> None:
    (git.top / ".git" / "refs" / "heads" / "main").write_bytes(bytes(41))
    assert git_state(git.top) == OUTSIDE


NOT_JUDGED = {
    "split index": "git update-index --split-index",
    "sparse index": """
        mkdir other; touch other/file; git add other; git commit -qm other
        git sparse-checkout set --cone --sparse-index model""",
    "content that a filter may have changed": """
        git config filter.shout.clean 'tr a-z A-Z'; echo '*.py filter=shout' > .gitattributes
        touch train.py; git add --all; git commit -qm filtered; touch -d @1600000001 train.py""",
    "something staged, the commit gone": """
        touch new.py; git add new.py
        rm .git/objects/$(git rev-parse HEAD | sed 's|^..|&/|')""",
}


@pytest.mark.parametrize("script", NOT_JUDGED.values(), ids=NOT_JUDGED)
def test_what_cannot_be_told_is_left_open(git: Git, script: str) -> None:
    git(script)
    assert git_state(git.top) == GitState(git.commit, None)


@pytest.mark.parametrize("limit", ["_LARGEST_INDEX", "_MOST_CONTENT"])
def test_what_is_not_worth_the_wait_is_left_open(git: Git, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudtrain.git, limit, 3)
    git("touch train.py")
    assert git_state(git.top) == GitState(git.commit, None)


def test_without_the_commit_an_index_as_git_left_it_is_trusted(git: Git) -> None:
    git("rm .git/objects/$(git rev-parse HEAD | sed 's|^..|&/|')")
    assert git_state(git.top) == GitState(git.commit, False)


# Damage

Damage = Callable[[bytes, random.Random], bytes]


def cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def flip(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ dice.randrange(1, 256)]) + data[at + 1 :]


def flip_unsealed(data: bytes, dice: random.Random) -> bytes:
    return flip(data[:-20], dice) + bytes(20)


def flip_sealed(data: bytes, dice: random.Random) -> bytes:
    body = flip(data[:-20], dice)
    return body + sha1(body, usedforsecurity=False).digest()


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_index_is_not_judged(git: Git, damage: Damage, version: str) -> None:
    git(f"git update-index --index-version {version}")
    whole, unknown, dice = git.index.read_bytes(), GitState(git.commit, None), random.Random(1)
    for _ in range(300):
        git.index.write_bytes(damage(whole, dice))
        assert git_state(git.top) == unknown


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("damage", [flip_unsealed, flip_sealed])
def test_an_index_with_damage_that_its_checksum_hides_raises_nothing(git: Git, damage: Damage, version: str) -> None:
    git(f"git update-index --index-version {version}")
    whole, commit, dice = git.index.read_bytes(), git.commit, random.Random(2)
    for _ in range(500):
        git.index.write_bytes(damage(whole, dice))
        assert git_state(git.top).commit == commit


@pytest.mark.parametrize("damage", [cut, flip])
@pytest.mark.parametrize("packing", [":", "git gc -q"], ids=["loose", "packed"])
def test_damage_anywhere_in_a_repository_raises_nothing(git: Git, damage: Damage, packing: str) -> None:
    git(f"{packing}; chmod -R u+w .git")
    dice = random.Random(3)
    for file in sorted(path for path in (git.top / ".git").rglob("*") if path.is_file() and path.stat().st_size):
        whole = file.read_bytes()
        for _ in range(20):
            file.write_bytes(damage(whole, dice))
            assert isinstance(git_state(git.top), GitState)
        file.write_bytes(whole)


# What it costs


def test_importing_it_loads_next_to_nothing() -> None:
    heavy = {"hashlib", "struct", "zlib", "subprocess", "json", "tempfile"}
    code = f"import sys; old = set(sys.modules); import cloudtrain.git; print({heavy!r} & (set(sys.modules) - old))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert done.stdout == "set()\n"


def test_no_process_is_started(git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = git.says()
    for module, name in ((os, "fork"), (os, "posix_spawn"), (os, "system"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, None)
    assert git_state(git.top) == expected

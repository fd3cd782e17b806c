"""Facts about a git repository: the commit and whether files differ; programs that it configures
never run.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shlex import quote

import pytest

from cloudtrain.source import git as git_module
from cloudtrain.source.git import GitState, git_files, git_state
from tests.support.waiting import HANG_SECONDS

OUTSIDE = GitState("", None)
ANN = {
    f"GIT_{who}_{key}": "ann@example.com"
    for who in ("AUTHOR", "COMMITTER")
    for key in ("NAME", "EMAIL")
}
# Without locks `git status` leaves the index as it finds it.
ENV = (
    dict(os.environ)
    | ANN
    | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "XDG_CONFIG_HOME": "/nowhere",
    }
)

FILES = """
printf 'lr = 0.1\\n' > train.py
mkdir -p model/heads
printf 'width = 64\\n' > model/layers.py
printf '' > model/__init__.py
ln -s model/layers.py latest
touch -t 202009131226.40 train.py model/layers.py model/__init__.py
git add --all
git commit -qm 'some words'
printf 'bias = True\\n' > model/heads/linear.py
printf 'depth = 3\\n' > model-v2.py  # comes after the folder as a file, before it as a word
touch -t 202009131226.40 model/heads/linear.py model-v2.py
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
        process = subprocess.run(
            argv, cwd=self.top, env=ENV, capture_output=True, text=True, timeout=HANG_SECONDS
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    @property
    def commit(self) -> str:
        return self("git rev-parse --verify HEAD")

    def says(self) -> GitState:
        """The answer of git itself."""
        return GitState(self.commit, self("git status --porcelain -uno") != "")


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """A repository with two commits, with files from 2020, and nothing changed since."""
    monkeypatch.setattr(git_module, "TIMEOUT", HANG_SECONDS)
    git = Git(tmp_path / "repository")
    git("git -c init.defaultBranch=main init -q" + FILES)
    return git


DIRTY = {
    "other size": "echo 'lr = 0.001' > train.py",
    "same size, other content": "echo 'lr = 0.2' > train.py",
    "deleted": "rm model/layers.py",
    "staged": "echo 'lr = 0.2' > train.py; git add train.py",
    "staged, then changed back": "echo 'lr = 0.2' > train.py; git add train.py; echo 'lr = 0.1' > train.py",
    "in conflict": """
        git checkout -q -b other HEAD~1; echo 'depth = 4' > model-v2.py; git add --all; git commit -qm other
        ! git merge -q main""",
    "index gone": "rm .git/index",
}

CLEAN = {
    "nothing": "",
    "touched": "touch train.py model/__init__.py",
    "untracked file": "echo 'buy milk' > notes.txt",
    "staged, then committed": "echo 'lr = 0.2' > train.py; git add train.py; git commit -qm more",
    "packed, the branch newer": "git gc -q; git commit -q --allow-empty -m newer",
    "detached": "git checkout -q --detach HEAD~1",
}


@pytest.mark.parametrize("change", [*DIRTY, *CLEAN])
def test_dirty_is_what_git_calls_changed(git: Git, change: str) -> None:
    git((DIRTY | CLEAN)[change])
    assert git_state(git.top) == git.says() == GitState(git.commit, change in DIRTY)


# Places


def test_a_folder_deep_below_the_top_has_the_state_of_the_repository(git: Git) -> None:
    git("echo 'lr = 0.001' > train.py")
    assert git_state(git.top / "model" / "heads") == git.says()


def test_a_worktree_has_a_commit_of_its_own(git: Git) -> None:
    git("git worktree add -q -b side ../side HEAD~1")
    assert git_state(git.top.parent / "side").commit == git("git rev-parse HEAD~1")


@pytest.fixture
def outer(git: Git, tmp_path: Path) -> Git:
    """A repository around another, its submodule."""
    outer = Git(tmp_path / "outer")
    add = f"git -c protocol.file.allow=always submodule --quiet add {quote(str(git.top))} inner"
    outer(f"git init -q; {add}; git commit -qm outer")
    return outer


@pytest.mark.parametrize("change", ["", "echo 'lr = 0.001' > train.py"], ids=["clean", "dirty"])
def test_a_submodule_has_a_state_of_its_own(outer: Git, change: str) -> None:
    inner = Git(outer.top / "inner")
    inner(change)
    assert git_state(inner.top) == inner.says()


# Facts that git does not give


def test_a_worktree_whose_repository_is_gone_is_not_taken_for_the_one_around_it(git: Git) -> None:
    git("echo 'gitdir: /nowhere/at/all' > model/.git")
    assert git_state(git.top / "model") == OUTSIDE


@pytest.mark.parametrize("staged", [False, True], ids=["nothing staged", "staged"])
def test_a_branch_without_a_commit_is_dirty_once_something_is_staged(
    tmp_path: Path, staged: bool
) -> None:
    Git(tmp_path)("git init -q; touch train.py" + ("; git add train.py" if staged else ""))
    assert git_state(tmp_path) == GitState("", staged)


DAMAGED = {
    "index": "echo damaged > .git/index",
    "head": "echo damaged > .git/HEAD",
    "configuration": "echo '[damaged' > .git/config",
}


@pytest.mark.parametrize("script", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_repository_is_no_error(git: Git, script: str) -> None:
    git(script)
    assert git_state(git.top) == OUTSIDE


def test_without_git_there_is_nothing_to_tell(git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(git.top / "nowhere"))
    assert git_state(git.top) == OUTSIDE


def test_a_git_that_does_not_answer_is_given_up(git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(git.top / "never")
    git("git config include.path ../never")
    monkeypatch.setattr(git_module, "TIMEOUT", 0.2)
    assert git_state(git.top) == OUTSIDE


def test_a_git_that_is_late_once_is_not_asked_again(
    git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(git.top / ".gitignore")
    monkeypatch.setattr(git_module, "TIMEOUT", 0.2)
    assert git_files(git.top) is None
    monkeypatch.setattr(git_module, "TIMEOUT", 10 * HANG_SECONDS)
    assert git_files(git.top) is None
    assert git_state(git.top) == OUTSIDE


@pytest.mark.parametrize("name", ["HEAD", "config", "index", "info/exclude", "refs/heads/main"])
def test_a_repository_that_git_would_wait_for_is_not_asked(
    git: Git, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = git.top / ".git" / name
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    monkeypatch.setattr(git_module, "TIMEOUT", 10 * HANG_SECONDS)
    assert git_files(git.top) is None
    assert git_state(git.top) == OUTSIDE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_repository_of_another_user_is_not_read(
    git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")  # it may trust every folder
    os.chown(git.top, 12345, 12345)
    os.chown(git.top / ".git", 12345, 12345)
    assert git_state(git.top) == OUTSIDE


# Actions that a repository must not cause


HOSTILE = {
    "file system monitor": "git config core.fsmonitor '{run}'",
    "hook": (
        "printf '#!/bin/sh\\n{run}' > .git/hooks/post-index-change; chmod +x"
        " .git/hooks/post-index-change"
    ),
    "hooks elsewhere": (
        """
        mkdir hooks; printf '#!/bin/sh\\n{run}' > hooks/post-index-change; chmod +x hooks/post-index-change
        git config core.hooksPath ../hooks"""
    ),
    "filter": (
        "echo '*.py filter=own' > .git/info/attributes; git config filter.own.clean '{run}; cat'"
    ),
    "filter in the tree": (
        "echo '*.py filter=own' > .gitattributes; git config filter.own.clean '{run}; cat'"
    ),
    "required filter": (
        """
        echo '*.py filter=own' > .gitattributes
        git config filter.own.clean '{run}; cat'; git config filter.own.required true"""
    ),
    "filter process": (
        "echo '*.py filter=own' > .gitattributes; git config filter.own.process '{run}; cat'"
    ),
    "filter in an included file": (
        """
        echo '*.py filter=own' > .gitattributes
        git config -f more filter.own.clean '{run}; cat'; git config include.path ../more"""
    ),
    "filter of one worktree": (
        """
        echo '*.py filter=own' > .gitattributes; git config extensions.worktreeConfig true
        git config --worktree filter.own.clean '{run}; cat'"""
    ),
    "filter without a name": (
        "echo '*.py filter=' > .gitattributes; git config 'filter..clean' '{run}; cat'"
    ),
    "filter with an odd name": (
        """
        echo '*.py filter=a=b' > .gitattributes; git config 'filter.a=b.clean' '{run}; cat'"""
    ),
    "external diff": "git config diff.external '{run}'",
    "text conversion": (
        "echo '*.py diff=own' > .gitattributes; git config diff.own.textconv '{run}; cat'"
    ),
    "pager": "git config core.pager '{run}'; git config pager.status true",
    "alias": "git config alias.status '!{run}'; git config alias.config '!{run}'",
    "transport of missing objects": (
        """
        git config protocol.ext.allow always; git config remote.origin.url "ext::{run}"
        git config remote.origin.promisor true; git config extensions.partialClone origin
        git config core.repositoryFormatVersion 1
        rm .git/objects/$(git rev-parse 'HEAD^{{tree}}' | sed 's|^..|&/|')"""
    ),
    "program that sends missing objects": (
        """
        git config remote.origin.url . ; git config remote.origin.uploadpack '{run}'
        git config remote.origin.promisor true; git config extensions.partialClone origin
        git config core.repositoryFormatVersion 1
        rm .git/objects/$(git rev-parse 'HEAD^{{tree}}' | sed 's|^..|&/|')"""
    ),
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
def test_nothing_that_a_repository_configures_is_executed(
    git: Git, script: str, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    git(script.format(run=f"touch {trap}") + "; touch train.py")
    trap.unlink(missing_ok=True)
    git_state(git.top)
    assert not trap.exists()


def test_a_submodule_executes_nothing_either(outer: Git, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    Git(outer.top / "inner")(f"git config core.fsmonitor 'touch {trap}'; touch train.py")
    assert git_state(outer.top) == GitState(outer.commit, False)
    assert not trap.exists()


@pytest.mark.parametrize("path", [":{usual}", ".:{usual}", "{usual}:"])
def test_a_program_of_the_repository_is_not_taken_for_git(
    git: Git, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (git.top / "git").write_text("#!/bin/sh\necho '# branch.oid f00d'\n")
    (git.top / "git").chmod(0o755)
    monkeypatch.chdir(git.top)
    monkeypatch.setenv("PATH", path.format(usual=os.environ["PATH"]))
    assert git_state(git.top) == git.says()


def test_what_a_filter_of_the_repository_may_have_changed_is_left_open(git: Git) -> None:
    git("""
        git config filter.shout.clean 'tr a-z A-Z'; echo '*.py filter=shout' > .gitattributes
        touch train.py; git add --all; git commit -qm filtered; touch -t 202009131226.41 train.py""")
    assert git_state(git.top) == GitState(git.commit, None)


def test_a_filter_of_the_user_runs_as_in_git_itself(
    git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(git.top / ".git" / "users"))
    git("""
        git config -f .git/users filter.shout.clean 'tr a-z A-Z'; echo '*.py filter=shout' > .gitattributes
        touch train.py; GIT_CONFIG_GLOBAL=.git/users git add --all; git commit -qm filtered
        touch -t 202009131226.41 train.py""")
    assert git_state(git.top) == GitState(git.commit, False)


def test_the_index_stays_as_it_is(git: Git) -> None:
    git("touch train.py")
    before = git.index.read_bytes()
    git_state(git.top)
    assert git.index.read_bytes() == before


def test_what_a_hook_of_another_repository_is_told_is_not_heard(
    git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Git(git.top.parent / "other")
    second("git init -q; touch file; git add file; git commit -qm other")
    monkeypatch.setenv("GIT_DIR", str(second.top / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(second.index))
    assert git_state(git.top) == GitState(git.commit, False)


# Costs


def test_outside_a_repository_no_process_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert git_files(tmp_path) is None
    assert git_state(tmp_path) == OUTSIDE

"""Asks git for the commit around a folder, and whether tracked files differ from it.

Two short processes and none outside a repository: this is the only program that planning starts. A
repository is not trusted, so nothing that its own configuration names is executed: no filter, hook,
file system monitor or transport. What git does not answer (it is not installed, the repository is
damaged or belongs to another user, an answer takes too long) is left unknown, and never an error.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 10.0
"""Seconds for one answer of git: a network file system may be slow, and a plan must not hang on it.
"""

_STATUS = (
    *(
        "-c",
        "core.fsmonitor=",
        "-c",
        f"core.hooksPath={os.devnull}",
        "status",
        "--porcelain=v2",
        "--branch",
    ),
    *("--untracked-files=no", "--no-ahead-behind", "--no-renames", "--ignore-submodules=dirty"),
)
"""A submodule counts by the commit that is checked out in it: nothing runs inside of it."""
_FILTERS = ("config", "--null", "--show-scope", "--name-only", "--get-regexp", r"^filter\.")
_USERS = ("system", "global", "command")
"""Scopes of configuration that a repository cannot write to."""
_NO_MATCH = 1
"""The exit code of `git config` where no name matches."""

_COMMIT = re.compile(rb"^# branch\.oid ([0-9a-f]+)$", re.MULTILINE)
_CHANGED = re.compile(rb"^[^#]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GitState:
    """What is checked out around a folder."""

    commit: str = ""
    """Empty outside git, before the first commit, and where git does not answer."""
    dirty: bool | None = None
    """Whether any tracked file of the repository differs from the commit; None outside git or if it
    is not known.
    """


def git_state(folder: Path) -> GitState:
    """The commit checked out around a folder, and whether the repository's tracked files differ
    from it.
    """
    inside = Path(os.path.realpath(folder))
    top = next(
        (place for place in (inside, *inside.parents) if os.path.lexists(place / ".git")), None
    )
    if top is None:
        return GitState()
    from subprocess import SubprocessError

    try:
        filters = _own_filters(top)
        off = (
            f"filter.{name}.{key}"
            for name in filters
            for key in ("clean=", "process=", "required=false")
        )
        status = _git(top, *(word for setting in off for word in ("-c", setting)), *_STATUS)
    except (OSError, ValueError, SubprocessError):
        return GitState()
    commit = _COMMIT.search(status)
    changed = _CHANGED.search(status) is not None
    # Without its filter, a file whose content git stores in another form looks changed.
    return GitState(commit[1].decode() if commit else "", None if changed and filters else changed)


def _own_filters(top: Path) -> set[str]:
    """Names of the filters that the repository itself configures; ValueError if one cannot be named
    on a command line.

    Filters of the user's own configuration, as git-lfs installs them, run as in any `git status`.
    """
    words = _git(top, *_FILTERS, may_fail=True).decode(errors="replace").split("\0")
    keys = [key for scope, key in zip(words[::2], words[1::2], strict=False) if scope not in _USERS]
    names = {key.removeprefix("filter.").rpartition(".")[0] for key in keys}
    if odd := [name for name in names if not re.fullmatch(r"[\w.-]+", name, re.ASCII)]:
        raise ValueError(f"filters with odd names: {odd}")
    return names


def _git(top: Path, *words: str, may_fail: bool = False) -> bytes:
    """What git prints; SubprocessError if it fails or takes too long. `may_fail`: nothing found is
    an answer.
    """
    import subprocess

    done = subprocess.run(
        ("git", *words),
        cwd=top,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode and not (may_fail and done.returncode == _NO_MATCH):
        raise subprocess.CalledProcessError(done.returncode, done.args)
    return done.stdout


def _environment() -> dict[str, str]:
    """The user's own, without what a git hook sets for another repository; git writes and fetches
    nothing.
    """
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("GIT_") or k.startswith("GIT_CONFIG_")
    }
    # A relative entry would be looked up in the repository, which may hold a program called git.
    kept["PATH"] = os.pathsep.join(entry for entry in os.get_exec_path() if os.path.isabs(entry))  # noqa: PTH117
    return kept | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
    }

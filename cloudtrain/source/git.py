"""Questions to git: the files of a folder, its commit, and whether tracked files differ from it.

A few short processes and none outside a repository: git is the only program that planning starts. A
repository is not trusted, so nothing that its own configuration names is executed: no filter, hook,
file system monitor or transport. If git does not answer (it is not installed, the repository is
damaged or belongs to another user, an answer takes too long), the answer is unknown, not an error.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

TIMEOUT = 10.0
"""Seconds for one answer of git: a network file system may be slow, and a plan must not hang on it.
"""

MAX_OUTPUT_BYTES = 1 << 28
"""Maximum size of an answer: the paths of some millions of files."""

_NOTHING_STARTS = ("-c", "core.fsmonitor=", "-c", f"core.hooksPath={os.devnull}")
_LIST = (*_NOTHING_STARTS, "ls-files", "-co", "--exclude-standard", "-z")
_STATUS = (
    *(*_NOTHING_STARTS, "status", "--porcelain=v2", "--branch"),
    *("--untracked-files=no", "--no-ahead-behind", "--no-renames", "--ignore-submodules=dirty"),
)
"""A submodule counts by the commit that is checked out in it: nothing runs inside of it."""
_FILTERS = ("config", "--null", "--show-scope", "--name-only", "--get-regexp", r"^filter\.")
_USERS = ("system", "global", "command")
"""Scopes of configuration that a repository cannot write to."""
_NO_MATCH = 1
"""Exit code of `git config` and `git check-ignore` without a match."""

_COMMIT = re.compile(rb"^# branch\.oid ([0-9a-f]+)$", re.MULTILINE)
_CHANGED = re.compile(rb"^[^#]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GitState:
    """The checkout around a folder."""

    commit: str = ""
    """Empty outside git, before the first commit, and where git does not answer."""
    dirty: bool | None = None
    """Whether any tracked file of the repository differs from the commit; None outside git or if it
    is not known.
    """


def repository_top(folder: Path) -> Path | None:
    """Return the top of the repository around a folder; None outside of one."""
    inside = Path(os.path.realpath(folder))
    candidates = (inside, *inside.parents)
    return next((place for place in candidates if os.path.lexists(place / ".git")), None)


def git_files(folder: Path) -> list[str] | None:
    """List the files below a folder that git does not ignore: the tracked and the untracked ones.

    Paths are relative to the folder. A submodule or another repository inside counts as one entry.
    Return None outside a repository, if git does not answer or has a warning, and if git ignores
    the folder itself.
    """
    top = repository_top(folder)
    if top is None:
        return None
    from subprocess import SubprocessError

    try:
        if top != Path(os.path.realpath(folder)) and _is_ignored(folder):
            return None
        listing = _git(folder, *_LIST, strict=True)
    except (OSError, ValueError, SubprocessError):
        return None
    return [os.fsdecode(name) for name in listing.split(b"\0") if name]


def git_state(folder: Path) -> GitState:
    """Return the commit around a folder, and whether the repository's tracked files differ from it."""
    top = repository_top(folder)
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


def _is_ignored(folder: Path) -> bool:
    return bool(_git(folder, *_NOTHING_STARTS, "check-ignore", ".", may_fail=True))


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


def _git(folder: Path, *words: str, may_fail: bool = False, strict: bool = False) -> bytes:
    """Return what git prints. Raise SubprocessError if it fails, or its answer is late or too long.

    `may_fail`: an empty answer is no failure. `strict`: a warning is a failure.
    """
    import subprocess
    from threading import Timer

    with subprocess.Popen(
        ("git", *words),
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if strict else subprocess.DEVNULL,
        start_new_session=True,  # a filter of the user ends with it
    ) as process:
        timer = Timer(TIMEOUT, _kill, (process,))
        timer.start()
        try:
            assert process.stdout is not None  # noqa: S101  (a pipe)
            output = process.stdout.read(MAX_OUTPUT_BYTES)
            is_partial = len(output) == MAX_OUTPUT_BYTES
            has_warning = process.stderr is not None and bool(process.stderr.read(1))
            if is_partial or has_warning:
                _kill(process)
            code = process.wait()
        finally:
            timer.cancel()
            _kill(process)
    if is_partial or has_warning or (code and not (may_fail and code == _NO_MATCH)):
        raise subprocess.CalledProcessError(code, words)
    return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """The user's own, without what a git hook sets for another repository; git writes and fetches
    nothing.
    """
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("GIT_") or k.startswith("GIT_CONFIG_")
    }
    # A relative entry would be looked up in the repository, which may hold a program called git.
    absolute = [entry for entry in os.get_exec_path() if Path(entry).is_absolute()]
    environment["PATH"] = os.pathsep.join(absolute)
    return environment | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
    }

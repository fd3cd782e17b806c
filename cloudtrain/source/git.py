"""Questions to git: files of a folder, its commit, and changes since then.

Git is the only program that planning starts: a few short processes, none outside a repository. A
repository is not trusted: its own filters, hooks, file system monitors and transports are never
executed. If git does not answer (not installed, damaged repository, another owner, timeout), the
answer is unknown, not an error.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.source.linear_patterns import linear

if TYPE_CHECKING:
    import subprocess

TIMEOUT = 10.0
"""Seconds for one answer of git: a plan must not hang on a slow network file system."""

MAX_OUTPUT_BYTES = 1 << 28
"""Maximum size of an answer: the paths of some millions of files."""

_NOTHING_STARTS = ("-c", "core.fsmonitor=", "-c", f"core.hooksPath={os.devnull}")
_LIST = (*_NOTHING_STARTS, "ls-files", "-co", "--exclude-standard", "-z")
_STATUS = (
    *_NOTHING_STARTS,
    "status",
    "--porcelain=v2",
    "--branch",
    "--untracked-files=no",
    "--no-ahead-behind",
    "--no-renames",
    "--ignore-submodules=dirty",
)
"""Command for the state; a submodule counts by its commit, without running git inside."""
_FILTERS = ("config", "--null", "--show-scope", "--name-only", "--get-regexp", r"^filter\.")
_USERS = ("system", "global", "command")
"""Scopes of configuration that a repository cannot write to."""
_NO_MATCH = 1
"""Exit code of `git config` and `git check-ignore` without a match."""

_STATE_FOLDERS = ("", "info", "refs/heads", "refs/tags")
"""Folders of a repository whose files git reads for any question."""

_COMMIT = rb"(?m)^# branch\.oid ([0-9a-f]+)$"
_CHANGED = rb"(?m)^[^#]"

_SHORT = {".": ".+", "(?P<ps_d>/)": ".+/"}
"""pathspec's short forms of `*` and `*/` -> expressions that match a whole path."""


_silent: set[Path] = set()
"""Repositories whose git did not answer in time. Later calls skip it."""


class GitState(NamedTuple):
    """Checkout around a folder."""

    commit: str = ""
    """Commit; empty outside git, before the first commit, and if git does not answer."""
    dirty: bool | None = None
    """True if a tracked file of the repository differs from the commit; None if unknown."""


def repository_top(folder: Path) -> Path | None:
    """Return the top of the repository around a folder; None outside of one."""
    inside = Path(os.path.realpath(folder))
    candidates = (inside, *inside.parents)
    return next((place for place in candidates if os.path.lexists(place / ".git")), None)


def _answering_top(folder: Path) -> Path | None:
    """Return the top of the repository around a folder; None if git would wait for another program.

    git opens every file of a repository, also a FIFO.
    """
    top = repository_top(folder)
    if top is None or top in _silent:
        return None

    for name in _STATE_FOLDERS:
        try:
            with os.scandir(top / ".git" / name) as entries:
                odd = [entry for entry in entries if not (entry.is_file() or entry.is_dir())]
        except OSError:  # a worktree, whose .git is a file
            continue

        if any(Path(entry.path).is_fifo() for entry in odd):
            return None

    return top


def git_files(folder: Path) -> list[str] | None:
    """List the files below a folder that git does not ignore: the tracked and the untracked ones.

    Paths are relative to the folder. A submodule or another repository inside counts as one entry.
    Return None outside a repository, if git does not answer or has a warning, and if git ignores
    the folder itself.
    """
    top = _answering_top(folder)
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
    """Return the commit around a folder, and if tracked files of the repository differ."""
    top = _answering_top(folder)
    if top is None:
        return GitState()

    from subprocess import SubprocessError

    try:
        filters = _own_filters(top)
        words: list[str] = []
        for name in filters:
            for key in ("clean=", "process=", "required=false"):
                words += ["-c", f"filter.{name}.{key}"]

        status = _git(top, *words, *_STATUS)
    except (OSError, ValueError, SubprocessError):
        return GitState()

    match = re.search(_COMMIT, status)
    commit = ""
    if match:
        commit = match[1].decode()

    is_changed = re.search(_CHANGED, status) is not None
    if is_changed and filters:
        # Without its filter, a file whose content git stores in another form looks changed.
        return GitState(commit)

    return GitState(commit, is_changed)


def _is_ignored(folder: Path) -> bool:
    return bool(_git(folder, *_NOTHING_STARTS, "check-ignore", ".", may_fail=True))


def _own_filters(top: Path) -> set[str]:
    """Return the names of filters that the repository configures.

    Filters of the user's configuration, such as git-lfs, run as in any `git status`. Raise
    ValueError if a name does not fit on a command line.
    """
    words = _git(top, *_FILTERS, may_fail=True).decode(errors="replace").split("\0")
    names = set()
    for scope, key in zip(words[::2], words[1::2], strict=False):
        name = key.removeprefix("filter.").rpartition(".")[0]
        if scope in _USERS:
            continue
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise ValueError(f"a filter with an odd name: {name}")
        names.add(name)

    return names


def _git(folder: Path, *words: str, may_fail: bool = False, strict: bool = False) -> bytes:
    """Return the output of git. Raise SubprocessError if it fails, is late or too long.

    `may_fail`: an empty answer is not a failure. `strict`: a warning is a failure.
    """
    import subprocess
    from threading import Event, Timer

    is_late = Event()

    def end_late() -> None:
        is_late.set()
        _kill(process)

    with subprocess.Popen(
        ("git", *words),
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if strict else subprocess.DEVNULL,
        start_new_session=True,  # a filter of the user ends with it, except on Windows
    ) as process:
        timer = Timer(TIMEOUT, end_late)
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

    if code and is_late.is_set():
        if top := repository_top(folder):
            _silent.add(top)

        code = -1  # not the code of an empty answer
    if is_partial or has_warning or (code and not (may_fail and code == _NO_MATCH)):
        raise subprocess.CalledProcessError(code, words)

    return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return

    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return the user's environment without settings of git hooks, for reading only."""
    environment = {}
    for name, value in os.environ.items():
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG_"):
            environment[name] = value
    # A relative entry would be looked up in the repository, which may hold a program called git.
    absolute = [entry for entry in os.get_exec_path() if Path(entry).is_absolute()]
    environment["PATH"] = os.pathsep.join(absolute)

    return environment | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
    }


class IgnoreFile:
    """Rules of one file. `base` is its folder, "" or "a/b/"; paths start where `base` does."""

    def __init__(self, lines: Sequence[str], *, base: str = "") -> None:
        self._base = base
        rules = [rule for line in lines if (rule := _read_rule(line)) is not None]
        self._rules = rules[::-1]  # the last one that matches decides
        exceptions = [line for line in lines if line.startswith("!")]
        self._brought_back = [_plain_parts(line.strip().removeprefix("!")) for line in exceptions]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def ignores(self, path: str, is_folder: bool) -> bool | None:
        """Return True if an entry is ignored, False if a `!` rule brings it back, else None."""
        relative = path[len(self._base) :] + "/" * is_folder
        for regex, ignores in self._rules:
            if regex.fullmatch(relative):
                return ignores

        return None

    def may_bring_back_below(self, folder: str) -> bool:
        """Return whether a `!` rule could match something inside this folder."""
        parts = folder[len(self._base) :].split("/")
        for plain_parts in self._brought_back:
            pairs = zip(parts, plain_parts, strict=False)
            if all(part == plain for part, plain in pairs):
                return True

        return False


def _read_rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Return the expression of a line, and whether it ignores what it matches.

    Return None for a comment, and for a pattern that git would never match.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # slow to import

    # git lets `a/**` match what is in a, pathspec also a itself.
    line = re.sub(r"/\*\*(/?)$", r"/**/*\1", line.removesuffix("\r"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `[[]` is valid in git
            pattern = GitIgnoreSpecPattern(line)
            if pattern.include is None or pattern.regex is None:
                return None

            text = pattern.regex.pattern
            return re.compile(_SHORT.get(text) or linear(text), re.DOTALL), pattern.include
    except (ValueError, re.error):
        return None


def _plain_parts(pattern: str) -> list[str]:
    """Return the leading parts of a pattern that are plain names; none if it matches anywhere."""
    pattern = pattern.removesuffix("/")
    if "/" not in pattern:
        return []

    plain_parts = []
    for part in pattern.removeprefix("/").split("/"):
        if re.search(r"[*?\[\\]", part):
            break
        plain_parts.append(part)

    return plain_parts

"""Walks the source folder and decides what is archived: .gitignore, .cloudtrainignore, what always
stays out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from cloudtrain.bounded_files import read_regular_file, read_regular_text
from cloudtrain.issues import Issue
from cloudtrain.source.ignore import IgnoreFile, Patterns
from cloudtrain.source.likely_secrets import is_likely_secret
from cloudtrain.source.tree import PAYLOAD_FOLDER

Chain = tuple[IgnoreFile, ...]
"""Ignore files that apply to a folder, the nearest first: it decides."""


class _Scope(IntEnum):
    """Which rules decide about a folder's contents, where .cloudtrainignore has none for them."""

    NOTHING = 0
    """Ignored; walked only because .cloudtrainignore may bring something back."""
    GIT = 1
    """By .gitignore and by what is left out anyway."""
    CACHES = 2
    """Brought back from .gitignore: only caches, virtual environments and likely secrets stay out.
    """
    ALL = 3
    """One of these that was itself brought back: everything in it is archived."""


class WalkResult:
    """What a walk found, in no order."""

    def __init__(self) -> None:
        self.files: list[tuple[str, os.stat_result]] = []
        self.links: list[str] = []
        self.problems: list[Issue] = []
        """What cannot be archived, each with its path as the origin."""
        self.secrets: list[str] = []
        """What stays out since it is likely to hold secrets; folders end with a slash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Folder:
    path: str
    """Relative, "" or "a/b/"."""
    scope: _Scope
    wanted: bool
    """.cloudtrainignore brings back this very folder."""
    git: Chain
    ours: Chain


def walk(root: str, patterns: Patterns) -> WalkResult:
    """Every file and link below `root` that is to be archived. What cannot be read is listed,
    without an error.
    """
    lead, git = _rules_above(root, patterns)
    walker = _Walker(root, lead, patterns)
    todo = [_Folder(path="", scope=_Scope.GIT, wanted=True, git=git, ours=())]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(f"{root}/{folder.path}") as listing:
                entries = list(listing)
        except OSError as error:
            if folder.scope:
                walker.found.problems.append(unreadable(folder.path or ".", error))
        else:
            todo += walker.visit(folder, entries)
    return walker.found


def unreadable(path: str, error: OSError) -> Issue:
    """The problem of a file or folder that the system does not let us read."""
    if isinstance(error, FileNotFoundError):
        return Issue((), "vanished while it was read", "run again", origin=path)
    why = f"cannot be read ({error.strerror or error})"
    return Issue((), why, "change its permissions or add it to .cloudtrainignore", origin=path)


class _Walker:
    """`lead` is the path from the repository's top to `root`, "" or "a/b/": ignore rules see paths
    from the top.
    """

    def __init__(self, root: str, lead: str, patterns: Patterns) -> None:
        self.root = root
        self.lead = lead
        self.patterns = patterns
        self.found = WalkResult()

    def visit(self, folder: _Folder, entries: list[os.DirEntry[str]]) -> Iterator[_Folder]:
        """Takes what is to be archived of one folder and yields the folders to look into."""
        entered = self._enter(folder, {entry.name for entry in entries})
        if entered is None:
            return
        scope = entered.scope
        git = entered.git
        ours = entered.ours
        prefix = entered.path
        for entry in entries:
            name = entry.name
            if name == ".git" or (not prefix and name == PAYLOAD_FOLDER):
                continue
            path = prefix + name
            place = self.lead + path
            is_folder = entry.is_dir(follow_symlinks=False)
            verdict = _verdict(ours, place, name, is_folder)
            cache = scope < _Scope.ALL and _is_cache(name, is_folder)
            secret = scope < _Scope.ALL and is_likely_secret(path, name, is_folder)
            if verdict or (cache and verdict is None):
                continue
            if verdict is False:
                inner = _Scope.ALL if cache or secret else max(scope, _Scope.CACHES)
            elif scope == _Scope.GIT and _verdict(git, place, name, is_folder):
                inner = _Scope.NOTHING
            else:
                inner = scope
            if secret and verdict is None and inner:
                self.found.secrets.append(path + "/" * is_folder)
                inner = _Scope.NOTHING
            if inner == _Scope.NOTHING:
                if not is_folder or not any(rules.may_bring_back_below(place) for rules in ours):
                    continue
            elif not _has_usable_name(path, name, self.found):
                continue
            if is_folder:
                yield _Folder(
                    path=path + "/", scope=inner, wanted=verdict is False, git=git, ours=ours
                )
            else:
                _take(entry, path, self.found)

    def _enter(self, folder: _Folder, names: set[str]) -> _Folder | None:
        """The folder with its own ignore files added; None if it is a virtual environment that
        stays out.
        """
        scope = folder.scope
        prefix = folder.path
        git = folder.git
        ours = folder.ours
        if prefix and "pyvenv.cfg" in names and scope < _Scope.ALL:
            if not folder.wanted:
                return None
            scope = _Scope.ALL
        base = self.lead + prefix
        # Below what is brought back .gitignore does not apply, and below what is ignored no ignore
        # file does.
        if scope == _Scope.GIT and ".gitignore" in names:
            git = (*_read_rules(f"{self.root}/{prefix}.gitignore", self.patterns, base), *git)
        if scope and ".cloudtrainignore" in names:
            ours = (
                *_read_rules(f"{self.root}/{prefix}.cloudtrainignore", self.patterns, base),
                *ours,
            )
        return _Folder(path=prefix, scope=scope, wanted=folder.wanted, git=git, ours=ours)


def _verdict(chain: Chain, path: str, name: str, is_folder: bool) -> bool | None:
    for rules in chain:
        if (verdict := rules.ignores(path, name, is_folder)) is not None:
            return verdict
    return None


def _is_cache(name: str, is_folder: bool) -> bool:
    return name in ("__pycache__", ".venv") if is_folder else name.endswith(".pyc")


def _take(entry: os.DirEntry[str], path: str, found: WalkResult) -> None:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError as error:
        found.problems.append(unreadable(path, error))
        return
    if stat.S_ISREG(info.st_mode):
        found.files.append((path, info))
    elif stat.S_ISLNK(info.st_mode):
        found.links.append(path)
    else:
        kinds = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO"}
        why = kinds.get(stat.S_IFMT(info.st_mode), "a device") + ", not a file"
        found.problems.append(
            Issue((), why, "remove it or add it to .cloudtrainignore", origin=path)
        )


def _has_usable_name(path: str, name: str, found: WalkResult) -> bool:
    if name.isascii() and name.isprintable():
        return True
    try:
        name.encode()
        bad = any(char < " " or "\x7f" <= char < "\xa0" for char in name)
        why = "a name with a newline or control character"
    except UnicodeEncodeError:
        bad = True
        why = "a name that is not valid UTF-8"
    if bad:
        remedy = (
            "rename it, or leave it out by a pattern with ? for each such character in"
            " .cloudtrainignore"
        )
        found.problems.append(Issue((), why, remedy, origin=path))
    return not bad


def _read_rules(file: str, patterns: Patterns, base: str) -> Chain:
    """The rules of an ignore file; none if it cannot be read (as a file of the archive it is then
    refused).
    """
    try:
        # git does not follow a .gitignore that is a link either.
        content = read_regular_file(file, follow=False)
    except OSError:
        return ()
    lines = content.decode("utf-8-sig", "surrogateescape").split("\n")
    rules = IgnoreFile(lines, patterns.translate, base=base)
    return (rules,) if rules else ()


def _rules_above(root: str, patterns: Patterns) -> tuple[str, Chain]:
    """Path from the repository's top to `root`, and the rules of info/exclude and the .gitignore
    files above.

    Where those ignore `root` itself, the user has overruled them by naming it: they do not apply.
    """
    folder = Path(os.path.realpath(root))
    top = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if top is None:
        return "", ()
    chain = _read_rules(f"{_git_folder(top)}/info/exclude", patterns, "")
    lead = ""
    for part in folder.relative_to(top).parts:
        chain = (*_read_rules(f"{top}/{lead}.gitignore", patterns, lead), *chain)
        if _verdict(chain, lead + part, part, True):
            return "", ()
        lead += part + "/"
    return lead, chain


def _git_folder(top: Path) -> Path:
    """The repository's own folder; `.git` is a file that names it in a worktree or submodule."""
    try:
        named = (
            read_regular_text(top / ".git", errors="surrogateescape")
            .removeprefix("gitdir:")
            .strip()
        )
        folder = top / named
        common = folder / "commondir"
        return (
            folder / read_regular_text(common, errors="surrogateescape").strip()
            if common.exists()
            else folder
        )
    except OSError:
        return top / ".git"

"""Walk of the source folder, which decides what is archived.

Inside a repository git lists the files, elsewhere pathspec reads each .gitignore. After that come
.cloudtrainignore, the inputs of the job, what always stays out, and files that probably hold
secrets.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.errors import Issue
from cloudtrain.source.git import git_files, repository_top
from cloudtrain.source.tree import PAYLOAD_FOLDER, folders_of
from cloudtrain_wire.bounded_files import read_regular_file

if TYPE_CHECKING:
    from cloudtrain.source.git import IgnoreFile


Chain = tuple["IgnoreFile", ...]
"""Ignore files that apply to a folder, the nearest first: it decides."""

_SECRET_NAMES = frozenset(
    {
        ".env",
        ".envrc",
        ".netrc",
        "_netrc",
        ".git-credentials",
        ".pgpass",
        ".my.cnf",
        ".mylogin.cnf",
        ".pypirc",
        ".htpasswd",
        ".dockercfg",
        ".s3cfg",
        ".boto",
        ".databrickscfg",
        ".vault-token",
        ".terraformrc",
        "kaggle.json",
        "application_default_credentials.json",
        "client_secret.json",
        "service_account.json",
        "service-account.json",
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "id_rsa",
        "id_dsa",
        "id_ecdsa",
        "id_ecdsa_sk",
        "id_ed25519",
        "id_ed25519_sk",
    }
)
_SECRET_ENDINGS = (
    ".pem",
    ".key",
    ".p12",
    ".pfx",
    ".jks",
    ".keystore",
    ".ppk",
    ".kdbx",
    ".tfvars",
    "-credentials.json",
)
_EXAMPLE_ENDINGS = (".example", ".sample", ".template", ".dist", ".defaults", ".schema")
"""Endings of examples of a `.env` without secrets."""

_SECRET_FOLDERS = frozenset(
    {".aws", ".azure", ".ssh", ".gnupg", ".kube", ".gcloud", ".terraform.d"}
)
_SECRET_PLACES = (
    ".docker/config.json",
    ".config/gcloud",
    ".config/gh/hosts.yml",
    ".huggingface/token",
    ".streamlit/secrets.toml",
)


class _Scope(IntEnum):
    """Rules for the contents of a folder that .cloudtrainignore does not mention."""

    NOTHING = 0
    """Ignored; walked only because .cloudtrainignore may bring something back."""
    GIT = 1
    """By .gitignore, without caches and likely secrets."""
    CACHES = 2
    """Brought back from .gitignore: only caches, virtual environments and likely secrets stay out.
    """
    ALL = 3
    """One of these that was itself brought back: everything in it is archived."""


class WalkResult:
    """Result of a walk, in no order."""

    def __init__(self) -> None:
        self.files: list[tuple[str, os.stat_result]] = []
        self.links: list[str] = []
        self.problems: list[Issue] = []
        """Files that cannot be archived, each with its path as the origin."""
        self.secrets: list[str] = []
        """Entries left out as likely secrets; folders end with a slash."""
        self.left_out: dict[str, str] = {}
        """Other entries left out, without caches, each with the rule. Their contents are not listed.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class _Folder:
    path: str
    """Relative, "" or "a/b/"."""
    scope: _Scope
    brought_back: bool = False
    """.cloudtrainignore brings back this very folder."""
    listed: frozenset[str] | None = None
    """Files and folders that git lists; None if git is not asked or does not answer."""
    git: Chain = ()
    """Rules of .gitignore if `listed` is None."""
    own_rules: Chain = ()

    def is_ignored_by_git(self, path: str, place: str, is_folder: bool) -> bool:
        """Return whether git ignores an entry. `place`: its path from the repository's top."""
        if self.listed is not None:
            return path not in self.listed
        return _verdict(self.git, place, is_folder) is True


def walk(root: str, inputs: Mapping[str, str] | None = None) -> WalkResult:
    """List every file and link below `root` that is to be archived.

    `inputs`: name of each input of the job that is below `root`, by its path there; only a `!` rule
    of .cloudtrainignore brings it along. Unreadable files are problems of the result, not errors.
    """
    walker = _Walker(root, inputs or {})
    todo = [walker.start()]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(f"{root}/{folder.path}") as listing:
                entries = list(listing)
        except OSError as error:
            if folder.scope:
                walker.result.problems.append(unreadable(folder.path or ".", error))
        else:
            todo += walker.visit(folder, entries)

    return walker.result


def unreadable(path: str, error: OSError) -> Issue:
    """Return the problem of a file or folder that the system does not let us read."""
    if isinstance(error, FileNotFoundError):
        return Issue((), "vanished while it was read", "run again", origin=path)
    why = f"cannot be read ({error.strerror or error})"
    return Issue((), why, "change its permissions or add it to .cloudtrainignore", origin=path)


class _Walker:
    def __init__(self, root: str, inputs: Mapping[str, str]) -> None:
        self.root = root
        self.inputs = inputs
        self.lead = ""
        """Path from the repository's top to `root`, "" or "a/b/": .gitignore rules start there."""
        self.result = WalkResult()

    def start(self) -> _Folder:
        """Return the root, with what applies to it from above."""
        listed = self._list("")
        git: Chain = ()

        if listed is None:
            self.lead, git = _rules_above(self.root)

        return _Folder(
            path="",
            scope=_Scope.GIT,
            listed=listed,
            git=git,
        )

    def visit(self, folder: _Folder, entries: list[os.DirEntry[str]]) -> Iterator[_Folder]:
        """Take what is to be archived of one folder, and yield the folders to look into."""
        entered = self._enter(folder, {entry.name for entry in entries})
        if entered is None:
            return

        scope = entered.scope
        own_rules = entered.own_rules
        prefix = entered.path

        for entry in entries:
            name = entry.name
            if name == ".git" or (not prefix and name == PAYLOAD_FOLDER):
                continue

            path = prefix + name
            is_folder = entry.is_dir(follow_symlinks=False)
            verdict = _verdict(own_rules, path, is_folder)
            is_cache = scope < _Scope.ALL and _is_cache(name, is_folder)
            is_secret = scope < _Scope.ALL and is_likely_secret(path, name, is_folder)

            if is_cache and verdict is None:
                continue
            if verdict:
                self.result.left_out[path] = ".cloudtrainignore"
                continue
            if verdict is None and path in self.inputs:
                self.result.left_out[path] = f"it is the input {self.inputs[path]}"
                continue

            if verdict is False:
                if is_cache or is_secret:
                    inner = _Scope.ALL
                else:
                    inner = max(scope, _Scope.CACHES)
            elif scope == _Scope.GIT and entered.is_ignored_by_git(
                path, self.lead + path, is_folder
            ):
                inner = _Scope.NOTHING
                self.result.left_out[path] = "git ignores it"
            else:
                inner = scope

            if is_secret and verdict is None and inner:
                self.result.secrets.append(path + "/" * is_folder)
                inner = _Scope.NOTHING

            if inner == _Scope.NOTHING:
                if not is_folder:
                    continue
                if not any(rules.may_bring_back_below(path) for rules in own_rules):
                    continue
            elif not _has_usable_name(path, name, self.result):
                continue

            if is_folder:
                is_back = verdict is False
                yield replace(entered, path=f"{path}/", scope=inner, brought_back=is_back)
            else:
                _take(entry, path, self.result)

    def _enter(self, folder: _Folder, names: set[str]) -> _Folder | None:
        """Add the rules of the folder itself.

        Return None for a virtual environment that stays out.
        """
        scope = folder.scope
        prefix = folder.path
        listed = folder.listed
        git = folder.git
        own_rules = folder.own_rules

        if prefix and "pyvenv.cfg" in names and scope < _Scope.ALL:
            if not folder.brought_back:
                return None

            scope = _Scope.ALL

        # Below what is brought back .gitignore does not apply, and below what is ignored no ignore
        # file does.
        if scope == _Scope.GIT and prefix and ".git" in names:  # a submodule
            listed = self._list(prefix)

        if scope == _Scope.GIT and listed is None and ".gitignore" in names:
            base = self.lead + prefix
            git = _read_rules(f"{self.root}/{prefix}.gitignore", base) + git

        if scope and ".cloudtrainignore" in names:
            own_rules = _read_rules(f"{self.root}/{prefix}.cloudtrainignore", prefix) + own_rules

        return replace(
            folder,
            scope=scope,
            listed=listed,
            git=git,
            own_rules=own_rules,
        )

    def _list(self, prefix: str) -> frozenset[str] | None:
        names = git_files(Path(self.root, prefix))
        if names is None:
            return None

        paths = dict.fromkeys(f"{prefix}{name.rstrip('/')}" for name in names)
        return frozenset(paths) | folders_of(paths)


def _verdict(chain: Chain, path: str, is_folder: bool) -> bool | None:
    for rules in chain:
        if (verdict := rules.ignores(path, is_folder)) is not None:
            return verdict

    return None


def _is_cache(name: str, is_folder: bool) -> bool:
    if is_folder:
        return name in ("__pycache__", ".venv")

    return name.endswith(".pyc")


def _take(entry: os.DirEntry[str], path: str, result: WalkResult) -> None:
    try:
        info = os.lstat(entry.path)  # an entry lacks the inode on Windows
    except OSError as error:
        result.problems.append(unreadable(path, error))
        return

    if stat.S_ISREG(info.st_mode):
        result.files.append((path, info))
    elif stat.S_ISLNK(info.st_mode):
        result.links.append(path)
    else:
        kinds = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO"}
        why = kinds.get(stat.S_IFMT(info.st_mode), "a device") + ", not a file"
        result.problems.append(
            Issue((), why, "remove it or add it to .cloudtrainignore", origin=path)
        )


def _has_usable_name(path: str, name: str, result: WalkResult) -> bool:
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
        result.problems.append(Issue((), why, remedy, origin=path))

    return not bad


def _read_rules(file: str, base: str) -> Chain:
    """Read an ignore file. Return an empty chain if it is unreadable.

    As a file of the archive it is refused later.
    """
    from cloudtrain.source.git import IgnoreFile

    try:
        # git does not follow a .gitignore that is a link either.
        content = read_regular_file(file, follow=False)
    except OSError:
        return ()

    lines = content.decode("utf-8-sig", "surrogateescape").split("\n")
    rules = IgnoreFile(lines, base=base)
    if not rules:
        return ()

    return (rules,)


def _rules_above(root: str) -> tuple[str, Chain]:
    """Return the path from the repository's top to `root`, and the rules from there.

    If those ignore `root` itself, they do not apply: the user has overruled them by naming it.
    """
    folder = Path(os.path.realpath(root))
    top = repository_top(folder)
    if top is None:
        return "", ()

    chain = _read_rules(f"{top}/.git/info/exclude", "")
    lead = ""
    for part in folder.relative_to(top).parts:
        chain = _read_rules(f"{top}/{lead}.gitignore", lead) + chain
        if _verdict(chain, lead + part, True):
            return "", ()

        lead += f"{part}/"

    return lead, chain


def is_likely_secret(path: str, name: str, is_folder: bool) -> bool:
    """Return True if such a file or folder usually holds secrets. `path`: with slashes."""
    if is_folder:
        return name in _SECRET_FOLDERS or path.endswith(_SECRET_PLACES)
    if name in _SECRET_NAMES or name.endswith(_SECRET_ENDINGS):
        return True
    if name.startswith(".env."):
        return not name.endswith(_EXAMPLE_ENDINGS)

    return path.endswith(_SECRET_PLACES)

"""Scans the source folder: walk, hash (or remember), refuse what cannot be archived, all at once."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from cloudtrain.errors import SourceError
from cloudtrain.issues import Issue
from cloudtrain.source.hashes import HashCache, read_content, stamp
from cloudtrain.source.links import folders_of, link_problem, read_link
from cloudtrain.source.tree import (
    PAYLOAD_FOLDER,
    Progress,
    SourceEntry,
    SourceTree,
    digest_entries,
    refuse_large,
)
from cloudtrain.source.walk import WalkResult, unreadable, walk

MAX_SHOWN = 20
"""Of the paths that cannot be archived, in the message."""

_Listed = list[tuple[str, os.stat_result]]


def scan(
    root: Path,
    payload: Mapping[str, Path] | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    limit_bytes: int | None = None,
) -> SourceTree:
    """The tree that would be archived; starts no process, needs no network.

    `payload`: name below `.cloudtrain/` -> file added under it. `cache_dir`: where hashes are
    remembered.
    `limit_bytes`: larger sources are refused before any file is read. SourceError lists what below
    `root` cannot be archived: the first of it, and how much more there is.
    """
    if not root.is_dir():
        raise SourceError(
            f"the source folder {root} {'is not a folder' if root.exists() else 'does not exist'}",
            hint="name the folder that holds your code as `source`",
        )
    started = time.time_ns()
    top = os.path.abspath(root)  # noqa: PTH100
    if not top.strip("/"):
        raise SourceError(
            "the source folder cannot be the whole file system", hint="name the folder of your code"
        )
    cache = HashCache(cache_dir, top, started)
    found = walk(top)
    if outputs := _own_outputs():
        found.files = [
            (path, info) for path, info in found.files if (info.st_dev, info.st_ino) not in outputs
        ]
    if limit_bytes is not None:
        refuse_large(Path(top), {path: info.st_size for path, info in found.files}, limit_bytes)
    added = _payload_paths(payload or {})
    listed = found.files + _payload_files(added, found)
    entries = _hash(top, added, listed, cache, found, progress)
    entries += _links(top, found)
    cache.save()
    if found.problems:
        raise SourceError(_refusal(root, found.problems), hint="correct these and run again")
    entries.sort(key=lambda entry: entry.path)
    return SourceTree(
        root=Path(top),
        files=tuple(entries),
        payload=added,
        digest=digest_entries(entries),
        total_bytes=sum(entry.size for entry in entries),
        secrets=tuple(sorted(found.secrets)),
    )


def _own_outputs() -> frozenset[tuple[int, int]]:
    """`submit > log.txt` in the job's folder is no part of the source.

    Device and inode of the regular files that standard output and standard error lead to; usually
    none.
    """
    found = set()
    for fd in (1, 2):
        with suppress(OSError):  # closed
            about = os.fstat(fd)
            if stat.S_ISREG(about.st_mode):
                found.add((about.st_dev, about.st_ino))
    return frozenset(found)


def _payload_paths(payload: Mapping[str, Path]) -> dict[str, Path]:
    for name in payload:
        if (
            name != str(PurePosixPath(name))
            or name.startswith("/")
            or not {".", ".."}.isdisjoint(name.split("/"))
        ):
            raise SourceError(f"payload name {name!r} is not a plain relative path")
    return {f"{PAYLOAD_FOLDER}/{name}": file.absolute() for name, file in payload.items()}


def _payload_files(added: Mapping[str, Path], found: WalkResult) -> _Listed:
    files = []
    for path, file in added.items():
        try:
            info = file.stat()
        except OSError as error:
            why = f"cannot be read ({error.strerror or error})"
            found.problems.append(
                Issue((), why, "name a readable file as the payload", origin=str(file))
            )
            continue
        if stat.S_ISREG(info.st_mode):
            files.append((path, info))
        else:
            found.problems.append(
                Issue((), "not a file", "name a file as the payload", origin=str(file))
            )
    return files


def _hash(
    top: str,
    added: Mapping[str, Path],
    listed: _Listed,
    cache: HashCache,
    found: WalkResult,
    progress: Progress | None,
) -> list[SourceEntry]:
    entries = []
    step = max(1, len(listed) // 100)
    for done, (path, info) in enumerate(listed):
        if progress is not None and done % step == 0:
            progress(done, len(listed))
        now = stamp(info)
        digest = cache.get(path, now)
        if digest is None:
            file = added.get(path)
            try:
                digest = read_content(
                    str(file or f"{top}/{path}"), info.st_size, follow=file is not None
                )
            except OSError as error:
                found.problems.append(unreadable(path, error))
                continue
        if digest is None:
            found.problems.append(Issue((), "changed while it was read", "run again", origin=path))
            continue
        cache.put(path, now, info, digest)
        executable = info.st_mode & stat.S_IXUSR != 0
        entries.append(
            SourceEntry(path=path, size=info.st_size, executable=executable, sha256=digest)
        )
    if progress is not None:
        progress(len(listed), len(listed))
    return entries


def _links(top: str, found: WalkResult) -> list[SourceEntry]:
    targets = {}
    for path in found.links:
        try:
            targets[path] = read_link(top, path)
            targets[path].encode()
        except OSError as error:
            found.problems.append(unreadable(path, error))
        except UnicodeEncodeError:
            del targets[path]
            why = "a link to a name that is not valid UTF-8"
            found.problems.append(Issue((), why, "rename the target", origin=path))
    if not targets:
        return []
    files = {path: None for path, _ in found.files}
    folders = folders_of(files | dict.fromkeys(targets))
    entries = []
    for path, target in targets.items():
        if trouble := link_problem(path, targets, files, folders):
            remedy = "replace it by what it points to, or add it to .cloudtrainignore"
            found.problems.append(Issue((), trouble, remedy, origin=path))
        else:
            digest = hashlib.sha256(target.encode()).hexdigest()
            entries.append(
                SourceEntry(path=path, size=0, executable=False, sha256=digest, link=target)
            )
    return entries


def _refusal(root: Path, problems: list[Issue]) -> str:
    count = "1 thing" if len(problems) == 1 else f"{len(problems):,} things"
    lines = [
        _in_one_line(issue)
        for issue in sorted(problems, key=lambda issue: issue.origin)[:MAX_SHOWN]
    ]
    lines += [f"and {len(problems) - MAX_SHOWN:,} more"] if len(problems) > MAX_SHOWN else []
    return "\n  ".join([f"{count} in the source folder {root} cannot be archived:", *lines])


def _in_one_line(issue: Issue) -> str:
    """One line, whatever characters the path holds."""
    path = issue.origin
    return f"{issue.at(path if path.isprintable() else ascii(path)).line()}; {issue.hint}"

"""Scan of the source folder: walk it, hash its files, and report all problems at once."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from cloudtrain.errors import Issue, SourceError
from cloudtrain.source.tree import (
    PAYLOAD_FOLDER,
    HashCache,
    Progress,
    SourceEntry,
    SourceTree,
    digest_entries,
    folders_of,
    link_problem,
    read_content,
    read_link,
    refuse_large,
    stamp,
)
from cloudtrain.source.walk import WalkResult, unreadable, walk

CHANGED_HINT = "run again; a log that is still written belongs elsewhere or in .cloudtrainignore"
"""Remedy if a file of the source changes, such as `train.log` of `submit 2>&1 | tee train.log`."""

MAX_SHOWN = 20
"""Maximum paths in a message about entries that cannot be archived."""

_Listed = list[tuple[str, os.stat_result]]


def scan(
    root: Path,
    payload: Mapping[str, Path] | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    limit_bytes: int | None = None,
    inputs: Mapping[str, str] | None = None,
) -> SourceTree:
    """Return the tree to archive, without a process or the network.

    `payload`: files to add, by name below `.cloudtrain/`. `cache_dir`: folder of remembered
    hashes. `limit_bytes`: maximum size, checked before reading any file. `inputs`: names of the
    job's inputs in the source folder by path, which stay out. Raise SourceError with the first
    entries that cannot be archived.
    """
    if not root.is_dir():
        problem = "is not a folder" if root.exists() else "does not exist"
        raise SourceError(
            f"the source folder {root} {problem}",
            hint="name the folder that holds your code as `source`",
        )

    started = time.time_ns()
    top = os.path.abspath(root)  # noqa: PTH100
    if os.path.dirname(top) == top:  # noqa: PTH120
        raise SourceError(
            "the source folder cannot be the whole file system", hint="name the folder of your code"
        )

    cache = HashCache(cache_dir, top, started)
    content = walk(top, inputs)
    outputs = _own_outputs()
    if outputs:
        files = content.files
        content.files = [item for item in files if _identity(item[1]) not in outputs]

    if limit_bytes is not None:
        refuse_large(Path(top), {path: info.st_size for path, info in content.files}, limit_bytes)

    added = _payload_paths(payload or {})
    listed = content.files + _payload_files(added, content)
    entries = _hash(top, added, listed, cache, content, progress)
    entries += _links(top, content)
    cache.save()

    if content.problems:
        raise SourceError(_refusal(root, content.problems), hint="correct these and run again")

    entries.sort(key=lambda entry: entry.path)
    return SourceTree(
        root=Path(top),
        files=tuple(entries),
        payload=added,
        digest=digest_entries(entries),
        secrets=tuple(sorted(content.secrets)),
        left_out=content.left_out,
    )


def _own_outputs() -> frozenset[tuple[int, int]]:
    """Return device and inode of standard output and standard error if they are files.

    `submit > log.txt` in the job's folder does not belong to the source.
    """
    outputs = set()
    for fd in (1, 2):
        with suppress(OSError):  # closed
            info = os.fstat(fd)
            if stat.S_ISREG(info.st_mode):
                outputs.add(_identity(info))

    return frozenset(outputs)


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _payload_paths(payload: Mapping[str, Path]) -> dict[str, Path]:
    for name in payload:
        if (
            name != str(PurePosixPath(name))
            or name.startswith("/")
            or not {".", ".."}.isdisjoint(name.split("/"))
        ):
            raise SourceError(f"payload name {name!r} is not a plain relative path")

    return {f"{PAYLOAD_FOLDER}/{name}": file.absolute() for name, file in payload.items()}


def _payload_files(added: Mapping[str, Path], content: WalkResult) -> _Listed:
    files = []
    for path, file in added.items():
        try:
            info = file.stat()
        except OSError as error:
            why = f"cannot be read ({error.strerror or error})"
            content.problems.append(
                Issue((), why, "name a readable file as the payload", origin=str(file))
            )
            continue

        if stat.S_ISREG(info.st_mode):
            files.append((path, info))
        else:
            content.problems.append(
                Issue((), "not a file", "name a file as the payload", origin=str(file))
            )

    return files


def _hash(
    top: str,
    added: Mapping[str, Path],
    listed: _Listed,
    cache: HashCache,
    content: WalkResult,
    progress: Progress | None,
) -> list[SourceEntry]:
    entries = []
    step = max(1, len(listed) // 100)
    for count, (path, info) in enumerate(listed):
        if progress is not None and count % step == 0:
            progress(count, len(listed))
        file_stamp = stamp(info)
        digest = cache.get(path, file_stamp)
        if digest is None:
            file = added.get(path)
            try:
                digest = read_content(
                    str(file or f"{top}/{path}"), info.st_size, follow=file is not None
                )
            except OSError as error:
                content.problems.append(unreadable(path, error))
                continue

        if digest is None:
            issue = Issue((), "changed while it was read", CHANGED_HINT, origin=path)
            content.problems.append(issue)
            continue

        cache.put(path, file_stamp, info, digest)
        executable = info.st_mode & stat.S_IXUSR != 0
        if sys.platform == "win32":  # which lacks that bit
            executable = path.endswith(".sh")

        entries.append(
            SourceEntry(path=path, size=info.st_size, executable=executable, sha256=digest)
        )

    if progress is not None:
        progress(len(listed), len(listed))
    return entries


def _links(top: str, content: WalkResult) -> list[SourceEntry]:
    targets = {}
    for path in content.links:
        try:
            targets[path] = read_link(top, path)
            targets[path].encode()
        except OSError as error:
            content.problems.append(unreadable(path, error))
        except UnicodeEncodeError:
            del targets[path]
            why = "a link to a name that is not valid UTF-8"
            content.problems.append(Issue((), why, "rename the target", origin=path))

    if not targets:
        return []
    files = {path: None for path, _ in content.files}
    folders = folders_of(files | dict.fromkeys(targets))
    entries = []
    for path, target in targets.items():
        if problem := link_problem(path, targets, files, folders):
            remedy = "replace it by what it points to, or add it to .cloudtrainignore"
            content.problems.append(Issue((), problem, remedy, origin=path))
        else:
            digest = hashlib.sha256(target.encode()).hexdigest()
            entries.append(
                SourceEntry(path=path, size=0, executable=False, sha256=digest, link=target)
            )

    return entries


def _refusal(root: Path, problems: list[Issue]) -> str:
    if len(problems) == 1:
        count = "1 thing"
    else:
        count = f"{len(problems):,} things"

    lines = [f"{count} in the source folder {root} cannot be archived:"]
    first = sorted(problems, key=lambda issue: issue.origin)[:MAX_SHOWN]
    lines += [_in_one_line(issue) for issue in first]
    if len(problems) > MAX_SHOWN:
        lines.append(f"and {len(problems) - MAX_SHOWN:,} more")

    return "\n  ".join(lines)


def _in_one_line(issue: Issue) -> str:
    """Return the issue as one line, for any characters of its path."""
    path = issue.origin
    if not path.isprintable():
        path = ascii(path)

    return f"{issue.at(path).line()}; {issue.hint}"

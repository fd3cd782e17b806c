"""Keeps what a node writes: its folders are on its own disk, and are copied to the job's storage while it runs.

For platforms that mount storage into a node: what such a mount makes of renames, of half-written files and of other
nodes' files is its own affair, so programs write to the disk, and only whole files are written to the mount. Standard
library only.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple

POLL_SECONDS = 1.0
"""Between two looks."""

UNFINISHED_SUFFIXES = (".partial", ".restoring")
"""How folders and files end that are not yet what they will be."""


SYNCED_TYPES = (stat.S_IFREG, stat.S_IFLNK)
"""What is kept."""

LINK_SUFFIX = ".cloudtrain-link"
"""How the file in storage ends that holds the target of a symbolic link: a datastore has no links."""


JOURNAL_NAME = "levelled"
"""In the launcher's scratch folder: what a node took over from its peers, and deleted as they did, line by line."""


class FileState(NamedTuple):
    """What tells a file from what it was."""

    size: int
    modified: int
    """Nanoseconds."""


IN_STORAGE = FileState(-1, -1)
"""Of a link that leads to its own place in storage: see `restore`."""


class StorageSync:
    """One node's folders on their way to storage. `pairs`: folder on this node's disk -> folder in storage.

    A file is copied once it is the same at two looks, those written first first; one that goes here goes there too, if
    it was this node that brought it. A link becomes a small file that holds its target. `shown`: likewise, but to a
    folder of this disk, which somebody else takes to storage: a file there is the same file (a hard link), as soon as
    it is begun.
    """

    def __init__(
        self,
        pairs: Mapping[str, str],
        log: Callable[[str], None],
        shown: Mapping[str, str] | None = None,
        journal: Path | None = None,
    ) -> None:
        self._shown = {Path(here) for here in shown or {}}
        self._pairs = [(Path(here), Path(there)) for here, there in {**pairs, **(shown or {})}.items()]
        self._log = log
        self._journal, self._read_bytes = journal, 0
        self._kept: dict[Path, FileState] = {}
        self._seen: dict[Path, FileState] = {}
        self._gone: set[Path] = set()
        self._woken, self._hurry, self._ended = threading.Event(), False, False
        self._thread: threading.Thread | None = None

    def mark_synced(self) -> None:
        """What is there now is in storage already."""
        self._kept = {path: sign for _, path, _, sign in self._files()}
        self._seen = dict(self._kept)

    def start(self) -> None:
        """From now on look again and again."""
        if self._pairs:
            self._thread = threading.Thread(target=self._work, name="keeping", daemon=True)
            self._thread.start()

    def finish(self) -> str:
        """Keep all that is not kept yet; why something could not be, or nothing."""
        self._ended = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        return self._sync(last=True)

    def sync_soon(self) -> None:
        """Something has just been finished that is worth keeping at once."""
        self._hurry = True
        self._woken.set()

    def _work(self) -> None:
        told = ""
        while not self._ended:
            self._woken.wait(POLL_SECONDS)
            self._woken.clear()
            sync_soon, self._hurry = self._hurry, False
            error = self._sync(last=sync_soon)
            if error != told:  # once, and again when it is another
                told = error
                self._log(f"not kept for now: {error}" if error else "kept again")

    def _sync(self, *, last: bool) -> str:
        self._read_journal()
        problem = self._localize_links()
        if problem:  # until then nothing is changed in storage
            return problem
        found = sorted(self._files(), key=lambda item: item[3].modified)
        for here, path, there, sign in found:
            if sign == IN_STORAGE:
                self._kept[path] = sign
            settled = last or here in self._shown or self._seen.get(path) == sign
            if self._kept.get(path) != sign and settled:
                try:
                    if here in self._shown:
                        _hard_link(path, there / path.relative_to(here))
                    else:
                        _store(path, here, there / path.relative_to(here))
                    self._kept[path] = sign
                except FileNotFoundError:
                    continue  # gone in this moment
                except OSError as error:
                    problem = f"{path.name}: {error.strerror or error}"
        self._read_journal()
        before, self._seen = self._seen, {path: sign for _, path, _, sign in found}
        gone = (self._gone | before.keys()) - self._seen.keys()
        # What replaces it is stored first: what is new takes two looks.
        ready = set() if problem else gone if last else gone & self._gone
        self._delete_from_storage(ready)
        self._gone = gone - ready
        return problem

    def _localize_links(self) -> str:
        """What was restored as a link into storage and has been moved since becomes a file of this disk."""
        for here, there in self._pairs:
            for folder, _, names in os.walk(here):
                for path in (Path(folder, name) for name in names):
                    draft = path.with_name(f".{path.name[:200]}{UNFINISHED_SUFFIXES[1]}")
                    try:
                        if self._is_storage_link(path) and path.readlink() != there / path.relative_to(here):
                            shutil.copyfile(path, draft)
                            draft.replace(path)
                    except FileNotFoundError:
                        continue  # gone in this moment
                    except OSError as error:
                        return f"{path.name}: {error.strerror or error}"
        return ""

    def _is_storage_link(self, path: Path) -> bool:
        """Whether it is a link into storage: see `restore`."""
        return path.is_symlink() and any(there in path.readlink().parents for _, there in self._pairs)

    def _read_journal(self) -> None:
        """What peers have brought here they keep themselves; what was deleted after their example they take away."""
        if self._journal is None or not self._journal.exists():
            return
        with self._journal.open("rb") as journal:
            journal.seek(self._read_bytes)
            lines = journal.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for path, entry in map(json.loads, whole.splitlines()):
            if entry is None:
                self._kept.pop(Path(path), None)
            else:
                self._kept[Path(path)] = FileState(entry[0], entry[1])

    def _delete_from_storage(self, gone: set[Path]) -> None:
        """Take away in storage what this node had brought and has deleted."""
        for path in [path for path in gone if path in self._kept]:
            del self._kept[path]
            for here, there in self._pairs:
                if here in path.parents:
                    copy = there / path.relative_to(here)
                    for each in (copy, _link_file(copy)):
                        with suppress(OSError):
                            each.unlink()
                    with suppress(OSError):  # the last file of its folder, and that folder the last of its own
                        for folder in copy.parents[: len(path.relative_to(here).parents) - 1]:
                            folder.rmdir()

    def _files(self) -> Iterator[tuple[Path, Path, Path, FileState]]:
        """All finished files: their pair's folder, their path, the pair's storage, their sign."""
        for here, there in self._pairs:
            for folder, folders, names in os.walk(here):
                folders[:] = [name for name in folders if not name.endswith(UNFINISHED_SUFFIXES)]
                links = [name for name in folders if Path(folder, name).is_symlink()]
                for name in names + links:
                    path = Path(folder, name)
                    with suppress(OSError):
                        about = path.lstat()
                        if stat.S_ISLNK(about.st_mode) and path.readlink() == there / path.relative_to(here):
                            yield here, path, there, IN_STORAGE
                        elif not name.endswith(UNFINISHED_SUFFIXES) and stat.S_IFMT(about.st_mode) in SYNCED_TYPES:
                            yield here, path, there, FileState(about.st_size, about.st_mtime_ns)


def _store(path: Path, here: Path, target: Path) -> None:
    """Store a file, or what stands for a link, below `here`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    instead = _link_file(target)
    if path.is_symlink():
        instead.write_bytes(os.fsencode(_link_target(path, here)))
        instead = target
    else:
        _copy(path, target)
    with suppress(OSError):  # of an earlier time, when it was the other
        instead.unlink()


def _copy(path: Path, target: Path) -> None:
    """Written in place: closing the file is what stores it, as a whole."""
    with path.open("rb") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 22)


def _link_file(target: Path) -> Path:
    return target.with_name(target.name + LINK_SUFFIX)


def _link_target(path: Path, here: Path) -> str:
    """A link's target; relative where it leads to a place in the folder that is kept."""
    target = Path(os.path.normpath(path.readlink()))
    return os.path.relpath(target, path.parent) if here in (target, *target.parents) else str(path.readlink())


def _hard_link(path: Path, target: Path) -> None:
    """The same file under another name, where the disk can do that: what is written to it later is there at once."""
    if path.is_symlink() and not path.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if target.samefile(path):
            return
    target.unlink(missing_ok=True)
    try:
        os.link(path.resolve(), target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(path, target)

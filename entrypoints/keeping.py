"""Keeps what a node writes: its folders are on its own disk, and are copied to the job's storage while it runs.

For platforms that mount storage into a node: what such a mount makes of renames, of half-written files and of other
nodes' files is its own affair, so programs write to the disk, and only whole files are written to the mount. Standard
library only.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple

PAUSE_SECONDS = 1.0
"""Between two looks."""

UNFINISHED = (".partial", ".restoring")
"""How folders and files end that are not yet what they will be."""


class Sign(NamedTuple):
    """What tells a file from what it was."""

    size: int
    modified: int
    """Nanoseconds."""


class Keeper:
    """One node's folders on their way to storage. `pairs`: folder on this node's disk -> folder in storage.

    A file is copied once it is the same at two looks, those written first first; one that goes here goes there too, if
    it was this node that brought it. Links are passed over.
    """

    def __init__(self, pairs: Mapping[str, str], log: Callable[[str], None]) -> None:
        self._pairs = [(Path(here), Path(there)) for here, there in pairs.items()]
        self._log = log
        self._kept: dict[Path, Sign] = {}
        self._seen: dict[Path, Sign] = {}
        self._woken, self._hurry, self._ended = threading.Event(), False, False
        self._thread: threading.Thread | None = None

    def know(self) -> None:
        """What is there now is in storage already."""
        self._kept = {path: sign for _, path, _, sign in self._files()}

    def begin(self) -> None:
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
        return self._look(last=True)

    def hurry(self) -> None:
        """Something has just been finished that is worth keeping at once."""
        self._hurry = True
        self._woken.set()

    def _work(self) -> None:
        told = ""
        while not self._ended:
            self._woken.wait(PAUSE_SECONDS)
            self._woken.clear()
            hurry, self._hurry = self._hurry, False
            trouble = self._look(last=hurry)
            if trouble != told:  # once, and again when it is another
                told = trouble
                self._log(f"not kept for now: {trouble}" if trouble else "kept again")

    def _look(self, *, last: bool) -> str:
        trouble = ""
        found = sorted(self._files(), key=lambda item: item[3].modified)
        for here, path, there, sign in found:
            settled = last or self._seen.get(path) == sign
            if self._kept.get(path) != sign and settled:
                try:
                    _copy(path, there / path.relative_to(here))
                    self._kept[path] = sign
                except FileNotFoundError:
                    continue  # gone in this moment
                except OSError as error:
                    trouble = f"{path.name}: {error.strerror or error}"
        self._seen = {path: sign for _, path, _, sign in found}
        self._forget({path for _, path, _, _ in found})
        return trouble

    def _forget(self, present: set[Path]) -> None:
        """Take away in storage what this node had brought and has deleted."""
        for path in [path for path in self._kept if path not in present]:
            del self._kept[path]
            for here, there in self._pairs:
                if here in path.parents:
                    copy = there / path.relative_to(here)
                    with suppress(OSError):
                        copy.unlink()
                    with suppress(OSError):  # the last file of its folder, and that folder the last of its own
                        for folder in copy.parents[: len(path.relative_to(here).parents) - 1]:
                            folder.rmdir()

    def _files(self) -> Iterator[tuple[Path, Path, Path, Sign]]:
        """All finished files: their pair's folder, their path, the pair's storage, their sign."""
        for here, there in self._pairs:
            for folder, folders, names in os.walk(here):
                folders[:] = [name for name in folders if not name.endswith(UNFINISHED)]
                for name in names:
                    path = Path(folder, name)
                    if name.endswith(UNFINISHED) or path.is_symlink():
                        continue
                    with suppress(OSError):
                        about = path.stat()
                        yield here, path, there, Sign(about.st_size, about.st_mtime_ns)


def _copy(path: Path, target: Path) -> None:
    """Written in place: closing the file is what stores it, as a whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 22)

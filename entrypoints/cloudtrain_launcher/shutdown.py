"""Exit by `os._exit` without losing open files. Standard library only.

At its end CPython collects the program's objects, and a file writes its buffer when it is collected
(Py_FinalizeEx). This module does the same for a process that skips that teardown.
"""

from __future__ import annotations

import _io
import faulthandler
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

STALL_SECONDS = 60
"""Time limit for closing a file, such as a pipe without a reader or a mount that hangs."""

LOCKED_SECONDS = 5
"""Additional time limit if another thread never releases the interpreter's lock."""

_STANDARD_FDS = (0, 1, 2)
_BUFFERED_CLASSES = ("TextIOWrapper", "BufferedWriter", "BufferedRandom", "BufferedRWPair")
"""Classes of `_io` that buffer what is written."""

_frozen_before = 0

_destroyed_groups: list[Any] = []


def ignore_frozen() -> None:
    """Remember the frozen objects (gc.freeze): they stay shared and untouched."""
    global _frozen_before
    _frozen_before = gc.get_freeze_count()


def keep_destroyed_groups() -> None:
    """Keep the process groups that a program destroys, if torch has been imported already.

    A DDP model may outlive its group and then end it while it holds the interpreter's lock, which
    gloo's threads may wait for (torch 2.13, `~Reducer`). A Python reference prevents that.
    """
    modules: Any = sys.modules
    c10d = modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return

    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def keep_and_destroy(*args: Any, **kwargs: Any) -> Any:
        _destroyed_groups.extend(c10d._world.pg_map)
        return destroy(*args, **kwargs)

    for module in (c10d, modules["torch.distributed"]):
        module.destroy_process_group = keep_and_destroy


class Watchdog:
    """Exit of the process with `code` after `seconds` without `reset`.

    If a thread holds the interpreter's lock, the code is 1, and the stacks are printed.
    """

    def __init__(self, code: int, seconds: float = STALL_SECONDS) -> None:
        self._was_reset = threading.Event()
        self._code = code
        self._seconds = seconds
        self._limit_locked_time()
        threading.Thread(target=self._watch, daemon=True, name="closing files").start()

    def reset(self) -> None:
        """Restart the time limit after progress."""
        self._was_reset.set()

    def _watch(self) -> None:
        while self._was_reset.wait(self._seconds):
            self._was_reset.clear()
            self._limit_locked_time()

        _print_error(f"the end took longer than {self._seconds:g} s: open files may lack their end")
        os._exit(self._code)

    def _limit_locked_time(self) -> None:
        faulthandler.dump_traceback_later(self._seconds + LOCKED_SECONDS, exit=True, file=2)


def open_files() -> list[Any]:
    """Return the process's open files, without StringIO and BytesIO."""
    if gc.get_freeze_count() > _frozen_before:
        gc.unfreeze()  # get_objects() does not list the objects that the program has frozen

    zip_file = getattr(sys.modules.get("zipfile"), "ZipFile", _io.FileIO)
    is_file_class: dict[type, bool] = {_io.BytesIO: False, _io.StringIO: False}
    files = []

    for item in gc.get_objects():
        kind = type(item)  # not isinstance: a proxy would answer for its target, or raise
        if kind not in is_file_class:
            is_file_class[kind] = any(
                base is _io._IOBase or base is zip_file for base in kind.__mro__
            )

        if is_file_class[kind] and not _is_closed(item):
            files.append(item)

    return files


def flush(files: Iterable[Any]) -> None:
    """Flush ordinary files. Ignore errors: `close` meets them again and prints them."""
    for file in sorted(files, key=_close_order):
        if _is_buffered(file):
            try:
                file.flush()
            except Exception:  # noqa: BLE001  (opened for reading, or a disk that is full)
                continue


def close(files: Iterable[Any], on_progress: Callable[[], None] = lambda: None) -> None:
    """Close files, each before its target; print errors. `on_progress`: called before each."""
    for file in sorted(files, key=_close_order):
        on_progress()
        try:
            if _fileno(file) in _STANDARD_FDS:
                file.flush()
            else:
                file.close()
        except Exception as error:  # noqa: BLE001  (any class may be a file)
            if not _is_closed(file) or isinstance(error, OSError):
                _print_error(
                    f"{_name(file)} could not be closed, and may lack its end:"
                    f" {type(error).__name__}: {error}"
                )


def clear_modules(names: Iterable[str]) -> None:
    """Drop the program's modules and collect its objects, like the interpreter's end.

    First drop the references, so that a `__del__` still sees its globals; then empty namespaces
    that are still referenced.
    """
    dropped = {}

    for name in names:
        module = sys.modules.pop(name, None)
        if type(module) is ModuleType:
            dropped[id(module.__dict__)] = name

    module = None
    gc.collect()
    alive = [
        item
        for item in gc.get_objects()
        if type(item) is dict and item.get("__name__") == dropped.get(id(item), 0)
    ]

    for namespace in alive:
        for key in reversed(list(namespace)):  # last defined, first cleared
            if key != "__builtins__":
                namespace[key] = None

    if alive:
        gc.collect()


def _is_buffered(file: Any) -> bool:
    return any(
        base.__module__ == "_io" and base.__name__ in _BUFFERED_CLASSES
        for base in type(file).__mro__
    )


def _is_closed(file: Any) -> bool:
    """Return whether a file is closed; also true for a ZipFile without a file."""
    try:
        if hasattr(file, "closed"):
            return bool(file.closed)

        return file.fp is None
    except Exception:  # noqa: BLE001  (a wrapper whose buffer was taken away)
        return True


def _close_order(file: Any) -> int:
    """Return the order: files with a target first, then text, archives, buffers, and raw files."""
    bases = type(file).__mro__
    names = {base.__name__ for base in bases}
    for depth, name in enumerate(("TextIOWrapper", "_ZipWriteFile", "ZipFile")):
        if name in names:
            return depth

    if _io._RawIOBase in bases:
        return 5

    if any(base.__module__ == "_io" and base.__name__.startswith("Buffered") for base in bases):
        return 4

    return 3


def _fileno(file: Any) -> int:
    try:
        return int(file.fileno())
    except Exception:  # noqa: BLE001  (no file of the system's)
        return -1


def _name(file: Any) -> str:
    name = getattr(file, "name", None) or getattr(file, "filename", None)
    if isinstance(name, (str, int, os.PathLike)):
        return str(name)

    return type(file).__name__


def _print_error(text: str) -> None:
    with suppress(OSError):
        os.write(2, (text + "\n").encode("utf-8", "replace"))

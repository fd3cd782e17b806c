"""Transfers of many files to or from a cloud's storage, several at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Event, Lock
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from cloudtrain.providers.progress import Progress

AT_ONCE = 10
"""Files at the same time: as many as the AWS CLI transfers."""

Count = Callable[[int], None]
"""Called with the number of bytes since the last call, by any thread."""

T = TypeVar("T")


class _StoppedError(Exception):
    """Another transfer has failed, or the user has pressed Ctrl-C."""


def counter(total: int, progress: Progress | None, before: int = 0) -> Count:
    """Return what adds up bytes, and calls `progress` with the sum and `total`.

    `before`: bytes that were transferred earlier.
    """
    lock = Lock()
    transferred = before

    def count(size: int) -> None:
        nonlocal transferred
        with lock:
            transferred += size
            if progress is not None:
                progress(min(transferred, total), total)

    return count


def transfer_all(transfer: Callable[[T, Count], None], files: Iterable[T], count: Count) -> None:
    """Transfer files. Raise the first error; other transfers then end when they count next."""
    from concurrent.futures import ThreadPoolExecutor  # a plan needs none

    is_stopped = Event()

    def count_unless_stopped(size: int) -> None:
        if is_stopped.is_set():
            raise _StoppedError
        count(size)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for _ in pool.map(lambda file: transfer(file, count_unless_stopped), files):
                pass
        except BaseException:
            is_stopped.set()
            pool.shutdown(cancel_futures=True)
            raise

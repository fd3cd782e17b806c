"""End of torchrun's agent: a shorter wait for other nodes after a stop, and redirected output."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

STOPPED_EXIT_CODE = 143
"""The exit code of torchrun's process after a stop: 128 + SIGTERM, as shells report it."""

WAIT_FOR_PEERS_SECONDS = 2.0
"""Maximum wait of torchrun for the other nodes after a stop, once this node's ranks ended well."""


def leave_quickly_and_quietly(output: IO[bytes]) -> None:
    """Patch torchrun's agent with `_exit_soon_after_sigterm`; `output` gets its last output.

    After its ranks' end the agent waits for the other nodes. If the node with the store has ended,
    it prints a C++ stack of 20 harmless lines.
    """
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    def redirected(
        method: Callable[..., Any], before: Callable[[], None] = lambda: None
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before()
            with _redirect_stderr(output):
                return method(*args, **kwargs)

        return call

    if hasattr(SimpleElasticAgent, "_exit_barrier"):
        barrier: Any = SimpleElasticAgent._exit_barrier
        SimpleElasticAgent._exit_barrier = redirected(barrier, _exit_soon_after_sigterm)  # type: ignore[method-assign]
    if hasattr(DynamicRendezvousHandler, "shutdown"):
        shutdown: Any = DynamicRendezvousHandler.shutdown
        DynamicRendezvousHandler.shutdown = redirected(shutdown)  # type: ignore[method-assign]


def _exit_soon_after_sigterm() -> None:
    """Make SIGTERM end this process within `WAIT_FOR_PEERS_SECONDS`, even during C++ code.

    The wait for the other nodes runs no signal handler for up to 300 s, and a stopped node may have
    left without joining it. Call it in the main thread.
    """
    read, write = socket.socketpair()
    write.setblocking(False)

    def watch() -> None:
        while signal.SIGTERM not in read.recv(64):
            pass
        time.sleep(WAIT_FOR_PEERS_SECONDS)
        os._exit(STOPPED_EXIT_CODE)

    threading.Thread(target=watch, name="exit barrier", daemon=True).start()
    signal.set_wakeup_fd(write.detach(), warn_on_full_buffer=False)


@contextmanager
def _redirect_stderr(file: IO[bytes]) -> Iterator[None]:
    """Redirect standard error into a file, including C++ output."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)

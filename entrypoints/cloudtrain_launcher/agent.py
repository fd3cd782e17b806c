"""torchrun in a separate process, the agent, which reports each dead rank as an event.

torchrun itself prints a table for people, and after a SIGTERM it exits with 1 and a traceback. This
process emits `rank_failed` events at once and stops without a traceback.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

# Started by its path: import from the folder of the package, not from this one.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cloudtrain_job import emit_event, set_output
from cloudtrain_launcher import flight_recorder
from cloudtrain_launcher.checkpoint_sync import CheckpointSync, sync_before_each_start
from cloudtrain_launcher.contract import JOB_FILE, LAUNCHER_PID, STREAM_DIR, STREAM_KEY, read_job
from cloudtrain_launcher.fork_server import ForkServer, fork_server, start_as_forks
from cloudtrain_launcher.sigterm import on_sigterm
from cloudtrain_launcher.storage_sync import JOURNAL_NAME
from cloudtrain_wire.causes import is_consequence
from cloudtrain_wire.events import Error, RankFailed
from cloudtrain_wire.parent_death import set_parent_death_signal

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

    def leave() -> None:
        time.sleep(WAIT_FOR_PEERS_SECONDS)
        os._exit(STOPPED_EXIT_CODE)

    on_sigterm(leave)


def stop_after_start(api: Any, agent: Any) -> None:
    """Patch torchrun's class `agent` to hear a stop only once all its ranks have started.

    Until then torchrun does not know its ranks. It would leave at once, and those that run already
    would end with it, without their grace period. `api`: torchrun's module of processes.
    """
    start = agent._start_workers
    stop = api._terminate_process_handler
    starting = False
    signals: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        if starting:
            signals.append(signum)
        else:
            stop(signum, frame)

    def start_and_hear(self: Any, group: Any) -> Any:
        nonlocal starting
        starting = True

        try:
            started = start(self, group)  # which installs `handle` for SIGTERM
        finally:
            starting = False

        if signals:
            stop(signals.pop(), None)

        return started

    api._terminate_process_handler = handle
    agent._start_workers = start_and_hear


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


class FailureMonitor(logging.Handler):
    """Reporter of ranks that ended by themselves, before torchrun ends their peers.

    torchrun names one failed rank, after the other ranks have ended, which may take minutes. If two
    ranks die between two of its polls, it may name the wrong one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[int, Any] = {}
        self._reported = False

    def wrap(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap torchrun's function that starts a rank's process, to watch the process."""

        def start_and_watch(*args: Any, **kwargs: Any) -> Any:
            handler = start(*args, **kwargs)
            close = handler.close

            def report_and_close(*args: Any, **kwargs: Any) -> None:
                self._report()
                # The look above reaps a rank that ended after torchrun's own look.
                with suppress(ProcessLookupError):
                    close(*args, **kwargs)

            handler.close = report_and_close
            self._ranks[handler.local_rank_id] = handler
            self._reported = False

            return handler

        return start_and_watch

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Report dead processes at torchrun's log records; if all died, torchrun ends none."""
        self._report()

    def _report(self) -> None:
        if not self._reported:
            self._reported = True
            for local_rank, handler in self._ranks.items():
                if handler.proc.poll() is not None:
                    emit_event(RankFailed(local_rank=local_rank, exitcode=handler.proc.returncode))


def main(argv: list[str]) -> int:
    """Run torchrun; return 0 if all ranks succeeded, 1 after a failure, 143 after a stop."""
    set_parent_death_signal(int(os.environ[LAUNCHER_PID]))
    set_output(1, os.environ.get(STREAM_KEY, ""))
    job = read_job(os.environ[JOB_FILE])

    try:
        gc.disable()  # each collection would look at all modules again
        import torch  # before the fork; import the remaining modules while the server starts

        flight_recorder.enable(
            job, os.environ["CLOUDTRAIN_OUTPUT_DIR"], torch.__version__, os.environ
        )

        gc.freeze()  # or each collection here writes to memory that is shared with the ranks
        gc.enable()
        server = fork_server(job)  # before any file is opened, which a rank would inherit
        from torch.distributed import run
    except Exception as error:  # noqa: BLE001  (a broken installation fails in many ways)
        traceback.print_exc()
        message = f"torch cannot be imported by {sys.executable}: {error}"
        emit_event(Error(rank=-1, exception=type(error).__name__, message=message))
        return 1

    with tempfile.TemporaryFile() as shutdown_output:
        code = _run(run, argv, server, shutdown_output)
        if code:
            shutdown_output.seek(0)
            with os.fdopen(2, "wb", closefd=False) as stderr:
                shutil.copyfileobj(shutdown_output, stderr)

    return code


def _run(run: Any, argv: list[str], server: ForkServer | None, shutdown_output: IO[bytes]) -> int:
    """Run torchrun's module `run` in this process; return the exit code of `main`."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if hasattr(api, "get_subprocess_handler"):
        monitor = FailureMonitor()
        if server:
            start = start_as_forks(api.get_subprocess_handler, server)
        else:
            start = api.get_subprocess_handler

        api.get_subprocess_handler = monitor.wrap(start)
        logging.getLogger(api.__name__).addHandler(monitor)

    if hasattr(LocalElasticAgent, "_start_workers") and hasattr(api, "_terminate_process_handler"):
        stop_after_start(api, LocalElasticAgent)

    checkpoint_sync = start_checkpoint_sync(argv)
    leave_quickly_and_quietly(shutdown_output)

    try:
        run.run(_parse(run, argv))
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        emit_event(RankFailed(local_rank=first.local_rank, exitcode=first.exitcode))
        return 1
    except api.SignalException:
        return STOPPED_EXIT_CODE
    except Exception as error:  # noqa: BLE001  (a rendezvous that failed, a port that was taken)
        traceback.print_exc()
        name = type(error).__name__
        message = str(error)[:1000]
        is_lost_peer = is_consequence(name, message, run.__file__)
        emit_event(Error(rank=-1, exception=name, message=message, consequence=is_lost_peer))
        return 1
    finally:
        if checkpoint_sync is not None:
            checkpoint_sync.stop()

    return 0


def _parse(run: Any, argv: list[str]) -> Any:
    """Parse torchrun's arguments with its own parser; skip options unknown to an older torch."""
    # PET_* set defaults for a torchrun inside the program; here all options are arguments.
    defaults = {}
    for name in list(os.environ):
        if name.startswith("PET_"):
            defaults[name] = os.environ.pop(name)

    parser = run.get_args_parser()
    os.environ.update(defaults)
    options = parser._option_string_actions
    known = []

    for arg in argv:
        name = arg.partition("=")[0]
        if not arg.startswith("--") or name in options:
            known.append(arg)

    return parser.parse_args(known)


def start_checkpoint_sync(argv: list[str]) -> CheckpointSync | None:
    """Make torchrun synchronise the checkpoint folders of all nodes before it starts the ranks.

    Return None without a checkpoint folder, or if this torch has another agent.
    """
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    folder = os.environ.get("CLOUDTRAIN_CHECKPOINT_DIR")
    scratch = os.environ.get(STREAM_DIR)

    if folder and scratch and hasattr(LocalElasticAgent, "_start_workers"):
        address = _local_address(argv) or socket.gethostname()
        journal = Path(scratch, JOURNAL_NAME)
        checkpoint_sync = CheckpointSync(
            Path(folder), address, journal, lambda text: print(text, flush=True)
        )
        sync_before_each_start(LocalElasticAgent, checkpoint_sync)
        return checkpoint_sync

    return None


def _local_address(argv: list[str]) -> str:
    """Return the first value of --local-addr; empty without it."""
    for arg in argv:
        option, _, value = arg.partition("=")
        if option == "--local-addr":
            return value

    return ""


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    # torchrun has ended its processes, and torch's teardown takes a quarter of a second.
    os._exit(exit_code)

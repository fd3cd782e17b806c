"""torchrun, run in a process of its own: the same program, telling of each failure as an event.

torchrun's own report of a failure is a table for people, and after a SIGTERM it always exits 1 with a traceback.
Here its failures leave as `rank_failed` events, as they happen, and a stop leaves no traceback.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Callable, Iterator

if __name__ == "__main__":  # started by its path: in place of this folder, the one that the package is in
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cloudtrain_job import emit_event, set_output
from cloudtrain_launcher.checkpoint_sync import CheckpointSync, sync_before_each_start
from cloudtrain_launcher.contract import LAUNCHER_PID, STREAM_DIR, STREAM_KEY
from cloudtrain_launcher.events import Error, RankFailed
from cloudtrain_launcher.failure import is_consequence
from cloudtrain_launcher.host import set_parent_death_signal
from cloudtrain_launcher.storage_sync import JOURNAL_NAME

STOPPED_EXIT_CODE = 143


class _FailureMonitor(logging.Handler):
    """Tells of the ranks that died by themselves, in the moment in which torchrun begins to end the others.

    torchrun names one dead rank only, after the others have ended, which may take minutes; and of two that died
    between two of its looks it does not always name the one that took the other along.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[int, Any] = {}
        self._reported = False

    def watch(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """torchrun's own starter of a rank's process, listening for its end."""

        def start_and_watch(*args: Any, **kwargs: Any) -> Any:
            handler = start(*args, **kwargs)
            close = handler.close

            def report_and_close(*args: Any, **kwargs: Any) -> Any:
                self._report()
                return close(*args, **kwargs)

            handler.close = report_and_close
            self._ranks[handler.local_rank_id] = handler
            self._reported = False
            return handler

        return start_and_watch

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Called for what torchrun logs of its processes: all may be dead then, and none left to be ended."""
        self._report()

    def _report(self) -> None:
        if not self._reported:
            self._reported = True
            for local_rank, handler in self._ranks.items():
                if handler.proc.returncode:
                    emit_event(RankFailed(local_rank=local_rank, exitcode=handler.proc.returncode))


@contextmanager
def _redirect_stderr(held: IO[bytes]) -> Iterator[None]:
    """Write into a file what goes to standard error, C++'s words included."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(held.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def _quiet_shutdown(held: IO[bytes]) -> None:
    """When all ranks have ended, torchrun waits for the other nodes and leaves the rendezvous. The node that keeps the
    store may be gone by then: that costs nothing, and reads like a crash (a C++ stack of 20 lines).
    """
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    def quietly(method: Callable[..., Any]) -> Callable[..., Any]:
        def held_back(*args: Any, **kwargs: Any) -> Any:
            with _redirect_stderr(held):
                return method(*args, **kwargs)

        return held_back

    for owner, name in ((SimpleElasticAgent, "_exit_barrier"), (DynamicRendezvousHandler, "shutdown")):
        if hasattr(owner, name):
            setattr(owner, name, quietly(getattr(owner, name)))


def main(argv: list[str]) -> int:
    """Run torchrun with `argv`; 0 when all ranks succeeded, 1 when one failed, 143 when told to stop."""
    set_parent_death_signal(int(os.environ[LAUNCHER_PID]))
    set_output(1, os.environ.get(STREAM_KEY, ""))
    with tempfile.TemporaryFile() as held:
        code = _run(argv, held)
        if code:
            held.seek(0)
            with os.fdopen(2, "wb", closefd=False) as stderr:
                shutil.copyfileobj(held, stderr)
    return code


def _run(argv: list[str], held: IO[bytes]) -> int:
    """torchrun itself. What it says while it leaves goes into `held`."""
    try:
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing import api
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    except Exception as error:  # noqa: BLE001  (a broken installation fails in many ways)
        traceback.print_exc()
        message = f"torch cannot be imported by {sys.executable}: {error}"
        emit_event(Error(exception=type(error).__name__, message=message))
        return 1
    if hasattr(api, "get_subprocess_handler"):
        deaths = _FailureMonitor()
        api.get_subprocess_handler = deaths.watch(api.get_subprocess_handler)
        logging.getLogger(api.__name__).addHandler(deaths)
    shared = start_checkpoint_sync(argv)
    _quiet_shutdown(held)
    # PET_* are for a torchrun that the program itself may start; here every option is said, as an argument.
    others = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PET_")}
    parser = run.get_args_parser()
    os.environ.update(others)
    known = parser._option_string_actions
    # An older torch has fewer options; what it lacks it decides itself.
    arguments = [word for word in argv if not word.startswith("--") or word.partition("=")[0] in known]
    try:
        run.run(parser.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        emit_event(RankFailed(local_rank=first.local_rank, exitcode=first.exitcode))
        return 1
    except api.SignalException:
        return STOPPED_EXIT_CODE
    except Exception as error:  # noqa: BLE001  (a rendezvous that failed, a port that was taken)
        traceback.print_exc()
        name, message = type(error).__name__, str(error)[:1000]
        is_lost_peer = is_consequence(name, message, run.__file__)
        emit_event(Error(exception=name, message=message, consequence=is_lost_peer))
        return 1
    finally:
        if shared is not None:
            shared.end()
    return 0


def start_checkpoint_sync(argv: list[str]) -> CheckpointSync | None:
    """All nodes are to find the same checkpoints whenever ranks start. An agent of another make starts them as ever."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    folder, scratch = os.environ.get("CLOUDTRAIN_CHECKPOINT_DIR"), os.environ.get(STREAM_DIR)
    if folder and scratch and hasattr(LocalElasticAgent, "_start_workers"):
        given = (word.partition("=")[2] for word in argv if word.startswith("--local-addr="))
        address = next(given, "") or socket.gethostname()
        shared = CheckpointSync(
            Path(folder), address, Path(scratch, JOURNAL_NAME), lambda text: print(text, flush=True)
        )
        sync_before_each_start(LocalElasticAgent, shared)
        return shared
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

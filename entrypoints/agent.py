"""torchrun, run in a process of its own: the same program, telling of each failure as an event.

torchrun's own report of a failure is a table for people, and after a SIGTERM it always exits 1 with a traceback.
Here its failures leave as `rank_failed` events, as they happen, and a stop leaves no traceback.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import Any, Callable

from cloudtrain_job import emit as tell
from contract import LAUNCHER_PID
from lifeline import die_with

STOPPED = 143


class _Deaths(logging.Handler):
    """Tells of the ranks that died by themselves, in the moment in which torchrun begins to end the others.

    torchrun names one dead rank only, after the others have ended, which may take minutes; and of two that died
    between two of its looks it does not always name the one that took the other along.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[int, Any] = {}
        self._told = False

    def watch(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """torchrun's own starter of a rank's process, listening for its end."""

        def start_and_listen(*args: Any, **kwargs: Any) -> Any:
            handler = start(*args, **kwargs)
            close = handler.close

            def tell_and_close(*args: Any, **kwargs: Any) -> Any:
                self._tell()
                return close(*args, **kwargs)

            handler.close = tell_and_close
            self._ranks[handler.local_rank_id] = handler
            self._told = False
            return handler

        return start_and_listen

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Called for what torchrun logs of its processes: all may be dead then, and none left to be ended."""
        self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            for local_rank, handler in self._ranks.items():
                if handler.proc.returncode:
                    tell("rank_failed", local_rank=local_rank, exitcode=handler.proc.returncode)


def main(argv: list[str]) -> int:
    """Run torchrun with `argv`; 0 when all ranks succeeded, 1 when one failed, 143 when told to stop."""
    die_with(int(os.environ[LAUNCHER_PID]))
    try:
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing import api
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    except Exception as error:  # noqa: BLE001  (a broken installation fails in many ways)
        traceback.print_exc()
        tell("error", exception=type(error).__name__, message=f"torch cannot be imported by {sys.executable}: {error}")
        return 1
    if hasattr(api, "get_subprocess_handler"):
        deaths = _Deaths()
        api.get_subprocess_handler = deaths.watch(api.get_subprocess_handler)
        logging.getLogger(api.__name__).addHandler(deaths)
    parser = run.get_args_parser()
    known = parser._option_string_actions
    # An older torch has fewer options; what it lacks it decides itself.
    arguments = [word for word in argv if not word.startswith("--") or word.partition("=")[0] in known]
    try:
        run.run(parser.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        tell("rank_failed", local_rank=first.local_rank, exitcode=first.exitcode)
        return 1
    except api.SignalException:
        return STOPPED
    except Exception as error:  # noqa: BLE001  (a rendezvous that failed, a port that was taken)
        traceback.print_exc()
        tell("error", exception=type(error).__name__, message=str(error)[:1000])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""torchrun, run in a process of its own: the same program, telling of each failure as an event.

torchrun's own report of a failure is a table for people, and after a SIGTERM it always exits 1 with a traceback.
Here its failures leave as `rank_failed` events, as they happen, and a stop leaves no traceback.
"""

from __future__ import annotations

import logging
import os
import sys

from cloudtrain_job import emit
from contract import LAUNCHER_PID
from lifeline import die_with

STOPPED = 143


class _FailureHandler(logging.Handler):
    """Tells of a dead rank when torchrun sees it, long before it has wound up the others."""

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("failed (exitcode: %s) local_rank: %s") and isinstance(record.args, tuple):
            exitcode, local_rank = record.args[:2]
            if isinstance(exitcode, int) and isinstance(local_rank, int):
                emit("rank_failed", local_rank=local_rank, exitcode=exitcode)


def main(argv: list[str]) -> int:
    """Run torchrun with `argv`; 0 when all ranks succeeded, 1 when one failed, 143 when told to stop."""
    die_with(int(os.environ[LAUNCHER_PID]))
    try:
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    except ImportError as error:
        emit("error", exception="ImportError", message=f"torch cannot be imported by {sys.executable}: {error}")
        return 1
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addHandler(_FailureHandler())
    parser = run.get_args_parser()
    known = parser._option_string_actions
    # An older torch has fewer options; what it lacks it decides itself.
    arguments = [word for word in argv if not word.startswith("--") or word.partition("=")[0] in known]
    try:
        run.run(parser.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        for failure in error.failures.values():
            emit("rank_failed", local_rank=failure.local_rank, exitcode=failure.exitcode)
        return 1
    except SignalException:
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs a function in several ranks, for a notebook or any Python program: forked, or spawned if
there are GPUs.

The rules are the launcher's: the same variables, a store without data of an earlier attempt, CPU
threads shared among the ranks, the requested world size, the first cause of a failure, no process
left behind. A fork sees what the notebook has in memory and starts at once, but CUDA does not work
in a fork: with GPUs the processes are new.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as multiprocessing
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from cloudtrain_launcher import destroyed_groups, shutdown
from cloudtrain_launcher.error_details import safe_str
from cloudtrain_launcher.events import Error
from cloudtrain_launcher.exit_timer import ExitTimer
from cloudtrain_launcher.failure import is_consequence
from cloudtrain_launcher.host import available_cores

PEER_GRACE_SECONDS = 5.0
"""How long the other ranks may go on when one has failed: they may wait for it for ever."""
TERMINATE_TIMEOUT_SECONDS = 30.0
"""From SIGTERM to SIGKILL."""
EXIT_TIMEOUT_SECONDS = 5
"""How long a rank that has failed may take to exit."""
JOB_MODULES = Path(__file__).parents[1] / "job"


class RankOutcome(NamedTuple):
    """How one rank ended: what the function returned, or the error that ended it."""

    value: Any = None
    error: Error | None = None


def run(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    n_processes: int,
    *,
    entry: Callable[..., None],
    spawn: bool,
    flush: Callable[[], None],
) -> list[RankOutcome]:
    """Call the function once per rank and wait for all; returns the outcomes in the order of the
    ranks.

    `spawn`: start new processes instead of forks; ValueError if the function cannot be pickled for
    them. `entry`: a function that such a process can import, and that passes its arguments to
    `run_rank`. `flush`: writes the buffers of all open files, since each fork would write them
    again. KeyboardInterrupt stops all ranks before it passes through.
    """
    context: Any = multiprocessing.get_context("spawn" if spawn else "fork")
    call = _pickle_call(function, args, kwargs) if spawn else (function, args, kwargs)
    store = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # it holds its port from now on
    processes: list[Any] = []
    pipes: list[Connection] = []
    flush()
    try:
        for rank in range(n_processes):
            receiver, sender = context.Pipe(duplex=False)
            variables = rank_environment(rank, n_processes, store.port)
            process = context.Process(target=entry, args=(call, sender, variables))
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        outcomes = _wait_for_ranks(processes, pipes)
        _join(processes)
        return outcomes
    finally:
        _terminate(processes)
        for pipe in pipes:
            pipe.close()


def rank_environment(rank: int, n_processes: int, port: int) -> dict[str, str]:
    """The variables of a rank, as torchrun sets them on one node. `port`: of the store on this
    machine.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n_processes),
        "LOCAL_WORLD_SIZE": str(n_processes),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": (
            os.environ.get("OMP_NUM_THREADS") or str(max(1, available_cores() // n_processes))
        ),
        "CLOUDTRAIN_NODES": "1",
        "CLOUDTRAIN_NODE_RANK": "0",
        "CLOUDTRAIN_PROCESSES": str(n_processes),
    }


def run_rank(call: Any, pipe: Connection, variables: Mapping[str, str]) -> None:
    """Run the function in this process as one rank, send its outcome, and exit with 0 or 1; never
    returns.

    `call`: function, arguments and keyword arguments, or the same pickled. It exits by `os._exit`,
    since a fork must not run the notebook's exit handlers. Files that the function left open are
    written before the outcome is sent: whoever has received that may end the rank.
    """
    os.environ.update(variables)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the notebook's own process receives it, and stops all ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.path.insert(0, str(JOB_MODULES))
    atexit._clear()  # the notebook's handlers
    destroyed_groups.keep_those_in_use()
    notebook_files = shutdown.open_files()
    is_spawned = isinstance(call, bytes)
    # OpenMP's threads do not exist in a fork, and waiting for them would never end: with one thread
    # it needs none.
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]) if is_spawned else 1)
    code = 0
    try:
        function, args, kwargs = pickle.loads(call) if is_spawned else call
        outcome = ForkingPickler.dumps((function(*args, **kwargs), None))
    except BaseException as error:  # noqa: BLE001  (also SystemExit: whatever ended the function ends the rank)
        code = 1
        pipe.send_bytes(
            ForkingPickler.dumps((None, _error_of(error, int(variables["RANK"]))))
        )  # its peers wait
        ExitTimer(code).start(EXIT_TIMEOUT_SECONDS)
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with suppress(BaseException):
            step()
    with suppress(BaseException):
        _close_files(notebook_files, shutdown.Watchdog(code))
    if code == 0:
        with suppress(OSError):  # the notebook is gone
            pipe.send_bytes(outcome)
    os._exit(code)


def _error_of(error: BaseException, rank: int) -> Error:
    name = type(error).__name__
    message = safe_str(error)
    stack = traceback.extract_tb(error.__traceback__)
    return Error(
        rank=rank,
        node=0,
        time=time.time(),
        exception=name,
        message=message,
        traceback=traceback.format_exc(),
        consequence=is_consequence(name, message, stack[-1].filename if stack else ""),
    )


def _close_files(notebook_files: Sequence[Any], watchdog: shutdown.Watchdog) -> None:
    """Write what the rank has written into files of the notebook, and close the files that it
    opened itself.
    """
    shutdown.flush(notebook_files)
    watchdog.reset()
    shutdown.close(shutdown.open_files(notebook_files), watchdog.reset)


def _wait_for_ranks(processes: Sequence[Any], pipes: Sequence[Connection]) -> list[RankOutcome]:
    """Wait for every rank. Once one has failed, the others have `PEER_GRACE_SECONDS` before they
    are terminated.
    """
    outcomes: dict[int, RankOutcome] = {}
    deadline: float | None = None
    while len(outcomes) < len(processes):
        open_pipes = {pipes[rank]: rank for rank in range(len(processes)) if rank not in outcomes}
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(open_pipes), seconds)
        if not ready:
            _terminate(processes)
            deadline = None
        for pipe in ready:
            rank = open_pipes[pipe]  # type: ignore[index]
            outcomes[rank] = _receive(pipes[rank], processes[rank], rank)
            if outcomes[rank].error and deadline is None:
                deadline = time.monotonic() + PEER_GRACE_SECONDS
    return [outcomes[rank] for rank in range(len(processes))]


def _receive(pipe: Connection, process: Any, rank: int) -> RankOutcome:
    """The outcome that a rank has sent, or one made from its exit code if it died before."""
    try:
        return RankOutcome(*pipe.recv())
    except EOFError:
        process.join()
        code = process.exitcode
        message = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )
        is_terminated = code == -signal.SIGTERM
        error = Error(
            rank=rank,
            node=0,
            time=time.time(),
            exception="exit",
            message=message,
            consequence=is_terminated,
        )
        return RankOutcome(error=error)


def _join(processes: Sequence[Any]) -> None:
    """Wait, at most `EXIT_TIMEOUT_SECONDS`, until failed ranks have closed their files; the others
    have done so.
    """
    deadline = time.monotonic() + EXIT_TIMEOUT_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def _terminate(processes: Sequence[Any]) -> None:
    """End all ranks: SIGTERM, and SIGKILL for those that are still alive after
    `TERMINATE_TIMEOUT_SECONDS`.
    """
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + TERMINATE_TIMEOUT_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _pickle_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """The call for a new process: by cloudpickle, which can pickle what a cell defines, or else by
    pickle.
    """
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        cloudpickle = pickle
    try:
        pickled: bytes = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
        if cloudpickle is pickle and function.__module__ == "__main__":
            raise ValueError("it is defined in the notebook itself")
        return pickled
    except Exception as error:
        message = f"the function cannot be sent to the new processes that GPUs need: {error}"
        raise ValueError(
            f"{message}; pip install cloudpickle, or put it into a module and import it"
        ) from error

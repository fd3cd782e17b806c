"""Runs of a function in several ranks of a notebook or Python program: forked, or spawned for GPUs.

The launcher's rules apply: the same variables, an empty store, shared CPU threads, the requested
world size, the first cause of a failure, no leftover process. A fork has the notebook's memory and
starts at once, but CUDA does not work in it: with GPUs the processes are new.
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
"""Time for other ranks after a failure, since they may wait for the failed one."""
TERMINATE_TIMEOUT_SECONDS = 30.0
"""From SIGTERM to SIGKILL."""
EXIT_TIMEOUT_SECONDS = 5
"""Time for a failed rank to exit."""
JOB_MODULES = Path(__file__).parents[1] / "job"


class RankOutcome(NamedTuple):
    """Outcome of one rank: the function's result, or the error that ended it."""

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
    """Call the function once per rank; return the outcomes in the order of the ranks.

    `spawn`: start new processes instead of forks; ValueError if the function cannot be pickled.
    `entry`: an importable function that passes its arguments to `run_rank`. `flush`: writes the
    buffers of all open files, since each fork would write them again. KeyboardInterrupt stops all
    ranks before it passes through.
    """
    context: Any = multiprocessing.get_context("spawn" if spawn else "fork")
    call = _pickle_call(function, args, kwargs) if spawn else (function, args, kwargs)
    # Holds its port from here.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
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
    """Return torchrun's variables of a rank on one node. `port`: of the store on this machine."""
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
    """Run the function as one rank, send its outcome, exit with 0 or 1; never return.

    `call`: function, arguments and keyword arguments, or the same pickled. It exits by `os._exit`,
    since a fork must not run the notebook's exit handlers. Open files are written before the
    outcome is sent: its receiver may end the rank.
    """
    os.environ.update(variables)
    # The notebook's process receives it and stops all ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.path.insert(0, str(JOB_MODULES))
    atexit._clear()  # the notebook's handlers
    destroyed_groups.keep_those_in_use()
    notebook_files = shutdown.open_files()
    is_spawned = isinstance(call, bytes)
    # A fork lacks OpenMP's threads and would wait for them; one thread needs none.
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]) if is_spawned else 1)
    code = 0
    try:
        function, args, kwargs = pickle.loads(call) if is_spawned else call
        outcome = ForkingPickler.dumps((function(*args, **kwargs), None))
    except BaseException as error:  # noqa: BLE001  (also SystemExit: whatever ended the function ends the rank)
        code = 1
        # Its peers wait.
        pipe.send_bytes(ForkingPickler.dumps((None, _error_of(error, int(variables["RANK"])))))
        ExitTimer(code).start(EXIT_TIMEOUT_SECONDS)
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with suppress(BaseException):
            step()
    with suppress(BaseException):
        _close_files(notebook_files, shutdown.Watchdog(code))
    if code == 0:
        with suppress(OSError):  # the notebook has ended
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
    """Flush the notebook's files, and close the files that the rank opened itself."""
    shutdown.flush(notebook_files)
    watchdog.reset()
    shutdown.close(shutdown.open_files(notebook_files), watchdog.reset)


def _wait_for_ranks(processes: Sequence[Any], pipes: Sequence[Connection]) -> list[RankOutcome]:
    """Wait for every rank; `PEER_GRACE_SECONDS` after a failure, stop waiting."""
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
    """Return the outcome sent by a rank, or one made from its exit code."""
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
    """Wait up to `EXIT_TIMEOUT_SECONDS` for failed ranks to close their files."""
    deadline = time.monotonic() + EXIT_TIMEOUT_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def _terminate(processes: Sequence[Any]) -> None:
    """End all ranks: SIGTERM, and SIGKILL after `TERMINATE_TIMEOUT_SECONDS`."""
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
    """Pickle the call for a new process: by cloudpickle, which supports notebooks, or pickle."""
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

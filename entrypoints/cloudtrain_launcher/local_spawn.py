"""A function run by several ranks from a notebook's cell, or from any Python program: forked, or spawned on GPUs.

The rules are the launcher's: the same variables, a store that knows no earlier attempt, threads shared between the
ranks, a world that is as large as was asked for, the first cause of a failure, nobody left behind. A fork sees what
the notebook has in memory and starts at once; CUDA survives none, so that GPUs get fresh processes.
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
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as multiprocessing
from torch.distributed import TCPStore  # type: ignore[attr-defined]

PEER_GRACE_SECONDS = 5.0
"""How long the others may go on when one has failed: they may wait for it for ever."""
TERMINATE_TIMEOUT_SECONDS = 30.0
"""From SIGTERM to SIGKILL."""
EXIT_TIMEOUT_SECONDS = 5
"""How long a rank that has failed may take to leave."""
JOB_MODULES = Path(__file__).parents[1] / "job"


class Outcome(NamedTuple):
    """How one rank ended."""

    value: Any = None
    error: Mapping[str, Any] | None = None
    """As an `error` event has it: rank, exception, message, traceback, time."""


def run(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    n_processes: int,
    *,
    entry: Callable[..., None],
    spawn: bool,
    flush: Callable[[], None],
) -> list[Outcome]:
    """Call the function once per rank and wait for all; the outcomes by rank.

    `fresh`: in new processes, not in forks of this one; ValueError when the function cannot travel to them. `enter`:
    what such a process can import, and which calls `live`. `flush`: writes the buffers of all files that are open: a
    fork would write them once more. KeyboardInterrupt stops all ranks first.
    """
    context: Any = multiprocessing.get_context("spawn" if spawn else "fork")
    call = _pickle_call(function, args, kwargs) if spawn else (function, args, kwargs)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # a port that nobody can take meanwhile
    processes: list[Any] = []
    pipes: list[Connection] = []
    flush()
    try:
        for rank in range(n_processes):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=entry, args=(call, theirs, rank_environment(rank, n_processes, store.port))
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        outcomes = _wait_for_ranks(processes, pipes)
        _join(processes)
        return outcomes
    finally:
        _terminate(processes)
        for pipe in pipes:
            pipe.close()


def rank_environment(rank: int, n_processes: int, port: int) -> dict[str, str]:
    """What a rank finds in its environment: as under torchrun, on one node."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
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
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // n_processes)),
        "CLOUDTRAIN_NODES": "1",
        "CLOUDTRAIN_NODE_RANK": "0",
        "CLOUDTRAIN_PROCESSES": str(n_processes),
    }


def run_rank(call: Any, pipe: Connection, variables: Mapping[str, str], shutdown: ModuleType) -> None:
    """The life of one rank. It leaves by `os._exit`: a fork must not run what the notebook has to do at its end.

    `shutdown`: the launcher's module of that name. What the function left open is written before the outcome is sent:
    who has that ends the rank.
    """
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's own process hears it, and stops all
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.path.insert(0, str(JOB_MODULES))
    atexit._clear()  # the notebook's, not ours
    known = shutdown.open_files()
    # OpenMP's threads are not there any more in a fork, and whoever waits for them waits for ever: one needs none.
    spawn = isinstance(call, bytes)
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]) if spawn else 1)
    code = 0
    try:
        function, args, kwargs = pickle.loads(call) if spawn else call
        outcome = ForkingPickler.dumps((function(*args, **kwargs), None))
    except BaseException as error:  # noqa: BLE001  (also SystemExit: whatever ended the function ends the rank)
        code = 1
        outcome = ForkingPickler.dumps((None, _error_fields(error, int(variables["RANK"]))))
        pipe.send_bytes(outcome)  # at once: its peers wait
        watch = threading.Timer(EXIT_TIMEOUT_SECONDS, os._exit, [code])
        watch.daemon = True
        watch.start()
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with suppress(BaseException):
            step()
    with suppress(BaseException):
        _close(known, shutdown, shutdown.Watchdog(code))
    if code == 0:
        with suppress(OSError):  # the notebook has gone
            pipe.send_bytes(outcome)
    os._exit(code)


def _error_fields(error: BaseException, rank: int) -> dict[str, Any]:
    """As an `error` event has it."""
    try:
        message = str(error)
    except Exception as trouble:  # noqa: BLE001  (any class, any mistake)
        message = f"<its __str__ raised {type(trouble).__name__}>"
    stack = traceback.extract_tb(error.__traceback__)
    told = {"rank": rank, "node": 0, "time": time.time(), "exception": type(error).__name__, "message": message}
    return told | {"traceback": traceback.format_exc(), "raised_in": stack[-1].filename if stack else ""}


def _close(known: Sequence[Any], shutdown: ModuleType, watchdog: Any) -> None:
    """Write what the rank has written into files of the notebook's, and close those of its own."""
    shutdown.flush(known)
    watchdog.step()
    shutdown.close(shutdown.open_files(known), watchdog.step)


def _wait_for_ranks(processes: Sequence[Any], pipes: Sequence[Connection]) -> list[Outcome]:
    """Wait for every rank; once one has failed the others get a little time, and are then ended."""
    found: dict[int, Outcome] = {}
    deadline: float | None = None
    while len(found) < len(processes):
        open_pipes = {pipes[rank]: rank for rank in range(len(processes)) if rank not in found}
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(open_pipes), seconds)
        if not ready:
            _terminate(processes)
            deadline = None
        for pipe in ready:
            rank = open_pipes[pipe]  # type: ignore[index]
            found[rank] = _receive(pipes[rank], processes[rank], rank)
            if found[rank].error and deadline is None:
                deadline = time.monotonic() + PEER_GRACE_SECONDS
    return [found[rank] for rank in range(len(processes))]


def _receive(pipe: Connection, process: Any, rank: int) -> Outcome:
    """What a rank has sent; one that died without a word has an exit code."""
    try:
        return Outcome(*pipe.recv())
    except EOFError:
        process.join()
        code = process.exitcode
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        told = {"rank": rank, "node": 0, "time": time.time(), "exception": "exit", "message": killed}
        return Outcome(error={**told, "consequence": code == -signal.SIGTERM})


def _join(processes: Sequence[Any]) -> None:
    """Those that have failed close their files now, and leave by themselves; the others have done it."""
    until = time.monotonic() + EXIT_TIMEOUT_SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))


def _terminate(processes: Sequence[Any]) -> None:
    """Nobody is left: asked first, then made to."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    until = time.monotonic() + TERMINATE_TIMEOUT_SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _pickle_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The call for fresh processes: by cloudpickle, which packs what a cell defines, or else by name."""
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        cloudpickle = pickle
    try:
        packed: bytes = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
        if cloudpickle is pickle and function.__module__ == "__main__":
            raise ValueError("it is defined in the notebook itself")
        return packed
    except Exception as error:
        message = f"the function cannot travel to the GPUs' fresh processes: {error}"
        raise ValueError(f"{message}; pip install cloudpickle, or put it into a module and import it") from error

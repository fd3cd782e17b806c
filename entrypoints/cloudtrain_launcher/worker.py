"""One rank: runs the program like `python program`, and reports its start, error and end.

torchrun starts this file instead of the program; the launcher does for a command and for the only
rank of a job. Standard library only: whether to import torch is up to the program.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import linecache
import os
import re
import runpy
import signal
import sys
import threading
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

# Started by its path: import from the folder of the package, not from this one.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cloudtrain_launcher import shutdown
from cloudtrain_launcher.command import replace_process
from cloudtrain_launcher.contract import (
    COMMAND,
    JOB_FILE,
    PAYLOAD_DIR,
    STREAM_DIR,
    STREAM_KEY,
    Job,
    read_job,
)
from cloudtrain_launcher.environment import expand_placeholders
from cloudtrain_launcher.error_details import MAX_MESSAGE_CHARS, describe, full_disk_hint, safe_str
from cloudtrain_launcher.keyboard import keyboard_of
from cloudtrain_launcher.stacks import write_on_request
from cloudtrain_launcher.step_timings import report_steps
from cloudtrain_wire.events import Error, Event, RankEnded, RankStarted
from cloudtrain_wire.notebook_code import INSTALLS, plain_code
from cloudtrain_wire.parent_death import set_parent_death_signal
from cloudtrain_wire.ports import free_port

if find_spec("cloudtrain_job") is None:  # in a job this folder is already last in PYTHONPATH
    sys.path.append(str(PAYLOAD_DIR / "job"))

import cloudtrain_job

TORCHRUN_SIGNALS: Mapping[signal.Signals, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
}
"""Signals that torchrun passes on, with their handlers in a new rank.

torchrun's children start with the defaults, even below a parent that ignores them (nohup).
"""

WORKING_DIR = Path.cwd()
"""The job's working folder, even if the program changes to another."""

_rank_pid = os.getpid()
"""Process id of the rank: a fork of the program returns here too and must report nothing."""

NOT_EXECUTED = 127
"""Exit code if a command cannot be run, as in a shell."""

EXIT_DEADLINE_SECONDS = 5
"""Maximum time for a failed rank's exit: its peers wait in a collective."""


def main(parent: int) -> NoReturn:
    """Run the job's program as this rank; exit with its code, 1 after an uncaught exception.

    `parent`: id of the process that started this one; this process ends with it.
    """
    global _rank_pid
    _rank_pid = os.getpid()
    set_parent_death_signal(parent)
    job = read_job(os.environ[JOB_FILE])
    job = replace(job, argv=expand_placeholders(job.argv, os.environ))
    _redirect_output(
        os.environ[STREAM_DIR], int(os.environ["LOCAL_RANK"]), os.environ.pop(STREAM_KEY, "")
    )
    write_on_request(os.environ[STREAM_DIR], int(os.environ["LOCAL_RANK"]))
    if job.kind != COMMAND:
        reset_signals()

    if os.environ["WORLD_SIZE"] == "1":
        _use_own_store()

    shutdown.keep_destroyed_groups()
    if job.timings and job.kind != "trainer":
        with suppress(Exception):
            report_steps()

    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    emit(RankStarted(local_rank=int(os.environ["LOCAL_RANK"]), attempt=attempt, pid=os.getpid()))
    if job.kind == COMMAND:
        problem = replace_process(job, WORKING_DIR)
        emit(Error(attempt=attempt, exception="exit", message=problem))
        _exit(NOT_EXECUTED)

    keyboard = keyboard_of(job)
    try:
        _check_world(job)
        run(job)
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
        if code:
            if isinstance(error.code, str):
                message = error.code
            else:
                message = f"exited with code {code}"

            emit(
                Error(attempt=attempt, exception="SystemExit", message=message[:MAX_MESSAGE_CHARS])
            )
    except BaseException as error:  # noqa: BLE001  (whatever ends the program is reported)
        code = 1
        if keyboard is not None and keyboard.is_left_by(error):
            message = "ended at the debugger's prompt"
            emit(Error(attempt=attempt, exception="SystemExit", message=message))
        else:
            _report_error(error, attempt)

    if (
        code == 0
        and job.require_group
        and _group_size() < int(os.environ["WORLD_SIZE"])
        and os.getpid() == _rank_pid
    ):
        code = 1
        message = (
            "ended without having joined one torch.distributed group with all others"
            " (launch.require_group)"
        )
        emit(Error(attempt=attempt, exception="NoProcessGroup", message=message))

    _exit(code)


def reset_signals() -> None:
    """Give this process the handlers of a new rank."""
    for signum, handler in TORCHRUN_SIGNALS.items():
        signal.signal(signum, handler)


def emit(event: Event) -> None:
    """Send an event of this rank to the launcher; do nothing in a fork of the program."""
    if os.getpid() == _rank_pid:
        cloudtrain_job.emit_event(event)


def run(job: Job) -> None:
    """Run the program as `__main__` of this process; let its exceptions pass through."""
    if job.kind == "module":
        sys.argv = [job.target, *job.argv]
        sys.path[0] = str(WORKING_DIR)
        runpy.run_module(job.target, run_name="__main__", alter_sys=True)
        return

    if job.kind == "trainer":
        path = PAYLOAD_DIR / "train.py"
    else:
        path = WORKING_DIR / job.target

    sys.argv = [job.target or str(path), *job.argv]
    sys.path[0] = str(path.parent)
    program = types.ModuleType("__main__")
    program.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    # It stays: threads and processes of the program may still look up `__main__`.
    sys.modules["__main__"] = program

    if job.kind == "notebook":
        run_notebook(path, program.__dict__)
    else:
        # dont_inherit: the `from __future__` of this file must not apply to the program.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), program.__dict__)  # noqa: S102


def run_notebook(path: Path, namespace: dict[str, Any]) -> None:
    """Execute a notebook's code cells in `namespace`; a traceback shows the cell and its line.

    Interactive lines (`%magic`, `!command`, `pip install`, `print?`) are left out and printed to
    standard error; `display` prints. Raise ValueError or LookupError if the file is not a notebook.
    """
    namespace["display"] = _display
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    codes = (cell for cell in cells if cell.get("cell_type") == "code")

    for number, cell in enumerate(codes, 1):
        if isinstance(cell["source"], str):
            source = cell["source"]
        else:
            source = "".join(cell["source"])

        name = f"{path}[cell {number}]"
        code, left_out = plain_code(source)
        for line in left_out:
            _print_left_out(name, line)

        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        exec(compile(code, name, "exec", dont_inherit=True), namespace)  # noqa: S102


def _display(*values: Any, **_: Any) -> None:
    """Print values, as a replacement for IPython's `display`."""
    for value in values:
        print(value if isinstance(value, str) else repr(value), flush=True)


def _print_left_out(name: str, line: str) -> None:
    print(f"{name}: left out {line!r}: a notebook's magic does not run in a job", file=sys.stderr)
    if re.match(INSTALLS, line):
        print("name packages in requirements.txt beside it, or in dependencies", file=sys.stderr)


def _redirect_output(folder: str, local_rank: int, key: str) -> None:
    """Redirect all output, of C++ and child processes too, into the pipe to the launcher.

    A crash below Python (SIGSEGV, SIGABRT, ...) prints the Python stack there, too.
    """
    pipe = os.open(os.path.join(folder, f"rank-{local_rank}"), os.O_WRONLY)  # noqa: PTH118
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)
    cloudtrain_job.set_output(pipe, key)
    faulthandler.enable(pipe)


def _use_own_store() -> None:
    """Make a job's only rank create its store itself, as without torchrun.

    Its child processes, as ranks of another port, would otherwise wait for torchrun's store there.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        os.environ["MASTER_PORT"] = str(free_port())


def _check_world(job: Job) -> None:
    """Reject a wrong world size: each node would train a separate model."""
    expected = job.nodes * job.processes
    world = int(os.environ["WORLD_SIZE"])

    if world != expected:
        raise RuntimeError(
            f"the world has {world} ranks, the plan says {job.nodes} nodes x {job.processes}"
            f" processes = {expected}"
        )


def _group_size() -> int:
    """Return the largest size of this process's torch.distributed groups; 0: it used none."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return 1 if os.environ["WORLD_SIZE"] == "1" else 0

    try:
        if c10d.is_initialized():
            if _are_unused(c10d):
                return 0

            return int(c10d.get_world_size())

        # Traces of init_process_group after the group's end.
        hooked = getattr(sys.excepthook, "__module__", "") == c10d.__name__
        joined = hooked or getattr(c10d, "_default_pg_init_method", None) is not None
    except Exception:  # noqa: BLE001  (a torch that is built otherwise: no alarm that may be false)
        joined = True

    if not joined:
        return 0

    return int(os.environ["WORLD_SIZE"])


def _are_unused(c10d: Any) -> bool:
    """Return whether no data was exchanged in any existing group; False if unknown.

    Accelerate joins a group on nodes without GPUs, and then trains as if it were alone.
    """
    major, minor = sys.modules["torch"].__version__.split(".")[:2]
    if (int(major), int(minor)) < (2, 6):  # earlier ones do not all count
        return False

    groups = list(c10d._world.pg_map)

    return all(
        group.name() == "gloo" and group._get_sequence_number_for_group() == 0 for group in groups
    )


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0

    print(safe_str(error.code), file=sys.stderr)
    return 1


def _report_error(error: BaseException, attempt: int) -> None:
    """Send the error as an event, then print it as Python would, without the launcher's frames."""
    frames = error.__traceback__
    while frames is not None and _is_launcher_frame(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next

    error = error.with_traceback(frames)
    described = describe(error, frames, WORKING_DIR, PAYLOAD_DIR).replace(attempt=attempt)
    hint = full_disk_hint(error, os.environ)
    emit(described.replace(hint=hint) if hint else described)

    try:
        # The program's own hook, such as a crash reporter's.
        sys.excepthook(type(error), error, frames)
    except Exception:  # noqa: BLE001  (a hook that is broken must not hide the error)
        sys.__excepthook__(type(error), error, frames)


def _is_launcher_frame(filename: str) -> bool:
    return filename.startswith((f"{Path(__file__).parent}{os.sep}", "<frozen runpy"))


def _exit(code: int) -> NoReturn:
    """Exit like the interpreter, but skip the teardown of C++ statics.

    Threads are joined, exit handlers run, objects collected and files closed. The teardown
    sometimes ends a finished rank by SIGABRT (pytorch/pytorch#190489), and with it the job.
    """
    watchdog = shutdown.Watchdog(code, EXIT_DEADLINE_SECONDS) if code else None
    for step in (threading._shutdown, atexit._run_exitfuncs, _flush_output):  # type: ignore[attr-defined]
        with suppress(BaseException):  # each prints its own error; the next step must still run
            step()

    emit(RankEnded(exitcode=code, group=_group_size()))
    with suppress(BaseException):
        _finalize(watchdog or shutdown.Watchdog(code))

    os._exit(code)


def _finalize(watchdog: shutdown.Watchdog) -> None:
    """Flush buffers, collect the program's objects and close its open files."""
    threading.excepthook = lambda _: None  # a running daemon thread loses its globals and files
    files = shutdown.open_files()
    shutdown.flush(files)
    watchdog.reset()
    shutdown.clear_modules(_program_modules())
    watchdog.reset()
    by_id = {id(file): file for file in files + shutdown.open_files()}
    shutdown.close(by_id.values(), watchdog.reset)


def _program_modules() -> list[str]:
    """Return the working folder's modules; `__main__` too, unless it is this file."""
    names = []

    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        is_below = isinstance(file, str) and str(WORKING_DIR / file).startswith(
            f"{WORKING_DIR}{os.sep}"
        )
        is_foreign = "site-packages" in str(file) or str(file).startswith(f"{PAYLOAD_DIR}{os.sep}")
        if is_below and not is_foreign and module.__dict__ is not globals():
            names.append(name)

    return names


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    main(os.getppid())

"""One rank: runs the user's program as `python program` would, and tells how it began and how it ended.

torchrun starts this file in place of the program. Standard library only: torch is the program's own business.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import linecache
import os
import runpy
import sys
import threading
import types
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":  # started by its path: in place of this folder, the one that the package is in
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cloudtrain_launcher import shutdown
from cloudtrain_launcher.contract import JOB_FILE, PAYLOAD_DIR, STREAM_DIR, STREAM_KEY, Job, read_job
from cloudtrain_launcher.environment import expand_placeholders
from cloudtrain_launcher.error_details import MAX_MESSAGE_CHARS, describe, safe_str
from cloudtrain_launcher.events import Error, Event, RankEnded, RankStarted
from cloudtrain_launcher.host import set_parent_death_signal

if find_spec("cloudtrain_job") is None:  # the launcher has put it last on the path
    sys.path.append(str(PAYLOAD_DIR / "job"))

import cloudtrain_job

WORKING_DIR = Path.cwd()
"""The job's working folder, whatever folder the program changes to."""

RANK_PID = os.getpid()
"""A process that the program forks comes back here when it ends; it is not the rank, and tells nothing."""

EXIT_DEADLINE_SECONDS = 5
"""A failed rank leaves within this time: its peers wait in a collective until it is gone."""


def main() -> NoReturn:
    """Run the job's program as this rank and leave with its exit code."""
    set_parent_death_signal(os.getppid())
    job = read_job(os.environ[JOB_FILE])
    job = replace(job, argv=expand_placeholders(job.argv, os.environ))
    _redirect_output(os.environ[STREAM_DIR], int(os.environ["LOCAL_RANK"]), os.environ.pop(STREAM_KEY, ""))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    emit(RankStarted(local_rank=int(os.environ["LOCAL_RANK"]), attempt=attempt, pid=os.getpid()))
    try:
        _check_world(job)
        run(job)
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
        if code:
            message = error.code if isinstance(error.code, str) else f"exited with code {code}"
            emit(Error(attempt=attempt, exception="SystemExit", message=message[:MAX_MESSAGE_CHARS]))
    except BaseException as error:  # noqa: BLE001  (whatever ends the program is reported)
        code = 1
        _report_error(error, attempt)
    if code == 0 and job.require_group and _group_size() < int(os.environ["WORLD_SIZE"]) and os.getpid() == RANK_PID:
        code = 1
        message = "ended without having joined one torch.distributed group with all others (launch.require_group)"
        emit(Error(attempt=attempt, exception="NoProcessGroup", message=message))
    _exit(code)


def emit(event: Event) -> None:
    """Tell the launcher of this rank."""
    if os.getpid() == RANK_PID:
        cloudtrain_job.emit_event(event)


def run(job: Job) -> None:
    """Run the program in this process, as its `__main__`."""
    if job.kind == "module":
        sys.argv, sys.path[0] = [job.target, *job.argv], str(WORKING_DIR)
        runpy.run_module(job.target, run_name="__main__", alter_sys=True)
        return
    path = PAYLOAD_DIR / "train.py" if job.kind == "trainer" else WORKING_DIR / job.target
    sys.argv, sys.path[0] = [job.target or str(path), *job.argv], str(path.parent)
    program = types.ModuleType("__main__")
    program.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    # For good, not for the time of the call: threads and processes it leaves behind look it up by this name.
    sys.modules["__main__"] = program
    if job.kind == "notebook":
        run_notebook(path, program.__dict__)
    else:
        # A program inherits no `from __future__` of ours: its annotations are what it says they are.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), program.__dict__)  # noqa: S102


def run_notebook(path: Path, namespace: dict[str, Any]) -> None:
    """Execute every code cell in one namespace; a traceback names the cell and shows its line.

    Lines that only an interactive session understands (`%magic`, `!command`, `%%cell magic`) are left out, and
    the log says which.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    codes = (cell for cell in cells if cell.get("cell_type") == "code")
    for number, cell in enumerate(codes, 1):
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        name = f"{path}[cell {number}]"
        code = _strip_magics(source, name)
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        exec(compile(code, name, "exec", dont_inherit=True), namespace)  # noqa: S102


def _strip_magics(source: str, name: str) -> str:
    lines = source.splitlines()
    if lines and lines[0].startswith("%%"):
        _print_skipped(name, lines[0], "the whole cell")
        return ""
    for index, line in enumerate(lines):
        if line.lstrip().startswith(("%", "!")):
            _print_skipped(name, line.strip(), "the line")
            lines[index] = line[: len(line) - len(line.lstrip())] + "pass"
    return "\n".join(lines) + "\n"


def _print_skipped(name: str, line: str, what: str) -> None:
    print(f"{name}: left out {what} {line!r}: a notebook's magic does not run in a job", file=sys.stderr)


def _redirect_output(folder: str, local_rank: int, key: str) -> None:
    """Print into this rank's own pipe to the launcher from now on, C++ libraries and child processes included.

    A crash below Python (SIGSEGV, SIGABRT, ...) prints the Python stack there, too.
    """
    pipe = os.open(os.path.join(folder, f"rank-{local_rank}"), os.O_WRONLY)  # noqa: PTH118
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)
    cloudtrain_job.set_output(pipe, key)
    faulthandler.enable(pipe)


def _check_world(job: Job) -> None:
    """A world of its own on every node trains as many models, and nobody notices: refuse it."""
    expected, world = job.nodes * job.processes, int(os.environ["WORLD_SIZE"])
    if world != expected:
        raise RuntimeError(
            f"the world has {world} ranks, the plan says {job.nodes} nodes x {job.processes} processes = {expected}"
        )


def _group_size() -> int:
    """How many processes this one is, or was, in a torch.distributed group with; 0: none ever."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return 1 if os.environ["WORLD_SIZE"] == "1" else 0
    try:
        if c10d.is_initialized():
            return int(c10d.get_world_size())
        # What init_process_group leaves behind when the group has been destroyed again.
        hooked = getattr(sys.excepthook, "__module__", "") == c10d.__name__
        joined = hooked or getattr(c10d, "_default_pg_init_method", None) is not None
    except Exception:  # noqa: BLE001  (a torch that is built otherwise: no alarm that may be false)
        joined = True
    return int(os.environ["WORLD_SIZE"]) if joined else 0


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(safe_str(error.code), file=sys.stderr)
    return 1


def _report_error(error: BaseException, attempt: int) -> None:
    """Send the error as an event, then let it be shown as Python would show it, without our own frames."""
    frames = error.__traceback__
    while frames is not None and _is_launcher_frame(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    error = error.with_traceback(frames)
    emit(describe(error, frames, WORKING_DIR, PAYLOAD_DIR).replace(attempt=attempt))
    try:
        sys.excepthook(type(error), error, frames)  # the program's own, if it has set one: crash reporters live there
    except Exception:  # noqa: BLE001  (a hook that is broken must not hide the error)
        sys.__excepthook__(type(error), error, frames)


def _is_launcher_frame(filename: str) -> bool:
    return filename.startswith((f"{Path(__file__).parent}{os.sep}", "<frozen runpy"))


def _exit(code: int) -> NoReturn:
    """End as the interpreter would (threads joined, exit handlers run, objects collected, files closed), but skip
    the teardown of C++ statics.

    There a rank that did all its work dies now and then by SIGABRT (pytorch/pytorch#190489), and the job with it.
    """
    if code:
        watch = threading.Timer(EXIT_DEADLINE_SECONDS, os._exit, [code])
        watch.daemon = True
        watch.start()
    for step in (threading._shutdown, atexit._run_exitfuncs, _flush_output):  # type: ignore[attr-defined]
        with suppress(BaseException):  # each says itself what went wrong; the next is due all the same
            step()
    emit(RankEnded(exitcode=code, group=_group_size()))
    with suppress(BaseException):
        _finalize(code)
    os._exit(code)


def _finalize(code: int) -> None:
    """Collect the program's objects and close what it left open; first of all, write what is buffered."""
    threading.excepthook = lambda _: None  # a daemon thread that still runs finds its globals and files gone
    watchdog = shutdown.Watchdog(code)
    files = shutdown.open_files()
    shutdown.flush(files)
    watchdog.step()
    shutdown.clear_modules(_program_modules())
    watchdog.step()
    shutdown.close({id(file): file for file in (*files, *shutdown.open_files())}.values(), watchdog.step)


def _program_modules() -> list[str]:
    """The names of the modules that lie in the job's folder; `__main__` too, unless it is this file."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        inside = isinstance(file, str) and str(WORKING_DIR / file).startswith(f"{WORKING_DIR}{os.sep}")
        foreign = "site-packages" in str(file) or str(file).startswith(f"{PAYLOAD_DIR}{os.sep}")
        if inside and not foreign and module.__dict__ is not globals():
            found.append(name)
    return found


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    main()

"""One rank: runs the user's program as `python program` would, and tells how it began and how it ended.

torchrun starts this file in place of the program. Standard library only: torch is the program's own business.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import types
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from contract import JOB_FILE, PAYLOAD, STREAM_DIR, Job, filled, read_job
from failure import is_consequence
from lifeline import die_with
from notebook import run_notebook

if find_spec("cloudtrain_job") is None:  # the launcher has put it last on the path
    sys.path.append(str(PAYLOAD / "job"))

from cloudtrain_job import emit, send_through

FOLDER = Path.cwd()
"""The job's working folder, whatever folder the program changes to."""

OURS = ("contract", "failure", "lifeline", "notebook")

EXIT_DEADLINE_SECONDS = 5
"""A failed rank leaves within this time: its peers wait in a collective until it is gone."""


def main() -> NoReturn:
    """Run the job's program as this rank and leave with its exit code."""
    die_with(os.getppid())
    job = read_job(os.environ[JOB_FILE])
    job = replace(job, argv=filled(job.argv, os.environ))
    _join_stream(os.environ[STREAM_DIR], int(os.environ["LOCAL_RANK"]))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    emit("rank_started", local_rank=int(os.environ["LOCAL_RANK"]), attempt=attempt, pid=os.getpid())
    try:
        _check_world(job)
        run(job)
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
        if code:
            said = error.code if isinstance(error.code, str) else f"exited with code {code}"
            emit("error", attempt=attempt, exception="SystemExit", message=said[:1000])
    except BaseException as error:  # noqa: BLE001  (whatever ends the program is reported)
        code = 1
        _report(error, attempt)
    _leave(code)


def run(job: Job) -> None:
    """Run the program in this process, as its `__main__`."""
    for name in OURS:
        sys.modules.pop(name, None)  # a program may have modules of these names: its own must be found
    if job.kind == "module":
        sys.argv, sys.path[0] = [job.target, *job.argv], str(FOLDER)
        runpy.run_module(job.target, run_name="__main__", alter_sys=True)
        return
    path = PAYLOAD / "train.py" if job.kind == "trainer" else FOLDER / job.target
    sys.argv, sys.path[0] = [job.target or str(path), *job.argv], str(path.parent)
    program = types.ModuleType("__main__")
    program.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    # For good, not for the time of the call: threads and processes it leaves behind look it up by this name.
    sys.modules["__main__"] = program
    if job.kind == "notebook":
        run_notebook(path, program.__dict__)
    else:
        exec(compile(path.read_bytes(), str(path), "exec"), program.__dict__)  # noqa: S102


def _join_stream(folder: str, local_rank: int) -> None:
    """Print into this rank's own pipe to the launcher from now on, C++ libraries and child processes included."""
    pipe = os.open(os.path.join(folder, f"rank-{local_rank}"), os.O_WRONLY)  # noqa: PTH118
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)
    send_through(pipe)


def _check_world(job: Job) -> None:
    """A world of its own on every node trains as many models, and nobody notices: refuse it."""
    expected, world = job.nodes * job.processes, int(os.environ["WORLD_SIZE"])
    if world != expected:
        raise RuntimeError(
            f"the world has {world} ranks, the plan says {job.nodes} nodes x {job.processes} processes = {expected}"
        )


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _report(error: BaseException, attempt: int) -> None:
    """Send the error as an event, then let it be shown as Python would show it, without our own frames."""
    import traceback

    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    error = error.with_traceback(frames)
    stack = traceback.extract_tb(frames)
    here = next((frame for frame in reversed(stack) if _is_users(frame.filename)), stack[-1] if stack else None)
    exception = type(error).__name__
    emit(
        "error",
        attempt=attempt,
        exception=exception,
        message=str(error)[:1000],
        file=os.path.relpath(FOLDER / here.filename, FOLDER) if here else getattr(error, "filename", None),
        line=here.lineno if here else getattr(error, "lineno", None),
        code=(here.line or "")[:200] if here else (getattr(error, "text", "") or "").strip()[:200],
        traceback="".join(traceback.format_exception(error))[-2500:],
        consequence=is_consequence(exception, str(error)),
    )
    try:
        sys.excepthook(type(error), error, frames)  # the program's own, if it has set one: crash reporters live there
    except Exception:  # noqa: BLE001  (a hook that is broken must not hide the error)
        sys.__excepthook__(type(error), error, frames)


def _is_ours(filename: str) -> bool:
    return filename in (__file__, str(PAYLOAD / "notebook.py")) or filename.startswith("<frozen runpy")


def _is_users(filename: str) -> bool:
    """In the job's working folder, and neither ours nor in an environment installed inside it."""
    inside = str(FOLDER / filename).startswith(f"{FOLDER}{os.sep}")
    return inside and "site-packages" not in filename and not filename.startswith(str(PAYLOAD))


def _leave(code: int) -> NoReturn:
    """End as the interpreter would (threads joined, exit handlers run), but skip the teardown of C++ statics.

    There a rank that did all its work dies now and then by SIGABRT (pytorch/pytorch#190489), and the job with it.
    """
    if code:
        watch = threading.Timer(EXIT_DEADLINE_SECONDS, os._exit, [code])
        watch.daemon = True
        watch.start()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        emit("rank_ended", exitcode=code)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

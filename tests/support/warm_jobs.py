"""For `CommandLine.modules`: drivers of sweeps, supervisor, launcher and torchrun's agent are forks
of a process that has imported torch.

They have the parents, sessions, variables, streams and signals of every local run; only no
interpreter starts in them, and they import no module again, which is most of the cost of a small
job. Every `CommandLine` without this module shows that they start as new processes too. Ranks start
as usual: from the agent.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import io
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

MODULES = ("torch._dynamo", "torch.distributed.run", "torch.distributed.elastic.agent.server")
"""Slow imports of agents, and of ranks of the shared trainer."""
READ_AT_START = (
    "PYTHON",
    "COVERAGE_",
    "LD_",
    "LC_",
    "LANG",
    "TZ",
    "MALLOC_",
    "GLIBC_",
    "TORCH",
    "PYTORCH_",
    "MKL_",
)
"""Prefixes of variables that an interpreter or torch reads when it starts: with others, a new
process it is.
"""
HEEDED = (
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "LANG", "OMP_NUM_THREADS"),
    *("TORCHELASTIC_", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
)
"""Those of them that a fork heeds, that are read later, or that change nothing here: without LANG
it is UTF-8 too.
"""
AGENT = "/cloudtrain_launcher/agent.py"
LAUNCHER = ".cloudtrain"
CLIENT = "from cloudtrain.providers."
SWEEP_DRIVER = "cloudtrain.sweeps.background"
NAMESPACE = "/rehearsal/namespace.py"
"""Becomes a rehearsal's container, and then the program that starts there."""
SHELL = "/bin/sh"
EXECUTES = " && exec python3 "
"""Shell of a rehearsal as Azure ML, and the end of its command after the exported variables."""

_programs = Path(
    sys.executable
).parent  # here; a launcher that has installed packages changes its own
_execvpe = os.execvpe
_execv = os.execv
_fork_exec: Any = getattr(subprocess, "_fork_exec")  # noqa: B009  (private: what Popen calls to start a process)
_paths = [
    path for path in sys.path[1:] if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)
]


def fork_or_exec(argv: Sequence[str], *options: Any) -> int:
    """Start a process of a local run as a fork of this one, and any other as `subprocess` does; its
    process id.
    """
    variables = _variables(options[4])
    if (
        not _is_of_a_run(list(map(os.fsdecode, argv)), variables)
        or _read_at_start(variables) != _at_start
    ):
        pid: int = _fork_exec(argv, *options)
        return pid
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become(list(map(os.fsdecode, argv)), variables, options)
    return pid


def _is_of_a_run(argv: Sequence[str], variables: Mapping[str, str]) -> bool:
    if argv[0] == SHELL:
        return EXECUTES in argv[-1] and LAUNCHER in argv[-1]
    program = shutil.which(argv[0], path=variables.get("PATH")) or ""
    if Path(program).parent != _programs:
        return False
    match list(argv[1:]):
        case ["-c", text, *_] | ["-u", "-c", text, *_]:
            return CLIENT in text or LAUNCHER in text
        case ["-P", "-m", module, _]:
            return module == SWEEP_DRIVER
        case ["-u", path, *_]:
            return path.endswith((AGENT, LAUNCHER))
        case ["-I", "-S", path, root, *_]:
            return path.endswith(NAMESPACE) and root != "--probe"
    return False


def _variables(entries: Sequence[bytes] | None) -> dict[str, str]:
    if entries is None:
        return dict(os.environ)
    parts = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in parts}


def _read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        k: v
        for k, v in variables.items()
        if k.startswith(READ_AT_START) and not k.startswith(HEEDED)
    }


def _become(argv: Sequence[str], variables: Mapping[str, str], options: Sequence[Any]) -> NoReturn:
    """In the fork: be what an interpreter with these arguments is, and end."""
    code = 1
    try:
        _, _, cwd, _, stdin, _, _, stdout, _, stderr, *_ = options[1:]
        new_session = options[14]
        umask = options[-3]
        if cwd is not None:
            os.chdir(cwd)
        for descriptor, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
            if descriptor != -1:
                os.dup2(descriptor, number)
        os.closerange(3, 4096)
        if umask >= 0:
            os.umask(umask)
        if new_session:
            os.setsid()
        _forget_the_parent(variables)
        show_in_proc(argv, variables)
        code = _run(argv, variables)
    except BaseException:  # noqa: BLE001  (shown where the process writes its errors, whatever it is)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _forget_the_parent(variables: Mapping[str, str]) -> None:
    """Handlers of signals and of the end, streams and variables are a new process's."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    getattr(weakref.finalize, "_registry").clear()  # noqa: B009  (else a parent's scratch folder ends with its child)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", errors, write_through=True)
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    frame: types.FrameType | None = sys._getframe()
    # torchrun asks for its stack at each rendezvous; without this, inspect seeks these in all
    # modules
    while frame:
        getattr(inspect, "modulesbyfile")[inspect.getabsfile(frame)] = ""  # noqa: B009
        frame = frame.f_back


def _run(argv: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the program to its end; its exit code."""
    if argv[0] == SHELL:
        exports, _, words = argv[-1].partition(EXECUTES)
        shown = subprocess.run(
            [SHELL, "-c", f"{exports} && env -0"], stdout=subprocess.PIPE, check=True
        ).stdout
        entries = (entry.partition(b"=") for entry in shown.split(b"\0") if entry)
        execute(
            "python3", ["python3", *shlex.split(words)], {name: value for name, _, value in entries}
        )
    flags = list(takewhile(lambda word: word.startswith("-"), argv[1:]))
    program, *arguments = argv[1 + len(flags) :]
    sys.orig_argv = list(argv)
    search = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    if {"-I", "-c", "-m"} & set(flags):
        setattr(os, "execvpe", execute)  # noqa: B010
        setattr(os, "execv", lambda file, words: execute(file, words, os.environb))  # noqa: B010
    else:
        setattr(os, "execvpe", _execvpe)  # noqa: B010
        setattr(os, "execv", _execv)  # noqa: B010
        for name in [
            name for name in sys.modules if name.partition(".")[0].startswith("cloudtrain")
        ]:
            del sys.modules[name]  # the job's variables are in its folder
    if program.endswith(AGENT):
        setattr(subprocess, "_fork_exec", _fork_exec)  # noqa: B010  (ranks and their children are new processes)
    try:
        if "-c" in flags:
            sys.path[:] = ["", *search, *_paths]
            sys.argv = ["-c", *arguments]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(program, main.__dict__)  # noqa: S102
        else:
            sys.path[:] = [*search, *_paths]
            sys.argv = [program, *arguments]
            if "-m" in flags:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
                raise SystemExit
            if program.endswith(AGENT):
                sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    getattr(threading, "_shutdown")()  # noqa: B009  (waits for threads, as the end of an interpreter does)
    atexit._run_exitfuncs()
    return code


def execute(file: str, argv: Sequence[str], env: Mapping[bytes, bytes]) -> NoReturn:
    """Do the work of `os.execvpe`, without a new interpreter for a program of a local run."""
    variables = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
    if not _is_of_a_run([file, *argv[1:]], variables):
        _execvpe(file, list(argv), env)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(variables)
    show_in_proc(argv, variables)
    code = _run(argv, variables)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def show_in_proc(argv: Sequence[str], variables: Mapping[str, str]) -> None:
    """Write these over the process's arguments and variables in /proc, where its run is looked up.
    Raise MemoryError if they do not fit: a command server starts with spare room.
    """
    places = list(map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]))
    texts = (argv, [f"{name}={value}" for name, value in variables.items()])
    for begin, end, lines in zip(places[::2], places[1::2], texts, strict=True):
        text = b"".join(os.fsencode(line) + b"\0" for line in lines)
        if len(text) > end - begin:
            raise MemoryError(f"{len(text)} bytes do not fit into {end - begin}")
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, len(text))


_at_start = _read_at_start(os.environ)  # before torch sets some
os.environ["OMP_NUM_THREADS"] = (
    "1"  # the library starts no threads, and none may be there at a fork
)
for name in MODULES:
    import_module(name)
del os.environ["OMP_NUM_THREADS"]
setattr(subprocess, "_fork_exec", fork_or_exec)  # noqa: B010

"""Rules for forking the ranks from a process that has imported torch. Standard library only.

A forked rank must behave like `python program`. It does not if the program changes variables that
torch reads at its import, if a module of its folder has the name of an imported one, or if the
process has threads or CUDA, which a fork does not inherit.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

MAX_FILES = 2000
MAX_FILE_BYTES = 1_000_000
"""Maximum number and size of files to read; programs written by people are smaller."""

_READ_BY_TORCH = (
    rb"(?:OMP|MKL|KMP|GOMP|OPENBLAS|GOTO|BLIS|NUMEXPR|NPY|MKLDNN|DNNL|ONEDNN|PYTORCH|ATEN|KINETO"
    rb"|LD|MALLOC|TORCHDYNAMO|TORCHINDUCTOR|TRITON)_\w+"
    rb"|TORCH_(?!NCCL_|FR_|HOME|EXTENSIONS_DIR|CUDA_ARCH_LIST)\w+"
)
"""Variables that torch, or a library that it loads, may read at its import."""
_ONLY_READS = (b"get(", b"getenv(", b"= os.environ[", b"if os.environ[", b"(os.environ[")
"""What stands before a variable's name where a program only reads it."""
# In a notebook's JSON, quotes are escaped.
_NAMES_VARIABLE = re.compile(
    rb"(?:[\"']"
    + b"".join(rb"(?<!" + re.escape(before) + rb"[\"'])" for before in _ONLY_READS)
    + rb"|[(,]\s*)("
    + _READ_BY_TORCH
    + rb")(?:\\?[\"']|\s*=(?!=))"
)
"""Name in quotes or of a keyword argument, wherever it is: programs also set variables in loops."""
_IMPORTS_FIRST = re.compile(
    rb"^[ \t\"]*(?:import|from)[ \t]+(tensorflow|jax|paddle|mxnet)\b", re.MULTILINE
)
"""Libraries with their own OpenMP, protobuf or CUDA, which may require an import before torch."""
_USES_DYNAMO = re.compile(rb"optim|\bcompile\b|[Tt]rainer\b")


def read_source(program: Path | None, folder: Path) -> dict[Path, bytes]:
    """Return the program and the Python files of its folder, without installed packages.

    `program`: None for one that is known not to need new processes.
    """
    return {path: _read(path) for path in _source_files(program, folder)}


def reason_in_source(source: Mapping[Path, bytes], folder: Path) -> str:
    """Return why a program needs new processes; empty if a fork is fine.

    `source`: the result of `read_source`.
    """
    if sys.platform != "linux":
        return "forks are safe on Linux only"
    if os.environ.get("PYTHON_EXEC", sys.executable) != sys.executable:
        return "PYTHON_EXEC names another interpreter"

    for path, text in source.items():
        match = _NAMES_VARIABLE.search(text)
        if match:
            return (
                f"{_location(path, folder, text, match)} sets {match[1].decode()}, which is read"
                " when torch is imported"
            )

        match = _IMPORTS_FIRST.search(text)
        if match:
            return (
                f"{_location(path, folder, text, match)} imports {match[1].decode()}, which may"
                " need to come before torch"
            )

    return ""


def uses_dynamo(source: Mapping[Path, bytes]) -> bool:
    """Return whether a program probably imports torch._dynamo: to compile, or by an optimizer."""
    return any(_USES_DYNAMO.search(text) for text in source.values())


def reason_in_process(program_dirs: Iterable[Path]) -> str:
    """Return why this process, which has imported torch, must not fork; empty if it may.

    `program_dirs`: folders of the program's own modules. The check may fork this process once:
    OpenBLAS, which starts threads when NumPy is imported, ends them before a fork, and each process
    starts new ones on demand.
    """
    if _threads() > 1:
        _fork_and_exit()
    if _threads() > 1:
        return f"importing torch has started {_threads() - 1} threads"
    if b"/libcuda.so" in _read(Path("/proc/self/maps"), limit=-1):
        return "importing torch has loaded the CUDA driver"

    shadowed = next(filter(None, map(_shadowed_module, program_dirs)), "")
    if shadowed:
        return f"{shadowed} has the name of a module that has been imported with torch"

    return ""


def _source_files(program: Path | None, folder: Path) -> Iterator[Path]:
    if program is not None:
        yield program

    remaining = MAX_FILES

    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith((".", "__")) and name != "site-packages"
        ]
        for name in names:
            if name.endswith(".py") and remaining:
                remaining -= 1
                yield Path(place, name)


def _read(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _location(path: Path, folder: Path, text: bytes, match: re.Match[bytes]) -> str:
    if folder in path.parents:
        shown = path.relative_to(folder)
    else:
        shown = path

    line = text.count(b"\n", 0, match.start(1)) + 1
    return f"{shown}:{line}"


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _fork_and_exit() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _shadowed_module(program_dir: Path) -> str:
    """Return a file or package of the folder whose name belongs to a loaded module; empty: none.

    `__main__.py` does not count: in a rank, the program is the module of that name.
    """
    if not program_dir.is_dir():
        return ""

    for path in sorted(program_dir.iterdir()):
        is_module = path.suffix in (".py", ".so", ".pyc") or (path / "__init__.py").exists()
        loaded = sys.modules.get(path.name.partition(".")[0])
        if not is_module or path.stem == "__main__" or loaded is None:
            continue

        file = getattr(loaded, "__file__", None)
        if not file or Path(file).resolve().parent not in (program_dir.resolve(), path.resolve()):
            return path.name

    return ""

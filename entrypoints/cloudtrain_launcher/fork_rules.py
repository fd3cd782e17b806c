"""Whether the ranks of a job may be forked from a process that has imported torch, or must be new
processes.

A forked rank must be what `python program` is. It would not be where the program changes what torch
reads when it is imported, where a module of its folder has the name of one that is imported
already, or where the process has threads or CUDA, which no fork inherits. Standard library only.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

MAX_FILES = 2000
MAX_FILE_BYTES = 1_000_000
"""No more files, and no more of a file, are read: programs that people write are smaller."""

_READ_BY_TORCH = (
    rb"(?:OMP|MKL|KMP|GOMP|OPENBLAS|BLIS|NUMEXPR|PYTORCH|ATEN|KINETO|LD|MALLOC|TORCHDYNAMO|TORCHINDUCTOR|TRITON)_\w+"
    rb"|TORCH_(?!NCCL_|FR_|HOME|EXTENSIONS_DIR|CUDA_ARCH_LIST)\w+"
)
"""Variables that torch, or a library that it loads, reads when it is imported, or may have read by
then.
"""
_QUOTED = (
    rb"\s*\\?[\"'](" + _READ_BY_TORCH + rb")\\?[\"']\s*"
)  # in a notebook's JSON, quotes are escaped
_SETS_VARIABLE = re.compile(
    rb"environ\s*\[" + _QUOTED + rb"\]\s*\|?=(?!=)"
    rb"|(?:environ\s*\.\s*(?:setdefault|pop)|putenv|unsetenv)\s*\(" + _QUOTED + rb"[,)]"
    rb"|environ\s*(?:\.\s*update\s*\(|\|=)[^)}]{0,2000}?" + _QUOTED + rb":"
    rb"|environ\s*\.\s*update\s*\([^)]{0,2000}?\b(" + _READ_BY_TORCH + rb")\s*="
)
_IMPORTS_FIRST = re.compile(
    rb"^[ \t\"]*(?:import|from)[ \t]+(tensorflow|jax|paddle|mxnet)\b", re.MULTILINE
)
"""Libraries with an OpenMP, protobuf or CUDA of their own, which may need to be imported before
torch.
"""
_USES_DYNAMO = re.compile(rb"optim|\bcompile\b|[Tt]rainer\b")


def read_source(program: Path, folder: Path) -> dict[Path, bytes]:
    """The program and the Python files of its folder, those of packages that are installed there
    left out.
    """
    return {path: _read(path) for path in _source_files(program, folder)}


def reason_in_source(source: Mapping[Path, bytes], folder: Path) -> str:
    """Why a program must run in new processes; empty if it may be forked. `source`: as
    `read_source` returns it.
    """
    if sys.platform != "linux":
        return "forks are safe on Linux only"
    if os.environ.get("PYTHON_EXEC", sys.executable) != sys.executable:
        return "PYTHON_EXEC names another interpreter"
    for path, text in source.items():
        found = _SETS_VARIABLE.search(text)
        if found:
            name = next(group for group in found.groups() if group).decode()
            return (
                f"{_location(path, folder, text, found)} sets {name}, which is read when torch is"
                " imported"
            )
        found = _IMPORTS_FIRST.search(text)
        if found:
            name = found[1].decode()
            return (
                f"{_location(path, folder, text, found)} imports {name}, which may need to come"
                " before torch"
            )
    return ""


def uses_dynamo(source: Mapping[Path, bytes]) -> bool:
    """Whether a program probably compiles or creates an optimizer, either of which imports
    torch._dynamo.
    """
    return any(_USES_DYNAMO.search(text) for text in source.values())


def reason_in_process(program_dirs: Iterable[Path]) -> str:
    """Why this process, which has imported torch, must not be forked; empty if it may be.

    `program_dirs`: where the program's own modules lie. This process may fork once itself:
    OpenBLAS, which starts threads when NumPy is imported, ends them before a fork, and each process
    starts new ones when it needs them.
    """
    if _threads() > 1:
        _fork_and_exit()
    if _threads() > 1:
        return f"importing torch has started {_threads() - 1} threads"
    if b"/libcuda.so" in _read(Path("/proc/self/maps"), limit=-1):
        return "importing torch has loaded the CUDA driver"
    shadowed = next(filter(None, map(_shadowed_module, program_dirs)), "")
    return (
        f"{shadowed} has the name of a module that has been imported with torch" if shadowed else ""
    )


def _source_files(program: Path, folder: Path) -> Iterator[Path]:
    yield program
    left = MAX_FILES
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith((".", "__")) and name != "site-packages"
        ]
        for name in names:
            if name.endswith(".py") and left:
                left -= 1
                yield Path(place, name)


def _read(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _location(path: Path, folder: Path, text: bytes, found: re.Match[bytes]) -> str:
    shown = path.relative_to(folder) if folder in path.parents else path
    line = text.count(b"\n", 0, found.start(found.lastindex or 0)) + 1
    return f"{shown}:{line}"


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _fork_and_exit() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _shadowed_module(program_dir: Path) -> str:
    """A file or package of the folder that a rank would not get, since another module of that name
    is loaded.

    `__main__.py` is none: in a rank, the module of that name is the program.
    """
    for path in sorted(program_dir.iterdir()) if program_dir.is_dir() else ():
        is_module = path.suffix in (".py", ".so", ".pyc") or (path / "__init__.py").exists()
        is_module = is_module and path.stem != "__main__"
        loaded = sys.modules.get(path.name.partition(".")[0]) if is_module else None
        file = getattr(loaded, "__file__", None)
        if loaded is not None and not (
            file and Path(file).resolve().parent in (program_dir.resolve(), path.resolve())
        ):
            return path.name
    return ""

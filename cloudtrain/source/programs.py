"""Parse the programs of a job, scripts and notebooks, without executing them."""

from __future__ import annotations

import ast
import json
import warnings
from pathlib import Path
from typing import NamedTuple

from cloudtrain_launcher.notebook_code import plain_code
from cloudtrain_launcher.packages.bounded_files import FileTooLarge, read_regular_file

MAX_CODE_BYTES = 4 << 20
MAX_NOTEBOOK_BYTES = 64 << 20
"""Limit of a notebook, which may hold pictures."""


class ProgramFault(NamedTuple):
    """Reason why a file is not a program."""

    message: str
    """Message to follow the name of the file, such as `is not a notebook: ...`."""
    line: int = 0
    """Line from 1; 0 if unknown."""
    depends_on_version: bool = False
    """True if another version of Python may accept it."""


class NotAProgram(ValueError):
    """Error of a file that cannot be parsed; `fault` is None if it is only too large."""

    def __init__(self, fault: ProgramFault | None) -> None:
        super().__init__(fault.message if fault else "is too large or too complex to be examined")
        self.fault = fault


def program_fault(file: Path) -> ProgramFault | None:
    """Return why a script or notebook is not a program; None if it is one, or unknown.

    The code in a notebook's cells is not examined, as it may hold IPython's own syntax.
    """
    try:
        if file.suffix == ".ipynb":
            code_cells(file)
        else:
            parse_program(file)
    except NotAProgram as error:
        return error.fault
    return None


def parse_program(file: Path) -> ast.Module:
    """Return the syntax tree of a script or notebook. Raise NotAProgram if it has none.

    Lines of a notebook that IPython alone understands count as `pass`.
    """
    if file.suffix == ".ipynb":
        cells = [plain_code(source)[0].rstrip("\n") for source in code_cells(file)]
        return _parse("\n".join(cells).encode("utf-8", "replace"))
    return _parse(_read(file, MAX_CODE_BYTES))


def code_cells(notebook: Path) -> list[str]:
    """Return the sources of a notebook's code cells. Raise NotAProgram for other files."""
    try:
        document = json.loads(_read(notebook, MAX_NOTEBOOK_BYTES))
    except json.JSONDecodeError as error:
        fault = ProgramFault(f"is not a notebook: it is not JSON ({error.msg})", error.lineno)
        raise NotAProgram(fault) from None
    except UnicodeDecodeError:
        raise NotAProgram(ProgramFault("is not a notebook: it is not UTF-8 text")) from None
    except RecursionError:
        raise NotAProgram(ProgramFault("is not a notebook: it is nested too deeply")) from None
    except ValueError:  # a number with too many digits for Python
        raise NotAProgram(
            ProgramFault("is not a notebook: it holds a number that is too long")
        ) from None
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise NotAProgram(ProgramFault("is not a notebook: it has no list of cells"))
    sources = []
    for cell in cells:
        if not isinstance(cell, dict):
            raise NotAProgram(ProgramFault("is not a notebook: a cell is not a mapping"))
        if cell.get("cell_type") == "code":
            sources.append(_source_of(cell))
    return sources


def _source_of(cell: dict[str, object]) -> str:
    source = cell.get("source", "")
    lines = [source] if isinstance(source, str) else source
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise NotAProgram(ProgramFault("is not a notebook: the source of a cell is not text"))
    return "".join(lines)


def _parse(source: bytes) -> ast.Module:
    if len(source) > MAX_CODE_BYTES:
        raise NotAProgram(None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the user's texts
            return ast.parse(source)
    except SyntaxError as error:
        is_text = b"\0" not in source and not error.msg.startswith(
            ("(unicode error)", "encoding problem")
        )
        is_text = is_text and "null bytes" not in error.msg
        message = f"is not Python: {error.msg}"
        raise NotAProgram(ProgramFault(message, error.lineno or 0, is_text)) from None
    except (RecursionError, MemoryError, OverflowError):
        raise NotAProgram(None) from None
    except ValueError as error:  # a NUL, before Python 3.12
        raise NotAProgram(ProgramFault(f"is not Python: {error}")) from None


def _read(file: Path, limit: int) -> bytes:
    try:
        return read_regular_file(file, limit)
    except FileTooLarge:
        raise NotAProgram(None) from None
    except OSError as error:
        raise NotAProgram(ProgramFault(f"cannot be read: {error.strerror}")) from None

"""Parse the programs of a job, scripts and notebooks, and their imports, without executing them."""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cloudtrain_wire.bounded_files import FileTooLarge, read_regular_file
from cloudtrain_wire.notebook_code import INSTALLS, plain_code

MAX_CODE_BYTES = 4 << 20
MAX_NOTEBOOK_BYTES = 64 << 20
"""Limit of a notebook, which may hold pictures."""

MAX_FILES = 300
"""Maximum files of the source folder to read; the rest of a larger program is skipped."""


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
        message = "is too large or too complex to be examined"
        if fault:
            message = fault.message

        super().__init__(message)
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

    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise NotAProgram(ProgramFault("is not a notebook: it has no list of cells"))

    sources = []
    for cell in document["cells"]:
        if not isinstance(cell, dict):
            raise NotAProgram(ProgramFault("is not a notebook: a cell is not a mapping"))
        if cell.get("cell_type") == "code":
            sources.append(_source_of(cell))

    return sources


def _source_of(cell: dict[str, object]) -> str:
    source = cell.get("source", "")
    if isinstance(source, str):
        return source
    if not isinstance(source, list) or not all(isinstance(line, str) for line in source):
        raise NotAProgram(ProgramFault("is not a notebook: the source of a cell is not text"))

    return "".join(source)


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


class Import(NamedTuple):
    """Import statement of a module that is neither the source's own nor Python's."""

    module: str
    """First part of its name: `sklearn` of `sklearn.datasets`."""
    file: str
    """Path below the source folder."""
    line: int


class InstallLine(NamedTuple):
    """Line of a notebook that would install packages."""

    text: str
    place: str
    """`train.ipynb, cell 2`."""


def foreign_imports(root: Path, *entrypoints: Path) -> list[Import]:
    """Return the first import of each foreign module, in the order of the program."""
    imports: dict[str, Import] = {}
    for file, foreign in _files_with_imports(root, entrypoints):
        for module, line in foreign:
            imports.setdefault(module, Import(module, str(file.relative_to(root)), line))

    return list(imports.values())


def mentions(pattern: re.Pattern[bytes], root: Path, *entrypoints: Path) -> bool:
    """Return whether a file of a program, or a module of the source it imports, has a match."""
    for file, _ in _files_with_imports(root, entrypoints):
        try:
            if pattern.search(_read(file, MAX_NOTEBOOK_BYTES)):
                return True
        except NotAProgram:
            return True  # unknown

    return False


def first_match(pattern: re.Pattern[bytes], root: Path, *entrypoints: Path) -> tuple[str, str]:
    """Return the place of the first match in files of a program, and its group; empty for none."""
    for file, _ in _files_with_imports(root, entrypoints):
        with suppress(NotAProgram):
            text = _read(file, MAX_NOTEBOOK_BYTES)
            match = pattern.search(text)
            if not match:
                continue

            place = str(file.relative_to(root))
            if file.suffix != ".ipynb":
                line = text.count(b"\n", 0, match.start(1)) + 1
                place += f":{line}"

            return place, match[1].decode()

    return "", ""


def paths_in(root: Path, *entrypoints: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the files of a program, each with the texts in it that may be paths.

    These are values of arguments, of variables and of defaults; no keys and no docstrings.
    """
    for file, _ in _files_with_imports(root, entrypoints):
        texts: dict[str, None] = {}
        for node in ast.walk(_tree(file)):
            values: list[ast.expr | None] = []
            if isinstance(node, ast.Call):
                values += node.args
                values += (keyword.value for keyword in node.keywords)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                values.append(node.value)
            elif isinstance(node, ast.arguments):
                values += node.defaults
                values += node.kw_defaults
            elif isinstance(node, ast.BinOp):  # Path(folder) / "x"
                values += [node.left, node.right]

            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    texts[value.value] = None

        yield file, list(texts)


def _files_with_imports(
    root: Path, entrypoints: Sequence[Path]
) -> Iterator[tuple[Path, list[tuple[str, int]]]]:
    """Yield the files of a program, each with the foreign modules it imports and their lines."""
    waiting = list(entrypoints)
    files = set(entrypoints)

    while waiting and len(files) <= MAX_FILES:
        file = waiting.pop(0)
        foreign = []
        for names, level, line in _imports(_tree(file)):
            own_files: list[Path] = []
            for name in names:
                own_files += _own_files(name, level, file, root)

            waiting += [path for path in own_files if path not in files]
            files.update(own_files)

            if own_files or level:
                continue

            first = names[0].partition(".")[0]
            if first not in sys.stdlib_module_names and not _is_folder(first, file, root):
                foreign.append((first, line))

        yield file, foreign


def module_files(name: str, root: Path) -> list[Path]:
    """Return the source's files that importing a module executes, packages first."""
    return _own_files(name, 0, root / "train.py", root)


def top_modules(root: Path) -> list[str]:
    """Return the names of modules and packages at the top of the source folder."""
    names = {file.stem for file in root.glob("*.py")}
    names.update(file.parent.name for file in root.glob("*/__init__.py"))
    return sorted(names)


def names_in(file: Path) -> frozenset[str] | None:
    """Return every name that a module can have, by its syntax tree; None if unknown.

    Unknown are the names of a module that imports a star, has a `__getattr__`, makes names by
    their text, or cannot be parsed.
    """
    names: set[str] = set()
    tree = _tree(file)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])

    unclear = {"*", "__getattr__", "globals", "setattr", "exec", "eval", "vars"}
    if names and unclear.isdisjoint(names):
        return frozenset(names)

    return None


def install_lines(notebook: Path) -> list[InstallLine]:
    """Return the `pip install` lines of a notebook, which a job leaves out."""
    try:
        cells = code_cells(notebook)
    except NotAProgram:
        return []

    lines = []
    for number, source in enumerate(cells, 1):
        for line in plain_code(source)[1]:
            if re.match(INSTALLS, line):
                lines.append(InstallLine(line, f"{notebook.name}, cell {number}"))

    return lines


def _tree(file: Path) -> ast.AST:
    """Return the syntax tree of a file; an empty one for an invalid file."""
    try:
        return parse_program(file)
    except NotAProgram:
        return ast.Module(body=[], type_ignores=[])


def _imports(tree: ast.AST) -> Iterator[tuple[list[str], int, int]]:
    """Yield the names that a statement may import as modules, its level (dots) and its line.

    The first name is the module itself.
    """
    for node in _executed(ast.iter_child_nodes(tree)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield [alias.name], 0, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield (
                [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)],
                node.level,
                node.lineno,
            )


def _executed(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements that an import of the module executes, as far as its syntax tells."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Try)):
            continue
        if isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            continue

        yield node
        if isinstance(node, (ast.If, ast.With, ast.For, ast.While, ast.ClassDef)):
            waiting += list(ast.iter_child_nodes(node))[::-1]


def _is_for_type_checkers(test: ast.expr) -> bool:
    names = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(test))
    return "TYPE_CHECKING" in names


def _own_files(name: str, level: int, file: Path, root: Path) -> list[Path]:
    """Return the source's files that importing a module executes, packages first."""
    bases = list(dict.fromkeys((file.parent, root)))
    if 0 < level <= len(file.parents):
        bases = [file.parents[level - 1]]

    for base in bases:
        parts = [part for part in name.split(".") if part]
        steps = [base.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)] or [base]
        candidates = []

        for step in steps:
            candidates += [step / "__init__.py", step.with_suffix(".py")]

        files = [path for path in candidates if path.is_file()]
        if files:
            return files

    return []


def _is_folder(name: str, file: Path, root: Path) -> bool:
    return (
        (file.parent / name).is_dir()
        or (root / name).is_dir()
        or (file.parent / f"{name}.so").exists()
    )

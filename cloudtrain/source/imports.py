"""Imports of a program at its start, by its syntax tree, without executing it.

Includes imports by modules of the source folder. Leaves out optional ones: inside functions, under
`try`, and for type checkers alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cloudtrain.source.programs import NotAProgram, code_cells, parse_program
from cloudtrain_launcher.notebook_code import INSTALLS, plain_code

MAX_FILES = 300
"""Maximum files of the source folder to read; the rest of a larger program is skipped."""


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
    waiting = [*entrypoints]
    files = {*entrypoints}
    while waiting and len(files) <= MAX_FILES:
        file = waiting.pop(0)
        for names, level, line in _imports(_tree(file)):
            own_files = [path for name in names for path in _own_files(name, level, file, root)]
            waiting += [path for path in own_files if path not in files]
            files.update(own_files)
            if own_files or level:
                continue
            first = names[0].partition(".")[0]
            if first not in sys.stdlib_module_names and not _is_folder(first, file, root):
                imports.setdefault(first, Import(first, str(file.relative_to(root)), line))
    return list(imports.values())


def module_files(name: str, root: Path) -> list[Path]:
    """Return the source's files that importing a module executes, packages first."""
    return _own_files(name, 0, root / "train.py", root)


def top_modules(root: Path) -> list[str]:
    """Return the names of modules and packages at the top of the source folder."""
    return sorted(
        path.stem
        for pattern in ("*.py", "*/__init__.py")
        for path in map(_package, root.glob(pattern))
    )


def _package(file: Path) -> Path:
    return file.parent if file.name == "__init__.py" else file


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
    return frozenset(names) if names and unclear.isdisjoint(names) else None


def install_lines(notebook: Path) -> list[InstallLine]:
    """Return the `pip install` lines of a notebook, which a job leaves out."""
    try:
        cells = code_cells(notebook)
    except NotAProgram:
        return []
    lines = []
    for number, source in enumerate(cells, 1):
        for line in plain_code(source)[1]:
            if INSTALLS.match(line):
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
    waiting = [*nodes][::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Try)):
            continue
        if isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            continue
        yield node
        if isinstance(node, (ast.If, ast.With, ast.For, ast.While, ast.ClassDef)):
            waiting += [*ast.iter_child_nodes(node)][::-1]


def _is_for_type_checkers(test: ast.expr) -> bool:
    names = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(test))
    return "TYPE_CHECKING" in names


def _own_files(name: str, level: int, file: Path, root: Path) -> list[Path]:
    """Return the source's files that importing a module executes, packages first."""
    folder = file.parents[level - 1] if 0 < level <= len(file.parents) else None
    bases = [folder] if folder else list(dict.fromkeys((file.parent, root)))
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

"""Which modules a program imports at its start, by its syntax tree: nothing is executed.

Followed are the modules of the source folder that it imports. Left out is what it may do without:
imports inside of functions, under `try` and for type checkers alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.source.programs import NotAProgram, code_cells, parse_program
from cloudtrain_launcher.notebook_code import INSTALLS, plain_code

MAX_FILES = 300
"""Of the source folder that are read; a larger program is looked at in part."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement of a module that is neither the source's own nor Python's."""

    module: str
    """Its first part: `sklearn` of `sklearn.datasets`."""
    file: str
    """Below the source folder."""
    line: int


@dataclass(frozen=True, slots=True)
class InstallLine:
    """A line of a notebook that would install packages."""

    text: str
    place: str
    """`train.ipynb, cell 2`."""


def foreign_imports(root: Path, *entrypoints: Path) -> list[Import]:
    """The first import of each module that the source folder must be brought, in the order of the
    program.
    """
    found: dict[str, Import] = {}
    waiting = [*entrypoints]
    seen = {*entrypoints}
    while waiting and len(seen) <= MAX_FILES:
        file = waiting.pop(0)
        for names, level, line in _imports(_tree(file)):
            own = [path for name in names for path in _own_files(name, level, file, root)]
            waiting += [path for path in own if path not in seen]
            seen.update(own)
            first = names[0].partition(".")[0]
            if (
                not own
                and not level
                and first not in sys.stdlib_module_names
                and not _is_folder(first, file, root)
            ):
                found.setdefault(first, Import(first, str(file.relative_to(root)), line))
    return list(found.values())


def module_files(name: str, root: Path) -> list[Path]:
    """The source's files that importing a module executes, its packages' before its own; none for a
    foreign module.
    """
    return _own_files(name, 0, root / "train.py", root)


def top_modules(root: Path) -> list[str]:
    """The names of the modules and packages that lie in the source folder itself."""
    return sorted(
        path.stem
        for pattern in ("*.py", "*/__init__.py")
        for path in map(_package, root.glob(pattern))
    )


def _package(file: Path) -> Path:
    return file.parent if file.name == "__init__.py" else file


def names_in(file: Path) -> frozenset[str] | None:
    """Every name that a module can have, by its syntax tree; None where that cannot be told.

    That is where it imports a star, has a `__getattr__`, makes names by their text, or cannot be
    parsed.
    """
    found: set[str] = set()
    tree = _tree(file)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
    unclear = {"*", "__getattr__", "globals", "setattr", "exec", "eval", "vars"}
    return frozenset(found) if found and unclear.isdisjoint(found) else None


def install_lines(notebook: Path) -> list[InstallLine]:
    """Return the `pip install` lines of a notebook, with `!`, `%` or without: a job leaves them
    out.
    """
    try:
        cells = code_cells(notebook)
    except NotAProgram:
        return []
    found = []
    for number, source in enumerate(cells, 1):
        for line in plain_code(source)[1]:
            if INSTALLS.match(line):
                found.append(InstallLine(line, f"{notebook.name}, cell {number}"))
    return found


def _tree(file: Path) -> ast.AST:
    """Return its syntax tree; an empty one for a file without one, which `program_fault` reports."""
    try:
        return parse_program(file)
    except NotAProgram:
        return ast.Module(body=[], type_ignores=[])


def _imports(tree: ast.AST) -> Iterator[tuple[list[str], int, int]]:
    """Names that a statement may import as modules, its level (dots), its line. The first name is
    the module's own.
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
    """The source's files that importing a module executes: its packages' and its own."""
    folder = file.parents[level - 1] if 0 < level <= len(file.parents) else None
    bases = [folder] if folder else list(dict.fromkeys((file.parent, root)))
    for base in bases:
        parts = [part for part in name.split(".") if part]
        steps = (
            [base.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
            if parts
            else [base]
        )
        found = [
            path
            for step in steps
            for path in (step / "__init__.py", step.with_suffix(".py"))
            if path.is_file()
        ]
        if found:
            return found
    return []


def _is_folder(name: str, file: Path, root: Path) -> bool:
    return (
        (file.parent / name).is_dir()
        or (root / name).is_dir()
        or (file.parent / f"{name}.so").exists()
    )

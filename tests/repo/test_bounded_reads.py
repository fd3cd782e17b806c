"""Files that others wrote are read through `cloudtrain_launcher.packages.bounded_files` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.tools import ROOT

UNBOUNDED = {
    "catalog/__init__.py": "a table of the package",
    "cli/init.py": "a file of the package",
    "cli/diagnose.py": "a log, line by line; it may be a pipe",
    "declaration.py": "a file of an installed package",
    "submission/drills/": "files of the system, and files that a drill has made",
    "planning/contents.py": "a file of the package",
    "planning/recipe.py": "a file of the package",
    "providers/aws/client.py": "an archive that a submit has packed",
    "providers/aws/infra.py": "a file of the package",
    "providers/aws/service_model.py": "a table of the package, or of an installed SDK",
    "providers/azure/infra.py": "a file of the package",
    "providers/azure/storage.py": "an archive that a submit has packed",
    "providers/shared/recording.py": "modules of an installed SDK and of the package",
    "providers/docker/emulator.py": "a document that a submit has just written",
    "providers/docker/node.py": "a document that a submit has just written",
    "providers/rehearsal/": "a document that a submit has just written, or a file of the system",
    "providers/local/": "a file of the system, or of a running job",
    "source/results.py": "files that are copied, block by block",
    "submission/memory.py": "a file of the system",
    "submission/wheels.py": "a report that pip has just written",
    "sweeps/optuna_studies.py": "a study that is copied, block by block",
    "testing/": "files of the checks themselves",
}
"""Modules and folders of `cloudtrain/` that read files in other ways, and the files."""

READING = {"read_text", "read_bytes"}
WRITING_MODES = ("w", "x", "a", "r+")


def test_no_other_module_opens_a_file_for_reading() -> None:
    offenders = [
        f"{name}:{line}"
        for name, line in sorted(unbounded_reads())
        if not name.startswith(tuple(UNBOUNDED))
    ]
    assert offenders == [], (
        "use cloudtrain_launcher.packages.bounded_files, or say here what is read"
    )


def test_every_exception_still_reads_a_file() -> None:
    names = {name for name, _ in unbounded_reads()}
    unused = [call for call in UNBOUNDED if not any(name.startswith(call) for name in names)]
    assert unused == []


def unbounded_reads() -> Iterator[tuple[str, int]]:
    """Yield the file, below `cloudtrain/`, and the line of each call that opens a file for reading."""
    folder = ROOT / "cloudtrain"
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _opens_for_reading(node):
                yield path.relative_to(folder).as_posix(), node.lineno


def _opens_for_reading(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in READING:
        return True
    if isinstance(function, ast.Name) and function.id == "open":
        modes = call.args[1:2]
    elif (
        isinstance(function, ast.Attribute) and function.attr == "open" and _is_of_a_path(function)
    ):
        modes = call.args[:1]
    else:
        return False
    mode = modes[0].value if modes and isinstance(modes[0], ast.Constant) else "r"
    return not str(mode).startswith(WRITING_MODES)


def _is_of_a_path(function: ast.Attribute) -> bool:
    """Return whether it is `path.open` rather than `tarfile.open`, `os.open` or the opener of a
    URL.
    """
    of = function.value
    return not (isinstance(of, ast.Name) and of.id in ("os", "tarfile", "gzip", "store")) and not (
        isinstance(of, ast.Attribute)
    )


def test_the_rule_knows_the_ways_to_open_a_file() -> None:
    reads = [
        "open(p)",
        "open(p, 'rb')",
        "p.open()",
        "p.open('rb')",
        "p.read_text()",
        "Path(p).read_bytes()",
    ]
    remaining = [
        "open(p, 'w')",
        "p.open('ab')",
        "os.open(p, 0)",
        "tarfile.open(p)",
        "self._opener.open(request)",
    ]
    assert [_opens_for_reading(_call(text)) for text in reads] == [True] * len(reads)
    assert [_opens_for_reading(_call(text)) for text in remaining] == [False] * len(remaining)


def _call(text: str) -> ast.Call:
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    return node

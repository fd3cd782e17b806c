"""House rules that `make lint` holds every file to: words, names, first lines, homes of some calls.

    python -m tests.repo.style

Print each fault with its place, and exit with 1 if there is one.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Iterator
from functools import cache

from tests.repo.tools import ROOT, nodes

PACKAGE = ROOT / "cloudtrain"
FOLDERS = ("cloudtrain", "docs", "entrypoints", "examples", "tests")

LOCKING = re.compile(r"fcntl\.(?!ioctl\b)|from fcntl")
LOCKS_HOME = "entrypoints/cloudtrain_wire/file_locks.py"
"""The only module that locks files. It refuses disks without locks."""

UNBOUNDED = {
    "catalog/__init__.py": "a table of the package",
    "cli/init.py": "a file of the package",
    "cli/diagnose.py": "a log, line by line; it may be a pipe",
    "declaration.py": "a file of an installed package",
    "planning/image_contents.py": "a file of the package",
    "planning/recipe.py": "a file of the package",
    "providers/aws/client.py": "an archive that a submit has packed",
    "providers/aws/infrastructure.py": "a file of the package",
    "providers/aws/rights.py": "a table of the package",
    "providers/azure/infrastructure.py": "a file of the package",
    "providers/azure/rights.py": "a table of the package",
    "providers/slurm/provider.py": "a part of a log",
    "providers/shared/recording.py": "modules of an installed SDK and of the package",
    "providers/docker/emulator.py": "a document that a submit has just written",
    "providers/docker/node.py": "a document that a submit has just written",
    "providers/rehearsal/": "a document that a submit has just written, or a file of the system",
    "providers/local/": "a file of the system, or of a running job",
    "source/inputs.py": "an input, block by block",
    "source/results.py": "files that are copied, block by block",
    "testing/": "files of the checks themselves",
}
"""Modules and folders of `cloudtrain/` that read files in other ways, and the files."""

READING = {"read_text", "read_bytes"}
WRITING_MODES = ("w", "x", "a", "r+")

OWN = {
    "aws": "aws",
    "sagemaker": "aws",
    "azure": "azure",
    "azureml": "azure",
    "docker": "docker",
    "local": "local",
    "slurm": "slurm",
}
"""Each name, and the folder of providers/ that it belongs to."""

EXPLAINED = {
    ("settings.py", "local"): "the provider when nobody names one, which also executes rehearsals",
    (
        "catalog/__init__.py",
        "aws",
    ): "tables of machines are data that lie beside the catalog, one for each cloud",
    ("catalog/__init__.py", "azure"): "the same",
    ("catalog/machines.py", "aws"): "disks of machines that SageMaker and EC2 have in common",
    ("catalog/machines.py", "azure"): "what the names of machines tell beside the tables",
    ("planning/image_contents.py", "docker"): "the same folder",
    (
        "planning/recipe.py",
        "docker",
    ): "the folder of the repository that holds our Dockerfile and its lock files",
    (
        "providers/rehearsal/sagemaker.py",
        "docker",
    ): "the same, with the program `train` of the image",
    ("providers/docker/engine.py", "local"): "a log driver of Docker's",
}
"""Files that need one of these words -> its meaning there."""

MAX_CHAIN = 13
"""Maximum length of a chain of modules, each importing the next when it is itself imported."""

HARD_PHRASES = {
    "cloudtrain": 30,
    "entrypoints": 30,
    "docs": 30,
    "tests": 34,
}
"""Maximum number of hard phrases per 10,000 words of docstrings, comments, messages and pages."""

PRONOUN_NAMES = {"cloudtrain": 6, "docs": 6, "entrypoints": 6, "tests": 6}
"""Maximum number of pronouns per 1,000 assigned names."""

MAX_TUPLE_ASSIGNMENTS = 15
"""Assignments such as `a, b = x, y` per 1,000 functions."""

HARD = re.compile(
    r"""(?mx)
      ^\s*Of\ (?:an?|the|all|each|its|what|which|one|those|these|this|that|some|two)\b
    | ^\s*(?:What|So\ many|So\ much|Which|Whether|Where)\ [^?\n]*[.:]?\s*$
    | \bwhere\ (?:there\ (?:is|are)|one\ (?:is|has)|none|no)\b
    | \b(?:by|of|from|to|with|in|on|at|for)\ which\b
    | \b(?:go|goes|going|gone|went)\ on\b
    | \b(?:is|are|was|were|has|have)\ no\ (?!longer|more\ than|such)\w+
    | \b(?:is|are|was|were|be|been)\ (?:told|said|asked)\b | \bsays?\ so\b
    | \bso\ (?:many|much|long|often|far)\b(?!\ (?:as\ to|that))
    | \bthe\ one\ (?:of|that|which)\b | \bthose\ (?:of|that|which)\b | \bthat\ of\b
    | \b(?:of|by|for|from|with|in|to|and)\ what\ (?:it|is|was|has|a|the|they|one|does|can|must)\b
    | \bas\ (?:it|they)\ (?:is|are|was|were|stands?)\b
    | \bof\ (?:one's|its|their|our|your)\ own\b
    | \b(?:nothing|nobody|none)\ (?:of|is|was|that|but|else|can|has|does)\b
    | \bany\ more\b
    | \b(?:that|which|what)\ (?:is|are|was|were)\ there\b
    | \b(?:all|each|every)\ (?:that|which)\b
    | \bstands?\ (?:in|for|at|beside|by|before|behind)\b
    """
)
PRONOUN = re.compile(
    r"_?(?:found|each|known|told|said|given|kept|left|there|here|such|same|others?|rest|own|ours"
    r"|theirs|what|which|whose|asked|seen|wanted|gone|done|so_far|now|then|again|about|beside"
    r"|within|near|among)"
)
MIN_WORDS = 3
"""A shorter string literal is a key or a word, not prose."""


COMMENT = re.compile(r"(?m)(?:^ *|  )#[! ]*(.+)")


def main() -> int:
    """Print the faults of all rules; return 1 if there is one, else 0."""
    rules = (
        unclear_files,
        locking_modules,
        reading_modules,
        providers_by_name,
        long_chains,
        hard_phrases,
        pronouns,
        tuple_assignments,
    )
    gc.disable()  # half of the time would go there: trees are many objects, and no garbage
    faults = [fault for rule in rules for fault in rule()]
    for fault in faults:
        print(fault)

    return 1 if faults else 0


def unclear_files() -> Iterator[str]:
    """Yield files whose first line or name does not say what they hold."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text("utf-8")
            name = path.relative_to(ROOT)
            if text and not re.match(r'(#.*\n)*"""[\w`]', text):
                yield f"{name}: its first line does not say what it is for"
            if re.search(r"utils|helpers|manager", path.stem):
                yield f"{name}: its name says nothing"


def locking_modules() -> Iterator[str]:
    """Yield modules that lock files themselves."""
    for folder in ("cloudtrain", "entrypoints"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name != LOCKS_HOME and LOCKING.search(path.read_text("utf-8")):
                yield f"{name}: locks files itself; {LOCKS_HOME} does it"


def reading_modules() -> Iterator[str]:
    """Yield modules that open files for reading themselves, and exceptions that none needs."""
    reads = sorted(unbounded_reads())
    for name, line in reads:
        if not name.startswith(tuple(UNBOUNDED)):
            yield f"cloudtrain/{name}:{line}: use bounded_files, or say in UNBOUNDED what is read"

    for exception in UNBOUNDED:
        if not any(name.startswith(exception) for name, _ in reads):
            yield f"tests/repo/style.py: UNBOUNDED: {exception} reads no file any longer"


def unbounded_reads() -> Iterator[tuple[str, int]]:
    """Yield the file, below `cloudtrain/`, and the line of each call that opens a file for reading."""
    for path, of_file in nodes("cloudtrain").items():
        for node in of_file:
            if isinstance(node, ast.Call) and _opens_for_reading(node):
                yield path.relative_to(PACKAGE).as_posix(), node.lineno


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


def providers_by_name() -> Iterator[str]:
    """Yield modules that know a provider by name outside its own folder.

    A third party's provider is as good as ours.
    """
    names = set()
    for path, of_file in nodes("cloudtrain").items():
        inside = path.relative_to(PACKAGE)
        provider = ""
        if inside.parts[0] == "providers" and len(inside.parts) > 2:
            provider = inside.parts[1]

        texts = {node.value for node in of_file if isinstance(node, ast.Constant)}
        for word, owner in OWN.items():
            if word in texts and owner != provider:
                names.add((inside.as_posix(), word))

    for name, word in sorted(names - EXPLAINED.keys()):
        yield f"cloudtrain/{name}: knows {word!r} by name"
    for name, word in sorted(EXPLAINED.keys() - names):
        yield f"tests/repo/style.py: EXPLAINED: {name} has no {word!r} any longer"


def imported_modules(module: str, sources: dict[str, str]) -> set[str]:
    """The modules of `sources` that a module imports when it is imported itself."""
    imported = set()
    for node in ast.parse(sources[module]).body:
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            imported |= {name if name in sources else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return imported & sources.keys() - {module}


def long_chains() -> Iterator[str]:
    """Yield the longest chain of imports if it is too long."""
    sources = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        sources[name.removesuffix(".__init__")] = path.read_text("utf-8")

    imports = {module: imported_modules(module, sources) for module in sources}

    @cache
    def longest_chain(module: str) -> tuple[str, ...]:
        return (module, *max(map(longest_chain, sorted(imports[module])), key=len, default=()))

    longest = max(map(longest_chain, sorted(sources)), key=len)
    if len(longest) > MAX_CHAIN:
        yield f"a chain of {len(longest)} imports: {' > '.join(longest)}"


def prose(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the places and texts of docstrings, comments, longer strings and Markdown pages."""
    for path, of_file in nodes(folder).items():
        name = path.relative_to(ROOT)
        for comment in COMMENT.finditer(path.read_text("utf-8")):
            yield str(name), comment[1]
        for node in of_file:
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and len(text.split()) >= MIN_WORDS:
                yield f"{name}:{getattr(node, 'lineno', 0)}", text
    for path in sorted((ROOT / folder).rglob("*.md")):
        without_code = re.sub(r"(?ms)^(```|~~~).*?^\1", "", path.read_text("utf-8"))
        yield str(path.relative_to(ROOT)), re.sub(r"`[^`]*`|\]\([^)]*\)", " X ", without_code)


def assigned_names(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each variable, parameter, function and class."""
    for path, of_file in nodes(folder).items():
        for node in of_file:
            name = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            if name:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", name


def hard_phrases() -> Iterator[str]:
    """Yield the hard phrases of a folder that has too many."""
    for folder, limit in HARD_PHRASES.items():
        words = 0
        hits = []
        for place, text in prose(folder):
            words += len(text.split())
            hits += [f"{place}: {match[0].strip()[:60]}" for match in HARD.finditer(text)]

        if 10_000 * len(hits) / words > limit:
            yield f"{folder}: more than {limit} hard phrases per 10,000 words; the last ones:"
            yield from hits[-40:]


def pronouns() -> Iterator[str]:
    """Yield the pronouns among the names of a folder that has too many."""
    for folder, limit in PRONOUN_NAMES.items():
        names = list(assigned_names(folder))
        hits = [f"{place}: {name}" for place, name in names if PRONOUN.fullmatch(name)]
        if 1000 * len(hits) / len(names) > limit:
            yield f"{folder}: more than {limit} pronouns per 1,000 names; the last ones:"
            yield from hits[-40:]


def tuple_assignments() -> Iterator[str]:
    """Yield assignments such as `a, b = x, y` of a folder that has too many."""
    for folder in ("cloudtrain", "entrypoints", "tests"):
        functions = 0
        hits = []
        for path, of_file in nodes(folder).items():
            for node in of_file:
                functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                    continue
                if isinstance(node.targets[0], ast.Tuple):
                    hits.append(f"{path.relative_to(ROOT)}:{node.lineno}: assigns two things")

        if 1000 * len(hits) / functions > MAX_TUPLE_ASSIGNMENTS:
            yield from hits


if __name__ == "__main__":
    sys.exit(main())

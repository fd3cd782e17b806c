"""Rules for every file: first lines, sizes, names, locks, bounded reads, providers' names."""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cloudtrain
import cloudtrain_job
from cloudtrain.planning import sagemaker
from cloudtrain.providers.aws import request
from cloudtrain.providers.local import processes as children
from cloudtrain.providers.local import processes as liveness
from cloudtrain.providers.rehearsal import namespace as enter
from cloudtrain.runs import logs
from cloudtrain.source.tree import PAYLOAD_FOLDER
from cloudtrain_launcher import events
from cloudtrain_launcher.platforms import sagemaker as sagemaker_context
from tests.repo.tools import ROOT, trees

# Rules for every file: first lines, sizes, names, one home for each shared word.

FOLDERS = ("cloudtrain", "docs", "entrypoints", "examples", "tests")
MAX_LINES = 400


def faults_of(path: Path) -> Iterator[str]:
    """Yield what is wrong with a file that has content."""
    text = path.read_text()
    if not re.match(r'(#.*\n)*"""[\w`]', text):
        yield "its first line does not say what it is for"
    if len(text.splitlines()) > MAX_LINES:
        yield f"it has more than {MAX_LINES} lines"
    if re.search(r"utils|helpers|manager", path.stem):
        yield "its name says nothing"


def test_files_say_what_they_are_for_and_stay_readable() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    files = [path for path in paths if path.stat().st_size]
    assert len(files) > 500
    faults = [f"{path.relative_to(ROOT)}: {fault}" for path in files for fault in faults_of(path)]
    assert faults == [], "\n".join(faults)


def test_the_changelog_tells_of_this_version_first_and_sorts_every_change() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    first, *released = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert first == "Unreleased"
    assert released[0].partition(" - ")[0] == cloudtrain.__version__
    for title in released:
        version, _, date = title.partition(" - ")
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), title
        assert datetime.date.fromisoformat(date), title
    kinds = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


OF_CUDA = re.compile(r"(nvidia|cuda|triton)\b")
"""Packages that torch itself pins, in its builds for CUDA."""


def required_packages(name: str, extras: frozenset[str]) -> set[str]:
    """Names of all packages that an installed package needs with these extras, itself included."""
    visited = set()
    waiting = [(name, extras)]
    while waiting:
        package = waiting.pop()
        if package in visited:
            continue
        visited.add(package)
        for requirement in map(Requirement, requires(package[0]) or ()):
            environments = [{"extra": extra} for extra in ("", *package[1])]
            marker = requirement.marker
            if marker is None or any(marker.evaluate(environment) for environment in environments):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in visited}


def test_every_package_that_is_installed_is_pinned_by_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    packages = required_packages("cloudtrain", frozenset({"train", "dev"})) - {"cloudtrain"}
    unpinned = {name for name in packages - pinned if not OF_CUDA.match(name)}
    assert unpinned == set()


def test_client_and_job_agree_on_the_words_they_share() -> None:
    launch = (ROOT / "entrypoints" / "cloudtrain_launcher" / "launch.py").read_text()
    assert logs.EVENT_MARK.decode() == cloudtrain_job.MARKER
    assert set(cloudtrain_job.SIGNED_EVENTS) == {
        kind for kind, event in events.EVENT_TYPES.items() if event.WRITER == events.RANK
    }
    assert f'"{children.SUPERVISOR_PID}"' in launch
    assert f"\nSTOPPED = {children.STOPPED}\n" in launch
    assert liveness.RUN_DIR_VARIABLE.startswith("CLOUDTRAIN_")


def test_request_and_container_agree_on_where_things_are() -> None:
    assert (request.SOURCE, request.JOB, request.RESUME) == sagemaker_context.RESERVED
    assert PAYLOAD_FOLDER in request.BOOTSTRAP
    assert len(request.BOOTSTRAP) <= 256
    assert sagemaker_context.base_dir({}) == sagemaker.ROOT == enter.TREE
    assert sagemaker_context.failure_file({}) == f"{sagemaker.ROOT}/{sagemaker.FAILURE_FILE}"
    assert sagemaker_context.BASE_DIR in request.BOOTSTRAP


# Locks on files are taken by one module, which refuses disks without them.

LOCKING = re.compile(r"fcntl\.(?!ioctl\b)|from fcntl")


def test_no_other_module_locks_files() -> None:
    paths = [path for top in ("cloudtrain", "entrypoints") for path in (ROOT / top).rglob("*.py")]
    locking = [
        path.relative_to(ROOT).as_posix() for path in paths if LOCKING.search(path.read_text())
    ]
    assert locking == ["entrypoints/cloudtrain_launcher/file_locks.py"]


# Files that others wrote are read through `cloudtrain_launcher.packages.bounded_files` alone.

UNBOUNDED = {
    "catalog/__init__.py": "a table of the package",
    "cli/init.py": "a file of the package",
    "cli/diagnose.py": "a log, line by line; it may be a pipe",
    "declaration.py": "a file of an installed package",
    "submission/drills/": "files of the system, and files that a drill has made",
    "planning/recipe.py": "a file of the package",
    "providers/aws/client.py": "an archive that a submit has packed",
    "providers/aws/provider.py": "a file of the package",
    "providers/aws/validate.py": "a table of the package, or of an installed SDK",
    "providers/azure/provider.py": "a file of the package",
    "providers/azure/storage.py": "an archive that a submit has packed",
    "providers/shared/recording.py": "modules of an installed SDK and of the package",
    "providers/docker/emulator.py": "a document that a submit has just written",
    "providers/docker/node.py": "a document that a submit has just written",
    "providers/rehearsal/": "a document that a submit has just written, or a file of the system",
    "providers/local/": "a file of the system, or of a running job",
    "source/results.py": "files that are copied, block by block",
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
    for path, tree in trees("cloudtrain").items():
        for node in ast.walk(tree):
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


# No module outside a provider's own folder knows a provider by name: a third party's is as good as
# ours.

PACKAGE = ROOT / "cloudtrain"
OWN = {
    "aws": "aws",
    "sagemaker": "aws",
    "azure": "azure",
    "azureml": "azure",
    "docker": "docker",
    "local": "local",
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


def test_a_provider_is_known_by_name_in_its_own_folder_only() -> None:
    names = set()
    for path, tree in trees("cloudtrain").items():
        inside = path.relative_to(PACKAGE)
        provider = (
            inside.parts[1] if inside.parts[0] == "providers" and len(inside.parts) > 2 else ""
        )
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        names |= {
            (inside.as_posix(), word)
            for word, owner in OWN.items()
            if word in texts and owner != provider
        }
    assert sorted(names - EXPLAINED.keys()) == []
    assert sorted(EXPLAINED.keys() - names) == [], "explained, but gone"

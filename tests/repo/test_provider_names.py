"""No module outside a provider's own folder knows a provider by name: a third party's is as good as
ours.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.repo.tools import ROOT

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
    (
        "catalog/type_names.py",
        "aws",
    ): "what the names of machines tell where the tables do not know them",
    ("catalog/type_names.py", "azure"): "the same",
    ("planning/recipe.py", "docker"): "the folder of the repository that holds our Dockerfile",
    ("planning/contents.py", "docker"): "the same, with its lock files",
    (
        "providers/rehearsal/sagemaker.py",
        "docker",
    ): "the same, with the program `train` of the image",
    (
        "providers/docker/registry.py",
        "aws",
    ): "the extra to install for ECR, whose address says whose it is",
    ("providers/docker/registry.py", "azure"): "the same for ACR",
    ("providers/docker/engine.py", "local"): "a log driver of Docker's",
}
"""Files that need one of these words -> its meaning there."""


def texts(path: Path) -> Iterator[str]:
    """The string constants of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_a_provider_is_known_by_name_in_its_own_folder_only() -> None:
    names = set()
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        provider = (
            inside.parts[1] if inside.parts[0] == "providers" and len(inside.parts) > 2 else ""
        )
        names |= {
            (inside.as_posix(), text) for text in texts(path) if OWN.get(text, provider) != provider
        }
    assert sorted(names - EXPLAINED.keys()) == []
    assert sorted(EXPLAINED.keys() - names) == [], "explained, but gone"

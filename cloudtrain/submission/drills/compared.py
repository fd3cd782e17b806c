"""Comparison of two runs: digest of parameters, files of weights, or last metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain.runs.state import RunState

WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".h5", ".keras", ".joblib")
"""Suffixes of weights in the output; in the model's folder every file counts."""

MAX_FILES = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Trained parameters of a run, as far as they can be compared."""

    by: str = ""
    """Basis such as `parameters_sha256` or `the files of the model`; empty for none."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Digests of files by path, or metrics by name."""

    def differences(self, reference: Trained) -> list[str]:
        """Return the names of files or metrics that differ."""
        names = self.values.keys() | reference.values.keys()
        return sorted(name for name in names if self.values.get(name) != reference.values.get(name))


def trained(run: Path, state: RunState) -> Trained:
    """Return the most certain results of a run. `run`: its folder."""
    paths = RunPaths(run)
    if state.result and state.result.parameters_sha256:
        return Trained(
            by="parameters_sha256", values={"parameters_sha256": state.result.parameters_sha256}
        )
    if files := _digests(paths.model, ()):
        return Trained(by="the files of the model", values=files)
    if files := _digests(paths.output, WEIGHT_FILES):
        return Trained(by="the files of weights in the output", values=files)
    if state.metrics:
        return Trained(
            by="the last metrics",
            values={name: repr(value) for name, value in state.metrics.items()},
        )
    return Trained()


def _digests(folder: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder by path; {} for none or too many."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    files = [path for path in files if not suffixes or path.suffix in suffixes]
    if len(files) > MAX_FILES:
        return {}
    return {str(path.relative_to(folder)): _digest(path) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

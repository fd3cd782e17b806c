"""Declaration of the provider for Slurm."""

from __future__ import annotations

from cloudtrain.declaration import Declaration


def _section() -> type:
    from cloudtrain.providers.slurm.section import SlurmSection

    return SlurmSection


DECLARATION = Declaration(
    name="slurm",
    label="Slurm",
    input_schemes=("", "file"),
    input_example="file:///shared/digits",
    secret_stores={"env": "NAME", "file": "PATH"},
    request_name="sbatch script",
    section=_section,
)

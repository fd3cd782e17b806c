"""The container of a job: Pyxis, a plugin of srun, or Apptainer starts it on each node."""

from __future__ import annotations

import re

from cloudtrain.providers import plugin
from cloudtrain.providers.slurm.section import SlurmSection

IMAGE_FILES = (".sif", ".sqsh")
"""Ends of the names of image files."""

REGISTRY = re.compile(r"^(localhost|[^/]*[.:][^/]*)/(?!/)")
"""Registry of an address, which Enroot wants before a `#`."""


def pyxis_options(plan: plugin.Plan, layout: plugin.Layout) -> dict[str, str]:
    """Return the options of srun for Pyxis; empty without it."""
    if plan.spec.section(SlurmSection).container != "pyxis":
        return {}

    image = plugin.select_image(plan.spec.image, "slurm").text
    return {
        "container-image": REGISTRY.sub(r"\1#", image),
        "container-mounts": ",".join(_mounts(layout)),
    }


def apptainer_words(plan: plugin.Plan, layout: plugin.Layout) -> list[str]:
    """Return the words in front of a command that Apptainer runs; empty without it."""
    if plan.spec.section(SlurmSection).container != "apptainer":
        return []

    image = plugin.select_image(plan.spec.image, "slurm").text
    if not image.startswith("/") and "://" not in image:
        image = f"docker://{image}"

    words = ["apptainer", "exec", "--bind", ",".join(_mounts(layout)), image]
    if plan.gpus:
        words.insert(2, "--nv")
    return words


def _mounts(layout: plugin.Layout) -> list[str]:
    """Return the folders of a job, which have the same paths in its container."""
    folder = layout.source.removesuffix("/source")
    read_only = [f"{path}:{path}:ro" for path in (*layout.inputs.values(), layout.resume) if path]
    return [f"{folder}:{folder}", *read_only]

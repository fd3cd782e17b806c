"""The container of a job: Pyxis, a plugin of srun, or Apptainer starts it on each node."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
    mounts = [f"{path}:{path}{flag}" for path, flag in mounted(layout)]
    return {
        "container-image": REGISTRY.sub(r"\1#", image),
        "container-mounts": ",".join(mounts),
    }


def apptainer_words(plan: plugin.Plan, layout: plugin.Layout) -> list[str]:
    """Return the words in front of a command that Apptainer runs; empty without it."""
    if plan.spec.section(SlurmSection).container != "apptainer":
        return []

    image = plugin.select_image(plan.spec.image, "slurm").text
    if not image.startswith("/") and "://" not in image:
        image = f"docker://{image}"

    words = ["apptainer", "exec"]
    if plan.gpus:
        words.append("--nv")
    for path, flag in mounted(layout):
        words += ["--bind", f"{path}:{path}{flag}"]

    return [*words, image]


def mounted(layout: plugin.Layout) -> Iterator[tuple[str, str]]:
    """Yield the folders of a job, at the same paths in its container, with a flag of each."""
    yield layout.source.removesuffix("/source"), ""
    for path in (*layout.inputs.values(), layout.resume):
        if path:
            yield path, ":ro"

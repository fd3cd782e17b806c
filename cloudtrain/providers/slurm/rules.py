"""Mistakes in a job for Slurm, found without a look at the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cloudtrain.providers import plugin
from cloudtrain.providers.slurm.container import IMAGE_FILES
from cloudtrain.providers.slurm.script import input_path
from cloudtrain.providers.slurm.section import FORM, PLAIN, SlurmSection

VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


def rule_issues(plan: plugin.Plan) -> Iterator[plugin.Issue]:
    """Yield the mistakes, without their places."""
    yield from _image(plan)
    yield from _resources(plan)
    yield from _cost(plan)
    yield from _places(plan)
    yield from _request(plan)


def _image(plan: plugin.Plan) -> Iterator[plugin.Issue]:
    image = plugin.select_image(plan.spec.image, "slurm")
    container = plan.spec.section(SlurmSection).container
    is_folder = image.text.startswith("/") and not image.text.endswith(IMAGE_FILES)
    is_finished = image.text != "auto" and not image.is_build
    if container and not is_finished:
        message = f"{container} starts a finished image, and the job names none"
        hint = "image: {slurm: nvcr.io/nvidia/pytorch:25.09-py3}, or a file that all nodes see"
        yield plugin.Issue(("slurm", "container"), message, hint)
    elif not container and image.text != "auto" and not (is_finished and is_folder):
        message = "is no Python environment, and slurm.container does not say what starts an image"
        hint = "slurm: {container: pyxis}, or apptainer; or image: {slurm: /shared/venvs/train}"
        yield plugin.Issue(image.path, message, hint)


def _resources(plan: plugin.Plan) -> Iterator[plugin.Issue]:
    resources = plan.spec.resources
    section = plan.spec.section(SlurmSection)
    if resources.gpus == "all":
        yield plugin.Issue(
            ("resources", "gpus"), "are not known before the job has nodes: name a number"
        )
    if plan.gpus and not section.cpus:
        message = "a process gets one CPU, and loaders of data share it"
        yield plugin.warning(
            message, "slurm: {cpus: 48}, the job's share of a node", path=("slurm",)
        )
    if resources.spot and not (section.spot_partition or section.spot_qos):
        message = "needs a partition or a QoS whose jobs may be preempted"
        yield plugin.Issue(("resources", "spot"), message, "set slurm.spot_partition or spot_qos")


def _cost(plan: plugin.Plan) -> Iterator[plugin.Issue]:
    if plan.spec.limits.max_cost is None or plan.target.cost_estimate is not None:
        return

    message = "cannot be kept: slurm.price, of a GPU for an hour, is not set"
    if not plan.gpus:
        message = "cannot be kept: slurm.price is of GPUs, and the job has none"
    yield plugin.Issue(("limits", "max_cost"), message, "use limits.max_runtime instead")


def _places(plan: plugin.Plan) -> Iterator[plugin.Issue]:
    source = plan.context.source.root
    section = plan.spec.section(SlurmSection)
    runs = Path(section.folder).resolve()
    if runs.is_relative_to(source):
        message = (
            f"{runs} is inside the source folder {source}: each job would ship all earlier runs"
        )
        yield plugin.Issue(("slurm", "folder"), message, f"a folder beside it: {source}-runs")

    for name, location in plan.inputs.items():
        if location.startswith("file://") and not location.startswith("file:///"):
            message = f"{location} must be an absolute path"
            yield plugin.Issue(("inputs", name), message, "file:///shared/data")

    inputs = [input_path(plan, location) for location in plan.inputs.values()]
    for path in (section.folder, *inputs):
        if section.container and re.search("[:,]", path):
            message = f"cannot mount {path}, whose name has a colon or a comma"
            yield plugin.Issue(("slurm", "container"), message, "give the folder another name")

    for name, place in plan.secrets.items():
        store, _, source = place.partition(":")
        if store == "env" and not re.fullmatch(VARIABLE, source):
            yield plugin.Issue(("secrets", name), f"{source!r} cannot be the name of a variable")

    earlier = plan.context.resume_from
    if earlier and not earlier.startswith("/"):
        message = f"the earlier run's checkpoints are where the nodes cannot read them: {earlier}"
        hint = f"start without them: cloudtrain rerun {plan.context.resume_run} --fresh"
        yield plugin.Issue((), message, hint)


def _request(plan: plugin.Plan) -> Iterator[plugin.Issue]:
    values = plan.spec.section(SlurmSection).request
    yield from plugin.reserved_issues(values, FORM)
    for name, value in values.items():
        is_option = value is True or isinstance(value, (str, int, float))
        if not is_option or not re.fullmatch(PLAIN, f"{name}{value}"):
            message = 'must be a long option of sbatch with true, a number or text without ", \\, %'
            yield plugin.Issue(("slurm", "request", name), message)

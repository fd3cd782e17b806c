"""The section `slurm` of job.yaml."""

from __future__ import annotations

from typing import Literal

from cloudtrain.providers import plugin

PLAIN = r'^[^"\\%\n]+$'
"""Values that a quoted line of an sbatch script holds unchanged."""

RESERVED = {
    "array": "sweep",
    "account": "slurm.account",
    "chdir": "slurm.folder",
    "comment": "tags",
    "constraint": "slurm.constraint",
    "cpus-per-gpu": "slurm.cpus",
    "cpus-per-task": "slurm.cpus",
    "deadline": "limits.max_wait",
    "exclusive": "slurm.exclusive",
    "export": "env, or secrets",
    "gpus": "resources.gpus, or slurm.gres",
    "gpus-per-*": "resources.gpus, or slurm.gres",
    "gres": "slurm.gres",
    "job-name": "name",
    "mem": "slurm.memory",
    "mem-per-*": "slurm.memory",
    "nodes": "resources.nodes",
    "no-requeue": "limits.retries",
    "ntasks": "resources.processes",
    "ntasks-per-*": "resources.processes",
    "open-mode": "slurm.folder, which has the logs",
    "output": "slurm.folder, which has the logs",
    "partition": "slurm.partition",
    "qos": "slurm.qos",
    "requeue": "limits.retries, or resources.spot",
    "reservation": "slurm.reservation",
    "signal": "limits.max_runtime",
    "test-only": "cloudtrain check --online",
    "time": "limits.max_runtime",
    "wait": "cloudtrain wait",
}
"""Option of sbatch that `request` cannot set -> what to use instead."""

FORM = plugin.RequestForm(section="slurm", list_keys={}, reserved=RESERVED)


def _option(meaning: str) -> str | None:
    """Return a field for an option of sbatch."""
    option: str | None = plugin.Field(None, pattern=PLAIN, description=meaning)
    return option


class SlurmSection(plugin.Section):
    """Place of a job on a cluster, and its share of a node."""

    partition: str | None = _option("Partition of the cluster; the cluster's default if unset.")
    account: str | None = _option("Account that pays.")
    qos: str | None = _option("Quality of service.")
    constraint: str | None = _option("Features that the nodes must have.")
    reservation: str | None = _option("Reservation that holds the nodes.")
    exclusive: bool = plugin.Field(False, description="Take whole nodes, without other jobs.")
    spot_partition: str | None = _option("Partition of jobs with `resources.spot`.")
    spot_qos: str | None = _option("Quality of service of jobs with `resources.spot`.")
    gres: str | None = _option(
        "GPUs of a node in the site's words, such as `gpu:h100:8`; otherwise `--gpus-per-node` of"
        " `resources.gpus`."
    )
    cpus: int | None = plugin.Field(
        None, ge=1, description="CPUs of a node; one per process if unset."
    )
    memory: str | None = plugin.Field(
        None,
        pattern=r"^\d+[KMGT]?$",
        description="Memory of a node as sbatch writes it, such as `64G`; Slurm's default if unset.",
    )
    container: Literal["pyxis", "apptainer"] | None = plugin.Field(
        None,
        description="What starts `image` as a container: Pyxis with Enroot, or Apptainer. The image is"
        " of a registry, or a file that all nodes see. Unset: `image` is a Python environment.",
    )
    price: plugin.Money = plugin.Field(
        None,
        description="Price of one GPU for an hour, such as 2.50 USD; `limits.max_cost` needs it.",
    )
    folder: str = plugin.Field(
        "/scratch/cloudtrain",
        pattern=r'^/[^%"|\\\n]*[^%"|\\\n/]$',
        description="Folder for runs, on the file system that all nodes and this machine share.",
    )
    request: plugin.Members = plugin.Field(
        {},
        description="Other options of sbatch by their long names, such as `mail-user: me@here`;"
        " `true` for one without a value.",
    )

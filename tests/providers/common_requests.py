"""Wrong requests: their rows, and those that are wrong on every cloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# Rows of the tables of wrong requests: a job.yaml, the line to blame, and the expected message.


@dataclass(frozen=True)
class Row:
    """One wrong job."""

    id: str
    messages: tuple[str, ...]
    job: str
    env: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""
    is_limit: bool = False
    """Rows of the service model alone: an older model must not refuse a request that a newer
    service accepts.
    """


def row(id: str, at: str, *messages: str, job: str, run_id: str = "", **env: str) -> Row:
    """A mistake at a place: `2:3` of job.yaml, or the words of another origin."""
    where = f"job.yaml:{at}: " if at[:1].isdigit() else at
    return Row(id, (where, *messages), job, env, run_id)


def limit(id: str, at: str, *messages: str, job: str) -> Row:
    """A value that the service model at hand does not know or allow, at a place."""
    return replace(row(id, at, *messages, job=job), is_limit=True)


def many(count: int, line: str) -> str:
    """Return a block mapping of `count` entries; `#` in the line becomes its number."""
    return "".join(f"  {line.replace('#', str(number))}\n" for number in range(count))


# The table of requests that are wrong on every cloud, in the words of each cloud.


@dataclass(frozen=True, kw_only=True)
class Words:
    """Machines, places and limits of one cloud."""

    provider: str
    service: str
    region: str
    cpu: str
    gpu: str
    gpu_model: str
    eight_gpus: str
    eight_model: str
    a100_counts: str
    """A count of A100-80GB that the cloud has, with its machine."""
    unpriced: str
    """A machine without a list price."""
    max_nodes: int
    max_days: int
    input: str
    checkpoints: str
    """Form of a checkpoint URI."""


WORDS: Mapping[str, Words] = {
    "aws": Words(
        provider="aws",
        service="SageMaker",
        region="us-east-1",
        cpu="ml.m5.xlarge",
        gpu="ml.g5.xlarge",
        gpu_model="A10G",
        eight_gpus="ml.p4d.24xlarge",
        eight_model="A100",
        a100_counts="8 (ml.p4de.24xlarge)",
        unpriced="ml.p5en.48xlarge",
        max_nodes=899,
        max_days=28,
        input="s3://b/x/",
        checkpoints="an S3 URI",
    ),
    "azure": Words(
        provider="azure",
        service="Azure ML",
        region="eastus",
        cpu="Standard_DS3_v2",
        gpu="Standard_NC4as_T4_v3",
        gpu_model="T4",
        eight_gpus="Standard_ND96isr_H100_v5",
        eight_model="H100",
        a100_counts="4 (Standard_NC96ads_A100_v4)",
        unpriced="Standard_ND96isr_H200_v5",
        max_nodes=100,
        max_days=21,
        input="azureml:x:1",
        checkpoints="a datastore path",
    ),
}


def common_rows(provider: str) -> tuple[Row, ...]:
    """Return the rows of the table in the words of a cloud."""
    words = WORDS[provider]
    return (
        *_names_and_places(words),
        *_machines(words),
        *_limits(words),
    )


def _names_and_places(words: Words) -> tuple[Row, ...]:
    no_uri = f"no URI for provider {words.provider}"
    reserved = "names that begin with cloudtrain"
    return (
        row("run id with _", "", "'bad_id' is not a valid run id", job="{}\n", run_id="bad_id"),
        row("run id of 64 characters", "", "is not a valid run id", job="{}\n", run_id="a" * 64),
        row(
            "input without a place",
            "1:10",
            "inputs.train: ",
            no_uri,
            job="inputs: {train: {local: ./data}}\n",
        ),
        row(
            "input of a reserved name",
            "1:10",
            f"inputs.cloudtrain-x: {reserved}",
            job=f"inputs: {{cloudtrain-x: '{words.input}'}}\n",
        ),
        row(
            "secret without a place",
            "1:11",
            "secrets.TOKEN: ",
            no_uri,
            job="secrets: {TOKEN: {local: 'env:TOKEN'}}\n",
        ),
        row(
            "tag of ours",
            "1:8",
            f"tags.cloudtrain-run: {reserved}",
            job="tags: {cloudtrain-run: x}\n",
        ),
        row(
            "checkpoints on this machine",
            "1:15",
            f"checkpoints.uri: './c' is not {words.checkpoints}",
            job="checkpoints: {uri: ./c}\n",
        ),
    )


def _machines(words: Words) -> tuple[Row, ...]:
    def instance(name: str, gpus: int) -> str:
        return f"resources: {{instance: {{{words.provider}: {name}}}, gpus: {gpus}}}\n"

    none_has = f"no {words.provider} instance type has"
    return (
        row(
            "fewer GPUs than the machine has",
            "1:24",
            f"{words.eight_gpus} has 8 x {words.eight_model}, the job uses 4 per node",
            "hint: resources.gpus: 8",
            job=instance(words.eight_gpus, 4),
        ),
        *(
            row(
                f"{gpus} GPUs on a machine with one",
                "1:24",
                f"{words.gpu} has 1 x {words.gpu_model}, the job uses {gpus} per node",
                job=instance(words.gpu, gpus),
            )
            for gpus in (0, 8)
        ),
        row(
            "a CPU machine for a GPU job",
            "1:24",
            "no GPU, the job uses 1",
            job=instance(words.cpu, 1),
        ),
        row(
            "a count that no machine of the model has",
            "1:22",
            f"{none_has} 3 x A100-80GB",
            words.a100_counts,
            job="resources: {gpus: 3, gpu: A100-80GB}\n",
        ),
        row("a count that no machine has", "1:13", f"{none_has} 7", job="resources: {gpus: 7}\n"),
        row(
            "too many nodes",
            "1:13",
            f"{words.max_nodes + 1} nodes exceed the limit of {words.provider}",
            job=f"resources: {{nodes: {words.max_nodes + 1}}}\n",
        ),
    )


def _limits(words: Words) -> tuple[Row, ...]:
    unpriced = f"resources: {{instance: {{{words.provider}: {words.unpriced}}}, gpus: 8}}\n"
    days = words.max_days + 1
    return (
        row(
            "running too long",
            "1:10",
            f"{days} d is longer than {words.service} runs a job",
            job=f"limits: {{max_runtime: {days} d}}\n",
        ),
        row(
            "money for seconds only",
            "2:10",
            "limits.max_cost: 0.01 USD pay for",
            job="resources: {gpus: 8, gpu: H100}\nlimits: {max_cost: 0.01 USD}\n",
        ),
        row(
            "money for a machine of unknown price",
            "2:10",
            "limits.max_cost: cannot be kept",
            f"cloudtrain gpus --provider {words.provider} --region {words.region} --refresh, ",
            job=f"{unpriced}limits: {{max_cost: 50 USD, max_runtime: 1 h}}\n",
        ),
        row(
            "no limit for a machine of unknown price",
            "limits: the price of this machine is unknown",
            "hint: set limits.max_runtime",
            job=unpriced,
        ),
        row(
            "a file that is not a price list",
            "environment CLOUDTRAIN_PRICES: prices: ",
            "expected the columns",
            job="{}\n",
            CLOUDTRAIN_PRICES="job.yaml",
        ),
    )

"""Failures of containers, of runs, and of jobs in the imitated clouds, each with the rule that
names its cause.
"""

# ruff: noqa: E501  (one row, one line)

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.diagnosis.failure import Diagnosis, diagnose_lines
from cloudtrain.diagnosis.log_text import evidence_of
from tests.bench.failing import LIMIT_SECONDS, SKIPPED, Outcome, outcome_of

IMAGE = "cloudtrain:cpu"

CONTAINERS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "container over its memory": (
        "container-memory-limit",
        ("--memory=64m", "--memory-swap=64m"),
        ("python3", "-c", "x = bytearray(1 << 30)"),
    ),
    "container with little shared memory": (
        "shared-memory",
        ("--shm-size=64k",),
        ("python3", "-c", "import torch, torch.utils.data as d\n"
         "next(iter(d.DataLoader([torch.zeros(1 << 20)] * 4, num_workers=1)))"),
    ),
    "container without the program": ("command-not-found", (), ("no-such-program",)),
    "container with a read-only root": ("read-only-disk", ("--read-only",), ("python3", "-c", "open('/x', 'w')")),
    "container of another user": (
        "permission-denied",
        ("--user=65534",),
        ("python3", "-c", "open('/etc/x', 'w')"),
    ),
}  # fmt: skip
"""Rule, options of `docker run`, command."""


def container_failures(only: str) -> Iterator[Outcome]:
    """Each in a container that is removed; skipped without an engine or the image."""
    for name, (rule, options, command) in CONTAINERS.items():
        if only in name:
            yield outcome_of(name, "container", rule, *_container(options, command))


def _container(options: tuple[str, ...], command: tuple[str, ...]) -> tuple[Diagnosis, str]:
    name = f"failing-{uuid.uuid4().hex[:8]}"
    try:
        done = _run("docker", "run", f"--name={name}", "--network=none", "--pull=never", "--entrypoint=", *options, IMAGE,
                    *command)  # fmt: skip
        state = _run("docker", "inspect", "--format", '"OOMKilled": {{.State.OOMKilled}}', name)
    finally:
        _run("docker", "rm", "--force", name)
    said = SKIPPED if "No such image" in done or "Cannot connect" in done else done + state
    return _diagnosed(said), said


def _run(*argv: str, **options: Any) -> str:
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        errors="replace",
        **options,
    )
    return f"{done.stdout}{done.stderr}"


def _diagnosed(text: str) -> Diagnosis:
    return diagnose_lines(
        each
        for number, line in enumerate(text.splitlines(), 1)
        for each in evidence_of(line, "said", number)
    )


_GROUP = (
    "import os, signal, sys, time, torch, torch.distributed as"
    " dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"
)
RUNS: dict[str, tuple[str, str, str]] = {
    "rank killed in a run": ("killed", "", _GROUP + "dist.barrier()\nif rank: os.kill(os.getpid(), signal.SIGKILL)\n"
                             "dist.all_reduce(torch.ones(1))\n"),
    "rank that ends early": ("ended-early", "", _GROUP + "dist.barrier()\nif rank: sys.exit(0)\n"
                             "dist.all_reduce(torch.ones(1))\n"),
    "world split in two": ("world-split", "launch: {require_group: true}\n",
                           "import torch.distributed as dist, socket\ns = socket.socket(); s.bind(('127.0.0.1', 0))\n"
                           "port = s.getsockname()[1]; s.close()\nimport os; os.environ.pop('TORCHELASTIC_USE_AGENT_STORE', 0)\n"
                           "dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=0, world_size=1)\n"),
    "exception of a rank": ("none", "", _GROUP + "if rank: raise ValueError('the dog ate shard 3')\ndist.barrier()\n"),
    "input that the script misnames": ("file-not-found", "", "open('data/train.csv')\n"),
    "requirement that nobody has": ("package-not-found", "dependencies: [nobody-has-this-package==99.99]\n", "print(1)\n"),
    "arguments that it refuses": ("arguments", "args: {no-such: 1}\n",
                                  "import argparse\nargparse.ArgumentParser().parse_args()\n"),
    "abort in an exit handler": ("aborted", "", "import atexit, os\natexit.register(os.abort)\nprint('done')\n"),
}  # fmt: skip
"""Rule, more of job.yaml, program: runs of two ranks on this machine, diagnosed by the command."""


def run_failures(only: str) -> Iterator[Outcome]:
    """Each is submitted, waited for, and diagnosed by `cloudtrain diagnose --json`."""
    for name, (rule, settings, program) in RUNS.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            job = f"name: fails\nentrypoint: train.py\nresources: {{processes: 2}}\n{settings}"
            source = Path(folder, "job")
            source.mkdir()
            (source / "job.yaml").write_text(job)
            (source / "train.py").write_text(program)
            env = {**os.environ, "CLOUDTRAIN_DATA_DIR": f"{folder}/data", "PIP_NO_INDEX": "1"}
            cloudtrain = str(Path(sys.executable).with_name("cloudtrain"))
            said = _run(cloudtrain, "submit", "--provider", "local", cwd=source, env=env)
            printed = _run(cloudtrain, "diagnose", "--json", cwd=source, env=env)
            failure: dict[str, Any] = {"rule": SKIPPED, "cause": printed[-200:]}
            with suppress(ValueError, KeyError):
                failure = (
                    json.JSONDecoder().raw_decode(printed, printed.index("{"))[0]["failure"] or {}
                )
            evidence = (failure.get("evidence") or [{}])[0].get("text", said[-160:])
            yield Outcome(
                name, "run", rule, failure.get("rule") or "none", failure.get("cause", ""), evidence
            )


def cloud_failures(only: str) -> Iterator[Outcome]:
    """What the imitations say: refused requests, and the reasons of jobs that have failed."""
    yield from _of_aws(only)
    yield from _of_azure(only)


def _of_aws(only: str) -> Iterator[Outcome]:
    from tests.fakes.aws.cloud import Cloud
    from tests.fakes.aws.samples import ended, request

    with Cloud(phase_seconds=0.01) as cloud:
        account = cloud.account
        sagemaker = cloud.client("sagemaker")

        def job(name: str, **changes: Any) -> str:
            sagemaker.create_training_job(**{**request(cloud, name), **changes})
            about = ended(cloud, name)
            return str(about.get("FailureReason") or about["SecondaryStatus"])

        spot = {"EnableManagedSpotTraining": True}
        spot["StoppingCondition"] = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 1}  # type: ignore[assignment]
        cases: dict[str, tuple[str, Callable[[], str]]] = {
            "quota of SageMaker": ("sagemaker-quota", lambda: _with(account.quotas, "ml.g5.xlarge", 0, lambda: job("a"))),
            "no machines of SageMaker": ("no-capacity", lambda: _within(account.capacity, "ml.g5.xlarge", lambda: job("b"))),
            "no spot machine in time": (
                "spot-interrupted",
                lambda: _within(account.capacity, "ml.g5.xlarge", lambda: job("c", **spot)),
            ),
            "role that does not trust": ("role-not-trusted", lambda: job("d", RoleArn=f"{cloud.role}-untrusted")),
            "image that is not in ECR": ("image-not-found", lambda: _within(account.missing_images, cloud.image, lambda: job("e"))),
            "right that a caller lacks": (
                "aws-denied",
                lambda: _within(account.denied_actions, "sagemaker:CreateTrainingJob", lambda: job("f")),
            ),
        }  # fmt: skip
        for name, (rule, provoke) in cases.items():
            if only in name:
                yield _said_by(name, rule, provoke)


def _of_azure(only: str) -> Iterator[Outcome]:
    from tests.fakes.azure.cloud import AzureCloud
    from tests.fakes.azure.samples import client, document, ended, submit

    with AzureCloud(phase_seconds=0) as cloud, tempfile.TemporaryDirectory() as folder:
        os.environ.update(cloud.environment())
        account = cloud.account
        workspace = client(cloud)

        def job(name: str, **changes: Any) -> str:
            submit(workspace, document(cloud, name, Path(folder), "talk", **changes))
            ended(cloud, name)
            error = cloud.service.jobs[name].error
            return str(error["message"]) if error else ""

        nothing = {"train": {"type": "uri_folder", "mode": "ro_mount"}}
        nothing["train"]["path"] = "azureml://datastores/workspaceblobstore/paths/nothing/"
        cases: dict[str, tuple[str, Callable[[], str]]] = {
            "image that Azure cannot pull": (
                "image-not-pulled",
                lambda: _within(account.missing_images, cloud.image, lambda: job("a")),
            ),
            "input that is not in the store": (
                "input-unreadable",
                lambda: job("b", inputs=nothing),
            ),
        }
        for name, (rule, provoke) in cases.items():
            if only in name:
                yield _said_by(name, rule, provoke)


def _said_by(name: str, rule: str, provoke: Callable[[], str]) -> Outcome:
    began = time.monotonic()
    try:
        said = provoke()
    except Exception as error:  # noqa: BLE001  (what a cloud refuses with is what is being looked at)
        said = f"{type(error).__name__}: {error}"
    found = diagnose_lines(evidence_of(said.replace("\n", " "), "platform", 0))
    return outcome_of(
        name, "cloud", rule, found, f"{said[:150]} ({time.monotonic() - began:.0f} s)"
    )


def _with(table: dict[str, int], key: str, value: int, provoke: Callable[[], str]) -> str:
    table[key] = value
    try:
        return provoke()
    finally:
        del table[key]


def _within(names: set[str], name: str, provoke: Callable[[], str]) -> str:
    names.add(name)
    try:
        return provoke()
    finally:
        names.discard(name)

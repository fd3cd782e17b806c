"""Machines in a request: GPUs, disks, keys and images."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest

from cloudtrain.errors import SpecError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.request import job_of
from tests.golden.cases import plan_of

KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"
ID = "12345678-1234-1234-1234-123456789012"


def planned(provider: str, instance: str, more: str = "") -> Plan:
    text = (
        f"name: digits\nresources: {{instance: {{{provider}: {instance}}}{more}}}\nlimits:"
        " {max_runtime: 1 h}\n"
    )
    return plan_of(provider, text)


def request(plan: Plan) -> Any:
    return get_provider(plan.target.provider).render(plan)


def texts_of(plan: Plan) -> list[str]:
    return [issue.line() for issue in plan.issues if issue.is_error]


@pytest.mark.parametrize(
    ("provider", "instance", "gpus"),
    [
        ("aws", "ml.p4d.24xlarge", 8),
        ("aws", "[ml.p5.48xlarge, ml.p4de.24xlarge]", 8),
        ("aws", "ml.m5.xlarge", 0),
        ("aws", "ml.r5d.large", 0),  # which no table of ours knows
        ("azure", "Standard_NC48ads_A100_v4", 2),
        ("azure", "[Standard_NC24ads_A100_v4, Standard_NC40ads_H100_v5]", 1),
        ("azure", "Standard_E4s_v5", 0),
    ],
)
def test_an_instance_alone_means_that_machine_with_all_its_gpus(
    provider: str, instance: str, gpus: int
) -> None:
    plan = planned(provider, instance)
    job = request(plan).job
    assert (job.gpus, job.processes, plan.gpus) == (gpus, max(1, gpus), gpus)
    assert texts_of(plan) == []


def test_a_rehearsal_asks_for_the_gpus_of_the_machine() -> None:
    from pathlib import Path

    import cloudtrain

    job = cloudtrain.load(
        {"name": "digits", "resources": {"instance": {"aws": "ml.g5.12xlarge"}}, "source": "tests"}
    )
    for host in ("local", "docker"):
        plan = cloudtrain.plan(job, host, as_="aws", data_dir=str(Path("/nonexistent")))
        assert (plan.gpus, plan.processes, getattr(plan.host.config, "gpus", 4)) == (4, 4, 4)


WRONG_COUNTS = {
    "different numbers": (
        "aws",
        "[ml.p4d.24xlarge, ml.g5.12xlarge]",
        "",
        "these types have different numbers of GPUs",
    ),
    "unknown to the table": (
        "aws",
        "ml.p2.xlarge",
        "",
        "ml.p2.xlarge is not in the table of machines, so its number of GPUs",
    ),
    "unknown on Azure": (
        "azure",
        "Standard_NC6s_v3",
        "",
        "Standard_NC6s_v3 is not in the table of machines",
    ),
    "none said": (
        "aws",
        "ml.p4d.24xlarge",
        ", gpus: 0",
        "ml.p4d.24xlarge has 8 x A100, the job uses 0 per node",
    ),
}


@pytest.mark.parametrize("case", WRONG_COUNTS.values(), ids=WRONG_COUNTS.keys())
def test_what_says_no_one_number_of_gpus_is_refused(case: tuple[str, str, str, str]) -> None:
    provider, instance, more, message = case
    with pytest.raises(SpecError, match=message):
        planned(provider, instance, more)


@pytest.mark.parametrize(
    "instance",
    ["ml.r5d.large", "ml.p5.48xlarge", "ml.g4dn.xlarge", "ml.g6e.xlarge", "ml.p6e-gb200.36xlarge"],
)
def test_a_machine_with_disks_of_its_own_takes_neither_a_volume_nor_a_key_for_it(
    instance: str,
) -> None:
    text = "name: d\nimage: '123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1'\n"
    text += f"resources: {{instance: {{aws: {instance}}}}}\n"
    plan = plan_of("aws", f"{text}limits: {{max_runtime: 1 h}}\naws: {{kms_key: alias/mine}}\n")
    body = request(plan).document
    assert not {"VolumeSizeInGB", "VolumeKmsKeyId"} & body["ResourceConfig"].keys()
    assert body["OutputDataConfig"]["KmsKeyId"] == "alias/mine"
    assert texts_of(plan) == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (KEY, ""),
        (ID, ""),
        ("alias/mine", "is an alias, and disks can only be encrypted with a key's id or ARN"),
        ("arn:aws:kms:us-east-1:123456789012:alias/mine", "is an alias"),
        ("mine", "'mine' is not a KMS key"),
        ("arn:aws:kms:eu-west-1:123456789012:key/1", "is in eu-west-1, the job runs in us-east-1"),
    ],
    ids=["ARN", "id", "alias", "ARN of an alias", "a name", "another region"],
)
def test_a_key_for_a_volume_is_an_id_or_an_arn(key: str, message: str) -> None:
    plan = plan_of("aws", f"name: d\naws: {{kms_key: '{key}'}}\n")
    assert [text for text in texts_of(plan) if message not in text or not message] == []
    assert bool(texts_of(plan)) == bool(message)
    assert request(plan).document["ResourceConfig"]["VolumeKmsKeyId"] == key


ARM = "ml.p6e-gb200.36xlarge", "Standard_ND128isr_NDR_GB200_v6"
IMAGES = {
    "aws, auto": (
        "aws",
        ARM[0],
        "auto",
        "AWS's containers are built for amd64, and ml.p6e-gb200.36xlarge has ARM",
    ),
    "aws, a container": ("aws", ARM[0], "dlc:pytorch-2.10", "AWS's containers are built for amd64"),
    "aws, both kinds": (
        "aws",
        f"[{ARM[0]}, ml.g5.12xlarge]",
        "auto",
        "no single image supports all of these machines",
    ),
    "azure, auto": ("azure", ARM[1], "auto", "Microsoft's environment is built for amd64"),
}


@pytest.mark.parametrize("case", IMAGES.values(), ids=IMAGES.keys())
def test_a_container_of_the_clouds_is_not_sent_to_arm_processors(
    case: tuple[str, str, str, str],
) -> None:
    provider, instance, image, message = case
    text = (
        f"name: d\nimage: '{image}'\nresources: {{gpus: 4, instance: {{{provider}: {instance}}}}}\n"
    )
    with pytest.raises(SpecError, match=message):
        plan_of(provider, f"{text}limits: {{max_runtime: 1 h}}\n")


def test_asking_the_trainer_of_its_arguments_leaves_no_trace_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = ModuleType("cloudtrain_job")
    monkeypatch.setitem(sys.modules, "cloudtrain_job", mine)
    before = (
        dict(os.environ),
        list(sys.path),
        {name for name in sys.modules if name.startswith("cloudtrain_trainer")},
    )
    for _ in range(2):
        plan = plan_of("aws", "name: d\nargs: {epochs: two}\n")
        assert (
            "argument --epochs: expected a whole number of 1 or more, got 'two'"
            in texts_of(plan)[0]
        )
    assert sys.modules["cloudtrain_job"] is mine
    after = {name for name in sys.modules if name.startswith("cloudtrain_trainer")}
    assert (dict(os.environ), list(sys.path), after) == before


@pytest.mark.parametrize(("keep", "retained"), [(1, 2), (2, 2), (5, 5)])
def test_sagemaker_keeps_two_checkpoints_at_least_and_says_so(keep: int, retained: int) -> None:
    """It deletes in S3 what the job deletes, and may do so before the newest one is stored."""
    plan = plan_of("aws", f"name: d\ncheckpoints: {{keep: {keep}}}\n")
    assert job_of(plan).checkpoint_keep == retained
    notes = [issue.message for issue in plan.issues]
    assert any(note.startswith("2 checkpoints are kept, not 1: ") for note in notes) == (
        keep < retained
    )

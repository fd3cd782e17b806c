"""Machines in a request, and the tables of machines against what others know."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from datetime import date, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.catalog import PROVIDERS, Instance, instances, partition_of
from cloudtrain.catalog.machines import (
    architecture_by_name,
    has_gpus_by_name,
    local_disks,
    select_instances,
)
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.request import job_of
from cloudtrain.spec.load import spec_from_values
from tests.golden.cases import plan_of

# Machines in a request: GPUs, disks, keys and images.

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


@pytest.mark.parametrize("key", [KEY, ID], ids=["ARN", "id"])
def test_a_key_for_a_volume_is_an_id_or_an_arn(key: str) -> None:
    plan = plan_of("aws", f"name: d\naws: {{kms_key: '{key}'}}\n")
    assert texts_of(plan) == []
    assert request(plan).document["ResourceConfig"]["VolumeKmsKeyId"] == key


@pytest.mark.parametrize("own", [KEY, None], ids=["another", "none"])
def test_a_volume_may_have_another_key_than_the_output(own: str | None) -> None:
    resources = f"{{VolumeKmsKeyId: {own or 'null'}}}"
    aws = f"{{kms_key: alias/mine, request: {{ResourceConfig: {resources}}}}}"
    plan = plan_of("aws", f"name: d\naws: {aws}\n")
    assert texts_of(plan) == []
    body = request(plan).document
    assert body["ResourceConfig"].get("VolumeKmsKeyId") == own
    assert body["OutputDataConfig"]["KmsKeyId"] == "alias/mine"


def test_asking_the_trainer_of_its_arguments_leaves_the_environment_as_it_was() -> None:
    before = dict(os.environ)
    assert texts_of(plan_of("aws", "name: d\nargs: {epochs: two}\n"))
    assert dict(os.environ) == before


@pytest.mark.parametrize(("keep", "retained"), [(1, 2), (2, 2), (5, 5)])
def test_sagemaker_keeps_two_checkpoints_at_least(keep: int, retained: int) -> None:
    """It deletes in S3 what the job deletes, and may do so before the newest one is stored."""
    plan = plan_of("aws", f"name: d\ncheckpoints: {{keep: {keep}}}\n")
    assert job_of(plan).checkpoint_keep == retained


@pytest.mark.parametrize(
    ("instance", "is_noted"), [("ml.g5.xlarge", True), ("ml.p3.2xlarge", False)]
)
def test_a_size_of_disks_is_noted_on_machines_with_their_own(instance: str, is_noted: bool) -> None:
    resources = f"resources: {{instance: {{aws: {instance}}}, disk: 300 GiB}}\n"
    plan = plan_of("aws", f"name: d\n{resources}limits: {{max_runtime: 1 h}}\n")
    noted = [issue for issue in plan.issues if "resources.disk" in issue.message]
    assert [issue.is_error for issue in noted] == [False] * is_noted
    assert request(plan).document["ResourceConfig"]["VolumeSizeInGB"] == 300


# The tables of machines against what others know: botocore's list of types, and EC2's own data as
# moto carries it.

AWS = instances("aws")
AZURE = instances("azure")
AZURE_NAME = re.compile(r"Standard_([A-Z]+)(\d+)([a-z]*)(?:_NDR)?(?:_([A-Z]+\d+))?_v\d")
"""Family, vCPUs, features and GPU, by the naming conventions of Azure's machine sizes."""
ALL = [row for provider in PROVIDERS for row in instances(provider)]
NOT_SERVED = {
    "p2": "K80 GPUs, which no CUDA 12 and so no PyTorch of today runs on; EC2 has withdrawn them",
    "trn1": "AWS's own chips: the entrypoint trains on CUDA or on the CPU",
    "trn1n": "likewise",
    "trn2": "likewise",
}
"""Families of machines that SageMaker trains on and that are left out of the table on purpose."""
GPU_NAMES = {"RTX PRO Server 6000": "RTX PRO 6000"}
"""GPUs that EC2 names differently."""


@pytest.fixture(scope="module")
def training_types() -> set[str]:
    """The instance types that CreateTrainingJob takes, says botocore."""
    session = pytest.importorskip(
        "botocore.session", reason='pip install "cloudtrain[aws]"'
    ).get_session()
    return set(session.get_service_model("sagemaker").shape_for("TrainingInstanceType").enum)


@cache
def ec2() -> dict[str, Any]:
    """EC2's answer to DescribeInstanceTypes, from moto's file: importing moto.ec2 would take
    seconds.
    """
    spec = find_spec("moto")
    if spec is None or spec.origin is None:
        pytest.skip("moto is not installed")
    path = Path(spec.origin).parent / "ec2" / "resources" / "instance_types.json.gz"
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def family(instance_type: str) -> str:
    """`g5` of `ml.g5.xlarge`."""
    return instance_type.split(".")[1]


def test_every_type_with_gpus_has_a_row(training_types: set[str]) -> None:
    names = {name for name in training_types if re.match(r"ml\.(p|g|trn|inf)\d", name)}
    missing = names - {row.instance_type for row in AWS}
    assert {family(name) for name in missing} == NOT_SERVED.keys()
    assert not {family(row.instance_type) for row in AWS} & NOT_SERVED.keys()


def test_every_row_is_a_type_that_training_takes(training_types: set[str]) -> None:
    assert {row.instance_type for row in AWS} - training_types == set()


@pytest.mark.parametrize("row", AWS, ids=lambda row: row.instance_type)
def test_a_row_is_what_ec2_says(row: Instance) -> None:
    fact = ec2().get(row.instance_type.removeprefix("ml."))
    if fact is None:
        assert row.source.endswith("not checked")
        assert row.nvme is None
        return
    [gpu] = fact.get("GpuInfo", {"Gpus": [{"Name": "", "Count": 0}]})["Gpus"]
    assert (row.gpu, row.gpus) == (GPU_NAMES.get(gpu["Name"], gpu["Name"]), gpu["Count"])
    if row.gpus:
        assert row.gpu_memory_gib == pytest.approx(gpu["MemoryInfo"]["SizeInMiB"] / 1024, abs=0.5)
    else:
        assert row.gpu_memory_gib is None
    assert row.vcpus == fact["VCpuInfo"]["DefaultVCpus"]
    assert row.memory_gib * 1024 == fact["MemoryInfo"]["SizeInMiB"]
    assert row.network == ("efa" if fact["NetworkInfo"]["EfaSupported"] else "none")
    if row.network_gbps:
        cards, _, each = fact["NetworkInfo"]["NetworkPerformance"].rpartition("x ")
        assert each == f"{row.network_gbps // int(cards or 1)} Gigabit"
    assert row.nvme == fact["InstanceStorageSupported"]


def test_a_types_name_says_of_disks_processors_and_gpus_what_ec2_says() -> None:
    listed = {name: facts for name, facts in ec2().items() if not name.startswith(("mac", "u-"))}
    assert len(listed) > 1000
    assert [
        name
        for name, facts in listed.items()
        if local_disks(name) != facts["InstanceStorageSupported"]
    ] == []
    arm = {
        name
        for name, facts in listed.items()
        if "arm64" in facts["ProcessorInfo"]["SupportedArchitectures"]
    }
    assert {name for name in listed if architecture_by_name("aws", name) == "arm64"} == arm
    assert [
        name
        for name, facts in listed.items()
        if has_gpus_by_name("aws", name) != ("GpuInfo" in facts)
    ] == []


def test_disks_are_known_of_every_type_that_training_takes(training_types: set[str]) -> None:
    assert {name for name in training_types if local_disks(name) is None} == set()
    families = {family(name) for name in training_types if local_disks(name)}
    assert families == {
        *("g4dn", "g5", "g6", "g6e", "g7", "g7e", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en"),
        *("p6-b200", "p6-b300", "p6e-gb200", "r5d", "trn1", "trn1n", "trn2"),
    }


@pytest.mark.parametrize(
    ("size", "architecture"),
    [
        ("Standard_ND128isr_NDR_GB200_v6", "arm64"),
        ("Standard_ND128isr_GB300_v6", "arm64"),
        ("standard_d8ps_v5", "arm64"),
        ("Standard_E4pds_v6", "arm64"),
        ("Standard_ND96isr_H100_v5", "amd64"),
        ("Standard_NP10s", "amd64"),
        ("Standard_DS3_v2", "amd64"),
        ("Standard_E96-24ds_v5", "amd64"),
    ],
)
def test_the_name_of_an_azure_size_says_its_processor(size: str, architecture: str) -> None:
    assert architecture_by_name("azure", size) == architecture


def test_a_region_is_in_the_partition_that_botocore_says() -> None:
    session = pytest.importorskip("botocore.session").get_session()
    partitions = {
        region: partition
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("sagemaker", partition, allow_non_regional=True)
        if not region.startswith("aws-")
    }
    assert len(partitions) > 30
    assert {region: partition_of(region) for region in partitions} == partitions


def test_no_type_is_listed_twice() -> None:
    assert len({(row.provider, row.instance_type) for row in ALL}) == len(ALL)


@pytest.mark.parametrize("row", AZURE, ids=lambda row: row.instance_type)
def test_an_azure_size_is_what_its_name_says(row: Instance) -> None:
    name = AZURE_NAME.fullmatch(row.instance_type)
    assert name is not None
    family, cores, features, gpu = name.groups()
    assert family.startswith("N") == (row.gpus > 0)
    assert row.network == ("infiniband" if "r" in features else "none")
    assert row.gpu.startswith(gpu or "")
    if family != "DS":  # of the time before sizes were named by their vCPUs
        assert row.vcpus == int(cores)


UNDATED = {
    "Standard_DS3_v2": "Microsoft's own example, the only price that was found",
}
"""Machines with an older price, and why it stays."""


def test_no_price_is_older_than_a_year() -> None:
    """A bare year counts to its end. Renew the row, or leave its price blank: unknown."""
    limit = date.fromtimestamp(time.time()) - timedelta(days=366)
    dated = {row.instance_type: f"{row.as_of}-12-31"[:10] for row in ALL if row.usd_per_hour}
    old = {name for name, day in dated.items() if date.fromisoformat(day) < limit}
    assert old == UNDATED.keys()


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("L40S-48GB", "ml.g6e.xlarge"),
        ("B200-180GB", ""),
        ("H100-80GB", "ml.p5.4xlarge"),
        ("A10G-24GB", "ml.g5.xlarge"),
        ("A10G-22GB", "ml.g5.xlarge"),
    ],
)
def test_a_gpu_is_known_by_its_makers_size_and_by_what_is_usable(name: str, machine: str) -> None:
    types, gpus, problems = select_instances(
        "aws", gpus=1 if machine else 8, gpu=(name,), named=(), default=""
    )
    assert problems == []
    assert types == (machine or "ml.p6-b200.48xlarge",)
    assert spec_from_values({"resources": {"gpus": gpus, "gpu": name}}, Path("/"))

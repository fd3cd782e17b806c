"""The tables of machines against what others know: botocore's list of types, and EC2's own data as
moto carries it.
"""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.catalog import PROVIDERS, Instance, gpu_names, instances, type_names
from cloudtrain.catalog.machines import local_disks

AWS = instances("aws")
AZURE = instances("azure")
AZURE_NAME = re.compile(r"Standard_([A-Z]+)(\d+)([a-z]*)(?:_([A-Z]+\d+))?_v\d")
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
        assert row.source.startswith("unverified")
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


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.instance_type)
def test_a_row_is_whole(row: Instance) -> None:
    assert re.fullmatch(r"20\d\d(-\d\d-\d\d)?", row.as_of)
    assert row.source
    assert row.region
    assert row.vcpus > 0
    assert row.memory_gib > 0
    assert row.gpu_memory_gib is None or row.gpu_memory_gib > 0
    assert bool(row.gpu) == bool(row.gpus)
    assert row.usd_per_hour is None or row.usd_per_hour > 0
    assert row.network in ("efa", "infiniband", "none", "")


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
    assert {name for name in listed if type_names.architecture("aws", name) == "arm64"} == arm
    assert [
        name
        for name, facts in listed.items()
        if type_names.has_gpus("aws", name) != ("GpuInfo" in facts)
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
    assert type_names.architecture("azure", size) == architecture


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


def test_a_gpu_is_named_by_its_family_and_by_its_memory_where_that_differs() -> None:
    assert {"A100", "A100-40GB", "A100-80GB", "V100-16GB", "V100-32GB", "T4", "H100"} <= set(
        gpu_names()
    )
    assert not {"T4-16GB", "H100-80GB"} & set(gpu_names())

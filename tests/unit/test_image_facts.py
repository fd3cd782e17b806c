"""Facts in the names of images and GPUs, and the machines that run an image."""

from __future__ import annotations

import re

import pytest

from cloudtrain.catalog import PROVIDERS, instances, table
from cloudtrain.catalog.machines import gpu_of
from cloudtrain.planning.dockerfile import base_image, named_sources
from cloudtrain.planning.image_contents import our_contents, our_cuda
from cloudtrain.planning.image_facts import ImageFacts, facts_by_name
from cloudtrain_wire.gpus import gpu_named
from tests.golden.cases import plan_of

AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            f"{AWS}/pytorch-training:2.4.0-gpu-py311-cu124-ubuntu22.04-sagemaker",
            ImageFacts((3, 11), "cuda", (12, 4), "amd64"),
        ),
        (f"{AWS}/pytorch-training:2.10.0-gpu-py313", ImageFacts((3, 13), "cuda", (13, 0), "amd64")),
        (f"{AWS}/pytorch-training:2.8.0-cpu-py312", ImageFacts((3, 12), "cpu", (), "amd64")),
        (f"{AWS}/pytorch-training-arm64:2.7", ImageFacts(architecture="arm64")),
        (
            "azureml:AzureML-ACPT-pytorch-1.12-py39-cuda11.6-gpu@latest",
            ImageFacts((3, 9), "cuda", (11, 6), "amd64"),
        ),
        (
            "azureml://registries/azureml/environments/AzureML-sklearn-py38/versions/4",
            ImageFacts((3, 8), architecture="amd64"),
        ),
        ("azureml:AzureML-tensorflow-2.16-cuda12@latest", ImageFacts((), "cuda", (12,), "amd64")),
        ("nvidia/cuda:13.0.2-base-ubuntu24.04", ImageFacts((), "cuda", (13, 0))),
        ("pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime", ImageFacts((), "cuda", (12, 4))),
        ("own.azurecr.io/smp:pt-2.7_cuda12.8", ImageFacts((), "cuda", (12, 8))),
        ("rocm/pytorch:rocm6.2_ubuntu22.04_py3.10", ImageFacts((3, 10), "rocm")),
        ("python:3.8-slim", ImageFacts((3, 8))),
        ("registry.access.redhat.com/ubi8/python-39", ImageFacts((3, 9))),
        ("own.azurecr.io/py38-tools/train:py311", ImageFacts((3, 11))),
        ("own.azurecr.io/train@sha256:" + "c0118" * 12 + "aaaa", ImageFacts()),
        *((name, ImageFacts()) for name in ("python:3", "own/happy39:1", "nvcr.io/p:24.05-py3")),
    ],
)
def test_a_name_says_python_cuda_and_processor_or_nothing(name: str, facts: ImageFacts) -> None:
    assert facts_by_name(name) == facts


def test_every_container_of_aws_has_a_cuda_and_ours_is_in_its_lock_file() -> None:
    for row in table("dlc"):
        assert re.fullmatch(r"1\d\.\d", row["cuda"]), row["version"]

    assert "nvidia-cublas" in our_contents("cuda").packages
    assert our_cuda() == (13, 0)


def test_every_gpu_of_the_tables_has_a_capability_and_a_peak_rate() -> None:
    rows = [row for provider in PROVIDERS for row in instances(provider) if row.gpu]
    for row in rows:
        gpu = gpu_named(row.gpu)
        assert gpu is not None, row.gpu
        assert gpu.name == row.gpu
        assert gpu.capability
        assert 0 < gpu.single_tflops < gpu.half_tflops


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10-24Q", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("NVIDIA A10-8Q", None),
        ("NVIDIA H20", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_gpu_is_known_by_its_whole_name(text: str, name: str | None) -> None:
    gpu = gpu_named(text)
    assert (gpu and gpu.name) == name


@pytest.mark.parametrize(
    ("provider", "machine", "name"),
    [
        ("aws", "ml.p6e-gb200.36xlarge", "GB200"),
        ("aws", "ml.p2.xlarge", "K80"),
        ("aws", "ml.m5.large", None),
        ("azure", "Standard_ND96isr_MI300X_v5", "MI300X"),
        ("azure", "Standard_ND128isr_NDR_GB200_v6", "GB200"),
        ("azure", "standard_nc24rs_v3", "V100"),
        ("azure", "Standard_NC6", "K80"),
        ("azure", "Standard_D8s_v5", None),
    ],
)
def test_a_machine_has_the_gpu_of_its_row_or_of_its_name(
    provider: str, machine: str, name: str | None
) -> None:
    gpu = gpu_of(provider, machine)
    assert (gpu and gpu.name) == name


@pytest.mark.parametrize(
    ("provider", "machine", "gpus", "tag", "runs"),
    [
        ("aws", "ml.p6-b200.48xlarge", 8, "cu124", False),
        ("aws", "ml.p6-b200.48xlarge", 8, "cu128", True),
        ("aws", "ml.p6-b300.48xlarge", 8, "cu128", True),  # code for 10.0 runs on 10.3
        ("aws", "ml.g7e.2xlarge", 1, "cu126", False),
        ("aws", "ml.p3.2xlarge", 1, "cu130", False),
        ("aws", "ml.p3.2xlarge", 1, "cu129", True),
        ("aws", "ml.p5.48xlarge", 8, "cu117", False),
        ("aws", "ml.p5.48xlarge", 8, "cuda11", True),  # which 11 is unknown
        ("aws", "ml.g6.xlarge", 1, "cu113", True),  # code for 8.6 runs on 8.9
        ("aws", "ml.p4d.24xlarge", 8, "latest", True),
        ("azure", "Standard_ND96isr_MI300X_v5", 8, "cuda12.4", False),
        ("azure", "Standard_ND96isr_MI300X_v5", 8, "rocm6.2", True),
        ("azure", "Standard_ND96isr_H100_v5", 8, "rocm6.2", False),
        ("azure", "Standard_ND128isr_NDR_GB200_v6", 4, "cu130-amd64", False),
        ("azure", "Standard_ND128isr_NDR_GB200_v6", 4, "cu130-arm64", True),
        ("azure", "Standard_NC24ads_A100_v4", 1, "cu130-aarch64", False),
    ],
)
def test_one_rule_holds_the_machine_against_the_image_of_any_source(
    provider: str, machine: str, gpus: int, tag: str, runs: bool
) -> None:
    own = {"aws": "123456789012.dkr.ecr.us-east-1.amazonaws.com/own", "azure": "own.azurecr.io/own"}
    resources = f"{{instance: {{{provider}: {machine}}}, gpus: {gpus}}}"
    plan = plan_of(
        provider,
        f"image: '{own[provider]}:{tag}'\nresources: {resources}\nlimits: {{max_runtime: 1 h}}\n",
    )
    errors = [issue.field for issue in plan.issues if issue.is_error]
    assert errors == ([] if runs else ["image"])


@pytest.mark.parametrize(
    ("text", "args", "base"),
    [
        ("FROM python:3.8\n", {}, "python:3.8"),
        ("# FROM a\nFROM --platform=linux/amd64 \\\n  python:3.8 AS x\n", {}, "python:3.8"),
        ("FROM python:3.8 AS old\nFROM ubuntu\nCOPY --from=old / /\n", {}, "ubuntu"),
        ("FROM python:3.8 AS Old\nFROM old\n", {}, "python:3.8"),
        ("ARG V=3.8\nFROM python:$V\n", {}, "python:3.8"),
        ("ARG V=3.8\nFROM python:${V}\n", {"V": "3.12"}, "python:3.12"),
        ("FROM python:${V:-3.8}\n", {}, "python:3.8"),
        ("RUN <<EOF\nFROM a\nEOF\n", {}, ""),
        ("", {}, ""),
    ],
)
def test_the_last_stage_of_a_dockerfile_starts_from_an_image(
    text: str, args: dict[str, str], base: str
) -> None:
    assert base_image(text, args) == base


def test_sources_of_copy_are_named_with_their_lines() -> None:
    text = (
        "FROM a\n# COPY no .\nCOPY a \\\n b/ ./\nCOPY *.txt $X 'q' /\nADD https://x/y z /\n"
        'COPY --from=b c /\nCOPY ["d", "/"]\nRUN --mount=source=e true\nCOPY [f /\nCOPY g /\n'
    )
    assert named_sources(text) == [(3, "a"), (3, "b/"), (6, "z"), (8, "d")]

"""Which packages an image brings, as far as it is known without it: our own by its lock files, the clouds' by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudtrain.bundle import bundled
from cloudtrain.images.selection import PlannedImage

_TORCH = "torch torchvision torchaudio triton numpy pillow filelock fsspec jinja2 networkx sympy typing-extensions"
_USUAL = (
    "requests tqdm pyyaml packaging psutil protobuf click scipy pandas scikit-learn matplotlib h5py setuptools six pip"
)
_AWS = "boto3 botocore awscli sagemaker s3fs s3transfer opencv-python seaborn cython mpi4py sagemaker-training fastai"
_AZURE = (
    "azureml-core azureml-mlflow mlflow mlflow-skinny tensorboard deepspeed onnx onnxruntime azure-identity azure-ai-ml"
)
"""What the clouds' own PyTorch images are documented to hold: rather too much, since it only keeps warnings back."""


@dataclass(frozen=True, slots=True)
class ImageContents:
    """Packages of an image, by normalised names, and its version of torch; empty where that is not known."""

    packages: frozenset[str]
    torch: str


def contents_of(image: PlannedImage) -> ImageContents | None:
    """What an image brings; None for one that is not known: somebody's own."""
    if image.recipe is not None:
        return _ours(image.recipe.kind) if image.recipe.kind else None
    dlc = re.search(r"/pytorch-training:(\d+\.\d+\.\d+)-", image.address)
    if dlc and ".dkr.ecr." in image.address:
        return ImageContents(frozenset(f"{_TORCH} {_USUAL} {_AWS}".split()), dlc[1])
    curated = re.match(r"azureml:AzureML-acpt-pytorch-(\d+\.\d+)", image.address)
    if curated:
        return ImageContents(frozenset(f"{_TORCH} {_USUAL} {_AZURE}".split()), curated[1])
    return None


def _ours(kind: str) -> ImageContents:
    """Our own image: what its lock files name."""
    folder = bundled("docker")
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in (f"torch-{kind}.txt", "requirements.txt"))
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE))
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in locked.items()}
    return ImageContents(frozenset({*names, "pip", "setuptools"}), names.get("torch", ""))

"""Distributions of the package index that contain a module, and their usual dependencies.

They are known by name only, without the network: use them for warnings, not for errors.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cloudtrain.errors import SourceError
from cloudtrain_wire import requirement_files
from cloudtrain_wire.requirement_files import Requested as Requested
from cloudtrain_wire.requirement_files import Requirement as Requirement

_BRINGS: dict[str, str] = {
    "PIL": "pillow pillow-simd",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": (
        "opencv-python opencv-python-headless opencv-contrib-python opencv-contrib-python-headless"
    ),
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu faiss-gpu faiss-gpu-cu12",
    "flash_attn": "flash-attn",
    "git": "gitpython",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "lightning": "lightning",
    "mpl_toolkits": "matplotlib",
    "mpi4py": "mpi4py",
    "ml_collections": "ml-collections",
    "monai": "monai",
    "OpenSSL": "pyopenssl",
    "pkg_resources": "setuptools",
    "prettytable": "prettytable",
    "psycopg2": "psycopg2 psycopg2-binary",
    "pycocotools": "pycocotools",
    "pynvml": "nvidia-ml-py pynvml",
    "pythonjsonlogger": "python-json-logger",
    "pytorch_lightning": "pytorch-lightning lightning",
    "ruamel": "ruamel-yaml",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "slugify": "python-slugify",
    "tensorflow": "tensorflow tensorflow-cpu tensorflow-gpu",
    "tensorboard": "tensorboard",
    "torch_geometric": "torch-geometric",
    "umap": "umap-learn",
    "wx": "wxpython",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Distributions that contain a module, the usual one first, if the names differ."""

_ALONG: dict[str, str] = {
    "accelerate": "huggingface-hub numpy packaging psutil pyyaml safetensors",
    "datasets": (
        "dill filelock fsspec huggingface-hub multiprocess numpy pandas pyarrow pyyaml requests"
        " tqdm xxhash"
    ),
    "diffusers": "filelock huggingface-hub numpy pillow regex requests safetensors",
    "hydra-core": "omegaconf antlr4-python3-runtime packaging",
    "keras": "absl-py h5py ml-dtypes namex numpy optree packaging rich",
    "lightning": (
        "fsspec lightning-utilities numpy packaging pytorch-lightning pyyaml torchmetrics tqdm"
    ),
    "matplotlib": (
        "contourpy cycler fonttools kiwisolver numpy packaging pillow pyparsing python-dateutil"
    ),
    "mlflow": "flask numpy pandas pyyaml scikit-learn scipy sqlalchemy requests",
    "pandas": "numpy python-dateutil pytz",
    "peft": "accelerate huggingface-hub numpy psutil pyyaml safetensors tqdm transformers",
    "pytorch-lightning": "fsspec lightning-utilities numpy packaging pyyaml torchmetrics tqdm",
    "scikit-image": "imageio networkx numpy pillow scipy tifffile",
    "scikit-learn": "joblib numpy scipy threadpoolctl",
    "scipy": "numpy",
    "sentence-transformers": "huggingface-hub numpy pillow scikit-learn scipy tqdm transformers",
    "tensorboard": "absl-py grpcio markdown numpy protobuf werkzeug",
    "timm": "huggingface-hub numpy pyyaml safetensors torchvision",
    "torch": "filelock fsspec jinja2 networkx sympy typing-extensions triton setuptools",
    "torchmetrics": "lightning-utilities numpy packaging",
    "torchvision": "numpy pillow",
    "transformers": (
        "filelock huggingface-hub numpy packaging pyyaml regex requests safetensors tokenizers tqdm"
    ),
    "trl": "accelerate datasets transformers numpy",
    "wandb": "click gitpython protobuf psutil pydantic pyyaml requests sentry-sdk",
}
"""Dependencies of a distribution that programs also import directly."""

CONDA_FILES = ("environment.yml", "environment.yaml", "conda.yml", "conda.yaml")
"""Files of the source folder with packages for conda, which are not installed."""


def brought_along(names: Collection[str]) -> set[str]:
    """Return the distributions with their dependencies, by normalised names."""
    distributions: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in distributions:
            distributions.add(name)
            waiting += _ALONG.get(name, "").split()
    return distributions


def installed_version(name: str) -> str:
    """Return the version of a distribution in this Python; "" if it is not installed."""
    from importlib import metadata  # slow to import

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def distributions_of(module: str) -> list[str]:
    """Return the distributions with a module, by normalised names, the usual one first."""
    distributions = _BRINGS.get(module)
    if distributions:
        return distributions.split()
    return [requirement_files.normalised(module)]


def requested_by(root: Path, file: str) -> Requested:
    """Return the requirements of a file. Raise SourceError if it cannot be read."""
    try:
        return requirement_files.read_requested(root, file)
    except requirement_files.InvalidRequirements as error:
        hint = (
            "dependencies: none in job.yaml installs nothing; dependencies: FILE names another file"
        )
        raise SourceError(str(error), hint=hint) from None
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}") from None


def find_requirements(root: Path, paths: Collection[str]) -> str:
    """Return the requirements file that applies by default; empty for none.

    `paths`: content of the archive.
    """
    for name in requirement_files.AUTOMATIC:
        if name in paths and requested_by(root, name).to_install:
            return str(name)
    return ""

"""Files beside the weights, for containers that serve the model.

`code/inference.py` loads it in SageMaker's PyTorch containers; beside it are the modules of the
working folder. `MLmodel` and `conda.yaml` make the folder a model of MLflow.
"""

from __future__ import annotations

import inspect
import json
import platform
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloudtrain_trainer import inference
from cloudtrain_trainer.data.streams import first_batch
from cloudtrain_trainer.factories import describe
from cloudtrain_trainer.own_task import OwnModel
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task, digits

OWN_FILE = Path("code/inference.py")
"""The job's own file for serving, in the working folder."""
PACKAGES = OWN_FILE.with_name("requirements.txt")
"""Packages that the model needs where it is served, if the job names any."""

ENTRYPOINTS = Path(__file__).resolve().parents[1]
TASKS = ("cloudtrain_trainer/__init__.py", "cloudtrain_trainer/tasks/__init__.py")
"""Modules that a file with a model imports from here for its task: they need torch alone."""
NOT_OWN = re.compile(r"/(\.|site-packages/)")
"""Part of the path of a module in the working folder that is installed there."""

IMPORT = "from cloudtrain_trainer.tasks.digits import model as create\n"
ARGUMENTS = "ARGUMENTS: dict[str, Any] = "
"""Lines of inference.py that are replaced, the second up to its value."""
OWN_PATH = "sys.path.insert(0, str(Path(__file__).parent))"
"""Line that finds the modules beside it."""


class ServingForm:
    """Files to write beside the weights. `mlflow`: a model of MLflow, too.

    Raise `Refused` if MLflow cannot have this model.
    """

    def __init__(self, task: Task, *, mlflow: bool) -> None:
        self._code = _code_for(task)
        self._signature: dict[str, str] = {}
        if not mlflow:
            return

        if not self._code:
            raise Refused(
                "--mlflow-model is for a model of a function or class that can be imported"
                " (module:name), without code/inference.py of your own: name it, or leave the"
                " option out"
            )

        inputs, _ = first_batch(task.train, 1)
        if not isinstance(inputs, Tensor):
            raise Refused(
                f"--mlflow-model is for a model of one tensor, not of {describe(inputs)}: leave it"
                " out, and write code/inference.py"
            )

        if task.on_device:
            inputs = task.on_device(inputs)

        dtype = str(inputs.dtype).removeprefix("torch.")
        spec = {"dtype": dtype, "shape": [-1, *inputs.shape[1:]]}
        self._signature = {"inputs": json.dumps([{"type": "tensor", "tensor-spec": spec}])}

    def write(self, folder: Path, say: Callable[[str], None]) -> None:
        """Write the files into the model's folder.

        `say`: called with a line of text if no code can load the model.
        """
        if self._code:
            if OWN_PATH in self._code:
                _copy_modules(folder / "code")
            (folder / OWN_FILE).parent.mkdir(parents=True, exist_ok=True)
            (folder / OWN_FILE).write_text(self._code, encoding="utf-8")
        elif not OWN_FILE.exists():
            say(f"the model has no {OWN_FILE}: no import (module:name) leads to what makes it")

        if self._signature:
            _write_mlflow(folder, self._signature)


def _code_for(task: Task) -> str:
    """Return inference.py for the task's model; empty if no import leads to its constructor.

    Also empty if the job has a file in that place.
    """
    create: Any = task.model
    if isinstance(create, OwnModel):
        create = create.create

    arguments = {}
    if isinstance(create, partial) and not create.args and create.keywords.keys() <= {"seed"}:
        arguments = create.keywords
        create = create.func

    module = getattr(create, "__module__", "")
    name = getattr(create, "__qualname__", "")
    is_found = getattr(sys.modules.get(module), name, None) is create
    if not is_found or OWN_FILE.exists() or module == OWN_FILE.stem:
        return ""

    imported = f"import sys\n\n{OWN_PATH}\n\nfrom {module} import {name} as create\n"
    if create is digits.model:
        imported = "\n\n" + inspect.getsource(create).replace("model", "create", 1) + "\n"

    text = inspect.getsource(inference).replace(f"{ARGUMENTS}{{}}", f"{ARGUMENTS}{arguments!r}")
    return text.replace(IMPORT, imported)


def _copy_modules(target: Path) -> None:
    """Copy the imported modules of the working folder, and our modules that they may import."""
    folder = Path.cwd()
    files = {name: ENTRYPOINTS / name for name in TASKS}
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "/")
        if path.suffix == ".py" and path.is_relative_to(folder):
            name = str(path.relative_to(folder))
            if not path.is_relative_to(ENTRYPOINTS) and not NOT_OWN.search(f"/{name}"):
                files[name] = path

    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / name)


def _write_mlflow(folder: Path, signature: dict[str, str]) -> None:
    """Make the model's folder, with its `code/`, a model of MLflow. JSON is YAML, too."""
    python = platform.python_version()
    packages = ["mlflow", "numpy", f"torch=={torch.__version__.partition('+')[0]}"]
    if PACKAGES.exists():
        packages += PACKAGES.read_text(encoding="utf-8").splitlines()

    flavor = {
        "loader_module": OWN_FILE.stem,
        "code": OWN_FILE.parent.name,
        "python_version": python,
        "env": {"conda": "conda.yaml"},
    }
    model = {"flavors": {"python_function": flavor}, "signature": signature}
    conda = {"name": "model", "dependencies": [f"python={python}", "pip", {"pip": packages}]}
    (folder / "MLmodel").write_text(json.dumps(model, indent=1) + "\n")
    (folder / "conda.yaml").write_text(json.dumps(conda, indent=1) + "\n")

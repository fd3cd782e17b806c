"""The makers' own programs load a model's folder as it is, and predict: SageMaker's and MLflow's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.tools import PYTHON, needs_oracles, needs_serving_toolkit

ROOT = Path(__file__).parents[2]
SAGEMAKER = """
import json, os, sys
from types import SimpleNamespace
from sagemaker_pytorch_serving_container.handler_service import HandlerService

sys.path.insert(0, os.path.join(sys.argv[1], "code"))  # as the model server's PYTHONPATH
headers = {"Content-Type": "application/json", "Accept": "application/json"}
failed = []
context = SimpleNamespace(
    system_properties={"model_dir": sys.argv[1]},
    request_processor=[SimpleNamespace(get_request_properties=lambda: headers)],
    set_response_content_type=lambda *_: None,
    set_response_status=lambda **status: failed.append(status),
)
service = HandlerService()
service.initialize(context)
(answer,) = service.handle([{"body": sys.argv[2].encode()}], context)
assert not failed, answer
print(answer)
"""
MLFLOW = """
import json, sys
import mlflow.pyfunc
import numpy
model = mlflow.pyfunc.load_model(sys.argv[1])
print(json.dumps(model.predict(numpy.array(json.loads(sys.argv[2]), dtype="float32")).tolist()))
"""
OURS = """
import json, sys
sys.path.insert(0, sys.argv[1] + "/code")
import inference, torch
print(json.dumps(inference.model_fn(sys.argv[1])(torch.tensor(json.loads(sys.argv[2]))).tolist()))
"""
IMAGES = [[[[float(row == column) for column in range(8)] for row in range(8)]]] * 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a model of digits, in both forms."""
    folder = tmp_path_factory.mktemp("digits")
    words = ["--max-steps", "2", "--mlflow-model"]
    subprocess.run(
        [sys.executable, ROOT / "entrypoints" / "train.py", *words],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return str(folder / "cloudtrain-output" / "model")


def answer(python: str | Path, program: str, model: str) -> Any:
    """Return what a program prints about the images."""
    result = subprocess.run(
        [python, "-W", "ignore", "-c", program, model, json.dumps(IMAGES)],
        cwd=Path(model).parent,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@needs_serving_toolkit
def test_the_toolkit_of_sagemakers_containers_loads_the_model_and_predicts(model: str) -> None:
    assert answer(PYTHON, SAGEMAKER, model) == answer(sys.executable, OURS, model)


@needs_oracles
@pytest.mark.skipif(
    find_spec("mlflow") is None or find_spec("flask") is None, reason="needs the whole of mlflow"
)
def test_mlflow_loads_the_model_and_predicts(model: str) -> None:
    assert answer(sys.executable, MLFLOW, model) == answer(sys.executable, OURS, model)

"""Loads the trained model for containers that serve it: SageMaker's for PyTorch, and MLflow's.

It lies beside the weights in `code/`, and needs torch and what the model itself imports.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer.tasks.digits import model as create

ARGUMENTS: dict[str, Any] = {}
"""Arguments of the function that makes the model."""


def model_fn(model_dir: str, context: Any = None) -> nn.Module:  # noqa: ARG001
    """Return the trained model for evaluation, on a GPU if there is one.

    If the file has the trained weights alone, `create` makes the frozen ones.
    """
    model = create(**ARGUMENTS)
    path = Path(model_dir, "model.safetensors")
    if path.exists():
        weights, notes = read_safetensors(path, model.state_dict())
    else:
        weights = torch.load(path.with_name("model.pt"), "cpu", weights_only=True)
        notes = {}

    model.load_state_dict(weights, strict="left_out" not in notes)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    return model.to(device).eval()


def read_safetensors(
    path: Path, like: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, and its notes. A container may lack the package safetensors.

    `like`: tensors of the same types and shapes, by name.
    """
    data = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
    start = 8 + int.from_bytes(bytes(data[:8].tolist()), "little")
    entries = json.loads(bytes(data[8:start].tolist()))
    notes = entries.pop("__metadata__", {})
    tensors = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        values = data[start + begin : start + end].clone()
        tensors[name] = values.view(like[name].dtype).view(like[name].shape)

    return tensors, notes


class Predictor:
    """The model as MLflow calls it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @torch.no_grad()
    def predict(self, inputs: Any, params: Any = None) -> Any:  # noqa: ARG002
        """Return the outputs of an array of inputs, an array (batch, ...)."""
        device = next(self._model.parameters()).device
        return self._model(torch.as_tensor(inputs, device=device)).cpu().numpy()


def _load_pyfunc(path: str) -> Predictor:
    """Return the model in this folder. MLflow calls it by this name."""
    return Predictor(model_fn(path))

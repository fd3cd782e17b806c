"""Linear layers that multiply in FP8 by torchao (`--amp fp8`); everything else computes in bf16
under autocast.

Weights stay in float32 under their names. Each product rounds its two factors to FP8, with a scale
for each tensor that is computed anew in each step: activations and weights to e4m3, gradients to
e5m2.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433;
torchao/float8/README.md.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import nn

from cloudtrain_trainer.rules import Refused

EMULATED_ON: tuple[str, ...] = ()
"""Device types on which torchao rounds to FP8 and multiplies in higher precision: for tests, on a
CPU.
"""
MULTIPLE = 16
"""Both sizes of a matrix that GPUs multiply in FP8 are multiples of this (torch._scaled_mm)."""
CAPABILITY = 8, 9
"""The lowest compute capability of a GPU with FP8: Ada; Hopper is 9.0."""


class Converted(NamedTuple):
    """The names of linear layers."""

    layers: list[str]
    """That multiply in FP8."""
    others: list[str]
    """That do not."""


def check(device: torch.device) -> None:
    """Raise `Refused` if products in FP8 are not possible on this device, or torchao is not
    installed.
    """
    if device.type not in EMULATED_ON:
        has = device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY
        if not has:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
            raise Refused(
                "--amp fp8 needs a GPU of compute capability 8.9 or higher (L4, L40S, H100, H200,"
                f" B200), and this is {name}: use --amp bf16"
            )
    if find_spec("torchao") is None:
        raise Refused(
            "--amp fp8 needs torchao (the extra fp8; in a job, `packages: [torchao]`): or use --amp"
            " bf16"
        )


def convert(model: nn.Module, device: torch.device) -> Converted:
    """Have linear layers multiply in FP8, in place. Raises `Refused` if the device cannot, or there
    are no such layers.

    Left out are the first and the last module with a matrix, such as embedding and head, which FP8
    harms most, and layers whose sizes are not multiples of 16.
    """
    check(device)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    names = candidates(model)
    if not names.layers:
        raise Refused(
            "--amp fp8 finds no linear layers between the first and the last layer to convert: use"
            " --amp bf16"
        )
    config = Float8LinearConfig(emulate=device.type in EMULATED_ON)
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name in names.layers
    )
    return names


def candidates(model: nn.Module) -> Converted:
    """Which of the model's linear layers can multiply in FP8, in the model's order."""
    with_matrix = [
        name
        for name, module in model.named_modules()
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    ]
    between = set(with_matrix[1:-1])
    linear = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    chosen = [name for name, module in linear.items() if name in between and _is_multiple(module)]
    return Converted(chosen, [name for name in linear if name not in chosen])


def _is_multiple(layer: nn.Linear) -> bool:
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0

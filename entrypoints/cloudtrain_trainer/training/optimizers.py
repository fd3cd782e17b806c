"""The optimizer of a run, and which of its parameters decay."""

from __future__ import annotations

import torch
from torch import Tensor

from cloudtrain_trainer.training.gradients import grouped, sharding


def build(parameters: list[Tensor], lr: float, weight_decay: float, *, fused: bool) -> torch.optim.Optimizer:
    """AdamW over the parameters that are trained. `fused`: as one kernel per group, which GPUs have."""
    groups = [
        {"params": group, "weight_decay": weight_decay if _is_matrix(group[0]) else 0.0}
        for group in grouped(parameters, lambda p: (sharding(p), _is_matrix(p)))
    ]
    return torch.optim.AdamW(groups, lr=lr, fused=fused)


def _is_matrix(parameter: Tensor) -> bool:
    """Whether a parameter decays: biases and the factors of norms have one dimension, and do not."""
    return parameter.dim() >= 2

"""Cross-entropy over a large vocabulary, without float32 copies of bf16 logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats, float32, shape (). `logits`: (n, classes). `targets`: (n,), int64.

    Of bf16 logits only their probabilities are stored, in bf16; sums over classes are in float32 inside the kernel.
    That rounds each loss by up to 0.004, up or down at random, which the mean over a batch takes away; the logits
    themselves are rounded by as much or more. A compiler fuses the float32 form, which it gets instead.
    """
    if logits.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
        return _FromProbabilities.apply(logits, targets)  # type: ignore[no-any-return, no-untyped-call]
    return F.cross_entropy(logits.float(), targets)


class _FromProbabilities(torch.autograd.Function):
    """The gradient of the mean is (probabilities - 1 at the target) / n, made in the probabilities' own memory."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(logits.device.type, enabled=False):  # which would compute softmax in float32
            probabilities = torch.softmax(logits, dim=-1)
        columns = targets[:, None]
        ctx.save_for_backward(probabilities, columns)
        chosen = probabilities.gather(1, columns).float()
        return chosen.clamp_min_(torch.finfo(torch.bfloat16).tiny).log_().mean().neg_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        probabilities, columns = ctx.saved_tensors
        weight = (grad / len(columns)).to(probabilities.dtype)
        gradient = probabilities.mul_(weight)
        return gradient.scatter_add_(1, columns, (-weight).expand(columns.shape)), None

"""Cross-entropy over a large vocabulary, without float32 copies of bf16 logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats, float32, shape (). `logits`: (n, classes). `targets`: (n,),
    int64.

    Of bf16 logits only their probabilities are stored, in bf16; sums over classes are in float32.
    That rounds each loss by up to 0.004, and a small one by less than 1 % of it; the logits
    themselves are rounded by as much or more. A compiler fuses the float32 form, which it gets
    instead.
    """
    if logits.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
        return _FromProbabilities.apply(logits, targets)  # type: ignore[no-any-return, no-untyped-call]
    return F.cross_entropy(logits.float(), targets)


class _FromProbabilities(torch.autograd.Function):
    """The gradient of the mean is (probabilities - 1 at the target) / n.

    In bf16 a probability above 0.998 is 1, and nothing more would be learnt of its token. So 1 less
    the probability of the target is the sum of the others, which bf16 holds as finely however small
    they are.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(
            logits.device.type, enabled=False
        ):  # which would compute softmax in float32
            probabilities = torch.softmax(logits, dim=-1)
        columns = targets[:, None]
        chosen = probabilities.gather(1, columns).float()
        others = probabilities.scatter_(1, columns, 0.0).sum(1, keepdim=True, dtype=torch.float32)
        ctx.save_for_backward(probabilities, columns, others)
        logs = chosen.clamp_min_(torch.finfo(torch.bfloat16).tiny).log_()
        return torch.where(others < 0.5, torch.log1p(-others), logs).mean().neg_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        probabilities, columns, others = ctx.saved_tensors
        weight = grad / len(columns)
        gradient = probabilities.mul(weight)
        return gradient.scatter_(1, columns, others.mul(-weight).to(gradient.dtype)), None

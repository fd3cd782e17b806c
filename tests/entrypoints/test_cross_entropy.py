"""The loss of bf16 logits and its gradient equal those of float32, for well-known tokens too."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cloudtrain_trainer.models.decoder import cross_entropy


@pytest.mark.parametrize("lead", [0, 14, 17], ids=["unknown", "known", "known well"])
def test_loss_and_gradient_of_bf16_logits_are_those_of_float32(lead: int) -> None:
    """`lead`: of the right token's logit. In bf16 alone the last gradient would be zero."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(512, 1000, generator=generator)
    targets = torch.randint(0, 1000, (512,), generator=generator)
    values[torch.arange(512), targets] += lead
    narrow = values.bfloat16().requires_grad_()
    wide = narrow.detach().float().requires_grad_()
    loss = cross_entropy(narrow, targets)
    expected = F.cross_entropy(wide, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    expected.backward()  # type: ignore[no-untyped-call]
    assert narrow.grad is not None
    assert wide.grad is not None
    assert expected.item() > 0
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    assert (narrow.grad.float() - wide.grad).norm() < 0.01 * wide.grad.norm()

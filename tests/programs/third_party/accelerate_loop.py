"""Accelerate: the loop of its documentation, with accumulation, and its state saved beside the
program.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.rand(128, 20)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(2):
    for batch, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(batch), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
accelerator.save_state("accelerate-state")
total = accelerator.reduce(loss.detach(), reduction="mean")
if accelerator.is_main_process:
    print(f"final loss {total.item():.6f}")
accelerator.end_training()

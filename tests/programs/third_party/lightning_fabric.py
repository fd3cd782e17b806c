"""Lightning Fabric: `fabric.launch()` finds the ranks that torchrun has started."""

import os

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

# The edit: how many devices and nodes there are; on a CPU, "auto" means one device.
fabric = Fabric(
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["CLOUDTRAIN_NODES"]),
    strategy="ddp",
)
fabric.launch()
fabric.seed_everything(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=1e-2))
inputs = torch.rand(128, 20)
loader = fabric.setup_dataloaders(
    DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
)
for _ in range(2):
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), targets)
        fabric.backward(loss)
        optimizer.step()
fabric.save("fabric.ckpt", {"model": model, "optimizer": optimizer})
total = fabric.all_reduce(loss.detach(), reduce_op="mean")
if fabric.is_global_zero:
    print(f"final loss {total.item():.6f}")

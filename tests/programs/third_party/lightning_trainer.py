"""Lightning's Trainer with its own demo model; it must know the number of devices and nodes."""

import os

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel

if __name__ == "__main__":
    seed_everything(0)
    trainer = Trainer(
        max_epochs=2,
        limit_train_batches=8,
        limit_val_batches=2,
        accelerator="auto",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),  # the edit: on a CPU, "auto" means one device
        num_nodes=int(os.environ["CLOUDTRAIN_NODES"]),  # the edit
        enable_progress_bar=False,
    )
    model = BoringModel()
    trainer.fit(model)
    loss = trainer.strategy.reduce(
        torch.stack([parameter.sum() for parameter in model.parameters()]).sum(), reduce_op="mean"
    )
    if trainer.is_global_zero:
        print(f"final loss {loss.item():.6f}")

"""As in PyTorch's series of tutorials on DDP: arguments by position, and a snapshot beside the
program.
"""

import os
import sys

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SNAPSHOT = "snapshot.pt"


class Trainer:
    """Trains a linear model, and continues from an existing snapshot."""

    def __init__(self, data):
        self.rank = int(os.environ["RANK"])
        self.data = data
        self.first_epoch = 0
        self.loss = torch.zeros(())
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 1)
        if os.path.exists(SNAPSHOT):
            snapshot = torch.load(SNAPSHOT, weights_only=True)
            model.load_state_dict(snapshot["model"])
            self.first_epoch = snapshot["epochs"]
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)

    def train(self, epochs, save_every):
        for epoch in range(self.first_epoch, epochs):
            self.data.sampler.set_epoch(epoch)
            for inputs, targets in self.data:
                self.optimizer.zero_grad()
                self.loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
                self.loss.backward()
                self.optimizer.step()
            if self.rank == 0 and (epoch + 1) % save_every == 0:
                torch.save({"model": self.model.module.state_dict(), "epochs": epoch + 1}, SNAPSHOT)


if __name__ == "__main__":
    init_process_group("gloo")
    torch.manual_seed(1)
    inputs = torch.rand(256, 20)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer = Trainer(DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset)))
    trainer.train(int(sys.argv[1]), int(sys.argv[2]))
    loss = trainer.loss.detach()
    torch.distributed.all_reduce(loss, torch.distributed.ReduceOp.AVG)
    if trainer.rank == 0:
        print(f"final loss {loss.item():.6f}")
    destroy_process_group()

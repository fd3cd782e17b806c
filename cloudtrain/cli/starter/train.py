"""A small torchrun script that learns a straight line, and survives a restart.

Nothing in it needs cloudtrain: `torchrun --nproc-per-node 2 train.py` runs it as well.
"""

import argparse
import os
from pathlib import Path
from pickle import UnpicklingError

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from cloudtrain_job import log_metrics, log_progress  # part of every cloudtrain job
except ImportError:

    def log_metrics(**values: object) -> None:
        print(values, flush=True)

    def log_progress(step: int, steps: int) -> None:
        print(f"step {step} of {steps}", flush=True)


STEPS_PER_EPOCH = 50


def train(args: argparse.Namespace) -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))

    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} is here", flush=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), args.lr)
    # The platform keeps this folder over restarts; without cloudtrain it is beside the script.
    checkpoints = Path(os.environ.get("CLOUDTRAIN_CHECKPOINT_DIR", "checkpoints"))
    first = 0
    if state := load(checkpoints, device):
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
        print(f"rank {rank} continues after epoch {first}", flush=True)
        apply_changes(args, state["args"], optimizer)

    generator = torch.Generator()
    for epoch in range(first, args.epochs):
        generator.manual_seed(1000 * epoch + rank)  # the same batches after a restart
        for _ in range(STEPS_PER_EPOCH):
            x = torch.rand(32, 1, generator=generator).to(device)
            loss = nn.functional.mse_loss(model(x), 3 * x + 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        step = STEPS_PER_EPOCH * (epoch + 1)
        log_progress(step, STEPS_PER_EPOCH * args.epochs)  # for the time left
        log_metrics(step=step, epoch=epoch + 1, loss=loss.item())
        if rank == 0:
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
                "args": vars(args),
            }
            save(state, checkpoints)

    if rank == 0:
        folder = Path(os.environ.get("CLOUDTRAIN_MODEL_DIR", "."))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), folder / "model.pt")


def apply_changes(args: argparse.Namespace, before: dict, optimizer: torch.optim.Optimizer) -> None:
    """Use the new arguments: the optimizer's state has the learning rate of the checkpoint."""
    changed = {
        name: value for name, value in vars(args).items() if before.get(name, value) != value
    }
    for name, value in changed.items():
        print(f"{name} is {value}; it was {before[name]} in the checkpoint", flush=True)
    if "lr" in changed:
        for group in optimizer.param_groups:
            group["lr"] = args.lr


def save(state: dict, folder: Path) -> None:
    """Save a checkpoint atomically, and keep the previous one."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "latest.tmp")
    if (folder / "latest.pt").exists():
        (folder / "latest.pt").replace(folder / "previous.pt")
    (folder / "latest.tmp").replace(folder / "latest.pt")


def load(folder: Path, device: torch.device) -> dict:
    """Return the newest complete checkpoint, or an empty dict: a crash may leave half of one."""
    for path in (folder / "latest.pt", folder / "previous.pt"):
        if path.exists():
            try:
                return torch.load(path, map_location=device, weights_only=True)
            except (RuntimeError, EOFError, UnpicklingError) as error:
                print(f"{path.name} is damaged, the one before is tried: {error}", flush=True)
    return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args)  # frees the model before its process group: else torch 2.13 may hang at the end
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

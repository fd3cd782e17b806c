"""A small network on the digits of scikit-learn, by torchrun or alone: plain PyTorch, with a folder
for its results.
"""

import argparse
import csv
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--out-dir", type=Path, default=Path("out"))
options = parser.parse_args()

gpu = torch.cuda.is_available()
device = (
    torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
)
if "RANK" in os.environ:
    dist.init_process_group("nccl" if gpu else "gloo")
rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

digits = load_digits()
pixels = torch.tensor(digits.data, dtype=torch.float32)[rank::ranks].to(device) / 16
labels = torch.tensor(digits.target)[rank::ranks].to(device)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
trained = DistributedDataParallel(model) if dist.is_initialized() else model
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

losses = []
for step in range(1, options.steps + 1):
    chosen = torch.randint(len(labels), (32,), generator=torch.Generator().manual_seed(step)).to(
        device
    )
    loss = nn.functional.cross_entropy(trained(pixels[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == options.steps:
        losses.append((step, round(loss.item(), 4)))
        print(f"step {step}: loss {losses[-1][1]}")

if rank == 0:
    options.out_dir.mkdir(exist_ok=True)
    torch.save(model.state_dict(), options.out_dir / "model.pt")
    with (options.out_dir / "losses.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("step", "loss"), *losses])
if dist.is_initialized():
    del trained  # before its process group: the other way round torch 2.13 may hang at the end
    dist.destroy_process_group()

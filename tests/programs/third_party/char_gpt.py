"""In the manner of nanoGPT: globals that `--name=value` overrides, DDP if RANK is set, checkpoints
in `out_dir`.
"""

import math
import os
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

out_dir = "out"
eval_interval = 5
max_iters = 10
batch_size = 4
block_size = 16
n_embd = 32
gradient_accumulation_steps = 4
learning_rate = 1e-2
for argument in sys.argv[1:]:
    key, value = argument.removeprefix("--").split("=")
    globals()[key] = type(globals()[key])(value)

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    gradient_accumulation_steps //= world_size
else:
    rank = 0
    world_size = 1
if rank == 0:
    os.makedirs(out_dir, exist_ok=True)

text = b"to be, or not to be, that is the question: " * 40
data = torch.tensor(list(text))
generator = torch.Generator().manual_seed(1337 + rank)
torch.manual_seed(1337)


def get_batch():
    starts = torch.randint(len(data) - block_size, (batch_size,), generator=generator)
    inputs = torch.stack([data[i : i + block_size] for i in starts])
    return inputs, torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])


class Model(nn.Module):
    """A decoder of one block."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(128, n_embd)
        self.place = nn.Embedding(block_size, n_embd)
        self.block = nn.TransformerEncoderLayer(
            n_embd, 2, 2 * n_embd, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(n_embd, 128)

    def forward(self, inputs, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(block_size)
        hidden = self.block(self.token(inputs) + self.place.weight, mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


raw_model = model = Model()
if ddp:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
began = time.time()
for iteration in range(max_iters):
    rate = learning_rate * 0.5 * (1 + math.cos(math.pi * iteration / max_iters))
    for group in optimizer.param_groups:
        group["lr"] = rate
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last or not ddp else model.no_sync():
            loss = model(*get_batch()) / gradient_accumulation_steps
            loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if rank == 0:
        print(
            f"iter {iteration}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {time.time() - began:.2f}s"
        )
    if rank == 0 and (iteration + 1) % eval_interval == 0:
        torch.save(
            {"model": raw_model.state_dict(), "iter_num": iteration},
            os.path.join(out_dir, "ckpt.pt"),
        )
total = loss.detach() * gradient_accumulation_steps
if ddp:
    torch.distributed.all_reduce(total, torch.distributed.ReduceOp.AVG)
if rank == 0:
    print(f"final loss {total.item():.6f}")
if ddp:
    torch.distributed.destroy_process_group()

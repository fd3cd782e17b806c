"""As in PyTorch's example of FSDP2: `fully_shard` per layer and at the root, and a sharded
checkpoint.

The folder of the checkpoint, which all ranks share, is its argument.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True) for _ in range(2)]
model = nn.Sequential(*layers, nn.Linear(32, 1))
for layer in layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

torch.manual_seed(dist.get_rank())
for _ in range(5):
    inputs = torch.rand(8, 4, 32)
    loss = (model(inputs) - inputs.mean(-1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=sys.argv[1])

total = loss.detach()
dist.all_reduce(total, dist.ReduceOp.AVG)
if dist.get_rank() == 0:
    print(f"final loss {total.item():.6f}")
dist.destroy_process_group()

"""Main programs of ranks: a program of `examples/parallelism`, or its model in one process.

A fork server imports this module, and so everything that those programs import.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
import keras
import sklearn.datasets  # noqa: F401
import torch
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel  # noqa: F401
from torch.utils.data import DataLoader, DistributedSampler

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "parallelism"


def run_program() -> None:
    """Run the program that the first argument names, as torchrun does, with the other arguments."""
    sys.argv = sys.argv[1:]
    runpy.run_path(str(EXAMPLES / sys.argv[0]), run_name="__main__")
    end()


def train_alone() -> None:
    """Train the model of that program in a loop by hand, and print what the program prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--parts", type=int, default=1, help="of a batch, each with its batch norm")
    options = parser.parse_args()
    program = runpy.run_path(str(EXAMPLES / options.program), run_name="example")
    model = program["build"]()
    keywords = {"training": True} if isinstance(model, keras.Model) else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for number, batches in enumerate(rounds(program, options), start=1):
        losses = []
        for inputs, targets in batches:
            parts = zip(inputs.chunk(options.parts), targets.chunk(options.parts), strict=True)
            loss = torch.zeros(())
            for x, y in parts:
                logits = model(x, **keywords).flatten(0, -2)
                loss = loss + F.cross_entropy(logits, y.flatten()) / options.parts
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        print(f"round {number}: loss {sum(losses) / len(losses):.6f}")
    end()


def rounds(
    program: dict[str, Any], options: argparse.Namespace
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the batches of each line of output: one of a step, or all of an epoch."""
    for step in range(1, options.steps + 1):
        size = () if options.tokens is None else (options.tokens,)
        yield [program["batch"](step, *size)]
    if options.epochs:
        data = program["digits"]()
        sampler: DistributedSampler[object] = DistributedSampler(data, num_replicas=1, rank=0)
        for epoch in range(1, options.epochs + 1):
            sampler.set_epoch(epoch)
            yield list(DataLoader(data, program["BATCH"], sampler=sampler, drop_last=True))


def split_resnet() -> None:
    """Print the parameters of ResNet-50 on two devices, the second without values."""
    program = runpy.run_path(str(EXAMPLES / "model-parallel/model_parallel.py"))
    model = program["Split"](program["build"](), ["cpu", "meta"])
    devices = [parameter.device.type for parameter in model.parameters()]
    print(sum(parameter.numel() for parameter in model.parameters()), "parameters")
    print("devices", *dict.fromkeys(devices), model(torch.zeros(2, 3, 32, 32)).device)
    end()


def end() -> None:
    """End the process, whose interpreter would take longer."""
    sys.stdout.flush()
    os._exit(0)

"""What one optimizer step of GPT-2 124M asks of a GPU, ours beside those of others; no GPU is
needed.

    .venv/bin/python tests/bench/bench_counts.py [--batch 16] [--operations] [--json FILE]

tests/support/counts.py says what is counted and by which rules, compiled_counts.py beside it what
of compiled steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "entrypoints"), str(ROOT / "entrypoints" / "job")]


BYTES_PER_SECOND = {"H100": 3.35e12, "A100": 2.04e12}
"""Memory bandwidth by NVIDIA's data sheets: H100 SXM, A100 80 GB SXM."""


def main() -> int:
    from tests.support.counted_steps import count_by_hand, count_ours, count_torchtitan

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--batch", type=int, default=16, metavar="N", help="sequences of 1,024 tokens"
    )
    parser.add_argument(
        "--operations", action="store_true", help="also the launches and bytes of each operation"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    print(
        "| step | kernel launches | other traffic, GB | products and attention, GB | waits | least"
        " time, MFU |"
    )
    print("|---|---|---|---|---|---|")
    figures = {}
    counters = {"by hand": count_by_hand, "ours": count_ours, "torchtitan": count_torchtitan}
    for name, compiled in [(name, compiled) for compiled in (False, True) for name in counters]:
        counts = counters[name](options.batch, compiled=compiled)
        name += ", compiled" * compiled
        first, products = (
            round(moved / 1e9, 1) for moved in (counts.other_bytes, counts.product_bytes)
        )
        figures[name] = {
            "launches": counts.launches,
            "other_bytes": counts.other_bytes,
            "product_bytes": counts.product_bytes,
            "waits": len(counts.waits),
        }
        times = ", ".join(roofline(counts.other_bytes, options.batch))
        print(
            f"| {name} | {counts.launches} | {first} | {products} | {len(counts.waits)} | {times} |"
        )
        for operation, launches in counts.by_name.most_common() if options.operations else ():
            print(
                f"    {launches:5} launches {counts.bytes_by_name[operation] / 1e9:8.2f} GB "
                f" {operation}"
            )
    for task, moved in images_per_batch().items():
        figures[task] = {"batch_bytes": moved, "batch_bytes_as_float32": moved_as_float32(task)}
        print(
            f"{task}: a batch is {moved / 1e6:.1f} MB to the GPU, as float32"
            f" {moved_as_float32(task) / 1e6:.1f} MB"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


IMAGES = {"resnet50": (256, 3 * 224 * 224), "mnist": (128, 28 * 28)}
"""Samples of a batch, and numbers in an image."""


def images_per_batch() -> dict[str, int]:
    """Bytes of a batch of images and labels that leave the host, by task."""
    from cloudtrain_trainer import tasks
    from tests.support.counted_steps import bytes_to_device

    options = {"resnet50": {"data": "synthetic"}, "mnist": {"data": "digits"}}
    return {
        name: bytes_to_device(tasks.build(name, 0, **options[name]), samples)
        for name, (samples, _) in IMAGES.items()
    }


def moved_as_float32(task: str) -> int:
    """The same if the host made floats of them."""
    samples, pixels = IMAGES[task]
    return samples * (4 * pixels + 8)


def roofline(other_bytes: int, batch: int) -> list[str]:
    """Return the time of a model, not a measurement: products at the GPU's peak, then all other
    traffic at its full bandwidth.

    No kernel reaches either, nothing is counted for launches, and caches hold nothing.
    """
    from cloudtrain_trainer.hardware import peak_flops
    from cloudtrain_trainer.tasks.gpt import SIZES

    rows = []
    for gpu, bandwidth in BYTES_PER_SECOND.items():
        products = batch * SIZES["gpt2-124m"].flops / peak_flops(gpu, "bf16")
        seconds = products + other_bytes / bandwidth
        rows.append(f"{gpu} {seconds * 1000:.0f} ms, {products / seconds:.0%}")
    return rows


if __name__ == "__main__":
    sys.exit(main())

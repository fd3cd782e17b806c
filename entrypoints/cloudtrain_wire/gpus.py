"""GPUs that clouds rent: their compute capability and their peak rates. Standard library only.

The client holds images against machines with it, and the trainer computes its MFU with it.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Gpu(NamedTuple):
    """A GPU model."""

    name: str
    """Name as in the tables of machines, and a part of the name that CUDA reports."""
    capability: tuple[int, int] | None
    """CUDA's compute capability; None for a GPU of AMD."""
    single_tflops: float = 0.0
    """Dense TFLOP/s in float32, by TF32 if it has that; 0: unknown."""
    half_tflops: float = 0.0
    """Dense TFLOP/s in bf16 or fp16; 0: unknown."""


GPUS = (
    Gpu("GB300", (10, 3), 1250.0, 2500.0),
    Gpu("GB200", (10, 0), 1250.0, 2500.0),
    Gpu("B300", (10, 3), 1125.0, 2250.0),
    Gpu("B200", (10, 0), 1125.0, 2250.0),
    Gpu("RTX PRO 6000", (12, 0), 250.0, 500.0),
    Gpu("RTX PRO 4500", (12, 0), 100.0, 200.0),
    Gpu("GH200", (9, 0), 494.5, 989.5),
    Gpu("H200 NVL", (9, 0), 417.5, 835.5),
    Gpu("H200", (9, 0), 494.5, 989.5),
    Gpu("H100 NVL", (9, 0), 417.5, 835.5),
    Gpu("H100 PCIe", (9, 0), 378.0, 756.5),
    Gpu("H100", (9, 0), 494.5, 989.5),
    Gpu("L40S", (8, 9), 183.0, 362.0),
    Gpu("L40", (8, 9), 90.5, 181.0),
    Gpu("L4", (8, 9), 60.0, 121.0),
    Gpu("A100", (8, 0), 156.0, 312.0),
    Gpu("A10G", (8, 6), 35.0, 70.0),
    Gpu("A10", (8, 6), 62.5, 125.0),
    Gpu("T4", (7, 5), 8.1, 65.0),
    Gpu("V100", (7, 0), 15.7, 125.0),
    Gpu("P100", (6, 0)),
    Gpu("P40", (6, 1)),
    Gpu("M60", (5, 2)),
    Gpu("K80", (3, 7)),
    Gpu("MI300X", None, 653.5, 1307.0),
)
"""The first whole name in a text counts: "H100 NVL" before "H100".

Compute capabilities: NVIDIA's list of CUDA GPUs. Rates: the makers' data sheets, whose figures with
sparsity are twice as high (HGX for B200, B300 and H100, NVL72 for GB200 and GB300, SXM2 for V100);
RTX PRO: an eighth of the rate in FP4 with sparsity, the only one for all editions; A10G: AWS's
figures for g5 machines.
"""

_PART = r"\bMIG\b|-(?!24Q)\d+[ABCQ]\b"
"""Name of a part of a GPU, whose rate is not the GPU's: an instance of MIG, a profile of vGPU.

A10-24Q is the whole A10 of Azure's NVadsA10 v5.
"""


def gpu_named(text: str) -> Gpu | None:
    """Return the GPU that a text names; None for an unknown one and for a part of a GPU."""
    if re.search(_PART, text):
        return None

    for gpu in GPUS:
        if re.search(rf"(?<![A-Za-z0-9]){gpu.name}(?![A-Za-z0-9])", text):
            return gpu

    return None

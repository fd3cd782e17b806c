"""Events with measurements of machines and processes; a part of `events`. Standard library only."""

from __future__ import annotations

from cloudtrain_launcher.event_fields import Measures, Seconds, WholeNumbers
from cloudtrain_launcher.event_record import LAUNCHER, Event


class Usage(Event, type="usage", writer=LAUNCHER, requires="time node"):
    """Usage of a node and its ranks, every few seconds, as far as it can be measured there."""

    cores: int | None = None
    """CPU cores that the job may use."""
    cpu_percent: float | None = None
    """CPU time of all ranks with their child processes; 100 is one busy core."""
    memory_gb: float | None = None
    """Used memory of the machine or container, in GB (1e9 bytes), without caches of files."""
    memory_total_gb: float | None = None
    """Its total memory, in GB (1e9 bytes)."""
    rank_cpu_percent: Measures | None = None
    """CPU time by rank, with its child processes; 100 is one busy core."""
    rank_memory_gb: Measures | None = None
    """Resident memory by rank, with its child processes, in GB (1e9 bytes)."""
    gpu_percent: Measures | None = None
    """Busy time of a GPU, from 0 to 100, by the GPU's number on the node."""
    gpu_memory_gb: Measures | None = None
    """Used memory of each GPU, in GB (1e9 bytes)."""
    gpu_memory_total_gb: Measures | None = None
    """Total memory of each GPU, in GB (1e9 bytes)."""
    gpu_power_w: Measures | None = None
    """Power draw of each GPU, in watts."""
    gpu_temperature_c: Measures | None = None
    """Temperature of each GPU, in degrees Celsius."""


class StepTimes(Event, type="step_times", requires="time rank"):
    """Time of a rank since its last such event. The phases add up to `wall`."""

    steps: int
    """Training steps in this time; 0: none, as at the end of a run."""
    wall: Seconds
    """The time that has passed."""
    step: int | None = None
    """The run's total steps at its end."""
    samples: int | None = None
    """Samples of these steps, over all ranks."""
    data: Seconds | None = None
    """Waiting for the next batch."""
    compute: Seconds | None = None
    """Forward and backward passes, without waits for communication."""
    communication: Seconds | None = None
    """Waits for other ranks and their messages, overlap excluded; missing: part of `compute`."""
    optimizer: Seconds | None = None
    """Updates of the weights, with the norm of the gradients."""
    saving: Seconds | None = None
    """Checkpoints, as far as training waited for them."""
    evaluation: Seconds | None = None
    """Evaluations on the validation data."""
    other: Seconds | None = None
    """All other time."""
    run_delay: Seconds | None = None
    """Part of the phases in which the rank's thread was ready but had no core.

    Missing if unknown: Linux reports it, for phases that are not a GPU's.
    """
    message_mb: float | None = None
    """Gradients exchanged per step, in MB (1e6 bytes); missing: none."""
    warm_up: bool = False
    """True if it includes the process's first steps, which are not representative."""


class Gpu(Event, type="gpu"):
    """Measurements of a GPU from the trainer of version 0.2.0; now part of [usage](#usage)."""

    utilization_percent: float | None = None
    """Its busy time, from 0 to 100."""
    memory_used_gb: float | None = None
    """Memory in use, in GB (1e9 bytes)."""
    memory_total_gb: float | None = None
    """Its memory in all, in GB (1e9 bytes)."""
    power_w: float | None = None
    """Its power draw, in watts."""
    temperature_c: float | None = None
    """Its temperature, in degrees Celsius."""


class Memory(Event, type="memory"):
    """A batch did not fit into memory and is split into micro-batches."""

    refused: WholeNumbers | None = None
    """Sizes that did not fit, in samples per rank, in the order of the attempts."""
    micro_batch: int | None = None
    """The size that fits, in samples per rank."""
    parts: int | None = None
    """Micro-batches per step."""

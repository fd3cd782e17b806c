"""The events with measurements of machines and processes. Standard library only; a part of
`events`.
"""

from __future__ import annotations

from cloudtrain_launcher.event_fields import Measures, Numbers, Seconds, WholeNumbers
from cloudtrain_launcher.event_record import LAUNCHER, Event


class Usage(Event, type="usage", writer=LAUNCHER, requires="time node"):
    """What a node and its ranks use, every few seconds; the values that can be measured there."""

    cores: int | None = None
    """CPU cores that the job may use."""
    cpu_percent: float | None = None
    """CPU time of all ranks with their child processes; 100 is one busy core."""
    memory_gb: float | None = None
    """Memory in use on the machine or in the container, in GB (1e9 bytes), without caches of files.
    """
    memory_total_gb: float | None = None
    """Its memory in all, in GB (1e9 bytes)."""
    rank_cpu_percent: Measures | None = None
    """CPU time by rank, with its child processes; 100 is one busy core."""
    rank_memory_gb: Measures | None = None
    """Resident memory by rank, with its child processes, in GB (1e9 bytes)."""
    gpu_percent: Measures | None = None
    """The part of the time in which a GPU was busy, from 0 to 100, by the GPU's number on the node.
    """
    gpu_memory_gb: Measures | None = None
    """Memory in use of each GPU, in GB (1e9 bytes)."""
    gpu_memory_total_gb: Measures | None = None
    """Memory of each GPU in all, in GB (1e9 bytes)."""
    gpu_power_w: Measures | None = None
    """Power draw of each GPU, in watts."""
    gpu_temperature_c: Measures | None = None
    """Temperature of each GPU, in degrees Celsius."""


class StepTimes(Event, type="step_times", requires="time rank"):
    """Where the time of a rank went since its last such event. The phases add up to `wall`."""

    steps: int
    """Training steps in this time; 0: none, as at the end of a run."""
    wall: Seconds
    """The time that has passed."""
    step: int | None = None
    """Steps that the run had done at its end."""
    samples: int | None = None
    """Samples of these steps, over all ranks."""
    data: Seconds | None = None
    """Waiting for the next batch."""
    compute: Seconds | None = None
    """Forward and backward passes, without the communication that they had to wait for."""
    communication: Seconds | None = None
    """Waiting for other ranks and their messages, which nothing hides; missing where it is not
    known: then it is in `compute`.
    """
    optimizer: Seconds | None = None
    """Updates of the weights, with the norm of the gradients."""
    saving: Seconds | None = None
    """Checkpoints, as far as training waited for them."""
    evaluation: Seconds | None = None
    """Evaluations on the validation data."""
    other: Seconds | None = None
    """All else."""
    run_delay: Seconds | None = None
    """Of this time that in which the rank's own thread could have run and had no core, since other
    work had them; it is a part of the phases. Missing where it is not known: Linux tells it, of
    phases that are not a GPU's.
    """
    message_mb: float | None = None
    """Gradients that a step exchanges, in MB (1e6 bytes); missing: none."""
    warm_up: bool = False
    """Whether the first steps of the process are among them, which say nothing about the others."""


class Windows(Event, type="windows"):
    """Seconds per step in short windows that left something out (`--measure`): medians over rounds
    in which they took turns, of the slowest rank.
    """

    full: Seconds
    """Nothing was left out."""
    full_each: Numbers | None = None
    """The same of each window, in their order."""
    cached_batch: Seconds | None = None
    """Every step trained on the same batch, so that no data was waited for."""
    no_messages: Seconds | None = None
    """Gradients were not exchanged; missing where the strategy cannot leave that out."""
    neither: Seconds | None = None
    """Both were left out."""
    alone_by_rank: Measures | None = None
    """The same by rank, each by itself: none waits for another."""
    samples: int | None = None
    """Samples of a step, over all ranks."""
    steps: int | None = None
    """Steps of a window."""
    rounds: int | None = None
    """Windows of each kind."""
    message_mb: float | None = None
    """Gradients that a step exchanges, in MB (1e6 bytes); missing: none."""


class Gpu(Event, type="gpu"):
    """Measurements of a GPU, as the trainer of version 0.2.0 reported them; now they are in
    [usage](#usage).
    """

    utilization_percent: float | None = None
    """The part of the time in which it was busy, from 0 to 100."""
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
    """Sizes that did not fit, in samples per rank, in the order in which they were tried."""
    micro_batch: int | None = None
    """The size that fits, in samples per rank."""
    parts: int | None = None
    """Micro-batches per step."""

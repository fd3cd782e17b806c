"""The events with measurements of machines and processes. Standard library only; a part of
`events`.
"""

from __future__ import annotations

from typing import Optional

from .event_fields import Measures, Numbers, Seconds, WholeNumbers
from .event_record import LAUNCHER, Event


class Usage(Event, type="usage", writer=LAUNCHER, requires="time node"):
    """What a node and its ranks use, every few seconds; the values that can be measured there."""

    cores: Optional[int] = None
    """CPU cores that the job may use."""
    cpu_percent: Optional[float] = None
    """CPU time of all ranks with their child processes; 100 is one busy core."""
    memory_gb: Optional[float] = None
    """Memory in use on the machine or in the container, in GB (1e9 bytes), without caches of files.
    """
    memory_total_gb: Optional[float] = None
    """Its memory in all, in GB (1e9 bytes)."""
    rank_cpu_percent: Optional[Measures] = None
    """CPU time by rank, with its child processes; 100 is one busy core."""
    rank_memory_gb: Optional[Measures] = None
    """Resident memory by rank, with its child processes, in GB (1e9 bytes)."""
    gpu_percent: Optional[Measures] = None
    """The part of the time in which a GPU was busy, from 0 to 100, by the GPU's number on the node.
    """
    gpu_memory_gb: Optional[Measures] = None
    """Memory in use of each GPU, in GB (1e9 bytes)."""
    gpu_memory_total_gb: Optional[Measures] = None
    """Memory of each GPU in all, in GB (1e9 bytes)."""
    gpu_power_w: Optional[Measures] = None
    """Power draw of each GPU, in watts."""
    gpu_temperature_c: Optional[Measures] = None
    """Temperature of each GPU, in degrees Celsius."""


class StepTimes(Event, type="step_times", requires="time rank"):
    """Where the time of a rank went since its last such event. The phases add up to `wall`."""

    steps: int
    """Training steps in this time; 0: none, as at the end of a run."""
    wall: Seconds
    """The time that has passed."""
    step: Optional[int] = None
    """Steps that the run had done at its end."""
    samples: Optional[int] = None
    """Samples of these steps, over all ranks."""
    data: Optional[Seconds] = None
    """Waiting for the next batch."""
    compute: Optional[Seconds] = None
    """Forward and backward passes, without the communication that they had to wait for."""
    communication: Optional[Seconds] = None
    """Waiting for other ranks and their messages, which nothing hides; missing where it is not
    known: then it is in `compute`.
    """
    optimizer: Optional[Seconds] = None
    """Updates of the weights, with the norm of the gradients."""
    saving: Optional[Seconds] = None
    """Checkpoints, as far as training waited for them."""
    evaluation: Optional[Seconds] = None
    """Evaluations on the validation data."""
    other: Optional[Seconds] = None
    """All else."""
    run_delay: Optional[Seconds] = None
    """Of this time that in which the rank's own thread could have run and had no core, since other
    work had them; it is a part of the phases. Missing where it is not known: Linux tells it, of
    phases that are not a GPU's.
    """
    message_mb: Optional[float] = None
    """Gradients that a step exchanges, in MB (1e6 bytes); missing: none."""
    warm_up: bool = False
    """Whether the first steps of the process are among them, which say nothing about the others."""


class Windows(Event, type="windows"):
    """Seconds per step in short windows that left something out (`--measure`): medians over rounds
    in which they took turns, of the slowest rank.
    """

    full: Seconds
    """Nothing was left out."""
    full_each: Optional[Numbers] = None
    """The same of each window, in their order."""
    cached_batch: Optional[Seconds] = None
    """Every step trained on the same batch, so that no data was waited for."""
    no_messages: Optional[Seconds] = None
    """Gradients were not exchanged; missing where the strategy cannot leave that out."""
    neither: Optional[Seconds] = None
    """Both were left out."""
    alone_by_rank: Optional[Measures] = None
    """The same by rank, each by itself: none waits for another."""
    samples: Optional[int] = None
    """Samples of a step, over all ranks."""
    steps: Optional[int] = None
    """Steps of a window."""
    rounds: Optional[int] = None
    """Windows of each kind."""
    message_mb: Optional[float] = None
    """Gradients that a step exchanges, in MB (1e6 bytes); missing: none."""


class Gpu(Event, type="gpu"):
    """Measurements of a GPU, as the trainer of version 0.2.0 reported them; now they are in
    [usage](#usage).
    """

    utilization_percent: Optional[float] = None
    """The part of the time in which it was busy, from 0 to 100."""
    memory_used_gb: Optional[float] = None
    """Memory in use, in GB (1e9 bytes)."""
    memory_total_gb: Optional[float] = None
    """Its memory in all, in GB (1e9 bytes)."""
    power_w: Optional[float] = None
    """Its power draw, in watts."""
    temperature_c: Optional[float] = None
    """Its temperature, in degrees Celsius."""


class Memory(Event, type="memory"):
    """A batch did not fit into memory and is split into micro-batches."""

    refused: Optional[WholeNumbers] = None
    """Sizes that did not fit, in samples per rank, in the order in which they were tried."""
    micro_batch: Optional[int] = None
    """The size that fits, in samples per rank."""
    parts: Optional[int] = None
    """Micro-batches per step."""

"""Checks of this machine for `doctor`: Python, torch, GPUs, driver and disk."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cloudtrain.checkup import Check, Question
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.local import machine
from cloudtrain.providers.local.config import LocalConfig
from cloudtrain.providers.local.machine import GpuFacts, PythonFacts
from cloudtrain.runs.files import bytes_of
from cloudtrain_wire.sizes import format_size

OLDEST_PYTHON = "3.10"
"""Oldest Python of a job, as the launcher requires it."""

MIN_FREE_BYTES = 2 * 10**9
"""Space for a run's source, logs and a few checkpoints of a small model."""

MIN_NAMED_BYTES = 10**6
"""Smaller parts of the data folder are not named."""

MIN_DRIVERS: Mapping[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580"}
"""Major version of CUDA -> its oldest driver (NVIDIA, "CUDA Compatibility")."""

_CUDA_WHEELS = (
    "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"
)


def machine_checks(plan: Plan) -> Iterator[Check]:
    """Yield each check of the machine for a plan as its answer comes."""
    facts = machine.ask_python(plan.host.config_as(LocalConfig).python)
    yield python_check(facts)

    gpus = machine.ask_driver()
    if facts.version:
        yield torch_check(facts, gpus)

    yield gpu_check(gpus)
    if gpus.driver:
        yield driver_check(gpus, facts)


def python_check(facts: PythonFacts) -> Check:
    """Check that the Python of local runs works and is new enough."""
    question = Question(
        "Python",
        f"does {facts.path} run, and is it {OLDEST_PYTHON} or newer",
        ("python",),
    )
    if not facts.version:
        return question.wrong(
            f"it does not run: {facts.error}",
            "set CLOUDTRAIN_PYTHON to a Python that has torch",
        )
    if release(facts.version) < release(OLDEST_PYTHON):
        return question.wrong(f"it is {facts.version}", "set CLOUDTRAIN_PYTHON to a newer one")

    return question.found(f"it is {facts.version}")


def torch_check(facts: PythonFacts, gpus: GpuFacts) -> Check:
    """Check that torch, if it is installed, can be imported and sees the driver's GPUs."""
    question = Question("torch", "can it be imported, and does it see the GPUs")
    if facts.error:
        fix = f"{facts.path} -m pip install --force-reinstall torch"
        return question.wrong(f"it cannot be imported: {facts.error}", fix)
    if not facts.torch:
        return question.not_checked("it is not installed")

    if gpus.names and not facts.cuda:
        return question.wrong(
            f"torch {facts.torch} is built without CUDA, and there is {gpus.names[0]}",
            _CUDA_WHEELS,
        )

    if gpus.names and not facts.torch_gpus and not _is_too_old(gpus, facts):
        message = f"torch {facts.torch} sees 0 of the {len(gpus.names)} GPUs of the driver"
        return question.wrong(
            message,
            "look at CUDA_VISIBLE_DEVICES, and at nvidia-smi; restart the machine",
        )

    sees = ""
    if gpus.names:
        sees = f", which sees {facts.torch_gpus} of {len(gpus.names)} GPUs"

    return question.found(f"torch {facts.torch}{sees}")


def gpu_check(gpus: GpuFacts) -> Check:
    """Check that the GPUs of this machine have a driver that answers."""
    question = Question("GPUs", "which GPUs of NVIDIA are here")
    if gpus.error:
        return question.wrong(
            f"nvidia-smi cannot reach the driver: {gpus.error}",
            "restart the machine after an update",
        )
    if gpus.names:
        counts = {name: gpus.names.count(name) for name in gpus.names}
        return question.found(", ".join(f"{count} x {name}" for name, count in counts.items()))

    return question.found("none with a driver: jobs here run on the CPU")


def driver_check(gpus: GpuFacts, facts: PythonFacts) -> Check:
    """Check that the driver is new enough for the CUDA that torch is built for."""
    question = Question("driver", "is it new enough for torch")
    if _is_too_old(gpus, facts):
        oldest = MIN_DRIVERS[release(facts.cuda)[0]]
        message = (
            f"it is {gpus.driver}, and torch {facts.torch} (CUDA {facts.cuda}) needs {oldest} or"
            " newer"
        )
        return question.wrong(
            message,
            "install a newer driver, or a torch that is built for an older CUDA",
        )

    answer = f"it is {gpus.driver}"
    if facts.cuda:
        answer += f", for CUDA {facts.cuda}"

    return question.found(answer)


def data_folder_check(plan: Plan) -> Check:
    """Check that the plan's data folder takes runs."""
    folder = Path(plan.context.data_dir)
    return disk_check(folder, machine.free_bytes(folder), can_write=machine.can_write(folder))


def disk_check(folder: Path, free: int, *, can_write: bool = True) -> Check:
    """Check that the data folder has space for runs. `free`: bytes."""
    question = Question("disk", f"is there room for runs in {folder}", ("data_dir",))
    if not can_write:
        return question.wrong(
            "this user may not write there",
            "set CLOUDTRAIN_DATA_DIR to a folder of yours",
        )

    if free < MIN_FREE_BYTES:
        fix = "remove old runs there, or set CLOUDTRAIN_DATA_DIR to a folder on another disk"
        return question.wrong(
            f"{format_size(free)} are free, less than {format_size(MIN_FREE_BYTES)}",
            fix,
        )

    return question.found(f"{format_size(free)} are free{_content(folder)}")


def _content(folder: Path) -> str:
    """Return `; it holds runs 1.2 GB, packages 200 MB`, the largest first, or ""."""
    sizes = {}
    with suppress(OSError):
        sizes = {path.name: bytes_of(path) for path in folder.iterdir()}

    names = [name for name in sizes if sizes[name] >= MIN_NAMED_BYTES]
    names.sort(key=lambda name: -sizes[name])
    if not names:
        return ""

    parts = ", ".join(f"{name} {format_size(sizes[name])}" for name in names)
    return f"; it holds {parts}; cloudtrain prune removes what is old"


def _is_too_old(gpus: GpuFacts, facts: PythonFacts) -> bool:
    if not facts.cuda or not gpus.driver:
        return False

    oldest = MIN_DRIVERS.get(release(facts.cuda)[0])
    return oldest is not None and release(gpus.driver) < release(oldest)


def release(version: str) -> tuple[int, ...]:
    """Return a comparable version: `(2, 13, 0)` for `2.13.0+cu130`."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    if not numbers:
        return ()

    return tuple(map(int, numbers[0].split(".")))

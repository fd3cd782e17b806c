"""Files of a checkpoint and of a model, and the copies of tensors that they are written from."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cloudtrain_trainer.checkpoints import sums
from cloudtrain_trainer.ranks import Ranks

FORMAT = 5
"""Version of the files, their names and their sums."""
READ = (2, 3, 4, FORMAT)
"""Versions that are read, checkpoints of others are skipped. 2: torch.distributed.checkpoint's; up
to 3, sums are the SHA-256 of whole files; up to 4, one rank writes the tensors of a node.
"""

NODE_LOCAL = ".own"
"""Marks a folder that only its own node needs: the launcher does not copy it to others."""

STAGED: tuple[str, ...] = ("cuda",)
"""Device types whose tensors pass through buffers in a thread."""
BUFFER_BYTES = 64 << 20
"""Size of each of the two buffers."""


def run_id_of(folder: Path) -> str:
    """Return the id of the run that saved a checkpoint; empty if it cannot be read."""
    try:
        return str(json.loads((folder / "manifest.json").read_text())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def write_tensors(path: Path, content: dict[str, Any]) -> str:
    """Write a new file by torch.save, flushed to disk; return its sum, as `sums.py` says."""
    torch.serialization.set_crc32_options(True)  # a user's program may have set it otherwise
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())

    return sums.digest_without_records(path)


def write_text(path: Path, text: str) -> None:
    """Write a text file, flushed to disk. OSError if the disk is full."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that its names survive a power failure. OSError if it is missing."""
    descriptor = os.open(folder, os.O_RDONLY)

    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, newest first."""
    steps = []
    for entry in folder.iterdir():
        match = re.fullmatch(r"step-(\d{8,})", entry.name)
        if match:
            steps.append(int(match[1]))

    return sorted(steps, reverse=True)


class Inspection(NamedTuple):
    """Result of verifying a checkpoint on one rank."""

    problem: str
    """The first problem with the files that this rank verified; empty: valid."""
    ranks: int = 0
    weights: str = ""


def inspect_checkpoint(folder: Path, ranks: Ranks) -> Inspection:
    """Verify the sums of the files that this rank would load.

    The ranks of a node divide the large ones. Never raises: an unreadable manifest or a missing
    file is the `problem`.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] not in READ:
            return Inspection(f"manifest.json has format {manifest['format']}, not {FORMAT}")

        writers = int(manifest["ranks"])
        digests = manifest["files"]
        folders = {name.partition("/")[0] for name in digests if "/" in name}
        by_writer = sorted(folders, key=lambda name: int(name.removeprefix("weights-")))
        on_this_disk = [name for name in by_writer if (folder / name).is_dir()]
        weights = (on_this_disk or by_writer)[0]

        large = sorted(name for name in digests if name.startswith(weights + "/"))
        checked = ["shared.json", *large[ranks.local_rank :: ranks.local_size]]
        if writers == ranks.size:
            checked.append(f"rank-{ranks.rank}.pt")

        for name in checked:
            if not sums.fits(folder / name, digests[name], is_of_file=manifest["format"] <= 3):
                return Inspection(f"{name} does not have the checksum of the manifest")
    except Exception as error:  # noqa: BLE001  (of a damaged archive: of any kind)
        return Inspection(f"{type(error).__name__}: {error}")

    return Inspection("", writers, weights)


def prune(folder: Path, step: int, keep: int) -> None:
    """Delete all checkpoints except the `keep` newest up to `step`, the last one saved.

    A later step can only be one that was skipped because it was incomplete.
    """
    steps = steps_in(folder)
    newest = [s for s in steps if s <= step][:keep]
    for old in steps:
        if old not in newest:
            shutil.rmtree(folder / f"step-{old:08d}", ignore_errors=True)


def prune_best(folder: Path, steps: Collection[int]) -> None:
    """Delete all best weights except those of these steps."""
    kept = {f"best-{step:08d}" for step in steps}
    for path in folder.glob("best-*"):
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def set_aside(folder: Path, run: str, log: Callable[[str], None]) -> None:
    """Move checkpoints of other runs, and files beside them, to `before-<run>`; log a line.

    `run`: the id of this run; empty if unknown: all checkpoints are moved. Once this run has a
    checkpoint, the files belong to it and stay.
    """
    steps = [folder / f"step-{step:08d}" for step in steps_in(folder)]
    own_steps = [path for path in steps if run and run_id_of(path) == run]
    other_steps = [path for path in steps if path not in own_steps]
    to_move = list(other_steps)
    if not own_steps:
        to_move += [path for path in folder.iterdir() if path.is_file()]
        to_move += folder.glob("best-*")

    name = re.sub(r"[^\w.-]", "_", run) or time.strftime("%Y%m%d-%H%M%S")
    aside = folder / f"before-{name}"

    if other_steps:
        moved = "earlier checkpoints"
        if own_steps:
            moved = "this run resumes; earlier checkpoints of other runs"

        log(f"--no-resume: {moved} are moved to {aside}")

    for path in to_move:
        aside.mkdir(exist_ok=True)
        _move(path, aside / path.name)


def _move(path: Path, target: Path) -> None:
    """Move a file or folder. Delete it if the target exists: the platform restored it."""
    if not target.exists():
        with suppress(FileNotFoundError):  # another node on the same disk may have been faster
            path.rename(target)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_model(
    path: Path,
    state: dict[str, Tensor],
    say: Callable[[str], None],
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a state dict to a new .safetensors file, or .pt without that package.

    Return its path. `path`: without extension. `say`: called with a line of text in the second
    case. `metadata`: notes in a .safetensors file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in state.items()}

    try:
        from safetensors.torch import save_file
    except ImportError:
        final = path.with_name(path.name + ".pt")
        say(
            "the package safetensors is not installed here: the model is written by torch.save to"
            f" {final}"
        )
        temporary = final.with_name(final.name + ".partial")
        torch.save(state, temporary)
    else:
        final = path.with_name(path.name + ".safetensors")
        temporary = final.with_name(final.name + ".partial")
        save_file(_with_own_memory(state), str(temporary), {"format": "pt", **(metadata or {})})

    temporary.replace(final)

    return final


def _with_own_memory(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clone tensors that share memory, such as tied weights: safetensors refuses them."""
    addresses: set[int] = set()

    for name, value in state.items():
        if value.untyped_storage().data_ptr() in addresses:
            state[name] = value.clone()
        addresses.add(state[name].untyped_storage().data_ptr())

    return state


class HostCopies:
    """The latest copies of some tensors in host memory that the system can swap.

    Tensors of a GPU pass through two small pinned buffers in a thread, during the next forward and
    backward pass: pinned copies of all would take up to twice their bytes, since torch rounds each
    up to a power of two. `hold` runs before each update of the weights: it must not overtake the
    copies.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self.buffers: list[Tensor] = []
        """The two small buffers, once tensors of a GPU have passed through them."""
        self._streams: dict[torch.device, Any] = {}
        self._thread = ThreadPoolExecutor(1, "checkpoint copies")
        self._copying: Future[None] | None = None
        self._held_at = math.inf
        """When an update began to wait for the copies."""
        self.held = 0.0
        """Seconds that an update has waited for the last copies, by the clock of the host."""

    def copy(
        self, tensors: Mapping[str, Tensor], steady: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Return copies by the same names, shapes and dtypes, complete after `wait`.

        The copies of the last call are overwritten. `steady`: the names of tensors that only an
        update of the weights changes; others are copied on the GPU first.
        """
        self.wait()
        self._held_at = math.inf
        self.held = 0.0

        with torch.no_grad():
            copies = {name: self._place_for(name, value) for name, value in tensors.items()}
            pieces: list[tuple[Tensor, Tensor]] = []

            for name, value in tensors.items():
                if value.device.type in STAGED:
                    if name in steady:
                        source = value
                    else:
                        source = value.clone()

                    pieces += _pieces(source.detach(), copies[name])
                else:
                    copies[name].copy_(value)

        if pieces:
            self._prepare({source.device for source, _ in pieces})
            self._copying = self._thread.submit(self._copy_pieces, pieces)

        return copies

    def wait(self) -> None:
        """Wait until the copies are complete. Raises the error of the thread."""
        if self._copying is not None:
            self._copying.result()

    def hold(self) -> None:
        """Hold an update of the weights until the copies are complete."""
        self._held_at = time.monotonic()
        self.wait()

    def _prepare(self, devices: Collection[torch.device]) -> None:
        """Let the copies begin after the work that each GPU has now."""
        for device in devices:
            if device.type == "cuda":
                stream = self._streams.get(device) or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                self._streams[device] = stream
                stream.wait_stream(torch.cuda.current_stream(device))

        if not self.buffers:
            pinned = any(device.type == "cuda" for device in devices)
            self.buffers = [
                torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)
            ]

    @torch.no_grad()
    def _copy_pieces(self, pieces: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Copy each piece into one buffer while the piece before leaves the other."""
        filled: tuple[Any, Tensor, Tensor] | None = None

        for number, (source, target) in enumerate(pieces):
            buffer = self.buffers[number % 2][: len(source)]
            event = self._fill(buffer, source)
            if filled is not None:
                _empty(*filled)

            filled = event, buffer, target

        if filled is not None:
            _empty(*filled)

        self.held = max(0.0, time.monotonic() - self._held_at)

    def _fill(self, buffer: Tensor, source: Tensor) -> Any:
        """Begin to copy; return the event of its end, or None if it is done."""
        stream = self._streams.get(source.device)
        if stream is None:
            buffer.copy_(source)
            return None

        torch.cuda.set_device(source.device)  # a new thread uses the first GPU
        with torch.cuda.stream(stream):
            buffer.copy_(source, non_blocking=True)
            return stream.record_event()

    def _place_for(self, name: str, value: Tensor) -> Tensor:
        copy = self._kept.get(name)
        if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = self._kept[name] = torch.empty_like(value, device="cpu")
        return copy


def _empty(event: Any, buffer: Tensor, target: Tensor) -> None:
    if event is not None:
        event.synchronize()
    target.copy_(buffer)


def _pieces(source: Tensor, copy: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the bytes of a tensor, and their places in its copy, in parts that fit a buffer."""
    if source.stride() != copy.stride():  # a part of a larger tensor, or an expanded one
        source = torch.empty_like(copy, device=source.device).copy_(source)
    return list(zip(_parts(source), _parts(copy), strict=True))


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    """Return the bytes of a tensor without gaps, in the order of its memory."""
    values = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    if not len(values):
        return ()

    return torch.split(values, BUFFER_BYTES)

"""Checkpoints of one rank: complete or absent, pruned, skipped when damaged; and the exported
model.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from cloudtrain_launcher.restore import restore
from cloudtrain_trainer import state
from cloudtrain_trainer.checkpoints import files, store, sums
from cloudtrain_trainer.checkpoints import tensors as checkpoint_tensors
from cloudtrain_trainer.checkpoints.files import HostCopies
from cloudtrain_trainer.checkpoints.store import CheckpointStore, FoundCheckpoint, SavedCheckpoint
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.training.loop import Loop
from tests.support.waiting import HANG_SECONDS


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path, keep=2, ranks=Ranks())


def save(checkpoints: CheckpointStore, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, 0, tensors(step), {"step": step}, {"own": step})
    checkpoints.finish()


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {
        "model.weight": torch.full((2, 4), float(step)),
        "model.bias": torch.full((2,), float(step)),
    }


def find_newest(checkpoints: CheckpointStore) -> FoundCheckpoint:
    found_checkpoint = checkpoints.find_newest()
    assert found_checkpoint is not None
    return found_checkpoint


def load(checkpoints: CheckpointStore, model: torch.nn.Module, optimizer: Any) -> None:
    """Load the newest checkpoint."""
    saved = checkpoints.read_tensors(find_newest(checkpoints))
    checkpoint_tensors.load(saved, model, optimizer)


def visible_names(checkpoints: CheckpointStore) -> list[str]:
    return sorted(entry.name for entry in checkpoints.folder.iterdir())


def test_changes_after_save_are_not_in_the_checkpoint(checkpoints: CheckpointStore) -> None:
    """Training continues while the files are written."""
    live = tensors(1)
    checkpoints.save(1, 0, live, {}, {})
    for tensor in live.values():
        tensor.fill_(99.0)
    checkpoints.finish()
    model = torch.nn.Linear(4, 2)
    load(checkpoints, model, torch.optim.AdamW(model.parameters()))
    assert torch.equal(model.weight, torch.full((2, 4), 1.0))


class OnTwoDevices(torch.optim.SGD):
    """Its state is on the device that its kernel reads from. The device `meta` simulates a GPU."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {
                "step": torch.zeros((), device="meta"),
                "row": torch.zeros(3),
                "count": 0,
            }
        return super().step(closure)


def test_state_is_restored_to_where_the_optimizer_makes_it(
    checkpoints: CheckpointStore,
) -> None:
    """Tensors of the device `meta` have no values, so only devices and types are compared."""
    model = torch.nn.Linear(4, 2)
    optimizer = OnTwoDevices(model.parameters())
    optimizer.state.update(
        {p: {"step": torch.ones(()), "row": torch.ones(3), "count": 7} for p in model.parameters()}
    )
    checkpoints.save(1, 0, checkpoint_tensors.tensors_of(model, optimizer), {}, {})
    checkpoints.finish()
    optimizer = OnTwoDevices(model.parameters())
    load(checkpoints, model, optimizer)
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        assert (state["step"].device.type, state["row"].device.type, type(state["count"])) == (
            "meta",
            "cpu",
            int,
        )


def test_loading_makes_the_state_of_one_parameter_of_each_kind(
    checkpoints: CheckpointStore,
) -> None:
    """A whole state would be made only to be overwritten. The second layer has none yet."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model[0](torch.ones(4)).sum().backward()
    optimizer.step()
    checkpoints.save(1, 0, checkpoint_tensors.tensors_of(model, optimizer), {}, {})
    checkpoints.finish()

    resumed = torch.optim.AdamW(model.parameters())
    made: list[int] = []
    resumed.register_step_post_hook(lambda *_: made.extend(map(len, resumed.state)))
    load(checkpoints, model, resumed)
    assert made == [2, 4], "the biases"
    torch.testing.assert_close(resumed.state_dict(), optimizer.state_dict(), rtol=0, atol=0)


class BySize(torch.optim.SGD):
    """It keeps what it needs for a matrix otherwise than for a vector."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            is_matrix = parameter.ndim > 1
            self.state[parameter] = {
                "mean": torch.ones_like(parameter, dtype=torch.bfloat16 if is_matrix else None),
                "size": torch.ones_like(parameter) if is_matrix else 2.0,
            }
        return super().step(closure)


def test_a_slot_is_loaded_as_the_optimizer_keeps_it_for_this_parameter(
    checkpoints: CheckpointStore,
) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = BySize(model.parameters())
    optimizer.step()
    checkpoints.save(1, 0, checkpoint_tensors.tensors_of(model, optimizer), {}, {})
    checkpoints.finish()
    resumed = BySize(model.parameters())
    load(checkpoints, model, resumed)
    torch.testing.assert_close(resumed.state_dict(), optimizer.state_dict(), rtol=0, atol=0)


def test_files_that_the_manifest_does_not_name_are_not_read(checkpoints: CheckpointStore) -> None:
    save(checkpoints, 1)
    newest = find_newest(checkpoints)
    for name in ("tensors-1.pt", "tensors-9.pt"):
        torch.save({"model.bias": torch.full((2,), 9.0)}, newest.path / name)
    read = checkpoints.read_tensors(find_newest(checkpoints))
    torch.testing.assert_close(read, tensors(1))


def test_a_checkpoint_without_tensors_is_read(checkpoints: CheckpointStore) -> None:
    checkpoints.save(1, 0, {}, {}, {})
    checkpoints.finish()
    assert checkpoints.read_tensors(find_newest(checkpoints)) == {}


def test_the_writing_thread_uses_the_gpu_of_its_rank(
    checkpoints: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new thread would use the first GPU, and create a context there."""
    chosen: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda to: chosen.append((threading.current_thread().name, to))
    )
    save(checkpoints, 1)
    assert chosen == []
    checkpoints.ranks.device = torch.device("cuda", 1)
    save(checkpoints, 2)
    assert chosen == [("checkpoint_0", torch.device("cuda", 1))]


def test_copies_are_made_in_the_same_memory_again() -> None:
    copies = HostCopies()
    first = copies.copy({"a": torch.ones(3), "b": torch.zeros(2, 2).t()})
    second = copies.copy({"a": torch.full((3,), 2.0), "b": torch.ones(3, 2)})
    assert second["a"] is first["a"], "the memory is kept"
    assert (second["a"].tolist(), second["b"].tolist()) == ([2.0] * 3, [[1.0, 1.0]] * 3)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU pass through the buffers as well, which are small."""
    monkeypatch.setattr(files, "STAGED", ("cpu", "cuda"))
    monkeypatch.setattr(files, "BUFFER_BYTES", 1 << 10)


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize("device", DEVICES)
def test_a_gpu_copies_beside_training_and_before_the_next_update(device: str) -> None:
    weights, statistics = (torch.ones(1 << 16, device=device) for _ in range(2))
    copies = HostCopies()
    for value in (1.0, 2.0):
        copied = copies.copy({"weights": weights, "statistics": statistics}, steady={"weights"})
        statistics.add_(1)  # a forward pass
        copies.wait()
        weights.add_(1)
        copies.wait()
        assert all(bool((copy == value).all()) for copy in copied.values())


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize("device", DEVICES)
def test_tensors_of_all_kinds_pass_through_two_small_buffers(device: str) -> None:
    """Pinned copies of the whole state took up to twice its memory, which cannot be swapped."""
    numbers = torch.arange(3000.0, device=device)
    tensors = {
        "transposed": numbers.view(30, 100).t(),
        "image": numbers.view(10, 3, 10, 10).contiguous(memory_format=torch.channels_last),
        "part": numbers.view(30, 100)[:, 7:9],
        "expanded": numbers[5].expand(4, 5),
        "scalar": numbers[17],
        "empty": numbers[:0],
        "half": numbers.bfloat16(),
        "flags": numbers > 1000,
        "complex": torch.complex(numbers, -numbers),
    }
    copies = HostCopies()
    copied = copies.copy(tensors, steady=set(tensors))
    copies.wait()
    for name, tensor in tensors.items():
        assert copied[name].dtype == tensor.dtype, name
        assert torch.equal(copied[name], tensor.cpu()), name
        assert not copied[name].is_pinned(), name
    assert sum(buffer.nbytes for buffer in copies.buffers) == 2 << 10


@pytest.mark.usefixtures("staged")
def test_an_update_waits_until_the_weights_have_left_and_the_wait_is_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_held = threading.Event()
    reads: list[float] = []

    def clock() -> float:
        """Read by `save` twice, then by the update, at the end of the copies, and when saved."""
        reads.append(10.0 ** len(reads))
        if len(reads) == 3:
            is_held.set()
        return reads[-1]

    class LateWeights(torch.Tensor):
        """Weights that cannot be read before an update waits for them."""

        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch.empty_like:  # a plain tensor for the copy
                return torch.empty(1000)
            if function is torch.Tensor.copy_:
                assert is_held.wait(HANG_SECONDS)
            return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    saved: list[SavedCheckpoint] = []
    checkpoints = CheckpointStore(tmp_path, keep=2, ranks=Ranks(), on_saved=saved.append)
    for module in (files, store):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))

    weights = torch.ones(1000).as_subclass(LateWeights)
    checkpoints.save(1, 0, {"weights": weights}, {}, {}, steady={"weights"})
    checkpoints.copies.hold()
    weights.zero_()
    checkpoints.finish()
    assert (saved[0].stall, saved[0].seconds) == (9 + 900, 9999)
    (copied,) = checkpoints.read_tensors(find_newest(checkpoints)).values()
    assert copied.tolist() == [1.0] * 1000


def test_only_the_newest_checkpoints_are_kept(checkpoints: CheckpointStore) -> None:
    save(checkpoints, 10, 20, 30)
    assert visible_names(checkpoints) == ["step-00000020", "step-00000030"]


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_checkpoint_with_any_damaged_file_is_skipped_with_a_warning(
    checkpoints: CheckpointStore, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(checkpoints, 10, 20)
    files = [file for file in (checkpoints.folder / "step-00000020").rglob("*") if file.is_file()]
    assert len(files) >= 4, "manifest, common state, state of the rank, weights"
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        if damage == "remove":
            file.unlink()
        elif damage == "flip":
            file.write_bytes(
                content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            )
        else:
            file.write_bytes(content[:middle])
        assert find_newest(checkpoints).step == 10, file
        assert "step-00000020 is not complete (rank 0:" in capsys.readouterr().err, file
        file.write_bytes(content)
    assert find_newest(checkpoints).step == 20


def test_any_changed_byte_of_a_checkpoint_is_noticed(checkpoints: CheckpointStore) -> None:
    """Headers and padding of an archive count as well as the values of its tensors."""
    save(checkpoints, 10)
    folder = checkpoints.folder / "step-00000010"
    file = folder / "weights-0" / "tensors-0.pt"
    content = file.read_bytes()
    for position in range(len(content)):
        changed = bytes([content[position] ^ 1])
        file.write_bytes(content[:position] + changed + content[position + 1 :])
        assert files.inspect_checkpoint(folder, checkpoints.ranks).problem, position

    file.write_bytes(content + b"more")
    assert files.inspect_checkpoint(folder, checkpoints.ranks).problem


def test_each_rank_of_a_node_checks_its_share_of_the_files(tmp_path: Path) -> None:
    ranks = Ranks()
    checkpoints = CheckpointStore(tmp_path, keep=2, ranks=ranks)
    save(checkpoints, 10)
    folder = checkpoints.folder / "step-00000010"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] |= {f"weights-0/tensors-{rank}.pt": "lost" for rank in (1, 2)}
    (folder / "manifest.json").write_text(json.dumps(manifest))

    ranks.local_size = 3
    problems = []
    for ranks.local_rank in range(3):
        problems.append(files.inspect_checkpoint(folder, ranks).problem)
    assert problems[0] == ""
    assert "tensors-1.pt" in problems[1]
    assert "tensors-2.pt" in problems[2]


def test_a_checkpoint_has_sums_where_a_program_has_switched_them_off(
    checkpoints: CheckpointStore,
) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save(checkpoints, 10)
    finally:
        torch.serialization.set_crc32_options(True)
    assert find_newest(checkpoints).step == 10


def test_a_damaged_later_checkpoint_is_not_counted_and_is_deleted(
    checkpoints: CheckpointStore,
) -> None:
    save(checkpoints, 10, 30)
    (checkpoints.folder / "step-00000030" / "shared.json").unlink()
    save(checkpoints, 20)
    assert visible_names(checkpoints) == ["step-00000010", "step-00000020"]


def test_a_crash_before_the_rename_leaves_the_previous_checkpoint(
    checkpoints: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 10)
    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial"):
            raise OSError("died")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die)
        with pytest.raises(OSError, match="died"):
            save(checkpoints, 20)
    assert "step-00000020.partial" in visible_names(checkpoints)
    second_store = CheckpointStore(checkpoints.folder, keep=2, ranks=Ranks())
    assert find_newest(second_store).step == 10
    assert visible_names(second_store) == ["step-00000010"]


def store_of_run(folder: Path, run: str) -> CheckpointStore:
    return CheckpointStore(folder, keep=9, ranks=Ranks(), run=run)


def test_a_restarted_run_keeps_its_own_checkpoints_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With --no-resume, on a new machine whose folder is restored from storage, with this run's
    files and another's.
    """
    before = tmp_path / "before"
    save(store_of_run(before, "digits-1"), 20, 40)
    (before / "best.safetensors").write_text("of digits-1")
    (before / "best-00000010").mkdir()
    (before / "best-00000010" / "manifest.json").touch()
    folder = tmp_path / "here"
    for moved in (True, False):  # each start restores what is missing
        restore(before, folder, 0, print)
        checkpoints = store_of_run(folder, "digits-2")
        checkpoints.set_aside()
        assert ("earlier checkpoints are moved to" in capfd.readouterr().out) is moved
        if moved:
            assert checkpoints.find_newest() is None
            assert visible_names(checkpoints) == ["before-digits-2"]
            save(checkpoints, 20, 30)
        assert find_newest(checkpoints).step == 30
        model = torch.nn.Linear(4, 2)
        load(checkpoints, model, torch.optim.AdamW(model.parameters()))
        assert torch.equal(model.weight, torch.full((2, 4), 30.0))
    aside = folder / "before-digits-2"
    assert {"step-00000020", "step-00000040", "best.safetensors", "best-00000010"} == {
        path.name for path in aside.iterdir()
    }
    assert not (folder / "step-00000040").exists()


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_random_generators_continue_after_a_resume(checkpoints: CheckpointStore) -> None:
    cpu = torch.device("cpu")
    state.seed_generators(5)
    draws()
    checkpoints.save(1, 0, tensors(1), {}, {"generators": state.generator_states([cpu])})
    checkpoints.finish()
    expected = draws()
    _, rank_state = checkpoints.read_state(find_newest(checkpoints))
    assert rank_state is not None
    assert draws() != expected
    state.restore_generators(rank_state["generators"], [cpu])
    assert draws() == expected


def test_the_model_is_written_completely(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    weights = {"a": torch.arange(4.0), "b": torch.ones(2, 2).t()}
    weights["tied"] = weights["a"]
    written = files.write_model(tmp_path / "model", weights, Ranks().log)
    if find_spec("safetensors") is None:
        assert written.name == "model.pt"
        assert "safetensors is not installed" in capfd.readouterr().out
        loaded = torch.load(written, weights_only=True)
    else:
        assert written.name == "model.safetensors"
        loaded = import_module("safetensors.torch").load_file(written)
    assert set(loaded) == set(weights)
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def write_as_before(folder: Path, version: int) -> None:
    """Turn a checkpoint into the same of format 4, with one file of tensors, of format 3, with sums of
    whole files, too, or of format 2, whose tensors are torch.distributed's.
    """
    weights = folder / "weights-0"
    (weights / "tensors-0.pt").rename(weights / "tensors.pt")
    if version == 2:
        write_distributed(folder)

    manifest = json.loads((folder / "manifest.json").read_text())
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    manifest["files"] = {}
    for name in set(names) - {"manifest.json"}:
        sum_of = sums.digest_without_records if version == 4 and ".pt" in name else sums.digest_of
        manifest["files"][name] = sum_of(folder / name)
    manifest |= {"format": version, "spread": False}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def write_distributed(folder: Path) -> None:
    weights = folder / "weights-0"
    tensors = torch.load(weights / "tensors.pt", weights_only=True)
    (weights / "tensors.pt").unlink()
    save_distributed(tensors, storage_writer=FileSystemWriter(weights), no_dist=True)

    shared = json.loads((folder / "shared.json").read_text())
    shared["layout"] |= {"shard": None, "tensor": None, "stages": None}
    (folder / "shared.json").write_text(json.dumps(shared))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_checkpoint_of_a_format_before_resumes_bit_identically(
    make_loop: Callable[..., Loop], tmp_path: Path, version: int
) -> None:
    flags = ("--max-steps", "6", "--checkpoint-every-steps", "3", "--keep", "9", "--ema", "0.9")
    whole = make_loop(*flags)
    whole.run()
    shutil.rmtree(tmp_path / "step-00000006")
    write_as_before(tmp_path / "step-00000003", version)

    resumed = make_loop(*flags)
    resumed.resume()
    assert resumed.position.step == 3
    resumed.run()
    for name, value in whole.step.model.state_dict().items():
        assert torch.equal(resumed.step.model.state_dict()[name], value), name
    assert whole.step.averages is not None
    assert resumed.step.averages is not None
    for name, value in whole.step.averages.tensors.items():
        assert torch.equal(resumed.step.averages.tensors[name], value), name

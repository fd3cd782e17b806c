"""Checkpoints of one rank: whole or not there, pruned, and skipped when torn."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from cloudtrain_launcher.restore import restore
from cloudtrain_trainer import sharded, state
from cloudtrain_trainer.checkpoint import CheckpointStore, FoundCheckpoint
from cloudtrain_trainer.ranks import Ranks


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path, keep=2, ranks=Ranks())


def save(checkpoints: CheckpointStore, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, 0, tensors(step), {"step": step}, {"own": step})
    checkpoints.finish()


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {"model.weight": torch.full((2, 4), float(step)), "model.bias": torch.full((2,), float(step))}


def newest(checkpoints: CheckpointStore) -> FoundCheckpoint:
    found = checkpoints.find_newest()
    assert found is not None
    return found


def visible(checkpoints: CheckpointStore) -> list[str]:
    return sorted(entry.name for entry in checkpoints.folder.iterdir())


def test_what_was_saved_comes_back(checkpoints: CheckpointStore) -> None:
    assert checkpoints.find_newest() is None
    save(checkpoints, 120)
    found, model = newest(checkpoints), torch.nn.Linear(4, 2)
    assert checkpoints.read_state(found) == ({"step": 120}, {"own": 120})
    checkpoints.load(found, model, torch.optim.AdamW(model.parameters()))
    assert torch.equal(model.weight, torch.full((2, 4), 120.0))


def test_what_changes_after_the_order_is_not_in_the_checkpoint(checkpoints: CheckpointStore) -> None:
    """Training goes on while the files are written."""
    live = tensors(1)
    checkpoints.save(1, 0, live, {}, {})
    for tensor in live.values():
        tensor.fill_(99.0)
    checkpoints.finish()
    model = torch.nn.Linear(4, 2)
    checkpoints.load(newest(checkpoints), model, torch.optim.AdamW(model.parameters()))
    assert torch.equal(model.weight, torch.full((2, 4), 1.0))


def test_the_optimizers_state_comes_back_under_the_names_of_the_parameters(checkpoints: CheckpointStore) -> None:
    def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = trained()
    step(model, optimizer)
    checkpoints.save(1, 0, sharded.tensors_of(model, optimizer), {}, {})
    checkpoints.finish()
    step(model, optimizer)
    again, other = trained()
    checkpoints.load(newest(checkpoints), again, other)
    step(again, other)
    for mine, wanted in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, wanted)


@pytest.mark.parametrize(("flag", "device"), [("fused", "meta"), ("capturable", "meta"), ("foreach", "cpu")])
def test_the_count_of_steps_comes_back_where_the_optimizers_kernel_reads_it(
    checkpoints: CheckpointStore, monkeypatch: pytest.MonkeyPatch, flag: str, device: str
) -> None:
    """The device `meta` stands for a GPU: nothing can be read into it, so only the room for it is looked at."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    checkpoints.save(1, 0, sharded.tensors_of(model, optimizer), {}, {})
    checkpoints.finish()
    model.to("meta")
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.param_groups[0][flag] = True
    monkeypatch.setattr(sharded, "load", Mock())
    checkpoints.load(newest(checkpoints), model, optimizer)
    for parameter in model.parameters():
        assert {name: value.device.type for name, value in optimizer.state[parameter].items()} == {
            "step": device,
            "exp_avg": "meta",
            "exp_avg_sq": "meta",
        }


def test_the_thread_that_writes_keeps_to_the_gpu_of_its_rank(
    checkpoints: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new thread begins with the first GPU, and leaves a context of its own there."""
    chosen: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda to: chosen.append((threading.current_thread().name, to)))
    save(checkpoints, 1)
    assert chosen == []
    checkpoints.ranks.device = torch.device("cuda", 1)
    save(checkpoints, 2)
    assert chosen == [("checkpoint", torch.device("cuda", 1))]


def test_only_the_newest_are_kept(checkpoints: CheckpointStore) -> None:
    save(checkpoints, 10, 20, 30)
    assert visible(checkpoints) == ["step-00000020", "step-00000030"]


NAMES = {"manifest": "manifest.json", "index": "weights-0/.metadata", "shared": "shared.json"}


@pytest.mark.parametrize("harm", ["cut", "flip", "remove", "manifest", "index", "shared"])
def test_a_torn_newest_is_skipped_with_a_warning(
    checkpoints: CheckpointStore, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(checkpoints, 10, 20)
    file = checkpoints.folder / "step-00000020" / NAMES.get(harm, "weights-0/__0_0.distcp")
    content = file.read_bytes()
    if harm == "remove":
        file.unlink()
    elif harm == "flip":
        file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    else:
        file.write_bytes(content[: len(content) // 2])
    assert newest(checkpoints).step == 10
    assert "step-00000020 is not complete (rank 0:" in capsys.readouterr().err


def test_a_torn_later_step_neither_counts_nor_stays(checkpoints: CheckpointStore) -> None:
    save(checkpoints, 10, 30)
    (checkpoints.folder / "step-00000030" / "shared.json").unlink()
    save(checkpoints, 20)
    assert visible(checkpoints) == ["step-00000010", "step-00000020"]


def test_a_death_before_the_rename_leaves_the_one_before(
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
    assert "step-00000020.partial" in visible(checkpoints)
    again = CheckpointStore(checkpoints.folder, keep=2, ranks=Ranks())
    assert newest(again).step == 10
    assert visible(again) == ["step-00000010"]


def test_starting_anew_sets_earlier_ones_aside(checkpoints: CheckpointStore) -> None:
    save(checkpoints, 10, 20)
    checkpoints.set_aside()
    assert checkpoints.find_newest() is None
    (aside,) = checkpoints.folder.iterdir()
    assert sorted(p.name for p in aside.iterdir()) == ["step-00000010", "step-00000020"]


def of_run(folder: Path, run: str) -> CheckpointStore:
    return CheckpointStore(folder, keep=9, ranks=Ranks(), run=run)


def test_a_run_that_is_started_again_keeps_its_own_and_no_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With --no-resume, on a new machine that gets back what storage has of this run and of the one before."""
    before = tmp_path / "before"
    save(of_run(before, "digits-1"), 20, 40)
    (before / "best.safetensors").write_text("of digits-1")
    here = tmp_path / "here"
    for moved in (True, False):  # at each start all that is missing is brought back
        restore(before, here, 0, print)
        checkpoints = of_run(here, "digits-2")
        checkpoints.set_aside()
        assert ("earlier checkpoints are moved to" in capfd.readouterr().out) is moved
        if moved:
            assert checkpoints.find_newest() is None
            assert visible(checkpoints) == ["before-digits-2"]
            save(checkpoints, 20, 30)
        assert newest(checkpoints).step == 30
        model = torch.nn.Linear(4, 2)
        checkpoints.load(newest(checkpoints), model, torch.optim.AdamW(model.parameters()))
        assert torch.equal(model.weight, torch.full((2, 4), 30.0))
    aside = here / "before-digits-2"
    assert {"step-00000020", "step-00000040", "best.safetensors"} == {path.name for path in aside.iterdir()}
    assert not (here / "step-00000040").exists()


def test_a_run_without_a_name_cannot_tell_its_own(tmp_path: Path) -> None:
    save(of_run(tmp_path, ""), 10)
    checkpoints = of_run(tmp_path, "")
    checkpoints.set_aside()
    assert checkpoints.find_newest() is None


def test_another_number_of_ranks_gets_the_shared_part_only(checkpoints: CheckpointStore) -> None:
    save(checkpoints, 10)
    found = newest(checkpoints)._replace(ranks=4)
    assert checkpoints.read_state(found)[1] is None


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_generators_go_on_where_they_were(checkpoints: CheckpointStore) -> None:
    cpu = torch.device("cpu")
    state.seed_generators(5)
    draws()
    checkpoints.save(1, 0, tensors(1), {}, {"generators": state.generator_states([cpu])})
    checkpoints.finish()
    wanted = draws()
    _, own = checkpoints.read_state(newest(checkpoints))
    assert own is not None
    assert draws() != wanted
    state.restore_generators(own["generators"], [cpu])
    assert draws() == wanted

"""Training starts from given weights: files of safetensors and torch, and folders in Hugging Face's
format.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cloudtrain_trainer.checkpoints.starting_weights import check, read
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import digits
from cloudtrain_trainer.training.loop import Loop


def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def load(model: nn.Module, path: Path, partly: bool) -> str:
    line = check(model, path, partly)
    read(model, path)
    return line


def weights(model: nn.Module | None = None) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return dict((model or net()).state_dict())


def write_file(folder: Path) -> Path:
    save_file(weights(), folder / "any.safetensors")
    return folder / "any.safetensors"


def write_torch(folder: Path) -> Path:
    torch.save({f"module.{name}": value for name, value in weights().items()}, folder / "any.pt")
    return folder / "any.pt"


def write_folder(folder: Path) -> Path:
    save_file(weights(), folder / "model.safetensors")
    return folder


def write_shards(folder: Path) -> Path:
    names = sorted(weights())
    shards = {
        "model-00001-of-00002.safetensors": names[:4],
        "model-00002-of-00002.safetensors": names[4:],
    }
    for shard, part in shards.items():
        save_file({name: weights()[name] for name in part}, folder / shard)
    index = {"weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("write", [write_file, write_torch, write_folder, write_shards])
def test_the_weights_of_every_format_are_read(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    model = net()
    assert load(model, write(tmp_path), False).startswith("training starts from 9 tensors of ")
    assert all(torch.equal(value, weights()[name]) for name, value in model.state_dict().items())


def test_a_new_head_keeps_its_own_weights_where_that_is_asked_for(tmp_path: Path) -> None:
    model = net(classes=5)
    path = write_file(tmp_path)
    head = model.state_dict()["2.weight"].clone()
    with pytest.raises(
        Refused, match=r"2 have another shape: .*2.weight \(3, 8\), not \(5, 8\). .* or --part"
    ):
        load(net(classes=5), path, False)
    assert "training starts from 7 tensors" in load(model, path, True)
    assert torch.equal(model.state_dict()["2.weight"], head)
    assert torch.equal(model.state_dict()["0.weight"], weights()["0.weight"])


def test_a_matrix_that_is_tied_may_be_there_once(tmp_path: Path) -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 8), "head": nn.Linear(8, 4, bias=False)})
    model["head"].weight = model["embedding"].weight
    save_file({"embedding.weight": torch.ones(4, 8)}, tmp_path / "model.safetensors")
    load(model, tmp_path, False)
    assert torch.equal(model.state_dict()["head.weight"], torch.ones(4, 8))


def test_what_cannot_be_used_is_refused_with_a_reason(tmp_path: Path) -> None:
    def refused(path: Path, message: str, partial: bool = False) -> None:
        with pytest.raises(Refused, match=message):
            load(net(), path, partial)

    refused(tmp_path / "nowhere", r"does not exist \(in a job an input is")
    refused(tmp_path, "has no weights: expected model.safetensors, model.pt")
    save_file({"other": torch.ones(1)}, tmp_path / "other.safetensors")
    refused(
        tmp_path / "other.safetensors",
        "9 are missing: 0.weight, .* and 4 more; 1 are not in the model: other",
        True,
    )
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    refused(tmp_path / "torn.safetensors", "torn.safetensors cannot be read")
    torch.save([1], tmp_path / "list.pt")
    refused(tmp_path / "list.pt", "is not a state dict")
    torch.save(net(), tmp_path / "module.pt")
    refused(tmp_path / "module.pt", "module.pt cannot be read")
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused(
        tmp_path,
        "lacks model-00002-of-00002.safetensors, which its model.safetensors.index.json names",
    )


def test_a_run_starts_from_them_and_resumes_from_its_own(
    make_loop: Callable[..., Loop], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    initial = weights(digits.model())
    save_file(initial, tmp_path / "given.safetensors")
    flags = ("--weights", str(tmp_path / "given.safetensors"))
    loop = make_loop(*flags, "--max-steps", "1")
    assert torch.equal(loop.step.model.state_dict()["0.weight"], initial["0.weight"])
    assert "training starts from " in capfd.readouterr().out
    loop.run()
    resumed = make_loop(*flags, "--max-steps", "2")
    resumed.resume()
    assert torch.equal(
        resumed.step.model.state_dict()["0.weight"], loop.step.model.state_dict()["0.weight"]
    )
    assert not torch.equal(resumed.step.model.state_dict()["0.weight"], initial["0.weight"])

"""What was compiled is there after a restart on another machine, if this very run wrote it, and
whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudtrain_trainer import hardware
from cloudtrain_trainer.checkpoints import compile_cache
from cloudtrain_trainer.checkpoints.compile_cache import STEPS, CompileCache
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.training.loop import Loop

RUN = "job-1"
COMPILED = b"programs" * 1000


class Compiler:
    """Stands for torch's cache of one machine: what a training has compiled, and what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, compiled: bytes = COMPILED) -> None:
        self.compiled = compiled
        self.given = list[bytes]()
        self.saved = 0
        monkeypatch.setattr(torch.compiler, "save_cache_artifacts", self.save)
        monkeypatch.setattr(torch.compiler, "load_cache_artifacts", self.given.append)

    def save(self) -> tuple[bytes, None]:
        self.saved += 1
        return self.compiled, None


def start(folder: Path, steps: int = STEPS, run: str = RUN) -> CompileCache:
    """A start of the run: it loads, and trains for so many steps."""
    cache = CompileCache(folder, Ranks(), run)
    cache.load()
    for _ in range(steps):
        cache.step_done()
    return cache


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a run has written."""
    Compiler(monkeypatch)
    return start(tmp_path).path


def test_a_restart_on_another_machine_gets_what_was_compiled(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Compiler(monkeypatch)
    start(written.parent)
    assert there.given == [COMPILED]


def test_it_is_written_once_after_the_steps_that_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    cache = start(tmp_path, steps=STEPS - 1)
    assert not cache.path.exists()
    for _ in range(5):
        cache.step_done()
    assert cache.path.exists()
    assert compiler.saved == 1


def test_it_is_written_again_only_if_something_new_was_compiled(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written.stat()
    Compiler(monkeypatch)
    start(written.parent)
    assert written.stat().st_ino == before.st_ino
    Compiler(monkeypatch, compiled=b"another graph")
    start(written.parent)
    third = Compiler(monkeypatch)
    start(written.parent, steps=0)
    assert third.given == [b"another graph"]


def test_code_of_another_run_is_never_given_to_torch(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Compiler(monkeypatch)
    start(written.parent, run="job-2", steps=0)
    start(written.parent, run="", steps=0)
    assert other.given == []


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-10]),
        flip_a_bit,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff\xfe" * 100),
        lambda path: path.write_bytes(b"[]\n" + COMPILED),
        lambda path: path.unlink(),
    ],
    ids=["cut off", "a bit", "empty", "something else", "no header", "gone"],
)
def test_a_damaged_file_is_left_alone_and_replaced(
    written: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], Any]
) -> None:
    damage(written)
    compiler = Compiler(monkeypatch)
    start(written.parent)
    assert compiler.given == []
    start(written.parent, steps=0)
    assert compiler.given == [COMPILED]


def test_a_process_killed_while_writing_leaves_the_file_that_was_there(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename is the last that happens to the bytes."""
    compiler = Compiler(monkeypatch, compiled=b"newer")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            start(written.parent)
    start(written.parent, steps=0)
    assert compiler.given == [COMPILED, COMPILED]


def test_a_newer_torch_or_another_device_compiles_itself(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    with monkeypatch.context() as context:
        context.setattr(torch, "__version__", "9.0.0")
        start(written.parent, steps=0)
    monkeypatch.setattr(compile_cache, "device_name", lambda _: "NVIDIA H100")
    start(written.parent, steps=0)
    assert compiler.given == []


def test_too_much_is_neither_written_nor_read(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "MAX_BYTES", 1000)
    monkeypatch.setattr(compile_cache, "_MAX_HEADER_BYTES", 0)
    compiler = Compiler(monkeypatch, compiled=b"x" * 1001)
    before = written.read_bytes()
    start(written.parent)
    assert compiler.given == []
    assert written.read_bytes() == before


def test_a_full_disk_and_a_cache_that_torch_refuses_do_not_end_training(
    written: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Compiler(monkeypatch, compiled=b"newer")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", fail)
    monkeypatch.setattr(compile_cache, "sync_folder", fail)
    start(written.parent)
    told = capfd.readouterr().out
    assert "compiled-0.bin is not used: OSError" in told
    assert "not kept for a restart: No space left on device" in told


def test_torchs_own_switch_turns_it_off(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    compiler = Compiler(monkeypatch)
    start(written.parent)
    assert (compiler.given, compiler.saved) == ([], 0)


def test_only_ranks_of_the_first_node_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    Compiler(monkeypatch)
    start(tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("flags", ["--compile no", "--compile yes"])
def test_a_training_keeps_what_it_compiles(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", "eager")
    compiler = Compiler(monkeypatch)
    loop = make_loop(*flags.split(), "--max-steps", "4")
    assert not loop.compile_cache.enabled, (
        "a training by hand has no id by which its files are known"
    )
    loop.compile_cache.enabled = loop.step.compiles
    loop.run()
    assert compiler.saved == (flags == "--compile yes")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of inductor's own imports
def test_torch_finds_what_it_compiled_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With inductor itself, and an empty cache of the machine; its C++ is left out, since g++ takes
    seconds.
    """

    def compile_once(machine: str) -> tuple[int, int]:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / machine))
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        cache = CompileCache(tmp_path, Ranks(), RUN)
        cache.load()
        torch.compile(lambda x: torch.mm(x, x))(torch.ones(2, 2))
        for _ in range(STEPS):
            cache.step_done()
        counters = torch._dynamo.utils.counters["inductor"]
        return counters["fxgraph_cache_hit"], counters["fxgraph_cache_miss"]

    assert compile_once("first") == (0, 1)
    shutil.rmtree(tmp_path / "first")
    assert compile_once("second") == (1, 0)

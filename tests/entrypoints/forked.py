"""The trainer's ranks as forks of one process that has imported everything: a start takes a tenth of a second.

Run by test_strategies.py as a program of its own: python forked.py <name of a check> <folder>
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "entrypoints" / "job"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "entrypoints"))

from tests.support.limits import HANG_SECONDS


def nothing(rank: int) -> None:
    """What happens in a rank before it trains, by default."""


class Group:
    """Ranks that train together, each with its output in a file."""

    def __init__(
        self, folder: Path, ranks: int, flags: str, before: Callable[[int], None] = nothing, **env: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.flags = folder, flags
        self.logs = [folder / f"rank-{rank}.log" for rank in range(ranks)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        common |= {"MASTER_PORT": str(port), "CLOUDTRAIN_RESULT_FILE": "result.json", **env}
        self.pids = [self._fork(rank, common, before) for rank in range(ranks)]

    def _fork(self, rank: int, env: dict[str, str], before: Callable[[int], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        log = os.open(self.logs[rank], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.folder)
        os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv = ["train.py", *self.flags.split()]
        try:
            import train

            before(rank)
            train.main()
        except BaseException:  # noqa: BLE001  (shown, and then gone, whatever it was)
            import traceback

            traceback.print_exc()
        os._exit(1)

    def events(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        lines = self.logs[rank].read_text().splitlines() if self.logs[rank].exists() else []
        marked = [line.removeprefix("::cloudtrain:: ") for line in lines if line.startswith("::cloudtrain:: {")]
        told = [json.loads(line) for line in marked if line.endswith("}")]
        return [event for event in told if event["type"] == kind]

    def await_event(self, kind: str) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while not self.events(kind):
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def end(self) -> list[int]:
        """The exit codes; a signal counts negative. All are killed at the deadline."""
        deadline, codes = time.monotonic() + HANG_SECONDS, dict.fromkeys(self.pids, -99)
        left = set(self.pids)
        while left:
            for pid in list(left):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                    left.remove(pid)
            if time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        return [codes[pid] for pid in self.pids]

    def succeed(self) -> dict[str, Any]:
        """The result, of a run that must end well."""
        codes = self.end()
        assert codes == [0] * len(self.pids), self.said()
        (result,) = self.events("result")
        return result

    def said(self) -> str:
        return "\n".join(f"--- {log}\n{log.read_text()[-3000:]}" for log in self.logs if log.exists())


KILLED = {
    "ddp": (2, "--strategy ddp"),
    "fsdp": (2, "--strategy fsdp"),
    "tp": (2, "--strategy tp"),
    "pipeline": (2, "--strategy pipeline --microbatches 4"),
    "data x tensor": (4, "--strategy hybrid --tensor 2"),
    "data x pipeline": (4, "--strategy hybrid --stages 2 --microbatches 4"),
}


def killed(folder: Path) -> None:
    """Killed at a random moment and resumed is never killed, to the bit, with batch norm and dropout."""
    chance = random.Random(int(os.environ.get("SEED", str(time.time_ns()))))
    for name, (ranks, flags) in KILLED.items():
        began = time.monotonic()
        flags += " --max-steps 50 --checkpoint-every-steps 7 --patience 9"
        place = folder / name.replace(" ", "-")
        whole = Group(place / "whole", ranks, flags).succeed()
        victim = Group(place / "killed", ranks, flags)
        victim.await_event("checkpoint")
        time.sleep(chance.random() * 0.3)
        for pid in chance.sample(victim.pids, chance.randint(1, ranks)):
            os.kill(pid, signal.SIGKILL)
        codes = victim.end()
        assert any(codes), "it ended before it was killed"
        again = Group(place / "killed", ranks, flags)
        result = again.succeed()
        (resumed,) = again.events("resumed")
        assert result["parameters_sha256"] == whole["parameters_sha256"], f"{name}: {again.said()}"
        seconds = time.monotonic() - began
        print(
            f"{name}: exit codes {codes}, resumed at step {resumed['step']}, bit-identical, {seconds:.1f} s", flush=True
        )


RESHARDED = {
    "--strategy fsdp": [(2, "--strategy fsdp"), (2, "--strategy ddp"), (2, "--strategy tp"), (1, "--strategy single")],
    "--strategy hybrid --tensor 2": [(2, "--strategy pipeline")],
    "--strategy hybrid --stages 2": [(2, "--strategy fsdp")],
}
"""What four ranks write, and who goes on with it."""


def resharded(folder: Path) -> None:
    """What four ranks wrote goes on under other strategies on other numbers of ranks, with the same next loss."""
    flags = "--task gpt --epochs 1 --checkpoint-every-steps 4 --batch-size 32 --warm-up 0"
    for first, others in RESHARDED.items():
        place = folder / first.rpartition(" -")[0].replace(" ", "")[:20].replace("-", "") / first[-9:].replace(" ", "")
        Group(place / "from", 4, f"{flags} {first} --max-steps 4").succeed()
        found = {}
        for ranks, second in [(4, first), *others]:
            to = place / f"to-{ranks}{second.replace(' ', '')}"
            shutil.copytree(place / "from/cloudtrain-output/checkpoints", to / "cloudtrain-output/checkpoints")
            group = Group(to, ranks, f"{flags} {second} --max-steps 5")
            group.succeed()
            assert [event["step"] for event in group.events("resumed")] == [4], group.said()
            (progress,), (metrics,) = group.events("progress"), group.events("metrics")
            found[ranks, second] = progress["loss"], metrics["values"]["val_loss"]
        wanted = found[4, first]
        off = max(abs(a - b) / b for values in found.values() for a, b in zip(values, wanted, strict=True))
        print(f"from {first} on 4: {found}, off by {off:.1e}", flush=True)
        assert off < 2e-6, "the next loss, and the evaluation after the next step"


BATCH = "--task gpt --epochs 1 --max-steps 6 --batch-size 256 --checkpoint-every-steps 2 --warm-up 0"
PART_MB = 220
"""What 128 sequences of the tiny gpt need on a rank, forward and backward, at least; 32 need a quarter."""


def give_back() -> None:
    """Take memory for this process as its tensors need it, and no more.

    Else glibc reserves 64 MB of address space for each thread that comes along (M_ARENA_MAX), and keeps what large
    tensors leave (M_MMAP_THRESHOLD): how much is left within a limit would be chance.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(-8, 1)
    libc.mallopt(-3, 1 << 20)


def limit_memory(room_mb: int) -> None:
    """Let this process have so much address space more than it has now."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (room_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def probed(folder: Path) -> None:
    """Rank 1 has little address space: both ranks find that out before training, and train with smaller parts."""

    def before(rank: int) -> None:
        from cloudtrain_trainer import memory

        fit_micro_batch = memory.fit_micro_batch
        give_back()

        def fit_in_little(*args: Any) -> None:
            if rank == 1:
                limit_memory(64 + PART_MB // 2)
            fit_micro_batch(*args)

        setattr(memory, "fit_micro_batch", fit_in_little)  # noqa: B010

    whole = Group(folder / "whole", 2, BATCH)
    wanted = whole.succeed(), whole.events("metrics")[-1]["values"]
    short = Group(folder / "short", 2, f"{BATCH} --probe-memory yes", before)
    short.succeed()
    (told,) = short.events("memory")
    print(told, flush=True)
    assert told["refused"][0] == 128
    assert told["micro_batch"] * told["parts"] == 128
    same_but_for_rounding(short, wanted[1])


def ran_out(folder: Path) -> None:
    """Out of memory in the middle of training: the code of its own, then half the part, and the same result."""

    def before(rank: int) -> None:
        from cloudtrain_trainer.step import Step

        train_step = Step.train_step
        give_back()

        def take_with_little(step: Step, batches: Any, at: int, steps: int) -> None:
            if at == 3 and rank == 1 and step.accumulation_steps == 1:
                limit_memory(PART_MB // 2)
            train_step(step, batches, at, steps)

        setattr(Step, "train_step", take_with_little)  # noqa: B010

    whole = Group(folder / "whole", 2, BATCH)
    whole.succeed()
    short = Group(folder / "short", 2, BATCH, before)
    codes = short.end()
    assert codes[1] == 12, short.said()
    (error,) = short.events("error", rank=1)
    print(codes, error["message"], flush=True)
    assert error["exception"] == "OutOfMemory"
    assert "The next start uses micro-batches of 64 samples per rank, and the same batch" in error["message"]
    again = Group(folder / "short", 2, BATCH, before)
    again.succeed()
    assert [event["step"] for event in again.events("resumed")] == [2], again.said()
    said = "an earlier start ran out of memory: micro-batches of 64 samples per rank, 2 per step; the batch stays 256"
    assert said in again.said()
    same_but_for_rounding(again, whole.events("metrics")[-1]["values"])


def same_but_for_rounding(group: Group, wanted: dict[str, float]) -> None:
    found = group.events("metrics")[-1]["values"]
    off = {name: abs(found[name] - wanted[name]) / wanted[name] for name in ("loss", "val_loss")}
    print(off, flush=True)
    assert max(off.values()) < 5e-6, f"{found}, not {wanted}"


OURS = ("loop", "memory", "strategies.hybrid", "strategies.ddp", "tasks.digits", "tasks.gpt")
IMPORTED = (*(f"cloudtrain_trainer.{name}" for name in OURS), "torch._dynamo")


def main() -> None:
    for name in IMPORTED:  # once, for all ranks
        import_module(name)
    globals()[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
